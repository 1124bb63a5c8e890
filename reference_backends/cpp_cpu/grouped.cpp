// Matrix products of groups of rows. Follows products.h, whose libraries multiply; a GROUPED line makes an entry.

// A factor of which element (free, step) lies at data[free * row + step * apart]; halves are widened as they are packed.
template <class A, class T> struct Lying {
  const T *data;
  int64_t row, apart;
  static const A *address(const void *context, int64_t, int64_t first, int64_t from) {
    const Lying &f = *(const Lying *)context;
    return (const A *)(f.data + first * f.row + from * f.apart);
  }
  static void fill(const void *context, int64_t, int64_t first, int64_t count, int64_t from, int64_t depth, A *to, int64_t pitch) {
    const Lying &f = *(const Lying *)context;
    const bool along = f.apart == 1;
    const T *source = f.data + first * f.row + from * f.apart;
    const int64_t lines = along ? count : depth, length = along ? depth : count;
    const int64_t next = along ? f.row : f.apart, lane = along ? f.apart : f.row;
    for (int64_t line = 0; line < lines; ++line, source += next, to += pitch)
      for (int64_t i = 0; i < length; ++i) to[i] = convert<A>(source[i * lane]);
  }
  Factor<A> factor(int64_t steps) const {
    Factor<A> f = {this, fill, apart == 1};
    if constexpr (sizeof(A) == sizeof(T)) {
      f.fill = nullptr, f.address = address, f.address_context = this;
      f.row = row, f.step = apart, f.stretch = max_int(steps, 1);
    }
    return f;
  }
};

// Where the results of one group begin, in a matrix of `columns` columns.
template <class A, class T> struct Stored {
  T *data;
  int64_t columns;
  static void finish(const void *context, int64_t, int64_t row, int64_t rows, int64_t column, int64_t columns, const A *sums, int64_t pitch) {
    const Stored &r = *(const Stored *)context;
    T *to = r.data + row * r.columns + column;
    for (int64_t i = 0; i < rows; ++i, to += r.columns, sums += pitch)
      for (int64_t j = 0; j < columns; ++j) to[j] = convert<T>(sums[j]);
  }
};

// What a call is given: buffers self, mat2, offs and the result; numbers as named here, strides of mat2 beginning with its groups'.
enum Number {
  WHOLE,  // Whether mat2 is one matrix, and the result has one for each group.
  GROUPS, ROWS, M, N, K,
  SELF_ROW, SELF_COLUMN, SELF_AT,
  MAT2_GROUP, MAT2_ROW, MAT2_COLUMN, MAT2_AT,
  OFFS_STRIDE, OFFS_AT, OFFS_WIDE,
};
INLINE int64_t end_of(const void *offs, const int64_t *n, int64_t group) {
  const int64_t at = n[OFFS_AT] + group * n[OFFS_STRIDE];
  return n[OFFS_WIDE] ? ((const int64_t *)offs)[at] : ((const int32_t *)offs)[at];
}

template <class A, class T> static int32_t product_of_group(void *const *buffers, const int64_t *n, int64_t group, int64_t start, int64_t end, Spare spare) {
  const T *self = (const T *)buffers[0] + n[SELF_AT], *mat2 = (const T *)buffers[1] + n[MAT2_AT];
  T *out = (T *)buffers[3];
  Lying<A, T> left, right;
  Stored<A, T> result;
  FewRowsProduct<A> p = {};
  p.batches = 1, p.n = n[N], p.spare = spare;
  if (n[WHOLE]) {
    p.m = n[M], p.k = end - start;
    left = {self + start * n[SELF_COLUMN], n[SELF_ROW], n[SELF_COLUMN]};
    right = {mat2 + start * n[MAT2_ROW], n[MAT2_COLUMN], n[MAT2_ROW]};
    result = {out + group * n[M] * n[N], n[N]};
  } else {
    p.m = end - start, p.k = n[K];
    left = {self + start * n[SELF_ROW], n[SELF_ROW], n[SELF_COLUMN]};
    right = {mat2 + group * n[MAT2_GROUP], n[MAT2_COLUMN], n[MAT2_ROW]};
    result = {out + start * n[N], n[N]};
  }
  p.left = left.factor(p.k), p.right = right.factor(p.k);
  p.context = &result, p.finish = Stored<A, T>::finish;
  return matrix_product(p);
}

// Products of a group that one thread may take alone.
enum : int64_t { ALONE = 1 << 22, WORTH_THREADS = 1 << 17 };

template <class A, class T> static int32_t grouped(void *const *buffers, const int64_t *n, Spare spare) {
  const void *offs = buffers[2];
  const int64_t groups = n[GROUPS], rows = n[ROWS];
  int64_t last = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t end = end_of(offs, n, group);
    if (end < last || end > rows) return INDEX_OUT_OF_RANGE;
    last = end;
  }
  int32_t status = OK;
  const int64_t work = (n[WHOLE] ? n[M] : n[K]) * n[N] * last;
  if (groups >= 2 * omp_get_max_threads() && work < ALONE * groups && work >= WORTH_THREADS) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t group = 0; group < groups; ++group)
      if (const int32_t failed = product_of_group<A, T>(buffers, n, group, group ? end_of(offs, n, group - 1) : 0, end_of(offs, n, group), {})) {
#pragma omp atomic write
        status = failed;
      }
  } else {
    for (int64_t group = 0; group < groups; ++group)
      if (const int32_t failed = product_of_group<A, T>(buffers, n, group, group ? end_of(offs, n, group - 1) : 0, end_of(offs, n, group), spare)) status = failed;
  }
  if (!n[WHOLE]) __builtin_memset((T *)buffers[3] + last * n[N], 0, (rows - last) * n[N] * sizeof(T));
  return status;
}
#define GROUPED(A, T, name) extern "C" int32_t grouped_mm_##name(void *const *buffers, const int64_t *numbers, Spare spare) { return grouped<A, T>(buffers, numbers, spare); }
