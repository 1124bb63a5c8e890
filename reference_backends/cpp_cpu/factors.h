// Triangular factors of matrices: L U with rows exchanged, and Cholesky's. Follows strips.h.
//
// Both halve the columns: the left half is factored, strips of what stands beside it are solved for its triangle, the rest loses their
// product, and the right half is next. So nearly all is products of tiles, whatever the size. Blocks of as many columns as a vector has
// lanes are factored in vectors. The matrix is a copy whose rows begin and end with whole vectors; what is in the last ones beyond the
// columns is never read.

// Numbers as wide as an element.
template <class T> struct LaneIndex { typedef int32_t Type; };
template <> struct LaneIndex<double> { typedef int64_t Type; };

template <class T> struct Elimination {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  typedef typename LaneIndex<T>::Type Place;
  enum : int64_t { L = Lane<T>::COUNT, WIDTH = L * TILE_VECTORS };
  int64_t m, n;
  bool symmetric, team;
  int64_t pitch;
  T *a, *strips, *panel;
  int32_t *pivots;  // Of an LU factorization, from 1.
  int32_t info;     // Position of the first pivot that is zero, or not positive, from 1, or 0.

  Elimination(int64_t rows, int64_t columns, bool of_cholesky, bool with_team) : m(rows), n(columns), symmetric(of_cholesky), team(with_team) {
    pitch = parts(n, L) * L;
    if (pitch * (int64_t)sizeof(T) % 1024 == 0) pitch += L;  // Rows that follow each other are not in the same sets of a cache.
  }
  int64_t rank() const { return min_int(m, n); }
  static int64_t half(int64_t columns) { return parts(parts(columns, 2), L) * L; }
  int64_t panel_pitch() const { return parts(m, L) * L; }
  int64_t strips_count() const {
    const int64_t inside = half(rank()), beside = n - rank();
    return max_int(rank() > L ? inside * parts(rank() - inside, WIDTH) * WIDTH : 0, rank() * parts(beside, WIDTH) * WIDTH);
  }
  int64_t panel_count() const { return L * (symmetric ? L : panel_pitch()); }
  int64_t bytes() const { return parts((m * pitch + strips_count() + panel_count()) * (int64_t)sizeof(T), 64) * 64; }
  void use(char *memory) { a = (T *)memory, strips = a + m * pitch, panel = strips + strips_count(); }
  T *at(int64_t i, int64_t j) const { return a + i * pitch + j; }

  // Columns [begin, middle) are factored. Those until `end` (in Cholesky's: the rows) are solved for their triangle, and their
  // product is taken from what remains.
  void update(int64_t begin, int64_t middle, int64_t end) {
    const int64_t depth = middle - begin, columns = end - middle, last = symmetric ? end : m, rows = last - middle;
    if (columns <= 0) return;
    Product<T> solving = {}, rest = {};
    solving.m = depth, rest.m = rows;
    choose_tiles(solving, columns);
    choose_tiles(rest, columns);
    const int64_t threads = !team || depth * columns * (depth + rows) < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
    const int64_t count = parts(columns, WIDTH), panels = parts(rows, rest.rows), groups = threads > 1 ? min_int(max_int(panels, 1), parts(2 * threads, count)) : 1;
    const auto vectors_of = [&](int64_t strip) INLINE_LAMBDA { return parts(min_int(WIDTH, columns - strip * WIDTH), L); };
    const auto solve = [&](int64_t strip) {
      const int64_t first = middle + strip * WIDTH, there = min_int(WIDTH, end - first), vectors = vectors_of(strip), width = vectors * L;
      const Lying<T> part = symmetric ? Lying<T>{at(first, begin), 1, pitch} : Lying<T>{at(begin, first), pitch, 1};
      T *const x = strips + strip * WIDTH * depth;
      if (there < width) __builtin_memset(x, 0, depth * width * sizeof(T));
      copy_matrix<false, T>(read(part), {x, width, 1}, depth, there);
      solve_strip<T>({at(begin, begin), pitch, 1, depth, !symmetric}, x, width, vectors, solving);
      copy_matrix<true, T>({x, width, 1}, part, depth, there);
    };
    const auto subtract = [&](int64_t task) {
      const int64_t strip = task / groups, vectors = vectors_of(strip), width = vectors * L;
      // Above the diagonal nothing is wanted.
      const int64_t top = symmetric ? strip * WIDTH / rest.rows : 0, share = parts(panels - top, groups), from = top + task % groups * share;
      const bool slim = vectors < TILE_VECTORS;
      for (int64_t start = 0; start < depth; start += DEPTH)
        for (int64_t each = from; each < min_int(from + share, panels); ++each) {
          const int64_t row = middle + each * rest.rows;
          const auto run = each + 1 < panels ? (slim ? rest.slim : rest.wide) : (slim ? rest.last_slim : rest.last_wide);
          run({at(row, begin + start), pitch, 1, min_int(rest.rows, last - row)}, strips + strip * WIDTH * depth + start * width, width, min_int(DEPTH, depth - start), at(row, middle + strip * WIDTH), pitch, false);
        }
    };
    const int64_t tasks = rows > 0 ? count * groups : 0;
    if (threads == 1) {  // Small ones take no longer than a region of one thread.
      for (int64_t strip = 0; strip < count; ++strip) solve(strip);
      for (int64_t task = 0; task < tasks; ++task) subtract(task);
      return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
      for (int64_t strip = 0; strip < count; ++strip) solve(strip);
#pragma omp for schedule(dynamic)
      for (int64_t task = 0; task < tasks; ++task) subtract(task);
    }
  }

  // Cholesky's factor of columns [begin, end), of the rows among them; whether there is one.
  bool cholesky(int64_t begin, int64_t end) {
    if (end - begin <= L) return cholesky_block(begin, (int)(end - begin));
    const int64_t middle = begin + half(end - begin);
    if (!cholesky(begin, middle)) return false;
    update(begin, middle, end);
    return cholesky(middle, end);
  }
  bool cholesky_block(int64_t begin, int count) {
    V rows[L];
    for (int i = 0; i < L; ++i) rows[i] = i < count ? *(const V *)at(begin + i, begin) : V{};
    // Columns of the lower triangle, which are worked on as rows of the upper one.
    exchange_rows<L / 2, L>(rows);
    T *const u = panel;
    for (int i = 0; i < L; ++i) *(V *)(u + i * L) = rows[i];
    for (int k = 0; k < count && !info; ++k) {
      T *const row = u + k * L;
      const T pivot = row[k];
      if (!(pivot > 0)) {
        info = (int32_t)(begin + k + 1);
        break;
      }
      const T root = op_sqrt(pivot);
      V scaled = *(const V *)row / (root - V{});
      *(V *)row = scaled;
      row[k] = root;
      for (int i = k + 1; i < count; ++i) *(V *)(u + i * L) = multiply_add<V>(-row[i] - V{}, scaled, *(const V *)(u + i * L));
    }
    for (int i = 0; i < L; ++i) rows[i] = *(const V *)(u + i * L);
    exchange_rows<L / 2, L>(rows);
    for (int i = 0; i < count; ++i) *(V *)at(begin + i, begin) = rows[i];
    return !info;
  }

  // L and U of columns [begin, end), of the rows from `begin` on.
  void lu(int64_t begin, int64_t end) {
    if (end - begin <= L) {
      lu_block(begin, end - begin);
      return;
    }
    const int64_t middle = begin + half(end - begin);
    lu(begin, middle);
    exchange(begin, middle, middle, end);
    update(begin, middle, end);
    lu(middle, end);
    exchange(middle, end, begin, middle);
  }
  // What pivots [begin, end) exchange, of columns [first, last).
  void exchange(int64_t begin, int64_t end, int64_t first, int64_t last) const {
    for (int64_t k = begin; k < end; ++k) {
      if (pivots[k] - 1 == k) continue;
      T *one = at(k, 0), *other = at(pivots[k] - 1, 0);
      int64_t j = first;
      for (; j + L <= last; j += L) {
        const V value = *(const Unaligned *)(one + j);
        *(Unaligned *)(one + j) = *(const Unaligned *)(other + j);
        *(Unaligned *)(other + j) = value;
      }
      for (; j < last; ++j) {
        const T value = one[j];
        one[j] = other[j], other[j] = value;
      }
    }
  }
  // Its columns lie together meanwhile, so that vectors are whole however few they are.
  void lu_block(int64_t begin, int64_t columns) {
    typedef decltype(V{} < V{}) Numbers;
    const int64_t rows = m - begin, apart = parts(rows, L) * L;
    Numbers lane;
    for (int l = 0; l < L; ++l) lane[l] = l;
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = rows; i < apart; ++i) panel[j * apart + i] = 0;
    copy_matrix<false, T>({at(begin, begin), pitch, 1}, {panel, 1, apart}, rows, columns);
    for (int64_t k = 0; k < columns; ++k) {
      T *const column = panel + k * apart;
      // The first of the largest; NaN is never larger.
      V largest = (T)-1 - V{};
      Numbers places = {};
      for (int64_t i = 0; i < apart; i += L) {
        const V value = *(const V *)(column + i);
        const V size = value < 0 ? -value : value;
        const Numbers place = lane + (Place)i;
        const Numbers better = i ? size > largest : (size > largest) & (lane >= (Place)k);
        largest = better ? size : largest;
        places = better ? place : places;
      }
      int64_t best = k;
      T most = (T)-1;
      for (int l = 0; l < L; ++l)
        if (largest[l] > most || (largest[l] == most && most >= 0 && places[l] < best)) most = largest[l], best = places[l];
      if (column[k] != column[k]) best = k;
      pivots[begin + k] = (int32_t)(begin + best + 1);
      T factors[L];
      for (int64_t j = 0; j < columns; ++j) {
        T *const other = panel + j * apart;
        const T value = other[best];
        if (best != k) other[best] = other[k], other[k] = value;
        factors[j] = -value;
      }
      const T pivot = column[k];
      if (pivot == 0) {
        if (!info) info = (int32_t)(begin + k + 1);
        continue;
      }
      for (int64_t i = 0; i < apart; i += L) {
        const V value = *(const V *)(column + i);
        V quotient = value / (pivot - V{});
        if (i) *(V *)(column + i) = quotient;
        else {
          const Numbers below = lane > (Place)k;
          *(V *)(column + i) = below ? quotient : value;
          quotient = below ? quotient : V{};
        }
        for (int64_t j = k + 1; j < columns; ++j) {
          V *const to = (V *)(panel + j * apart + i);
          *to = multiply_add<V>(factors[j] - V{}, quotient, *to);
        }
      }
    }
    copy_matrix<false, T>({panel, 1, apart}, {at(begin, begin), pitch, 1}, rows, columns);
  }
};
