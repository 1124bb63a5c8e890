// The functions of products.h, for one element type: TILES, MATRICES, DOT_PRODUCTS or FILTERS.
#define EXPORTED extern "C" __attribute__((visibility("default")))
#define TILES(T) \
  EXPORTED void NAMED(choose_tiles, T)(Product<T> &p, int64_t columns) { fitting_tiles(p, columns); }
#define MATRICES(T) \
  EXPORTED int32_t NAMED(matrix_product, T)(const Product<T> &p) { return product_of_matrices(p); }
#define DOT_PRODUCTS(T) \
  EXPORTED bool NAMED(suits_dots, T)(const Product<T> &p) { return is_for_dots(p); } \
  EXPORTED int32_t NAMED(dot_product, T)(const Product<T> &p) { return dot_matrix_product(p); } \
  EXPORTED int32_t NAMED(vector_product, T)(const VectorProduct<T> &p) { return product_of_vector(p); }
#define FILTERS(T) \
  EXPORTED int32_t NAMED(convolution, T)(const Product<T> &p, const Windows<T> &w) { return product_of_windows(p, w); } \
  EXPORTED int32_t NAMED(weight_gradient, T)(const Product<T> &p, const Overlaps<T> &o) { return product_of_overlaps(p, o); }
