// Matrix products: the packed, blocked loops around a microkernel that keeps a tile of the result in registers. Follows
// products.h.
//
// The left factor is read where it lies when it is a tensor along its rows or along the sum; a factor that is computed is packed in
// panels, shared by all threads. Each thread takes spans of columns, packs a block of the right factor that fits its first cache
// levels, and runs it against all panels of the left one. A span has several tiles side by side where tiles are narrow: some rows of the
// left factor then meet one tile's columns after the other while they are in the second cache. Where the right factor has more columns
// than the left one has rows and is summed along memory, which packing would transpose, the product's transpose is computed: the left
// factor is packed, and the right one read where it lies. What a thread packs and sums is on its stack. Every element of the result is
// summed in one order, whatever the number of threads.

// A tile's sums, the vectors that they are made of and an element of the left factor are all in registers: what is spilled is
// loaded and stored at every step. A block of the right factor, of BLOCK_STEPS steps of the sum, takes at most a third of the
// second cache: the fewer blocks, the seldomer a tile's sums are written and read again.
#if defined __AVX512F__
enum { VECTOR_BYTES = 64, TILE_ROWS = 6, TILE_VECTORS = 4, BLOCK_STEPS = 768 };
#elif defined __AVX2__ && defined __FMA__
enum { VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_VECTORS = 2, BLOCK_STEPS = 512 };
#else
enum { VECTOR_BYTES = 16, TILE_ROWS = 6, TILE_VECTORS = 2, BLOCK_STEPS = 512 };
#endif
enum {
  SPAN_TILES = 256 / (VECTOR_BYTES * TILE_VECTORS),  // Side by side in the columns that a thread takes at a time.
  CHUNK = SPAN_TILES > 1 ? 96 : 1,                   // Rows that stay in the second cache from one of them to the next.
};

extern "C" int omp_get_max_threads(void) noexcept;
extern "C" int omp_get_thread_num(void) noexcept;

// Symbols of a library that all others see come before their own of the same names: they see what products.cpp exports, no more.
#pragma GCC visibility push(hidden)

template <class T> struct Lane {
  enum { COUNT = VECTOR_BYTES / sizeof(T) };
  typedef T Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
};

template <class V> INLINE V multiply_add(V a, V b, V c) { return a * b + c; }
#if defined __AVX512F__
typedef Lane<float>::Vector Floats;
typedef Lane<double>::Vector Doubles;
template <> SPECIALISED Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)__builtin_ia32_vfmaddps512_mask(a, b, c, (uint16_t)-1, 4);
}
template <> SPECIALISED Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
  return (Doubles)__builtin_ia32_vfmaddpd512_mask(a, b, c, (uint8_t)-1, 4);
}
#elif defined __AVX2__ && defined __FMA__
typedef Lane<float>::Vector Floats;
typedef Lane<double>::Vector Doubles;
template <> SPECIALISED Floats multiply_add(Floats a, Floats b, Floats c) { return (Floats)__builtin_ia32_vfmaddps256(a, b, c); }
template <> SPECIALISED Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return (Doubles)__builtin_ia32_vfmaddpd256(a, b, c); }
#endif

// Pairs of bfloat16s are multiplied and added up, and their sums are floats, in lanes of as many bits.
typedef Lane<bfloat16_pair>::Vector Pairs;
template <> SPECIALISED Pairs multiply_add(Pairs a, Pairs b, Pairs c) {
#if defined __AVX512BF16__
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  typedef Lane<float>::Vector V;
  const V low = multiply_add((V)(a << 16), (V)(b << 16), (V)c);
  return (Pairs)multiply_add((V)(a & 0xffff0000u), (V)(b & 0xffff0000u), low);
#endif
}
// Of what is summed.
template <class V> INLINE V add(V a, V b) { return a + b; }
template <> SPECIALISED Pairs add(Pairs a, Pairs b) {
  typedef Lane<float>::Vector V;
  return (Pairs)((V)a + (V)b);
}
template <> SPECIALISED bfloat16_pair add(bfloat16_pair a, bfloat16_pair b) { return bits<bfloat16_pair>(bits<float>(a) + bits<float>(b)); }

// The sums of a tile of M rows and N vectors, in registers.
template <class T, int M, int N> struct Sums {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  V of[M][N];

  INLINE_METHOD Sums() {
#pragma GCC unroll 32
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) of[i][j] = V{};
  }
  // One step: row i of the left factor has left(i), and `columns` are its columns of the right one.
  template <class F> INLINE_METHOD void add_products(F left, const T *columns) {
    V right[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      right[j] = (V)*(const Unaligned *)(columns + j * L);
      keep_loaded(right[j]);
    }
#pragma GCC unroll 32
    for (int i = 0; i < M; ++i) {
      const V row = left(i) - V{};
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) of[i][j] = multiply_add(row, right[j], of[i][j]);
    }
  }
  // tile[i][j] = (fresh ? 0 : tile[i][j]) + of[i][j]; rows of the tile are `apart`.
  INLINE_METHOD void add_to(T *tile, int64_t apart, bool fresh) const {
#pragma GCC unroll 32
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        V *const to = (V *)(tile + i * apart + j * L);
        *to = fresh ? of[i][j] : add<V>(*to, of[i][j]);
      }
  }
};

