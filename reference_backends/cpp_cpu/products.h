// Matrix products as generated kernels see them. Follows base.h.
//
// A kernel's generated part says where its two factors lie, or fills blocks of them, whatever they are computed from, and finishes
// tiles of the result. Everything between (gemm.h, dots.h, winograd.h, winograd_weights.h) is in libraries (products.cpp), of each
// element type, however many products a graph and a program have.

// Two steps of a sum of products of bfloat16s, the first in the lower half: an element of both factors where a processor multiplies
// them in pairs. Their sums are floats.
typedef uint32_t bfloat16_pair;
template <class T> struct SumOf { typedef T Type; };
template <> struct SumOf<bfloat16_pair> { typedef float Type; };

INLINE int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// Where the rows of a left tile are: row r, step s at data[r * row + s * step]; `rows` of them, those beyond are anything.
template <class T> struct Tile {
  const T *data;
  int64_t row, step, rows;
};
// See `tile_product` of gemm.h.
template <class T> using TileProduct = void (*)(const Tile<T> &a, const T *b, int64_t pitch, int64_t k, T *tile, int64_t apart, bool fresh);

// A factor: `fill` writes the elements of `count` rows (of the left factor; columns of the right one) from `first` and `depth`
// steps of the sum from `from`. Along: row r, step s at to[r * pitch + s]; across: at to[s * pitch + r].
template <class T> struct Factor {
  const void *context;
  void (*fill)(const void *context, int64_t batch, int64_t first, int64_t count, int64_t from, int64_t depth, T *to, int64_t pitch);
  bool along;
  // Where the factor is a tensor whose rows or steps lie together: the address of row `first`, step `from`; `fill` may be null then.
  // Rows are `row` apart and steps `step`, for as long as `from` stays below the same multiple of `stretch`. Or null.
  const T *(*address)(const void *context, int64_t batch, int64_t first, int64_t from);
  const void *address_context;
  int64_t row, step, stretch;
  // Of a right factor that lies in panels: how many columns lie together, with those of the next step behind them; a multiple of
  // the widest tile's. The last panel is filled up. `address` is asked for no other columns than the first of a tile's.
  int64_t panel;
};

// result[batch][i][j] = finish(the sum over k of left[batch][i][k] * right[batch][k][j])
template <class T> struct Product {
  int64_t batches, m, n, k;
  Factor<T> left, right;
  const void *context;
  // Computes the results of a tile at (row, column) from sums[r * pitch + c], which are of type SumOf<T>.
  void (*finish)(const void *context, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns, const T *sums, int64_t pitch);
  Spare spare;
  // How it is computed, which `choose_tiles` fills in.
  int64_t rows;    // Of a tile.
  int64_t narrow;  // Columns of a narrow one.
  // Tiles of TILE_VECTORS vectors and of fewer, and the same with as few rows as the last ones have.
  TileProduct<T> wide, last_wide, slim, last_slim;
};

// One of perhaps so few rows that packing factors does not pay (dots.h).
template <class T> struct FewRowsProduct : Product<T> {};

template <class F, class T>
static void fill_with(const void *f, int64_t batch, int64_t first, int64_t count, int64_t from, int64_t depth, T *to, int64_t pitch) {
  (*(const F *)f)(batch, first, count, from, depth, to, pitch);
}
template <class F, class T>
static const T *address_with(const void *f, int64_t batch, int64_t first, int64_t from) {
  return (*(const F *)f)(batch, first, from);
}
template <class F, class T>
static void finish_with(const void *f, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns, const T *sums, int64_t pitch) {
  (*(const F *)f)(batch, row, rows, column, columns, (const typename SumOf<T>::Type *)sums, pitch);
}

// A matrix and a vector: every element of the matrix is used once, so it is not packed but summed as it is filled.
template <class T> struct VectorProduct {
  int64_t batches, n, k;
  Factor<T> vector, matrix;
  const void *context;
  // Computes results [first, first + count) from their sums.
  void (*finish)(const void *context, int64_t batch, int64_t first, int64_t count, const T *sums);
  Spare spare;
};

