// Bags of embedding rows: reductions over rows that an index list names, and their gradient. Follows base.h and vector.h in its
// translation unit. mode: 0 sum, 1 mean, 2 max. Entries equal to `padding` count for nothing; -1 is no row.

#include <cstddef>
#include <vector>

template <class T> struct Accumulator { typedef float Type; };
template <> struct Accumulator<double> { typedef double Type; };

template <class T, class L> INLINE V<double> numbers(const T *p, L live) { return convert<double>(convert<typename Accumulator<T>::Type>(load(p, live))); }

static bool name_rows(const int64_t *entries, int64_t count, int64_t rows) {
  bool all = true;
  run_steps<1>(0, count, [&](int64_t i, auto live) INLINE_LAMBDA { all &= every_below(load(entries + i, live), V<int64_t>(rows)); });
  return all;
}

// Rows lie anywhere, where no prefetcher of the processor finds them: so many entries ahead, they are asked for.
enum : int64_t { AHEAD = 16 };

// VECTORS of columns of one bag's sum, whose float64s stay in registers; `kept` divides it. Entries before `ahead` have another AHEAD
// further.
template <int VECTORS, class T, class L> INLINE void sum_columns(const T *weight, const int64_t *entries, const T *factor, T *out, int64_t count, int64_t ahead, int64_t width, double kept, int64_t padding, L live) {
  V<double> total[VECTORS];
  for (int c = 0; c < VECTORS; ++c) total[c] = V<double>(0.0);
  for (int64_t i = 0; i < count; ++i) {
    if (i < ahead) {
      const T *next = weight + entries[i + AHEAD] * width;
      for (int c = 0; c < VECTORS; ++c) __builtin_prefetch(next + c * LANES);
    }
    if (entries[i] == padding) continue;
    const T *row = weight + entries[i] * width;
    for (int c = 0; c < VECTORS; ++c) {
      const V<double> own = numbers(row + c * LANES, live);
      total[c] = total[c] + (factor ? V<double>(number(factor[i])) * own : own);
    }
  }
  for (int c = 0; c < VECTORS; ++c) store(out + c * LANES, convert<T>(total[c] / V<double>(kept)), live, false);
}

// `places` says of each result element of a maximum which row it came from, 0 in an empty bag.
template <class T> static void bag_maximum(const T *weight, const int64_t *entries, T *out, int64_t *places, int64_t count, int64_t width, int64_t padding) {
  for (int64_t d = 0; d < width; ++d) out[d] = convert<T>(0.0), places[d] = 0;
  bool first = true;
  for (int64_t i = 0; i < count; ++i) {
    if (entries[i] == padding) continue;
    const T *row = weight + entries[i] * width;
    for (int64_t d = 0; d < width; ++d) {
      const double v = number(row[d]), best = number(out[d]);
      if (first || v > best || (v != v && best == best)) out[d] = row[d], places[d] = entries[i];
    }
    first = false;
  }
}

// Bag k holds entries first[k] to first[k+1], the last one all that is left.
template <class T> static int32_t bag_forward(const T *weight, const int64_t *entries, const int64_t *first, const T *factor, T *out, int64_t *bag_of, int64_t *sizes, int64_t *places, int64_t bags, int64_t count, int64_t rows, int64_t width, int64_t mode, int64_t padding) {
  for (int64_t k = 0; k < bags; ++k) {
    const int64_t end = k + 1 < bags ? first[k + 1] : count;
    if ((k == 0 && first[0] != 0) || first[k] > end || end > count) return INDEX_OUT_OF_RANGE;
  }
  if (!name_rows(entries, count, rows)) return INDEX_OUT_OF_RANGE;
#pragma omp parallel for if (count * width >= 32768)
  for (int64_t k = 0; k < bags; ++k) {
    const int64_t begin = first[k], end = k + 1 < bags ? first[k + 1] : count;
    int64_t kept = 0;
    for (int64_t i = begin; i < end; ++i) bag_of[i] = k, kept += entries[i] != padding;
    sizes[k] = kept;
    if (mode == 2) {
      bag_maximum(weight, entries + begin, out + k * width, places + k * width, end - begin, width, padding);
      continue;
    }
    const auto sum = [&](auto vectors, int64_t d, auto live) INLINE_LAMBDA {
      sum_columns<decltype(vectors)::n>(weight + d, entries + begin, factor ? factor + begin : factor, out + k * width + d, end - begin, count - begin - AHEAD, width, mode == 1 && kept ? (double)kept : 1, padding, live);
    };
    int64_t d = 0;
    for (; d + 4 * LANES <= width; d += 4 * LANES) sum(Fixed<4>(), d, Full());
    for (; d < width; d += LANES) sum(Fixed<1>(), d, Tail{(int)min_int(width - d, LANES)});
  }
  return OK;
}

