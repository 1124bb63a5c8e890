// Functions of float32 by float64's arithmetic: rounded once, so nearly always the float32 nearest to the result, and without branches, so
// that a value does not depend on whether it was computed in a vector. They are templates over one number, `double`, and a register of
// them, `Piece<double>`. Tables are polynomials at Chebyshev's nodes, from the constant on; tests/test_cpp_wide.py makes them.

typedef Piece<double> Doubles;
INLINE double pick(bool m, double a, double b) { return m ? a : b; }
template <class M> INLINE Doubles pick(M m, Doubles a, Doubles b) { return (Doubles)(m ? a : b); }
INLINE bool some_of(bool m) { return m; }
template <class M> INLINE bool some_of(M m) {
#if MASKED_MOVES
  return __builtin_ia32_cvtq2mask512((Longs)m);
#elif VECTOR_MASKED_MOVES
  return __builtin_ia32_movmskpd256((Doubles)m);
#else
  for (int l = 0; l < HALF; ++l) if (m[l]) return true;
  return false;
#endif
}
// a b + c, fused where processors fuse.
INLINE double fused(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
INLINE Doubles fused(Doubles a, Doubles b, Doubles c) {
#if MASKED_MOVES
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, (uint8_t)-1, 4);
#elif REGISTER_BYTES == 32 && defined(__FMA__) && !defined(__clang__)
  return __builtin_ia32_vfmaddpd256(a, b, c);
#else
  Doubles r;
  for (int l = 0; l < HALF; ++l) r[l] = fused((double)a[l], (double)b[l], (double)c[l]);
  return r;
#endif
}
INLINE double root(double a) { return __builtin_sqrt(a); }
INLINE Doubles root(Doubles a) { return op_sqrt(V<double>(a, a)).low; }
template <class D> struct WholeOf { typedef Piece<int64_t> type; };
template <> struct WholeOf<double> { typedef int64_t type; };
INLINE int64_t bits_of(double a) { return bits<int64_t>(a); }
INLINE Piece<int64_t> bits_of(Doubles a) { return (Piece<int64_t>)a; }
INLINE double number_of(int64_t a) { return bits<double>(a); }
INLINE Doubles number_of(Piece<int64_t> a) { return (Doubles)a; }
template <class D> INLINE D all_of(double s) { return s - D{}; }
template <class D> INLINE D size_of(D a) { return number_of(bits_of(a) & 0x7fffffffffffffffLL); }
// |a| with the sign of b.
template <class D> INLINE D sign_from(D a, D b) { return number_of((bits_of(a) & 0x7fffffffffffffffLL) | (bits_of(b) & ~0x7fffffffffffffffLL)); }
template <class D, int N> INLINE D polynomial(const double (&c)[N], D x) {
  D r = all_of<D>(c[N - 1]);
#pragma GCC unroll 32
  for (int k = N - 2; k >= 0; --k) r = fused(r, x, all_of<D>(c[k]));
  return r;
}

// 2 atanh(s) / s and (exp(r) - 1 - r) / r^2.
static const double LOG[] = {
    2.0000000000000004, 0.6666666666655292, 0.40000000061741614, 0.2857141602110767, 0.22223434547517906,
    0.18121934431215214, 0.16837659970680485};
static const double EXP[] = {
    0.5, 0.16666666666648303, 0.041666666666651364, 0.008333333353717156, 0.0013888888905871347,
    0.0001984120875699232, 2.4801536409064087e-05, 2.7625102005388108e-06, 2.761379555451986e-07};
// For positive normal numbers; infinity is taken for 2^1024.
template <class D> INLINE D log_wide(D a) {
  typedef typename WholeOf<D>::type I;
  const I u = bits_of(a), e = (u - 0x3fe6a09e667f3bcdLL) & (int64_t)0xfff0000000000000LL;
  const D m = number_of(u - e), s = (m - 1.0) / (m + 1.0);
  // The exponent as a number: in the last bits of 1.5 * 2^52.
  const D n = number_of((e >> 52) + 0x4338000000000000LL) - 6755399441055744.0;
  return fused(n, all_of<D>(0.693147180559945309), s * polynomial(LOG, s * s));
}
// For |a| <= 700.
template <class D> INLINE D exp_wide(D a) {
  const D shifted = fused(a, all_of<D>(1.44269504088896341), all_of<D>(6755399441055744.0)), n = shifted - 6755399441055744.0;
  const D r = fused(n, all_of<D>(-1.90821492927058770e-10), fused(n, all_of<D>(-0.693147180369123816490), a));
  return fused(polynomial(EXP, r) * r, r, r + 1.0) * number_of((bits_of(shifted) << 52) + 0x3ff0000000000000LL);
}

