// Random prims that draw an unknown number of numbers per element. Each element has its own Philox stream: (seed, element, draw).
// Follows base.h and philox.h in its translation unit.

struct Stream {
  int64_t seed, element, drawn;
  // Uniform on (0, 1), 52 bits.
  double uniform() {
    // The element is the counter's low half, the draw its high half.
    const uint64_t low = (uint64_t)element, high = low >> 32;
    const PhiloxWords<uint64_t> drawing = philox_words<uint64_t>(seed, low, high, (uint64_t)drawn++, 1);
    const uint32_t c0 = (uint32_t)drawing.word[0], c1 = (uint32_t)drawing.word[1];
    return ((double)(((uint64_t)c0 << 20) | (c1 >> 12)) + 0.5) * 0x1p-52;
  }
  double normal() { return __builtin_sqrt(-2 * __builtin_log(uniform())) * __builtin_cos(6.283185307179586 * uniform()); }
};

extern "C" double lgamma_r(double, int *) noexcept;
static double log_factorial(double k) { int sign; return lgamma_r(k + 1, &sign); }

// Knuth's product below 10; Hormann's transformed rejection PTRS above (Insurance: Mathematics and Economics 12, 1993).
static double poisson(Stream &s, double rate) {
  if (!(rate >= 0)) return __builtin_nan("");
  if (rate < 10) {
    double limit = __builtin_exp(-rate), product = s.uniform();
    double k = 0;
    for (; product > limit; ++k) product *= s.uniform();
    return k;
  }
  double b = 0.931 + 2.53 * __builtin_sqrt(rate), a = -0.059 + 0.02483 * b;
  double inverse = 1.1239 + 1.1328 / (b - 3.4), v_r = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    double u = s.uniform() - 0.5, v = s.uniform();
    double us = 0.5 - __builtin_fabs(u);
    double k = __builtin_floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= v_r) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    if (__builtin_log(v) + __builtin_log(inverse) - __builtin_log(a / (us * us) + b) <= -rate + k * __builtin_log(rate) - log_factorial(k))
      return k;
  }
}

// Inversion below 10 expected successes; Hormann's BTRS above (Journal of Statistical Computation and Simulation 46, 1993).
static double binomial(Stream &s, double n, double p) {
  if (!(p >= 0 && p <= 1 && n >= 0)) return __builtin_nan("");
  if (p > 0.5) return n - binomial(s, n, 1 - p);
  if (p == 0) return 0;
  if (n * p < 10) {
    // Waiting times between successes are geometric.
    double log_q = __builtin_log1p(-p), position = 0, successes = -1;
    do { position += __builtin_ceil(__builtin_log(s.uniform()) / log_q); ++successes; } while (position <= n);
    return successes;
  }
  double spread = __builtin_sqrt(n * p * (1 - p)), b = 1.15 + 2.53 * spread, a = -0.0873 + 0.0248 * b + 0.01 * p;
  double c = n * p + 0.5, v_r = 0.92 - 4.2 / b, r = p / (1 - p), alpha = (2.83 + 5.1 / b) * spread, m = __builtin_floor((n + 1) * p);
  for (;;) {
    double u = s.uniform() - 0.5, v = s.uniform(), us = 0.5 - __builtin_fabs(u);
    double k = __builtin_floor((2 * a / us + b) * u + c);
    if (us >= 0.07 && v <= v_r) return k;
    if (k < 0 || k > n) continue;
    v = __builtin_log(v * alpha / (a / (us * us) + b));
    if (v <= log_factorial(m) + log_factorial(n - m) - log_factorial(k) - log_factorial(n - k) + (k - m) * __builtin_log(r)) return k;
  }
}

// Marsaglia and Tsang, ACM Transactions on Mathematical Software 26 (2000); below 1 their boost by a power of a uniform number.
static double standard_gamma(Stream &s, double shape) {
  if (!(shape > 0)) return shape == 0 ? 0 : __builtin_nan("");
  double scale = 1;
  if (shape < 1) { scale = __builtin_pow(s.uniform(), 1 / shape); shape += 1; }
  double d = shape - 1.0 / 3, c = 1 / __builtin_sqrt(9 * d);
  for (;;) {
    double x = s.normal(), t = 1 + c * x;
    if (t <= 0) continue;
    double v = t * t * t;
    if (__builtin_log(s.uniform()) < 0.5 * x * x + d - d * v + d * __builtin_log(v)) return scale * d * v;
  }
}

#define ELEMENTS(name, T, call)                                             \
  extern "C" void name(const T *a, const T *b, T *out, int64_t n, int64_t seed) { \
    _Pragma("omp parallel for schedule(static) if (n >= 1024)")             \
    for (int64_t i = 0; i < n; ++i) {                                       \
      Stream s{seed, i, 0};                                                 \
      out[i] = convert<T>(call);                                            \
    }                                                                       \
  }
// Cumulated weights stand in `sums`; without replacement a category's weight is taken out of the line after it was drawn.
template <class T> static int32_t multinomial(const T *weights, int64_t *out, double *sums, int64_t rows, int64_t n, int64_t count, int64_t replace, int64_t seed) {
  for (int64_t row = 0; row < rows; ++row) {
    Stream s{seed, row, 0};
    double *line = sums;
    double total = 0;
    for (int64_t j = 0; j < n; ++j) {
      double w = number(weights[row * n + j]);
      if (!(w >= 0) || w == __builtin_inf()) return INDEX_OUT_OF_RANGE;
      line[j] = w;
      total += w;
    }
    for (int64_t k = 0; k < count; ++k) {
      double target = s.uniform() * total, run = 0;
      int64_t chosen = -1;
      for (int64_t j = 0; j < n; ++j) {
        if (line[j] == 0) continue;
        chosen = j;
        run += line[j];
        if (run > target) break;
      }
      if (chosen < 0) return INDEX_OUT_OF_RANGE;
      out[row * count + k] = chosen;
      if (!replace) {
        line[chosen] = 0;
        total = 0;
        for (int64_t j = 0; j < n; ++j) total += line[j];
      }
    }
  }
  return OK;
}
#define FOR_FLOAT(T, name)                                             \
  ELEMENTS(poisson_##name, T, poisson(s, number(a[i])))                \
  ELEMENTS(binomial_##name, T, binomial(s, number(a[i]), number(b[i]))) \
  ELEMENTS(standard_gamma_##name, T, standard_gamma(s, number(a[i])))  \
  extern "C" int32_t multinomial_##name(const T *w, int64_t *o, double *sums, int64_t r, int64_t n, int64_t c, int64_t p, int64_t seed) { return multinomial(w, o, sums, r, n, c, p, seed); }
FOR_FLOAT(float, float32)
FOR_FLOAT(double, float64)
FOR_FLOAT(bf16, bfloat16)
FOR_FLOAT(f16, float16)

// Fisher and Yates, from the end.
extern "C" void permutation(int64_t *out, int64_t n, int64_t seed) {
  Stream s{seed, 0, 0};
  for (int64_t i = 0; i < n; ++i) out[i] = i;
  for (int64_t i = n - 1; i > 0; --i) {
    int64_t j = (int64_t)(s.uniform() * (double)(i + 1));
    int64_t t = out[i]; out[i] = out[j]; out[j] = t;
  }
}
