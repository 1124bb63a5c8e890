// Elementary functions. In float they are templates over `float` and `V<float>`, without branches, so that a value does not depend on
// whether it was computed in a vector; in double they are libm's. Arguments are reduced with logarithms of two and halves of pi in
// parts; polynomials marked "fit" minimise the largest error over their interval.

// The same expression for one number and for LANES of them.
template <class F> struct Of;
template <> struct Of<float> { typedef int32_t whole; typedef double wider; typedef int64_t wide_whole; };
template <> struct Of<V<float>> { typedef V<int32_t> whole; typedef V<double> wider; typedef V<int64_t> wide_whole; };
template <class F> using Whole = typename Of<F>::whole;
template <class F> using Wider = typename Of<F>::wider;
template <class F> using WideWhole = typename Of<F>::wide_whole;
INLINE int32_t shift_left(int32_t a, int by) { return (int32_t)((uint32_t)a << by); }
INLINE int32_t shift_right(int32_t a, int by) { return a >> by; }
INLINE int64_t shift_left(int64_t a, int by) { return (int64_t)((uint64_t)a << by); }
INLINE int64_t shift_right(int64_t a, int by) { return a >> by; }
INLINE V<int32_t> shift_left(V<int32_t> a, int by) { return V<int32_t>((Mask)(a.v << by)); }
INLINE V<int32_t> shift_right(V<int32_t> a, int by) { return V<int32_t>((Mask)(a.v >> by)); }
INLINE V<int64_t> shift_left(V<int64_t> a, int by) { return {a.low << by, a.high << by}; }
INLINE V<int64_t> shift_right(V<int64_t> a, int by) { return {a.low >> by, a.high >> by}; }
// The nearest whole number: adding 1.5 * 2**23 (1.5 * 2**52) leaves no bits behind the point. For |a| below 2**22 (2**51).
template <class F> INLINE F nearest(F a) { return (a + F(12582912.0f)) - F(12582912.0f); }
template <class D> INLINE D nearest_wide(D a) { return (a + D(6755399441055744.0)) - D(6755399441055744.0); }
// That number as an integer, from the bits that the addition leaves.
template <class F> INLINE Whole<F> nearest_whole(F a) { return bits<int32_t>(a + F(12582912.0f)) - Whole<F>(0x4b400000); }
INLINE float magnitude(float a) { return __builtin_fabsf(a); }
INLINE V<float> magnitude(V<float> a) { return op_abs(a); }
// -|a|
template <class F> INLINE F below_zero(F a) { return bits<float>(bits<int32_t>(a) | Whole<F>((int32_t)0x80000000)); }
INLINE float signed_as(float a, float b) { return __builtin_copysignf(a, b); }
INLINE V<float> signed_as(V<float> a, V<float> b) { return op_copysign(a, b); }
// NaN goes through.
template <class F> INLINE F at_least(F a, float low) { return select(a < F(low), F(low), a); }
template <class F> INLINE F at_most(F a, float high) { return select(a > F(high), F(high), a); }
#ifdef LARGER
INLINE V<float> at_least(V<float> a, float low) { return LARGER(V<float>(low), a); }
INLINE V<float> at_most(V<float> a, float high) { return SMALLER(V<float>(high), a); }
#endif
#if MASKED_MOVES
INLINE V<float> reciprocal_guess(V<float> a) { return V<float>((Part<float>)__builtin_ia32_rcp14ps512_mask(a.v, a.v, (uint16_t)-1)); }
INLINE float reciprocal_guess(float a) {
  typedef Pack<float, 4>::type Four;
  return __builtin_ia32_rcp14ss(Four{a}, Four{a})[0];
}
#endif

