// Bags of embedding rows: reductions over rows that an index list names, and their gradient. Follows base.h in its translation unit.
// mode: 0 sum, 1 mean, 2 max. Entries equal to `padding` count for nothing; -1 is no row.

#include <cstddef>
#include <vector>

template <class T> struct Accumulator { typedef float Type; };
template <> struct Accumulator<double> { typedef double Type; };

// Bag k holds entries first[k] to first[k+1], the last one all that is left. `places` says of each result element of a maximum which row
// it came from, 0 in an empty bag.
template <class T> static int32_t bag_forward(const T *weight, const int64_t *entries, const int64_t *first, const T *factor, T *out, int64_t *bag_of, int64_t *sizes, int64_t *places, int64_t bags, int64_t count, int64_t rows, int64_t width, int64_t mode, int64_t padding) {
  for (int64_t k = 0; k < bags; ++k) {
    const int64_t end = k + 1 < bags ? first[k + 1] : count;
    if ((k == 0 && first[0] != 0) || first[k] > end || end > count) return INDEX_OUT_OF_RANGE;
  }
  for (int64_t i = 0; i < count; ++i) if (entries[i] < 0 || entries[i] >= rows) return INDEX_OUT_OF_RANGE;
#pragma omp parallel for if (count * width >= 32768)
  for (int64_t k = 0; k < bags; ++k) {
    const int64_t end = k + 1 < bags ? first[k + 1] : count;
    std::vector<double> total((std::size_t)width);
    int64_t kept = 0;
    for (int64_t d = 0; places && d < width; ++d) places[k * width + d] = 0;
    for (int64_t i = first[k]; i < end; ++i) {
      bag_of[i] = k;
      if (entries[i] == padding) continue;
      const T *row = weight + entries[i] * width;
      const double scale = factor ? number(factor[i]) : 1;
      for (int64_t d = 0; d < width; ++d) {
        const double v = number(row[d]);
        if (mode != 2) total[d] += scale * v;
        else if (kept == 0 || v > total[d] || (v != v && total[d] == total[d])) { total[d] = v; places[k * width + d] = entries[i]; }
      }
      ++kept;
    }
    sizes[k] = kept;
    for (int64_t d = 0; d < width; ++d) out[k * width + d] = convert<T>(mode == 1 && kept ? total[d] / (double)kept : total[d]);
  }
  return OK;
}

// Gradient of the (rows, width) weight. `bag_of` may be null; then `first` says which entry is in which bag.
template <class T> static int32_t bag_backward(const T *gradient, const int64_t *entries, const int64_t *first, const int64_t *bag_of, const int64_t *sizes, const int64_t *places, const T *factor, T *out, int64_t bags, int64_t count, int64_t rows, int64_t width, int64_t mode, int64_t by_frequency, int64_t padding) {
  typedef typename Accumulator<T>::Type A;
  std::vector<A> total((std::size_t)(rows * width));
  if (mode == 2) {
    for (int64_t k = 0; k < bags; ++k)
      for (int64_t d = 0; sizes[k] && d < width; ++d) {
        const int64_t row = places[k * width + d];
        if (row < 0 || row >= rows) return INDEX_OUT_OF_RANGE;
        total[row * width + d] += (A)number(gradient[k * width + d]);
      }
  } else {
    std::vector<int64_t> frequency((std::size_t)(by_frequency ? rows : 0));
    for (int64_t i = 0; i < count; ++i) {
      if (entries[i] < 0 || entries[i] >= rows) return INDEX_OUT_OF_RANGE;
      if (by_frequency) ++frequency[entries[i]];
    }
    int64_t k = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (bag_of) k = bag_of[i];
      else while (k + 1 < bags && first[k + 1] <= i) ++k;
      if (k < 0 || k >= bags) return INDEX_OUT_OF_RANGE;
      if (entries[i] == padding) continue;
      double scale = factor ? number(factor[i]) : 1;
      if (mode == 1) scale /= (double)sizes[k];
      if (by_frequency) scale /= (double)frequency[entries[i]];
      A *to = total.data() + entries[i] * width;
      for (int64_t d = 0; d < width; ++d) to[d] += (A)(scale * number(gradient[k * width + d]));
    }
  }
  for (int64_t i = 0; i < rows * width; ++i) out[i] = convert<T>(total[i]);
  return OK;
}

// Gradient of the per-sample weights of a sum: each entry's row times its bag's gradient.
template <class T> static int32_t bag_weights(const T *gradient, const T *weight, const int64_t *entries, const int64_t *first, const int64_t *bag_of, T *out, int64_t bags, int64_t count, int64_t rows, int64_t width, int64_t padding) {
  int64_t k = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (bag_of) k = bag_of[i];
    else while (k + 1 < bags && first[k + 1] <= i) ++k;
    if (k < 0 || k >= bags || entries[i] < 0 || entries[i] >= rows) return INDEX_OUT_OF_RANGE;
    double sum = 0;
    for (int64_t d = 0; entries[i] != padding && d < width; ++d) sum += number(gradient[k * width + d]) * number(weight[entries[i] * width + d]);
    out[i] = convert<T>(sum);
  }
  return OK;
}

#define FOR_FLOAT(T, name)                                                                                                                        \
  extern "C" int64_t bag_forward_##name(const T *w, const int64_t *e, const int64_t *o, const T *f, T *out, int64_t *g, int64_t *s, int64_t *p, int64_t b, int64_t c, int64_t r, int64_t n, int64_t m, int64_t d) { return bag_forward(w, e, o, f, out, g, s, p, b, c, r, n, m, d); } \
  extern "C" int64_t bag_backward_##name(const T *g, const int64_t *e, const int64_t *o, const int64_t *k, const int64_t *s, const int64_t *p, const T *f, T *out, int64_t b, int64_t c, int64_t r, int64_t n, int64_t m, int64_t q, int64_t d) { return bag_backward(g, e, o, k, s, p, f, out, b, c, r, n, m, q, d); } \
  extern "C" int64_t bag_weights_##name(const T *g, const T *w, const int64_t *e, const int64_t *o, const int64_t *k, T *out, int64_t b, int64_t c, int64_t r, int64_t n, int64_t d) { return bag_weights(g, w, e, o, k, out, b, c, r, n, d); }
FOR_FLOAT(float, float32)
FOR_FLOAT(double, float64)
FOR_FLOAT(bf16, bfloat16)
FOR_FLOAT(f16, float16)