// tile[i][j] = (fresh ? 0 : tile[i][j]) + the sum of a[i][.] * b[.][j] over `k` steps, for a tile of M rows and N vectors; steps of b
// are `pitch` apart, rows of the tile `apart`. Sums of sums: the rounding errors of a long sum grow with its blocks instead of with its
// terms.
template <class T, int M, int N>
static __attribute__((noinline)) void tile_product(const Tile<T> &a, const T *RESTRICT b, int64_t pitch, int64_t k, T *RESTRICT tile, int64_t apart, bool fresh) {
  Sums<T, M, N> sums;
  const T *row[M];
#pragma GCC unroll 32
  for (int i = 0; i < M; ++i) row[i] = a.data + (i < a.rows ? i : 0) * a.row;
  const int64_t step = a.step;
  int64_t at = 0;
  const auto add_products = [&]() INLINE_LAMBDA {
    sums.add_products([&](int i) INLINE_LAMBDA { return row[i][at]; }, b);
    at += step, b += pitch;
  };
  for (; k > 1; k -= 2) add_products(), add_products();
  if (k > 0) add_products();
  sums.add_to(tile, apart, fresh);
}

// Lanes 0, 1, ... as a parameter pack, for shuffles with constant indices.
template <int... I> struct Lanes {};
template <int N, int... I> struct CountLanes : CountLanes<N - 1, N - 1, I...> {};
template <int... I> struct CountLanes<0, I...> { typedef Lanes<I...> Type; };

// One step of a transposition: rows r and r + S exchange their off-diagonal blocks of S lanes.
template <int S, class V, int... I> INLINE void exchange(V &upper, V &lower, Lanes<I...>) {
  enum { L = sizeof...(I) };
#if defined __has_builtin && __has_builtin(__builtin_shufflevector)
  const V a = upper, b = lower;
  upper = __builtin_shufflevector(a, b, ((I & S) ? L + I - S : I)...);
  lower = __builtin_shufflevector(a, b, ((I & S) ? L + I : I + S)...);
#else
  const V a = upper, b = lower;
  for (int i = 0; i < L; ++i) {
    upper[i] = i & S ? b[i - S] : a[i];
    lower[i] = i & S ? b[i] : a[i + S];
  }
#endif
}
template <int S, int L, class V> INLINE void exchange_rows(V *rows) {
  if constexpr (S > 0) {
#pragma GCC unroll 64
    for (int r = 0; r < L; ++r)
      if (!(r & S)) exchange<S>(rows[r], rows[r + S], typename CountLanes<L>::Type());
    exchange_rows<S / 2, L>(rows);
  }
}

// Whether all of a factor's sums lie along memory.
template <class T> INLINE bool lies_along(const Factor<T> &f, int64_t k) { return f.address && f.step == 1 && f.stretch >= k; }

// Rows of a tile, and of the last one: those that compute least in vain. A tile of fewer than
// three rows waits for its columns.
constexpr int last_of(int64_t m, int rows) { return (int)(m - (m - 1) / rows * rows); }
constexpr int64_t cost_of(int64_t m, int rows) {
  const int last = last_of(m, rows), height = rows < 3 ? 3 : rows;
  return 10 * ((m - 1) / rows * height + (last < 3 ? 3 : last)) + (m + rows - 1) / rows;
}
constexpr int tile_rows(int64_t m) {
  if (m <= TILE_ROWS) return m <= 0 ? 1 : (int)m;
  int best = TILE_ROWS;
  for (int rows = TILE_ROWS - 1; rows > TILE_ROWS / 2; --rows)
    if (cost_of(m, rows) < cost_of(m, best)) best = rows;
  return best;
}
constexpr int last_rows(int64_t m) { return m <= 0 ? 1 : last_of(m, tile_rows(m)); }

template <class T> struct Tiles {
  TileProduct<T> of[TILE_ROWS * TILE_VECTORS];  // By rows and vectors.
  template <int... I> constexpr explicit Tiles(Lanes<I...>) : of{tile_product<T, I / TILE_VECTORS + 1, I % TILE_VECTORS + 1>...} {}
  TileProduct<T> get(int64_t rows, int64_t vectors) const { return of[(rows - 1) * TILE_VECTORS + vectors - 1]; }
};
// The tiles that waste least, for results of so many columns.
template <class T> static void fitting_tiles(Product<T> &p, int64_t columns) {
  enum { L = Lane<T>::COUNT, WIDTH = L * TILE_VECTORS };
  static constexpr Tiles<T> tiles(typename CountLanes<TILE_ROWS * TILE_VECTORS>::Type{});
  const int64_t last = last_rows(p.m), slim = parts(columns % WIDTH, L);
  p.rows = tile_rows(p.m), p.narrow = slim < TILE_VECTORS ? slim * L : 0;
  p.wide = tiles.get(p.rows, TILE_VECTORS), p.last_wide = tiles.get(last, TILE_VECTORS);
  if (p.narrow) p.slim = tiles.get(p.rows, slim), p.last_slim = tiles.get(last, slim);
}

