// Special functions. Each is written once for a working type R wider than its argument: double for float, long double for double, so
// that cancellation inside a formula costs no bit of the result.

typedef long double wide;
template <class T> struct Working;
template <> struct Working<float> { typedef double type; };
template <> struct Working<double> { typedef wide type; };

#define MATH1(name)                                              \
  INLINE double m_##name(double a) { return __builtin_##name(a); } \
  INLINE wide m_##name(wide a) { return __builtin_##name##l(a); }
#define MATH2(name)                                                          \
  INLINE double m_##name(double a, double b) { return __builtin_##name(a, b); } \
  INLINE wide m_##name(wide a, wide b) { return __builtin_##name##l(a, b); }
MATH1(exp) MATH1(expm1) MATH1(log) MATH1(log1p) MATH1(sqrt) MATH1(fabs) MATH1(floor) MATH1(sin) MATH1(cos) MATH1(tan)
MATH1(erf) MATH1(erfc) MATH1(cosh) MATH1(j0) MATH1(j1) MATH1(y0) MATH1(y1) MATH2(pow) MATH2(copysign)
extern "C" double lgamma_r(double, int *) noexcept;
extern "C" wide lgammal_r(wide, int *) noexcept;
INLINE double m_lgamma(double a) { int sign; return lgamma_r(a, &sign); }
INLINE wide m_lgamma(wide a) { int sign; return lgammal_r(a, &sign); }

#define PI_L 3.14159265358979323846264338327950288L
#define INF __builtin_inf()
#define NOT_A_NUMBER __builtin_nan("")

// Applies the working-precision template NAME_ to float and double.
#define SPECIAL1(name)                                                                  \
  static float op_##name(float a) { return (float)name##_((double)a); }                  \
  static double op_##name(double a) { return (double)name##_((wide)a); }                 \
  LANES_UNARY(name)
// Of double; of float the function is in gammas.h.
#define SPECIAL1_DOUBLE(name)                                                           \
  static double op_##name(double a) { return (double)name##_((wide)a); }                 \
  LANES_UNARY(name)
#define SPECIAL2(name)                                                                            \
  static float op_##name(float a, float b) { return (float)name##_((double)a, (double)b); }        \
  static double op_##name(double a, double b) { return (double)name##_((wide)a, (wide)b); }        \
  LANES_BINARY(name)

template <class R> static R lgamma_(R x) { return m_lgamma(x); }
SPECIAL1_DOUBLE(lgamma)
// torch gives NaN at the infinities, where the limits of the oscillating functions would be zero.
template <class R> static R bessel_j0_(R x) { return m_fabs(x) == INF ? (R)NOT_A_NUMBER : m_j0(x); }
template <class R> static R bessel_j1_(R x) { return m_fabs(x) == INF ? (R)NOT_A_NUMBER : m_j1(x); }
// libm's y0 and y1 of a negative number are -inf or NaN by version; torch gives NaN, and -inf at zero.
template <class R> static R bessel_y0_(R x) { return x < 0 || x == INF ? (R)NOT_A_NUMBER : x == 0 ? (R)-INF : m_y0(x); }
template <class R> static R bessel_y1_(R x) { return x < 0 || x == INF ? (R)NOT_A_NUMBER : x == 0 ? (R)-INF : m_y1(x); }
SPECIAL1(bessel_j0)
SPECIAL1(bessel_j1)
SPECIAL1(bessel_y0)
SPECIAL1(bessel_y1)

// Normal quantile: a rational start good to three digits (Abramowitz and Stegun 26.2.23), then Halley steps on erfc.
template <class R> static R ndtri_lower(R p) {
  R t = m_sqrt(-2 * m_log(p));
  R x = -(t - (R(2.515517) + R(0.802853) * t + R(0.010328) * t * t) / (1 + R(1.432788) * t + R(0.189269) * t * t + R(0.001308) * t * t * t));
  for (int step = 0; step < 4; ++step) {
    // Relative error of the distribution function, so that tiny p keep their digits.
    R density = m_exp(-x * x / 2) / m_sqrt(2 * (R)PI_L);
    if (density == 0) break;
    R e = (m_erfc(-x / m_sqrt((R)2)) / 2 - p) / density;
    x -= e / (1 + x * e / 2);
  }
  return x;
}
template <class R> static R ndtri_(R p) {
  if (!(p >= 0 && p <= 1)) return (R)NOT_A_NUMBER;
  if (p == 0 || p == 1) return p == 0 ? (R)-INF : (R)INF;
  if (p == R(0.5)) return 0;
  return p < R(0.5) ? ndtri_lower(p) : -ndtri_lower(1 - p);
}
SPECIAL1_DOUBLE(ndtri)

