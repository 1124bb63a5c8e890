// Convolutions with windows that move by one element and have few channels: packing the columns of their products (gemm.h) writes
// each element once for each weight of a window, as much work as the products of many rows with it. Here the elements under a band of
// results are copied once, with what lies beside them; the columns of a step are this copy, so many elements further on. Positions are
// counted across what lies beside, too: sums of windows that wrap around an edge are computed in vain. Follows gemm.h.
//
// Where results and elements have their channels last in memory, lanes are results of one position instead, and the copy has the
// channels of an element side by side.

enum : int64_t { MOST_TAPS = 64 };  // Weights of a window.

// How far elements of a window are from its first one.
struct Offsets {
  int64_t count, of[MOST_TAPS];
};

// tile[i][j] = (fresh ? 0 : tile[i][j]) + the sum over `channels` and offsets of left[step][i] * from[channel * plane + offset + j], for
// a tile of M rows and N vectors; the left factor's steps are `apart`, rows of the tile `pitch`.
template <class T, int M, int N>
static __attribute__((noinline)) void sliding_tile(const T *left, int64_t apart, const T *from, int64_t plane, const Offsets &offsets, int64_t channels, T *tile, int64_t pitch, bool fresh) {
  Sums<T, M, N> sums;
  for (int64_t channel = 0; channel < channels; ++channel, from += plane)
#pragma GCC unroll 3
    for (int64_t offset = 0; offset < offsets.count; ++offset, left += apart)
      sums.add_products([&](int i) INLINE_LAMBDA { return left[i]; }, from + offsets.of[offset]);
  sums.add_to(tile, pitch, fresh);
}
template <class T> using SlidingTile = void (*)(const T *, int64_t, const T *, int64_t, const Offsets &, int64_t, T *, int64_t, bool);
template <class T> struct SlidingTiles {
  enum { HALF_VECTORS = TILE_VECTORS / 2 };
  SlidingTile<T> wide[TILE_ROWS], slim[TILE_ROWS];  // By rows.
  template <int... I> constexpr explicit SlidingTiles(Lanes<I...>) : wide{sliding_tile<T, I + 1, TILE_VECTORS>...}, slim{sliding_tile<T, I + 1, HALF_VECTORS>...} {}
};

// tile[i][j] = (fresh ? 0 : tile[i][j]) + the sum over `channels` and offsets of from[i * pixel + offset + channel] * right[step][j],
// for a tile of M positions and N vectors; the right factor's steps are `apart`, rows of the tile too.
template <class T, int M, int N>
static __attribute__((noinline)) void pixel_tile(const T *right, int64_t apart, const T *from, int64_t pixel, const Offsets &offsets, int64_t channels, T *tile, bool fresh) {
  enum { GROUP = 4 };  // Of rows that are addressed from one: processors multiply a distance by 2.
  Sums<T, M, N> sums;
  const int64_t step = offsets.count * apart;
  for (int64_t offset = 0; offset < offsets.count; ++offset) {
    const T *columns = right + offset * apart, *row[(M + GROUP - 1) / GROUP];
#pragma GCC unroll 8
    for (int i = 0; i < M; i += GROUP) row[i / GROUP] = from + offsets.of[offset] + i * pixel;
    for (int64_t channel = 0; channel < channels; ++channel, columns += step)
      sums.add_products([&](int i) INLINE_LAMBDA { return row[i / GROUP][i % GROUP * pixel + channel]; }, columns);
  }
  sums.add_to(tile, apart, fresh);
}
template <class T> using PixelTile = void (*)(const T *, int64_t, const T *, int64_t, const Offsets &, int64_t, T *, bool);
template <class T> struct PixelTiles {
  enum { WIDE = TILE_VECTORS / 2, MOST = 14 };
  PixelTile<T> slim[MOST], wide[MOST];  // Of one vector and of WIDE, by rows.
  template <int... I> constexpr explicit PixelTiles(Lanes<I...>) : slim{pixel_tile<T, I + 1, 1>...}, wide{pixel_tile<T, I + 1, WIDE>...} {}
};

