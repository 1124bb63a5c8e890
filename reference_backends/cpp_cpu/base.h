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
#define INLINE_METHOD inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
#define SPECIALISED inline __attribute__((always_inline))
#define RESTRICT __restrict__

// Why a kernel failed: its return value.
enum Status : int32_t { OK = 0, DIVISION_BY_ZERO = 1, INDEX_OUT_OF_RANGE = 2, OUT_OF_MEMORY = 3, PIVOT_OUT_OF_RANGE = 4 };

template <class To, class From> INLINE To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the width");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

// A vector that was loaded stays in its register: compilers would rather load it again for each use.
template <class V> INLINE void keep_loaded(V &vector) {
#if defined __AVX512F__
  __asm__("" : "+v"(vector));
#elif defined __SSE2__
  __asm__("" : "+x"(vector));
#elif defined __aarch64__
  __asm__("" : "+w"(vector));
#endif
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

#if defined(__aarch64__)
typedef __fp16 half_type;
#define HALF_TYPE 1
#elif defined(__FLT16_MANT_DIG__)
typedef _Float16 half_type;
#define HALF_TYPE 1
#else
#define HALF_TYPE 0
#endif
#if HALF_TYPE
INLINE float widen(f16 h) { return (float)bits<half_type>((uint16_t)h); }
INLINE f16 narrow_f16(float f) { return (f16)bits<uint16_t>((half_type)f); }
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
// (float)v, also where it becomes a double again at once: GCC 12.2 takes (double)(float)v for v where it makes vectors of
// statements that stand side by side (-ftree-slp-vectorize, part of -O3).
INLINE float rounded(double v) { volatile float narrow = (float)v; return narrow; }
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
BUILTIN_UNARY(floor, floor)
BUILTIN_UNARY(ceil, ceil)
BUILTIN_UNARY(trunc, trunc)
BUILTIN_UNARY(round, nearbyint)
BUILTIN_UNARY(sqrt, sqrt)
INLINE float op_rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
INLINE double op_rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }

extern "C" int omp_get_thread_num(void) noexcept;
extern "C" int omp_get_num_threads(void) noexcept;
extern "C" int omp_get_max_threads(void) noexcept;
extern "C" void *aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__) noexcept;

// Memory of a launch is what the caller has to spare: nobody else uses it meanwhile. Where that is too little, it is one block that is
// kept for the next launch, of whichever library that loads so, unless it is large; launches that run meanwhile have blocks of their
// own. A block begins with its size. Whoever wants nothing has an address all the same.
struct Spare {
  char *memory;
  int64_t bytes;
};
enum : int64_t { KEPT_BYTES = 1 << 26, BLOCK_HEAD = 64 };
static char *kept_alone, **kept_memory = &kept_alone, no_memory[BLOCK_HEAD] __attribute__((aligned(64)));
extern "C" void keep_memory_at(char **where) { kept_memory = where; }
class Memory {
  Spare &spare;
  int64_t size;
  bool lent;

 public:
  char *data;  // Aligned to 64 bytes; null where there is no memory.
  Memory(Spare &from, int64_t wanted) : spare(from), size((wanted + 63) / 64 * 64), lent(size <= from.bytes), data(size ? from.memory : no_memory) {
    if (lent) {
      spare.memory += size, spare.bytes -= size;
      return;
    }
    if (size <= KEPT_BYTES) {
      char *kept = __atomic_exchange_n(kept_memory, (char *)nullptr, __ATOMIC_ACQUIRE);
      if (kept && *(int64_t *)kept >= size) {
        data = kept + BLOCK_HEAD;
        return;
      }
      __builtin_free(kept);
    }
    char *fresh = (char *)aligned_alloc(64, BLOCK_HEAD + size);
    if (fresh) *(int64_t *)fresh = size;
    data = fresh ? fresh + BLOCK_HEAD : nullptr;
  }
  Memory(const Memory &) = delete;
  ~Memory() {
    if (lent) {
      spare.memory -= size, spare.bytes += size;
      return;
    }
    if (!data) return;
    char *block = data - BLOCK_HEAD;
    if (size <= KEPT_BYTES) block = __atomic_exchange_n(kept_memory, block, __ATOMIC_ACQ_REL);
    __builtin_free(block);
  }
};
// A launch may have up to so many bytes on each thread's stack, beside small ones: nobody plans them.
enum : int64_t { STACK_BYTES = 1 << 19 };
INLINE char *aligned_to_line(void *memory) { return (char *)(((__UINTPTR_TYPE__)memory + 63) / 64 * 64); }
// How many bytes that gave back.
extern "C" int64_t free_kept_memory() {
  char *kept = __atomic_exchange_n(kept_memory, (char *)nullptr, __ATOMIC_ACQUIRE);
  const int64_t size = kept ? *(int64_t *)kept : 0;
  __builtin_free(kept);
  return size;
}