// A factor that lies in memory, copied as `Factor::fill` would.
template <class T>
static __attribute__((noinline)) void copy_block(const Factor<T> &f, int64_t batch, int64_t first, int64_t count, int64_t from, int64_t depth, T *to, int64_t pitch) {
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  const int64_t next = f.along ? f.row : f.step, lane = f.along ? f.step : f.row;
  for (int64_t done = 0, run; done < depth; done += run) {
    run = min_int(depth - done, f.stretch - (from + done) % f.stretch);
    const T *source = f.address(f.address_context, batch, first, from + done);
    T *target = to + (f.along ? done : done * pitch);
    const int64_t lines = f.along ? count : run, length = f.along ? run : count;
    for (int64_t line = 0; line < lines; ++line, source += next, target += pitch) {
      int64_t i = 0;
      if (lane == 1)
        for (; i + L <= length; i += L) *(Unaligned *)(target + i) = *(const Unaligned *)(source + i);
      for (; i < length; ++i) target[i] = source[i * lane];
    }
  }
}
template <class T>
INLINE void fill_block(const Factor<T> &f, int64_t batch, int64_t first, int64_t count, int64_t from, int64_t depth, T *to, int64_t pitch) {
  if (f.fill) f.fill(f.context, batch, first, count, from, depth, to, pitch);
  else copy_block(f, batch, first, count, from, depth, to, pitch);
}

enum : int64_t {
  DEPTH = 256,                  // Steps of the sum that are packed together.
  HEIGHT = 512,                 // Rows whose sums a thread keeps while it goes through the blocks.
  STRIP = 128,                  // Steps that are filled before they are transposed.
  LEFT_BYTES = 2 << 20,         // Of packed left factor.
  SUM_BYTES = 2 << 20,          // Of sums of all rows and columns so far, while parts of the left factor are packed.
  FEW_LEFT_BYTES = 1 << 18,     // Of packed left factor where the caller has no memory to spare,
  FEW_LEFT_ROWS = 96,           // or so many rows: with fewer, packing the right factor once for each of their blocks counts.
  PARALLEL_PRODUCTS = 1 << 17,  // Fewer are not worth other threads.
  SEPARATE_PRODUCTS = 1 << 28,  // Of a batch that one thread may take alone.
  TURN_ROWS = 48,               // That are turned together: a whole number of vectors.
  ALONE_ROWS = 256,             // Rows of a task that packs its columns for itself: that takes about as long as 16 rows' products.
};

// A block of a factor as depth x width, its steps `pitch` apart, the rows (or columns) beyond `count` zero.
template <class T>
static __attribute__((noinline)) void pack(const Factor<T> &factor, int64_t batch, int64_t first, int64_t count, int64_t width, int64_t from, int64_t depth, T *to, int64_t pitch) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  if (!factor.along) {
    if (count < width) __builtin_memset(to, 0, depth * pitch * sizeof(T));
    fill_block(factor, batch, first, count, from, depth, to, pitch);
    return;
  }
  T strip[L * STRIP] __attribute__((aligned(64)));
  for (int64_t group = 0; group < width; group += L) {
    const int64_t rows = max_int(0, min_int(count - group, L));
    int64_t start = 0;
    if (factor.address && factor.step == 1 && factor.stretch - from % factor.stretch >= depth && rows == L) {
      const T *source = factor.address(factor.address_context, batch, first + group, from);
      for (; start + L <= depth; start += L) {
        V block[L];
#pragma GCC unroll 64
        for (int r = 0; r < L; ++r) block[r] = *(const Unaligned *)(source + r * factor.row + start);
        exchange_rows<L / 2, L>(block);
#pragma GCC unroll 64
        for (int r = 0; r < L; ++r) *(Unaligned *)(to + (start + r) * pitch + group) = block[r];
      }
    }
    if (rows < L) __builtin_memset(strip, 0, sizeof strip);
    for (; start < depth; start += STRIP) {
      const int64_t length = min_int(STRIP, depth - start);
      if (rows) fill_block(factor, batch, first + group, rows, from + start, length, strip, STRIP);
      for (int64_t step = 0; step < length; step += L) {
        V block[L];
#pragma GCC unroll 64
        for (int r = 0; r < L; ++r) block[r] = *(const V *)(strip + r * STRIP + step);
        exchange_rows<L / 2, L>(block);
        T *target = to + (start + step) * pitch + group;
        if (step + L <= length) {
#pragma GCC unroll 64
          for (int r = 0; r < L; ++r) *(Unaligned *)(target + r * pitch) = block[r];
        } else {
          for (int r = 0; r < length - step; ++r) *(Unaligned *)(target + r * pitch) = block[r];
        }
      }
    }
  }
}
template <class T> INLINE void pack(const Factor<T> &factor, int64_t batch, int64_t first, int64_t count, int64_t width, int64_t from, int64_t depth, T *to) {
  pack(factor, batch, first, count, width, from, depth, to, width);
}

