// Scaled-dot-product attention forward (Dao et al., "FlashAttention", 2022). Follows attention_tile.h; an ATTENTION line makes an entry.

// What a forward call fills. Lines that several items share the keys of leave their parts in `parts`: [split][line of all][depth + 2],
// the last two being peak and total.
template <class A, class T> struct Results {
  T *out;
  void *logsumexp;
  const int64_t *out_at, *logsumexp_at;
  bool wide;
  A *parts;
  // `line` counts over batch, key heads and lines.
  void row(const Problem &p, int64_t line, int64_t split, const A *values, A peak, A total) const {
    if (parts) {
      A *to = parts + (split * p.batch * p.shared * p.lines + line) * (p.depth + 2);
      __builtin_memcpy(to, values, p.depth * sizeof(A));
      to[p.depth] = peak;
      to[p.depth + 1] = total;
    } else final(p, line, values, peak, total);
  }
  void final(const Problem &p, int64_t line, const A *values, A peak, A total) const {
    const int64_t batch = line / (p.heads * p.rows), head = line / p.rows % p.heads, row = line % p.rows;
    const A factor = total == 0 ? 0 : 1 / total, sum = total == 0 ? 0 : peak + (A)__builtin_log(total);
    scatter(values, factor, p.depth, offset(out, out_at, batch, head, row), out_at[3]);
    if (wide) *offset((double *)logsumexp, logsumexp_at, batch, head, row) = sum;
    else *offset((float *)logsumexp, logsumexp_at, batch, head, row) = (float)sum;
  }
};

template <class A, class T> static void forward_tiles(const Problem &p, const Results<A, T> &results, Workspace<A> &w, int64_t shared_index, int64_t first, int64_t count, int64_t split, int64_t begin, int64_t end) {
  enum { N = Lanes<A>::count, LINES = 2 * N };
  const int64_t batch = shared_index / p.shared, shared = shared_index % p.shared;
  for (int64_t i = 0; i < count; ++i) {
    begin_tile(p, w.tiles[i], batch, shared, first + i * LINES);
    pack_columns(w.tiles[i], (const T *)p.q, p.q_at, p.width, (A)p.factor, w.queries + i * w.query_size);
    __builtin_memset(w.results + i * w.result_size, 0, w.result_size * sizeof(A));
  }
  attend<A, T>(p, w, count, batch, shared, begin, end, true);
  alignas(VECTOR_BYTES) A square[N * N];
  for (int64_t i = 0; i < count; ++i) {
    const Tile<A> &t = w.tiles[i];
    for (int64_t v = 0; v < t.pitch() && v < t.live; v += N) {
      for (int64_t c = 0; c < p.depth; c += N) {
        for (int64_t j = 0; j < N; ++j) at(square + j * N) = at(w.results + i * w.result_size + (c + j) * t.pitch() + v);
        transpose(square);
        for (int64_t l = 0; l < N; ++l) at(w.lines + l * w.v_pitch + c) = at(square + l * N);
      }
      for (int64_t l = 0; l < N && v + l < t.live; ++l)
        results.row(p, shared_index * p.lines + t.first + v + l, split, w.lines + l * w.v_pitch, t.peak[v + l], t.total[v + l]);
    }
  }
}

