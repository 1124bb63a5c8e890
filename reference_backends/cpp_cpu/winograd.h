// Convolutions with windows of 3x3 that move by one element, by Winograd's minimal filtering F(2x2, 3x3): A. Lavin and S. Gray,
// Fast Algorithms for Convolutional Neural Networks (CVPR 2016). Follows gemm.h.
//
// A tile of 2x2 results is computed from the 4x4 elements that its windows cover with 16 products a channel, where plain sums take
// 36. Elements and weights are transformed to 16 points each; at every point, the products of a channel's weights and elements are
// summed over the channels, which is a matrix product; the sums are transformed to results:
//
//   Y = A' [(G w G') * (B' x B)] A     B' = 1 0 -1 0    G =  1    0   0     A' = 1 1  1  0
//                                           0 1  1 0        1/2  1/2 1/2         0 1 -1 -1
//                                           0 -1 1 0        1/2 -1/2 1/2
//                                           0 1 0 -1         0    0   1
//
// The larger tiles of that paper are not used: their transformations lose digits, and let what lies beside a window disturb its
// result. Here no result depends on an element outside of its window, term by term. Where the transformed numbers overflow, or
// are differences of infinities, results are not finite: then they are computed again as plain sums.

enum : int64_t {
  SPAN = 4,                        // Of a tile's elements, in each direction.
  POINTS = SPAN * SPAN,
  PANEL_VECTORS = 2 * TILE_VECTORS,  // Tiles that are transformed together.
  ELEMENT_BYTES = 4 << 20,         // Of transformed elements, which all threads share, where there is so much memory.
  LEAST_BYTES = 1 << 20,           // In all, however little of the caller's memory is spare.
  WEIGHT_BYTES = 512 << 10,        // Of a thread's transformed weights,
  POINT_BYTES = 256 << 10,         // and of its sums.
  CHANNELS = 16,                   // That are transformed together.
};

struct Sizes { int64_t images, height, width, channels, outputs; };
// The work of the ways in products of one lane, measured where a transformation's instructions count.
constexpr int64_t filtered_work(Sizes s) {
  const int64_t tiles = s.images * ((s.height + 1) / 2) * ((s.width + 1) / 2);
  return POINTS * tiles * s.channels * s.outputs + 100 * (tiles * s.channels + tiles * s.outputs + s.channels * s.outputs);
}
constexpr int64_t packed_work(Sizes s, int64_t taps = 9) { return 8 * taps * s.images * s.height * s.width * s.channels * s.outputs / 9; }
constexpr bool filters_minimally(Sizes s) { return filtered_work(s) < packed_work(s); }
// Lines of tiles in a panel; 0 where a line is longer than a panel.
constexpr int64_t panel_lines(int64_t lines, int64_t across, int64_t most) {
  if (across <= 0 || lines <= 0 || across > most) return 0;
  const int64_t panels = (lines + most / across - 1) / (most / across);
  return (lines + panels - 1) / panels;
}
constexpr int64_t line_part(int64_t across, int64_t most) {
  const int64_t parts = across <= 0 ? 1 : (across + most - 1) / most;
  return (across + parts - 1) / parts;
}

template <int ODD, class V, int... I> INLINE V every_other(V a, V b, Lanes<I...>) {
#if defined __has_builtin && __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, (2 * I + ODD)...);
#else
  enum { L = sizeof...(I) };
  V result;
  for (int i = 0; i < L; ++i) result[i] = 2 * i + ODD < L ? a[2 * i + ODD] : b[2 * i + ODD - L];
  return result;
#endif
}
template <int HIGH, class V, int... I> INLINE V in_turns(V a, V b, Lanes<I...>) {
  enum { L = sizeof...(I) };
#if defined __has_builtin && __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, ((I & 1 ? L : 0) + I / 2 + HIGH * L / 2)...);
#else
  V result;
  for (int i = 0; i < L; ++i) result[i] = i & 1 ? b[i / 2 + HIGH * L / 2] : a[i / 2 + HIGH * L / 2];
  return result;
#endif
}
// Lanes [from, to) of a vector to the same places after `target`.
template <class T, class V> INLINE void store_lanes(T *target, V value, int64_t from, int64_t to) {
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  if (from == 0 && to == Lane<T>::COUNT) {
    *(Unaligned *)target = value;
    return;
  }
#if defined __AVX512F__
  if constexpr (sizeof(T) == 4) {
    typedef float Masked __attribute__((vector_size(64)));
    __builtin_ia32_storeups512_mask((float *)target, (Masked)value, (uint16_t)bits_between(from, to, 16));
    return;
  }
#endif
  for (int64_t i = from; i < to; ++i) target[i] = value[i];
}