// One batch's product, in blocks of the left factor: `height` panels of rows, and where it is packed, `depth` steps. The spans of
// columns of a block are tasks, cut into `groups` of rows where there are too few of them for all threads.
template <class T> struct Blocks {
  const Product<T> &p;
  int64_t panels, height, depth, columns, groups, block, unit;
  const Product<T> *turned = nullptr;  // The product that was asked for, where `p` is its transpose.
  int64_t pitch, per_group;  // Of packed rows: panels share a group of whole vectors.
  T *left, *sums;

  enum {
    L = Lane<T>::COUNT,
    WIDTH = L * TILE_VECTORS,
    SPAN = WIDTH * SPAN_TILES,
    SPAN_PITCH = SPAN_TILES > 1 ? SPAN + WIDTH : SPAN,  // Of several tiles' packed columns: each tile's are in all sets of the first cache.
  };

  Blocks(const Product<T> &product, int64_t threads, const Product<T> *whose = nullptr) : p(product), turned(whose) {
    panels = parts(p.m, p.rows), columns = parts(p.n, SPAN);
    per_group = max_int(L / p.rows, 1), pitch = parts(p.rows, L) * L;
    const int64_t steps = max_int(p.k, 1);
    unit = direct() ? min_int(p.left.stretch, steps) : steps;
    depth = steps, height = panels;
    if (!direct()) {
      // Packed, of some steps for all rows, where the sums so far can be kept, so that the right factor is packed once; of all steps
      // for some rows otherwise, and where memory is dear, if they are not too few.
      const int64_t step_bytes = pitch * (int64_t)sizeof(T), all = parts(panels, per_group), some = min_int(all, parts(FEW_LEFT_ROWS, per_group * p.rows));
      const bool roomy = p.spare.bytes >= LEFT_BYTES + SUM_BYTES;
      const int64_t most = roomy ? LEFT_BYTES : min_int(max_int(p.spare.bytes, FEW_LEFT_BYTES), LEFT_BYTES);
      const bool few = !roomy && some * steps * step_bytes <= most;
      if (few || p.m * p.n * (int64_t)sizeof(T) > SUM_BYTES)
        height = min_int(panels, max_int((few ? most : LEFT_BYTES) / (steps * step_bytes), 4) * per_group);
      else depth = parts(steps, parts(steps, max_int(LEFT_BYTES / (all * step_bytes), DEPTH)));
    }
    block = parts(unit, parts(unit, BLOCK_STEPS));
    // A task that packs what others pack, too, is as large as can be.
    const int64_t tasks = packs_alone() ? threads : 4 * threads, most_rows = packs_alone() ? HEIGHT * parts(threads, columns) : HEIGHT;
    if (keeps_tiles() && !split()) height = min_int(height, max_int(most_rows / p.rows, 1));
    height = parts(panels, parts(panels, height));
    if (!direct()) height = min_int(parts(height, per_group) * per_group, parts(panels, per_group) * per_group);
    groups = columns >= tasks ? 1 : min_int(height, parts(tasks, columns));
  }

  static int64_t lines(int64_t elements) { return parts(elements * (int64_t)sizeof(T), 64) * 64; }
  // Whether the left factor is read where it lies. Of one across the sum a tile has a part of a line from every step: narrow tiles, which
  // read it more often, want it packed.
  bool direct() const { return p.left.address && (SPAN_TILES == 1 || p.left.step == 1 || p.n < 4 * SPAN); }
  bool split() const { return depth < p.k; }
  // Whether tasks of a turned product each pack the columns that they need.
  bool packs_alone() const { return turned && !p.right.panel; }
  int64_t left_bytes() const { return direct() ? 0 : lines(parts(height, per_group) * pitch * depth); }
  int64_t shared_bytes() const { return left_bytes() + (split() ? lines(height * columns * p.rows * SPAN) : 0); }
  // Of a block of the right factor, and of the tiles that are summed over several blocks, or wait for their neighbours.
  int64_t own_bytes() const {
    const int64_t tiles = split() ? 0 : keeps_tiles() ? parts(height, groups) : chunk();
    return lines(right_count() + tiles * p.rows * SPAN + (turned ? (L + TURN_ROWS) * SPAN : 0));
  }
  int64_t right_count() const { return min_int(block, depth) * SPAN_PITCH; }
  int64_t chunk() const { return max_int(CHUNK / p.rows, 1); }  // Panels.
  bool keeps_tiles() const { return block < p.k || turned; }
  int64_t tiles_to_turn() const { return TURN_ROWS / p.rows; }
  void use(char *memory) { left = (T *)memory, sums = (T *)(memory + left_bytes()); }

  void pack_left(int64_t batch, int64_t first_panel, int64_t group, int64_t from, int64_t steps) const {
    const int64_t row = (first_panel + group * per_group) * p.rows;
    pack(p.left, batch, row, min_int(per_group * p.rows, p.m - row), pitch, from, steps, left + group * pitch * steps);
  }

  Tile<T> tile_at(int64_t batch, int64_t first_panel, int64_t panel, int64_t from, int64_t steps, int64_t start) const {
    const int64_t row = (first_panel + panel) * p.rows, rows = min_int(p.rows, p.m - row);
    if (direct()) return {p.left.address(p.left.address_context, batch, row, from + start), p.left.row, p.left.step, rows};
    return {left + panel / per_group * pitch * steps + start * pitch + panel % per_group * p.rows, 1, pitch, rows};
  }

  // Tiles that lie one behind the other, as rows of the product that was asked for.
  void finish_turned(int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns, const T *tiles, T *to) const {
    typedef typename Lane<T>::Vector V;
    for (int64_t r = 0; r < rows; r += L)
      for (int64_t c = 0; c < columns; c += L) {
        V block[L];
#pragma GCC unroll 64
        for (int i = 0; i < L; ++i) block[i] = *(const V *)(tiles + (r + i) * SPAN + c);
        exchange_rows<L / 2, L>(block);
#pragma GCC unroll 64
        for (int i = 0; i < L; ++i) *(V *)(to + (c + i) * TURN_ROWS + r) = block[i];
      }
    turned->finish(turned->context, batch, column, columns, row, min_int(rows, p.m - row), to, TURN_ROWS);
  }

  // Panels [begin, end) of the left block against one span of columns.
  void multiply(int64_t batch, int64_t first_panel, int64_t begin, int64_t end, int64_t column, int64_t from, int64_t steps, T *own) const {
    T *const own_sums = own + right_count();
    const int64_t first = column * SPAN, count = min_int(SPAN, p.n - first), rest = count % WIDTH;
    const int64_t width = rest && rest <= p.narrow ? count - rest + p.narrow : parts(count, WIDTH) * WIDTH;
    const int64_t pitch_here = p.right.panel ? p.right.panel : width > WIDTH ? (int64_t)SPAN_PITCH : width;
    T *const sums_here = split() ? sums + (column * height + begin) * p.rows * SPAN : own_sums;
    const bool last = from + steps >= p.k, kept = split() || keeps_tiles();
    if (steps <= 0) __builtin_memset(sums_here, 0, (kept ? end - begin : chunk()) * p.rows * SPAN * sizeof(T));
    for (int64_t start = 0, length; start < steps || start == 0; start += length) {
      length = min_int(min_int(block, steps - start), unit - (from + start) % unit);
      const T *right[SPAN_TILES];
      if (!p.right.panel && steps > 0) pack(p.right, batch, first, count, width, from + start, length, own, pitch_here);
      for (int64_t strip = 0; strip < count; strip += WIDTH)
        right[strip / WIDTH] = p.right.panel ? p.right.address(p.right.address_context, batch, first + strip, from + start) : own + strip;
      const bool ready = last && start + length >= steps;
      for (int64_t some = begin, next; some < end; some = next) {
        next = min_int(end, some + chunk());
        T *const tiles = sums_here + (kept ? some - begin : 0) * p.rows * SPAN;
        if (steps > 0)
          for (int64_t strip = 0; strip < count; strip += WIDTH) {
            const bool slim = count - strip <= p.narrow;
            for (int64_t panel = some; panel < next; ++panel) {
              const auto run = first_panel + panel + 1 < panels ? (slim ? p.slim : p.wide) : (slim ? p.last_slim : p.last_wide);
              T *const tile = tiles + (panel - some) * p.rows * SPAN + strip;
              run(tile_at(batch, first_panel, panel, from, steps, start), right[strip / WIDTH], pitch_here, length, tile, SPAN, from + start == 0);
            }
          }
        for (int64_t panel = some; ready && panel < next; ++panel)
          finish(batch, first_panel, begin, end, panel, first, count, sums_here, tiles + (panel - some) * p.rows * SPAN, own_sums);
      }
      if (steps <= 0) break;
    }
  }

  // What one panel of [begin, end) has against a span is summed up.
  void finish(int64_t batch, int64_t first_panel, int64_t begin, int64_t end, int64_t panel, int64_t first, int64_t count, const T *all, const T *tile, T *own_sums) const {
    if (!turned) {
      const int64_t row = (first_panel + panel) * p.rows;
      p.finish(p.context, batch, row, min_int(p.rows, p.m - row), first, count, tile, SPAN);
      return;
    }
    const int64_t strip = (panel - begin) / tiles_to_turn() * tiles_to_turn();
    if (panel + 1 == end || panel - begin + 1 == strip + tiles_to_turn())
      finish_turned(batch, (first_panel + begin + strip) * p.rows, (panel - begin + 1 - strip) * p.rows, first, count, all + strip * p.rows * SPAN, own_sums + (parts(height, groups) * p.rows + L) * SPAN);
  }

  // Task `number` of a block of rows.
  void task(int64_t batch, int64_t first_panel, int64_t number, int64_t from, int64_t steps, T *own) const {
    const int64_t here = min_int(height, panels - first_panel), share = parts(here, groups), begin = number % groups * share;
    if (begin < here) multiply(batch, first_panel, begin, min_int(begin + share, here), number / groups, from, steps, own);
  }

  template <bool Team> void run(int64_t batch, T *own) const {
    const int64_t tasks = columns * groups;
    if (direct()) {
      const int64_t all = parts(panels, height) * tasks;
      if (Team && p.right.panel && height >= panels) {
        // Nothing is packed, and nothing is read twice: threads take the same columns at every call, which may still be in their caches.
#pragma omp for schedule(static) nowait
        for (int64_t number = 0; number < all; ++number) task(batch, 0, number, 0, p.k, own);
      } else if (Team) {
#pragma omp for schedule(dynamic) nowait
        for (int64_t number = 0; number < all; ++number) task(batch, number / tasks * height, number % tasks, 0, p.k, own);
      } else {
        for (int64_t number = 0; number < all; ++number) task(batch, number / tasks * height, number % tasks, 0, p.k, own);
      }
      return;
    }
    for (int64_t first_panel = 0; first_panel < panels; first_panel += height) {
      const int64_t packed = parts(min_int(height, panels - first_panel), per_group);
      for (int64_t from = 0; from < p.k || from == 0; from += max_int(depth, 1)) {
        const int64_t steps = min_int(depth, p.k - from);
        if (Team) {
#pragma omp for schedule(dynamic)
          for (int64_t group = 0; group < packed; ++group) pack_left(batch, first_panel, group, from, steps);
#pragma omp for schedule(dynamic)
          for (int64_t number = 0; number < tasks; ++number) task(batch, first_panel, number, from, steps, own);
        } else {
          for (int64_t group = 0; group < packed; ++group) pack_left(batch, first_panel, group, from, steps);
          for (int64_t number = 0; number < tasks; ++number) task(batch, first_panel, number, from, steps, own);
        }
      }
    }
  }
};