// Rows as accumulators in whole vectors: where they lie if they can be read there, else packed into `to`.
template <class A, class T> INLINE const A *readable(const T *from, const int64_t *stride, int64_t rows, int64_t width, A *to, int64_t packed, int64_t *pitch) {
  if constexpr (sizeof(A) == sizeof(T))
    if (stride[3] == 1 && width % Lanes<A>::count == 0) { *pitch = stride[2]; return (const A *)from; }
  pack_rows(from, stride, rows, width, to, packed);
  *pitch = packed;
  return to;
}
template <class A> LOCAL void dots(const A *query, const A *keys, int64_t pitch, int64_t width, int64_t count, A *scores) {
  enum { N = Lanes<A>::count };
  int64_t k = 0;
  for (; k + 3 < count; k += 4) {
    Vector<A> sum[4] = {};
    for (int64_t c = 0; c < width; c += N)
      UNROLL(4) for (int i = 0; i < 4; ++i) sum[i] += at(query + c) * load(keys + (k + i) * pitch + c);
    UNROLL(4) for (int i = 0; i < 4; ++i) scores[k + i] = sum_of<A>(sum[i]);
  }
  for (; k < count; ++k) {
    Vector<A> sum{};
    for (int64_t c = 0; c < width; c += N) sum += at(query + c) * load(keys + k * pitch + c);
    scores[k] = sum_of<A>(sum);
  }
}
template <class A, int W> LOCAL void weigh(const A *weights, int64_t count, const A *values, int64_t pitch, A keep, A *result) {
  enum { N = Lanes<A>::count };
  Vector<A> sum[W];
  UNROLL(8) for (int i = 0; i < W; ++i) sum[i] = at(result + i * N) * keep;
  for (int64_t k = 0; k < count; ++k)
    UNROLL(8) for (int i = 0; i < W; ++i) sum[i] += weights[k] * load(values + k * pitch + i * N);
  UNROLL(8) for (int i = 0; i < W; ++i) at(result + i * N) = sum[i];
}
template <class A, class M> INLINE void mask_line(const M *mask, int64_t step, int64_t count, A *scores) {
  for (int64_t k = 0; k < count; ++k) {
    const A value = widened<A>(mask[k * step]);
    if constexpr (sizeof(M) == 1) scores[k] = value == 0 ? -(A)__builtin_inf() : scores[k];
    else scores[k] += value;
  }
}
// All lines of a key head where they are few: vectors run along the head, and keys and values are read once, where they lie.
template <class A, class T> static void forward_few(const Problem &p, const Results<A, T> &results, Workspace<A> &w, int64_t shared_index, int64_t split, int64_t begin, int64_t end) {
  enum { N = Lanes<A>::count };
  const int64_t batch = shared_index / p.shared, shared = shared_index % p.shared;
  Tile<A> &t = w.tiles[0];
  begin_tile(p, t, batch, shared, 0);
  for (int64_t l = 0; l < t.live; ++l) {
    A *query = w.queries + l * w.k_pitch;
    gather(offset((const T *)p.q, p.q_at, batch, t.head[l], t.row[l]), p.q_at[3], p.width, query, w.k_pitch);
    for (int64_t c = 0; c < w.k_pitch; ++c) query[c] *= (A)p.factor;
  }
  __builtin_memset(w.results, 0, t.live * w.v_pitch * sizeof(A));
  for (int64_t key = begin; key < min_int(end, reach(p, t)); key += FEW_KEYS) {
    const int64_t block = min_int(FEW_KEYS, min_int(end, reach(p, t)) - key);
    int64_t k_pitch, v_pitch;
    const A *keys = readable(offset((const T *)p.k, p.k_at, batch, shared, key), p.k_at, block, p.width, w.keys, w.k_pitch, &k_pitch);
    const A *values = readable(offset((const T *)p.v, p.v_at, batch, shared, key), p.v_at, block, p.depth, w.values, w.v_pitch, &v_pitch);
    for (int64_t l = 0; l < t.live; ++l) {
      const int64_t count = p.causal ? min_int(block, t.row[l] + 1 - key) : block, step = p.mask_at[3];
      if (count <= 0) continue;
      dots(w.queries + l * w.k_pitch, keys, k_pitch, round_up(p.width, N), count, w.scores);
#if GENERAL
      if (p.cap) cap_scores<A>(p.cap, count, w.scores, nullptr);
#endif
      if (p.mask_kind == BOOL_MASK) mask_line((const uint8_t *)t.mask[l] + key * step, step, count, w.scores);
      if (p.mask_kind == WIDE_MASK) mask_line((const A *)t.mask[l] + key * step, step, count, w.scores);
      if (p.mask_kind == OWN_MASK) mask_line((const T *)t.mask[l] + key * step, step, count, w.scores);
      for (int64_t k = count; k < round_up(count, N); ++k) w.scores[k] = -(A)__builtin_inf();
      Vector<A> peaks = splat(t.peak[l]);
      for (int64_t k = 0; k < count; k += N) peaks = larger(at(w.scores + k), peaks);
      A peak = peaks[0];
      for (int i = 1; i < N; ++i) peak = peaks[i] > peak ? peaks[i] : peak;
      const Vector<A> base = finite_peak<A>(splat(peak));
      const A keep = exponential<A>(splat(t.peak[l]) - base)[0];
      Vector<A> total{};
      for (int64_t k = 0; k < count; k += N) total += at(w.scores + k) = exponential<A>(at(w.scores + k) - base);
      t.peak[l] = peak;
      t.total[l] = t.total[l] * keep + sum_of<A>(total);
#if GENERAL
      const int64_t place = place_of(batch * p.heads + t.head[l], p.rows, t.row[l]);
      for (int64_t k = 0; p.drops && k < count; ++k) w.scores[k] *= factor_of<A>(p.dropout, place, is_upper(t.row[l]), key + k);
#endif
      A *result = w.results + l * w.v_pitch;
      int64_t c = 0;
      for (; c + 8 * N <= p.depth; c += 8 * N) weigh<A, 8>(w.scores, count, values + c, v_pitch, keep, result + c);
      for (; c < p.depth; c += N) weigh<A, 1>(w.scores, count, values + c, v_pitch, keep, result + c);
    }
  }
  for (int64_t l = 0; l < t.live; ++l) results.row(p, shared_index * p.lines + l, split, w.results + l * w.v_pitch, t.peak[l], t.total[l]);
}

