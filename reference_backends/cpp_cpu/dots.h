// Matrix products of few rows where both factors lie along the sum. Follows gemm.h, which says what a product is.
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
  for (int i = 0; i < min_int(rows, M); ++i)
    for (int j = 0; j < min_int(columns, N); ++j) {
      T dot = dots[(i * N + j) * U];
      for (int u = 1; u < U; ++u) dot = add(dot, dots[(i * N + j) * U + u]);
      tile[i * pitch + j] = fresh ? dot : add(tile[i * pitch + j], dot);
    }
}

enum : int64_t {
  FEW_ROWS = 24,
  DOT_BYTES = 1 << 19,  // Of rows that are read again and again.
  DOT_DEPTH = 256,      // Terms of a lane that are summed before they are added to those before them.
  DOT_COLUMNS = 64,     // That one task computes.
};

// Whether this is faster than packing either factor: from 32 rows on, which fill vectors, it is not (on a Xeon with AMX). Measured on
// Zen 4: lanes are added in the time of 16 rows' products with as many steps, and the rows must stay in the second cache.
template <class T> static bool is_for_dots(const Product<T> &p) {
  const int64_t steps = min_int(p.k, DOT_DEPTH * Lane<T>::COUNT);
  return p.m <= FEW_ROWS && p.n >= DOTS && p.k >= max_int(128, 16 * p.m) && p.m * steps * (int64_t)sizeof(T) <= DOT_BYTES &&
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

template <class T> static int32_t dot_matrix_product(const Product<T> &p) {
  const int64_t work = p.batches * p.m * p.n * p.k, threads = work < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
  const int64_t share = parts(p.n * p.batches, 4 * threads), width = max_int(DOTS, min_int(DOT_COLUMNS, parts(share, DOTS) * DOTS));
  const int64_t tasks = parts(p.n, width);
  // Threads take the same columns at every call: they may still be in their caches.
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < p.batches * tasks; ++task) {
    const int64_t first = task % tasks * width;
    dot_columns(p, task / tasks, first, min_int(width, p.n - first));
  }
  return OK;
}

// Products of one vector are bound by what they read: rows one after the other, as they lie, and ahead of the processor's own prefetchers,
// which stop at the end of a page.
template <class T>
static void dot_line(const VectorProduct<T> &p, int64_t batch, int64_t first, int64_t count, const T *vector, T *sums) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum : int64_t { L = Lane<T>::COUNT, U = 4, AHEAD = 2048 / sizeof(T), DEPTH = U * L * DOT_DEPTH };
  const T *row = p.matrix.address(p.matrix.address_context, batch, first, 0);
  // What follows a row is the next one, or else nothing that is read soon.
  const int64_t ahead = p.matrix.row == p.k ? AHEAD : 0;
  for (int64_t at = 0; at < count; at += L) {
    V sum[L] = {};
    for (int64_t j = 0; j < min_int(L, count - at); ++j, row += p.matrix.row) {
      for (int64_t from = 0; from < p.k; from += DEPTH) {
        const int64_t end = min_int(p.k, from + DEPTH);
        V part[U] = {};
        int64_t i = from;
        for (; i + U * L <= end; i += U * L) {
#pragma GCC unroll 4
          for (int u = 0; u < U; ++u) {
            __builtin_prefetch(row + i + u * L + ahead);
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
