// Values of LANES neighbouring iterations at once, in the compiler's vector extensions: V<T> for numbers, B for truth. A four-byte
// element fills one register; narrower ones fill a part of one, eight-byte ones take two. Operators and op_* functions have the names
// and the results of the scalar ones in base.h, so that generated text looks the same for both.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define REGISTER_BYTES 64
#elif defined(__AVX2__)
#define REGISTER_BYTES 32
#else
#define REGISTER_BYTES 16
#endif
#if REGISTER_BYTES == 64 && !defined(__clang__)
#define MASKED_MOVES 1
#else
#define MASKED_MOVES 0
#endif
// AVX2 has moves under masks of vectors, of elements of four and eight bytes.
#if REGISTER_BYTES == 32 && !defined(__clang__)
#define VECTOR_MASKED_MOVES 1
#else
#define VECTOR_MASKED_MOVES 0
#endif
enum : int { LANES = REGISTER_BYTES / 4, HALF = LANES / 2 };

// How many lanes of a step are iterations of the loop: all, or the first few at its end.
struct Full { static constexpr int n = LANES; };
struct Tail { int n; };

template <class T> struct Element { typedef T type; };
template <> struct Element<bf16> { typedef uint16_t type; };
template <> struct Element<f16> { typedef uint16_t type; };
template <class T, int N> struct Pack { typedef typename Element<T>::type type __attribute__((vector_size(N * sizeof(T)))); };
template <class T> using Part = typename Pack<T, LANES>::type;
template <class T> using Piece = typename Pack<T, HALF>::type;
typedef Part<int32_t> Mask;
typedef Piece<int64_t> WideMask;

