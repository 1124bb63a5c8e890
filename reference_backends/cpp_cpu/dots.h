// Matrix products of few rows where both factors lie along the sum, and of a matrix and a vector. Follows gemm.h.
//
// Few rows do not pay for packing the other factor. Here both factors are read where they lie, lanes run along the sum, and the lanes of a
// sum are added at its end. Every element of the result is summed in one order, whatever the number of threads.

// Sums of a tile: as many as the registers hold beside what they are summed from, and a whole number of vectors.
#if defined __AVX512F__
enum { DOTS = 16 };
#else
enum { DOTS = 8 };
#endif

template <int S, class V, int... I> INLINE V pair_sums(V a, V b, Lanes<I...>) {
  enum { L = sizeof...(I) };
#if defined __has_builtin && __has_builtin(__builtin_shufflevector)
  return add<V>(__builtin_shufflevector(a, b, ((I & S) ? L + I : I)...), __builtin_shufflevector(a, b, ((I & S) ? L + (I ^ S) : I ^ S)...));
#else
  V sum;
  for (int i = 0; i < L; ++i) sum[i] = i & S ? b[i] : a[i];
  V other;
  for (int i = 0; i < L; ++i) other[i] = i & S ? b[i ^ S] : a[i ^ S];
  return add(sum, other);
#endif
}
// The sums over the lanes of L vectors, as the lanes of one.
template <int L, int S = 1, class V> INLINE V lane_sums(V *vectors) {
  if constexpr (S < L) {
#pragma GCC unroll 32
    for (int i = 0; i < L / S / 2; ++i) vectors[i] = pair_sums<S>(vectors[2 * i], vectors[2 * i + 1], typename CountLanes<L>::Type());
    return lane_sums<L, 2 * S>(vectors);
  } else {
    return vectors[0];
  }
}

// tile[i * pitch + j] = (fresh ? 0 : itself) + the sum over `k` steps of row i of `a` times row j of `b`, for M times DOTS / M / U rows,
// of which only `rows` and `columns` are there. U vectors of each row at once: where M alone does not let a row of `b` be read far enough
// ahead of its use.
template <class T, int M, int U = 1>
static __attribute__((noinline)) void dot_products(const T *a, int64_t a_row, int64_t rows, const T *b, int64_t b_row, int64_t columns, int64_t k, T *tile, int64_t pitch, bool fresh) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT, N = DOTS / M / U };
  V sum[DOTS] = {};
  const T *left[M], *right[N];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) left[i] = a + (i < rows ? i : 0) * a_row;
#pragma GCC unroll 16
  for (int j = 0; j < N; ++j) right[j] = b + (j < columns ? j : 0) * b_row;
  int64_t at = 0;
  for (; at + U * L <= k; at += U * L) {
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
      V here[M];
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        here[i] = (V)*(const Unaligned *)(left[i] + at + u * L);
        keep_loaded(here[i]);
      }
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) {
        V there = (V)*(const Unaligned *)(right[j] + at + u * L);
        if (M > 1) keep_loaded(there);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) sum[(i * N + j) * U + u] = multiply_add(here[i], there, sum[(i * N + j) * U + u]);
      }
    }
  }
  for (; at < k; at += L) {
    const int64_t bytes = min_int(k - at, L) * (int64_t)sizeof(T);
    V here[M] = {}, there[N] = {};
    for (int i = 0; i < M; ++i) __builtin_memcpy(&here[i], left[i] + at, bytes);
    for (int j = 0; j < N; ++j) __builtin_memcpy(&there[j], right[j] + at, bytes);
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j)
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) sum[(i * N + j) * U] = multiply_add(here[i], there[j], sum[(i * N + j) * U]);
  }
  T dots[DOTS] __attribute__((aligned(64)));
#pragma GCC unroll 16
  for (int i = 0; i < DOTS; i += L) *(V *)(dots + i) = lane_sums<L>(sum + i);
  if constexpr (U == 1) {
    if (rows >= M && columns >= N) {
      typedef typename SumOf<T>::Type Line __attribute__((vector_size(N * sizeof(T)), may_alias, aligned(sizeof(T))));
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        Line *const to = (Line *)(tile + i * pitch);
        const Line line = *(const Line *)(dots + i * N);
        *to = fresh ? line : *to + line;
      }
      return;
    }
  }
  for (int i = 0; i < min_int(rows, M); ++i)
    for (int j = 0; j < min_int(columns, N); ++j) {
      T dot = dots[(i * N + j) * U];
      for (int u = 1; u < U; ++u) dot = add(dot, dots[(i * N + j) * U + u]);
      tile[i * pitch + j] = fresh ? dot : add(tile[i * pitch + j], dot);
    }
}

