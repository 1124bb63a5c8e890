// What attention with dropout keeps: of each line, the weights of four keys beside each other follow from one counter of Philox. Follows
// philox.h and attention.h.

typedef uint64_t Wide __attribute__((vector_size(VECTOR_BYTES)));
template <class A> struct Unsigned;
template <> struct Unsigned<float> { typedef uint32_t vector __attribute__((vector_size(VECTOR_BYTES), may_alias)); };
template <> struct Unsigned<double> { typedef uint64_t vector __attribute__((vector_size(VECTOR_BYTES), may_alias)); };

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
  const Wide first = Wide{} + (uint64_t)group;
  if constexpr (sizeof(A) == 4) {
    const PhiloxWords<Wide> even = philox_words(d.seed, first, (Wide)lines, Wide{}, Wide{}),
                            odd = philox_words(d.seed, first, (Wide)lines >> 32, Wide{}, Wide{});
    UNROLL(4) for (int i = 0; i < 4; ++i) words[i] = (U)((even.word[i] & low) | odd.word[i] << 32);
  } else {
    const PhiloxWords<Wide> all = philox_words(d.seed, first, (Wide)lines, Wide{}, Wide{});
    UNROLL(4) for (int i = 0; i < 4; ++i) words[i] = (U)(all.word[i] & low);
  }
  UNROLL(4) for (int i = 0; i < 4; ++i) to[i] = words[i] <= d.last ? splat<A>((A)d.kept) : Vector<A>{};
}