// As functions of the square: sin(r) / r, cos(r), asin(y) / y, atan(t) / t, sinh(x) / x.
static const double SINE[] = {
    0.9999999999999957, -0.16666666666616686, 0.00833333332387815, -0.0001984126329839051, 2.7555271893389817e-06,
    -2.475655877198039e-08};
static const double COSINE[] = {
    1.0, -0.4999999999999925, 0.041666666666472306, -0.0013888888869978658, 2.4801578538562985e-05,
    -2.755523388484742e-07, 2.0630454379662294e-09};
static const double ASIN[] = {
    1.000000000000825, 0.16666666613278705, 0.07500005655821883, 0.04464056469220037, 0.03042811901907943,
    0.02185574259984348, 0.02068132717169167, 0.0019156113431105127, 0.03295759470084881};
static const double ATAN[] = {
    0.9999999999992447, -0.33333333276922494, 0.19999993053555815, -0.14285386553752139, 0.11103456908947464,
    -0.08992552906150912, 0.06974197686595265, -0.03765510601291402};
static const double SINH[] = {
    0.9999999999999205, 0.16666666667239327, 0.008333333266545869, 0.00019841298317149254, 2.755183485237489e-06,
    2.5538205221156536e-08};
#define HALF_PI 1.57079632679489662
// For |a| < 2^20; beyond, the product with pi/2 is no longer exact.
template <class D> INLINE D tan_wide(D a) {
  const D shifted = fused(a, all_of<D>(0.636619772367581343), all_of<D>(6755399441055744.0)), n = shifted - 6755399441055744.0;
  const D r = fused(n, all_of<D>(-6.07710050650619224932e-11), fused(n, all_of<D>(-1.57079632673412561417), a)), z = r * r;
  const D s = polynomial(SINE, z) * r, c = polynomial(COSINE, z);
  const auto odd = (bits_of(shifted) & 1) != 0;
  return sign_from(pick(odd, c, s) / pick(odd, s, c), number_of(bits_of(s) ^ (bits_of(shifted) << 63)));
}
// asin(|a|), or, with |a| above a half, the half of acos(|a|).
template <class D, class M> INLINE D arc_wide(D a, M high) {
  const D m = size_of(a), z = pick(high, (1.0 - m) * 0.5, m * m);
  return polynomial(ASIN, z) * pick(high, root(z), m);
}
template <class D> INLINE D asin_wide(D a) {
  const auto high = size_of(a) > 0.5;
  const D p = arc_wide(a, high);
  return sign_from(pick(high, HALF_PI - 2.0 * p, p), a);
}
template <class D> INLINE D acos_wide(D a) {
  const auto high = size_of(a) > 0.5;
  const D p = arc_wide(a, high), twice = p + p;
  return pick(high, pick(a < 0.0, 2.0 * HALF_PI - twice, twice), HALF_PI - sign_from(p, a));
}
// Angle of the point (x, y) with x and y not negative, turned by 0, pi/4 or pi/2 to where its tangent is at most tan(pi/8).
template <class D> INLINE D angle_wide(D y, D x) {
  const auto middle = y > x * 0.414213562373095049, steep = y > x * 2.41421356237309505;
  const D a = pick(steep, -x, pick(middle, y - x, y)), b = pick(steep, y, pick(middle, x + y, x));
  const D base = pick(steep, all_of<D>(HALF_PI), pick(middle, all_of<D>(0.5 * HALF_PI), D{}));
  const D t = a / b;
  return fused(polynomial(ATAN, t * t), t, base);
}
template <class D> INLINE D atan_wide(D a) { return sign_from(angle_wide(size_of(a), all_of<D>(1.0)), a); }
template <class D> INLINE D atan2_wide(D y, D x) {
  D a = size_of(y), b = size_of(x);
  // Both infinite, as if they were one; both zero, as if x were one.
  const auto far = (a == __builtin_inf()) & (b == __builtin_inf());
  a = pick(far, all_of<D>(1.0), a), b = pick(far | ((a == 0.0) & (b == 0.0)), all_of<D>(1.0), b);
  const D r = angle_wide(a, b);
  return sign_from(pick(bits_of(x) < 0, 2.0 * HALF_PI - r, r), y);
}
// Beyond 90 both are too large for a float.
template <class D> INLINE D sinh_wide(D a) {
  const D m = size_of(a), e = exp_wide(pick(m > 90.0, all_of<D>(90.0), m));
  return pick(m < 1.0, polynomial(SINH, a * a) * a, sign_from(0.5 * (e - 1.0 / e), a));
}
template <class D> INLINE D cosh_wide(D a) {
  const D m = size_of(a), e = exp_wide(pick(m > 90.0, all_of<D>(90.0), m));
  return 0.5 * (e + 1.0 / e);
}
// Near zero the series: the logarithm's argument would be rounded beside one.
template <class D> INLINE D asinh_wide(D a) {
  const D m = size_of(a), z = a * a;
  const D near = m * fused(z, fused(z, all_of<D>(0.075), all_of<D>(-1.0 / 6)), all_of<D>(1.0));
  const D r = pick(m < 0x1p-7, near, log_wide(m + root(z + 1.0)));
  return sign_from(pick(m < __builtin_inf(), r, m), a);
}
template <class D> INLINE D acosh_wide(D a) {
  const D r = log_wide(a + root((a - 1.0) * (a + 1.0)));
  return pick(a < 1.0, all_of<D>(__builtin_nan("")), pick(a < __builtin_inf(), r, a));
}
template <class D> INLINE D atanh_wide(D a) {
  const D m = size_of(a), z = a * a;
  const D near = m * fused(z, fused(z, fused(z, all_of<D>(1.0 / 7), all_of<D>(0.2)), all_of<D>(1.0 / 3)), all_of<D>(1.0));
  const D r = pick(m < 0x1p-7, near, 0.5 * log_wide((1.0 + m) / (1.0 - m)));
  return sign_from(pick(m < 1.0, r, pick(m == 1.0, all_of<D>(__builtin_inf()), all_of<D>(__builtin_nan("")))), a);
}
template <class D> INLINE D hypot_wide(D a, D b) {
  const auto far = (size_of(a) == __builtin_inf()) | (size_of(b) == __builtin_inf());
  return pick(far, all_of<D>(__builtin_inf()), root(fused(a, a, b * b)));
}