template <class R> static R erfinv_(R x) {
  R a = m_fabs(x);
  if (!(a <= 1)) return (R)NOT_A_NUMBER;
  if (a == 1) return m_copysign((R)INF, x);
  if (a > R(0.5)) return m_copysign(-ndtri_lower((1 - a) / 2) / m_sqrt((R)2), x);
  const R root = 2 / m_sqrt((R)PI_L);
  R y = x / root * (1 + (R)PI_L / 12 * x * x);
  for (int step = 0; step < 4; ++step) {
    R e = (m_erf(y) - x) / (root * m_exp(-y * y));
    y -= e / (1 + y * e);
  }
  return y;
}
SPECIAL1_DOUBLE(erfinv)

template <class R> static R erfcx_(R x) {
  if (x != x) return x;
  if (x < -27) return (R)INF;
  if (x < 25) {
    // exp(x*x) amplifies the rounding of x*x: its low part is put back.
    wide square = (wide)x * x;
    return (R)(m_exp(square) * m_erfc((wide)x));
  }
  R s = 1 / (2 * x * x), term = 1, sum = 1;
  for (int n = 1; n < 12; ++n) { term *= -(2 * n - 1) * s; sum += term; }
  return sum / (x * m_sqrt((R)PI_L));
}
SPECIAL1(erfcx)

// 1/x + the asymptotic series of psi' and psi beyond 20; B(2k) are the Bernoulli numbers.
static const wide BERNOULLI[] = {
    1.0L / 6, -1.0L / 30, 1.0L / 42, -1.0L / 30, 5.0L / 66, -691.0L / 2730, 7.0L / 6, -3617.0L / 510,
    43867.0L / 798, -174611.0L / 330, 854513.0L / 138, -236364091.0L / 2730};

template <class R> static R digamma_(R x) {
  if (x == 0) return m_copysign((R)INF, -x);
  if (x == -INF) return (R)NOT_A_NUMBER;
  if (x == INF) return x;
  if (x < 0) {
    R fraction = x - m_floor(x + R(0.5));
    if (fraction == 0) return (R)NOT_A_NUMBER;
    return (R)(digamma_((wide)1 - x) - PI_L / m_tan(PI_L * (wide)fraction));
  }
  wide y = x, shift = 0;
  while (y < 20) { shift += 1 / y; y += 1; }
  wide square = 1 / (y * y), power = square, sum = 0;
  for (int k = 0; k < 12; ++k) { sum += BERNOULLI[k] / (2 * (k + 1)) * power; power *= square; }
  return (R)(m_log(y) - 1 / (2 * y) - sum - shift);
}
SPECIAL1_DOUBLE(digamma)

template <class R> static R trigamma_(R x) {
  if (x != x) return x;
  if (x < R(0.5)) {
    R fraction = x - m_floor(x + R(0.5));
    if (fraction == 0) return (R)INF;
    wide s = m_sin(PI_L * (wide)fraction);
    return (R)(PI_L * PI_L / (s * s) - trigamma_((wide)1 - x));
  }
  if (x == INF) return 0;
  wide y = x, shift = 0;
  while (y < 20) { shift += 1 / (y * y); y += 1; }
  wide square = 1 / (y * y), power = square / y, sum = 0;
  for (int k = 0; k < 12; ++k) { sum += BERNOULLI[k] * power; power *= square; }
  return (R)(1 / y + square / 2 + sum + shift);
}
SPECIAL1_DOUBLE(trigamma)

// Hurwitz zeta by Euler and Maclaurin; NIST DLMF 25.11.5.
template <class R> static R zeta_(R s, R q) {
  if (s != s || q != q) return (R)NOT_A_NUMBER;
  if (s == 1) return (R)INF;
  if (s < 1) return (R)NOT_A_NUMBER;
  if (q <= 0) {
    if (q == m_floor(q)) return (R)INF;
    if (s != m_floor(s)) return (R)NOT_A_NUMBER;
  }
  if (q == INF) return 0;
  wide total = 0, y = q;
  const int count = 16;
  for (int n = 0; n < count || y < 16; ++n) {
    total += m_pow(y, (wide)-s);
    y += 1;
    if (n > 100000) break;
  }
  wide power = m_pow(y, (wide)-s);
  total += power * y / (s - 1) + power / 2;
  wide factor = s, term = power / y;
  wide factorial = 2;
  for (int k = 0; k < 12; ++k) {
    total += BERNOULLI[k] * factor * term / factorial;
    factor *= (s + 2 * k + 1) * (s + 2 * k + 2);
    term /= y * y;
    factorial *= (2 * k + 3) * (2 * k + 4);
  }
  return (R)total;
}
SPECIAL2(zeta)