// A factor that was packed in panels as wide as the widest tile.
template <class T> struct Packed {
  enum : int64_t { WIDTH = Lane<T>::COUNT * TILE_VECTORS };
  const T *data;
  int64_t k;
  static const T *address(const void *context, int64_t, int64_t first, int64_t from) {
    const Packed &packed = *(const Packed *)context;
    return packed.data + first * packed.k + from * WIDTH;
  }
};

// Whether the transpose is faster: packing a row takes as long as the products of 16 others with it, and turning a result as long as
// 40 steps of its sum. Rows become columns, and fewer than a vector of them would be computed in vain.
template <class T> static bool is_for_turning(const Product<T> &p) {
  return p.batches == 1 && lies_along(p.right, p.k) && p.m > Lane<T>::COUNT && p.m < p.n && 16 * (p.n - p.m) * p.k > 40 * p.m * p.n;
}

template <class T> static int32_t turned_matrix_product(const Product<T> &given) {
  typedef Packed<T> Panels;
  const int64_t columns = parts(given.m, Panels::WIDTH), blocks_of_steps = parts(given.k, DEPTH);
  const int64_t threads = given.m * given.n * given.k < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
  Product<T> p = given;
  // Where the caller has no memory to spare, panels lie on this thread's stack, or tasks pack what they need a block at a time, if they
  // are few enough.
  const int64_t bytes = columns * Panels::WIDTH * given.k * (int64_t)sizeof(T);
  const bool stacked = bytes > p.spare.bytes && bytes <= STACK_BYTES;
  const bool alone = !stacked && bytes > p.spare.bytes && columns * given.n >= ALONE_ROWS * threads;
  const Memory panels(p.spare, stacked || alone ? 0 : bytes);
  if (!panels.data) return OUT_OF_MEMORY;
  T *const packed = (T *)(stacked ? aligned_to_line(__builtin_alloca(bytes + 64)) : panels.data);
  const Panels right = {packed, given.k};
  p.m = given.n, p.n = given.m, p.left = given.right, p.right = {};
  if (alone) p.right = given.left;
  else p.right.address = Panels::address, p.right.address_context = &right, p.right.panel = Panels::WIDTH;
  choose_tiles(p, p.n);
  Blocks<T> blocks(p, threads, &given);
  const Memory memory(p.spare, blocks.shared_bytes());
  if (!memory.data) return OUT_OF_MEMORY;
  blocks.use(memory.data);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    T *const own = (T *)aligned_to_line(__builtin_alloca(blocks.own_bytes() + 64));
#pragma omp for schedule(static)
    for (int64_t number = 0; number < (alone ? 0 : columns * blocks_of_steps); ++number) {
      const int64_t first = number / blocks_of_steps * Panels::WIDTH, from = number % blocks_of_steps * DEPTH;
      pack(given.left, 0, first, min_int(Panels::WIDTH, given.m - first), Panels::WIDTH, from, min_int(DEPTH, given.k - from), packed + first * given.k + from * Panels::WIDTH);
    }
    blocks.template run<true>(0, own);
  }
  return OK;
}