// (exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2 (fit, relative to exp(r)).
template <class F> INLINE F exp_rest(F r) {
  F p(1.38146132608e-3f);
  p = multiply_add(p, r, F(8.36870982417e-3f));
  p = multiply_add(p, r, F(4.16683873613e-2f));
  p = multiply_add(p, r, F(1.66665206898e-1f));
  return multiply_add(p, r, F(4.99999934517e-1f));
}
// exp(r) and exp(r) - 1 there.
template <class F> INLINE F exp_near(F r) { return multiply_add(multiply_add(exp_rest(r), r, F(1.0f)), r, F(1.0f)); }
template <class F> INLINE F expm1_near(F r) { return multiply_add(exp_rest(r) * r, r, r); }
// The whole number of logarithms of two nearest to a, and what is left of a.
template <class F> INLINE F log2_parts(F a, F &n) {
  n = multiply_add(a, F(1.44269504088896341f), F(12582912.0f)) - F(12582912.0f);
  return multiply_add(n, F(2.12194440e-4f), multiply_add(n, F(-0.693359375f), a));
}
// p * 2**n for whole n in [-252, 254], in two factors: the result may be subnormal, and 2**128 is no float.
template <class F> INLINE F scaled(F p, F n) {
  Whole<F> whole = nearest_whole(n), half = shift_right(whole, 1), bias(127);
  return p * bits<float>(shift_left(half + bias, 23)) * bits<float>(shift_left(whole - half + bias, 23));
}
#if MASKED_MOVES
INLINE V<float> scaled(V<float> p, V<float> n) {
  return V<float>((Part<float>)__builtin_ia32_scalefps512_mask(p.v, n.v, p.v, (uint16_t)-1, 4));
}
#endif
// Zero but for some lanes, of which alone n need be in range.
template <class M, class F> INLINE F scaled_where(M some, F p, F n) { return select(some, scaled(p, select(some, n, F(0.0f))), F(0.0f)); }
#if MASKED_MOVES
INLINE V<float> scaled_where(B some, V<float> p, V<float> n) { return select(some, scaled(p, n), V<float>(0.0f)); }
#endif
// For a <= 89. Of numbers far left, as masks leave them, exponentials are 0 without arithmetic that ends in a subnormal number, which
// takes some processors a hundred cycles.
template <class F> INLINE F exp_below(F a) {
  F n, r = log2_parts(a, n);
  return scaled_where(!(a < F(-104.0f)), exp_near(r), n);
}
template <class F> INLINE F exp_of(F a) { return exp_below(at_most(a, 89.0f)); }
template <class F> INLINE F exp2_of(F a) {
  F x = at_most(a, 129.0f), n = nearest(x);
  return scaled_where(!(x < F(-151.0f)), exp_near((x - n) * F(0.693147180559945309f)), n);
}
template <class F> INLINE F expm1_of(F a) {
  F x = at_most(at_least(a, -30.0f), 89.0f);
  F n, r = log2_parts(x, n);
  // 2**(n-1) and then 2, as 2**128 is no float.
  F half = bits<float>(shift_left(nearest_whole(n) + Whole<F>(126), 23));
  F result = F(2.0f) * multiply_add(half, expm1_near(r), half - F(0.5f));
  // Near zero the argument itself, which also keeps its sign.
  return select(magnitude(a) < F(1e-7f), a, result);
}

