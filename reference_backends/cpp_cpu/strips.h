// Triangular systems. Follows gemm.h, whose tiles multiply.
//
// Right-hand sides are taken in strips as wide as a tile, each packed as the products pack their right factor: a few rows of a strip
// lose the matrix times the rows that are solved already, in one tile, and the triangle on the diagonal is solved for all columns of
// the strip at once. Rows that are solved are kept with the other sign, so that tiles add. An upper triangle is a lower one that is
// counted from its end. Too few right-hand sides for that are solved one by one, in vectors along the matrix.

// Element (i, j) of a matrix is data[i * row + j * column].
template <class T> struct Lying {
  T *data;
  int64_t row, column;
  Lying at(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
  Lying turned() const { return {data, column, row}; }
};

// Copies a matrix into other strides, where either's rows or columns lie together in vectors.
template <bool NEGATED, class T>
static __attribute__((noinline)) void copy_matrix(Lying<const T> from, Lying<T> to, int64_t rows, int64_t columns) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  if (to.column != 1 && to.row == 1) {
    from = from.turned(), to = to.turned();
    const int64_t count = rows;
    rows = columns, columns = count;
  }
  const auto one_by_one = [&](int64_t i, int64_t first) INLINE_LAMBDA {
    for (int64_t j = first; j < columns; ++j) {
      const T value = *from.at(i, j).data;
      *to.at(i, j).data = NEGATED ? -value : value;
    }
  };
  int64_t i = 0;
  if (from.column == 1 && to.column == 1) {
    for (; i < rows; ++i) {
      const T *source = from.data + i * from.row;
      T *target = to.data + i * to.row;
      int64_t j = 0;
      for (; j + L <= columns; j += L) {
        const V value = *(const Unaligned *)(source + j);
        *(Unaligned *)(target + j) = NEGATED ? -value : value;
      }
      one_by_one(i, j);
    }
  } else if (from.row == 1 && to.column == 1) {
    for (; i + L <= rows; i += L) {
      int64_t j = 0;
      for (; j + L <= columns; j += L) {
        V block[L];
#pragma GCC unroll 64
        for (int r = 0; r < L; ++r) block[r] = *(const Unaligned *)(from.data + i + (j + r) * from.column);
        exchange_rows<L / 2, L>(block);
#pragma GCC unroll 64
        for (int r = 0; r < L; ++r) *(Unaligned *)(to.data + (i + r) * to.row + j) = NEGATED ? -block[r] : block[r];
      }
      for (int r = 0; r < L; ++r) one_by_one(i + r, j);
    }
  }
  for (; i < rows; ++i) one_by_one(i, 0);
}
template <class T> INLINE Lying<const T> read(const Lying<T> &matrix) { return {matrix.data, matrix.row, matrix.column}; }

// A lower triangle, whose element (i, j) is data[i * row + j * step]. Steps of an upper one are negative.
template <class T> struct Triangle {
  const T *data;
  int64_t row, step, n;
  bool unit;  // Whether its diagonal is not read, but taken for ones.
};

// `R` rows of a strip, from which what the rows before have to do with them is taken already.
template <class T, int R> static void solve_few_rows(const T *a, int64_t row, int64_t step, bool unit, T *x, int64_t pitch, int64_t vectors) {
  typedef typename Lane<T>::Vector V;
  for (int64_t j = 0; j < vectors; ++j, x += Lane<T>::COUNT) {
    V solved[R];
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) {
      V sum = *(const V *)(x + i * pitch);
#pragma GCC unroll 32
      for (int k = 0; k < i; ++k) sum = multiply_add<V>(a[i * row + k * step] - V{}, solved[k], sum);
      if (!unit) sum = sum / (a[i * (row + step)] - V{});
      *(V *)(x + i * pitch) = solved[i] = -sum;
    }
  }
}
template <class T> struct FewRows {
  typedef void (*Solve)(const T *, int64_t, int64_t, bool, T *, int64_t, int64_t);
  Solve of[TILE_ROWS];
  template <int... I> constexpr explicit FewRows(Lanes<I...>) : of{solve_few_rows<T, I + 1>...} {}
};

// x becomes -X with A X = x, for a strip of so many vectors whose rows are `pitch` apart. `tiles` are chosen for results of the
// strip's shape.
template <class T> static void solve_strip(const Triangle<T> &a, T *x, int64_t pitch, int64_t vectors, const Product<T> &tiles) {
  static constexpr FewRows<T> few(typename CountLanes<TILE_ROWS>::Type{});
  const int64_t rows = tiles.rows, block = max_int(DEPTH / rows, 1) * rows;
  const bool slim = vectors < TILE_VECTORS;
  const auto subtract = [&](int64_t row, int64_t from, int64_t depth) INLINE_LAMBDA {
    const auto run = row + rows < a.n ? (slim ? tiles.slim : tiles.wide) : (slim ? tiles.last_slim : tiles.last_wide);
    run({a.data + row * a.row + from * a.step, a.row, a.step, min_int(rows, a.n - row)}, x + from * pitch, pitch, depth, x + row * pitch, pitch, false);
  };
  for (int64_t start = 0, end; start < a.n; start = end) {
    end = min_int(start + block, a.n);
    for (int64_t row = start; row < end; row += rows) {
      if (row > start) subtract(row, start, row - start);
      few.of[min_int(rows, a.n - row) - 1](a.data + row * (a.row + a.step), a.row, a.step, a.unit, x + row * pitch, pitch, vectors);
    }
    for (int64_t row = end; row < a.n; row += rows) subtract(row, start, end - start);
  }
}

