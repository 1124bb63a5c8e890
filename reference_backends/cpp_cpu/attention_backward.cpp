// Scaled-dot-product attention backward (Dao et al., "FlashAttention", 2022, algorithm 4). Follows attention_tile.h; an ATTENTION line
// makes an entry.
//
// Items are spans of keys of one key head: each has its gradients of keys and values to itself. Gradients of queries are summed within
// an item in the order of its keys; where a head is more than one item, parts are summed at the end, in the same order.

template <class A, class T> struct Backward {
  T *dq, *dk, *dv;
  const T *grad, *out;
  const void *logsumexp;
  const int64_t *grad_at, *out_at, *logsumexp_at, *dq_at, *dk_at, *dv_at;
  bool wide;
  // By line: weight = exp(score - shift) * factor, and the sum of grad * out.
  A *shift, *factor, *inner;
};

template <class A> struct Accumulators {
  enum { N = Lanes<A>::count, LINES = 2 * N, PADDED = LINES > BLOCK ? LINES : BLOCK };
  int64_t k_pitch, v_pitch;
  // `steepness`: derivatives of capped scores.
  A *keys, *values, *weights, *slopes, *steepness, *query_columns, *grad_columns, *query_rows, *grad_rows, *dk, *dv, *dq, *ones;
  static int64_t query_numbers(const Problem &p) { return ceil_div(p.lines, LINES) * PADDED * packed_pitch<A>(p.width); }
  // In memory; the bytes of it.
  int64_t lay_out(char *memory, const Problem &p, bool own_queries) {
    k_pitch = packed_pitch<A>(p.width);
    v_pitch = packed_pitch<A>(p.depth);
    const int64_t square = KEYS * LINES + BLOCK, all = max_int(k_pitch, v_pitch);
    Cut cut{memory};
    cut(keys, KEYS * k_pitch), cut(values, KEYS * v_pitch), cut(weights, square), cut(slopes, square), cut(steepness, SEED * square);
    cut(query_columns, k_pitch * LINES), cut(grad_columns, v_pitch * LINES), cut(query_rows, k_pitch * LINES), cut(grad_rows, v_pitch * LINES);
    cut(dk, KEYS * k_pitch), cut(dv, KEYS * v_pitch), cut(dq, own_queries ? query_numbers(p) : 0), cut(ones, all);
    return cut.bytes;
  }
  void begin() {
    for (int64_t i = 0; i < max_int(k_pitch, v_pitch); ++i) ones[i] = 1;
  }
};

// Statistics of a tile's lines. The saved logarithm serves unless it has fewer digits than the gradients, or is so large that the
// logarithm of the sum has drowned in the peak.
template <class A, class T> static void statistics(const Problem &p, const Backward<A, T> &g, Workspace<A> &w, int64_t shared_index, int64_t first) {
  enum { N = Lanes<A>::count };
  const int64_t batch = shared_index / p.shared, shared = shared_index % p.shared, start = shared_index * p.lines + first;
  Tile<A> t;
  begin_tile(p, t, batch, shared, first);
  bool again = sizeof(A) == 8 && !g.wide;
  for (int64_t l = 0; l < t.live; ++l) {
    const A saved = g.wide ? (A)*offset((const double *)g.logsumexp, g.logsumexp_at, batch, t.head[l], t.row[l])
                           : (A)*offset((const float *)g.logsumexp, g.logsumexp_at, batch, t.head[l], t.row[l]);
    again |= op_abs(saved) >= 1024;
    g.shift[start + l] = saved;
    g.factor[start + l] = 1;
    alignas(VECTOR_BYTES) A x[8 * N], y[8 * N];
    Vector<A> sum{};
    const T *grad = offset(g.grad, g.grad_at, batch, t.head[l], t.row[l]), *out = offset(g.out, g.out_at, batch, t.head[l], t.row[l]);
    for (int64_t c = 0; c < p.depth; c += 8 * N) {
      const int64_t n = min_int(8 * N, p.depth - c);
      gather(grad + c * g.grad_at[3], g.grad_at[3], n, x, 8 * N);
      gather(out + c * g.out_at[3], g.out_at[3], n, y, 8 * N);
      for (int64_t i = 0; i < n; i += N) sum += at(x + i) * at(y + i);
    }
    g.inner[start + l] = sum_of<A>(sum);
  }
  if (!again) return;
  w.tiles[0] = t;
  pack_columns(t, (const T *)p.q, p.q_at, p.width, (A)p.factor, w.queries);
  attend<A, T>(p, w, 1, batch, shared, 0, p.keys, false);
  for (int64_t l = 0; l < t.live; ++l) {
    const A peak = w.tiles[0].peak[l], total = w.tiles[0].total[l];
    g.shift[start + l] = total == 0 ? 0 : peak;
    g.factor[start + l] = total == 0 ? 0 : 1 / total;
  }
}