template <class P, class T> INLINE P spread(T s) { return s - P{}; }
template <class P> INLINE P spread_bits(uint16_t s) { return s - P{}; }
template <class To, class From> INLINE To reread(From v) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the width");
  return (To)v;
}
// Halves, in registers: in memory, where other compilers leave them, a processor waits for what it has just stored.
#if __has_builtin(__builtin_shufflevector)
template <class T> INLINE Piece<T> low_half(Part<T> v) {
  if constexpr (HALF == 8) return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  else if constexpr (HALF == 4) return __builtin_shufflevector(v, v, 0, 1, 2, 3);
  else return __builtin_shufflevector(v, v, 0, 1);
}
template <class T> INLINE Piece<T> high_half(Part<T> v) {
  if constexpr (HALF == 8) return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  else if constexpr (HALF == 4) return __builtin_shufflevector(v, v, 4, 5, 6, 7);
  else return __builtin_shufflevector(v, v, 2, 3);
}
template <class T> INLINE Part<T> joined(Piece<T> low, Piece<T> high) {
  if constexpr (HALF == 8) return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  else if constexpr (HALF == 4) return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  else return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
#else
template <class T> INLINE Piece<T> low_half(Part<T> v) { Piece<T> r; __builtin_memcpy(&r, &v, sizeof r); return r; }
template <class T> INLINE Piece<T> high_half(Part<T> v) { Piece<T> r; __builtin_memcpy(&r, (char *)&v + sizeof r, sizeof r); return r; }
template <class T> INLINE Part<T> joined(Piece<T> low, Piece<T> high) {
  Part<T> r;
  __builtin_memcpy(&r, &low, sizeof low);
  __builtin_memcpy((char *)&r + sizeof low, &high, sizeof high);
  return r;
}
#endif
// Lane l of the result is lane take[l] of a and b laid side by side.
template <class P> INLINE P shuffle(P a, P b, P take) {
#if defined(__clang__)
  enum : int { N = sizeof(P) / sizeof(a[0]) };
  P r;
  for (int l = 0; l < N; ++l) r[l] = take[l] < N ? a[take[l]] : b[take[l] - N];
  return r;
#else
  return __builtin_shuffle(a, b, take);
#endif
}
// Lane l holds l.
INLINE Mask lane_numbers() {
  Mask r;
  for (int l = 0; l < LANES; ++l) r[l] = l;
  return r;
}

// Narrow integers as four-byte ones, and two bytes of each again. GCC's own conversions of whole registers go by halves, or by lanes.
#if MASKED_MOVES
INLINE Mask widened(Part<int8_t> v) { return __builtin_ia32_pmovsxbd512_mask((Pack<char, 16>::type)v, Mask{}, (uint16_t)-1); }
INLINE Mask widened(Part<uint8_t> v) { return __builtin_ia32_pmovzxbd512_mask((Pack<char, 16>::type)v, Mask{}, (uint16_t)-1); }
INLINE Mask widened(Part<int16_t> v) { return __builtin_ia32_pmovsxwd512_mask((Pack<short, 16>::type)v, Mask{}, (uint16_t)-1); }
INLINE Mask widened(Part<uint16_t> v) { return __builtin_ia32_pmovzxwd512_mask((Pack<short, 16>::type)v, Mask{}, (uint16_t)-1); }
INLINE Part<uint16_t> low_bytes(Mask v) { return (Part<uint16_t>)__builtin_ia32_pmovdw512_mask(v, (Pack<short, 16>::type){}, (uint16_t)-1); }
#elif VECTOR_MASKED_MOVES
// What is widened are the lower bytes of a register. As a number they get there in one move; as bytes copied into a pack they would go
// by way of memory, whose read waits for two shorter writes.
INLINE Pack<char, 16>::type in_register(Pack<char, 8>::type v) {
  return (Pack<char, 16>::type)(Pack<long long, 2>::type{(long long)v, 0});
}
INLINE Mask widened(Part<int8_t> v) { return __builtin_ia32_pmovsxbd256(in_register((Pack<char, 8>::type)v)); }
INLINE Mask widened(Part<uint8_t> v) { return __builtin_ia32_pmovzxbd256(in_register((Pack<char, 8>::type)v)); }
INLINE Mask widened(Part<int16_t> v) { return __builtin_ia32_pmovsxwd256((Pack<short, 8>::type)v); }
INLINE Mask widened(Part<uint16_t> v) { return __builtin_ia32_pmovzxwd256((Pack<short, 8>::type)v); }
#else
INLINE Mask widened(Part<int8_t> v) { return __builtin_convertvector(__builtin_convertvector(v, Part<int16_t>), Mask); }
INLINE Mask widened(Part<uint8_t> v) { return (Mask)__builtin_convertvector(__builtin_convertvector(v, Part<uint16_t>), Part<uint32_t>); }
INLINE Mask widened(Part<int16_t> v) { return __builtin_convertvector(v, Mask); }
INLINE Mask widened(Part<uint16_t> v) { return (Mask)__builtin_convertvector(v, Part<uint32_t>); }
#endif
#if !MASKED_MOVES
INLINE Part<uint16_t> low_bytes(Mask v) { return __builtin_convertvector((Part<uint32_t>)v, Part<uint16_t>); }
#endif

// A piece in another type, in one instruction: conversions of the compiler go by halves of registers here, too.
template <class To, class From> struct PieceConvert {
  INLINE_METHOD static Piece<To> apply(Piece<From> v) { return __builtin_convertvector(v, Piece<To>); }
};
#define PIECE_CONVERT(To, From, expression) \
  template <> struct PieceConvert<To, From> { INLINE_METHOD static Piece<To> apply(Piece<From> v) { return (Piece<To>)expression; } };
#if MASKED_MOVES
typedef Pack<long long, 8>::type Longs;
PIECE_CONVERT(double, float, __builtin_ia32_cvtps2pd512_mask(v, Piece<double>{}, (uint8_t)-1, 4))
PIECE_CONVERT(float, double, __builtin_ia32_cvtpd2ps512_mask(v, Piece<float>{}, (uint8_t)-1, 4))
PIECE_CONVERT(int64_t, int32_t, __builtin_ia32_pmovsxdq512_mask(v, Longs{}, (uint8_t)-1))
PIECE_CONVERT(int32_t, int64_t, __builtin_ia32_pmovqd512_mask((Longs)v, Piece<int32_t>{}, (uint8_t)-1))
PIECE_CONVERT(float, int64_t, __builtin_ia32_cvtqq2ps512_mask((Longs)v, Piece<float>{}, (uint8_t)-1, 4))
PIECE_CONVERT(double, int64_t, __builtin_ia32_cvtqq2pd512_mask((Longs)v, Piece<double>{}, (uint8_t)-1, 4))
#elif VECTOR_MASKED_MOVES
typedef Pack<long long, 4>::type Longs;
PIECE_CONVERT(double, float, __builtin_ia32_cvtps2pd256(v))
PIECE_CONVERT(float, double, __builtin_ia32_cvtpd2ps256(v))
PIECE_CONVERT(double, int32_t, __builtin_ia32_cvtdq2pd256(v))
PIECE_CONVERT(int64_t, int32_t, __builtin_ia32_pmovsxdq256(v))
#endif

template <class T, int Bytes = sizeof(T)> struct V {
  Part<T> v;
  V() = default;
  INLINE_METHOD V(Part<T> p) : v(p) {}
  INLINE_METHOD explicit V(T s) : v(spread<Part<T>>((typename Element<T>::type)s)) {}
  INLINE_METHOD T operator[](int lane) const { return (T)v[lane]; }
  INLINE_METHOD void set(int lane, T s) { v[lane] = (typename Element<T>::type)s; }
};
template <class T> struct V<T, 8> {
  Piece<T> low, high;
  V() = default;
  INLINE_METHOD V(Piece<T> l, Piece<T> h) : low(l), high(h) {}
  INLINE_METHOD explicit V(T s) : low(spread<Piece<T>>(s)), high(spread<Piece<T>>(s)) {}
  INLINE_METHOD T operator[](int lane) const { return lane < HALF ? low[lane] : high[lane - HALF]; }
  INLINE_METHOD void set(int lane, T s) { if (lane < HALF) low[lane] = s; else high[lane - HALF] = s; }
};
// Each lane 0 or -1.
struct B {
  Mask v;
  B() = default;
  INLINE_METHOD B(Mask m) : v(m) {}
  INLINE_METHOD B(WideMask low, WideMask high) : v(shuffle((Mask)low, (Mask)high, lane_numbers() * 2)) {}
  INLINE_METHOD explicit B(bool s) : v(spread<Mask>(s ? -1 : 0)) {}
  INLINE_METHOD bool operator[](int lane) const { return v[lane] != 0; }
  INLINE_METHOD void set(int lane, bool s) { v[lane] = s ? -1 : 0; }
  INLINE_METHOD WideMask low() const { return PieceConvert<int64_t, int32_t>::apply(low_half<int32_t>(v)); }
  INLINE_METHOD WideMask high() const { return PieceConvert<int64_t, int32_t>::apply(high_half<int32_t>(v)); }
};
template <class T> struct Vector { typedef V<T> type; };
template <> struct Vector<bool> { typedef B type; };
template <class T> using vec = typename Vector<T>::type;

INLINE V<int64_t> iota(int64_t first, int64_t step) {
  Mask lanes = lane_numbers();
  return {PieceConvert<int64_t, int32_t>::apply(low_half<int32_t>(lanes)) * step + first,
          PieceConvert<int64_t, int32_t>::apply(high_half<int32_t>(lanes)) * step + first};
}
// How many lanes of iota(first, step) are below a bound; step is positive.
INLINE int32_t lanes_below(int64_t first, int64_t step, int64_t bound) {
  if (bound <= first) return 0;
  const uint64_t count = ((uint64_t)bound - (uint64_t)first - 1) / (uint64_t)step + 1;
  return count < LANES ? (int32_t)count : LANES;
}
INLINE int32_t lanes_up_to(int64_t first, int64_t step, int64_t last) {
  if (last < first) return 0;
  const uint64_t count = ((uint64_t)last - (uint64_t)first) / (uint64_t)step;
  return count < LANES - 1 ? (int32_t)count + 1 : LANES;
}
INLINE B first_lanes(int32_t count) { return B((Mask)(lane_numbers() < count)); }
INLINE B lanes_from(int32_t count) { return B((Mask)(lane_numbers() >= count)); }
INLINE B alive(Full) { return B(true); }
INLINE B alive(Tail t) { return B((Mask)(lane_numbers() < t.n)); }

#define VECTOR_BINARY(op)                                                                                          \
  template <class T, int S> INLINE V<T, S> operator op(V<T, S> a, V<T, S> b) { return V<T, S>((Part<T>)(a.v op b.v)); } \
  template <class T> INLINE V<T, 8> operator op(V<T, 8> a, V<T, 8> b) { return {a.low op b.low, a.high op b.high}; }
VECTOR_BINARY(+)
VECTOR_BINARY(-)
VECTOR_BINARY(*)
VECTOR_BINARY(/)
VECTOR_BINARY(&)
VECTOR_BINARY(|)
VECTOR_BINARY(^)
template <class T, int S> INLINE V<T, S> operator-(V<T, S> a) { return V<T, S>((Part<T>)-a.v); }
template <class T> INLINE V<T, 8> operator-(V<T, 8> a) { return {-a.low, -a.high}; }
template <class T, int S> INLINE V<T, S> operator~(V<T, S> a) { return V<T, S>((Part<T>)~a.v); }
template <class T> INLINE V<T, 8> operator~(V<T, 8> a) { return {~a.low, ~a.high}; }
template <class T, int S> struct Comparison {
  template <class M> INLINE_METHOD static B of(M m) { return B(__builtin_convertvector(m, Mask)); }
};
template <class T> struct Comparison<T, 4> {
  template <class M> INLINE_METHOD static B of(M m) { return B((Mask)m); }
};
#define VECTOR_COMPARE(op)                                                                                             \
  template <class T, int S> INLINE B operator op(V<T, S> a, V<T, S> b) { return Comparison<T, S>::of(a.v op b.v); }     \
  template <class T> INLINE B operator op(V<T, 8> a, V<T, 8> b) { return B((WideMask)(a.low op b.low), (WideMask)(a.high op b.high)); }
VECTOR_COMPARE(==)
VECTOR_COMPARE(!=)
VECTOR_COMPARE(<)
VECTOR_COMPARE(<=)
VECTOR_COMPARE(>)
VECTOR_COMPARE(>=)
INLINE B operator&(B a, B b) { return B((Mask)(a.v & b.v)); }
INLINE B operator|(B a, B b) { return B((Mask)(a.v | b.v)); }
INLINE B operator^(B a, B b) { return B((Mask)(a.v ^ b.v)); }
INLINE B operator!(B a) { return B((Mask)~a.v); }
INLINE B operator==(B a, B b) { return !(a ^ b); }
INLINE B operator!=(B a, B b) { return a ^ b; }
INLINE B operator<(B a, B b) { return !a & b; }
INLINE B operator<=(B a, B b) { return !a | b; }
INLINE B operator>(B a, B b) { return a & !b; }
INLINE B operator>=(B a, B b) { return a | !b; }

template <class T> INLINE V<T, 1> select(B m, V<T, 1> a, V<T, 1> b) { return V<T, 1>((Part<T>)(__builtin_convertvector(m.v, Part<int8_t>) ? a.v : b.v)); }
template <class T> INLINE V<T, 2> select(B m, V<T, 2> a, V<T, 2> b) { return V<T, 2>((Part<T>)(__builtin_convertvector(m.v, Part<int16_t>) ? a.v : b.v)); }
template <class T> INLINE V<T, 4> select(B m, V<T, 4> a, V<T, 4> b) { return V<T, 4>((Part<T>)(m.v ? a.v : b.v)); }
template <class T> INLINE V<T, 8> select(B m, V<T, 8> a, V<T, 8> b) { return {m.low() ? a.low : b.low, m.high() ? a.high : b.high}; }
INLINE B select(B m, B a, B b) { return B((Mask)((m.v & a.v) | (~m.v & b.v))); }
template <class X> INLINE X select(bool m, X a, X b) { return m ? a : b; }

// Whether all lanes are true, whether any is.
INLINE uint32_t lane_bits(B m) {
#if MASKED_MOVES
  return __builtin_ia32_cvtd2mask512(m.v);
#elif VECTOR_MASKED_MOVES
  return (uint32_t)__builtin_ia32_movmskps256((Part<float>)m.v);
#else
  uint32_t r = 0;
  for (int l = 0; l < LANES; ++l) r |= (uint32_t)(m.v[l] & 1) << l;
  return r;
#endif
}
INLINE bool every(B m) { return lane_bits(m) == (LANES == 32 ? ~0u : (1u << LANES) - 1); }
INLINE bool some(B m) { return lane_bits(m) != 0; }

// Memory. A tail reads and writes its own lanes alone; the others are zero.
template <class P> INLINE P load_pack(const void *p) { P r; __builtin_memcpy(&r, p, sizeof r); return r; }
template <class P> INLINE void store_pack(void *p, P v) { __builtin_memcpy(p, &v, sizeof v); }
// Some of the first BYTES of a register, in parts of half the size each: never lane by lane in a loop, which g++ 12 makes vectors of the
// loop around it from, with zeros in some of them.
template <int BYTES> INLINE void copy_some(char *to, const char *from, int bytes) {
  if constexpr (BYTES > 1) {
    if (bytes & (BYTES / 2)) __builtin_memcpy(to, from, BYTES / 2), to += BYTES / 2, from += BYTES / 2;
    copy_some<BYTES / 2>(to, from, bytes);
  }
}
#if VECTOR_MASKED_MOVES
INLINE Longs first_longs(int n) { return (Longs)((Longs){0, 1, 2, 3} < (long long)n); }
template <class P> INLINE P load_masked(const void *p, Mask m) { return (P)__builtin_ia32_maskloadd256((const Mask *)p, m); }
template <class P> INLINE P load_masked(const void *p, WideMask m) { return (P)__builtin_ia32_maskloadq256((const Longs *)p, (Longs)m); }
template <class P> INLINE void store_masked(void *p, Mask m, P v) { __builtin_ia32_maskstored256((Mask *)p, m, (Mask)v); }
template <class P> INLINE void store_masked(void *p, WideMask m, P v) { __builtin_ia32_maskstoreq256((Longs *)p, (Longs)m, (Longs)v); }
#endif
template <class P> INLINE P load_pack(const void *p, int n) {
  if (n <= 0) return P{};
#if MASKED_MOVES
  if constexpr (sizeof(P) == 64 && sizeof(P{}[0]) == 4) return (P)__builtin_ia32_loaddqusi512_mask((const int *)p, Part<int32_t>{}, (uint16_t)((1u << n) - 1));
  if constexpr (sizeof(P) == 64 && sizeof(P{}[0]) == 8)
    return (P)__builtin_ia32_loaddqudi512_mask((const long long *)p, (Pack<long long, 8>::type){}, (uint8_t)(n >= 8 ? 255 : (1u << n) - 1));
  if constexpr (sizeof(P) == 32) return (P)__builtin_ia32_loaddquhi256_mask((const short *)p, (Pack<short, 16>::type){}, (uint16_t)((1u << n) - 1));
  if constexpr (sizeof(P) == 16) return (P)__builtin_ia32_loaddquqi128_mask((const char *)p, (Pack<char, 16>::type){}, (uint16_t)((1u << n) - 1));
#elif VECTOR_MASKED_MOVES
  if constexpr (sizeof(P) == 32 && sizeof(P{}[0]) == 4) return load_masked<P>(p, (Mask)(lane_numbers() < n));
  if constexpr (sizeof(P) == 32 && sizeof(P{}[0]) == 8) return load_masked<P>(p, (WideMask)first_longs(n));
#endif
  if (n * (int)sizeof(P{}[0]) >= (int)sizeof(P)) return load_pack<P>(p);
  P r{};
  copy_some<sizeof(P)>((char *)&r, (const char *)p, n * (int)sizeof(r[0]));
  return r;
}
template <class P> INLINE void store_pack(void *p, P v, int n) {
  if (n <= 0) return;
#if MASKED_MOVES
  if constexpr (sizeof(P) == 64 && sizeof(P{}[0]) == 4) return __builtin_ia32_storedqusi512_mask((int *)p, (Part<int32_t>)v, (uint16_t)((1u << n) - 1));
  if constexpr (sizeof(P) == 64 && sizeof(P{}[0]) == 8)
    return __builtin_ia32_storedqudi512_mask((long long *)p, (Pack<long long, 8>::type)v, (uint8_t)(n >= 8 ? 255 : (1u << n) - 1));
  if constexpr (sizeof(P) == 32) return __builtin_ia32_storedquhi256_mask((short *)p, (Pack<short, 16>::type)v, (uint16_t)((1u << n) - 1));
  if constexpr (sizeof(P) == 16) return __builtin_ia32_storedquqi128_mask((char *)p, (Pack<char, 16>::type)v, (uint16_t)((1u << n) - 1));
#endif
  if (n * (int)sizeof(v[0]) >= (int)sizeof(P)) return store_pack(p, v);
  copy_some<sizeof(P)>((char *)p, (const char *)&v, n * (int)sizeof(v[0]));
}
// Past the caches: for results larger than the last of them. The address is aligned to the vector.
template <class P> INLINE void stream_pack(void *p, P v) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (sizeof(P) == 16) return __builtin_ia32_movntdq((Pack<long long, 2>::type *)p, (Pack<long long, 2>::type)v);
#if REGISTER_BYTES >= 32
  if constexpr (sizeof(P) == 32) return __builtin_ia32_movntdq256((Pack<long long, 4>::type *)p, (Pack<long long, 4>::type)v);
#endif
#if REGISTER_BYTES >= 64
  if constexpr (sizeof(P) == 64) return __builtin_ia32_movntdq512((Pack<long long, 8>::type *)p, (Pack<long long, 8>::type)v);
#endif
#endif
  store_pack(p, v);
}
INLINE void drain_streams() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