// Which triangle of a square matrix, and whether its diagonal is ones.
struct Half {
  bool upper, unit;
};
template <class T> static void solve_half(const Lying<const T> &a, const Half &half, int64_t n, T *x, int64_t pitch, int64_t vectors, const Product<T> &tiles) {
  if (half.upper) solve_strip<T>({a.at(n - 1, n - 1).data, -a.row, -a.column, n, half.unit}, x + (n - 1) * pitch, -pitch, vectors, tiles);
  else solve_strip<T>({a.data, a.row, a.column, n, half.unit}, x, pitch, vectors, tiles);
}

// x becomes X with A X = x for one right-hand side, whose elements lie together, a vector's lanes of rows at a time. Rows or columns of the
// matrix lie together. Blocks are counted from the end of an upper triangle, so that all but the last one are whole.
template <class T> static void solve_vector(const Lying<const T> &a, const Half &half, int64_t n, T *x) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  T square[L * L] __attribute__((aligned(64))), line[L] __attribute__((aligned(64)));
  for (int64_t done = 0; done < n; done += L) {
    const int64_t count = min_int(L, n - done), first = half.upper ? n - done - count : done, solved = half.upper ? n - done : 0;
    const bool along = a.column == 1;
    V sum[L] = {};
    if (along) {
      for (int64_t j = 0; j < done; j += L) {
        const V right = *(const Unaligned *)(x + solved + j);
        const T *source = a.at(first, solved + j).data;
        if (count == L) {
#pragma GCC unroll 64
          for (int r = 0; r < L; ++r) sum[r] = multiply_add<V>(*(const Unaligned *)(source + r * a.row), right, sum[r]);
        } else {
          for (int r = 0; r < count; ++r) sum[r] = multiply_add<V>(*(const Unaligned *)(source + r * a.row), right, sum[r]);
        }
      }
      if (done) exchange_rows<L / 2, L>(sum);
    } else if (count == L) {
      for (int64_t j = 0; j < done; j += L) {
        const T *source = a.at(first, solved + j).data;
#pragma GCC unroll 64
        for (int r = 0; r < L; ++r) sum[r] = multiply_add<V>(*(const Unaligned *)(source + r * a.column), x[solved + j + r] - V{}, sum[r]);
      }
    } else {
      for (int64_t j = 0; j < done; ++j)
        for (int64_t i = 0; i < count; ++i) sum[0][i] += *a.at(first + i, solved + j).data * x[solved + j];
    }
    if (done)
#pragma GCC unroll 64
      for (int step = L / 2; step > 0; step /= 2)
#pragma GCC unroll 64
        for (int r = 0; r < step; ++r) sum[r] += sum[r + step];
    if (count < L) __builtin_memset(square, 0, sizeof square);
    copy_matrix<false, T>(a.at(first, first), {square, 1, L}, count, count);
    for (int64_t i = 0; i < L; ++i) line[i] = i < count ? x[first + i] : 0;
    V rest = *(const V *)line - sum[0];
    for (int64_t step = 0; step < count; ++step) {
      const int64_t k = half.upper ? count - 1 - step : step;
      *(V *)line = rest;
      const T value = half.unit ? line[k] : line[k] / square[k * L + k];
      x[first + k] = value;
      rest = multiply_add<V>(*(const V *)(square + k * L), -value - V{}, rest);
    }
  }
}

// Sizes of the dimensions of a batch.
struct Batch {
  const int64_t *sizes;
  int64_t rank, count;
  Batch(const int64_t *&numbers) : rank(*numbers++) {
    sizes = numbers, numbers += rank, count = 1;
    for (int64_t d = 0; d < rank; ++d) count *= sizes[d];
  }
};
// A matrix for each element of a batch: `strides` are those of the batch's dimensions.
template <class T> struct Matrices {
  T *data;
  const int64_t *strides;
  int64_t row, column;
  Matrices(void *buffer, const Batch &batch, const int64_t *&numbers) : strides(numbers) {
    numbers += batch.rank;
    row = *numbers++, column = *numbers++, data = (T *)buffer + *numbers++;
  }
  Lying<T> of(const Batch &batch, int64_t number) const {
    int64_t offset = 0;
    for (int64_t d = batch.rank - 1; d >= 0; --d) offset += number % batch.sizes[d] * strides[d], number /= batch.sizes[d];
    return {data + offset, row, column};
  }
};

