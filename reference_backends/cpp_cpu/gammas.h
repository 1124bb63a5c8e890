// The gamma function's kin and the inverses of the normal distribution's, of float32 by float64's arithmetic (wide.h).

// (gamma(2 + t) - 1 - t) / (t (t - 1)); x (log gamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2), y^2 (log(y) - 1 / (2 y) - digamma(y)) and
// y^3 (trigamma(y) - 1 / y - 1 / (2 y^2)), each from 4 on as a function of 1 / x^2 (DLMF 5.11); sin(pi r) / r and cos(pi r) as functions of r^2.
static const double GAMMA[] = {
    0.577215664901514, 0.16537533448148464, 0.08379841486740196, 0.009549412518391169, 0.009816292641300375,
    -0.0013370009406675292, 0.0015119895143883622, -0.0005796469177729572, 0.0003103681246668951, -0.00012819411839513404,
    4.551924563256717e-05, -1.0768527270510708e-05, 1.2844062730035803e-06};
static const double STIRLING[] = {
    0.08333333333332853, -0.002777777770220398, 0.0007936488286327422, -0.0005950434756704944, 0.0008323422465029553,
    -0.0016725924381064833, 0.0028604692159294133};
static const double DIGAMMA[] = {
    0.0833333333333288, -0.008333333324038556, 0.003968250794862893, -0.004166247559344269, 0.007547968675167764,
    -0.02005399419388151, 0.060156789876368126, -0.12187734127140076};
static const double TRIGAMMA[] = {
    0.16666666666575822, -0.03333333190340092, 0.02380915053418292, -0.03329606766010729, 0.07392980147542096,
    -0.20422361989935012, 0.4171877038722127};
static const double SINE_PI[] = {
    3.1415926535897927, -5.1677127800497855, 2.5501640398618677, -0.599264528825224, 0.08214587881631043,
    -0.0073703643265304155, 0.0004659870158043378, -2.113362735205297e-05};
static const double COSINE_PI[] = {
    1.0, -4.934802200544676, 4.058712126416497, -1.335262768843447, 0.23533063012953284,
    -0.025806888737002202, 0.0019295562724817132, -0.00010456655338748738, 4.149564353942586e-06};
// The distance to the nearest whole number, which far away is the number itself.
template <class D> INLINE D from_whole(D a) { return pick(size_of(a) < 0x1p51, a - ((a + 6755399441055744.0) - 6755399441055744.0), D{}); }

// For positive x. Below 4, gamma of a number in [2, 3], times or divided by what is between: its polynomial is exact at both ends, so near
// 1 and 2 the logarithm is as small as it should be. From 4 on Stirling's series.
template <class D> INLINE D lgamma_positive(D x) {
  const auto small = x < 4.0, large = x >= 4.0;
  D over = pick(small, all_of<D>(1.0), x), part = all_of<D>(1.0);
  if (some_of(small)) {
    const auto third = x >= 3.0, first = x < 1.0, second = x < 2.0;
    const D t = x - pick(first, D{}, pick(second, all_of<D>(1.0), pick(third, all_of<D>(3.0), all_of<D>(2.0))));
    const D gamma = fused(polynomial(GAMMA, t) * t, t - 1.0, t + 1.0) * pick(third, x - 1.0, all_of<D>(1.0));
    part = pick(small, gamma, part);
    over = pick(second, x * pick(first, x + 1.0, all_of<D>(1.0)), over);
  }
  const D quotient = part / over, logarithm = log_wide(pick(small, quotient, x));
  if (!some_of(large)) return logarithm;
  const D series = polynomial(STIRLING, quotient * quotient) * quotient;
  const D far = fused(x - 0.5, logarithm, 0.918938533204672742 - x) + series;
  return pick(large, pick(x < 0x1p200, far, x), logarithm);
}
// Left of zero by reflection (DLMF 5.5.3), here and below.
template <class D> INLINE D lgamma_wide(D x) {
  const auto negative = x < 0.0;
  D r = lgamma_positive(pick(negative, 1.0 - x, x));
  if (some_of(negative)) {
    const D f = from_whole(x), sine = size_of(polynomial(SINE_PI, f * f) * f);
    const D left = log_wide(3.14159265358979324 / sine) - r;
    r = pick(negative, pick(sine == 0.0, all_of<D>(__builtin_inf()), left), r);
  }
  return pick(x != x, x, pick((x == 0.0) | (size_of(x) == __builtin_inf()), all_of<D>(__builtin_inf()), r));
}
// For positive x: from x + 4 where x is below 4. The four reciprocals between are those of u = x (x + 3) and of u + 2, times 2 x + 3.
template <class D> INLINE D digamma_positive(D x) {
  const auto small = x < 4.0;
  const D y = pick(small, x + 4.0, x), i = 1.0 / y, w = i * i, u = x * (x + 3.0);
  const D steps = (x + x + 3.0) * (u + u + 2.0) / (u * (u + 2.0));
  return fused(polynomial(DIGAMMA, w), -w, fused(i, all_of<D>(-0.5), log_wide(y))) - pick(small, steps, D{});
}
template <class D> INLINE D digamma_wide(D x) {
  const auto negative = x < 0.0;
  D r = digamma_positive(pick(negative, 1.0 - x, x));
  if (some_of(negative)) {
    const D f = from_whole(x), z = f * f, sine = polynomial(SINE_PI, z) * f, cosine = polynomial(COSINE_PI, z);
    const D left = r - 3.14159265358979324 * cosine / sine;
    r = pick(negative, pick((f == 0.0) | (x < -__DBL_MAX__), all_of<D>(__builtin_nan("")), left), r);
  }
  return pick(x == 0.0, sign_from(all_of<D>(__builtin_inf()), -x), pick(x < __builtin_inf(), r, x));
}
template <class D> INLINE D trigamma_positive(D x) {
  const auto small = x < 4.0;
  const D y = pick(small, x + 4.0, x), i = 1.0 / y, w = i * i, u = x * (x + 3.0), v = u + 2.0;
  const D steps = ((u + u + 9.0) * v * v + (u + u + 5.0) * u * u) / (u * u * v * v);
  return fused(fused(polynomial(TRIGAMMA, w), i, all_of<D>(0.5)), w, i) + pick(small, steps, D{});
}
template <class D> INLINE D trigamma_wide(D x) {
  const auto negative = x < 0.0;
  D r = trigamma_positive(pick(negative, 1.0 - x, x));
  if (some_of(negative)) {
    const D f = from_whole(x), part = 3.14159265358979324 / (polynomial(SINE_PI, f * f) * f);
    r = pick(negative, pick(x < -__DBL_MAX__, all_of<D>(__builtin_nan("")), fused(part, part, -r)), r);
  }
  return pick(x == 0.0, all_of<D>(__builtin_inf()), pick(x < __builtin_inf(), r, pick(x == x, D{}, x)));
}

