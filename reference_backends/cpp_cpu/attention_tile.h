// What attention forward and backward share: the problem, tiles of queries, their scores and online softmax (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018). Follows attention.h.
//
// The lanes of a vector are lines: queries of the heads that share one key head, all heads' rows in one sequence. Scores of a tile (two
// vectors of lines) against a block of keys lie in memory as keys x lines, so a row of keys or values is only ever broadcast, the
// statistics of the softmax are vectors, and nothing is summed across lanes. A few lines (decoding) run along the head instead.
// Every choice of blocks is made from the sizes, never from the number of threads, so that results do not depend on it.

enum : int64_t { KEYS = 128, FEW = 4, FEW_KEYS = 64, TILES = 4, ITEMS = 16, SPLIT = 512, PART = 64 };

template <class A> struct Tile {
  enum { N = Lanes<A>::count, LINES = 2 * N };
  alignas(VECTOR_BYTES) A peak[LINES], total[LINES], keep[LINES];
  alignas(VECTOR_BYTES) typename Lanes<A>::whole row[LINES];
  int64_t head[LINES];
  const char *mask[LINES];
  int64_t batch, first, live, vectors, first_row, last_row;
  bool one_mask;
  int64_t pitch() const { return vectors * N; }
};

enum MaskKind : int64_t { NO_MASK = 0, BOOL_MASK = 1, WIDE_MASK = 2, OWN_MASK = 3 };

// Sizes, strides in elements, and operands that both directions have.
struct Problem {
  int64_t batch, heads, shared, rows, keys, width, depth, group, lines;
  const int64_t *q_at, *k_at, *v_at, *mask_at;
  const void *q, *k, *v;
  const char *mask;
  int64_t mask_kind, mask_bytes;
  bool causal;
  // Of scores; and what queries are multiplied by before they meet keys.
  double scale, factor;
#if GENERAL
  // 0: there is none.
  double cap;
  bool drops;
  Dropout dropout;
#endif
};

// The first element of an operand: four strides and its distance from the beginning of the buffer are `at`.
template <class T> INLINE const T *beginning(const void *buffer, const int64_t *at) { return (const T *)buffer + at[4]; }