// Systems of a batch: each is solved for one triangle of its matrix after the other.
template <class T> struct Systems {
  enum : int64_t { L = Lane<T>::COUNT, WIDTH = L * TILE_VECTORS, FEW = L / 4 };
  const Batch &batch;
  int64_t n, m;  // Rows, and right-hand sides.
  Matrices<const T> matrix, given;
  Matrices<T> result;
  Half halves[2];
  int count;  // Of halves.
  // Rows that were exchanged, each with one that `exchange` names, before the triangles are met, or after them, in reverse.
  const Matrices<const int32_t> *exchange;
  bool reverse;
  Product<T> tiles;
  int64_t width;

  bool few() const { return m <= FEW; }
  // Whether the matrix is read where it lies.
  bool direct() const { return matrix.column == 1 || (few() && matrix.row == 1); }
  int64_t copy_count() const { return direct() ? 0 : parts(n * n, L) * L; }
  int64_t strip_count() const { return few() ? parts(n, L) * L : n * width; }
  void choose(int64_t threads) {
    const int64_t all = parts(m, L) * L, share = parts(parts(m, threads), L) * L;
    width = few() ? 1 : min_int(WIDTH, batch.count >= threads ? all : share);
    tiles = {}, tiles.m = n;
    if (!few()) choose_tiles(tiles, width < WIDTH ? width : m);
  }
  Lying<const T> matrix_of(int64_t number, T *copy) const {
    const auto there = matrix.of(batch, number);
    return direct() ? there : Lying<const T>{copy, n, 1};
  }
  void copy_rows(int64_t number, int64_t first, int64_t rows, T *copy) const {
    copy_matrix<false, T>(matrix.of(batch, number).at(first, 0), {copy + first * n, n, 1}, rows, n);
  }
  int64_t tasks() const { return few() ? 1 : parts(m, width); }

  void swap_rows(int64_t number, T *x, int64_t pitch, int64_t columns) const {
    const auto rows = exchange->of(batch, number);
    for (int64_t step = 0; step < n; ++step) {
      const int64_t k = reverse ? n - 1 - step : step, other = rows.data[k * rows.column] - 1;
      if (other != k)
        for (int64_t j = 0; j < columns; ++j) {
          const T value = x[k * pitch + j];
          x[k * pitch + j] = x[other * pitch + j], x[other * pitch + j] = value;
        }
    }
  }

  // The right-hand sides of one task.
  void solve(int64_t number, int64_t task, const Lying<const T> &a, T *x) const {
    const auto from = given.of(batch, number);
    const auto to = result.of(batch, number);
    if (few()) {
      for (int64_t j = 0; j < m; ++j) {
        copy_matrix<false, T>(from.at(0, j), {x, 1, 1}, n, 1);
        if (exchange && !reverse) swap_rows(number, x, 1, 1);
        for (int h = 0; h < count; ++h) solve_vector(a, halves[h], n, x);
        if (exchange && reverse) swap_rows(number, x, 1, 1);
        copy_matrix<false, T>({x, 1, 1}, to.at(0, j), n, 1);
      }
      return;
    }
    const int64_t first = task * width, columns = min_int(width, m - first), vectors = width < WIDTH ? width / L : parts(columns, L), pitch = vectors * L;
    if (columns < pitch) __builtin_memset(x, 0, n * pitch * sizeof(T));
    copy_matrix<false, T>(from.at(0, first), {x, pitch, 1}, n, columns);
    if (exchange && !reverse) swap_rows(number, x, pitch, columns);
    for (int h = 0; h < count; ++h) solve_half(a, halves[h], n, x, pitch, vectors, tiles);
    if (exchange && reverse) swap_rows(number, x, pitch, columns);
    if (count % 2) copy_matrix<true, T>({x, pitch, 1}, to.at(0, first), n, columns);
    else copy_matrix<false, T>({x, pitch, 1}, to.at(0, first), n, columns);
  }

  int32_t run(Spare spare) {
    if (batch.count <= 0 || n <= 0 || m <= 0) return OK;
    const int64_t threads = batch.count * n * n * m < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
    choose(threads);
    const bool whole = batch.count >= threads;  // Each thread takes whole elements of the batch.
    const int64_t copies = whole ? threads : 1, strip = strip_count(), copied = copy_count();
    const Memory memory(spare, (copies * copied + threads * strip) * (int64_t)sizeof(T));
    if (!memory.data) return OUT_OF_MEMORY;
    T *const copy = (T *)memory.data, *const strips = copy + copies * copied;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      const int64_t thread = threads > 1 ? omp_get_thread_num() : 0;
      T *const own = strips + thread * strip;
      if (whole) {
        T *const here = copy + thread * copied;
#pragma omp for schedule(static)
        for (int64_t number = 0; number < batch.count; ++number) {
          if (copied) copy_rows(number, 0, n, here);
          for (int64_t task = 0; task < tasks(); ++task) solve(number, task, matrix_of(number, here), own);
        }
      } else {
        enum : int64_t { ROWS = 64 };
        for (int64_t number = 0; number < batch.count; ++number) {
#pragma omp for schedule(static)
          for (int64_t first = 0; first < (copied ? n : 0); first += ROWS) copy_rows(number, first, min_int(ROWS, n - first), copy);
#pragma omp for schedule(dynamic)
          for (int64_t task = 0; task < tasks(); ++task) solve(number, task, matrix_of(number, copy), own);
        }
      }
    }
    return OK;
  }
};