// Sums of a product's own factors, at rows and columns whose sums by way of the points are not finite, to results[r * room + c]. Rows are
// packed `pitch` apart in `memory`, which has room for DEPTH steps of them and of a tile's columns, and for a tile.
template <class T>
static void plain_sums(const Product<T> &p, int64_t batch, int64_t row, int64_t rows, int64_t first, int64_t count, T *results, int64_t room, int64_t pitch, T *memory) {
  enum : int64_t { WIDTH = Lane<T>::COUNT * TILE_VECTORS };
  T *const right = memory, *const left = right + DEPTH * WIDTH, *const tile = left + DEPTH * pitch;
  for (int64_t column = 0; column < count; column += WIDTH) {
    const int64_t columns = min_int(WIDTH, count - column);
    for (int64_t from = 0, steps; from < p.k; from += steps) {
      steps = min_int(DEPTH, p.k - from);
      pack(p.right, batch, first + column, columns, WIDTH, from, steps, right);
      pack(p.left, batch, row, rows, pitch, from, steps, left);
      p.wide({left, 1, pitch, rows}, right, WIDTH, steps, tile, WIDTH, from == 0);
    }
    for (int64_t r = 0; r < rows; ++r) __builtin_memcpy(results + r * room + column, tile + r * WIDTH, columns * sizeof(T));
  }
}

