// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) for attention with dropout: of
// each line's weights of four keys beside each other. Follows attention.h.

typedef uint64_t Wide __attribute__((vector_size(VECTOR_BYTES)));
typedef int Halves __attribute__((vector_size(VECTOR_BYTES)));
template <class A> struct Unsigned;
template <> struct Unsigned<float> { typedef uint32_t vector __attribute__((vector_size(VECTOR_BYTES), may_alias)); };
template <> struct Unsigned<double> { typedef uint64_t vector __attribute__((vector_size(VECTOR_BYTES), may_alias)); };

// Words lie in lanes of 64 bits, of which the low halves count.
INLINE uint64_t low_product(uint64_t a, uint32_t b) { return (uint64_t)(uint32_t)a * b; }
INLINE Wide low_product(Wide a, uint32_t b) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef long long Longs __attribute__((vector_size(VECTOR_BYTES)));
  return (Wide)__builtin_ia32_pmuludq512_mask((Halves)a, Halves{} + (int)b, (Longs)a, (uint8_t)-1);
#elif defined(__AVX2__) && !defined(__AVX512F__) && !defined(__clang__)
  return (Wide)__builtin_ia32_pmuludq256((Halves)a, Halves{} + (int)b);
#else
  return (a & 0xffffffffull) * (uint64_t)b;
#endif
}

template <class C> struct PhiloxWords { C word[4]; };
// The words of counter (group, line, 0, 0) under a key.
template <class C> INLINE PhiloxWords<C> philox_words(int64_t key, uint32_t group, C line) {
  C c0 = C{} + (uint64_t)group, c1 = line, c2 = C{}, c3 = C{};
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)((uint64_t)key >> 32);
  UNROLL(10) for (int round = 0; round < 10; ++round) {
    const C p0 = low_product(c0, 0xD2511F53u), p1 = low_product(c2, 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
    c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// What weights are multiplied by: `kept` where their word is not above `last`, else 0.
struct Dropout {
  int64_t seed;
  uint32_t last;
  double kept;
};

// The factors of a vector of lines, for the four keys of a group.
template <class A> INLINE void factors_of(const Dropout &d, uint32_t group, typename Lanes<A>::wholes lines, Vector<A> *to) {
  typedef typename Unsigned<A>::vector U;
  U words[4];
  const uint64_t low = 0xffffffffull;
  if constexpr (sizeof(A) == 4) {
    const PhiloxWords<Wide> even = philox_words(d.seed, group, (Wide)lines), odd = philox_words(d.seed, group, (Wide)lines >> 32);
    UNROLL(4) for (int i = 0; i < 4; ++i) words[i] = (U)((even.word[i] & low) | odd.word[i] << 32);
  } else {
    const PhiloxWords<Wide> all = philox_words(d.seed, group, (Wide)lines);
    UNROLL(4) for (int i = 0; i < 4; ++i) words[i] = (U)(all.word[i] & low);
  }
  UNROLL(4) for (int i = 0; i < 4; ++i) to[i] = words[i] <= d.last ? splat<A>((A)d.kept) : Vector<A>{};
}
