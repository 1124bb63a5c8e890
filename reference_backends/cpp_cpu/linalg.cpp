// Orthogonal and symmetric factorizations, their solvers and exponentials, on batches of contiguous matrices, in LAPACK's storage
// schemes (solvers.cpp has the triangular ones). Follows base.h in its translation unit. All arithmetic is in float64: matrices are widened into a work copy and rounded once at the end.

#include <algorithm>
#include <cmath>
#include <vector>

struct Matrix {
  int64_t rows, columns;
  std::vector<double> v;
  Matrix(int64_t m, int64_t n) : rows(m), columns(n), v((size_t)(m * n)) {}
  template <class T> Matrix(const T *from, int64_t m, int64_t n) : rows(m), columns(n), v(from, from + m * n) {}
  double *operator[](int64_t i) { return v.data() + i * columns; }
  const double *operator[](int64_t i) const { return v.data() + i * columns; }
  template <class T> void store(T *to) const { for (size_t i = 0; i < v.size(); ++i) to[i] = (T)v[i]; }
  void swap_rows(int64_t a, int64_t b) { if (a != b) std::swap_ranges((*this)[a], (*this)[a] + columns, (*this)[b]); }
  // Row `to` loses `factor` times row `from`, from column `first` on.
  void subtract_row(int64_t to, int64_t from, double factor, int64_t first = 0) {
    double *RESTRICT a = (*this)[to];
    const double *b = (*this)[from];
    if (factor != 0) for (int64_t j = first; j < columns; ++j) a[j] -= factor * b[j];
  }
};

static Matrix transposed(const Matrix &a) {
  Matrix result(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) for (int64_t j = 0; j < a.columns; ++j) result[j][i] = a[i][j];
  return result;
}

#define PRAGMA(text) _Pragma(#text)
#define BATCH(work) PRAGMA(omp parallel for if (batch > 1 && batch * (work) >= 65536)) for (int64_t b = 0; b < batch; ++b)

// The factors apart: P (m, m), L (m, rank) with unit diagonal, U (rank, n). A null result is not wanted.
template <class T> static void lu_unpack(const T *in, const int32_t *pivots, T *p, T *l, T *u, int64_t batch, int64_t m, int64_t n) {
  const int64_t rank = std::min(m, n);
  for (int64_t b = 0; b < batch; ++b) {
    const T *a = in + b * m * n;
    if (p) {
      std::vector<int64_t> order((size_t)m);
      for (int64_t i = 0; i < m; ++i) order[i] = i;
      for (int64_t k = 0; k < rank; ++k) std::swap(order[k], order[pivots[b * rank + k] - 1]);
      std::fill_n(p + b * m * m, m * m, (T)0);
      for (int64_t i = 0; i < m; ++i) p[b * m * m + order[i] * m + i] = 1;
    }
    if (l) for (int64_t i = 0; i < m; ++i) for (int64_t j = 0; j < rank; ++j)
      l[(b * m + i) * rank + j] = i > j ? a[i * n + j] : (T)(i == j);
    if (u) for (int64_t i = 0; i < rank; ++i) for (int64_t j = 0; j < n; ++j)
      u[(b * rank + i) * n + j] = i <= j ? a[i * n + j] : (T)0;
  }
}

// R above and the reflectors I - tau v v' below the diagonal (v has 1 there), by Householder's method. A zero column keeps tau 0.
static void reflect_columns(Matrix &a, std::vector<double> &tau) {
  const int64_t m = a.rows, n = a.columns, rank = std::min(m, n);
  std::vector<double> dots((size_t)n);
  for (int64_t k = 0; k < rank; ++k) {
    double largest = 0;
    for (int64_t i = k + 1; i < m; ++i) largest = std::max(largest, std::fabs(a[i][k]));
    tau[k] = 0;
    if (largest == 0) continue;
    double below = 0;
    for (int64_t i = k + 1; i < m; ++i) below += (a[i][k] / largest) * (a[i][k] / largest);
    const double alpha = a[k][k], beta = -std::copysign(std::hypot(alpha, largest * std::sqrt(below)), alpha);
    tau[k] = (beta - alpha) / beta;
    for (int64_t i = k + 1; i < m; ++i) a[i][k] /= alpha - beta;
    for (int64_t j = k + 1; j < n; ++j) dots[j] = a[k][j];
    for (int64_t i = k + 1; i < m; ++i) for (int64_t j = k + 1; j < n; ++j) dots[j] += a[i][k] * a[i][j];
    for (int64_t j = k + 1; j < n; ++j) a[k][j] -= tau[k] * dots[j];
    for (int64_t i = k + 1; i < m; ++i) for (int64_t j = k + 1; j < n; ++j) a[i][j] -= a[i][k] * tau[k] * dots[j];
    a[k][k] = beta;
  }
}