template <class T> static int32_t product_of_matrices(const Product<T> &given) {
  if (given.batches <= 0 || given.m <= 0 || given.n <= 0) return OK;
  if (is_for_turning(given)) return turned_matrix_product(given);
  Product<T> p = given;
  choose_tiles(p, p.n);
  const int64_t work = p.m * p.n * max_int(p.k, 1);
  const int64_t threads = work * p.batches < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads();
  // Where batches alone keep the threads busy, each takes whole ones and never waits for another.
  if (threads == 1 || (p.batches >= 2 * threads && work < SEPARATE_PRODUCTS)) {
    Blocks<T> blocks(p, 0);
    const Memory memory(p.spare, threads * blocks.shared_bytes());
    if (!memory.data) return OUT_OF_MEMORY;
#pragma omp parallel firstprivate(blocks) num_threads(threads) if (threads > 1)
    {
      T *const own = (T *)aligned_to_line(__builtin_alloca(blocks.own_bytes() + 64));
      blocks.use(memory.data + omp_get_thread_num() * blocks.shared_bytes());
#pragma omp for schedule(dynamic)
      for (int64_t batch = 0; batch < p.batches; ++batch) blocks.template run<false>(batch, own);
    }
    return OK;
  }
  Blocks<T> blocks(p, threads);
  const Memory memory(p.spare, blocks.shared_bytes());
  if (!memory.data) return OUT_OF_MEMORY;
  blocks.use(memory.data);
#pragma omp parallel num_threads(threads)
  {
    T *const own = (T *)aligned_to_line(__builtin_alloca(blocks.own_bytes() + 64));
    for (int64_t batch = 0; batch < p.batches; ++batch) blocks.template run<true>(batch, own);
  }
  return OK;
}

