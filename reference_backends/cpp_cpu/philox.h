// Philox 4x32: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Follows base.h.
//
// Words lie in numbers of 64 bits, or in vectors of such, of which the low halves count.

template <class C> INLINE C low_product(C a, uint32_t b) { return (a & 0xffffffffull) * (uint64_t)b; }
// Compilers do not see that the processor has this product.
#if defined(__AVX512F__) && !defined(__clang__)
typedef uint64_t Words512 __attribute__((vector_size(64)));
template <> SPECIALISED Words512 low_product(Words512 a, uint32_t b) {
  typedef int Halves __attribute__((vector_size(64)));
  typedef long long Longs __attribute__((vector_size(64)));
  return (Words512)__builtin_ia32_pmuludq512_mask((Halves)a, Halves{} + (int)b, (Longs)a, (uint8_t)-1);
}
#endif
#if defined(__AVX2__) && !defined(__clang__)
typedef uint64_t Words256 __attribute__((vector_size(32)));
template <> SPECIALISED Words256 low_product(Words256 a, uint32_t b) {
  typedef int Halves __attribute__((vector_size(32)));
  return (Words256)__builtin_ia32_pmuludq256((Halves)a, Halves{} + (int)b);
}
#endif

template <class C> struct PhiloxWords { C word[4]; };
// The words of counter (c0, c1, c2, c3) under a key.
template <class C, int ROUNDS = 10> INLINE PhiloxWords<C> philox_words(int64_t key, C c0, C c1, C c2, C c3) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)((uint64_t)key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < ROUNDS; ++round) {
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