template <class T> struct Filtering {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum : int64_t { L = Lane<T>::COUNT, WIDTH = L * TILE_VECTORS, MOST = L * PANEL_VECTORS, SLACK = 4 * L };

  const Product<T> &p;
  const Windows<T> &w;
  int64_t channels, across, down, lines, per_panel, part, line_parts, panels, together;
  int64_t per_group, pitch, groups, group_block, blocks, shares;
  int64_t element_step, strip_step, panel_step, group_step;  // From point to point, strip to strip, panel to panel; of weights.
  int64_t plane;                                            // Elements of one channel under a panel.
  T *elements;
  char *own;

  Filtering(const Product<T> &product, const Windows<T> &windows, int64_t threads, int64_t most_tiles, int64_t limit) : p(product), w(windows) {
    channels = p.k / 9, across = parts(w.width, 2), down = parts(w.height, 2), lines = w.images * down;
    per_panel = max_int(panel_lines(lines, across, most_tiles), 1), part = line_part(across, most_tiles), line_parts = parts(across, part);
    panels = parts(lines, per_panel) * line_parts;
    // A vector more between points: at powers of two, they would fall on the same lines of a cache.
    element_step = channels * WIDTH + L, strip_step = POINTS * element_step;
    panel_step = parts(per_panel * part, WIDTH) * strip_step;
    together = min_int(panels, max_int(1, ELEMENT_BYTES / (panel_step * (int64_t)sizeof(T))));
    const int64_t edge = line_parts > 1 ? SPAN * (2 * part + 2) : (2 * per_panel + 2 * parts(per_panel, down)) * (w.width + 2);
    plane = parts(edge, L) * L + SPAN * L;
    per_group = max_int(L / p.rows, 1), pitch = parts(p.rows, L) * L, groups = parts(p.m, per_group * p.rows);
    group_step = POINTS * (channels * pitch + L);
    const int64_t tile_bytes = POINTS * per_group * p.rows * parts(per_panel * part, WIDTH) * WIDTH * (int64_t)sizeof(T);
    group_block = min_int(WEIGHT_BYTES / (group_step * (int64_t)sizeof(T)), POINT_BYTES / tile_bytes);
    group_block = min_int(groups, max_int(group_block, 1));
    while (together > 1 && bytes(threads) > limit) --together;
    while (group_block > 1 && !stacked() && bytes(threads) > limit) --group_block;
    blocks = parts(groups, group_block), group_block = parts(groups, blocks), blocks = parts(groups, group_block);
    together = parts(panels, parts(panels, together));
    shares = min_int(together, parts(4 * threads, blocks));
  }

  static int64_t lines_of(int64_t count) { return parts(count * (int64_t)sizeof(T), 64) * 64; }
  int64_t shared_bytes() const { return lines_of(together * panel_step); }
  int64_t weight_count() const { return group_block * group_step; }
  int64_t tile_count() const { return group_block * per_group * POINTS * p.rows * parts(per_panel * part, WIDTH) * WIDTH; }
  int64_t raw_count() const { return max_int(CHANNELS * plane + SLACK, CHANNELS * 9 * pitch); }
  int64_t row_count() const { return 4 * MOST + SLACK; }  // Results of a row of weights.
  int64_t own_bytes() const {
    const int64_t turned = 2 * (2 * MOST + SLACK), again = DEPTH * (WIDTH + pitch) + p.rows * WIDTH;
    return lines_of(weight_count()) + lines_of(tile_count()) + lines_of(p.rows * row_count()) +
           lines_of(max_int(max_int(raw_count(), turned), again));
  }

  bool stacked() const { return own_bytes() <= STACK_BYTES; }
  int64_t bytes(int64_t threads) const { return shared_bytes() + (stacked() ? 0 : threads * own_bytes()); }

  void use(char *memory) { elements = (T *)memory; }

  // Elements under one panel, of some channels, to their points.
  void transform_elements(int64_t batch, int64_t panel, int64_t from, int64_t count, T *to, T *raw) const {
    const int64_t first_line = panel / line_parts * per_panel, stop = min_int(lines, first_line + per_panel);
    const int64_t first = panel % line_parts * part, tiles = min_int(part, across - first), width = w.width + 2;
    int64_t done = 0;
    for (int64_t line = first_line, next; line < stop; line = next) {
      const int64_t image = line / down, y = 2 * (line % down);
      next = min_int(stop, (image + 1) * down);
      const int64_t rows = min_int(2 * (next - line) + 2, w.height + 2 - y), start = (image * (w.height + 2) + y) * width;
      int64_t channel_step, row_step;
      if (line_parts == 1) {
        row_step = width, channel_step = parts(rows * width, L) * L;
        pack(w.elements, batch, start, rows * width, channel_step, from, count, raw);
      } else {
        const int64_t columns = min_int(2 * tiles + 2, width - 2 * first);
        channel_step = parts(2 * tiles + 2, L) * L, row_step = count * channel_step;
        for (int64_t row = 0; row < rows; ++row)
          pack(w.elements, batch, start + row * width + 2 * first, columns, channel_step, from, count, raw + row * row_step);
      }
      for (int64_t channel = 0; channel < count; ++channel)
        for (int64_t l = line; l < next; ++l) {
          const T *source = raw + channel * channel_step + 2 * (l - line) * row_step;
          const int64_t place = done + (l - line) * tiles;
          for (int64_t tile = 0; tile < tiles; tile += L)
            transform_tiles(source + 2 * tile, row_step, to, from + channel, place + tile, min_int(L, tiles - tile));
        }
      done += (next - line) * tiles;
    }
  }

  // Up to L neighbouring tiles: B' x B.
  INLINE_METHOD void transform_tiles(const T *source, int64_t row_step, T *to, int64_t channel, int64_t place, int64_t count) const {
    typedef typename CountLanes<L>::Type All;
    V half[SPAN][SPAN];
#pragma GCC unroll 4
    for (int row = 0; row < SPAN; ++row, source += row_step) {
      const V a = *(const Unaligned *)source, b = *(const Unaligned *)(source + L);
      const V c = *(const Unaligned *)(source + 2), d = *(const Unaligned *)(source + 2 + L);
      const V x0 = every_other<0>(a, b, All()), x1 = every_other<1>(a, b, All());
      const V x2 = every_other<0>(c, d, All()), x3 = every_other<1>(c, d, All());
      half[row][0] = x0 - x2, half[row][1] = x1 + x2, half[row][2] = x2 - x1, half[row][3] = x1 - x3;
    }
    const int64_t strip = place / WIDTH, lane = place % WIDTH, here = min_int(count, WIDTH - lane);
    // What reaches over the end of a strip is the beginning of the next one.
    T *const target = to + strip * strip_step + channel * width_of(strip) + lane;
    T *const rest = to + (strip + 1) * strip_step + (here < count ? channel * width_of(strip + 1) : 0) - here;
#pragma GCC unroll 4
    for (int column = 0; column < SPAN; ++column) {
      const V x0 = half[0][column], x1 = half[1][column], x2 = half[2][column], x3 = half[3][column];
      const V points[SPAN] = {x0 - x2, x1 + x2, x2 - x1, x1 - x3};
#pragma GCC unroll 4
      for (int row = 0; row < SPAN; ++row) {
        store_lanes(target + (row * SPAN + column) * element_step, points[row], 0, here);
        if (here < count) store_lanes(rest + (row * SPAN + column) * element_step, points[row], here, count);
      }
    }
  }

  // Lanes that a strip of `tiles` is computed with.
  int64_t lanes_of(int64_t tiles) const { return tiles <= p.narrow ? p.narrow : (int64_t)WIDTH; }
  int64_t panel_tiles;  // Of the panel at hand.
  int64_t width_of(int64_t strip) const { return lanes_of(min_int(panel_tiles - strip * WIDTH, WIDTH)); }
  void at_panel(int64_t panel) {
    const int64_t first_line = panel / line_parts * per_panel, first = panel % line_parts * part;
    panel_tiles = min_int(per_panel, lines - first_line) * min_int(part, across - first);
  }

  // Weights of a group of panels of rows: G w G'.
  void transform_weights(int64_t batch, int64_t group, T *to, T *raw) const {
    const int64_t row = group * per_group * p.rows, rows = min_int(per_group * p.rows, p.m - row), step = channels * pitch + L;
    for (int64_t channel = 0; channel < channels; channel += CHANNELS) {
      const int64_t count = min_int(CHANNELS, channels - channel);
      pack(p.left, batch, row, rows, pitch, 9 * channel, 9 * count, raw);
      for (int64_t c = 0; c < count; ++c)
        for (int64_t lane = 0; lane < pitch; lane += L) {
          const T *const source = raw + 9 * c * pitch + lane;
          T *const target = to + (channel + c) * pitch + lane;
          V half[SPAN][3];
#pragma GCC unroll 4
          for (int column = 0; column < 3; ++column) {
            V g[3];
#pragma GCC unroll 4
            for (int y = 0; y < 3; ++y) g[y] = *(const V *)(source + ((w.down ? y : 2 - y) * 3 + (w.across ? column : 2 - column)) * pitch);
            const V sum = g[0] + g[2];
            half[0][column] = g[0], half[1][column] = (sum + g[1]) * (T)0.5, half[2][column] = (sum - g[1]) * (T)0.5, half[3][column] = g[2];
          }
#pragma GCC unroll 4
          for (int y = 0; y < SPAN; ++y) {
            const V *g = half[y], sum = g[0] + g[2];
            const V points[SPAN] = {g[0], (sum + g[1]) * (T)0.5, (sum - g[1]) * (T)0.5, g[2]};
#pragma GCC unroll 4
            for (int x = 0; x < SPAN; ++x) *(V *)(target + (y * SPAN + x) * step) = points[x];
          }
        }
    }
  }

  // Sums at the points of one row of a strip, to its results' even rows (upper) and odd ones: A' M A.
  static INLINE_METHOD void to_results(const T *sums, int64_t step, T *upper, T *lower) {
    typedef typename CountLanes<L>::Type All;
    V half[2][SPAN];
#pragma GCC unroll 4
    for (int column = 0; column < SPAN; ++column) {
      const V m0 = *(const V *)(sums + column * step), m1 = *(const V *)(sums + (SPAN + column) * step);
      const V m2 = *(const V *)(sums + (2 * SPAN + column) * step), m3 = *(const V *)(sums + (3 * SPAN + column) * step);
      half[0][column] = m0 + (m1 + m2), half[1][column] = (m1 - m2) - m3;
    }
    T *const to[2] = {upper, lower};
#pragma GCC unroll 2
    for (int row = 0; row < 2; ++row) {
      const V *m = half[row], even = m[0] + (m[1] + m[2]), odd = (m[1] - m[2]) - m[3];
      *(Unaligned *)to[row] = in_turns<0>(even, odd, All());
      *(Unaligned *)(to[row] + L) = in_turns<1>(even, odd, All());
    }
  }

  static void copy(T *to, const T *from, int64_t count) {  // And some elements more.
    for (int64_t i = 0; i < count; i += L) *(Unaligned *)(to + i) = *(const Unaligned *)(from + i);
  }

  // The results of a panel of rows, and what is made of them.
  void finish_panel(int64_t batch, int64_t panel, int64_t row, int64_t rows, const T *sums, T *results, T *turned) const {
    const int64_t first_line = panel / line_parts * per_panel, stop = min_int(lines, first_line + per_panel);
    const int64_t first = panel % line_parts * part, tiles = min_int(part, across - first);
    const int64_t length = min_int(2 * tiles, w.width - 2 * first), room = row_count();
    T *const lower = turned + 2 * MOST + SLACK;
    // One run of results where lines are whole, one for each line of results otherwise.
    for (int64_t half = 0; half < (line_parts > 1 ? 2 : 1); ++half) {
      int64_t begin = -1, count = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t strip = 0; strip * WIDTH < panel_tiles; ++strip) {
          const int64_t lanes = width_of(strip), step = p.rows * lanes;
          const T *const from = sums + strip * POINTS * p.rows * WIDTH + r * lanes;
          for (int64_t lane = 0; lane < lanes; lane += L)
            to_results(from + lane, step, turned + 2 * (strip * WIDTH + lane), lower + 2 * (strip * WIDTH + lane));
        }
        T *const to = results + r * room;
        count = 0;
        for (int64_t line = first_line; line < stop; ++line) {
          const int64_t image = line / down, y = 2 * (line % down), place = 2 * (line - first_line) * tiles;
          for (int64_t odd = half; odd < (line_parts > 1 ? half + 1 : 2); ++odd) {
            if (y + odd >= w.height) continue;
            if (!count) begin = (image * w.height + y + odd) * w.width + 2 * first;
            copy(to + count, (odd ? lower : turned) + place, length);
            count += length;
          }
        }
      }
      if (!count) continue;
      if (!finite(results, rows, count)) plain_sums(p, batch, row, rows, begin, count, results, room, pitch, turned);
      p.finish(p.context, batch, row, rows, begin, count, results, room);
    }
  }

  bool finite(T *results, int64_t rows, int64_t count) const {
    V any = V{};
    for (int64_t r = 0; r < rows; ++r) {
      T *const row = results + r * row_count();
      for (int64_t i = count; i % L; ++i) row[i] = 0;
      for (int64_t i = 0; i < count; i += L) any += *(const V *)(row + i) * (T)0;
    }
    T sum = 0;
    for (int i = 0; i < L; ++i) sum += any[i];
    return sum == 0;
  }

  // Task `number` of a block of panels: some groups of rows against some of the panels.
  void multiply(int64_t batch, int64_t first_panel, int64_t number) {
    T *const weights = (T *)own, *const sums = (T *)(own + lines_of(weight_count()));
    T *const results = (T *)((char *)sums + lines_of(tile_count())), *const raw = (T *)((char *)results + lines_of(p.rows * row_count()));
    const int64_t here = min_int(together, panels - first_panel), share = parts(here, shares), begin = number % shares * share;
    const int64_t end = min_int(here, begin + share), group = number / shares * group_block;
    const int64_t last_group = min_int(groups, group + group_block), first_row = group * per_group * p.rows;
    const int64_t row_panels = parts(min_int(last_group * per_group * p.rows, p.m) - first_row, p.rows);
    if (begin >= end || row_panels <= 0) return;
    for (int64_t g = group; g < last_group; ++g) transform_weights(batch, g, weights + (g - group) * group_step, raw);
    const int64_t weight_step = channels * pitch + L, panel_sums = POINTS * p.rows * parts(per_panel * part, WIDTH) * WIDTH;
    for (int64_t panel = begin; panel < end; ++panel) {
      at_panel(first_panel + panel);
      for (int64_t strip = 0; strip * WIDTH < panel_tiles; ++strip) {
        const int64_t lanes = width_of(strip), step = p.rows * lanes;
        const bool slim = lanes < WIDTH;
        for (int64_t point = 0; point < POINTS; ++point)
          for (int64_t from = 0; from < channels; from += DEPTH) {
            const int64_t depth = min_int(DEPTH, channels - from);
            const T *const right = elements + panel * panel_step + strip * strip_step + point * element_step + from * lanes;
            for (int64_t r = 0; r < row_panels; ++r) {
              const T *left = weights + r / per_group * group_step + point * weight_step + from * pitch + r % per_group * p.rows;
              const bool last = first_row + (r + 1) * p.rows >= p.m;
              const auto product = slim ? (last ? p.last_slim : p.slim) : (last ? p.last_wide : p.wide);
              T *const tile = sums + r * panel_sums + strip * POINTS * p.rows * WIDTH + point * step;
              product({left, 1, pitch, p.rows}, right, lanes, depth, tile, lanes, from == 0);
            }
          }
      }
      for (int64_t r = 0; r < row_panels; ++r) {
        const int64_t row = first_row + r * p.rows;
        finish_panel(batch, first_panel + panel, row, min_int(p.rows, p.m - row), sums + r * panel_sums, results, raw);
      }
    }
  }

  void run(int64_t batch) {
    const int64_t chunks = parts(channels, CHANNELS), tasks = blocks * shares;
    T *const raw = (T *)own;
    for (int64_t first = 0; first < panels; first += together) {
      const int64_t here = min_int(together, panels - first);
#pragma omp for schedule(dynamic)
      for (int64_t number = 0; number < here * chunks; ++number) {
        const int64_t panel = number / chunks, channel = number % chunks * CHANNELS;
        at_panel(first + panel);
        transform_elements(batch, first + panel, channel, min_int(CHANNELS, channels - channel), elements + panel * panel_step, raw);
      }
#pragma omp for schedule(dynamic)
      for (int64_t number = 0; number < tasks; ++number) multiply(batch, first, number);
    }
  }
};

