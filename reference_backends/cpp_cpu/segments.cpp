// Segment reductions, and complex numbers as pairs. Follows base.h in its translation unit. Sums run in float64.

// Rows first[s] to first[s+1] of (outer, n, inner) data reduced to one; kind 0 sum, 1 mean, 2 max, 3 min, 4 prod. `start` begins each
// reduction when `started`; an empty segment is `start`, or the operation's identity (NaN for a mean).
template <class T> static void segments(const T *data, T *out, const int64_t *first, int64_t outer, int64_t count, int64_t n, int64_t inner, int64_t kind, int64_t started, double start) {
  const double identity[] = {0, 0, -__builtin_inf(), __builtin_inf(), 1};
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t s = 0; s < count; ++s) {
      const int64_t begin = first[o * (count + 1) + s], end = first[o * (count + 1) + s + 1];
      for (int64_t c = 0; c < inner; ++c) {
        double value = started ? start : identity[kind];
        for (int64_t i = begin; i < end; ++i) {
          const double v = number(data[(o * n + i) * inner + c]);
          value = kind < 2 ? value + v : kind == 2 ? op_max(value, v) : kind == 3 ? op_min(value, v) : value * v;
        }
        if (kind == 1) value = end > begin ? value / (double)(end - begin) : started ? value : __builtin_nan("");
        out[(o * count + s) * inner + c] = convert<T>(value);
      }
    }
}
template <class T> static void segments_backward(const T *gradient, const T *output, const T *data, T *out, const int64_t *first, int64_t outer, int64_t count, int64_t n, int64_t inner, int64_t kind, int64_t started, double start) {
  for (int64_t i = 0; i < outer * n * inner; ++i) out[i] = convert<T>(0.0);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t s = 0; s < count; ++s) {
      const int64_t begin = first[o * (count + 1) + s], end = first[o * (count + 1) + s + 1];
      for (int64_t c = 0; c < inner; ++c) {
        const double g = number(gradient[(o * count + s) * inner + c]), result = number(output[(o * count + s) * inner + c]);
        int64_t equal = 0;
        if (kind == 2 || kind == 3)
          for (int64_t i = begin; i < end; ++i) { double v = number(data[(o * n + i) * inner + c]); equal += v == result || v != v; }
        for (int64_t i = begin; i < end; ++i) {
          const int64_t at = (o * n + i) * inner + c;
          const double v = number(data[at]);
          double slope = g;
          if (kind == 1) slope = g / (double)(end - begin);
          if (kind == 2 || kind == 3) slope = v == result || v != v ? g / (double)equal : 0;
          if (kind == 4) {
            if (v != 0 && v == v) slope = g * result / v;
            else {
              double others = started ? start : 1;
              for (int64_t j = begin; j < end; ++j) if (j != i) others *= number(data[(o * n + j) * inner + c]);
              slope = g * others;
            }
          }
          out[at] = convert<T>(slope);
        }
      }
    }
}

#define FOR_MATRIX(T, name)                                                                                                                       \
  extern "C" void complex_##name(const T *re, const T *im, T *out, int64_t n) { for (int64_t i = 0; i < n; ++i) { out[2 * i] = re[i]; out[2 * i + 1] = im[i]; } } \
  extern "C" void conjugate_##name(const T *in, T *out, int64_t n) { for (int64_t i = 0; i < n; ++i) { out[2 * i] = in[2 * i]; out[2 * i + 1] = -in[2 * i + 1]; } }
#define FOR_FLOAT(T, name)                                                                                                                        \
  extern "C" void segments_##name(const T *d, T *o, const int64_t *f, int64_t b, int64_t c, int64_t n, int64_t i, int64_t k, int64_t h, const double *s) { segments(d, o, f, b, c, n, i, k, h, *s); } \
  extern "C" void segments_backward_##name(const T *g, const T *r, const T *d, T *o, const int64_t *f, int64_t b, int64_t c, int64_t n, int64_t i, int64_t k, int64_t h, const double *s) { segments_backward(g, r, d, o, f, b, c, n, i, k, h, *s); }
FOR_MATRIX(float, float32)
FOR_MATRIX(double, float64)
FOR_FLOAT(float, float32)
FOR_FLOAT(double, float64)
FOR_FLOAT(bf16, bfloat16)
FOR_FLOAT(f16, float16)