// numbers: batch, heads, key heads, rows, keys, width, depth (width of values), mask kind, causal, scale (bits of a double), then of
// query, key, value and mask each four strides (0 where the mask broadcasts) and where in its buffer it begins; where GENERAL, the cap of
// scores (bits of a double; 0: none), whether there is dropout, where in its buffer the seed lies, the largest word of 16 bits that is
// kept, and what the weights are multiplied by that are (bits of a double).
template <class T> static Problem problem_of(const int64_t *n, const void *q, const void *k, const void *v, const void *mask, const void *seed) {
  Problem p{n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
  p.group = p.shared ? p.heads / p.shared : 0;
  p.lines = p.group * p.rows;
  p.mask_kind = n[7];
  p.causal = n[8];
  p.scale = p.factor = bits<double>(n[9]);
  p.q_at = n + 10; p.k_at = n + 15; p.v_at = n + 20; p.mask_at = n + 25;
  p.mask_bytes = p.mask_kind == BOOL_MASK ? 1 : p.mask_kind == OWN_MASK ? sizeof(T) : max_int(sizeof(T), 4);
  p.q = beginning<T>(q, p.q_at); p.k = beginning<T>(k, p.k_at); p.v = beginning<T>(v, p.v_at);
  p.mask = (const char *)mask + p.mask_bytes * p.mask_at[4];
#if GENERAL
  p.cap = bits<double>(n[30]);
  if (p.cap) p.factor /= p.cap;
  p.drops = n[31];
  if (p.drops) p.dropout = {((const int64_t *)seed)[n[32]], (uint32_t)n[33], bits<double>(n[34])};
#endif
  return p;
}
// How many these are; and how many buffers the seed has, which follows the mask.
#if GENERAL
enum { PROBLEM_NUMBERS = 35, SEED = 1 };
#else
enum { PROBLEM_NUMBERS = 30, SEED = 0 };
#endif

template <class T> INLINE T *offset(T *base, const int64_t *stride, int64_t a, int64_t b, int64_t c) { return base + a * stride[0] + b * stride[1] + c * stride[2]; }
// Distance of packed rows: whole vectors and blocks; not a power of two that would put the rows of a block into one set of the cache.
template <class A> INLINE int64_t packed_pitch(int64_t width) {
  const int64_t pitch = round_up(width, max_int(Lanes<A>::count, BLOCK));
  return pitch * sizeof(A) % 2048 ? pitch : pitch + max_int(Lanes<A>::count, BLOCK);
}

// Lines from `first` on. Lanes without a line repeat the last one: they compute something harmless that is never stored.
template <class A> LOCAL void begin_tile(const Problem &p, Tile<A> &t, int64_t batch, int64_t shared, int64_t first) {
  t.batch = batch;
  t.first = first;
  t.live = min_int(Tile<A>::LINES, p.lines - first);
  t.vectors = t.live > Tile<A>::N ? 2 : 1;
  t.first_row = p.rows;
  t.last_row = 0;
  t.one_mask = p.mask_at[1] == 0 && p.mask_at[2] == 0;
  int64_t head = first / p.rows, row = first % p.rows;
  for (int64_t j = 0; j < t.pitch(); ++j) {
    if (j && j < t.live && ++row == p.rows) { row = 0; ++head; }
    t.head[j] = shared * p.group + head;
    t.row[j] = (typename Lanes<A>::whole)row;
    t.first_row = min_int(t.first_row, row);
    t.last_row = max_int(t.last_row, row);
    t.mask[j] = p.mask + p.mask_bytes * (batch * p.mask_at[0] + t.head[j] * p.mask_at[1] + row * p.mask_at[2]);
    t.peak[j] = -__builtin_inf();
    t.total[j] = 0;
  }
}
// Keys that some line of the tile may attend to.
template <class A> INLINE int64_t reach(const Problem &p, const Tile<A> &t) { return p.causal ? min_int(p.keys, t.last_row + 1) : p.keys; }

// Whether a mask of bools hides keys [key, key + count) from all lines of a tile: nothing follows from these then.
template <class A> LOCAL bool is_hidden(const Problem &p, const Tile<A> &t, int64_t key, int64_t count) {
  if (p.mask_kind != BOOL_MASK) return false;
  const int64_t step = p.mask_at[3];
  for (int64_t l = 0; l < (t.one_mask ? 1 : t.live); ++l) {
    const char *from = t.mask[l] + key * step;
    int64_t k = 0;
    if (step == 1)
      for (uint64_t eight; k + 8 <= count; k += 8) {
        __builtin_memcpy(&eight, from + k, 8);
        if (eight) return false;
      }
    for (; k < count; ++k)
      if (from[k * step]) return false;
  }
  return true;
}

// Rows from `from` on, as accumulators; rows up to a whole block are zero.
template <class A, class T> LOCAL void pack_rows(const T *from, const int64_t *stride, int64_t rows, int64_t width, A *to, int64_t pitch) {
  for (int64_t r = 0; r < rows; ++r) {
    // Rows of one head are too far apart for the processor to see where it goes on.
    const T *ahead = from + min_int(r + 8, rows - 1) * stride[2];
    for (int64_t c = 0; c < width; c += 64 / sizeof(T)) __builtin_prefetch(ahead + c * stride[3]);
    gather(from + r * stride[2], stride[3], width, to + r * pitch, pitch);
  }
  __builtin_memset(to + rows * pitch, 0, (round_up(rows, BLOCK) - rows) * pitch * sizeof(A));
}
// The tile's lines of `x`, times `scale`, as columns: to[c * pitch + lane].
template <class A, class T> LOCAL void pack_columns(const Tile<A> &t, const T *x, const int64_t *stride, int64_t width, A scale, A *to) {
  enum { N = Lanes<A>::count };
  alignas(VECTOR_BYTES) A square[N * N];
  for (int64_t v = 0; v < t.vectors; ++v)
    for (int64_t c = 0; c < width; c += N) {
      for (int64_t l = 0; l < N; ++l) {
        const int64_t lane = v * N + l;
        gather(offset(x, stride, t.batch, t.head[lane], t.row[lane]) + c * stride[3], stride[3], min_int(N, width - c), square + l * N, N);
      }
      transpose(square);
      for (int64_t i = 0; i < N; ++i) at(to + (c + i) * t.pitch() + v * N) = at(square + i * N) * scale;
    }
}

template <class M, class V, class A> INLINE V masked(V score, V mask) {
  if constexpr (sizeof(M) == 1) return mask == V{} ? splat<A>(-__builtin_inf()) : score;
  else return score + mask;
}
// Masks scores of keys [key, key + count).
template <class A, class M> LOCAL void mask_scores(const Problem &p, const Tile<A> &t, int64_t key, int64_t count, A *scores) {
  enum { N = Lanes<A>::count };
  typedef Vector<A> V;
  const int64_t step = p.mask_at[3], pitch = t.pitch();
  if (t.one_mask) {
    const M *from = (const M *)t.mask[0] + key * step;
    for (int64_t k = 0; k < count; ++k) {
      const V value = splat<A>(widened<A>(from[k * step]));
      for (int64_t v = 0; v < pitch; v += N) at(scores + k * pitch + v) = masked<M, V, A>(at(scores + k * pitch + v), value);
    }
    return;
  }
  alignas(VECTOR_BYTES) A square[N * N];
  for (int64_t v = 0; v < pitch; v += N)
    for (int64_t k = 0; k < count; k += N) {
      const int64_t n = min_int(N, count - k);
      for (int64_t l = 0; l < N; ++l) {
        const M *from = (const M *)t.mask[v + l] + (key + k) * step;
        if (step == 1 && n == N) for (int64_t i = 0; i < N; ++i) square[l * N + i] = widened<A>(from[i]);
        else gather(from, step, n, square + l * N, N);
      }
      transpose(square);
      for (int64_t i = 0; i < n; ++i) {
        A *score = scores + (k + i) * pitch + v;
        at(score) = masked<M, V, A>(at(score), at(square + i * N));
      }
    }
}
// Products of `count` packed rows with a tile's columns, over `width`: rows x lines. Summed in parts, whose errors grow with the length of
// a part and the number of parts instead of with the width.
template <class A> LOCAL void inner_products(const Tile<A> &t, const A *rows, int64_t pitch, int64_t count, const A *columns, int64_t width, A *to) {
  alignas(VECTOR_BYTES) A ones[Tile<A>::LINES];
  for (A &one : ones) one = 1;
  for (int64_t c = 0; c == 0 || c < width; c += PART)
    product(rows + c, pitch, 1, count, columns + c * t.pitch(), t.pitch(), t.vectors, min_int(PART, width - c), to, t.pitch(), c ? ones : nullptr);
}
#if GENERAL
// Caps `count` scores that are in units of the cap; `slopes`, where wanted: their derivatives by what they were.
template <class A> LOCAL void cap_scores(A cap, int64_t count, A *scores, A *slopes) {
  for (int64_t i = 0; i < count; i += Lanes<A>::count) {
    const Vector<A> x = hyperbolic_tangent<A>(at(scores + i));
    at(scores + i) = x * cap;
    if (slopes) at(slopes + i) = (A)1 - x * x;
  }
}
#endif
// Scores of a tile's lines with packed keys [key, key + count), masked; `slopes` as in `cap_scores`, where there is a cap.
template <class A, class T> LOCAL void score(const Problem &p, const Tile<A> &t, const A *query, const A *keys, int64_t keys_pitch, int64_t key, int64_t count, A *scores, A *slopes = nullptr) {
  enum { N = Lanes<A>::count };
  const int64_t pitch = t.pitch();
  inner_products(t, keys, keys_pitch, count, query, p.width, scores);
#if GENERAL
  if (p.cap) cap_scores<A>(p.cap, count * pitch, scores, slopes);
#endif
  if (p.causal && key + count - 1 > t.first_row)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t v = 0; v < pitch; v += N) {
        const auto row = *(const typename Lanes<A>::wholes *)(t.row + v);
        at(scores + k * pitch + v) = row >= (typename Lanes<A>::whole)(key + k) ? at(scores + k * pitch + v) : splat<A>(-__builtin_inf());
      }
  if (p.mask_kind == BOOL_MASK) mask_scores<A, uint8_t>(p, t, key, count, scores);
  if (p.mask_kind == WIDE_MASK) mask_scores<A, A>(p, t, key, count, scores);
  if (p.mask_kind == OWN_MASK) mask_scores<A, T>(p, t, key, count, scores);
}