// The sums over each C lanes of C vectors: lane i * C + j is that of the lanes from i * C on of vector j.
template <int L, int C, int S = 1, class V> INLINE V chunk_sums(V *vectors) {
  if constexpr (S < C) {
#pragma GCC unroll 32
    for (int i = 0; i < C / S / 2; ++i) vectors[i] = pair_sums<S>(vectors[2 * i], vectors[2 * i + 1], typename CountLanes<L>::Type());
    return chunk_sums<L, C, 2 * S>(vectors);
  } else {
    return vectors[0];
  }
}

enum : int64_t {
  FEW_ROWS = 24,
  DOT_BYTES = 1 << 19,  // Of rows that are read again and again.
  DOT_DEPTH = 256,      // Terms of a lane that are summed before they are added to those before them.
  DOT_COLUMNS = 64,     // That one task computes.
};

#if defined __AVX512F__
INLINE bool is_for_chunks(int64_t rows) { return rows > 12; }
#else
INLINE bool is_for_chunks(int64_t) { return false; }
#endif

// Whether this is faster than packing either factor: from 32 rows on, which fill vectors, it is not (on a Xeon with AMX). Measured on
// Zen 4: all lanes are added in the time of 16 rows' products with as many steps, and the rows must stay in the second cache.
template <class T> static bool is_for_dots(const Product<T> &p) {
  const int64_t least = is_for_chunks(p.m) ? 128 : max_int(128, 16 * p.m), steps = min_int(p.k, DOT_DEPTH * Lane<T>::COUNT);
  return p.m <= FEW_ROWS && p.n >= DOTS && p.k >= least && p.m * steps * (int64_t)sizeof(T) <= DOT_BYTES &&
         lies_along(p.left, p.k) && lies_along(p.right, p.k);
}

// Columns [first, first + count) of one batch.
template <class T> static void dot_columns(const Product<T> &p, int64_t batch, int64_t first, int64_t count) {
  enum { M = 4, N = DOTS / M, HALF = M / 2, TWICE = DOTS / HALF };
  T sums[FEW_ROWS * DOT_COLUMNS] __attribute__((aligned(64)));
  const T *const left = p.left.address(p.left.address_context, batch, 0, 0);
  const T *const right = p.right.address(p.right.address_context, batch, first, 0);
  // The last rows, where they are few, go in a tile of half as many.
  const int64_t whole = p.m % M == 1 || p.m % M == 2 ? p.m / M * M : p.m, depth = DOT_DEPTH * Lane<T>::COUNT;
  for (int64_t from = 0; from < p.k; from += depth) {
    const int64_t steps = min_int(depth, p.k - from);
    for (int64_t column = 0; column < count; column += TWICE) {
      const T *const here = right + column * p.right.row + from;
      for (int64_t part = 0; part < TWICE && column + part < count; part += N)
        for (int64_t row = 0; row < whole; row += M)
          dot_products<T, M>(left + row * p.left.row + from, p.left.row, p.m - row, here + part * p.right.row, p.right.row, count - column - part, steps, sums + row * DOT_COLUMNS + column + part, DOT_COLUMNS, !from);
      // A single row is bound by what it reads: half a tile of one row and as many columns, each read two vectors at a time.
      const auto last = p.m - whole == 1 ? dot_products<T, 1, HALF> : dot_products<T, HALF>;
      if (whole < p.m)
        last(left + whole * p.left.row + from, p.left.row, p.m - whole, here, p.right.row, count - column, steps, sums + whole * DOT_COLUMNS + column, DOT_COLUMNS, !from);
    }
  }
  p.finish(p.context, batch, 0, p.m, first, count, sums, DOT_COLUMNS);
}

#if defined __AVX512F__
// For rows enough to read less of the right factor than of the left one. A vector has the same CHUNK_BYTES of four rows of the left factor, which are copied so, and of a row of the
// right one as many times the same: four lanes of a sum are left to add, instead of all.
enum : int64_t { CHUNK_BYTES = 16, CHUNK_ROWS = 4, CHUNK_STEPS = 256, CHUNK_COLUMNS = 256 };