// Q C for the product Q of the reflectors stored in the columns of a, or Q' C, in place in C.
static void apply_reflectors(const Matrix &a, const std::vector<double> &tau, Matrix &c, bool transpose) {
  const int64_t count = (int64_t)tau.size(), m = c.rows, n = c.columns;
  std::vector<double> dots((size_t)n);
  for (int64_t step = 0; step < count; ++step) {
    const int64_t k = transpose ? step : count - 1 - step;
    if (tau[k] == 0) continue;
    for (int64_t j = 0; j < n; ++j) dots[j] = c[k][j];
    for (int64_t i = k + 1; i < m; ++i) for (int64_t j = 0; j < n; ++j) dots[j] += a[i][k] * c[i][j];
    for (int64_t j = 0; j < n; ++j) { dots[j] *= tau[k]; c[k][j] -= dots[j]; }
    for (int64_t i = k + 1; i < m; ++i) for (int64_t j = 0; j < n; ++j) c[i][j] -= a[i][k] * dots[j];
  }
}

static Matrix leading_columns_of_q(const Matrix &a, const std::vector<double> &tau, int64_t columns) {
  Matrix q(a.rows, columns);
  for (int64_t i = 0; i < std::min(a.rows, columns); ++i) q[i][i] = 1;
  apply_reflectors(a, tau, q, false);
  return q;
}

template <class T> static void geqrf(const T *in, T *out, T *tau, int64_t batch, int64_t m, int64_t n) {
  const int64_t rank = std::min(m, n);
  BATCH(m * n * rank) {
    Matrix a(in + b * m * n, m, n);
    std::vector<double> scale((size_t)rank);
    reflect_columns(a, scale);
    a.store(out + b * m * n);
    for (int64_t k = 0; k < rank; ++k) tau[b * rank + k] = (T)scale[k];
  }
}

// Q (m, columns) unless null, and the first `rows` rows of R.
template <class T> static void qr(const T *in, T *q, T *r, int64_t batch, int64_t m, int64_t n, int64_t columns, int64_t rows) {
  BATCH(m * n * (columns + n)) {
    Matrix a(in + b * m * n, m, n);
    std::vector<double> tau((size_t)std::min(m, n));
    reflect_columns(a, tau);
    for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < n; ++j) r[(b * rows + i) * n + j] = i <= j ? (T)a[i][j] : (T)0;
    if (q) leading_columns_of_q(a, tau, columns).store(q + b * m * columns);
  }
}

template <class T> static void householder(const T *in, const T *tau, T *q, int64_t batch, int64_t m, int64_t n, int64_t k) {
  BATCH(m * n * k) {
    const Matrix a(in + b * m * n, m, n);
    leading_columns_of_q(a, std::vector<double>(tau + b * k, tau + b * k + k), n).store(q + b * m * n);
  }
}

// Q C, Q' C, C Q or C Q' for the product Q of k reflectors in a (order, columns of a), in place in the m x n matrix C.
template <class T> static void ormqr(const T *in, const T *tau, T *c, int64_t batch, int64_t columns, int64_t k, int64_t m, int64_t n, int64_t left, int64_t transpose) {
  const int64_t order = left ? m : n;
  BATCH(m * n * k) {
    const Matrix a(in + b * order * columns, order, columns);
    const std::vector<double> scale(tau + b * k, tau + b * k + k);
    Matrix product(c + b * m * n, m, n);
    if (left) apply_reflectors(a, scale, product, transpose);
    else {
      // C Q is the transpose of Q' C'.
      product = transposed(product);
      apply_reflectors(a, scale, product, !transpose);
      product = transposed(product);
    }
    product.store(c + b * m * n);
  }
}