// a = 2**exponent * (1 + rest), rest in [sqrt(1/2) - 1, sqrt(2) - 1], for positive normal and subnormal a.
template <class F> INLINE F log_split(F a, F &exponent) {
  auto tiny = a < F(0x1p-126f);
  Whole<F> u = bits<int32_t>(select(tiny, a * F(0x1p24f), a));
  Whole<F> e = (u - Whole<F>(0x3f3504f3)) & Whole<F>((int32_t)0xff800000);
  exponent = convert<float>(shift_right(e, 23)) - select(tiny, F(24.0f), F(0.0f));
  return bits<float>(u - e) - F(1.0f);
}
// log(1 + x) - x for such a rest; Cephes (Moshier).
template <class F> INLINE F log_correction(F x) {
  F z = x * x;
  F p(7.0376836292e-2f);
  p = multiply_add(p, x, F(-1.1514610310e-1f));
  p = multiply_add(p, x, F(1.1676998740e-1f));
  p = multiply_add(p, x, F(-1.2420140846e-1f));
  p = multiply_add(p, x, F(1.4249322787e-1f));
  p = multiply_add(p, x, F(-1.6668057665e-1f));
  p = multiply_add(p, x, F(2.0000714765e-1f));
  p = multiply_add(p, x, F(-2.4999993993e-1f));
  p = multiply_add(p, x, F(3.3333331174e-1f));
  return multiply_add(F(-0.5f), z, p * x * z);
}
// The logarithm's values outside the positive finite numbers.
template <class F> INLINE F log_edges(F a, F result) {
  result = select(a == F(__builtin_inff()), a, result);
  result = select(a == F(0.0f), F(-__builtin_inff()), result);
  return select((a < F(0.0f)) | (a != a), F(__builtin_nanf("")), result);
}
template <class F> INLINE F log_of(F a) {
  F n, x = log_split(a, n);
  F y = multiply_add(n, F(-2.12194440e-4f), log_correction(x));
  return log_edges(a, multiply_add(n, F(0.693359375f), x + y));
}
// log2(e) and log10(2) in two parts, the first short enough that products with it are exact or nearly so.
template <class F> INLINE F log2_of(F a) {
  F n, x = log_split(a, n);
  F y = log_correction(x);
  F fine = multiply_add(x, F(0.44269504088896341f), y * F(0.44269504088896341f));
  return log_edges(a, n + (x + (y + fine)));
}
template <class F> INLINE F log10_of(F a) {
  F n, x = log_split(a, n);
  F y = log_correction(x);
  F fine = multiply_add(x, F(7.00731903251827651e-4f), y * F(4.34294481903251828e-1f));
  fine = multiply_add(n, F(2.48745663981195e-4f), fine);
  return log_edges(a, multiply_add(n, F(3.00781250e-1f), multiply_add(x, F(4.3359375e-1f), fine)));
}
template <class F> INLINE F log1p_of(F a) {
  F u = F(1.0f) + a;
  F lost = select(u > F(2.0f), F(1.0f) - (u - a), a - (u - F(1.0f)));
  F n, x = log_split(u, n);
  F y = multiply_add(n, F(-2.12194440e-4f), log_correction(x) + lost / u);
  F result = log_edges(u, multiply_add(n, F(0.693359375f), x + y));
  return select(magnitude(a) < F(1e-7f), a, result);
}

// Beyond nine it is one.
template <class F> INLINE F tanh_of(F a) {
  return signed_as(by_pieces(at_most(magnitude(a), 9.3f), TANH_WIDTH, TANH_PIECES), a);
}
template <class F> INLINE F sigmoid_of(F a) {
  // The exponential never overflows, and far left the result keeps its digits.
  F e = exp_below(below_zero(a)), one(1.0f), sum = one + e;
  auto left = a < F(0.0f);
#if MASKED_MOVES
  // A step of Newton's, with the exponential in place of the sum, which was rounded.
  F r = reciprocal_guess(sum), q = select(left, e * r, r);
  return multiply_add(q, multiply_add(-e, r, one - r), q);
#else
  return select(left, e, one) / sum;
#endif
}

// Beyond 3.9 it is one.
template <class F> INLINE F erf_of(F a) { return signed_as(by_pieces(at_most(magnitude(a), 3.9f), ERF_WIDTH, ERF_PIECES), a); }
// (1 + 2 m) exp(m*m) erfc(m) as a polynomial of (m - k) / (m + k) (fit; k = 3; the substitution is Shepherd and Laframboise's, Math. Comp. 36,
// 1981). The square is exact in two parts.
template <class F> INLINE F erfc_of(F a) {
  F m = magnitude(a);
  F x = at_most(m, 10.6f);
  F t = (x - F(3.0f)) / (x + F(3.0f));
  F p(-0.000259790598918f);
  p = multiply_add(p, t, F(-0.000756379688048f));
  p = multiply_add(p, t, F(0.00201406233691f));
  p = multiply_add(p, t, F(0.00255919840389f));
  p = multiply_add(p, t, F(-0.0238062727201f));
  p = multiply_add(p, t, F(0.068296030631f));
  p = multiply_add(p, t, F(-0.119269312104f));
  p = multiply_add(p, t, F(0.129646541415f));
  p = multiply_add(p, t, F(-0.0475624994072f));
  p = multiply_add(p, t, F(-0.135621145721f));
  p = multiply_add(p, t, F(1.25300806008f));
  F square = x * x, high = bits<float>(bits<int32_t>(x) & Whole<F>((int32_t)0xfffff000)), low = x - high;
  F rest = ((high * high - square) + F(2.0f) * high * low) + low * low;
  F e = exp_below(-square);
  F result = multiply_add(e, F(0.0f) - rest, e) * (p / (F(1.0f) + x + x));
  result = select(a < F(0.0f), F(2.0f) - result, result);
  return select(a != a, a, result);
}