// Lanes of a tile from one number by line; lanes without a line repeat the last.
template <class A> INLINE void lanes_of(const Tile<A> &t, const A *by_line, A *to) {
  for (int64_t l = 0; l < t.pitch(); ++l) to[l] = by_line[min_int(l, t.live - 1)];
}
// Scores and gradients of weights to weights and gradients of scores.
template <class A> LOCAL void slopes_of(const Tile<A> &t, int64_t count, const A *shift, const A *factor, const A *inner, A *weights, A *slopes) {
  enum { N = Lanes<A>::count };
  const int64_t pitch = t.pitch();
  for (int64_t v = 0; v < pitch; v += N) {
    const Vector<A> base = at(shift + v), scale = at(factor + v), mean = at(inner + v);
    for (int64_t k = v; k < count * pitch; k += pitch) {
      const Vector<A> weight = exponential<A>(at(weights + k) - base) * scale;
      at(slopes + k) = weight * (at(slopes + k) - mean);
      at(weights + k) = weight;
    }
  }
  // The rest of the last block adds nothing to other keys.
  const int64_t rest = (round_up(count, BLOCK) - count) * pitch * sizeof(A);
  __builtin_memset(weights + count * pitch, 0, rest);
  __builtin_memset(slopes + count * pitch, 0, rest);
}
#if GENERAL
// The same for keys from `key` on, where the weights get their factors before they weigh values.
template <class A> LOCAL void dropped_slopes_of(const Problem &p, const Tile<A> &t, int64_t key, int64_t count, const A *shift, const A *factor, const A *inner, A *weights, A *slopes) {
  each_factor(p, t, key, count, [&](int64_t v, int64_t i, Vector<A> kept) {
    const Vector<A> weight = exponential<A>(at(weights + i) - at(shift + v)) * at(factor + v);
    at(slopes + i) = weight * (at(slopes + i) * kept - at(inner + v));
    at(weights + i) = weight * kept;
  });
  // The rest of the last block adds nothing to other keys.
  const int64_t rest = (round_up(count, BLOCK) - count) * t.pitch() * sizeof(A);
  __builtin_memset(weights + count * t.pitch(), 0, rest);
  __builtin_memset(slopes + count * t.pitch(), 0, rest);
}
#endif