// tile[i * pitch + j] = (fresh ? 0 : itself) + the sum over `k` steps, for 4 * G rows and N rows of `b`, of which only `columns` are
// there; x[k / C][row][k % C] has the left factor, for chunks of C steps.
template <class T, int G, int N>
static __attribute__((noinline)) void chunk_products(const T *x, const T *b, int64_t b_row, int64_t columns, int64_t k, T *tile, int64_t pitch, bool fresh) {
  typedef typename Lane<T>::Vector V;
  typedef float Chunk __attribute__((vector_size(CHUNK_BYTES), may_alias, aligned(4)));
  typedef typename SumOf<T>::Type Line __attribute__((vector_size(CHUNK_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT, C = CHUNK_BYTES / sizeof(T) };
  V sum[G][N] = {};
  const T *right[N];
#pragma GCC unroll 16
  for (int j = 0; j < N; ++j) right[j] = b + (j < columns ? j : 0) * b_row;
  const auto add_products = [&](const Chunk *chunks) INLINE_LAMBDA {
    V there[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) there[j] = (V)__builtin_ia32_broadcastf32x4_512((__attribute__((vector_size(16))) float)chunks[j], Lane<float>::Vector{}, (uint16_t)-1);
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) {
      V here = *(const V *)(x + g * L);
      keep_loaded(here);
#pragma GCC unroll 16
      for (int j = 0; j < N; ++j) sum[g][j] = multiply_add(here, there[j], sum[g][j]);
    }
    x += G * L;
  };
  int64_t at = 0;
  for (; at + C <= k; at += C) {
    Chunk chunks[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) chunks[j] = *(const Chunk *)(right[j] + at);
    add_products(chunks);
  }
  if (at < k) {
    Chunk chunks[N] = {};
    for (int j = 0; j < N; ++j) __builtin_memcpy(&chunks[j], right[j] + at, (k - at) * sizeof(T));
    add_products(chunks);
  }
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 16
    for (int j = 0; j < N; j += C) {
      T lines[L] __attribute__((aligned(64)));
      *(V *)lines = chunk_sums<L, C>(sum[g] + j);
#pragma GCC unroll 16
      for (int r = 0; r < CHUNK_ROWS; ++r) {
        Line *const to = (Line *)(tile + (g * CHUNK_ROWS + r) * pitch + j);
        const Line line = *(const Line *)(lines + r * C);
        *to = fresh ? line : *to + line;
      }
    }
}

// L steps of four rows, of which only `rows` and `steps` are there, as chunks `apart` from each other.
template <class T> INLINE void copy_chunks(const T *from, int64_t row, int64_t rows, int64_t steps, T *to, int64_t apart) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  V lines[CHUNK_ROWS] = {};
#pragma GCC unroll 4
  for (int r = 0; r < CHUNK_ROWS; ++r)
    if (r < rows) {
      if (steps >= L) lines[r] = (V)*(const Unaligned *)(from + r * row);
      else __builtin_memcpy(&lines[r], from + r * row, steps * sizeof(T));
    }
  exchange<L / 2>(lines[0], lines[2], typename CountLanes<L>::Type());
  exchange<L / 2>(lines[1], lines[3], typename CountLanes<L>::Type());
  exchange<L / 4>(lines[0], lines[1], typename CountLanes<L>::Type());
  exchange<L / 4>(lines[2], lines[3], typename CountLanes<L>::Type());
#pragma GCC unroll 4
  for (int c = 0; c < CHUNK_ROWS; ++c) *(V *)(to + c * apart) = lines[c];
}