// A function of float32 by its template, half a vector at a time.
template <class F> INLINE V<float> by_halves(V<float> a, F f) {
  const V<double> x = convert<double>(a);
  return convert<float>(V<double>(f(x.low), f(x.high)));
}
#define WIDE_UNARY(name)                                                            \
  INLINE float op_##name(float a) { return (float)name##_wide((double)a); }         \
  INLINE V<float> op_##name(V<float> a) { return by_halves(a, [](Doubles x) INLINE_LAMBDA { return name##_wide(x); }); }
#define WIDE_BINARY(name)                                                                                  \
  INLINE float op_##name(float a, float b) { return (float)name##_wide((double)a, (double)b); }            \
  INLINE V<float> op_##name(V<float> a, V<float> b) {                                                      \
    const V<double> x = convert<double>(a), y = convert<double>(b);                                        \
    return convert<float>(V<double>(name##_wide(x.low, y.low), name##_wide(x.high, y.high)));              \
  }
WIDE_UNARY(asin)
WIDE_UNARY(acos)
WIDE_UNARY(atan)
WIDE_UNARY(sinh)
WIDE_UNARY(cosh)
WIDE_UNARY(asinh)
WIDE_UNARY(acosh)
WIDE_UNARY(atanh)
WIDE_BINARY(atan2)
WIDE_BINARY(hypot)
INLINE float tan_of(float a) { return __builtin_fabsf(a) < 0x1p20f ? (float)tan_wide((double)a) : __builtin_tanf(a); }
INLINE V<float> circular_tan(V<float> a) { return by_halves(a, [](Doubles x) INLINE_LAMBDA { return tan_wide(x); }); }
FAR_LANES(tan, circular_tan(a))
INLINE float op_tan(float a) { return tan_of(a); }
INLINE V<float> op_tan(V<float> a) { return tan_of(a); }