// Gradient of the (rows, width) weight. `bag_of` may be null; then `first` says which entry is in which bag. Every thread passes over
// all entries and adds up rows of its own, so that what a row gets comes in one order.
template <class T> static int32_t bag_backward(const T *gradient, const int64_t *entries, const int64_t *first, const int64_t *bag_of, const int64_t *sizes, const int64_t *places, const T *factor, T *out, int64_t bags, int64_t count, int64_t rows, int64_t width, int64_t mode, int64_t by_frequency, int64_t padding) {
  typedef typename Accumulator<T>::Type A;
  constexpr bool direct = Same<T, A>::value;
  std::vector<A> apart((std::size_t)(direct ? 0 : rows * width));
  std::vector<int64_t> frequency((std::size_t)(mode != 2 && by_frequency ? rows : 0));
  if (mode == 2) {
    for (int64_t k = 0; k < bags; ++k)
      if (sizes[k] && !name_rows(places + k * width, width, rows)) return INDEX_OUT_OF_RANGE;
  } else if (!name_rows(entries, count, rows) || (bag_of && !name_rows(bag_of, count, bags)) || (count && !bags)) return INDEX_OUT_OF_RANGE;
  if (!frequency.empty()) for (int64_t i = 0; i < count; ++i) ++frequency[entries[i]];
#pragma omp parallel if ((mode == 2 ? bags : count) * width >= 32768)
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t begin = rows * thread / threads, end = rows * (thread + 1) / threads;
    A *const total = direct ? (A *)out : apart.data();
    if (direct) __builtin_memset(total + begin * width, 0, (std::size_t)((end - begin) * width) * sizeof(A));
    if (mode == 2) {
      for (int64_t k = 0; k < bags; ++k)
        for (int64_t d = 0; sizes[k] && d < width; ++d) {
          const int64_t row = places[k * width + d];
          if (begin <= row && row < end) total[row * width + d] += (A)number(gradient[k * width + d]);
        }
    } else {
      int64_t k = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (entries[i] < begin || entries[i] >= end || entries[i] == padding) continue;
        if (bag_of) k = bag_of[i];
        else while (k + 1 < bags && first[k + 1] <= i) ++k;
        double scale = factor ? number(factor[i]) : 1;
        if (mode == 1) scale /= (double)sizes[k];
        if (by_frequency) scale /= (double)frequency[entries[i]];
        A *to = total + entries[i] * width;
        const T *from = gradient + k * width;
        run_steps<1>(0, width, [&](int64_t d, auto live) INLINE_LAMBDA {
          store(to + d, load(to + d, live) + convert<A>(V<double>(scale) * numbers(from + d, live)), live, false);
        });
      }
    }
    if (!direct) for (int64_t i = begin * width; i < end * width; ++i) out[i] = convert<T>(total[i]);
  }
  return OK;
}

// Gradient of the per-sample weights of a sum: each entry's row times its bag's gradient.
template <class T> static int32_t bag_weights(const T *gradient, const T *weight, const int64_t *entries, const int64_t *first, const int64_t *bag_of, T *out, int64_t bags, int64_t count, int64_t rows, int64_t width, int64_t padding) {
  int64_t k = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (bag_of) k = bag_of[i];
    else while (k + 1 < bags && first[k + 1] <= i) ++k;
    if (k < 0 || k >= bags || entries[i] < 0 || entries[i] >= rows) return INDEX_OUT_OF_RANGE;
    double sum = 0;
    for (int64_t d = 0; entries[i] != padding && d < width; ++d) sum += number(gradient[k * width + d]) * number(weight[entries[i] * width + d]);
    out[i] = convert<T>(sum);
  }
  return OK;
}

#define FOR_FLOAT(T, name)                                                                                                                        \
  extern "C" int64_t bag_forward_##name(const T *w, const int64_t *e, const int64_t *o, const T *f, T *out, int64_t *g, int64_t *s, int64_t *p, int64_t b, int64_t c, int64_t r, int64_t n, int64_t m, int64_t d) { return bag_forward(w, e, o, f, out, g, s, p, b, c, r, n, m, d); } \
  extern "C" int64_t bag_backward_##name(const T *g, const int64_t *e, const int64_t *o, const int64_t *k, const int64_t *s, const int64_t *p, const T *f, T *out, int64_t b, int64_t c, int64_t r, int64_t n, int64_t m, int64_t q, int64_t d) { return bag_backward(g, e, o, k, s, p, f, out, b, c, r, n, m, q, d); } \
  extern "C" int64_t bag_weights_##name(const T *g, const T *w, const int64_t *e, const int64_t *o, const int64_t *k, T *out, int64_t b, int64_t c, int64_t r, int64_t n, int64_t d) { return bag_weights(g, w, e, o, k, out, b, c, r, n, d); }
FOR_FLOAT(float, float32)
FOR_FLOAT(double, float64)
FOR_FLOAT(bf16, bfloat16)
FOR_FLOAT(f16, float16)