// A = L D L' from the lower triangle with Bunch and Kaufman's pivoting, stored as LAPACK's sytrf does: a negative pair of pivots marks a
// 2 x 2 block of D. info is the position of the first block that is exactly singular, 0 for none.
static void bunch_kaufman(Matrix &a, int32_t *pivots, int32_t &info) {
  const double alpha = (1 + std::sqrt(17.0)) / 8;
  const int64_t n = a.rows;
  info = 0;
  for (int64_t k = 0; k < n;) {
    int64_t width = 1, pivot = k, far = k;
    const double diagonal = std::fabs(a[k][k]);
    double column = 0;
    for (int64_t i = k + 1; i < n; ++i) if (std::fabs(a[i][k]) > column) { column = std::fabs(a[i][k]); far = i; }
    if (std::max(diagonal, column) == 0) {
      if (!info) info = (int32_t)(k + 1);
      pivots[k] = (int32_t)(k + 1);
      ++k;
      continue;
    }
    if (diagonal < alpha * column) {
      double row = 0;
      for (int64_t j = k; j < far; ++j) row = std::max(row, std::fabs(a[far][j]));
      for (int64_t i = far + 1; i < n; ++i) row = std::max(row, std::fabs(a[i][far]));
      if (diagonal < alpha * column * (column / row)) {
        pivot = far;
        if (std::fabs(a[far][far]) < alpha * row) width = 2;
      }
    }
    const int64_t last = k + width - 1;
    if (pivot != last) {
      for (int64_t i = pivot + 1; i < n; ++i) std::swap(a[i][last], a[i][pivot]);
      for (int64_t j = last + 1; j < pivot; ++j) std::swap(a[j][last], a[pivot][j]);
      std::swap(a[last][last], a[pivot][pivot]);
      if (width == 2) std::swap(a[k + 1][k], a[pivot][k]);
    }
    if (width == 1) {
      for (int64_t i = k + 1; i < n; ++i) {
        const double factor = a[i][k] / a[k][k];
        for (int64_t j = k + 1; j <= i; ++j) a[i][j] -= factor * a[j][k];
      }
      for (int64_t i = k + 1; i < n; ++i) a[i][k] /= a[k][k];
      pivots[k] = (int32_t)(pivot + 1);
    } else {
      const double off = a[k + 1][k], d11 = a[k + 1][k + 1] / off, d22 = a[k][k] / off, scale = 1 / (d11 * d22 - 1) / off;
      std::vector<double> first((size_t)n), second((size_t)n);
      for (int64_t j = k + 2; j < n; ++j) {
        first[j] = scale * (d11 * a[j][k] - a[j][k + 1]);
        second[j] = scale * (d22 * a[j][k + 1] - a[j][k]);
      }
      for (int64_t i = k + 2; i < n; ++i)
        for (int64_t j = k + 2; j <= i; ++j) a[i][j] -= a[i][k] * first[j] + a[i][k + 1] * second[j];
      for (int64_t j = k + 2; j < n; ++j) { a[j][k] = first[j]; a[j][k + 1] = second[j]; }
      pivots[k] = pivots[k + 1] = (int32_t)-(pivot + 1);
    }
    k += width;
  }
}

template <class T> static void ldl_factor(const T *in, T *out, int32_t *pivots, int32_t *info, int64_t batch, int64_t n) {
  BATCH(n * n * n) {
    Matrix a(in + b * n * n, n, n);
    for (int64_t i = 0; i < n; ++i) for (int64_t j = i + 1; j < n; ++j) a[i][j] = 0;
    bunch_kaufman(a, pivots + b * n, info[b]);
    a.store(out + b * n * n);
  }
}