enum : int64_t {
  LINE = 64,        // Results that one task computes where steps of the sum lie together in memory,
  LINE_ACROSS = 256,  // and where results do.
  LINE_STEPS = 512,
  LINE_STEPS_ACROSS = 8,
  LINE_BESIDE = 2048,  // The most results that one task computes of a matrix that is read where it lies.
};

// The same where the matrix lies along the sum (dots.h).
template <class T> static void dot_line(const VectorProduct<T> &p, int64_t batch, int64_t first, int64_t count, const T *vector, T *sums);

template <class T>
static void line_along(const VectorProduct<T> &p, int64_t batch, int64_t first, int64_t count, const T *vector, T *sums) {
  typedef typename Lane<T>::Vector V;
  enum { L = Lane<T>::COUNT, ROWS = 4 };
  T block[ROWS * LINE_STEPS] __attribute__((aligned(64)));
  for (int64_t row = 0; row < count; row += ROWS) {
    const int64_t rows = min_int(ROWS, count - row);
    V sum[ROWS] = {};
    for (int64_t from = 0; from < p.k; from += LINE_STEPS) {
      const int64_t depth = min_int(LINE_STEPS, p.k - from), whole = parts(depth, L) * L;
      fill_block(p.matrix, batch, first + row, rows, from, depth, block, LINE_STEPS);
      // The vector is zero beyond its end; what it is multiplied with there must not be NaN.
      for (int r = 0; r < ROWS; ++r)
        for (int64_t i = depth; i < whole; ++i) block[r * LINE_STEPS + i] = 0;
      for (int64_t i = 0; i < depth; i += L) {
        const V right = *(const V *)(vector + from + i);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) sum[r] = multiply_add(*(const V *)(block + r * LINE_STEPS + i), right, sum[r]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      T lanes[L] __attribute__((aligned(64)));
      *(V *)lanes = sum[r];
      for (int half = L / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = add(lanes[i], lanes[i + half]);
      sums[row + r] = lanes[0];
    }
  }
}

template <class T>
static void line_across(const VectorProduct<T> &p, int64_t batch, int64_t first, int64_t count, const T *vector, T *sums) {
  typedef typename Lane<T>::Vector V;
  enum { L = Lane<T>::COUNT };
  T block[LINE_STEPS_ACROSS * LINE_ACROSS] __attribute__((aligned(64)));
  __builtin_memset(sums, 0, LINE_ACROSS * sizeof(T));
  if (count < LINE_ACROSS) __builtin_memset(block, 0, sizeof block);
  for (int64_t from = 0; from < p.k; from += LINE_STEPS_ACROSS) {
    const int64_t depth = min_int(LINE_STEPS_ACROSS, p.k - from);
    fill_block(p.matrix, batch, first, count, from, depth, block, LINE_ACROSS);
    for (int64_t i = 0; i < count; i += L) {
      V sum = *(const V *)(sums + i);
      for (int64_t step = 0; step < depth; ++step)
        sum = multiply_add(*(const V *)(block + step * LINE_ACROSS + i), vector[from + step] - V{}, sum);
      *(V *)(sums + i) = sum;
    }
  }
}

// Adds N steps, `apart` from each other, to sums that lie together.
template <int N, class T> static void add_steps(const T *from, int64_t apart, const T *vector, int64_t count, T *sums) {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum { L = Lane<T>::COUNT };
  V factor[N];
#pragma GCC unroll 4
  for (int s = 0; s < N; ++s) factor[s] = vector[s] - V{};
  int64_t i = 0;
  for (; i + L <= count; i += L) {
    V part = {};
#pragma GCC unroll 4
    for (int s = 0; s < N; ++s) part = multiply_add((V)*(const Unaligned *)(from + s * apart + i), factor[s], part);
    *(V *)(sums + i) = add(*(const V *)(sums + i), part);
  }
  if (i == count) return;
  V part = {};
#pragma GCC unroll 4
  for (int s = 0; s < N; ++s) {
    V left = {};
    __builtin_memcpy(&left, from + s * apart + i, (count - i) * sizeof(T));
    part = multiply_add(left, factor[s], part);
  }
  V sum = {};
  __builtin_memcpy(&sum, sums + i, (count - i) * sizeof(T));
  sum = add(sum, part);
  __builtin_memcpy(sums + i, &sum, (count - i) * sizeof(T));
}

// The same where the matrix lies across the sum, and as it is read: long pieces of lines, one after the other. The sums stay in the
// first cache; a few steps are added at once, so that they are seldom read and written.
template <class T>
static void line_beside(const VectorProduct<T> &p, int64_t batch, int64_t first, int64_t count, const T *vector, T *sums) {
  enum { STEPS = 4 };
  const int64_t apart = p.matrix.step;
  const T *step = p.matrix.address(p.matrix.address_context, batch, first, 0);
  __builtin_memset(sums, 0, count * sizeof(T));
  int64_t from = 0;
  for (; from + STEPS <= p.k; from += STEPS, step += STEPS * apart) add_steps<STEPS>(step, apart, vector + from, count, sums);
  for (; from < p.k; ++from, step += apart) add_steps<1>(step, apart, vector + from, count, sums);
}

template <class T> static int32_t product_of_vector(const VectorProduct<T> &p) {
  if (p.batches <= 0 || p.n <= 0) return OK;
  const bool along = lies_along(p.matrix, p.k), in_place = along && lies_along(p.vector, p.k);
  const int64_t padded = parts(p.k, Lane<T>::COUNT) * Lane<T>::COUNT, copies = in_place ? 0 : p.batches;
  Spare spare = p.spare;
  const Memory memory(spare, copies * padded * (int64_t)sizeof(T));
  T *const vectors = (T *)memory.data;
  if (!vectors && copies) return OUT_OF_MEMORY;
  const bool parallel = p.batches * p.n * p.k >= PARALLEL_PRODUCTS;
  const bool beside = p.matrix.address && p.matrix.row == 1 && p.matrix.stretch >= p.k && !p.matrix.along;
  // What a thread computes of long lines, in whole lines of the cache.
  const int64_t share = parts(parts(p.n * p.batches, parallel ? omp_get_max_threads() : 1), LINE) * LINE;
  const int64_t across = beside ? max_int(LINE_ACROSS, min_int(share, LINE_BESIDE)) : (int64_t)LINE_ACROSS;
  const int64_t line = p.matrix.along ? (int64_t)LINE : across, lines = parts(p.n, line);
  const auto sum_line = along ? dot_line<T> : p.matrix.along ? line_along<T> : beside ? line_beside<T> : line_across<T>;
#pragma omp parallel if (parallel)
  {
    if (copies) {
#pragma omp for schedule(static)
      for (int64_t batch = 0; batch < copies; ++batch) {
        T *const vector = vectors + batch * padded;
        if (p.k) fill_block(p.vector, batch, 0, 1, 0, p.k, vector, p.k);
        for (int64_t i = p.k; i < padded; ++i) vector[i] = 0;
      }
    }
    // Threads take the same rows at every call: they may still be in their caches.
#pragma omp for schedule(static)
    for (int64_t task = 0; task < p.batches * lines; ++task) {
      const int64_t batch = task / lines, first = task % lines * line, count = min_int(line, p.n - first);
      T sums[LINE_BESIDE] __attribute__((aligned(64)));
      const T *const vector = in_place ? p.vector.address(p.vector.address_context, batch, 0, 0) : vectors + batch * padded;
      sum_line(p, batch, first, count, vector, sums);
      p.finish(p.context, batch, first, count, sums);
    }
  }
  return OK;
}