template <class T, int S> INLINE V<T, S> load_lanes(const T *p, Full, V<T, S> *) { return V<T, S>(load_pack<Part<T>>(p)); }
template <class T, int S> INLINE V<T, S> load_lanes(const T *p, Tail t, V<T, S> *) { return V<T, S>(load_pack<Part<T>>(p, t.n)); }
template <class T> INLINE V<T, 8> load_lanes(const T *p, Full, V<T, 8> *) { return {load_pack<Piece<T>>(p), load_pack<Piece<T>>(p + HALF)}; }
template <class T> INLINE V<T, 8> load_lanes(const T *p, Tail t, V<T, 8> *) { return {load_pack<Piece<T>>(p, t.n), load_pack<Piece<T>>(p + HALF, t.n - HALF)}; }
INLINE B from_bytes(Part<uint8_t> b) { return B((Mask)(widened(b) != 0)); }
template <class L> INLINE B load_lanes(const bool *p, L live, B *) { return from_bytes(load_lanes((const uint8_t *)p, live, (V<uint8_t> *)0).v); }
template <class T, class L> INLINE vec<T> load(const T *p, L live) { return load_lanes(p, live, (vec<T> *)0); }

INLINE Part<uint8_t> as_bytes(B m) { return __builtin_convertvector((Mask)(m.v & 1), Part<uint8_t>); }
template <class T, int S> INLINE void store(T *p, V<T, S> v, Full, bool past_caches) { if (past_caches) stream_pack(p, v.v); else store_pack(p, v.v); }
template <class T> INLINE void store(T *p, V<T, 8> v, Full, bool past_caches) {
  if (past_caches) { stream_pack(p, v.low); stream_pack(p + HALF, v.high); }
  else { store_pack(p, v.low); store_pack(p + HALF, v.high); }
}
template <class T, int S> INLINE void store(T *p, V<T, S> v, Tail t, bool) { store_pack(p, v.v, t.n); }
template <class T> INLINE void store(T *p, V<T, 8> v, Tail t, bool) { store_pack(p, v.low, t.n); store_pack(p + HALF, v.high, t.n - HALF); }
template <class L> INLINE void store(bool *p, B m, L live, bool past_caches) {
  store((uint8_t *)p, V<uint8_t>(as_bytes(m)), live, past_caches);
}
// A vector in memory, for loops that read its lanes one by one.
template <class T> struct InMemory {
  T at[LANES];
  INLINE_METHOD explicit InMemory(vec<T> v) { store(at, v, Full(), false); }
  INLINE_METHOD T operator[](int lane) const { return at[lane]; }
};

