// Small dense linear algebra on batches of contiguous matrices, segment reductions, and complex numbers as pairs. Follows base.h in
// its translation unit. Sums run in float64.

template <class T> INLINE double number(T v) { return (double)v; }
INLINE double number(bf16 v) { return widen(v); }
INLINE double number(f16 v) { return widen(v); }

// Lower Cholesky factor of n x n matrices; info is the order of the first minor that is not positive definite, 0 for success.
template <class T> static void cholesky(const T *a, T *l, int32_t *info, int64_t batch, int64_t n, int64_t upper) {
#pragma omp parallel for if (batch * n * n * n >= 65536)
  for (int64_t b = 0; b < batch; ++b) {
    const T *in = a + b * n * n;
    T *out = l + b * n * n;
    info[b] = 0;
    // The factor is built lower; an upper one is its transpose, from the upper triangle.
    auto at = [&](int64_t i, int64_t j) -> T & { return upper ? out[j * n + i] : out[i * n + j]; };
    for (int64_t i = 0; i < n * n; ++i) out[i] = 0;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) {
        double sum = upper ? in[j * n + i] : in[i * n + j];
        for (int64_t k = 0; k < j; ++k) sum -= (double)at(i, k) * at(j, k);
        if (i == j) {
          if (!(sum > 0)) { info[b] = (int32_t)(j + 1); break; }
          at(j, j) = (T)__builtin_sqrt(sum);
        } else {
          at(i, j) = (T)(sum / at(j, j));
        }
      }
      if (info[b]) break;
    }
  }
}

// x with a x = rhs for triangular n x n matrices and n x m right sides, in place in x.
template <class T> static void solve_triangular(const T *a, T *x, int64_t batch, int64_t n, int64_t m, int64_t upper, int64_t unit) {
#pragma omp parallel for collapse(2) if (batch * n * n * m >= 65536)
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t c = 0; c < m; ++c) {
      const T *matrix = a + b * n * n;
      T *column = x + b * n * m + c;
      for (int64_t step = 0; step < n; ++step) {
        const int64_t i = upper ? n - 1 - step : step;
        double sum = column[i * m];
        for (int64_t k = upper ? i + 1 : 0; k < (upper ? n : i); ++k) sum -= (double)matrix[i * n + k] * column[k * m];
        column[i * m] = (T)(unit ? sum : sum / matrix[i * n + i]);
      }
    }
}

// The first n columns of the product of k reflections of order m, stored as LAPACK's geqrf leaves them.
template <class T> static void householder(const T *a, const T *tau, T *q, int64_t batch, int64_t m, int64_t n, int64_t k) {
#pragma omp parallel for if (batch * m * n * k >= 65536)
  for (int64_t b = 0; b < batch; ++b) {
    const T *v = a + b * m * n;
    T *out = q + b * m * n;
    for (int64_t i = 0; i < m; ++i) for (int64_t j = 0; j < n; ++j) out[i * n + j] = i == j;
    for (int64_t r = k - 1; r >= 0; --r) {
      const double scale = tau[b * k + r];
      for (int64_t j = 0; j < n; ++j) {
        double dot = out[r * n + j];
        for (int64_t i = r + 1; i < m; ++i) dot += (double)v[i * n + r] * out[i * n + j];
        dot *= scale;
        out[r * n + j] = (T)(out[r * n + j] - dot);
        for (int64_t i = r + 1; i < m; ++i) out[i * n + j] = (T)(out[i * n + j] - v[i * n + r] * dot);
      }
    }
  }
}

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
  extern "C" void cholesky_##name(const T *a, T *l, int32_t *info, int64_t b, int64_t n, int64_t u) { cholesky(a, l, info, b, n, u); }              \
  extern "C" void solve_triangular_##name(const T *a, T *x, int64_t b, int64_t n, int64_t m, int64_t u, int64_t d) { solve_triangular(a, x, b, n, m, u, d); } \
  extern "C" void householder_##name(const T *a, const T *t, T *q, int64_t b, int64_t m, int64_t n, int64_t k) { householder(a, t, q, b, m, n, k); } \
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