// Sine and cosine: the argument less a multiple of pi/2, in double; Cephes' polynomials (Moshier) on [-pi/4, pi/4]. Beyond 2**20, where
// the product with pi/2 is no longer exact, libm.
template <class F> INLINE F circular(F a, int turn) {
  Wider<F> x = convert<double>(a), n = nearest_wide(x * Wider<F>(0.636619772367581343));
  Wider<F> r = (x - n * Wider<F>(1.57079632673412561417)) - n * Wider<F>(6.07710050650619224932e-11);
  F y = convert<float>(r), z = y * y;
  Whole<F> quarter = nearest_whole(convert<float>(n - nearest_wide(n * Wider<F>(0.25)) * Wider<F>(4.0))) + Whole<F>(turn);
  F s(-1.9515295891e-4f);
  s = multiply_add(s, z, F(8.3321608736e-3f));
  s = multiply_add(s, z, F(-1.6666654611e-1f));
  s = multiply_add(s * z, y, y);
  F c(2.443315711809948e-5f);
  c = multiply_add(c, z, F(-1.388731625493765e-3f));
  c = multiply_add(c, z, F(4.166664568298827e-2f));
  c = multiply_add(c * z, z, multiply_add(F(-0.5f), z, F(1.0f)));
  F result = select((quarter & Whole<F>(1)) != Whole<F>(0), c, s);
  return bits<float>(bits<int32_t>(result) ^ shift_left(quarter & Whole<F>(2), 30));
}
INLINE float sin_of(float a) { return __builtin_fabsf(a) < 0x1p20f ? circular(a, 0) : __builtin_sinf(a); }
INLINE float cos_of(float a) { return __builtin_fabsf(a) < 0x1p20f ? circular(a, 1) : __builtin_cosf(a); }
#define FAR_LANES(name, near)                                                                               \
  INLINE V<float> name##_of(V<float> a) {                                                                   \
    V<float> result = near;                                                                                 \
    B far = !(op_abs(a) < V<float>(0x1p20f));                                                               \
    if (__builtin_expect(some(far), 0)) for (int l = 0; l < LANES; ++l) if (far[l]) result.set(l, name##_of(a[l])); \
    return result;                                                                                          \
  }
FAR_LANES(sin, circular(a, 0))
FAR_LANES(cos, circular(a, 1))

// |a|**b by logarithm and exponential in double; then the sign and the special cases of C's pow.
template <class F> INLINE F pow_of(F a, F b) {
  typedef Wider<F> D;
  F m = magnitude(a);
  D x = convert<double>(m);
  WideWhole<F> u = bits<int64_t>(x);
  WideWhole<F> e = (u - WideWhole<F>((int64_t)0x3fe6a09e667f3bcdLL)) & WideWhole<F>((int64_t)0xfff0000000000000LL);
  D rest = bits<double>(u - e);
  D s = (rest - D(1.0)) / (rest + D(1.0)), z = s * s;
  D p(1.0 / 15);
  p = p * z + D(1.0 / 13);
  p = p * z + D(1.0 / 11);
  p = p * z + D(1.0 / 9);
  p = p * z + D(1.0 / 7);
  p = p * z + D(1.0 / 5);
  p = p * z + D(1.0 / 3);
  D logarithm = convert<double>(shift_right(e, 52)) + (s + s * z * p) * D(2.88539008177792681);
  // Beyond these every result is zero or infinite; NaN goes through.
  D y = convert<double>(b) * logarithm;
  y = select(y < D(-200.0), D(-200.0), y);
  y = select(y > D(200.0), D(200.0), y);
  D n = nearest_wide(y), r = (y - n) * D(0.693147180559945309);
  D q(1.0 / 362880);
  q = q * r + D(1.0 / 40320);
  q = q * r + D(1.0 / 5040);
  q = q * r + D(1.0 / 720);
  q = q * r + D(1.0 / 120);
  q = q * r + D(1.0 / 24);
  q = q * r + D(1.0 / 6);
  q = q * r + D(0.5);
  q = q * r + D(1.0);
  q = q * r + D(1.0);
  WideWhole<F> power = shift_left(bits<int64_t>(n + D(6755399441055744.0)) - WideWhole<F>((int64_t)0x4338000000000000LL) + WideWhole<F>((int64_t)1023), 52);
  F result = convert<float>(q * bits<double>(power));
  F zero(0.0f), one(1.0f), infinity(__builtin_inff()), nan(__builtin_nanf(""));
  F whole = op_floor(b), half = b * F(0.5f);
  auto integer = whole == b;
  auto odd = integer & (op_floor(half) != half) & (magnitude(b) < F(0x1p24f));
  result = select((m == zero) | (m == infinity), select((m == zero) ^ (b < zero), zero, infinity), result);
  result = select(magnitude(b) == infinity, select((m > one) ^ (b < zero), infinity, zero), result);
  result = select((a < zero) & !integer & (m != infinity), nan, result);
  result = select(odd & op_signbit(a), -result, result);
  result = select((a != a) | (b != b), nan, result);
  result = select(magnitude(b) == infinity, select(m == one, one, select(a != a, nan, result)), result);
  return select((a == one) | (b == zero), one, result);
}