// One lane at a time, for what has no vector form: `f(lane)` for each lane that lives.
template <class T, class L, class F> INLINE vec<T> per_lane(L live, F f) {
  T lane[LANES] = {};
#pragma GCC unroll 1
  for (int l = 0; l < live.n; ++l) lane[l] = f(l);
  return load(lane, Full());
}
// Elements that lie apart, at `place` from p on. Lanes that do not live, or that the mask leaves out, read nothing.
#if MASKED_MOVES
template <class T> INLINE V<T> gathered(uint32_t bits, const T *p, V<int64_t> place, V<T> other) {
  const Longs low = (Longs)place.low, high = (Longs)place.high;
  if constexpr (sizeof(T) == 4) {
    typedef Piece<float> P;
    const P a = __builtin_ia32_gatherdiv16sf((P)low_half<T>(other.v), p, low, (uint8_t)bits, 4);
    const P b = __builtin_ia32_gatherdiv16sf((P)high_half<T>(other.v), p, high, (uint8_t)(bits >> HALF), 4);
    return joined<T>((Piece<T>)a, (Piece<T>)b);
  } else {
    typedef Piece<double> P;
    const P a = __builtin_ia32_gatherdiv8df((P)other.low, p, low, (uint8_t)bits, 8);
    const P b = __builtin_ia32_gatherdiv8df((P)other.high, p, high, (uint8_t)(bits >> HALF), 8);
    return {(Piece<T>)a, (Piece<T>)b};
  }
}
#elif VECTOR_MASKED_MOVES
template <class T> INLINE V<T> gathered(B mask, const T *p, V<int64_t> place, V<T> other) {
  const Longs low = (Longs)place.low, high = (Longs)place.high;
  if constexpr (sizeof(T) == 4) {
    typedef Piece<float> P;
    const P a = __builtin_ia32_gatherdiv4sf256((P)low_half<T>(other.v), (const float *)p, low, (P)low_half<int32_t>(mask.v), 4);
    const P b = __builtin_ia32_gatherdiv4sf256((P)high_half<T>(other.v), (const float *)p, high, (P)high_half<int32_t>(mask.v), 4);
    return joined<T>((Piece<T>)a, (Piece<T>)b);
  } else {
    typedef Piece<double> P;
    const P a = __builtin_ia32_gatherdiv4df((P)other.low, (const double *)p, low, (P)mask.low(), 8);
    const P b = __builtin_ia32_gatherdiv4df((P)other.high, (const double *)p, high, (P)mask.high(), 8);
    return {(Piece<T>)a, (Piece<T>)b};
  }
}
#endif
template <class T, class L> INLINE vec<T> load_at(const T *p, V<int64_t> place, L live) {
#if MASKED_MOVES
  if constexpr (sizeof(T) >= 4) return gathered(lane_bits(alive(live)), p, place, V<T>((T)0));
#elif VECTOR_MASKED_MOVES
  if constexpr (sizeof(T) >= 4) return gathered(alive(live), p, place, V<T>((T)0));
#endif
  return per_lane<T>(live, [&](int l) INLINE_LAMBDA { return p[place[l]]; });
}
template <class T, class L> INLINE vec<T> load_at_where(B mask, const T *p, V<int64_t> place, vec<T> other, L live) {
#if MASKED_MOVES
  if constexpr (sizeof(T) >= 4) return gathered(lane_bits(mask & alive(live)), p, place, other);
#elif VECTOR_MASKED_MOVES
  if constexpr (sizeof(T) >= 4) return gathered(mask & alive(live), p, place, other);
#endif
  return per_lane<T>(live, [&](int l) INLINE_LAMBDA { return mask[l] ? p[place[l]] : other[l]; });
}
template <class T, class L> INLINE vec<T> load_where(B mask, const T *p, vec<T> other, L live) {
#if MASKED_MOVES
  if constexpr (sizeof(T) == 4) return vec<T>((Part<T>)__builtin_ia32_loaddqusi512_mask((const int *)p, (Mask)other.v, (uint16_t)lane_bits(mask & alive(live))));
#elif VECTOR_MASKED_MOVES
  const B there = mask & alive(live);
  if constexpr (sizeof(T) == 4) return select(there, vec<T>(load_masked<Part<T>>(p, there.v)), other);
  if constexpr (sizeof(T) == 8)
    return select(there, vec<T>(load_masked<Piece<T>>(p, there.low()), load_masked<Piece<T>>(p + HALF, there.high())), other);
#endif
  if (every(mask | !alive(live))) return load(p, live);
  if (!some(mask & alive(live))) return other;
  for (int l = 0; l < live.n; ++l) if (mask[l]) other.set(l, p[l]);
  return other;
}
template <class T, class L> INLINE void store_where(B mask, T *p, vec<T> v, L live, bool past_caches) {
  if (every(mask | !alive(live))) return store(p, v, live, past_caches);
#if VECTOR_MASKED_MOVES
  const B there = mask & alive(live);
  if constexpr (sizeof(T) == 4) return store_masked(p, there.v, v.v);
  if constexpr (sizeof(T) == 8) return store_masked(p, there.low(), v.low), store_masked(p + HALF, there.high(), v.high);
#endif
  for (int l = 0; l < live.n; ++l) if (mask[l]) p[l] = v[l];
}