// Keys [begin, end) of a key head: their gradients stored, and the part of the queries' gradients added to dq.
template <class A, class T> static void backward_span(const Problem &p, const Backward<A, T> &g, Accumulators<A> &a, int64_t shared_index, int64_t begin, int64_t end, A *dq) {
  enum { N = Lanes<A>::count, LINES = 2 * N };
  const int64_t batch = shared_index / p.shared, shared = shared_index % p.shared;
  alignas(VECTOR_BYTES) A shift[LINES], factor[LINES], inner[LINES];
  __builtin_memset(dq, 0, a.query_numbers(p) * sizeof(A));
  for (int64_t key = begin; key < end; key += KEYS) {
    const int64_t block = min_int(KEYS, end - key);
    pack_rows(offset((const T *)p.k, p.k_at, batch, shared, key), p.k_at, block, p.width, a.keys, a.k_pitch);
    pack_rows(offset((const T *)p.v, p.v_at, batch, shared, key), p.v_at, block, p.depth, a.values, a.v_pitch);
    __builtin_memset(a.dk, 0, KEYS * a.k_pitch * sizeof(A));
    __builtin_memset(a.dv, 0, KEYS * a.v_pitch * sizeof(A));
    A *dq_tile = dq;
    for (int64_t first = 0; first < p.lines; first += LINES, dq_tile += a.PADDED * a.k_pitch) {
      Tile<A> t;
      begin_tile(p, t, batch, shared, first);
      const int64_t n = min_int(block, reach(p, t) - key), pitch = t.pitch(), start = shared_index * p.lines + first;
      if (n <= 0 || is_hidden(p, t, key, n)) continue;
      pack_columns(t, (const T *)p.q, p.q_at, p.width, (A)p.factor, a.query_columns);
      pack_columns(t, g.grad, g.grad_at, p.depth, (A)1, a.grad_columns);
      for (int64_t l = 0; l < t.live; ++l) {
        gather(offset((const T *)p.q, p.q_at, batch, t.head[l], t.row[l]), p.q_at[3], p.width, a.query_rows + l * a.k_pitch, a.k_pitch);
        gather(offset(g.grad, g.grad_at, batch, t.head[l], t.row[l]), g.grad_at[3], p.depth, a.grad_rows + l * a.v_pitch, a.v_pitch);
      }
      lanes_of(t, g.shift + start, shift);
      lanes_of(t, g.factor + start, factor);
      lanes_of(t, g.inner + start, inner);
      score<A, T>(p, t, a.query_columns, a.keys, a.k_pitch, key, n, a.weights, a.steepness);
      inner_products(t, a.values, a.v_pitch, n, a.grad_columns, p.depth, a.slopes);
#if GENERAL
      if (p.drops) dropped_slopes_of(p, t, key, n, shift, factor, inner, a.weights, a.slopes);
      else slopes_of(t, n, shift, factor, inner, a.weights, a.slopes);
      for (int64_t i = 0; p.cap && i < n * pitch; i += N) at(a.slopes + i) *= at(a.steepness + i);
#else
      slopes_of(t, n, shift, factor, inner, a.weights, a.slopes);
#endif
      product(a.weights, pitch, 1, n, a.grad_rows, a.v_pitch, ceil_div(p.depth, N), t.live, a.dv, a.v_pitch, (const A *)a.ones);
      product(a.slopes, pitch, 1, n, a.query_rows, a.k_pitch, ceil_div(p.width, N), t.live, a.dk, a.k_pitch, (const A *)a.ones);
      product(a.slopes, 1, pitch, t.live, a.keys, a.k_pitch, ceil_div(p.width, N), n, dq_tile, a.k_pitch, (const A *)a.ones);
    }
    for (int64_t r = 0; r < block; ++r) {
      scatter(a.dk + r * a.k_pitch, (A)p.scale, p.width, offset(g.dk, g.dk_at, batch, shared, key + r), g.dk_at[3]);
      scatter(a.dv + r * a.v_pitch, (A)1, p.depth, offset(g.dv, g.dv_at, batch, shared, key + r), g.dv_at[3]);
    }
  }
}
template <class A, class T> static void store_queries(const Problem &p, const Backward<A, T> &g, int64_t shared_index, const A *dq) {
  enum { LINES = Accumulators<A>::LINES, PADDED = Accumulators<A>::PADDED };
  const int64_t batch = shared_index / p.shared, shared = shared_index % p.shared, pitch = packed_pitch<A>(p.width);
  for (int64_t line = 0; line < p.lines; ++line)
    scatter(dq + (line / LINES * PADDED + line % LINES) * pitch, (A)p.scale, p.width, offset(g.dq, g.dq_at, batch, shared * p.group + line / p.rows, line % p.rows), g.dq_at[3]);
}

