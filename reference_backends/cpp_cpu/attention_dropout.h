// What attention with dropout keeps, as vendor_sdk/prims/dropout.py defines it: a counter of Philox has the weights of two rows eight apart
// and of two pairs of keys eight apart. Follows philox.h and attention.h.

typedef uint64_t Wide __attribute__((vector_size(VECTOR_BYTES)));
template <class A> struct Unsigned;
template <> struct Unsigned<float> { typedef uint32_t vector __attribute__((vector_size(VECTOR_BYTES), may_alias)); };
template <> struct Unsigned<double> { typedef uint64_t vector __attribute__((vector_size(VECTOR_BYTES), may_alias)); };

// What weights are multiplied by: `kept` where their word of 16 bits is not above `last`, else 0.
struct Dropout {
  int64_t seed;
  uint32_t last;
  double kept;
};

enum { DROPOUT_ROUNDS = 7 };

// The counter's word for a row of a matrix (of a batch and head) that has so many rows, and whether the row is the upper of the two.
INLINE int64_t place_of(int64_t matrix, int64_t rows, int64_t row) { return (matrix * ceil_div(rows, 16) + row / 16) * 8 + row % 8; }
INLINE int64_t is_upper(int64_t row) { return row / 8 % 2; }
// The counter's word for a key.
INLINE uint32_t group_of(int64_t key) { return (uint32_t)(key / 16 * 4 + key % 8 / 2); }

// The factors of a vector of rows, for the keys of a group in order: a pair, and the pair eight further.
template <class A> INLINE void factors_of(const Dropout &d, uint32_t group, typename Lanes<A>::wholes places, typename Lanes<A>::wholes upper, Vector<A> *to) {
  typedef typename Unsigned<A>::vector U;
  U words[4];
  const uint64_t low = 0xffffffffull;
  const Wide first = Wide{} + (uint64_t)group;
  if constexpr (sizeof(A) == 4) {
    const PhiloxWords<Wide> even = philox_words<Wide, DROPOUT_ROUNDS>(d.seed, first, (Wide)places, Wide{}, Wide{}),
                            odd = philox_words<Wide, DROPOUT_ROUNDS>(d.seed, first, (Wide)places >> 32, Wide{}, Wide{});
    UNROLL(4) for (int i = 0; i < 4; ++i) words[i] = (U)((even.word[i] & low) | odd.word[i] << 32);
  } else {
    const PhiloxWords<Wide> all = philox_words<Wide, DROPOUT_ROUNDS>(d.seed, first, (Wide)places, Wide{}, Wide{});
    UNROLL(4) for (int i = 0; i < 4; ++i) words[i] = (U)(all.word[i] & low);
  }
  UNROLL(2) for (int i = 0; i < 2; ++i) {
    const U own = upper != 0 ? words[2 + i] : words[i];
    to[2 * i] = (own & 0xffff) <= d.last ? splat<A>((A)d.kept) : Vector<A>{};
    to[2 * i + 1] = own >> 16 <= d.last ? splat<A>((A)d.kept) : Vector<A>{};
  }
}

// The factor of one weight.
template <class A> INLINE A factor_of(const Dropout &d, int64_t place, int64_t upper, int64_t key) {
  const PhiloxWords<uint64_t> words = philox_words<uint64_t, DROPOUT_ROUNDS>(d.seed, group_of(key), place, 0, 0);
  return (words.word[upper * 2 + key / 8 % 2] >> key % 2 * 16 & 0xffff) <= d.last ? (A)d.kept : 0;
}