// Every second element from p on: `a` begins at p, `b` LANES - 1 elements later, so that nothing behind the last of them is read.
template <int Bytes> struct Bits { typedef int32_t type; };
template <> struct Bits<1> { typedef uint8_t type; };
template <> struct Bits<2> { typedef uint16_t type; };
template <class T> using Packed = Part<typename Bits<sizeof(T)>::type>;
template <class P> INLINE P every_second(P a, P b) {
  P take;
  for (int l = 0; l < LANES; ++l) take[l] = l < HALF ? 2 * l : 2 * l + 1;
  return shuffle(a, b, take);
}
template <class P, class T> INLINE void load_both(const T *p, Full, P *both) {
  both[0] = load_pack<P>(p);
  both[1] = load_pack<P>(p + LANES - 1);
}
template <class P, class T> INLINE void load_both(const T *p, Tail t, P *both) {
  both[0] = load_pack<P>(p, (int)min_int(2 * t.n - 1, LANES));
  both[1] = load_pack<P>(p + LANES - 1, 2 * t.n - LANES);
}
template <class T> INLINE vec<T> of_packed(Packed<T> v, const T *) { return vec<T>((Part<T>)v); }
INLINE B of_packed(Part<uint8_t> v, const bool *) { return from_bytes(v); }
template <class T, class L> INLINE vec<T> load_second(const T *p, L live) {
  if constexpr (sizeof(T) <= 4) {
    Packed<T> both[2];
    load_both(p, live, both);
    return of_packed(every_second(both[0], both[1]), p);
  } else return per_lane<T>(live, [&](int l) { return p[2 * l]; });
}
// Eight bits with a zero behind each.
INLINE uint32_t spread(uint32_t bits) {
#ifdef __BMI2__
  return __builtin_ia32_pdep_si(bits, 0x5555);
#else
  bits = (bits | bits << 4) & 0x0f0f;
  bits = (bits | bits << 2) & 0x3333;
  return (bits | bits << 1) & 0x5555;
#endif
}
template <class T, class L> INLINE vec<T> load_second_where(B mask, const T *p, vec<T> other, L live) {
#if MASKED_MOVES
  if constexpr (sizeof(T) == 4) {
    const uint32_t bits = lane_bits(mask & alive(live));
    const Mask a = __builtin_ia32_loaddqusi512_mask((const int *)p, Mask{}, (uint16_t)spread(bits & 255));
    const Mask b = __builtin_ia32_loaddqusi512_mask((const int *)p + LANES - 1, Mask{}, (uint16_t)(spread(bits >> HALF) << 1));
    return select(mask, vec<T>((Part<T>)every_second(a, b)), other);
  }
#elif VECTOR_MASKED_MOVES
  if constexpr (sizeof(T) == 4) {
    const Mask there = (mask & alive(live)).v;
    const Mask a = load_masked<Mask>(p, shuffle(there, Mask{}, Mask{0, 8, 1, 8, 2, 8, 3, 8}));
    const Mask b = load_masked<Mask>(p + LANES - 1, shuffle(there, Mask{}, Mask{8, 4, 8, 5, 8, 6, 8, 7}));
    return select(mask, vec<T>((Part<T>)every_second(a, b)), other);
  }
#endif
  if (every(mask | !alive(live))) return load_second(p, live);
  for (int l = 0; l < live.n; ++l) if (mask[l]) other.set(l, p[2 * l]);
  return other;
}
// Elements that lie before each other, from p on downwards.
template <class L> INLINE Mask from_the_last(L live) { return spread<Mask>(live.n - 1) - (Mask)lane_numbers(); }
template <class T, class L> INLINE vec<T> load_back(const T *p, L live) {
  if constexpr (sizeof(T) == 4) return vec<T>((Part<T>)shuffle((Mask)load(p - (live.n - 1), live).v, Mask{}, from_the_last(live)));
  else return per_lane<T>(live, [&](int l) INLINE_LAMBDA { return p[-l]; });
}
template <class T, class L> INLINE vec<T> load_back_where(B mask, const T *p, vec<T> other, L live) {
  if constexpr (sizeof(T) == 4) {
    const Mask order = from_the_last(live);
    const vec<T> there = load_where(B(shuffle(mask.v, Mask{}, order)), p - (live.n - 1), vec<T>((T)0), live);
    return select(mask, vec<T>((Part<T>)shuffle((Mask)there.v, Mask{}, order)), other);
  } else return per_lane<T>(live, [&](int l) INLINE_LAMBDA { return mask[l] ? p[-l] : other[l]; });
}
// Elements of a and b in turn, from p on.
template <class P> INLINE void store_in_turn(void *p, P a, P b, int n) {
  P low, high;
  for (int l = 0; l < LANES; ++l) low[l] = l / 2 + l % 2 * LANES, high[l] = HALF + l / 2 + l % 2 * LANES;
  low = shuffle(a, b, low), high = shuffle(a, b, high);
  if (n == LANES) store_pack(p, low), store_pack((char *)p + sizeof(P), high);
  else store_pack(p, low, (int)min_int(2 * n, LANES)), store_pack((char *)p + sizeof(P), high, 2 * n - LANES);
}
template <class T, int S, class L> INLINE void store_pairs(T *p, V<T, S> a, V<T, S> b, L live) {
  if constexpr (S <= 4) store_in_turn(p, (Packed<T>)a.v, (Packed<T>)b.v, live.n);
  else for (int l = 0; l < live.n; ++l) p[2 * l] = a[l], p[2 * l + 1] = b[l];
}
template <class L> INLINE void store_pairs(bool *p, B a, B b, L live) { store_in_turn(p, as_bytes(a), as_bytes(b), live.n); }
// Conversions: those that the instruction set rounds or cuts as base.h does, the others lane by lane.
template <class To, class From, class Enable = void> struct VectorConvert {
  INLINE_METHOD static vec<To> apply(vec<From> a) { return per_lane<To>(Full(), [&](int l) { return Convert<To, From>::apply(a[l]); }); }
};
template <class T> struct Plain { static constexpr bool value = true, floating = false, half = false; };
template <> struct Plain<bool> { static constexpr bool value = false, floating = false, half = false; };
template <> struct Plain<bf16> { static constexpr bool value = false, floating = false, half = true; };
template <> struct Plain<f16> : Plain<bf16> {};
template <> struct Plain<uint32_t> : Plain<int32_t> {};
template <> struct Plain<float> { static constexpr bool value = true, floating = true, half = false; };
template <> struct Plain<double> : Plain<float> {};
template <class, class> struct Same { static constexpr bool value = false; };
template <class T> struct Same<T, T> { static constexpr bool value = true; };
template <bool, class T = void> struct When {};
template <class T> struct When<true, T> { typedef T type; };

