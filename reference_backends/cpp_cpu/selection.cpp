// Sorting, selection, search and compaction: prims whose loops depend on the data. Follows base.h in its translation unit.
// Tensors are contiguous, seen as (outer, n, inner) around the dimension worked on.

#include <algorithm>
#include <type_traits>
#include <vector>

// What values are compared as.
template <class T> INLINE T key(T v) { return v; }
INLINE float key(bf16 v) { return widen(v); }
INLINE float key(f16 v) { return widen(v); }

// NaN is larger than everything, as torch sorts it.
template <class K> INLINE bool less_than(K a, K b) { return a < b || (b != b && a == a); }

// Unsigned integers in the order of values: NaN, whatever its bits, behind everything, and zeros of both signs alike.
INLINE uint32_t rank_of(float v) {
  uint32_t bits;
  v = v == 0 ? 0.0f : v;
  __builtin_memcpy(&bits, &v, sizeof bits);
  return v != v ? 0xffffffffu : bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}
INLINE uint64_t rank_of(double v) {
  uint64_t bits;
  v = v == 0 ? 0.0 : v;
  __builtin_memcpy(&bits, &v, sizeof bits);
  return v != v ? ~0ull : bits ^ ((uint64_t)((int64_t)bits >> 63) | 0x8000000000000000ull);
}
INLINE uint64_t rank_of(int64_t v) { return (uint64_t)v ^ 0x8000000000000000ull; }
template <class K> INLINE uint32_t rank_of(K v) { return (uint32_t)(int32_t)v ^ 0x80000000u; }
INLINE uint32_t rank_of(uint32_t v) { return v; }
INLINE uint64_t rank_of(uint64_t v) { return v; }

// An element of a line: its rank and its place, which tells equal ones apart, so that every order is total and results are the
// same whatever the algorithm.
struct Wide {
  uint64_t rank, place;
  bool operator<(Wide other) const { return rank < other.rank || (rank == other.rank && place < other.place); }
  static Wide of(uint64_t rank, int64_t place) { return {rank, (uint64_t)place}; }
  int64_t at() const { return (int64_t)place; }
  static constexpr int bytes = 8;
  int digit(int n) const { return (int)(rank >> 8 * n & 255); }
};
// Ranks of four bytes, in lines of less than 2^32 elements.
struct Narrow {
  uint64_t both;
  bool operator<(Narrow other) const { return both < other.both; }
  static Narrow of(uint64_t rank, int64_t place) { return {rank << 32 | (uint64_t)place}; }
  int64_t at() const { return (int64_t)(both & 0xffffffffu); }
  static constexpr int bytes = 4;
  int digit(int n) const { return (int)(both >> (32 + 8 * n) & 255); }
};