// A row with no key to attend to has no peak; its exponentials are to be 0, not NaN.
template <class A> INLINE Vector<A> finite_peak(Vector<A> peak) { return peak == splat<A>(-__builtin_inf()) ? splat<A>(0) : peak; }
// Scores to exponentials relative to the peak so far; keep is what earlier sums are to be multiplied with.
template <class A> LOCAL void online_softmax(Tile<A> &t, int64_t count, A *scores) {
  enum { N = Lanes<A>::count, SUMS = 4 };
  const int64_t pitch = t.pitch();
  for (int64_t v = 0; v < pitch; v += N) {
    const Vector<A> old = at(t.peak + v);
    Vector<A> peak = old, other = old;
    int64_t k = 0;
    for (; k + 1 < count; k += 2) {
      peak = larger(at(scores + k * pitch + v), peak);
      other = larger(at(scores + (k + 1) * pitch + v), other);
    }
    if (k < count) peak = larger(at(scores + k * pitch + v), peak);
    peak = larger(other, peak);
    const Vector<A> base = finite_peak<A>(peak), keep = exponential<A>(old - base);
    // Sums of their own for each block of keys, several of them: one alone would lose a digit among a thousand equal terms.
    Vector<A> totals[SUMS]{};
    const auto weigh = [&](int64_t key) { return at(scores + key * pitch + v) = exponential<A>(at(scores + key * pitch + v) - base); };
    for (k = 0; k + SUMS <= count; k += SUMS)
#pragma GCC unroll 4
      for (int i = 0; i < SUMS; ++i) totals[i] += weigh(k + i);
    for (; k < count; ++k) totals[0] += weigh(k);
    at(t.peak + v) = peak;
    at(t.total + v) = at(t.total + v) * keep + ((totals[0] + totals[1]) + (totals[2] + totals[3]));
    at(t.keep + v) = keep;
  }
}

