// What every generated translation unit starts with: types, conversions, integer helpers. No header is included, so that a small
// kernel compiles in well under a tenth of a second; libm is reached through the compiler's builtins.

typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#define INLINE static inline __attribute__((always_inline))
#define SPECIALISED inline __attribute__((always_inline))
#define RESTRICT __restrict__

// Why a kernel failed: its return value.
enum Status : int32_t { OK = 0, DIVISION_BY_ZERO = 1, INDEX_OUT_OF_RANGE = 2, OUT_OF_MEMORY = 3 };

template <class To, class From> INLINE To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the width");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

// Halves are storage: arithmetic is done in float.
// Enumerations, because loops over them vectorise and loops over structures do not.
enum class bf16 : uint16_t {};
enum class f16 : uint16_t {};

INLINE float widen(bf16 h) { return bits<float>((uint32_t)h << 16); }
INLINE bf16 narrow_bf16(float f) {
  uint32_t u = bits<uint32_t>(f);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (bf16)(uint16_t)(f != f ? 0x7fc0u : rounded);
}

#ifdef __FLT16_MANT_DIG__
INLINE float widen(f16 h) { return (float)bits<_Float16>((uint16_t)h); }
INLINE f16 narrow_f16(float f) { return (f16)bits<uint16_t>((_Float16)f); }
#else
INLINE float widen(f16 h) {
  uint32_t raw = (uint32_t)h, sign = (raw & 0x8000u) << 16, rest = raw & 0x7fffu;
  // Exponents are re-biased by a multiplication, which also normalises subnormals; infinities and NaN are patched.
  float scaled = bits<float>(rest << 13) * 0x1p112f;
  uint32_t u = rest >= 0x7c00u ? (0x7f800000u | ((rest & 0x3ffu) << 13)) : bits<uint32_t>(scaled);
  return bits<float>(u | sign);
}
INLINE f16 narrow_f16(float f) {
  uint32_t u = bits<uint32_t>(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  uint32_t result;
  if (a > 0x7f800000u) result = 0x7e00u;
  else if (a >= 0x477ff000u) result = 0x7c00u;
  else if (a < 0x38800000u) {
    // Adding 0.5 aligns the last kept bit of a subnormal half with the last bit of the float, which rounds to even.
    result = bits<uint32_t>(bits<float>(a) + 0.5f) - 0x3f000000u;
  } else result = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  return (f16)(uint16_t)(sign | result);
}
#endif

// Conversions as torch's CPU kernels do them. Out-of-range floats become the hardware's "indefinite" value and never trap;
// the narrower integers are cut from int64.
template <class To, class From> struct Convert {
  INLINE To apply(From v) { return (To)v; }
};
INLINE int64_t float_to_int64(double v) {
  return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : (int64_t)(-0x7fffffffffffffffLL - 1);
}
INLINE int32_t float_to_int32(double v) {
  return v > -2147483649.0 && v < 2147483648.0 ? (int32_t)v : (int32_t)(-2147483647 - 1);
}
template <class From> struct FloatToInt64 {
  INLINE int64_t apply(From v) { return float_to_int64((double)v); }
};
template <> struct Convert<int64_t, float> : FloatToInt64<float> {};
template <> struct Convert<int64_t, double> : FloatToInt64<double> {};
template <> struct Convert<int32_t, float> { INLINE int32_t apply(float v) { return float_to_int32((double)v); } };
template <> struct Convert<int32_t, double> { INLINE int32_t apply(double v) { return float_to_int32(v); } };
template <> struct Convert<int16_t, float> { INLINE int16_t apply(float v) { return (int16_t)float_to_int32((double)v); } };
template <> struct Convert<int16_t, double> { INLINE int16_t apply(double v) { return (int16_t)float_to_int32(v); } };
template <> struct Convert<int8_t, float> { INLINE int8_t apply(float v) { return (int8_t)float_to_int32((double)v); } };
template <> struct Convert<int8_t, double> { INLINE int8_t apply(double v) { return (int8_t)float_to_int32(v); } };
template <> struct Convert<uint8_t, float> { INLINE uint8_t apply(float v) { return (uint8_t)float_to_int64((double)v); } };
template <> struct Convert<uint8_t, double> { INLINE uint8_t apply(double v) { return (uint8_t)float_to_int64(v); } };
template <class From> struct Convert<bool, From> { INLINE bool apply(From v) { return v != (From)0; } };
template <> struct Convert<float, bf16> { INLINE float apply(bf16 v) { return widen(v); } };
template <> struct Convert<float, f16> { INLINE float apply(f16 v) { return widen(v); } };
template <class From> struct Convert<bf16, From> { INLINE bf16 apply(From v) { return narrow_bf16((float)v); } };
template <class From> struct Convert<f16, From> { INLINE f16 apply(From v) { return narrow_f16((float)v); } };
template <class To, class From> INLINE To convert(From v) { return Convert<To, From>::apply(v); }
template <class T> INLINE double number(T v) { return (double)v; }
INLINE double number(bf16 v) { return widen(v); }
INLINE double number(f16 v) { return widen(v); }

// Index arithmetic where signs are unknown.
INLINE int64_t floor_div(int64_t a, int64_t b) { int64_t q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }
INLINE int64_t floor_mod(int64_t a, int64_t b) { int64_t r = a % b; return r + ((r != 0 && (r < 0) != (b < 0)) ? b : 0); }
INLINE int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max_int(int64_t a, int64_t b) { return a > b ? a : b; }

// [-size, size) to [0, size); anything else is an error that the launch raises, and reads element 0 meanwhile.
INLINE int64_t wrap_index(int64_t i, int64_t size, int32_t *status) {
  int64_t wrapped = i < 0 ? i + size : i;
  if (__builtin_expect(wrapped < 0 || wrapped >= size, 0)) { *status = INDEX_OUT_OF_RANGE; return 0; }
  return wrapped;
}

// NaN propagates: once the left operand is NaN no comparison replaces it.
template <class T> INLINE T op_max(T a, T b) { return (b > a) | (b != b) ? b : a; }
template <class T> INLINE T op_min(T a, T b) { return (b < a) | (b != b) ? b : a; }
template <class T> INLINE T op_fmax(T a, T b) { return (b > a) | (a != a) ? b : a; }
template <class T> INLINE T op_fmin(T a, T b) { return (b < a) | (a != a) ? b : a; }
template <class T> INLINE T op_abs(T a) { return a < 0 ? (T)-a : a; }
template <> SPECIALISED float op_abs(float a) { return __builtin_fabsf(a); }
template <> SPECIALISED double op_abs(double a) { return __builtin_fabs(a); }
template <class T> INLINE T op_sign(T a) { return (T)((a > 0) - (a < 0)); }
// torch.max and argmax: is (b, at j) to replace (a, at i)? NaN wins, then the value, then the smaller position.
template <class T> INLINE bool takes_max(T a, int64_t i, T b, int64_t j) {
  if (b != b) return a == a || j < i;
  return b > a || (b == a && j < i);
}
template <class T> INLINE bool takes_min(T a, int64_t i, T b, int64_t j) {
  if (b != b) return a == a || j < i;
  return b < a || (b == a && j < i);
}

template <class T> struct Division {
  INLINE T floor(T a, T b, int32_t *status) {
    if (b == 0) { *status = DIVISION_BY_ZERO; return 0; }
    if ((T)-1 < (T)0 && b == (T)-1) return (T)(0 - a);  // The quotient of the lowest number wraps; the instruction would trap.
    T q = (T)(a / b);
    return (T)(q - ((T)(a % b) != 0 && ((a < 0) != (b < 0))));
  }
  INLINE T trunc(T a, T b, int32_t *status) {
    if (b == 0) { *status = DIVISION_BY_ZERO; return 0; }
    if ((T)-1 < (T)0 && b == (T)-1) return (T)(0 - a);
    return (T)(a / b);
  }
  INLINE T mod(T a, T b, int32_t *status) {
    if (b == 0) { *status = DIVISION_BY_ZERO; return 0; }
    if ((T)-1 < (T)0 && b == (T)-1) return 0;
    T r = (T)(a % b);
    return (T)(r != 0 && ((r < 0) != (b < 0)) ? r + b : r);
  }
  INLINE T fmod(T a, T b, int32_t *status) {
    if (b == 0) { *status = DIVISION_BY_ZERO; return 0; }
    if ((T)-1 < (T)0 && b == (T)-1) return 0;
    return (T)(a % b);
  }
};
// The library's functions: inline, GCC would use an x87 instruction that misses the special values.
extern "C" float fmodf(float, float) noexcept;
extern "C" double fmod(double, double) noexcept;
INLINE float fmod_of(float a, float b) { return fmodf(a, b); }
INLINE double fmod_of(double a, double b) { return fmod(a, b); }
INLINE float floor_of(float a) { return __builtin_floorf(a); }
INLINE double floor_of(double a) { return __builtin_floor(a); }
template <class T> struct FloatDivision {
  INLINE T floor(T a, T b, int32_t *) {
    if (b == 0) return a / b;
    T m = fmod_of(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) q -= 1;
    if (q == 0) return __builtin_copysign((T)0, a / b);
    T whole = floor_of(q);
    return q - whole > (T)0.5 ? whole + 1 : whole;
  }
  INLINE T trunc(T a, T b, int32_t *) { return sizeof(T) == 4 ? (T)__builtin_truncf((float)(a / b)) : (T)__builtin_trunc(a / b); }
  INLINE T mod(T a, T b, int32_t *) {
    T m = fmod_of(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
  }
  INLINE T fmod(T a, T b, int32_t *) { return fmod_of(a, b); }
};
template <> struct Division<float> : FloatDivision<float> {};
template <> struct Division<double> : FloatDivision<double> {};
template <class T> INLINE T op_floordiv(T a, T b, int32_t *s) { return Division<T>::floor(a, b, s); }
template <class T> INLINE T op_truncdiv(T a, T b, int32_t *s) { return Division<T>::trunc(a, b, s); }
template <class T> INLINE T op_mod(T a, T b, int32_t *s) { return Division<T>::mod(a, b, s); }
template <class T> INLINE T op_fmod(T a, T b, int32_t *s) { return Division<T>::fmod(a, b, s); }

template <class T> INLINE T op_pow(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (T)((b & 1) ? -1 : 1) : 0;
  T result = 1;
  for (; b; b = (T)(b >> 1)) { if (b & 1) result = (T)(result * a); a = (T)(a * a); }
  return result;
}
template <> SPECIALISED float op_pow(float a, float b) { return __builtin_powf(a, b); }
template <> SPECIALISED double op_pow(double a, double b) { return __builtin_pow(a, b); }

template <class T> INLINE T op_shl(T a, T b) { return b < 0 || b >= (T)(sizeof(T) * 8) ? (T)0 : (T)((uint64_t)a << b); }
template <class T> INLINE T op_shr(T a, T b) {
  T top = (T)(sizeof(T) * 8 - 1);
  return (T)(a >> (b < 0 || b > top ? top : b));
}
template <> SPECIALISED uint8_t op_shr(uint8_t a, uint8_t b) { return b >= 8 ? 0 : (uint8_t)(a >> b); }
template <class T> INLINE bool op_signbit(T a) { return a < 0; }
template <> SPECIALISED bool op_signbit(float a) { return bits<uint32_t>(a) >> 31; }
template <> SPECIALISED bool op_signbit(double a) { return bits<uint64_t>(a) >> 63; }

#define BUILTIN_UNARY(name, fn)                              \
  INLINE float op_##name(float a) { return __builtin_##fn##f(a); } \
  INLINE double op_##name(double a) { return __builtin_##fn(a); }
#define BUILTIN_BINARY(name, fn)                                               \
  INLINE float op_##name(float a, float b) { return __builtin_##fn##f(a, b); } \
  INLINE double op_##name(double a, double b) { return __builtin_##fn(a, b); }
BUILTIN_UNARY(floor, floor)
BUILTIN_UNARY(ceil, ceil)
BUILTIN_UNARY(trunc, trunc)
BUILTIN_UNARY(round, nearbyint)
BUILTIN_UNARY(sqrt, sqrt)
// exp, log and tanh in float without branches, so that loops of them vectorise. Reductions of the argument with a two-part logarithm of
// two; polynomials from Cephes (Moshier), each within 2 units in the last place over the whole range.
INLINE float op_exp(float a) {
  float x = a < -104.0f ? -104.0f : a;
  x = x > 89.0f ? 89.0f : x;
  float n = __builtin_floorf(x * 1.44269504088896341f + 0.5f);
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, r, 1.3981999507e-3f);
  p = __builtin_fmaf(p, r, 8.3334519073e-3f);
  p = __builtin_fmaf(p, r, 4.1665795894e-2f);
  p = __builtin_fmaf(p, r, 1.6666665459e-1f);
  p = __builtin_fmaf(p, r, 5.0000001201e-1f);
  p = __builtin_fmaf(p * r, r, r) + 1.0f;
  // The power of two in two factors: the result may be subnormal, and 2**128 is no float.
  int32_t whole = (int32_t)(n != n ? 0.0f : n), half = whole >> 1;
  return p * bits<float>((half + 127) << 23) * bits<float>((whole - half + 127) << 23);
}
INLINE float op_log(float a) {
  bool tiny = a < 0x1p-126f;
  uint32_t u = bits<uint32_t>(tiny ? a * 0x1p24f : a);
  // Significand in [sqrt(1/2), sqrt(2)).
  int32_t e = (int32_t)((u - 0x3f3504f3u) & 0xff800000u);
  float x = bits<float>(u - (uint32_t)e) - 1.0f;
  float n = (float)(e >> 23) - (tiny ? 24.0f : 0.0f);
  float z = x * x;
  float p = 7.0376836292e-2f;
  p = __builtin_fmaf(p, x, -1.1514610310e-1f);
  p = __builtin_fmaf(p, x, 1.1676998740e-1f);
  p = __builtin_fmaf(p, x, -1.2420140846e-1f);
  p = __builtin_fmaf(p, x, 1.4249322787e-1f);
  p = __builtin_fmaf(p, x, -1.6668057665e-1f);
  p = __builtin_fmaf(p, x, 2.0000714765e-1f);
  p = __builtin_fmaf(p, x, -2.4999993993e-1f);
  p = __builtin_fmaf(p, x, 3.3333331174e-1f);
  float y = __builtin_fmaf(n, -2.12194440e-4f, p * x * z);
  y = __builtin_fmaf(-0.5f, z, y);
  float result = __builtin_fmaf(n, 0.693359375f, x + y);
  result = a == __builtin_inff() ? a : result;
  result = a == 0 ? -__builtin_inff() : result;
  return a < 0 || a != a ? __builtin_nanf("") : result;
}
INLINE float op_tanh(float a) {
  float m = __builtin_fabsf(a), z = a * a;
  float p = -5.70498872745e-3f;
  p = __builtin_fmaf(p, z, 2.06390887954e-2f);
  p = __builtin_fmaf(p, z, -5.37397155531e-2f);
  p = __builtin_fmaf(p, z, 1.33314422036e-1f);
  p = __builtin_fmaf(p, z, -3.33332819422e-1f);
  float near = __builtin_fmaf(p * z, a, a);
  float far = __builtin_copysignf(1.0f - 2.0f / (op_exp(2.0f * m) + 1.0f), a);
  return m < 0.625f ? near : far;
}
INLINE double op_exp(double a) { return __builtin_exp(a); }
BUILTIN_UNARY(exp2, exp2)
BUILTIN_UNARY(expm1, expm1)
INLINE double op_log(double a) { return __builtin_log(a); }
BUILTIN_UNARY(log2, log2)
BUILTIN_UNARY(log10, log10)
BUILTIN_UNARY(log1p, log1p)
BUILTIN_UNARY(sin, sin)
BUILTIN_UNARY(cos, cos)
BUILTIN_UNARY(tan, tan)
BUILTIN_UNARY(asin, asin)
BUILTIN_UNARY(acos, acos)
BUILTIN_UNARY(atan, atan)
BUILTIN_UNARY(sinh, sinh)
BUILTIN_UNARY(cosh, cosh)
INLINE double op_tanh(double a) { return __builtin_tanh(a); }
BUILTIN_UNARY(asinh, asinh)
BUILTIN_UNARY(acosh, acosh)
BUILTIN_UNARY(atanh, atanh)
BUILTIN_UNARY(erf, erf)
BUILTIN_UNARY(erfc, erfc)
BUILTIN_BINARY(atan2, atan2)
BUILTIN_BINARY(hypot, hypot)
BUILTIN_BINARY(copysign, copysign)
BUILTIN_BINARY(nextafter, nextafter)
INLINE float op_rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
INLINE double op_rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }
template <class T> INLINE T op_sigmoid(T a) {
  // The exponential never overflows, and far left the result keeps its digits.
  T e = op_exp(-op_abs(a));
  return (a < 0 ? e : (T)1) / ((T)1 + e);
}
template <class T> INLINE T op_gcd(T a, T b) {
  a = op_abs(a); b = op_abs(b);
  while (b != 0) { T r = (T)(a % b); a = b; b = r; }
  return a;
}
INLINE float op_frexp_mantissa(float a) { int e; return __builtin_frexpf(a, &e); }
INLINE double op_frexp_mantissa(double a) { int e; return __builtin_frexp(a, &e); }
template <class T> INLINE int32_t op_frexp_exponent(T a) {
  if (a != a || op_abs(a) == (T)__builtin_inf() || a == 0) return 0;
  int e;
  (void)__builtin_frexp((double)a, &e);
  return e;
}

// Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
INLINE int64_t op_philox(int64_t seed, int64_t index, int64_t word) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)((uint64_t)index >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1; c3 = (uint32_t)p0; c0 = n0; c2 = n2;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}

// Reductions that vectorise: combined lane by lane, then across lanes.
#pragma omp declare reduction(nan_max : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t : \
                              omp_out = op_max(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(nan_min : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t : \
                              omp_out = op_min(omp_out, omp_in)) initializer(omp_priv = omp_orig)
