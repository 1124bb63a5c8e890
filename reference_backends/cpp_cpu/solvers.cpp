// What launches call of strips.h and factors.h, for one element type. Follows factors.h.
//
// Numbers are the sizes of a batch (how many dimensions, and each), sizes and options as read below, and for each operand of any
// strides: those of the batch's dimensions, of rows and of columns, and where it begins.

// One matrix of a batch after the other, or several at a time; `work(elimination, number)` does one.
template <class T, class F> static int32_t eliminate(const Batch &batch, int64_t m, int64_t n, bool symmetric, Spare spare, const F &work) {
  const int64_t most = batch.count * m * n * min_int(m, n) < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
  const int64_t threads = batch.count >= most ? most : 1;
  Elimination<T> shape(m, n, symmetric, threads < most);
  const Memory memory(spare, threads * shape.bytes());
  if (!memory.data) return OUT_OF_MEMORY;
#pragma omp parallel firstprivate(shape) num_threads(threads) if (threads > 1)
  {
    shape.use(memory.data + (threads > 1 ? omp_get_thread_num() : 0) * shape.bytes());
#pragma omp for schedule(static)
    for (int64_t number = 0; number < batch.count; ++number) {
      shape.info = 0;
      work(shape, number);
    }
  }
  return OK;
}

template <class T> static int32_t cholesky(void *const *buffers, const int64_t *numbers, Spare spare) {
  const Batch batch(numbers);
  const int64_t n = *numbers++;
  const Matrices<const T> given(buffers[0], batch, numbers);
  const Matrices<T> result(buffers[1], batch, numbers);
  int32_t *const info = (int32_t *)buffers[2];
  return eliminate<T>(batch, n, n, true, spare, [&](Elimination<T> &e, int64_t number) {
    copy_matrix<false, T>(given.of(batch, number), {e.a, e.pitch, 1}, n, n);
    if (n) e.cholesky(0, n);
    for (int64_t i = 0; i < n; ++i) __builtin_memset(e.at(i, i + 1), 0, (n - i - 1) * sizeof(T));
    copy_matrix<false, T>({e.a, e.pitch, 1}, result.of(batch, number), n, n);
    info[number] = e.info;
  });
}

template <class T> static int32_t lu_factor(void *const *buffers, const int64_t *numbers, Spare spare) {
  const Batch batch(numbers);
  const int64_t m = *numbers++, n = *numbers++, rank = min_int(m, n);
  const Matrices<const T> given(buffers[0], batch, numbers);
  T *const factors = (T *)buffers[1];
  int32_t *const pivots = (int32_t *)buffers[2], *const info = (int32_t *)buffers[3];
  return eliminate<T>(batch, m, n, false, spare, [&](Elimination<T> &e, int64_t number) {
    copy_matrix<false, T>(given.of(batch, number), {e.a, e.pitch, 1}, m, n);
    e.pivots = pivots + number * rank;
    if (rank) {
      e.lu(0, rank);
      e.exchange(0, rank, rank, n);
      e.update(0, rank, n);
    }
    copy_matrix<false, T>({e.a, e.pitch, 1}, {factors + number * m * n, n, 1}, m, n);
    info[number] = e.info;
  });
}

template <class T> static int32_t solve_triangular(void *const *buffers, const int64_t *numbers, Spare spare) {
  const Batch batch(numbers);
  const int64_t n = *numbers++, m = *numbers++;
  const bool upper = *numbers++, unit = *numbers++;
  const Matrices<const T> matrix(buffers[0], batch, numbers), given(buffers[1], batch, numbers);
  const Matrices<T> result(buffers[2], batch, numbers);
  Systems<T> systems = {batch, n, m, matrix, given, result, {{upper, unit}}, 1};
  return systems.run(spare);
}

// From A = P L U, or for A's transpose.
template <class T> static int32_t lu_solve(void *const *buffers, const int64_t *numbers, Spare spare) {
  const Batch batch(numbers);
  const int64_t n = *numbers++, m = *numbers++;
  const bool adjoint = *numbers++;
  Matrices<const T> matrix(buffers[0], batch, numbers);
  const Matrices<const int32_t> pivots(buffers[1], batch, numbers);
  const Matrices<const T> given(buffers[2], batch, numbers);
  const Matrices<T> result(buffers[3], batch, numbers);
  for (int64_t number = 0; number < batch.count; ++number) {
    const auto rows = pivots.of(batch, number);
    for (int64_t k = 0; k < n; ++k)
      if (rows.data[k * rows.column] < 1 || rows.data[k * rows.column] > n) return PIVOT_OUT_OF_RANGE;
  }
  if (adjoint) {
    const int64_t row = matrix.row;
    matrix.row = matrix.column, matrix.column = row;
  }
  // L comes first, or U's transpose; each is the lower triangle then.
  Systems<T> systems = {batch, n, m, matrix, given, result, {{false, !adjoint}, {true, adjoint}}, 2, &pivots, adjoint};
  return systems.run(spare);
}

#define ENTRY_OF(function, name) \
  extern "C" __attribute__((visibility("default"))) int32_t function##_##name(void *const *buffers, const int64_t *numbers, Spare spare) { return function<TYPE>(buffers, numbers, spare); }
#define ENTRY(function, name) ENTRY_OF(function, name)
ENTRY(cholesky, NAME)
ENTRY(lu_factor, NAME)
ENTRY(solve_triangular, NAME)
ENTRY(lu_solve, NAME)