template <class T> static void ldl_solve(const T *in, const int32_t *pivots, T *x, int64_t batch, int64_t n, int64_t m) {
  BATCH(n * n * m) {
    const Matrix a(in + b * n * n, n, n);
    const int32_t *pivot = pivots + b * n;
    Matrix right(x + b * n * m, n, m);
    for (int64_t k = 0; k < n;) {
      if (pivot[k] > 0) {
        right.swap_rows(k, pivot[k] - 1);
        for (int64_t i = k + 1; i < n; ++i) right.subtract_row(i, k, a[i][k]);
        for (int64_t c = 0; c < m; ++c) right[k][c] /= a[k][k];
        ++k;
        continue;
      }
      right.swap_rows(k + 1, -pivot[k] - 1);
      for (int64_t i = k + 2; i < n; ++i) { right.subtract_row(i, k, a[i][k]); right.subtract_row(i, k + 1, a[i][k + 1]); }
      const double off = a[k + 1][k], first = a[k][k] / off, second = a[k + 1][k + 1] / off, determinant = first * second - 1;
      for (int64_t c = 0; c < m; ++c) {
        const double p = right[k][c] / off, q = right[k + 1][c] / off;
        right[k][c] = (second * p - q) / determinant;
        right[k + 1][c] = (first * q - p) / determinant;
      }
      k += 2;
    }
    for (int64_t k = n - 1; k >= 0;) {
      const int64_t width = pivot[k] > 0 ? 1 : 2;
      for (int64_t row = k; row > k - width; --row)
        for (int64_t i = k + 1; i < n; ++i) right.subtract_row(row, i, a[i][row]);
      right.swap_rows(k, (pivot[k] > 0 ? pivot[k] : -pivot[k]) - 1);
      k -= width;
    }
    right.store(x + b * n * m);
  }
}

static Matrix product(const Matrix &a, const Matrix &b) {
  Matrix result(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.columns; ++k) {
      const double factor = a[i][k];
      for (int64_t j = 0; j < b.columns; ++j) result[i][j] += factor * b[k][j];
    }
  return result;
}

// exp(A) by its Taylor series for A / 2**s of norm below 1/2, squared s times. Twenty terms leave less than 1e-25.
template <class T> static void matrix_exp(const T *in, T *out, int64_t batch, int64_t n) {
  BATCH(n * n * n * 20) {
    Matrix a(in + b * n * n, n, n);
    double norm = 0;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += std::fabs(a[i][j]);
      norm = std::max(norm, sum);
      if (sum != sum) norm = sum;
    }
    int squarings = 0;
    if (norm > 0.5 && norm < __builtin_inf()) squarings = std::max(0, std::ilogb(norm) + 2);
    for (double &v : a.v) v = std::ldexp(v, -squarings);
    // Horner's scheme: I + A (I + A/2 (I + A/3 (...))).
    Matrix sum(n, n);
    for (int64_t i = 0; i < n; ++i) sum[i][i] = 1;
    for (int term = 20; term > 0; --term) {
      sum = product(a, sum);
      for (double &v : sum.v) v /= term;
      for (int64_t i = 0; i < n; ++i) sum[i][i] += 1;
    }
    for (int s = 0; s < squarings; ++s) sum = product(sum, sum);
    sum.store(out + b * n * n);
  }
}

#define FOR_TYPE(T, name)                                                                                                                          \
  extern "C" void lu_unpack_##name(const T *a, const int32_t *v, T *p, T *l, T *u, int64_t b, int64_t m, int64_t n) { lu_unpack(a, v, p, l, u, b, m, n); } \
  extern "C" void geqrf_##name(const T *a, T *o, T *t, int64_t b, int64_t m, int64_t n) { geqrf(a, o, t, b, m, n); }                                 \
  extern "C" void qr_##name(const T *a, T *q, T *r, int64_t b, int64_t m, int64_t n, int64_t c, int64_t w) { qr(a, q, r, b, m, n, c, w); }            \
  extern "C" void householder_##name(const T *a, const T *t, T *q, int64_t b, int64_t m, int64_t n, int64_t k) { householder(a, t, q, b, m, n, k); } \
  extern "C" void ormqr_##name(const T *a, const T *t, T *c, int64_t b, int64_t w, int64_t k, int64_t m, int64_t n, int64_t l, int64_t p) { ormqr(a, t, c, b, w, k, m, n, l, p); } \
  extern "C" void ldl_factor_##name(const T *a, T *o, int32_t *p, int32_t *i, int64_t b, int64_t n) { ldl_factor(a, o, p, i, b, n); }                 \
  extern "C" void ldl_solve_##name(const T *a, const int32_t *p, T *x, int64_t b, int64_t n, int64_t m) { ldl_solve(a, p, x, b, n, m); }             \
  extern "C" void matrix_exp_##name(const T *a, T *o, int64_t b, int64_t n) { matrix_exp(a, o, b, n); }
FOR_TYPE(float, float32)
FOR_TYPE(double, float64)