#define OWN_UNARY(name)                                     \
  INLINE float op_##name(float a) { return name##_of(a); }  \
  INLINE V<float> op_##name(V<float> a) { return name##_of(a); } \
  INLINE double op_##name(double a) { return __builtin_##name(a); } \
  INLINE V<double> op_##name(V<double> a) { return per_lane<double>(Full(), [&](int l) { return __builtin_##name(a[l]); }); }
#define BUILTIN_BINARY(name, fn)                                               \
  INLINE float op_##name(float a, float b) { return __builtin_##fn##f(a, b); } \
  INLINE double op_##name(double a, double b) { return __builtin_##fn(a, b); }
OWN_UNARY(exp)
OWN_UNARY(exp2)
OWN_UNARY(expm1)
OWN_UNARY(log)
OWN_UNARY(log2)
OWN_UNARY(log10)
OWN_UNARY(log1p)
OWN_UNARY(sin)
OWN_UNARY(cos)
OWN_UNARY(tanh)
OWN_UNARY(erf)
OWN_UNARY(erfc)
// Of double; of float they are in wide.h.
#define LIBM_UNARY(name) INLINE double op_##name(double a) { return __builtin_##name(a); } LANES_UNARY(name)
#define LIBM_BINARY(name) INLINE double op_##name(double a, double b) { return __builtin_##name(a, b); } LANES_BINARY(name)
LIBM_UNARY(tan)
LIBM_UNARY(asin)
LIBM_UNARY(acos)
LIBM_UNARY(atan)
LIBM_UNARY(sinh)
LIBM_UNARY(cosh)
LIBM_UNARY(asinh)
LIBM_UNARY(acosh)
LIBM_UNARY(atanh)
LIBM_BINARY(atan2)
LIBM_BINARY(hypot)
BUILTIN_BINARY(nextafter, nextafter)
LANES_BINARY(nextafter)
BUILTIN_BINARY(copysign, copysign)
INLINE V<double> op_copysign(V<double> a, V<double> b) {
  V<int64_t> low((int64_t)0x7fffffffffffffffLL);
  return bits<double>((bits<int64_t>(a) & low) | (bits<int64_t>(b) & ~low));
}
INLINE float op_sigmoid(float a) { return sigmoid_of(a); }
INLINE V<float> op_sigmoid(V<float> a) { return sigmoid_of(a); }
INLINE double op_sigmoid(double a) {
  double e = __builtin_exp(-__builtin_fabs(a));
  return (a < 0 ? e : 1.0) / (1.0 + e);
}
INLINE V<double> op_sigmoid(V<double> a) { return per_lane<double>(Full(), [&](int l) { return op_sigmoid(a[l]); }); }
template <class T> INLINE T op_pow(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (T)((b & 1) ? -1 : 1) : 0;
  T result = 1;
  for (; b; b = (T)(b >> 1)) { if (b & 1) result = (T)(result * a); a = (T)(a * a); }
  return result;
}
template <> SPECIALISED float op_pow(float a, float b) { return pow_of(a, b); }
template <> SPECIALISED double op_pow(double a, double b) { return __builtin_pow(a, b); }
LANES_BINARY(pow)
INLINE V<float> op_pow(V<float> a, V<float> b) { return pow_of(a, b); }
template <class T> INLINE T op_gcd(T a, T b) {
  a = op_abs(a); b = op_abs(b);
  while (b != 0) { T r = (T)(a % b); a = b; b = r; }
  return a;
}
LANES_BINARY(gcd)
INLINE float op_frexp_mantissa(float a) { int e; return __builtin_frexpf(a, &e); }
INLINE double op_frexp_mantissa(double a) { int e; return __builtin_frexp(a, &e); }
LANES_UNARY(frexp_mantissa)
template <class T> INLINE int32_t op_frexp_exponent(T a) {
  if (a != a || op_abs(a) == (T)__builtin_inf() || a == 0) return 0;
  int e;
  (void)__builtin_frexp((double)a, &e);
  return e;
}
template <class T, int S> INLINE V<int32_t> op_frexp_exponent(V<T, S> a) { return per_lane<int32_t>(Full(), [&](int l) { return op_frexp_exponent(a[l]); }); }