// Parts of a line in the order of its keys to one result.
template <class A, class T> static void join(const Problem &p, const Results<A, T> &results, int64_t line, int64_t splits) {
  const int64_t size = p.depth + 2, all = p.batch * p.shared * p.lines;
  A *first = results.parts + line * size, peak = first[p.depth], total = 0;
  for (int64_t s = 1; s < splits; ++s) peak = op_max(peak, first[s * all * size + p.depth]);
  const A base = peak == -(A)__builtin_inf() ? 0 : peak;
  for (int64_t s = 0; s < splits; ++s) {
    const A *part = first + s * all * size, factor = exponential<A>(splat(part[p.depth] - base))[0];
    total += part[p.depth + 1] * factor;
    for (int64_t i = 0; i < p.depth; ++i) first[i] = (s ? first[i] : 0) + part[i] * factor;
  }
  results.final(p, line, first, peak, total);
}

template <class A, class T> static int32_t forward(void *const *buffers, const int64_t *numbers, Spare spare) {
  enum { N = Lanes<A>::count, LINES = 2 * N };
  const Problem p = problem_of<T>(numbers, buffers[0], buffers[1], buffers[2], buffers[3], buffers[3 + SEED]);
  const int64_t *rest = numbers + PROBLEM_NUMBERS, heads = p.batch * p.shared, lines = heads * p.lines;
  if (lines == 0) return OK;
  const bool few = p.lines <= FEW;
  const int64_t tiles = few ? 1 : ceil_div(p.lines, LINES), per_item = max_int(1, min_int(TILES, heads * tiles / (2 * ITEMS)));
  const int64_t groups = ceil_div(tiles, per_item), wanted = ceil_div(ITEMS, heads * groups);
  const int64_t splits = max_int(1, min_int(wanted, p.keys / SPLIT)), items = heads * groups * splits;
  const int64_t span = round_up(ceil_div(p.keys, splits), KEYS);
  Results<A, T> results{(T *)buffers[4 + SEED], buffers[5 + SEED], rest, rest + 4, rest[8] != 0, nullptr};
  const int64_t threads = lines * p.keys * (p.width + p.depth) > 65536 ? omp_get_max_threads() : 1, own_bytes = Workspace<A>().lay_out(nullptr, p, per_item);
  Cut cut{nullptr};
  cut(results.parts, splits > 1 ? splits * lines * (p.depth + 2) : 0);
  const bool stacked = own_bytes <= STACK_BYTES;
  const Memory memory(spare, cut.bytes + (stacked ? 0 : threads * own_bytes));
  if (!memory.data) return OUT_OF_MEMORY;
  results.parts = splits > 1 ? (A *)memory.data : nullptr;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Workspace<A> w;
    w.lay_out(stacked ? aligned_to_line(__builtin_alloca(own_bytes + 64)) : memory.data + cut.bytes + omp_get_thread_num() * own_bytes, p, per_item);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < items; ++item) {
      // Under a causal mask the last lines have most to do: they come first.
      const int64_t split = item % splits, group = groups - 1 - item / splits % groups, head = item / splits / groups;
      const int64_t begin = split * span, end = min_int(p.keys, begin + span);
      if (few) forward_few(p, results, w, head, split, begin, end);
      else forward_tiles(p, results, w, head, group * per_item * LINES, min_int(per_item, tiles - group * per_item), split, begin, end);
    }
    if (splits > 1)
#pragma omp for schedule(static)
      for (int64_t line = 0; line < lines; ++line) join(p, results, line, splits);
  }
  return OK;
}

// buffers: query, key, value, mask (anything without), where GENERAL the seed, out, logsumexp. numbers: the problem's, four strides of out, four of logsumexp (the
// last unused), whether logsumexp is float64 (float32 otherwise).
#define ATTENTION(A, T, name) extern "C" int32_t attention_forward_##name(void *const *buffers, const int64_t *numbers, Spare spare) { return forward<A, T>(buffers, numbers, spare); }