// Regularised incomplete gamma functions: series below x = a + 1, Lentz's continued fraction above; DLMF 8.7.3 and 8.9.2.
template <class R> static R gamma_prefix(R a, R x) { return (R)m_exp((wide)a * m_log((wide)x) - (wide)x - m_lgamma((wide)a + 1)); }
template <class R> static R gamma_series(R a, R x) {
  wide term = 1, sum = 1, n = a;
  for (int k = 0; k < 100000; ++k) {
    n += 1;
    term *= x / n;
    sum += term;
    if (term < sum * 1e-20L) break;
  }
  return (R)(sum * gamma_prefix((wide)a, (wide)x));
}
template <class R> static R gamma_fraction(R a, R x) {
  wide b = (wide)x + 1 - a, c = 1e300L, d = 1 / b, h = d;
  for (int k = 1; k < 100000; ++k) {
    wide an = -k * ((wide)k - a);
    b += 2;
    d = an * d + b;
    if (m_fabs(d) < 1e-300L) d = 1e-300L;
    c = b + an / c;
    if (m_fabs(c) < 1e-300L) c = 1e-300L;
    d = 1 / d;
    wide delta = d * c;
    h *= delta;
    if (m_fabs(delta - 1) < 1e-20L) break;
  }
  return (R)(h * gamma_prefix((wide)a, (wide)x) * a);
}
template <class R> static R igamma_(R a, R x) {
  if (a != a || x != x || a < 0 || x < 0) return (R)NOT_A_NUMBER;
  if (a == 0) return x > 0 ? (R)1 : (R)NOT_A_NUMBER;
  if (x == 0) return 0;
  if (a == INF) return x == INF ? (R)NOT_A_NUMBER : (R)0;
  if (x == INF) return 1;
  return x < a + 1 ? gamma_series(a, x) : 1 - gamma_fraction(a, x);
}
template <class R> static R igammac_(R a, R x) {
  if (a != a || x != x || a < 0 || x < 0) return (R)NOT_A_NUMBER;
  if (a == 0) return x > 0 ? (R)0 : (R)NOT_A_NUMBER;
  if (x == 0) return 1;
  if (a == INF) return x == INF ? (R)NOT_A_NUMBER : (R)1;
  if (x == INF) return 0;
  return x < a + 1 ? 1 - gamma_series(a, x) : gamma_fraction(a, x);
}
SPECIAL2(igamma)
SPECIAL2(igammac)

// exp(-|x|) I_n(x), n = 0 or 1: power series (all terms positive) below 30, asymptotic series above; DLMF 10.25.2, 10.40.1.
static wide scaled_bessel_i(int n, wide x) {
  wide a = m_fabs(x);
  if (a == INF) return 0;
  if (a < 30) {
    wide square = a * a / 4, term = n ? a / 2 : 1, sum = term;
    for (int k = 1; k < 200; ++k) {
      term *= square / ((wide)k * (k + n));
      sum += term;
      if (term < sum * 1e-21L) break;
    }
    return m_exp(-a) * sum;
  }
  wide mu = 4 * n * n, term = 1, sum = 1;
  for (int k = 1; k < 40; ++k) {
    wide next = -term * (mu - (2 * k - 1) * (2 * k - 1)) / (k * 8 * a);
    if (m_fabs(next) > m_fabs(term)) break;
    term = next;
    sum += term;
    if (m_fabs(term) < 1e-21L) break;
  }
  return sum / m_sqrt(2 * PI_L * a);
}
template <class R> static R i0e_(R x) { return x != x ? x : (R)scaled_bessel_i(0, x); }
template <class R> static R i1e_(R x) { return x != x ? x : m_copysign((R)scaled_bessel_i(1, x), x); }
template <class R> static R i0_(R x) { return x != x || m_fabs(x) == INF ? (R)NOT_A_NUMBER : m_fabs(x) > 11000 ? (R)INF : (R)(scaled_bessel_i(0, x) * m_exp((wide)m_fabs(x))); }
template <class R> static R i1_(R x) {
  return x != x || m_fabs(x) == INF ? (R)NOT_A_NUMBER : m_fabs(x) > 11000 ? m_copysign((R)INF, x) : m_copysign((R)(scaled_bessel_i(1, x) * m_exp((wide)m_fabs(x))), x);
}
SPECIAL1(i0e)
SPECIAL1(i1e)
SPECIAL1(i0)
SPECIAL1(i1)

