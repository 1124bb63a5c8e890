// The gradient of a convolution's weights by minimal filtering. Follows winograd.h, whose transformations it uses the other way
// round: the weight gradient of windows of 3x3 that move by one element is
//
//   W = G' [sum over tiles of (A y A') * (B' x B)] G
//
// where y are 2x2 elements of the left factor, and x the 4x4 elements that their windows cover. At every one of the 16 points, the
// sum over the tiles is a matrix product.

enum : int64_t {
  GRADIENT_TILES = 128,             // In a panel, about.
  GRADIENT_BYTES = 8 << 20,         // Of transformed factors, which all threads share, where there is so much memory.
  GRADIENT_ROWS = 48,               // Whose sums a thread keeps, about.
};

template <class T> struct Gathering {
  typedef typename Lane<T>::Vector V;
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
  enum : int64_t { L = Lane<T>::COUNT, WIDTH = L * TILE_VECTORS };

  const Product<T> &p;
  const Overlaps<T> &o;
  int64_t channels, across, down, lines, per_panel, part, line_parts, panels, most, together;
  int64_t per_group, pitch, groups, strips, group_block;
  int64_t group_part, strip_part;   // Of a part of the result, for which factors are transformed and sums kept.
  int64_t left_step, right_step;    // From point to point.
  int64_t left_panel, right_panel;  // Of a part's groups and strips.
  int64_t tile_step;                // Sums of a panel of rows and a strip.
  T *left, *right, *kept;
  char *own;

  Gathering(const Product<T> &product, const Overlaps<T> &overlaps, int64_t threads, int64_t limit) : p(product), o(overlaps) {
    channels = p.n / 9, across = parts(o.width, 2), down = parts(o.height, 2), lines = o.images * down;
    per_panel = max_int(panel_lines(lines, across, GRADIENT_TILES), 1), part = line_part(across, GRADIENT_TILES);
    line_parts = parts(across, part), panels = parts(lines, per_panel) * line_parts, most = per_panel * part;
    per_group = max_int(L / p.rows, 1), pitch = parts(p.rows, L) * L, groups = parts(p.m, per_group * p.rows);
    strips = parts(channels, WIDTH);
    left_step = most * pitch + L, right_step = most * WIDTH + L;
    tile_step = POINTS * p.rows * WIDTH;
    // The parts of which least is transformed, of those that there is memory for; or those that need least.
    int64_t best_rows = 1, best_columns = 1, least_work = -1, least_bytes = -1;
    for (int64_t columns = 1; columns < 2 * strips; columns *= 2)
      for (int64_t rows = 1; rows < 2 * groups; rows *= 2) {
        divide(rows, columns, threads, limit);
        const int64_t over = max_int(bytes(threads), limit), work = columns * p.m + (keeps() ? rows : 1) * channels;
        if (least_work >= 0 && (over > least_bytes || (over == least_bytes && work >= least_work))) continue;
        best_rows = rows, best_columns = columns, least_work = work, least_bytes = over;
      }
    divide(best_rows, best_columns, threads, limit);
  }
  // The result into parts, and panels together as `limit` bytes hold.
  void divide(int64_t rows, int64_t columns, int64_t threads, int64_t limit) {
    group_part = parts(groups, rows), strip_part = parts(strips, columns);
    left_panel = group_part * POINTS * left_step, right_panel = strip_part * POINTS * right_step;
    group_block = max_int(1, GRADIENT_ROWS / (per_group * p.rows));
    while (group_block > 1 && parts(group_part, group_block) * strip_part < 4 * threads) --group_block;
    together = min_int(panels, max_int(1, GRADIENT_BYTES / ((left_panel + right_panel) * (int64_t)sizeof(T))));
    while (together > 1 && bytes(threads) > limit) --together;
    together = parts(panels, parts(panels, together));
  }

  static int64_t lines_of(int64_t count) { return parts(count * (int64_t)sizeof(T), 64) * 64; }
  bool keeps() const { return together < panels; }  // The sums, from some panels to the next.
  int64_t left_bytes() const { return lines_of(together * left_panel); }
  int64_t right_bytes() const { return lines_of(together * right_panel); }
  int64_t kept_bytes() const { return keeps() ? lines_of(strip_part * group_part * per_group * tile_step) : 0; }
  int64_t shared_bytes() const { return left_bytes() + right_bytes() + kept_bytes(); }
  int64_t raw_count() const { return line_parts > 1 ? SPAN * (2 * part + 2) * L : (2 * per_panel + 2) * (o.width + 2) * L; }
  int64_t row_count() const { return 9 * WIDTH + L; }  // Results of a row.
  int64_t own_bytes() const {
    const int64_t again = DEPTH * (WIDTH + pitch) + p.rows * WIDTH;
    return lines_of(keeps() ? 0 : group_block * per_group * tile_step) + lines_of(p.rows * row_count()) +
           lines_of(max_int(raw_count(), again));
  }
  bool stacked() const { return own_bytes() <= STACK_BYTES; }
  int64_t bytes(int64_t threads) const { return shared_bytes() + (stacked() ? 0 : threads * own_bytes()); }
  void use(char *memory) {
    left = (T *)memory, right = (T *)(memory + left_bytes()), kept = (T *)(memory + left_bytes() + right_bytes());
  }

  // Tiles of SIDE x SIDE elements under one panel, of up to L rows of a factor, to their points: tile t at to[t * width]. The
  // factor's steps are (images, height + margin, width + margin); what lies outside of them is zero.
  template <int SIDE, class Transform>
  void transform(const Factor<T> &f, int64_t batch, int64_t row, int64_t count, int64_t panel, T *to, int64_t width, T *raw, Transform points) const {
    enum : int64_t { MARGIN = SIDE - 2 };
    const int64_t first_line = panel / line_parts * per_panel, stop = min_int(lines, first_line + per_panel);
    const int64_t first = panel % line_parts * part, tiles = min_int(part, across - first);
    const int64_t whole_width = o.width + MARGIN, whole_height = o.height + MARGIN, columns = min_int(2 * tiles + MARGIN, whole_width - 2 * first);
    for (int64_t line = first_line, next; line < stop; line = next) {
      const int64_t image = line / down, y = 2 * (line % down);
      next = min_int(stop, (image + 1) * down);
      const int64_t rows = min_int(2 * (next - line) + MARGIN, whole_height - y);
      const int64_t start = (image * whole_height + y) * whole_width + 2 * first;
      const int64_t pitch = line_parts > 1 ? columns : whole_width;
      if (line_parts == 1) pack(f, batch, row, count, L, start, rows * pitch, raw);
      else
        for (int64_t r = 0; r < rows; ++r) pack(f, batch, row, count, L, start + r * whole_width, columns, raw + r * columns * L);
      for (int64_t l = line; l < next; ++l)
        for (int64_t tile = 0; tile < tiles; ++tile, to += width) {
          V x[SIDE][SIDE];
#pragma GCC unroll 4
          for (int i = 0; i < SIDE; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < SIDE; ++j) {
              const int64_t r = 2 * (l - line) + i, c = 2 * tile + j;
              // Only the last line and the last column may lack something.
              const bool inside = (i < SIDE - 1 || r < rows) && (j < SIDE - 1 || c < columns);
              x[i][j] = inside ? *(const V *)(raw + (r * pitch + c) * L) : V{};
            }
          points(x, to);
        }
    }
  }

  void transform_left(int64_t batch, int64_t panel, int64_t group, T *to, T *raw) const {
    const int64_t row = group * per_group * p.rows, rows = min_int(per_group * p.rows, p.m - row), step = left_step;
    for (int64_t lane = 0; lane < pitch; lane += L)
      transform<2>(p.left, batch, row + lane, min_int(L, rows - lane), panel, to + lane, pitch, raw, [=](const V (&y)[2][2], T *target) INLINE_LAMBDA {
        V half[SPAN][2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) half[0][j] = y[0][j], half[1][j] = y[0][j] + y[1][j], half[2][j] = y[0][j] - y[1][j], half[3][j] = -y[1][j];
#pragma GCC unroll 4
        for (int i = 0; i < SPAN; ++i) {
          const V a = half[i][0], b = half[i][1];
          const V points[SPAN] = {a, a + b, a - b, -b};
#pragma GCC unroll 4
          for (int j = 0; j < SPAN; ++j) *(V *)(target + (i * SPAN + j) * step) = points[j];
        }
      });
  }

  void transform_right(int64_t batch, int64_t panel, int64_t lane, T *to, T *raw) const {
    const int64_t step = right_step;
    transform<4>(o.elements, batch, lane, min_int(L, channels - lane), panel, to + lane % WIDTH, width_of(lane / WIDTH), raw,
                 [=](const V (&x)[4][4], T *target) INLINE_LAMBDA {
                   V half[SPAN][SPAN];
#pragma GCC unroll 4
                   for (int j = 0; j < SPAN; ++j)
                     half[0][j] = x[0][j] - x[2][j], half[1][j] = x[1][j] + x[2][j], half[2][j] = x[2][j] - x[1][j], half[3][j] = x[1][j] - x[3][j];
#pragma GCC unroll 4
                   for (int i = 0; i < SPAN; ++i) {
                     const V *h = half[i], points[SPAN] = {h[0] - h[2], h[1] + h[2], h[2] - h[1], h[1] - h[3]};
#pragma GCC unroll 4
                     for (int j = 0; j < SPAN; ++j) *(V *)(target + (i * SPAN + j) * step) = points[j];
                   }
                 });
  }

  // Lanes that a strip is computed with.
  int64_t width_of(int64_t strip) const {
    const int64_t count = min_int(WIDTH, channels - strip * WIDTH);
    return count <= p.narrow ? p.narrow : (int64_t)WIDTH;
  }

  // Sums at the points of L channels to the window's weights: G' M G, channel after channel.
  static INLINE_METHOD void to_weights(const T *sums, int64_t step, T *to) {
    V half[3][SPAN], block[L];
#pragma GCC unroll 4
    for (int j = 0; j < SPAN; ++j) {
      const V m0 = *(const V *)(sums + j * step), m1 = *(const V *)(sums + (SPAN + j) * step);
      const V m2 = *(const V *)(sums + (2 * SPAN + j) * step), m3 = *(const V *)(sums + (3 * SPAN + j) * step);
      const V sum = (m1 + m2) * (T)0.5;
      half[0][j] = m0 + sum, half[1][j] = (m1 - m2) * (T)0.5, half[2][j] = sum + m3;
    }
    V taps[9];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      const V *m = half[i], sum = (m[1] + m[2]) * (T)0.5;
      taps[3 * i] = m[0] + sum, taps[3 * i + 1] = (m[1] - m[2]) * (T)0.5, taps[3 * i + 2] = sum + m[3];
    }
    if constexpr (L >= 9) {
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) block[i] = i < 9 ? taps[i] : V{};
      exchange_rows<L / 2, L>(block);
      // What follows a channel's weights is overwritten by the next one.
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) *(Unaligned *)(to + 9 * i) = block[i];
    } else {
      for (int i = 0; i < L; ++i)
        for (int tap = 0; tap < 9; ++tap) to[9 * i + tap] = taps[tap][i];
    }
  }

  void finish_panel(int64_t batch, int64_t row, int64_t rows, int64_t strip, const T *sums, T *results, T *memory) const {
    const int64_t first = strip * WIDTH, count = 9 * min_int(WIDTH, channels - first), lanes = width_of(strip), room = row_count();
    T worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      T *const to = results + r * room;
      for (int64_t lane = 0; lane < lanes; lane += L) to_weights(sums + r * lanes + lane, p.rows * lanes, to + 9 * lane);
#pragma omp simd reduction(+ : worst)
      for (int64_t i = 0; i < count; ++i) worst += to[i] * (T)0;
    }
    if (worst != 0) plain_sums(p, batch, row, rows, 9 * first, count, results, room, pitch, memory);
    p.finish(p.context, batch, row, rows, 9 * first, count, results, room);
  }

  // Task `number` of a part: some groups of rows against a strip, over the panels at hand.
  void multiply(int64_t batch, int64_t first, int64_t first_group, int64_t first_strip, int64_t number) const {
    const int64_t strips_here = min_int(strip_part, strips - first_strip), at_strip = number % strips_here, strip = first_strip + at_strip;
    const int64_t at_group = number / strips_here * group_block, group = first_group + at_group;
    const int64_t last_group = min_int(min_int(groups, first_group + group_part), group + group_block);
    const int64_t here = min_int(together, panels - first), first_row = group * per_group * p.rows, lanes = width_of(strip);
    const int64_t row_panels = parts(min_int(last_group * per_group * p.rows, p.m) - first_row, p.rows), step = p.rows * lanes;
    T *const sums = keeps() ? kept + (at_strip * group_part + at_group) * per_group * tile_step : (T *)own;
    T *const results = (T *)(own + lines_of(keeps() ? 0 : group_block * per_group * tile_step));
    T *const memory = (T *)((char *)results + lines_of(p.rows * row_count()));
    const bool slim = lanes < WIDTH;
    for (int64_t panel = 0; panel < here; ++panel) {
      const int64_t first_line = (first + panel) / line_parts * per_panel, column = (first + panel) % line_parts * part;
      const int64_t tiles = min_int(per_panel, lines - first_line) * min_int(part, across - column);
      for (int64_t point = 0; point < POINTS; ++point) {
        const T *const b = right + panel * right_panel + (at_strip * POINTS + point) * right_step;
        for (int64_t r = 0; r < row_panels; ++r) {
          const T *const a = left + panel * left_panel + ((at_group + r / per_group) * POINTS + point) * left_step + r % per_group * p.rows;
          const bool last = first_row + (r + 1) * p.rows >= p.m;
          const auto product = slim ? (last ? p.last_slim : p.slim) : (last ? p.last_wide : p.wide);
          product({a, 1, pitch, p.rows}, b, lanes, tiles, sums + r * tile_step + point * step, lanes, first + panel == 0);
        }
      }
    }
    if (first + here < panels) return;
    for (int64_t r = 0; r < row_panels; ++r) {
      const int64_t row = first_row + r * p.rows;
      finish_panel(batch, row, min_int(p.rows, p.m - row), strip, sums + r * tile_step, results, memory);
    }
  }

  void run(int64_t batch) const {
    T *const raw = (T *)((char *)own + own_bytes() - lines_of(max_int(raw_count(), DEPTH * (WIDTH + pitch) + p.rows * WIDTH)));
    for (int64_t strip = 0; strip < strips; strip += strip_part)
      for (int64_t group = 0; group < groups; group += group_part) {
        const int64_t strips_here = min_int(strip_part, strips - strip), groups_here = min_int(group_part, groups - group);
        const int64_t lane = strip * WIDTH, vectors = parts(min_int(strips_here * WIDTH, channels - lane), L);
        // Where nothing is kept, the right factor is there from the first group on.
        const int64_t jobs = groups_here + (group == 0 || keeps() ? vectors : 0), tasks = parts(groups_here, group_block) * strips_here;
        for (int64_t first = 0; first < panels; first += together) {
          const int64_t here = min_int(together, panels - first);
#pragma omp for schedule(dynamic)
          for (int64_t number = 0; number < here * jobs; ++number) {
            const int64_t panel = number / jobs, job = number % jobs, from = (job - groups_here) * L;
            if (job < groups_here) transform_left(batch, first + panel, group + job, left + panel * left_panel + job * POINTS * left_step, raw);
            else transform_right(batch, first + panel, lane + from, right + panel * right_panel + from / WIDTH * POINTS * right_step, raw);
          }
#pragma omp for schedule(dynamic)
          for (int64_t number = 0; number < tasks; ++number) multiply(batch, first, group, strip, number);
        }
      }
  }
};

// The product of a gradient and windows, whichever way is faster.
template <class T> static int32_t product_of_overlaps(const Product<T> &given, const Overlaps<T> &o) {
  if (given.batches <= 0 || given.m <= 0 || given.n <= 0) return OK;
  if (!filters_minimally({o.images, o.height, o.width, given.n / 9, given.m})) return matrix_product(given);
  Product<T> p = given;
  choose_tiles(p, p.n / 9);
  const int64_t threads = threads_for(p.m * p.n * p.k);
  return by_points(p, Gathering<T>(p, o, threads, most_bytes(p.spare)), threads);
}
