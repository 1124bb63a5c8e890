// Sorting, selection, search and compaction: prims whose loops depend on the data. Follows base.h in its translation unit.
// Tensors are contiguous, seen as (outer, n, inner) around the dimension worked on.

#include <algorithm>
#include <vector>

// What values are compared as.
template <class T> INLINE T key(T v) { return v; }
INLINE float key(bf16 v) { return widen(v); }
INLINE float key(f16 v) { return widen(v); }

// NaN is larger than everything, as torch sorts it.
template <class K> INLINE bool less_than(K a, K b) { return a < b || (b != b && a == a); }

template <class T> struct Line {
  typedef decltype(key(T())) K;
  struct Item { K k; int64_t at; };
  std::vector<Item> items;
  // Loads one line; `skip_nan` leaves NaN out.
  void load(const T *in, int64_t n, int64_t step, bool skip_nan = false) {
    items.clear();
    for (int64_t i = 0; i < n; ++i) {
      K k = key(in[i * step]);
      if (!(skip_nan && k != k)) items.push_back(Item{k, i});
    }
  }
  // Ties by position: every order below is total, so that results are the same whatever the algorithm.
  static bool ascending(const Item &a, const Item &b) {
    return less_than(a.k, b.k) || (!less_than(b.k, a.k) && a.at < b.at);
  }
  static bool descending(const Item &a, const Item &b) {
    return less_than(b.k, a.k) || (!less_than(a.k, b.k) && a.at < b.at);
  }
};

#define LINES(body)                                                         \
  _Pragma("omp parallel if (outer * n * inner >= 32768)") {                 \
    Line<T> line;                                                           \
    _Pragma("omp for schedule(static)")                                     \
    for (int64_t o = 0; o < outer * inner; ++o) {                           \
      const int64_t from = o / inner * n * inner + o % inner;               \
      body                                                                  \
    }                                                                       \
  }

template <class T> static void sort_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t down) {
  LINES({
    line.load(in + from, n, inner);
    std::sort(line.items.begin(), line.items.end(), down ? Line<T>::descending : Line<T>::ascending);
    for (int64_t i = 0; i < n; ++i) {
      values[from + i * inner] = in[from + line.items[i].at * inner];
      indices[from + i * inner] = line.items[i].at;
    }
  })
}

template <class T> static void topk_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t k, int64_t largest) {
  LINES({
    line.load(in + from, n, inner);
    std::partial_sort(line.items.begin(), line.items.begin() + k, line.items.end(), largest ? Line<T>::descending : Line<T>::ascending);
    const int64_t to = o / inner * k * inner + o % inner;
    for (int64_t i = 0; i < k; ++i) {
      values[to + i * inner] = in[from + line.items[i].at * inner];
      indices[to + i * inner] = line.items[i].at;
    }
  })
}

// The element of rank k (from 0), ascending; k < 0 means the lower median, of all (NaN if any is NaN) or of those that are not NaN.
template <class T> static void select_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t k, int64_t skip_nan) {
  LINES({
    line.load(in + from, n, inner, skip_nan);
    if (line.items.empty()) line.load(in + from, n, inner);
    int64_t rank = k >= 0 ? k : ((int64_t)line.items.size() - 1) / 2;
    int64_t at = -1;
    if (k < 0 && !skip_nan)
      for (int64_t i = 0; i < n && at < 0; ++i) if (line.items[i].k != line.items[i].k) at = i;
    if (at < 0) {
      std::nth_element(line.items.begin(), line.items.begin() + rank, line.items.end(), Line<T>::ascending);
      at = line.items[rank].at;
    }
    values[o] = in[from + at * inner];
    indices[o] = at;
  })
}

// The most frequent value, the smallest of equally frequent ones, at its last position.
template <class T> static void mode_lines(const T *in, T *values, int64_t *indices, int64_t outer, int64_t n, int64_t inner) {
  LINES({
    line.load(in + from, n, inner);
    std::sort(line.items.begin(), line.items.end(), Line<T>::ascending);
    int64_t best = 0; int64_t length = 0; int64_t run = 0;
    for (int64_t i = 0; i < n; ++i) {
      run = i && line.items[i].k == line.items[i - 1].k ? run + 1 : 1;
      if (run > length) { length = run; best = i; }
    }
    values[o] = in[from + line.items[best].at * inner];
    indices[o] = line.items[best].at;
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
#ifdef SORT
EXPORTED(void, sort)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s, int64_t d) {
  sort_lines(a, v, i, o, n, s, d);
}
#endif
#ifdef TOPK
EXPORTED(void, topk)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s, int64_t k, int64_t l) {
  topk_lines(a, v, i, o, n, s, k, l);
}
#endif
#ifdef SELECT
EXPORTED(void, select)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s, int64_t k, int64_t z) {
  select_lines(a, v, i, o, n, s, k, z);
}
#endif
#ifdef MODE
EXPORTED(void, mode)(const TYPE *a, TYPE *v, int64_t *i, int64_t o, int64_t n, int64_t s) { mode_lines(a, v, i, o, n, s); }
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
