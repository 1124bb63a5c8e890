// Convolutions with windows of 3x3 that move by one element and have few channels: packing the columns of their products (gemm.h)
// writes each element nine times, as much work as the products of many rows with it. Here the elements under a band of results are
// copied once, with what lies beside them; the columns of a step are this copy, so many elements further on. Positions are counted
// across what lies beside, too: sums of windows that wrap around an edge are computed in vain. Follows gemm.h.

// tile[i][j] = (fresh ? 0 : tile[i][j]) + the sum over `channels` and offsets of left[step][i] * from[channel * plane + offset + j], for
// a tile of M rows and N vectors; the left factor's steps are `apart`, rows of the tile `pitch`.
template <class T, int M, int N>
static __attribute__((noinline)) void sliding_tile(const T *left, int64_t apart, const T *from, int64_t plane, const int64_t *offsets, int64_t channels, T *tile, int64_t pitch, bool fresh) {
  Sums<T, M, N> sums;
  for (int64_t channel = 0; channel < channels; ++channel, from += plane)
#pragma GCC unroll 3
    for (int offset = 0; offset < 9; ++offset, left += apart)
      sums.add_products([&](int i) INLINE_LAMBDA { return left[i]; }, from + offsets[offset]);
  sums.add_to(tile, pitch, fresh);
}
template <class T> using SlidingTile = void (*)(const T *, int64_t, const T *, int64_t, const int64_t *, int64_t, T *, int64_t, bool);
template <class T> struct SlidingTiles {
  enum { HALF_VECTORS = TILE_VECTORS / 2 };
  SlidingTile<T> wide[TILE_ROWS], slim[TILE_ROWS];  // By rows.
  template <int... I> constexpr explicit SlidingTiles(Lanes<I...>) : wide{sliding_tile<T, I + 1, TILE_VECTORS>...}, slim{sliding_tile<T, I + 1, HALF_VECTORS>...} {}
};

// How a product is cut: each image of each batch into bands of lines, which are tasks.
template <class T> struct Slides {
  enum : int64_t {
    L = Lane<T>::COUNT,
    WIDTH = L * TILE_VECTORS,
    SLIM = WIDTH / 2,
    BAND_BYTES = 192 << 10,         // Of a band's elements and sums.
    BLOCK = DEPTH / 9,              // Channels that are summed in one go.
    MOST_ROWS = 32,                 // With more, packed columns pay.
  };

  const Product<T> &p;
  const Windows<T> &w;
  int64_t threads, channels, line, lines, bands, plane, room, apart;

  Slides(const Product<T> &product, const Windows<T> &windows, int64_t team) : p(product), w(windows), threads(team) {
    channels = p.k / 9, line = w.width + 2, apart = parts(p.m, L) * L;
    const int64_t tasks = max_int(p.batches * w.images, 1), line_bytes = (channels + p.m) * line * (int64_t)sizeof(T);
    lines = min_int(w.height, max_int(BAND_BYTES / line_bytes - 2, 1));
    if (threads > 1) lines = min_int(lines, parts(w.height, parts(4 * threads, tasks)));
    lines = parts(w.height, parts(w.height, lines)), bands = parts(w.height, lines);
    room = parts(lines * line - 2, SLIM) * SLIM;
    plane = (lines + 2) * line + WIDTH;  // The last columns of a tile read beyond a band.
  }

  static int64_t whole_lines(int64_t elements) { return parts(elements * (int64_t)sizeof(T), 64) * 64; }
  int64_t left_bytes() const { return whole_lines(p.k * apart); }
  int64_t element_bytes() const { return whole_lines(channels * plane); }
  // A thread's: the left factor, a band's elements and its sums.
  int64_t bytes() const { return left_bytes() + element_bytes() + whole_lines(p.m * room); }

  // Whether all that lies on a thread's stack, and whether packing columns takes as long as the products with them: it does where they
  // are turned.
  bool fit() const { return bytes() <= STACK_BYTES && (p.m <= MOST_ROWS || w.elements.along); }

  void pack_left(int64_t batch, char *own) const { pack(p.left, batch, 0, p.m, apart, 0, p.k, (T *)own); }

  void task(int64_t batch, int64_t image, int64_t band, char *own) const {
    static constexpr SlidingTiles<T> tiles(typename CountLanes<TILE_ROWS>::Type{});
    const T *const left = (const T *)own;
    T *const elements = (T *)(own + left_bytes()), *const sums = (T *)(own + left_bytes() + element_bytes());
    const int64_t first = band * lines, here = min_int(lines, w.height - first), count = (here + 2) * line;
    pack(w.elements, batch, (image * (w.height + 2) + first) * line, count, count, 0, channels, elements, plane);
    for (int64_t channel = 0; channel < channels; ++channel)
      __builtin_memset(elements + channel * plane + count, 0, (plane - count) * sizeof(T));
    int64_t offsets[9];
    for (int64_t y = 0; y < 3; ++y)
      for (int64_t x = 0; x < 3; ++x) offsets[3 * y + x] = (w.down ? y : 2 - y) * line + (w.across ? x : 2 - x);
    for (int64_t channel = 0; channel < channels; channel += BLOCK) {
      const int64_t some = min_int(BLOCK, channels - channel);
      const T *const steps = left + channel * 9 * apart;
      for (int64_t column = 0, width; column < here * line - 2; column += width) {
        width = here * line - 2 - column > SLIM ? WIDTH : SLIM;
        for (int64_t row = 0, rows; row < p.m; row += rows) {
          rows = min_int(tile_rows(p.m), p.m - row);
          (width == WIDTH ? tiles.wide : tiles.slim)[rows - 1](steps + row, apart, elements + channel * plane + column, plane, offsets, some, sums + row * room + column, room, channel == 0);
        }
      }
    }
    for (int64_t y = 0; y < here; ++y)
      p.finish(p.context, batch, 0, p.m, (image * w.height + first + y) * w.width, w.width, sums + y * line, room);
  }
};

template <class T> static int32_t sliding_product(const Slides<T> &how) {
  const int64_t each = how.w.images * how.bands, tasks = how.p.batches * each;
#pragma omp parallel num_threads(how.threads) if (how.threads > 1)
  {
    char *const own = aligned_to_line(__builtin_alloca(how.bytes() + 64));
    int64_t packed = -1;
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < tasks; ++number) {
      const int64_t batch = number / each;
      if (batch != packed) how.pack_left(batch, own), packed = batch;
      how.task(batch, number % each / how.bands, number % how.bands, own);
    }
  }
  return OK;
}