// How a product is cut: each image of each batch into bands of lines, which are tasks.
template <class T> struct Slides {
  enum : int64_t {
    L = Lane<T>::COUNT,
    WIDTH = L * TILE_VECTORS,
    SLIM = WIDTH / 2,
    BAND_BYTES = 192 << 10,         // Of a band's elements and sums.
    MOST_ROWS = 32,                 // With more, packed columns pay.
  };

  const Product<T> &p;
  const Windows<T> &w;
  int64_t threads, taps, channels, block, line, lines, bands, plane, room, apart;
  bool by_pixels;  // Whether lanes are results of one position.

  Slides(const Product<T> &product, const Windows<T> &windows, int64_t team) : p(product), w(windows), threads(team) {
    taps = w.tall * w.wide, channels = p.k / taps, block = max_int(DEPTH / taps, 1);
    line = w.width + w.wide - 1, apart = parts(p.m, L) * L, by_pixels = w.finish && w.elements.along && 3 * apart <= 4 * p.m;
    const int64_t tasks = max_int(p.batches * w.images, 1), line_bytes = (channels + p.m) * line * (int64_t)sizeof(T);
    lines = min_int(w.height, max_int(BAND_BYTES / line_bytes - (w.tall - 1), 1));
    if (threads > 1) lines = min_int(lines, parts(w.height, parts(4 * threads, tasks)));
    lines = parts(w.height, parts(w.height, lines)), bands = parts(w.height, lines);
    room = parts(lines * line - (w.wide - 1), SLIM) * SLIM;
    plane = (lines + w.tall - 1) * line + (by_pixels ? 0 : WIDTH);  // The last columns of a tile read beyond a band.
  }

  static int64_t whole_lines(int64_t elements) { return parts(elements * (int64_t)sizeof(T), 64) * 64; }
  int64_t left_bytes() const { return whole_lines(p.k * apart); }
  int64_t element_bytes() const { return whole_lines(channels * plane); }
  // A thread's: the left factor, a band's elements and its sums.
  int64_t bytes() const { return left_bytes() + element_bytes() + whole_lines(by_pixels ? w.width * apart : p.m * room); }

  // Whether all that lies on a thread's stack, and whether packing columns takes as long as the products with them: it does where they
  // are turned.
  bool fit() const { return bytes() <= STACK_BYTES && taps <= MOST_TAPS && (p.m <= MOST_ROWS || w.elements.along); }

  // As products.h's other ways count it, in products of one lane (winograd.h).
  int64_t work() const { return 7 * taps * w.images * w.height * channels * (by_pixels ? w.width * apart : line * p.m) / 10; }

  void pack_left(int64_t batch, char *own) const { pack(p.left, batch, 0, p.m, apart, 0, p.k, (T *)own); }

  // Distances of a window's elements, where neighbours are so far apart.
  Offsets offsets(int64_t apart) const {
    Offsets found = {taps, {}};
    for (int64_t y = 0; y < w.tall; ++y)
      for (int64_t x = 0; x < w.wide; ++x)
        found.of[y * w.wide + x] = ((w.down ? y : w.tall - 1 - y) * line + (w.across ? x : w.wide - 1 - x)) * apart;
    return found;
  }

  void task(int64_t batch, int64_t image, int64_t band, char *own) const {
    const T *const left = (const T *)own;
    T *const elements = (T *)(own + left_bytes()), *const sums = (T *)(own + left_bytes() + element_bytes());
    const int64_t first = band * lines, here = min_int(lines, w.height - first), count = (here + w.tall - 1) * line;
    const int64_t from = (image * (w.height + w.tall - 1) + first) * line, to = (image * w.height + first) * w.width;
    if (by_pixels) {
      fill_block(w.elements, batch, from, count, 0, channels, elements, channels);
      for (int64_t y = 0; y < here; ++y) pixels(batch, to + y * w.width, left, elements + y * line * channels, sums);
      return;
    }
    pack(w.elements, batch, from, count, count, 0, channels, elements, plane);
    for (int64_t channel = 0; channel < channels; ++channel)
      __builtin_memset(elements + channel * plane + count, 0, (plane - count) * sizeof(T));
    planes(here * line - (w.wide - 1), left, elements, sums);
    for (int64_t y = 0; y < here; ++y) p.finish(p.context, batch, 0, p.m, to + y * w.width, w.width, sums + y * line, room);
  }

  // The sums of so many columns.
  void planes(int64_t columns, const T *left, const T *elements, T *sums) const {
    static constexpr SlidingTiles<T> tiles(typename CountLanes<TILE_ROWS>::Type{});
    const Offsets steps = offsets(1);
    for (int64_t channel = 0; channel < channels; channel += block)
      for (int64_t column = 0, width; column < columns; column += width) {
        width = columns - column > SLIM ? WIDTH : SLIM;
        for (int64_t row = 0, rows; row < p.m; row += rows) {
          rows = min_int(tile_rows(p.m), p.m - row);
          const auto run = (width == WIDTH ? tiles.wide : tiles.slim)[rows - 1];
          run(left + channel * taps * apart + row, apart, elements + channel * plane + column, plane, steps, min_int(block, channels - channel), sums + row * room + column, room, channel == 0);
        }
      }
  }

  // The results of one line of positions, which begins at `first`.
  void pixels(int64_t batch, int64_t first, const T *right, const T *elements, T *sums) const {
    typedef PixelTiles<T> Tiles;
    static constexpr Tiles tiles(typename CountLanes<Tiles::MOST>::Type{});
    const Offsets steps = offsets(channels);
    const int64_t most = parts(w.width, parts(w.width, Tiles::MOST));
    for (int64_t channel = 0; channel < channels; channel += block)
      for (int64_t column = 0, lanes; column < apart; column += lanes) {
        lanes = apart - column >= Tiles::WIDE * L ? Tiles::WIDE * L : (int64_t)L;
        for (int64_t x = 0, rows; x < w.width; x += rows) {
          rows = min_int(most, w.width - x);
          const auto run = (lanes > L ? tiles.wide : tiles.slim)[rows - 1];
          run(right + channel * taps * apart + column, apart, elements + x * channels + channel, channels, steps, min_int(block, channels - channel), sums + x * apart + column, channel == 0);
        }
      }
    w.finish(w.context, batch, first, w.width, 0, p.m, sums, apart);
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