// What has conversions to floats.
template <class From, int SF> INLINE auto unpacked(V<From> a) {
  if constexpr (SF < 4) return V<int32_t>(widened(a.v));
  else return a;
}
template <class To, class From, int ST, int SF> struct Resize {
  INLINE_METHOD static V<To> apply(V<From> a) {
    if constexpr (ST == 4) return V<To>(__builtin_convertvector(unpacked<From, SF>(a).v, Part<To>));
    else return V<To>(__builtin_convertvector(a.v, Part<To>));
  }
};
template <class To, class From, int SF> struct Resize<To, From, 8, SF> {
  INLINE_METHOD static V<To> apply(V<From> a) {
    if constexpr (SF < 4) return Resize<To, int32_t, 8, 4>::apply(unpacked<From, SF>(a));
    else return {PieceConvert<To, From>::apply(low_half<From>(a.v)), PieceConvert<To, From>::apply(high_half<From>(a.v))};
  }
};
template <class To, class From, int ST> struct Resize<To, From, ST, 8> {
  INLINE_METHOD static V<To> apply(V<From> a) {
    return V<To>(joined<To>(PieceConvert<To, From>::apply(a.low), PieceConvert<To, From>::apply(a.high)));
  }
};
template <class To, class From> struct Resize<To, From, 8, 8> {
  INLINE_METHOD static V<To> apply(V<From> a) { return {PieceConvert<To, From>::apply(a.low), PieceConvert<To, From>::apply(a.high)}; }
};
// Between integers, between floats, from integers to floats.
template <class To, class From>
struct VectorConvert<To, From, typename When<!Same<To, From>::value && Plain<To>::value && Plain<From>::value && (Plain<To>::floating || !Plain<From>::floating)>::type> {
  INLINE_METHOD static V<To> apply(V<From> a) { return Resize<To, From, sizeof(To), sizeof(From)>::apply(a); }
};
template <class T> struct VectorConvert<T, T, void> { INLINE_METHOD static vec<T> apply(vec<T> a) { return a; } };
template <class From> struct VectorConvert<bool, From, typename When<Plain<From>::value>::type> {
  INLINE_METHOD static B apply(V<From> a) { return a != V<From>((From)0); }
};
template <class To> struct VectorConvert<To, bool, typename When<Plain<To>::value>::type> {
  INLINE_METHOD static V<To> apply(B a) { return select(a, V<To>((To)1), V<To>((To)0)); }
};
// To halves by way of float.
template <class To, class From>
struct VectorConvert<To, From, typename When<Plain<To>::half && !Plain<From>::half && !(Plain<From>::floating && sizeof(From) == 4)>::type> {
  INLINE_METHOD static V<To> apply(vec<From> a) { return VectorConvert<To, float>::apply(VectorConvert<float, From>::apply(a)); }
};
template <> struct VectorConvert<int32_t, float, void> {
  // Lanes out of range become the lowest number, as the instruction of x86 has it and the conversion of vectors promises nowhere.
  INLINE_METHOD static V<int32_t> apply(V<float> a) {
    B inside = (a >= V<float>(-0x1p31f)) & (a < V<float>(0x1p31f));
    V<float> safe = select(inside, a, V<float>(0.0f));
    return select(inside, V<int32_t>(__builtin_convertvector(safe.v, Mask)), V<int32_t>((int32_t)(-2147483647 - 1)));
  }
};
template <> struct VectorConvert<int64_t, float, void> {
  INLINE_METHOD static V<int64_t> apply(V<float> a) {
    B inside = (a >= V<float>(-0x1p63f)) & (a < V<float>(0x1p63f));
    V<float> safe = select(inside, a, V<float>(0.0f));
    return select(inside, Resize<int64_t, float, 8, 4>::apply(safe), V<int64_t>((int64_t)(-0x7fffffffffffffffLL - 1)));
  }
};
// The narrower integers are cut from wider ones.
template <> struct VectorConvert<int8_t, float, void> {
  INLINE_METHOD static V<int8_t> apply(V<float> a) { return Resize<int8_t, int32_t, 1, 4>::apply(VectorConvert<int32_t, float>::apply(a)); }
};
template <> struct VectorConvert<int16_t, float, void> {
  INLINE_METHOD static V<int16_t> apply(V<float> a) { return Resize<int16_t, int32_t, 2, 4>::apply(VectorConvert<int32_t, float>::apply(a)); }
};
template <> struct VectorConvert<uint8_t, float, void> {
  INLINE_METHOD static V<uint8_t> apply(V<float> a) { return Resize<uint8_t, int64_t, 1, 8>::apply(VectorConvert<int64_t, float>::apply(a)); }
};
template <> struct VectorConvert<float, bf16, void> {
  INLINE_METHOD static V<float> apply(V<bf16> a) {
#if MASKED_MOVES
    // One permutation, with zeros below, in place of a widening and a shift.
    typedef Pack<short, 2 * LANES>::type Words;
    Words take;
    for (int w = 0; w < 2 * LANES; ++w) take[w] = w / 2;
    return V<float>((Part<float>)__builtin_ia32_permvarhi512_mask((Words)__builtin_ia32_si512_256si((Piece<int32_t>)a.v), take, Words{}, 0xaaaaaaaa));
#else
    return V<float>((Part<float>)(widened(a.v) << 16));
#endif
  }
};
INLINE V<bf16> narrow_bf16(V<float> a) {
  Part<uint32_t> u = (Part<uint32_t>)a.v, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  rounded = (Part<uint32_t>)((a != a).v ? (Mask)(Mask{} + 0x7fc0) : (Mask)rounded);
  return V<bf16>(low_bytes((Mask)rounded));
}
template <> struct VectorConvert<bf16, float, void> {
  INLINE_METHOD static V<bf16> apply(V<float> a) {
#if MASKED_MOVES && defined(__AVX512BF16__)
    // The instruction takes subnormal numbers for zero.
    const bool subnormal = __builtin_ia32_fpclassps512_mask(a.v, 0x20, (uint16_t)-1);
    if (__builtin_expect(!subnormal, 1)) return V<bf16>((Part<bf16>)__builtin_ia32_cvtneps2bf16_v16sf(a.v));
#endif
    return narrow_bf16(a);
  }
};
#if MASKED_MOVES
template <> struct VectorConvert<float, f16, void> {
  INLINE_METHOD static V<float> apply(V<f16> a) {
    return V<float>((Part<float>)__builtin_ia32_vcvtph2ps512_mask((Pack<short, 16>::type)a.v, Part<float>{}, (uint16_t)-1, 4));
  }
};
template <> struct VectorConvert<f16, float, void> {
  INLINE_METHOD static V<f16> apply(V<float> a) {
    return V<f16>((Part<f16>)__builtin_ia32_vcvtps2ph512_mask(a.v, 0, (Pack<short, 16>::type){}, (uint16_t)-1));
  }
};
#elif VECTOR_MASKED_MOVES && defined(__F16C__)
template <> struct VectorConvert<float, f16, void> {
  INLINE_METHOD static V<float> apply(V<f16> a) { return V<float>((Part<float>)__builtin_ia32_vcvtph2ps256((Pack<short, 8>::type)a.v)); }
};
template <> struct VectorConvert<f16, float, void> {
  INLINE_METHOD static V<f16> apply(V<float> a) { return V<f16>((Part<f16>)__builtin_ia32_vcvtps2ph256(a.v, 0)); }
};
#endif
template <class To, class T, int S> INLINE vec<To> convert(V<T, S> a) { return VectorConvert<To, T>::apply(a); }
template <class To> INLINE vec<To> convert(B a) { return VectorConvert<To, bool>::apply(a); }
template <class To, class T, int S> INLINE V<To> bits(V<T, S> a) { return V<To>((Part<To>)a.v); }
template <class To, class T> INLINE V<To> bits(V<T, 8> a) { return {(Piece<To>)a.low, (Piece<To>)a.high}; }
template <class To> INLINE vec<To> bits(B a) { return VectorConvert<To, bool>::apply(a); }

// Arithmetic that operators do not cover.
template <class T, int S> INLINE V<T, S> op_max(V<T, S> a, V<T, S> b) { return select((b > a) | (b != b), b, a); }
template <class T, int S> INLINE V<T, S> op_min(V<T, S> a, V<T, S> b) { return select((b < a) | (b != b), b, a); }
template <class T, int S> INLINE V<T, S> op_fmax(V<T, S> a, V<T, S> b) { return select((b > a) | (a != a), b, a); }
template <class T, int S> INLINE V<T, S> op_fmin(V<T, S> a, V<T, S> b) { return select((b < a) | (a != a), b, a); }
// The instructions give the second operand where one is NaN, or both are zero.
#if MASKED_MOVES
#define LARGER(a, b) V<float>((Part<float>)__builtin_ia32_maxps512_mask((a).v, (b).v, (b).v, (uint16_t)-1, 4))
#define SMALLER(a, b) V<float>((Part<float>)__builtin_ia32_minps512_mask((a).v, (b).v, (b).v, (uint16_t)-1, 4))
#elif VECTOR_MASKED_MOVES
#define LARGER(a, b) V<float>((Part<float>)__builtin_ia32_maxps256((a).v, (b).v))
#define SMALLER(a, b) V<float>((Part<float>)__builtin_ia32_minps256((a).v, (b).v))
#endif
#ifdef LARGER
INLINE V<float> op_max(V<float> a, V<float> b) { return select(b != b, b, LARGER(b, a)); }
INLINE V<float> op_min(V<float> a, V<float> b) { return select(b != b, b, SMALLER(b, a)); }
#endif
INLINE B op_max(B a, B b) { return a | b; }
INLINE B op_min(B a, B b) { return a & b; }
template <class T, int S> INLINE V<T, S> op_abs(V<T, S> a) { return select(a < V<T, S>((T)0), -a, a); }
INLINE V<float> op_abs(V<float> a) { return bits<float>(bits<int32_t>(a) & V<int32_t>(0x7fffffff)); }
INLINE V<double> op_abs(V<double> a) { return bits<double>(bits<int64_t>(a) & V<int64_t>((int64_t)0x7fffffffffffffffLL)); }
template <class T, int S> INLINE V<T, S> op_sign(V<T, S> a) {
  V<T, S> zero((T)0), one((T)1);
  return select(a > zero, one, zero) - select(a < zero, one, zero);
}
INLINE V<float> op_copysign(V<float> a, V<float> b) {
  V<int32_t> low(0x7fffffff);
  return bits<float>((bits<int32_t>(a) & low) | (bits<int32_t>(b) & ~low));
}
template <class T, int S> INLINE B op_signbit(V<T, S> a) { return a < V<T, S>((T)0); }
INLINE B op_signbit(V<float> a) { return bits<int32_t>(a) < V<int32_t>(0); }
INLINE B op_signbit(V<double> a) { return bits<int64_t>(a) < V<int64_t>((int64_t)0); }
#if MASKED_MOVES
#define ROUNDING(name, how)                                                                                                   \
  INLINE V<float> op_##name(V<float> a) { return V<float>((Part<float>)__builtin_ia32_rndscaleps_mask(a.v, how, a.v, (uint16_t)-1, 4)); } \
  INLINE V<double> op_##name(V<double> a) {                                                                                    \
    return {__builtin_ia32_rndscalepd_mask(a.low, how, a.low, (uint8_t)-1, 4), __builtin_ia32_rndscalepd_mask(a.high, how, a.high, (uint8_t)-1, 4)}; \
  }