static int64_t threads_for(int64_t products) { return products < PARALLEL_PRODUCTS ? 1 : omp_get_max_threads(); }
// Bytes that a launch may use. Memory beside the caller's is worth more than what smaller blocks cost. A caller without any has not
// planned.
static int64_t most_bytes(const Spare &spare) { return spare.memory ? max_int(spare.bytes, LEAST_BYTES) : (int64_t)(~0ull >> 1); }

// A product by way of the points, batch after batch. What threads have of their own lies on their stacks where it is little enough.
template <class METHOD, class T> static int32_t by_points(const Product<T> &p, METHOD method, int64_t threads) {
  Spare spare = p.spare;
  const Memory memory(spare, method.bytes(threads));
  if (!memory.data) return OUT_OF_MEMORY;
  method.use(memory.data);
#pragma omp parallel firstprivate(method) num_threads(threads) if (threads > 1)
  {
    if (method.stacked()) method.own = aligned_to_line(__builtin_alloca(method.own_bytes() + 64));
    else method.own = memory.data + method.shared_bytes() + omp_get_thread_num() * method.own_bytes();
    for (int64_t batch = 0; batch < p.batches; ++batch) method.run(batch);
  }
  return OK;
}

// The product of weights and windows, whichever way is fastest.
template <class T> static int32_t product_of_windows(const Product<T> &given, const Windows<T> &w) {
  if (given.batches <= 0 || given.m <= 0 || given.n <= 0) return OK;
  const Slides<T> slides(given, w, threads_for(given.batches * given.m * given.n * given.k));
  const Sizes sizes = {w.images, w.height, w.width, slides.channels, given.m};
  const bool filters = w.tall == 3 && w.wide == 3 && filters_minimally(sizes);
  if (slides.fit() && slides.work() < (filters ? filtered_work(sizes) : packed_work(sizes, slides.taps))) return sliding_product(slides);
  if (!filters) return matrix_product(given);
  const int64_t across = (w.width + 1) / 2, lines = w.images * ((w.height + 1) / 2);
  const int64_t threads = threads_for(given.m * given.n * given.k), limit = most_bytes(given.spare);
  for (int64_t tiles = Filtering<T>::MOST;; tiles = Filtering<T>::WIDTH) {
    Product<T> p = given;
    choose_tiles(p, across > tiles ? line_part(across, tiles) : panel_lines(lines, across, tiles) * across);
    const Filtering<T> method(p, w, threads, tiles, limit);
    if (tiles == Filtering<T>::WIDTH || method.bytes(threads) <= limit) return by_points(p, method, threads);
  }
}