template <class F, class T>
static void finish_line_with(const void *f, int64_t batch, int64_t first, int64_t count, const T *sums) {
  (*(const F *)f)(batch, first, count, (const typename SumOf<T>::Type *)sums);
}

// The pairs of a tensor whose rows lie together and whose steps are `apart`, across, until the step `end`: what follows is zero.
static __attribute__((noinline)) void interleave(const bf16 *source, int64_t apart, int64_t count, int64_t depth, int64_t end, bfloat16_pair *to, int64_t pitch) {
  for (int64_t s = 0; s < depth; ++s, source += 2 * apart, to += pitch) {
    const bf16 *const second = source + apart;
    if (2 * s + 1 < end)
      for (int64_t r = 0; r < count; ++r) to[r] = (uint32_t)source[r] | (uint32_t)second[r] << 16;
    else
      for (int64_t r = 0; r < count; ++r) to[r] = 2 * s < end ? (uint32_t)source[r] : 0;
  }
}
// The pairs of what `fill` gives, floats with the values of bfloat16s, for `k` steps in all.
template <class F>
static __attribute__((noinline)) void pair_up(const F &fill, bool along, int64_t batch, int64_t first, int64_t count, int64_t from, int64_t depth, int64_t k, bfloat16_pair *to, int64_t pitch) {
  enum : int64_t { ROWS = 64, STEPS = 32 };
  float block[2 * ROWS * STEPS];
  const auto of = [](float low, float high) INLINE_LAMBDA { return bits<uint32_t>(low) >> 16 | (bits<uint32_t>(high) & 0xffff0000u); };
  for (int64_t row = 0; row < count; row += ROWS)
    for (int64_t step = 0; step < depth; step += STEPS) {
      const int64_t rows = min_int(ROWS, count - row), steps = min_int(STEPS, depth - step);
      const int64_t there = max_int(0, min_int(2 * steps, k - 2 * (from + step)));
      if (there < 2 * steps) __builtin_memset(block, 0, sizeof block);
      fill(batch, first + row, rows, 2 * (from + step), there, block, along ? 2 * STEPS : ROWS);
      for (int64_t line = 0; line < (along ? rows : steps); ++line) {
        bfloat16_pair *const target = along ? to + (row + line) * pitch + step : to + (step + line) * pitch + row;
        const float *const source = block + line * 2 * (along ? STEPS : ROWS);
        if (along)
          for (int64_t s = 0; s < steps; ++s) target[s] = of(source[2 * s], source[2 * s + 1]);
        else
          for (int64_t r = 0; r < rows; ++r) target[r] = of(source[r], source[ROWS + r]);
      }
    }
}