// Columns [first, first + count) of one batch, for at most 4 * G rows.
template <class T, int G> static void chunk_columns(const Product<T> &p, int64_t batch, int64_t first, int64_t count) {
  enum { L = Lane<T>::COUNT, C = CHUNK_BYTES / sizeof(T), N = 4, ROWS = G * CHUNK_ROWS };
  T sums[ROWS * CHUNK_COLUMNS] __attribute__((aligned(64))), x[ROWS * CHUNK_STEPS] __attribute__((aligned(64)));
  const T *const left = p.left.address(p.left.address_context, batch, 0, 0);
  const T *const right = p.right.address(p.right.address_context, batch, first, 0);
  for (int64_t from = 0; from < p.k; from += CHUNK_STEPS) {
    const int64_t steps = min_int(CHUNK_STEPS, p.k - from);
    for (int64_t row = 0; row < ROWS; row += CHUNK_ROWS)
      for (int64_t at = 0; at < steps; at += L) copy_chunks(left + row * p.left.row + from + at, p.left.row, p.m - row, steps - at, x + at * ROWS + row * C, G * L);
    for (int64_t column = 0; column < count; column += N)
      chunk_products<T, G, N>(x, right + column * p.right.row + from, p.right.row, count - column, steps, sums + column, CHUNK_COLUMNS, !from);
  }
  p.finish(p.context, batch, 0, p.m, first, count, sums, CHUNK_COLUMNS);
}
#endif

template <class T> static int32_t dot_matrix_product(const Product<T> &p) {
  const int64_t work = p.batches * p.m * p.n * p.k, threads = work < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
  auto of_columns = dot_columns<T>;
  int64_t most = DOT_COLUMNS, parts_of_thread = 4;
#if defined __AVX512F__
  if (is_for_chunks(p.m)) {
    static constexpr decltype(of_columns) chunked[] = {chunk_columns<T, 4>, chunk_columns<T, 5>, chunk_columns<T, 6>};
    of_columns = chunked[parts(p.m, CHUNK_ROWS) - 4];
    most = CHUNK_COLUMNS, parts_of_thread = 1;  // Each task copies the left factor.
  }
#endif
  const int64_t share = parts(p.n * p.batches, parts_of_thread * threads), width = max_int(DOTS, min_int(most, parts(share, DOTS) * DOTS));
  const int64_t tasks = parts(p.n, width);
  // Threads take the same columns at every call: they may still be in their caches.
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < p.batches * tasks; ++task) {
    const int64_t first = task % tasks * width;
    of_columns(p, task / tasks, first, min_int(width, p.n - first));
  }
  return OK;
}

// Products of one vector are bound by what they read: rows one after the other, as they lie. The processor's own prefetchers run ahead of
// that, but stop at the end of a page: the first lines of the next are asked for when one is begun. To ask for all lines takes longer.
template <class T>
static void dot_line(const VectorProduct<T> &p, int64_t batch, int64_t first, int64_t count, const T *vector, T *sums) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum : int64_t { L = Lane<T>::COUNT, U = 4, PAGE = 4096 / sizeof(T), LINES = 4, DEPTH = U * L * DOT_DEPTH };
  const T *row = p.matrix.address(p.matrix.address_context, batch, first, 0);
  const int64_t together = max_int(1, PAGE / max_int(p.k, 1));  // Rows of a page.
  for (int64_t at = 0; at < count; at += L) {
    V sum[L] = {};
    for (int64_t j = 0; j < min_int(L, count - at); ++j, row += p.matrix.row) {
      for (int64_t from = 0; from < p.k; from += DEPTH) {
        const int64_t end = min_int(p.k, from + DEPTH);
        V part[U] = {};
        int64_t i = from;
        for (int64_t page = from; page < end; page += PAGE) {
          const int64_t stop = min_int(end, page + PAGE);
          if ((at + j) % together == 0) {
            const T *const next = stop < p.k ? row + stop : row + together * p.matrix.row;
            for (int64_t line = 0; line < LINES; ++line) __builtin_prefetch((const char *)next + 64 * line);
          }
          for (; i + U * L <= stop; i += U * L) {
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u)
              part[u] = multiply_add((V)*(const Unaligned *)(vector + i + u * L), (V)*(const Unaligned *)(row + i + u * L), part[u]);
          }
        }
        for (; i < end; i += L) {
          const int64_t bytes = min_int(end - i, L) * (int64_t)sizeof(T);
          V left = {}, right = {};
          __builtin_memcpy(&left, vector + i, bytes);
          __builtin_memcpy(&right, row + i, bytes);
          part[0] = multiply_add(left, right, part[0]);
        }
        sum[j] = add(sum[j], add(add(part[0], part[1]), add(part[2], part[3])));
      }
    }
    T totals[L] __attribute__((aligned(64)));
    *(V *)totals = lane_sums<L>(sum);
    __builtin_memcpy(sums + at, totals, min_int(L, count - at) * sizeof(T));
  }
}