// erfinv(x) / x as a function of w = -log(1 - x^2), as which Giles has it ("Approximating the erfinv function", GPU Computing Gems, 2011):
// of w - 5/2 up to 5; divided by sqrt(w), of 1 / sqrt(w), up to 17, where float32 ends, and up to 104, where it ends for what is left to 1.
static const double ERFINV_NEAR[] = {
    1.5014093517481764, 0.24664027674858424, -0.004177325080457763, -0.0012527079573557702, 0.0002182641252155226,
    -4.996000110143956e-06, -3.426266209734268e-06, 4.786897084558858e-07, 1.650364404121373e-08, -1.0861761271594343e-08,
    4.340626803853993e-10, 1.2346577114502573e-10};
static const double ERFINV_FAR[] = {
    0.40234341853349537, 20.168503656018256, -308.1667260463592, 2773.1457971175587, -16459.835721181753,
    67543.56305344093, -195311.37886670034, 397775.0417148872, -559187.7087041645, 517079.62462759897,
    -283342.35307206586, 69785.15346638985};
static const double ERFINV_FARTHER[] = {
    1.0001544133070632, -0.018724633557774952, -1.4327385739424907, 7.686507141883339, -38.04876132442178,
    166.00049527353144, -539.4090311969549, 1189.8710880447368, -1581.972889371414, 954.7222691301162};
template <bool Farther, class D> INLINE D erfinv_factor(D w) {
  D r = polynomial(ERFINV_NEAR, w - 2.5);
  const auto far = w > 5.0;
  if (some_of(far)) {
    const D s = root(w), u = 1.0 / s;
    r = pick(far, polynomial(ERFINV_FAR, u) * s, r);
    if constexpr (Farther) r = pick(w > 17.0, polynomial(ERFINV_FARTHER, u) * s, r);
  }
  return r;
}
template <class D> INLINE D erfinv_wide(D x) {
  const D m = size_of(x), r = x * erfinv_factor<false>(-log_wide((1.0 - m) * (1.0 + m)));
  return pick(m < 1.0, r, pick(m == 1.0, sign_from(all_of<D>(__builtin_inf()), x), all_of<D>(__builtin_nan(""))));
}
template <class D> INLINE D ndtri_wide(D p) {
  const D r = fused(p, all_of<D>(2.82842712474619010), all_of<D>(-1.41421356237309505)) * erfinv_factor<true>(-log_wide(4.0 * p * (1.0 - p)));
  const D ends = pick(p == 0.0, all_of<D>(-__builtin_inf()), pick(p == 1.0, all_of<D>(__builtin_inf()), all_of<D>(__builtin_nan(""))));
  return pick((p > 0.0) & (p < 1.0), r, ends);
}
WIDE_UNARY(lgamma)
WIDE_UNARY(digamma)
WIDE_UNARY(trigamma)
WIDE_UNARY(erfinv)
WIDE_UNARY(ndtri)
