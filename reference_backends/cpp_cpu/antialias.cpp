// Linear resampling of planes with a triangle filter that widens when shrinking, one dimension after the other. Follows base.h in its
// translation unit.

#include <algorithm>
#include <cmath>
#include <vector>

// The input elements that one output element reads: `weights` from `first` on. They sum to one.
struct Window {
  int64_t first;
  std::vector<double> weights;
};

// `scale` is input elements per output element.
static std::vector<Window> windows(int64_t inputs, int64_t outputs, double scale) {
  const double reach = std::max(scale, 1.0);
  std::vector<Window> result((size_t)outputs);
  for (int64_t o = 0; o < outputs; ++o) {
    const double center = scale * ((double)o + 0.5);
    Window &w = result[o];
    w.first = std::max<int64_t>((int64_t)(center - reach + 0.5), 0);
    const int64_t end = std::min((int64_t)(center + reach + 0.5), inputs);
    double total = 0;
    for (int64_t i = w.first; i < end; ++i) {
      const double distance = std::fabs(((double)i - center + 0.5) / reach);
      w.weights.push_back(std::max(0.0, 1 - distance));
      total += w.weights.back();
    }
    if (total != 0) for (double &v : w.weights) v /= total;
  }
  return result;
}

// (planes, height, width) to (planes, rows, columns).
template <class T> static void antialias(const T *in, T *out, int64_t planes, int64_t height, int64_t width, int64_t rows, int64_t columns, const double *scales) {
  const std::vector<Window> down = windows(height, rows, scales[0]), across = windows(width, columns, scales[1]);
#pragma omp parallel for if (planes * height * width >= 32768)
  for (int64_t p = 0; p < planes; ++p) {
    std::vector<double> lines((size_t)(height * columns)), sums((size_t)columns);
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < columns; ++x) {
        const T *from = in + (p * height + y) * width + across[x].first;
        double sum = 0;
        for (size_t i = 0; i < across[x].weights.size(); ++i) sum += across[x].weights[i] * number(from[i]);
        lines[y * columns + x] = sum;
      }
    for (int64_t y = 0; y < rows; ++y) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t i = 0; i < down[y].weights.size(); ++i)
        for (int64_t x = 0; x < columns; ++x) sums[x] += down[y].weights[i] * lines[(down[y].first + (int64_t)i) * columns + x];
      for (int64_t x = 0; x < columns; ++x) out[(p * rows + y) * columns + x] = convert<T>(sums[x]);
    }
  }
}

// The transposed map: (planes, rows, columns) gradients to (planes, height, width).
template <class T> static void antialias_backward(const T *gradient, T *out, int64_t planes, int64_t height, int64_t width, int64_t rows, int64_t columns, const double *scales) {
  const std::vector<Window> down = windows(height, rows, scales[0]), across = windows(width, columns, scales[1]);
#pragma omp parallel for if (planes * height * width >= 32768)
  for (int64_t p = 0; p < planes; ++p) {
    std::vector<double> lines((size_t)(height * columns)), sums((size_t)width);
    for (int64_t y = 0; y < rows; ++y)
      for (size_t i = 0; i < down[y].weights.size(); ++i)
        for (int64_t x = 0; x < columns; ++x)
          lines[(down[y].first + (int64_t)i) * columns + x] += down[y].weights[i] * number(gradient[(p * rows + y) * columns + x]);
    for (int64_t y = 0; y < height; ++y) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t x = 0; x < columns; ++x)
        for (size_t i = 0; i < across[x].weights.size(); ++i) sums[across[x].first + (int64_t)i] += across[x].weights[i] * lines[y * columns + x];
      for (int64_t x = 0; x < width; ++x) out[(p * height + y) * width + x] = convert<T>(sums[x]);
    }
  }
}

#define FOR_FLOAT(T, name)                                                                                                                        \
  extern "C" void antialias_##name(const T *a, T *o, int64_t p, int64_t h, int64_t w, int64_t r, int64_t c, const double *s) { antialias(a, o, p, h, w, r, c, s); } \
  extern "C" void antialias_backward_##name(const T *g, T *o, int64_t p, int64_t h, int64_t w, int64_t r, int64_t c, const double *s) { antialias_backward(g, o, p, h, w, r, c, s); }
FOR_FLOAT(float, float32)
FOR_FLOAT(double, float64)
FOR_FLOAT(bf16, bfloat16)
FOR_FLOAT(f16, float16)