template <class A, class T> static int32_t backward(void *const *buffers, const int64_t *numbers, Spare spare) {
  enum { LINES = Accumulators<A>::LINES };
  const Problem p = problem_of<T>(numbers, buffers[1], buffers[2], buffers[3], buffers[6], buffers[6 + SEED]);
  const int64_t *rest = numbers + PROBLEM_NUMBERS, heads = p.batch * p.shared, lines = heads * p.lines, tiles = ceil_div(p.lines, LINES);
  if (heads == 0) return OK;
  const int64_t splits = max_int(1, min_int(ceil_div(ITEMS, heads), p.keys / SPLIT));
  const int64_t span = round_up(ceil_div(p.keys, splits), KEYS), part = Accumulators<A>::query_numbers(p);
  const int64_t threads = lines * p.keys * (p.width + p.depth) > 32768 ? omp_get_max_threads() : 1;
  // A thread's statistics are done when its sums begin: they have the same memory.
  const int64_t own_bytes = max_int(Accumulators<A>().lay_out(nullptr, p, splits == 1), Workspace<A>().lay_out(nullptr, p, 1));
  A *by_line, *parts;
  const auto shared_parts = [&](char *memory) {
    Cut cut{memory};
    cut(by_line, 3 * lines), cut(parts, splits > 1 ? heads * splits * part : 0);
    return cut.bytes;
  };
  const int64_t shared_bytes = shared_parts(nullptr);
  const Memory memory(spare, shared_bytes + threads * own_bytes);
  if (!memory.data) return OUT_OF_MEMORY;
  shared_parts(memory.data);
  const int64_t *grad_at = rest, *out_at = rest + 5, *logsumexp_at = rest + 10, *results_at = rest + 15;
  const bool wide = rest[27] != 0;
  const char *logsumexp = (const char *)buffers[5] + (wide ? sizeof(double) : sizeof(float)) * logsumexp_at[4];
  const Backward<A, T> g{(T *)buffers[7 + SEED], (T *)buffers[8 + SEED], (T *)buffers[9 + SEED], beginning<T>(buffers[0], grad_at), beginning<T>(buffers[4], out_at), logsumexp,
                         grad_at, out_at, logsumexp_at, results_at, results_at + 4, results_at + 8, wide, by_line, by_line + lines, by_line + 2 * lines};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    char *const own = memory.data + shared_bytes + omp_get_thread_num() * own_bytes;
    Workspace<A> w;
    w.lay_out(own, p, 1);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < heads * tiles; ++item) statistics(p, g, w, item / tiles, item % tiles * LINES);
    Accumulators<A> a;
    a.lay_out(own, p, splits == 1);
    a.begin();
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < heads * splits; ++item) {
      // Under a causal mask the first keys are attended to by most lines: they come first.
      const int64_t head = item % heads, split = item / heads, begin = split * span;
      A *dq = splits > 1 ? parts + (head * splits + split) * part : a.dq;
      backward_span(p, g, a, head, begin, min_int(p.keys, begin + span), dq);
      if (splits == 1) store_queries(p, g, head, dq);
    }
    if (splits > 1)
#pragma omp for schedule(static)
      for (int64_t head = 0; head < heads; ++head) {
        A *sum = parts + head * splits * part;
        for (int64_t s = 1; s < splits; ++s) for (int64_t i = 0; i < part; ++i) sum[i] += sum[s * part + i];
        store_queries(p, g, head, sum);
      }
  }
  return OK;
}

// buffers: grad, query, key, value, out, logsumexp, mask (anything without), where GENERAL the seed, then gradients of query, key and value. numbers: the
// problem's; of grad, out and logsumexp four strides (the last of logsumexp unused) and where it begins; four strides of each gradient;
// whether logsumexp is float64.
#define ATTENTION(A, T, name) extern "C" int32_t attention_backward_##name(void *const *buffers, const int64_t *numbers, Spare spare) { return backward<A, T>(buffers, numbers, spare); }