// Words of Philox (philox.h) of counter (index, 0).
typedef Piece<uint64_t> Counters;
template <class C> INLINE PhiloxWords<C> words_of(int64_t seed, C counter) {
  PhiloxWords<C> found = philox_words<C>(seed, counter, counter >> 32, C{}, C{});
  for (C &word : found.word) word &= 0xffffffffull;
  return found;
}
INLINE int64_t op_philox(int64_t seed, int64_t index, int64_t word) {
  PhiloxWords<uint64_t> w = words_of<uint64_t>(seed, (uint64_t)index);
  return (int64_t)(word == 0 ? w.word[0] : word == 1 ? w.word[1] : word == 2 ? w.word[2] : w.word[3]);
}
INLINE V<int64_t> op_philox(int64_t seed, V<int64_t> index, int64_t word) {
  PhiloxWords<Counters> a = words_of<Counters>(seed, (Counters)index.low), b = words_of<Counters>(seed, (Counters)index.high);
  int w = word < 0 || word > 3 ? 3 : (int)word;
  return {(WideMask)a.word[w], (WideMask)b.word[w]};
}
INLINE V<int64_t> op_philox(int64_t seed, V<int64_t> index, V<int64_t> word) {
  return per_lane<int64_t>(Full(), [&](int l) { return op_philox(seed, index[l], word[l]); });
}
// Words `position % 4` of counters `position / 4` for neighbouring positions, which is how one stream fills a tensor: all four words
// of a counter are used. Sixteen counters at a time are kept until the loop has passed them.
struct PhiloxRun {
  enum : int { KEPT = 64 };
  int64_t first = 0, count = 0;
  alignas(64) uint32_t words[KEPT];
  INLINE_METHOD V<int64_t> at(int64_t seed, int64_t position) {
    if (__builtin_expect(position < first || position + LANES > first + count, 0)) fill(seed, position);
    return convert<int64_t>(load(words + (position - first), Full()));
  }
  INLINE_METHOD void fill(int64_t seed, int64_t position) {
    // A counter of which a part lies before the position is drawn again.
    first = position & ~(int64_t)3;
    count = KEPT;
    Counters counter{};
    Counters lower, upper;
    for (int l = 0; l < HALF; ++l) {
      counter[l] = l;
      lower[l] = l / 2 + (l & 1 ? HALF : 0);
      upper[l] = lower[l] + HALF / 2;
    }
    counter = counter + (uint64_t)(first >> 2);
#pragma GCC unroll 8
    for (int64_t done = 0; done < KEPT; done += 4 * HALF) {
      PhiloxWords<Counters> w = words_of<Counters>(seed, counter);
      Counters even = w.word[0] | w.word[1] << 32, odd = w.word[2] | w.word[3] << 32;
      store_pack(words + done, shuffle(even, odd, lower));
      store_pack(words + done + LANES, shuffle(even, odd, upper));
      counter = counter + (uint64_t)HALF;
    }
  }
};