template <class T, class Item> struct Line {
  typedef decltype(rank_of(key(T()))) Rank;
  std::vector<Item> items, other;
  // The order is that of ranks with these bits turned: all of them for a descending one.
  Rank turned;
  Rank rank(T v) const { return rank_of(key(v)) ^ turned; }
  // Loads one line; `skip_nan` leaves NaN out.
  void load(const T *in, int64_t n, int64_t step, bool down, bool skip_nan = false) {
    turned = down ? ~(Rank)0 : 0;
    items.clear();
    for (int64_t i = 0; i < n; ++i) {
      const T v = in[i * step];
      if (!(skip_nan && key(v) != key(v))) items.push_back(Item::of(rank(v), i));
    }
  }
  // Sorts by one byte after the other, the last one first; items stand in the order of their places.
  void sort() {
    const int64_t n = (int64_t)items.size();
    if (n < 192) { std::sort(items.begin(), items.end()); return; }
    std::vector<int64_t> starts(256 * Item::bytes, 0);
    for (const Item &item : items)
      for (int b = 0; b < Item::bytes; ++b) ++starts[256 * b + item.digit(b)];
    other.resize(n);
    for (int b = 0; b < Item::bytes; ++b) {
      int64_t *const start = starts.data() + 256 * b;
      if (start[items[0].digit(b)] == n) continue;
      int64_t before = 0;
      for (int d = 0; d < 256; ++d) { const int64_t count = start[d]; start[d] = before; before += count; }
      for (const Item &item : items) other[start[item.digit(b)]++] = item;
      items.swap(other);
    }
  }
  // The first k of a line, in order. Of those seen, the k best are kept, and what is not better than the last of them is not.
  void first(const T *in, int64_t n, int64_t step, bool down, int64_t k) {
    const int64_t room = 2 * k + BLOCK;
    if (n <= room) { load(in, n, step, down); std::partial_sort(items.begin(), items.begin() + k, items.end()); return; }
    load(in, room, step, down);
    Rank worst = best(k);
    for (int64_t i = room; i < n; i += BLOCK) {
      Rank ranks[BLOCK];
      const int count = (int)std::min<int64_t>(BLOCK, n - i);
      const bool any = count < BLOCK ? load_ranks(in + i * step, step, count, ranks, worst)
                       : step == 1 ? load_ranks(in + i, 1, BLOCK, ranks, worst) : load_ranks(in + i * step, step, BLOCK, ranks, worst);
      if (!any) continue;
      for (int j = 0; j < count; ++j) if (ranks[j] < worst) items.push_back(Item::of(ranks[j], i + j));
      if ((int64_t)items.size() + BLOCK > room) worst = best(k);
    }
    std::partial_sort(items.begin(), items.begin() + k, items.end());
  }
  // Ranks of some elements; whether any is better than the worst that is kept.
  INLINE_METHOD bool load_ranks(const T *in, int64_t step, int count, Rank *ranks, Rank worst) const {
    int better = 0;
#pragma omp simd reduction(| : better)
    for (int j = 0; j < count; ++j) {
      ranks[j] = rank(in[j * step]);
      better |= ranks[j] < worst;
    }
    return better;
  }
  static constexpr int BLOCK = 64;
  // Leaves the k best items; the rank of the last of them.
  Rank best(int64_t k) {
    std::nth_element(items.begin(), items.begin() + (k - 1), items.end());
    items.resize(k);
    return rank_in(items[k - 1]);
  }
  static Rank rank_in(Wide item) { return (Rank)item.rank; }
  static Rank rank_in(Narrow item) { return (Rank)(item.both >> 32); }
};

#define LINES(body)                                                         \
  _Pragma("omp parallel if (outer * n * inner >= 32768)") {                 \
    Line<T, Item> line;                                                     \
    _Pragma("omp for schedule(static)")                                     \
    for (int64_t o = 0; o < outer * inner; ++o) {                           \
      const int64_t from = o / inner * n * inner + o % inner;               \
      body                                                                  \
    }                                                                       \
  }

template <class Item, class T> static void sort_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t down) {
  LINES({
    line.load(in + from, n, inner, down);
    line.sort();
    for (int64_t i = 0; i < n; ++i) {
      values[from + i * inner] = in[from + line.items[i].at() * inner];
      indices[from + i * inner] = line.items[i].at();
    }
  })
}

template <class Item, class T> static void topk_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t k, int64_t largest) {
  LINES({
    line.first(in + from, n, inner, largest, k);
    const int64_t to = o / inner * k * inner + o % inner;
    for (int64_t i = 0; i < k; ++i) {
      values[to + i * inner] = in[from + line.items[i].at() * inner];
      indices[to + i * inner] = line.items[i].at();
    }
  })
}

// The element of rank k (from 0), ascending; k < 0 means the lower median, of all (NaN if any is NaN) or of those that are not NaN.
template <class Item, class T> static void select_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t k, int64_t skip_nan) {
  LINES({
    line.load(in + from, n, inner, false, skip_nan);
    if (line.items.empty()) line.load(in + from, n, inner, false);
    int64_t wanted = k >= 0 ? k : ((int64_t)line.items.size() - 1) / 2;
    int64_t at = -1;
    if (k < 0 && !skip_nan)
      for (int64_t i = 0; i < n && at < 0; ++i) if (key(in[from + i * inner]) != key(in[from + i * inner])) at = i;
    if (at < 0) {
      std::nth_element(line.items.begin(), line.items.begin() + wanted, line.items.end());
      at = line.items[wanted].at();
    }
    values[o] = in[from + at * inner];
    indices[o] = at;
  })
}

// The most frequent value, the smallest of equally frequent ones, at its last position.
template <class Item, class T> static void mode_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner) {
  LINES({
    line.load(in + from, n, inner, false);
    line.sort();
    int64_t best = 0; int64_t length = 0; int64_t run = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto here = [&](int64_t i) { return key(in[from + line.items[i].at() * inner]); };
      run = i && here(i) == here(i - 1) ? run + 1 : 1;
      if (run > length) { length = run; best = i; }
    }
    values[o] = in[from + line.items[best].at() * inner];
    indices[o] = line.items[best].at();
  })
}