#if GENERAL
// The factors of a tile's weights of keys [key, key + count), of which the first begins a square, a vector of lines at a time:
// use(first lane, place among keys x lines, factors).
template <class A, class Use> INLINE void each_factor(const Problem &p, const Tile<A> &t, int64_t key, int64_t count, const Use &use) {
  typedef typename Lanes<A>::whole Whole;
  typedef typename Lanes<A>::wholes Wholes;
  enum { N = Lanes<A>::count };
  const int64_t pitch = t.pitch();
  alignas(VECTOR_BYTES) Whole place[Tile<A>::LINES], upper[Tile<A>::LINES];
  for (int64_t l = 0; l < pitch; ++l) {
    place[l] = (Whole)place_of(t.batch * p.heads + t.head[l], p.rows, t.row[l]);
    upper[l] = (Whole)is_upper(t.row[l]);
  }
  for (int64_t v = 0; v < pitch; v += N)
    for (int64_t k = 0; k < count; k += k % 8 < 6 ? 2 : 10) {
      Vector<A> factors[4];
      factors_of<A>(p.dropout, group_of(key + k), *(const Wholes *)(place + v), *(const Wholes *)(upper + v), factors);
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t own = k + i % 2 + i / 2 * 8;
        if (own < count) use(v, own * pitch + v, factors[i]);
      }
    }
}
#endif

// One thread's memory for a group of tiles against keys and values.
template <class A> struct Workspace {
  int64_t k_pitch, v_pitch, query_size, result_size;
  A *keys, *values, *scores, *lines, *queries, *results;
  Tile<A> *tiles;
  // In memory; the bytes of it.
  int64_t lay_out(char *memory, const Problem &p, int64_t count) {
    enum { N = Lanes<A>::count, LINES = 2 * N };
    k_pitch = packed_pitch<A>(p.width);
    v_pitch = packed_pitch<A>(p.depth);
    query_size = k_pitch * LINES;
    result_size = v_pitch * LINES;
    Cut cut{memory};
    cut(tiles, count), cut(keys, KEYS * k_pitch), cut(values, KEYS * v_pitch), cut(scores, KEYS * LINES + BLOCK);
    cut(lines, N * v_pitch), cut(queries, count * query_size), cut(results, count * result_size);
    return cut.bytes;
  }
};

// Tiles [0, count) of `w`, begun and packed, against keys [begin, end) of a key head: statistics, and results where `weigh` is set.
template <class A, class T> static void attend(const Problem &p, Workspace<A> &w, int64_t count, int64_t batch, int64_t shared, int64_t begin, int64_t end, bool weigh) {
  int64_t farthest = 0;
  for (int64_t i = 0; i < count; ++i) farthest = max_int(farthest, reach(p, w.tiles[i]));
  end = min_int(end, farthest);
  for (int64_t key = begin; key < end; key += KEYS) {
    const int64_t block = min_int(KEYS, end - key);
    bool packed = false;
    for (int64_t i = 0; i < count; ++i) {
      Tile<A> &t = w.tiles[i];
      const int64_t n = min_int(block, reach(p, t) - key);
      if (n <= 0 || is_hidden(p, t, key, n)) continue;
      if (!packed) {
        pack_rows(offset((const T *)p.k, p.k_at, batch, shared, key), p.k_at, block, p.width, w.keys, w.k_pitch);
        if (weigh) pack_rows(offset((const T *)p.v, p.v_at, batch, shared, key), p.v_at, block, p.depth, w.values, w.v_pitch);
        packed = true;
      }
      score<A, T>(p, t, w.queries + i * w.query_size, w.keys, w.k_pitch, key, n, w.scores);
      online_softmax(t, n, w.scores);
#if GENERAL
      if (weigh && p.drops) each_factor(p, t, key, n, [&](int64_t, int64_t i, Vector<A> factor) { at(w.scores + i) *= factor; });
#endif
      if (weigh) product(w.values, 1, w.v_pitch, p.depth, w.scores, t.pitch(), t.vectors, n, w.results + i * w.result_size, t.pitch(), (const A *)t.keep);
    }
  }
}