// exp(x) K_nu(x), nu real: the trapezoidal rule on the integral of exp(-x (cosh t - 1)) cosh(nu t), whose error falls as
// exp(-pi^2 / step) (DLMF 10.32.9); the asymptotic series beyond 25 (DLMF 10.40.2).
static wide scaled_bessel_k(wide nu, wide x) {
  if (x > 25) {
    wide mu = 4 * nu * nu, term = 1, sum = 1;
    for (int k = 1; k < 50; ++k) {
      wide next = term * (mu - (2 * k - 1) * (2 * k - 1)) / (k * 8 * x);
      if (m_fabs(next) >= m_fabs(term)) break;
      term = next;
      sum += term;
      if (m_fabs(term) < 1e-21L) break;
    }
    return sum * m_sqrt(PI_L / (2 * x));
  }
  const wide step = 0.0625L;
  wide sum = 0.5L;
  for (int k = 1; k < 20000; ++k) {
    wide t = k * step, half = m_exp(t / 2) - m_exp(-t / 2);
    wide term = m_exp(-x * half * half / 2) * m_cosh(nu * t);
    sum += term;
    if (term < sum * 1e-22L) break;
  }
  return sum * step;
}
template <class R> static R bessel_k(int n, R x, bool scaled) {
  if (x != x || x < 0) return (R)NOT_A_NUMBER;
  if (x == 0) return (R)INF;
  if (x == INF) return 0;
  wide value = scaled_bessel_k(n, x);
  return (R)(scaled ? value : value * m_exp(-(wide)x));
}
template <class R> static R bessel_k0_(R x) { return bessel_k(0, x, false); }
template <class R> static R bessel_k1_(R x) { return bessel_k(1, x, false); }
template <class R> static R bessel_k0e_(R x) { return bessel_k(0, x, true); }
template <class R> static R bessel_k1e_(R x) { return bessel_k(1, x, true); }
SPECIAL1(bessel_k0)
SPECIAL1(bessel_k1)
SPECIAL1(bessel_k0e)
SPECIAL1(bessel_k1e)

template <class R> static R spherical_bessel_j0_(R x) {
  if (m_fabs(x) == INF) return 0;
  if (m_fabs(x) < R(1e-3)) return 1 - x * x / 6 * (1 - x * x / 20);
  return m_sin(x) / x;
}
SPECIAL1(spherical_bessel_j0)

// Airy Ai. Right of zero through K of order 1/3 (DLMF 9.6.2); left of zero Taylor steps of y'' = x y, which are stable where both
// solutions oscillate; far left the asymptotic series (DLMF 9.7.9).
static wide airy_taylor(wide x) {
  wide y = 0.355028053887817239260L, slope = -0.258819403792806798405L, at = 0;
  int steps = (int)(m_fabs(x) * 2) + 1;
  wide h = x / steps;
  for (int n = 0; n < steps; ++n) {
    // Coefficients of the series at `at`: (k+2)(k+1) c[k+2] = at c[k] + c[k-1].
    wide before = 0, c0 = y, c1 = slope, power = 1, value = 0, derivative = 0;
    for (int k = 0; k < 40; ++k) {
      value += c0 * power;
      derivative += c1 * (k + 1) * power;
      wide c2 = (at * c0 + before) / ((wide)(k + 2) * (k + 1));
      before = c0; c0 = c1; c1 = c2;
      power *= h;
    }
    y = value; slope = derivative; at += h;
  }
  return y;
}
template <class R> static R airy_ai_(R x) {
  if (x != x || x == -INF) return (R)NOT_A_NUMBER;
  if (x > 120) return 0;
  if (x > 1) {
    wide z = 2 * (wide)x * m_sqrt((wide)x) / 3;
    return (R)(m_sqrt((wide)x / 3) / PI_L * scaled_bessel_k(1.0L / 3, z) * m_exp(-z));
  }
  if (x > -30) return (R)airy_taylor(x);
  wide a = -(wide)x, z = 2 * a * m_sqrt(a) / 3, u = 1, even = 1, odd = 0;
  for (int k = 1; k < 20; ++k) {
    u *= (wide)(6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216.0L * k * (2 * k - 1)) / z;
    wide signed_u = (k / 2) % 2 ? -u : u;
    if (k % 2) odd += signed_u; else even += signed_u;
  }
  wide phase = z - PI_L / 4;
  return (R)((m_cos(phase) * even + m_sin(phase) * odd) / (m_sqrt(PI_L) * m_sqrt(m_sqrt(a))));
}
SPECIAL1(airy_ai)

template <class T> static T op_logaddexp(T a, T b) {
  if (a != a || b != b) return a + b;
  T top = a > b ? a : b, low = a > b ? b : a;
  return op_abs(top) == (T)INF ? top : top + op_log1p(op_exp(low - top));
}
template <class T, int S> static V<T, S> op_logaddexp(V<T, S> a, V<T, S> b) {
  const V<T, S> top = op_max(a, b), low = op_min(a, b), sum = top + op_log1p(op_exp(low - top));
  return select(op_abs(top) == V<T, S>((T)INF), top, sum);  // NaN is the largest, and the sum.
}