// Insertion points of `count` values in each of `rows` sorted sequences of n elements; one row serves all when `shared`.
template <class T> static void search_rows(const T *sequence, const T *values, const int64_t *order, int64_t *out, int64_t rows, int64_t n, int64_t count, int64_t shared, int64_t right) {
#pragma omp parallel for if (rows * count >= 4096) schedule(static)
  for (int64_t i = 0; i < rows * count; ++i) {
    const int64_t base = shared ? 0 : i / count * n;
    const auto v = key(values[i]);
    int64_t low = 0, high = n;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const auto s = key(sequence[base + (order ? order[base + middle] : middle)]);
      const bool before = right ? !less_than(v, s) : less_than(s, v);
      if (before) low = middle + 1; else high = middle;
    }
    out[i] = low;
  }
}

template <class T> static int64_t count_nonzero(const T *in, int64_t n) {
  int64_t total = 0;
#pragma omp parallel for reduction(+ : total) if (n >= 32768)
  for (int64_t i = 0; i < n; ++i) total += key(in[i]) != 0;
  return total;
}
// Row-major positions of non-zero elements, unravelled into `rank` columns.
template <class T> static void nonzero_rows(const T *in, int64_t *out, const int64_t *shape, int64_t rank, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (key(in[i]) == 0) continue;
    int64_t rest = i;
    for (int64_t d = rank - 1; d >= 0; --d) { out[d] = rest % shape[d]; rest /= shape[d]; }
    out += rank;
  }
}
template <class T> static void masked_select(const T *in, const bool *mask, T *out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) if (mask[i]) *out++ = in[i];
}

template <class T> static int32_t bincount(const T *in, const double *weights, int64_t *counts, double *sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t v = (int64_t)in[i];
    if (v < 0) return INDEX_OUT_OF_RANGE;
    if (weights) sums[v] += weights[i]; else counts[v] += 1;
  }
  return OK;
}

// One of these functions for elements of one type, `TYPE`, which is called `NAME`: all of them together take seconds to compile.
#define JOINED_(function, name) function##_##name
#define JOINED(function, name) JOINED_(function, name)
#define EXPORTED(result, function) extern "C" result JOINED(function, NAME)
#define BY_SIZE(function, arguments) sizeof(TYPE) == 8 || n >> 32 ? function<Wide> arguments : function<Item> arguments
typedef std::conditional<sizeof(TYPE) == 8, Wide, Narrow>::type Item;
#ifdef SORT
EXPORTED(void, sort)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s, int64_t d) {
  BY_SIZE(sort_lines, (a, v, i, o, n, s, d));
}
#endif
#ifdef TOPK
EXPORTED(void, topk)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s, int64_t k, int64_t l) {
  BY_SIZE(topk_lines, (a, v, i, o, n, s, k, l));
}
#endif
#ifdef SELECT
EXPORTED(void, select)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s, int64_t k, int64_t z) {
  BY_SIZE(select_lines, (a, v, i, o, n, s, k, z));
}
#endif
#ifdef MODE
EXPORTED(void, mode)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s) { BY_SIZE(mode_lines, (a, v, i, o, n, s)); }
#endif
#ifdef SEARCH
EXPORTED(void, search)(const TYPE *q, const TYPE *v, const int64_t *r, int64_t *out, int64_t rows, int64_t n, int64_t c, int64_t sh, int64_t ri) {
  search_rows(q, v, r, out, rows, n, c, sh, ri);
}
#endif
#ifdef COUNT
EXPORTED(int64_t, count)(const TYPE *a, int64_t n) { return count_nonzero(a, n); }
#endif
#ifdef NONZERO
EXPORTED(void, nonzero)(const TYPE *a, int64_t *out, const int64_t *shape, int64_t rank, int64_t n) {
  nonzero_rows(a, out, shape, rank, n);
}
#endif
#ifdef MASKED
EXPORTED(void, masked)(const TYPE *a, const bool *m, TYPE *out, int64_t n) { masked_select(a, m, out, n); }
#endif
#ifdef BINCOUNT
EXPORTED(int32_t, bincount)(const TYPE *a, const double *w, int64_t *c, double *s, int64_t n) { return bincount(a, w, c, s, n); }
#endif