ROUNDING(floor, 9)
ROUNDING(ceil, 10)
ROUNDING(trunc, 11)
ROUNDING(round, 4)
INLINE V<float> op_sqrt(V<float> a) { return V<float>((Part<float>)__builtin_ia32_sqrtps512_mask(a.v, a.v, (uint16_t)-1, 4)); }
INLINE V<double> op_sqrt(V<double> a) {
  return {__builtin_ia32_sqrtpd512_mask(a.low, a.low, (uint8_t)-1, 4), __builtin_ia32_sqrtpd512_mask(a.high, a.high, (uint8_t)-1, 4)};
}
INLINE V<float> multiply_add(V<float> a, V<float> b, V<float> c) {
  return V<float>((Part<float>)__builtin_ia32_vfmaddps512_mask(a.v, b.v, c.v, (uint16_t)-1, 4));
}
#elif REGISTER_BYTES == 32 && defined(__FMA__) && !defined(__clang__)
#define ROUNDING(name, how)                                                                                     \
  INLINE V<float> op_##name(V<float> a) { return V<float>((Part<float>)__builtin_ia32_roundps256(a.v, how)); } \
  INLINE V<double> op_##name(V<double> a) { return {__builtin_ia32_roundpd256(a.low, how), __builtin_ia32_roundpd256(a.high, how)}; }
ROUNDING(floor, 9)
ROUNDING(ceil, 10)
ROUNDING(trunc, 11)
ROUNDING(round, 4)
INLINE V<float> op_sqrt(V<float> a) { return V<float>((Part<float>)__builtin_ia32_sqrtps256(a.v)); }
INLINE V<double> op_sqrt(V<double> a) { return {__builtin_ia32_sqrtpd256(a.low), __builtin_ia32_sqrtpd256(a.high)}; }
INLINE V<float> multiply_add(V<float> a, V<float> b, V<float> c) { return V<float>((Part<float>)__builtin_ia32_vfmaddps256(a.v, b.v, c.v)); }
#else
#define ROUNDING(name, fn)                                                                                                       \
  INLINE V<float> op_##name(V<float> a) { return per_lane<float>(Full(), [&](int l) { return __builtin_##fn##f(a[l]); }); } \
  INLINE V<double> op_##name(V<double> a) { return per_lane<double>(Full(), [&](int l) { return __builtin_##fn(a[l]); }); }
ROUNDING(floor, floor)
ROUNDING(ceil, ceil)
ROUNDING(trunc, trunc)
ROUNDING(round, nearbyint)
ROUNDING(sqrt, sqrt)
#if defined(__FMA__) || defined(__aarch64__)
INLINE V<float> multiply_add(V<float> a, V<float> b, V<float> c) {
  V<float> r;
  for (int l = 0; l < LANES; ++l) r.v[l] = __builtin_fmaf(a.v[l], b.v[l], c.v[l]);
  return r;
}
#else
INLINE V<float> multiply_add(V<float> a, V<float> b, V<float> c) { return a * b + c; }
#endif
#endif
// Where the processor fuses; otherwise rounded twice, which costs the functions below less than a unit in the last place.
#if defined(__FMA__) || defined(__aarch64__)
INLINE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
INLINE float multiply_add(float a, float b, float c) { return a * b + c; }
#endif
// By one divisor for all lanes. Where r is the reciprocal rounded to nearest, and p the product a r, the sum p + r (a - p b), each step fused
// into one rounding, is the quotient rounded to nearest, if no step leaves the normal numbers (Markstein, "Computation of elementary
// functions on the IBM RISC System/6000", 1990; Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when
// the divisor is known in advance", 2004). None does with |b| in [2^-56, 2^56] and |a| at least 2^-56: quotients are above 2^-113, and what
// is left over is a multiple of 2^-105. Of large ones, and what is not finite, only the product may be infinite or NaN; then so is
// what is left over, with the same sign, and the sum is NaN. A zero leaves +0, which times -|r| is -0, and keeps the product's sign.
//
// Narrower registers are divided in about the time that this takes, and so are wide ones by AMD's cores, beside other arithmetic: GCC knows
// them by the newest of their names that it has.
#if REGISTER_BYTES == 64 && defined(__FMA__) && !defined(__znver3__) && !defined(__znver4__) && !defined(__znver5__)
#define SLOW_DIVISION 1
#endif
template <class T, int S> INLINE V<T, S> op_div_by(V<T, S> a, T b) { return a / V<T, S>(b); }
#ifdef SLOW_DIVISION
INLINE V<float> op_div_by(V<float> a, float b) {
  const int32_t least = 0x23800000;  // 2^-56
  const float reciprocal = 1.0f / b, size = __builtin_fabsf(b);
  V<float> product = a * V<float>(reciprocal), left = multiply_add(product, V<float>(size), b < 0 ? a : -a);
  V<float> quotient = multiply_add(left, V<float>(-__builtin_fabsf(reciprocal)), product);
  // Twice the bits have no sign; less than twice the least's and not zero, they wrap to what is above zero's.
  Part<uint32_t> place = (Part<uint32_t>)a.v * 2 - 2u * least;
  B far = B((Mask)(place > 0u - 2u * least)) | (quotient != quotient);
  if (__builtin_expect(!(size >= 0x1p-56f && size <= 0x1p56f) || some(far), 0)) return a / V<float>(b);
  return quotient;
}
#endif
template <class T, int S> INLINE V<T, S> op_rsqrt(V<T, S> a) { return V<T, S>((T)1) / op_sqrt(a); }
template <class T, int S> INLINE V<T, S> op_shl(V<T, S> a, V<T, S> b) {
  return per_lane<T>(Full(), [&](int l) { return op_shl(a[l], b[l]); });
}
template <class T, int S> INLINE V<T, S> op_shr(V<T, S> a, V<T, S> b) {
  return per_lane<T>(Full(), [&](int l) { return op_shr(a[l], b[l]); });
}
// By one distance for all lanes, which is the usual case.
template <class T, int S> INLINE V<T, S> op_shl(V<T, S> a, T b) { return b < 0 || b >= (T)(sizeof(T) * 8) ? V<T, S>((T)0) : V<T, S>((Part<T>)(a.v << b)); }
template <class T> INLINE V<T, 8> op_shl(V<T, 8> a, T b) { return b < 0 || b >= 64 ? V<T, 8>((T)0) : V<T, 8>(a.low << b, a.high << b); }
template <class T, int S> INLINE V<T, S> op_shr(V<T, S> a, T b) {
  int top = sizeof(T) * 8 - 1;
  if ((T)-1 > (T)0 && b > top) return V<T, S>((T)0);
  return V<T, S>((Part<T>)(a.v >> (T)(b < 0 || b > top ? top : b)));
}
template <class T> INLINE V<T, 8> op_shr(V<T, 8> a, T b) { T s = b < 0 || b > 63 ? 63 : b; return {a.low >> s, a.high >> s}; }

// Lane l of the result is lane l + BY, or one of the first lanes.
template <int BY, class P> INLINE P rotated(P v) {
  typedef decltype(v == v) Lanes;
  enum : int { N = sizeof(P) / sizeof(v[0]) };
#if defined(__clang__)
  P r;
  for (int l = 0; l < N; ++l) r[l] = v[(l + BY) % N];
  return r;
#else
  Lanes take;
  for (int l = 0; l < N; ++l) take[l] = (l + BY) % N;
  return __builtin_shuffle(v, take);
#endif
}
template <int BY, class T, int S> INLINE V<T, S> lanes_from(V<T, S> a) { return V<T, S>(rotated<BY>(a.v)); }
template <int BY, class T> INLINE V<T, 8> lanes_from(V<T, 8> a) {
  if constexpr (BY == HALF) return {a.high, a.high};
  else return {rotated<BY>(a.low), a.high};
}
template <int BY> INLINE B lanes_from(B a) { return B(rotated<BY>(a.v)); }
// Combination of the lanes, in one fixed order: halves, quarters, and so on.
template <class T, class F> INLINE T across(vec<T> a, F f) {
  if constexpr (LANES == 16) a = f(a, lanes_from<8>(a));
  if constexpr (LANES >= 8) a = f(a, lanes_from<4>(a));
  a = f(a, lanes_from<2>(a));
  return f(a, lanes_from<1>(a))[0];
}