#if defined __AVX512F__
// The first bits [low, high) of `width`.
INLINE uint32_t bits_between(int64_t low, int64_t high, int64_t width) {
  low = max_int(0, min_int(low, width)), high = max_int(low, min_int(high, width));
  return (uint32_t)((1ull << high) - (1ull << low));
}
#endif
// Lines of a window, parts of which may lie outside its tensor: to[line * to_pitch + i] = low <= i < high ? from[line * from_pitch +
// STEP * i] : 0, for i < count. What follows a line in its `room` may be overwritten.
template <int STEP, class T>
INLINE void windows(T *to, int64_t to_pitch, int64_t room, const T *from, int64_t from_pitch, int64_t lines, int64_t count, int64_t low, int64_t high) {
#if defined __AVX512F__
  if constexpr (STEP <= 2 && sizeof(T) == 4) {
    typedef int32_t Unaligned __attribute__((vector_size(64), may_alias, aligned(4)));
    typedef float Masked __attribute__((vector_size(64)));
    for (int64_t i = 0; i < count; i += 16) {
      const float *here = (const float *)(from + STEP * i);
      T *there = to + i;
      const uint32_t bits = STEP == 1 ? bits_between(low - i, high - i, 16) : bits_between(2 * (low - i), 2 * (high - i) - 1, 32);
      const bool whole = i + 16 <= room;
      const uint16_t kept = (uint16_t)bits_between(0, count - i, 16);
      for (int64_t line = 0; line < lines; ++line, here += from_pitch, there += to_pitch) {
        Masked value = __builtin_ia32_loadups512_mask(here, Masked{}, (uint16_t)bits);
        if constexpr (STEP == 2) {
          const Masked more = __builtin_ia32_loadups512_mask(here + 16, Masked{}, (uint16_t)(bits >> 16));
          value = __builtin_shufflevector(value, more, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        }
        if (whole) *(Unaligned *)there = (Unaligned)value;
        else __builtin_ia32_storeups512_mask((float *)there, value, kept);
      }
    }
    return;
  }
#endif
  low = max_int(0, min_int(low, count)), high = max_int(low, min_int(high, count));
  for (int64_t line = 0; line < lines; ++line, from += from_pitch, to += to_pitch) {
    for (int64_t i = 0; i < low; ++i) to[i] = 0;
#pragma omp simd
    for (int64_t i = low; i < high; ++i) to[i] = from[STEP * i];
    for (int64_t i = high; i < count; ++i) to[i] = 0;
  }
}

// What slides under the windows of a product's left factor. Its columns are (images, height, width), and its steps (channels, tall,
// wide).
template <class T> struct Windows {
  int64_t images, height, width, tall, wide;
  bool down, across;  // Whether the offset in a window is added to the position of the result; otherwise it is subtracted.
  Factor<T> elements;  // Of (images, height + tall - 1, width + wide - 1) rows and the channels as steps.
  // Where results lie along the left factor's rows: `finish` of the product's transpose.
  const void *context;
  void (*finish)(const void *context, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns, const T *sums, int64_t pitch);
};

// What slides under the windows of a product's right factor, whose columns are (channels, 3, 3) and whose steps are (images, height,
// width): rows are the channels, steps (images, height + 2, width + 2).
template <class T> struct Overlaps {
  int64_t images, height, width;
  Factor<T> elements;
};

// What the libraries have. Their names say which text they were made from: PRODUCTS_KEY.
#define NAME_OF(function, T, key) function##_##T##_##key
#define NAMED_WITH(function, T, key) NAME_OF(function, T, key)
#define NAMED(function, T) NAMED_WITH(function, T, PRODUCTS_KEY)
#define DECLARE_PRODUCTS(T) \
  extern "C" int32_t NAMED(matrix_product, T)(const Product<T> &); \
  extern "C" bool NAMED(suits_dots, T)(const Product<T> &); \
  extern "C" int32_t NAMED(dot_product, T)(const Product<T> &); \
  extern "C" int32_t NAMED(vector_product, T)(const VectorProduct<T> &); \
  extern "C" int32_t NAMED(convolution, T)(const Product<T> &, const Windows<T> &); \
  extern "C" int32_t NAMED(weight_gradient, T)(const Product<T> &, const Overlaps<T> &); \
  extern "C" void NAMED(choose_tiles, T)(Product<T> &, int64_t columns); \
  INLINE int32_t matrix_product(const Product<T> &p) { return NAMED(matrix_product, T)(p); } \
  INLINE int32_t matrix_product(const FewRowsProduct<T> &p) { \
    return NAMED(suits_dots, T)(p) ? NAMED(dot_product, T)(p) : NAMED(matrix_product, T)(p); \
  } \
  INLINE int32_t vector_product(const VectorProduct<T> &p) { return NAMED(vector_product, T)(p); } \
  INLINE int32_t convolution(const Product<T> &p, const Windows<T> &w) { return NAMED(convolution, T)(p, w); } \
  INLINE int32_t weight_gradient(const Product<T> &p, const Overlaps<T> &o) { return NAMED(weight_gradient, T)(p, o); } \
  INLINE void choose_tiles(Product<T> &p, int64_t columns) { NAMED(choose_tiles, T)(p, columns); }
DECLARE_PRODUCTS(float)
DECLARE_PRODUCTS(double)
DECLARE_PRODUCTS(int32_t)
DECLARE_PRODUCTS(int64_t)
DECLARE_PRODUCTS(bfloat16_pair)
