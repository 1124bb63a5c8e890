// Blocks turned in registers: rows to columns. Follows vector.h. In each step, neighbouring blocks of two rows exchange halves.
template <int STEP, class P> INLINE void exchange_blocks(P *rows) {
  enum : int { N = sizeof(P) / sizeof(rows[0][0]) };
  P take_low, take_high;
  for (int l = 0; l < N; ++l) {
    take_low[l] = l & STEP ? N + (l ^ STEP) : l;
    take_high[l] = l & STEP ? N + l : l ^ STEP;
  }
#pragma GCC unroll 16
  for (int r = 0; r < N; ++r) {
    if (r & STEP) continue;
    P a = rows[r], b = rows[r + STEP];
    rows[r] = shuffle(a, b, take_low);
    rows[r + STEP] = shuffle(a, b, take_high);
  }
  if constexpr (STEP > 1) exchange_blocks<STEP / 2>(rows);
}

// Elements as they are turned: of four or eight bytes. Narrower ones are widened on the way, which costs less than shuffles of theirs.
template <class P> struct AsTheyAre {
  typedef P Row;
  INLINE_METHOD static P load(const void *p) { return load_pack<P>(p); }
  INLINE_METHOD static P load(const void *p, int n) { return load_pack<P>(p, n); }
  INLINE_METHOD static void store(void *p, P v) { store_pack(p, v); }
  INLINE_METHOD static void store(void *p, P v, int n) { store_pack(p, v, n); }
};
template <class P> struct Widened {
  typedef Mask Row;
  INLINE_METHOD static Mask load(const void *p) { return widened(load_pack<P>(p)); }
  INLINE_METHOD static Mask load(const void *p, int n) { return widened(load_pack<P>(p, n)); }
  INLINE_METHOD static void store(void *p, Mask v) { store_pack(p, __builtin_convertvector(v, P)); }
  INLINE_METHOD static void store(void *p, Mask v, int n) { store_pack(p, __builtin_convertvector(v, P), n); }
};
template <int BYTES> struct Turned;
template <> struct Turned<1> : Widened<Part<uint8_t>> {};
template <> struct Turned<2> : Widened<Part<uint16_t>> {};
template <> struct Turned<4> : AsTheyAre<Mask> {};
template <> struct Turned<8> : AsTheyAre<WideMask> {};

// to[c * to_pitch + r] = from[r * from_pitch + c] for r < rows, c < columns. Compiled once: each copy would take a compiler 0.15 s.
template <class T>
static __attribute__((noinline)) void transpose(const T *from, int64_t from_pitch, T *to, int64_t to_pitch, int64_t rows, int64_t columns) {
  typedef Turned<sizeof(T)> Block;
  typedef typename Block::Row Row;
  enum : int { N = sizeof(T) == 8 ? HALF : LANES };
  int64_t r = 0;
  for (; r + N <= rows; r += N) {
    int64_t c = 0;
    for (; c + N <= columns; c += N) {
      const T *const source = from + r * from_pitch + c;
      Row row[N];
#pragma GCC unroll 16
      for (int l = 0; l < N; ++l) {
        row[l] = Block::load(source + l * from_pitch);
        // The next rows: their pages are other ones, which no prefetcher of the processor crosses into.
        if (r + N < rows) __builtin_prefetch(source + (l + N) * from_pitch);
      }
      exchange_blocks<N / 2>(row);
#pragma GCC unroll 16
      for (int l = 0; l < N; ++l) Block::store(to + (c + l) * to_pitch + r, row[l]);
    }
    if (c == columns) continue;
    Row row[N];
    for (int l = 0; l < N; ++l) row[l] = Block::load(from + (r + l) * from_pitch + c, (int)(columns - c));
    exchange_blocks<N / 2>(row);
    for (int l = 0; l < columns - c; ++l) Block::store(to + (c + l) * to_pitch + r, row[l]);
  }
  if (r == rows) return;
  for (int64_t c = 0; c < columns; c += N) {
    const int width = (int)min_int(columns - c, N);
    Row row[N] = {};
    for (int l = 0; l < rows - r; ++l) row[l] = Block::load(from + (r + l) * from_pitch + c, width);
    exchange_blocks<N / 2>(row);
    for (int l = 0; l < width; ++l) Block::store(to + (c + l) * to_pitch + r, row[l], (int)(rows - r));
  }
}