// (value, position) pairs of argmax and argmin: does (b, at j) replace (a, at i)?
template <class T> INLINE B takes_max(V<T> a, V<int64_t> i, V<T> b, V<int64_t> j) {
  return ((b != b) & ((a == a) | (j < i))) | (b > a) | ((b == a) & (j < i));
}
template <class T> INLINE B takes_min(V<T> a, V<int64_t> i, V<T> b, V<int64_t> j) {
  return ((b != b) & ((a == a) | (j < i))) | (b < a) | ((b == a) & (j < i));
}
INLINE B takes_max(B a, V<int64_t> i, B b, V<int64_t> j) { return (b > a) | ((b == a) & (j < i)); }
INLINE B takes_min(B a, V<int64_t> i, B b, V<int64_t> j) { return (b < a) | ((b == a) & (j < i)); }

// Index arithmetic that may raise: only lanes that live are looked at.
#define LANES_STATUS(name)                                                                                              \
  template <class T, int S, class L> INLINE V<T, S> op_##name(V<T, S> a, V<T, S> b, int32_t *status, L live) {           \
    return per_lane<T>(live, [&](int l) { return op_##name(a[l], b[l], status); });                                      \
  }
LANES_STATUS(floordiv)
LANES_STATUS(truncdiv)
LANES_STATUS(mod)
LANES_STATUS(fmod)
// Whether all lanes are in [0, size), which negative numbers, read without a sign, are not.
INLINE bool every_below(V<int64_t> i, V<int64_t> size) {
#if MASKED_MOVES
  const uint32_t low = __builtin_ia32_ucmpq512_mask((Longs)i.low, (Longs)size.low, 5, (uint8_t)-1);
  return !(low | __builtin_ia32_ucmpq512_mask((Longs)i.high, (Longs)size.high, 5, (uint8_t)-1));
#else
  typedef Piece<uint64_t> U;
  return !some(B((WideMask)((U)i.low >= (U)size.low), (WideMask)((U)i.high >= (U)size.high)));
#endif
}
// Indices count from the end where they are negative, which few do: what that takes is left out where no lane needs it.
template <class L> INLINE V<int64_t> wrap_index(V<int64_t> i, V<int64_t> size, int32_t *status, L live) {
  if (__builtin_expect(every_below(i, size), 1)) return i;
  V<int64_t> zero((int64_t)0), wrapped = select(i < zero, i + size, i);
  B bad = ((wrapped < zero) | (wrapped >= size)) & alive(live);
  if (__builtin_expect(some(bad), 0)) { *status = INDEX_OUT_OF_RANGE; return select(bad, zero, wrapped); }
  return wrapped;
}

#define LANES_UNARY(name)                                                                                        \
  template <class T, int S> INLINE V<T, S> op_##name(V<T, S> a) { return per_lane<T>(Full(), [&](int l) { return op_##name(a[l]); }); }
#define LANES_BINARY(name)                                                                                                  \
  template <class T, int S> INLINE V<T, S> op_##name(V<T, S> a, V<T, S> b) { return per_lane<T>(Full(), [&](int l) { return op_##name(a[l], b[l]); }); }

// Loops: whole steps, then one of the lanes that are left. With chains, neighbouring steps accumulate separately, so that none waits for
// the one before.
//
// SIZE: of the loop, for a stretch of it that begins and ends where all chains are through, or where the loop ends; 1: nothing is known.
// What never runs need not be compiled.
static_assert(4 * LANES <= 64, "blocks and chunks of sums are multiples of 64");
template <int64_t SIZE, class F> INLINE void run_steps(int64_t start, int64_t end, F step) {
  int64_t i = start;
  for (; i + LANES <= end; i += LANES) step(i, Full());
  if constexpr (SIZE % LANES != 0)
    if (i < end) step(i, Tail{(int)(end - i)});
}
// For long bodies: one copy of the step instead of two, at the price of masks.
template <class F> INLINE void run_masked(int64_t start, int64_t end, F step) {
  for (int64_t i = start; i < end; i += LANES) step(i, Tail{(int)min_int(end - i, LANES)});
}
template <int CHAINS, int64_t SIZE, class F> INLINE void run_chains(int64_t start, int64_t end, F step) {
  if constexpr (CHAINS == 0) return run_masked(start, end, [&](int64_t i, auto live) INLINE_LAMBDA { step(i, live, 0); });
  int64_t i = start;
  if constexpr (CHAINS == 2) {
    for (; i + 2 * LANES <= end; i += 2 * LANES) {
      step(i, Full(), 0);
      step(i + LANES, Full(), 1);
    }
  }
  if constexpr (CHAINS == 4) {
    for (; i + 4 * LANES <= end; i += 4 * LANES) {
      step(i, Full(), 0);
      step(i + LANES, Full(), 1);
      step(i + 2 * LANES, Full(), 2);
      step(i + 3 * LANES, Full(), 3);
    }
  }
  if constexpr (CHAINS <= 1 || SIZE % (CHAINS * LANES) != 0)
    for (; i + LANES <= end; i += LANES) step(i, Full(), 0);
  if constexpr (SIZE % LANES != 0)
    if (i < end) step(i, Tail{(int)(end - i)}, CHAINS - 1);
}
// Four chains, each in a place of its own, `apart` from the one before: memory is read faster in several streams.
template <class F> INLINE void run_streams(int64_t start, int64_t end, int64_t apart, F step) {
  for (int64_t i = start; i < end; i += LANES) {
    step(i, Full(), 0);
    step(i + apart, Full(), 1);
    step(i + 2 * apart, Full(), 2);
    step(i + 3 * apart, Full(), 3);
  }
}
template <class X, int N> struct Chains {
  X at[N];
  INLINE_METHOD explicit Chains(X start) { for (int k = 0; k < N; ++k) at[k] = start; }
  template <class F> INLINE_METHOD X joined(F f) const {
    if constexpr (N == 2) return f(at[0], at[1]);
    if constexpr (N == 4) return f(f(at[0], at[1]), f(at[2], at[3]));
    return at[0];
  }
};
// A value where lanes live, the identity of the reduction elsewhere.
template <class X> INLINE X kept(Full, X v, X) { return v; }
template <class X> INLINE X kept(Tail t, X v, X identity) { return select(alive(t), v, identity); }
// A number of iterations that the compiler knows, or not.
template <int N> struct Fixed { static constexpr int n = N; };
struct Some { int n; };
// ROWS at a time of `left`, of a loop over COUNT of them that is cut where as many end; 1: nothing is known.
template <int ROWS, int64_t COUNT, int64_t SIZE, class F> INLINE void run_rows(int64_t start, int64_t end, int64_t left, F step) {
  if constexpr (ROWS == 1) return run_masked(start, end, [&](int64_t i, auto live) INLINE_LAMBDA { step(i, live, Some{(int)min_int(left, 8)}); });
  if (COUNT % ROWS == 0 || left >= ROWS) run_steps<SIZE>(start, end, [&](int64_t i, auto live) INLINE_LAMBDA { step(i, live, Fixed<ROWS>()); });
  else if constexpr (COUNT % ROWS != 0) run_steps<SIZE>(start, end, [&](int64_t i, auto live) INLINE_LAMBDA { step(i, live, Some{(int)left}); });
}

template <class T> INLINE bool is_aligned(const T *p) {
  return (uint64_t)p % (sizeof(T) > 4 ? REGISTER_BYTES : LANES * sizeof(T)) == 0;
}
