// Vectors of float and double for attention.cpp: loads, transposition, exponentials, hyperbolic tangents and one register-blocked matrix product, in the
// vector extensions that GCC and Clang share, so that no header of intrinsics is compiled. Follows base.h.

// base.h's flags keep products and sums apart; here every product is meant to be fused with the sum it goes into.
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define LOCAL static __attribute__((noinline))
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL(n) PRAGMA(unroll n)
#else
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif

#ifdef __AVX512F__
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
// Rows of the register block, each of two vectors: 16 accumulators where there are 32 registers, 8 where there are 16.
#if defined(__AVX512F__) || defined(__aarch64__)
enum { BLOCK = 8 };
#else
enum { BLOCK = 4 };
#endif

template <int... L> struct Sequence {};
template <int N, int... L> struct UpTo : UpTo<N - 1, N - 1, L...> {};
template <int... L> struct UpTo<0, L...> { typedef Sequence<L...> type; };

template <class A> struct Lanes;
template <> struct Lanes<float> {
  enum { count = VECTOR_BYTES / 4 };
  typedef float vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
  typedef float unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
  typedef int32_t whole;
  typedef int32_t wholes __attribute__((vector_size(VECTOR_BYTES), may_alias));
  static constexpr float low = -104.0f, magic = 0x1.8p23f;
  enum { mantissa = 23, bias = 127 };
  // (2**r - 1) / r for |r| <= 1/2: relative error of the power 2e-9, a minimax fit that is exact at 0.
  INLINE vector rise(vector r) {
    vector p = r * 1.5353358857e-4f + 1.3398874461e-3f;
    p = p * r + 9.6184373703e-3f;
    p = p * r + 5.5503324710e-2f;
    p = p * r + 2.4022647914e-1f;
    return p * r + 6.9314720286e-1f;
  }
};
template <> struct Lanes<double> {
  enum { count = VECTOR_BYTES / 8 };
  typedef double vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
  typedef double unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
  typedef int64_t whole;
  typedef int64_t wholes __attribute__((vector_size(VECTOR_BYTES), may_alias));
  static constexpr double low = -745.0, magic = 0x1.8p52;
  enum { mantissa = 52, bias = 1023 };
  // The same by Taylor's series: the first term left out is below 5e-18.
  INLINE vector rise(vector r) {
    vector p = r * 1.36914888539041241e-12 + 2.56784359934881958e-11;
    p = p * r + 4.44553827187081007e-10;
    p = p * r + 7.05491162080112088e-09;
    p = p * r + 1.01780860092396960e-07;
    p = p * r + 1.32154867901443053e-06;
    p = p * r + 1.52527338040598377e-05;
    p = p * r + 1.54035303933816061e-04;
    p = p * r + 1.33335581464284411e-03;
    p = p * r + 9.61812910762847688e-03;
    p = p * r + 5.55041086648215762e-02;
    p = p * r + 2.40226506959100694e-01;
    return p * r + 6.93147180559945286e-01;
  }
};
template <class A> using Vector = typename Lanes<A>::vector;

template <class A> INLINE Vector<A> splat(A value) { return value - Vector<A>{}; }
template <class A> INLINE Vector<A> &at(A *p) { return *(Vector<A> *)p; }
template <class A> INLINE const Vector<A> &at(const A *p) { return *(const Vector<A> *)p; }
template <class A> INLINE Vector<A> load(const A *p) { return (Vector<A>)*(const typename Lanes<A>::unaligned *)p; }
template <class V> INLINE V larger(V a, V b) { return a > b ? a : b; }

// exp(x) for x up to the logarithm of the largest number; 0 where the result is subnormal. NaN stays.
template <class A> INLINE Vector<A> exponential(Vector<A> x) {
  typedef Lanes<A> L;
  const A log2_e = (A)1.4426950408889634074;
  const Vector<A> y = larger(splat<A>(L::low), x), shifted = y * log2_e + L::magic, n = shifted - L::magic;
  // Adding the magic number leaves the integer in the low bits.
  const auto exponent = (typename L::wholes)shifted - (bits<typename L::whole>(L::magic) - (typename L::whole)L::bias);
  const auto zero = typename L::wholes{};
  const Vector<A> rest = y * log2_e - n;
  return (L::rise(rest) * rest + (A)1) * (Vector<A>)((exponent > zero ? exponent : zero) << (int)L::mantissa);
}
// tanh(x) from exp(2 |x|) - 1; beyond 20 it is one. NaN stays.
template <class A> INLINE Vector<A> hyperbolic_tangent(Vector<A> x) {
  typedef Lanes<A> L;
  const A log2_e = (A)1.4426950408889634074;
  const Vector<A> size = x < (A)0 ? -x : x, twice = size > (A)20 ? splat<A>(40) : size + size;
  const Vector<A> shifted = twice * log2_e + L::magic, n = shifted - L::magic, rest = twice * log2_e - n;
  const Vector<A> power = (Vector<A>)(((typename L::wholes)shifted - (bits<typename L::whole>(L::magic) - (typename L::whole)L::bias)) << (int)L::mantissa);
  const Vector<A> e = power * (L::rise(rest) * rest) + (power - (A)1), result = e / (e + (A)2);
  return x < (A)0 ? -result : result;
}

template <int S, class A, int... L> INLINE void exchange(Vector<A> &a, Vector<A> &b, Sequence<L...>) {
  enum { N = Lanes<A>::count };
#ifdef __clang__
  const Vector<A> low = __builtin_shufflevector(a, b, ((L & S) ? N + L - S : L)...);
  b = __builtin_shufflevector(a, b, ((L & S) ? N + L : L + S)...);
#else
  typedef typename Lanes<A>::wholes I;
  const Vector<A> low = __builtin_shuffle(a, b, I{((L & S) ? N + L - S : L)...});
  b = __builtin_shuffle(a, b, I{((L & S) ? N + L : L + S)...});
#endif
  a = low;
}
template <int S, class A> INLINE void exchange_all(Vector<A> *x) {
  enum { N = Lanes<A>::count };
  if constexpr (S < N) {
    UNROLL(16) for (int i = 0; i < N; ++i)
      if (!(i & S)) exchange<S, A>(x[i], x[i + S], typename UpTo<N>::type{});
    exchange_all<2 * S, A>(x);
  }
}
// A square of as many rows as a vector has lanes, in place.
template <class A> LOCAL void transpose(A *square) {
  enum { N = Lanes<A>::count };
  Vector<A> x[N];
  UNROLL(16) for (int i = 0; i < N; ++i) x[i] = at(square + i * N);
  exchange_all<1, A>(x);
  UNROLL(16) for (int i = 0; i < N; ++i) at(square + i * N) = x[i];
}

template <int S, class A> INLINE A sum_pairs(Vector<A> x) {
  if constexpr (S == 0) return x[0];
  else {
    Vector<A> other = x;
    exchange<S, A>(x, other, typename UpTo<Lanes<A>::count>::type{});
    return sum_pairs<S / 2, A>(x + other);
  }
}
template <class A> INLINE A sum_of(Vector<A> x) { return sum_pairs<Lanes<A>::count / 2, A>(x); }

INLINE int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
INLINE int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

template <class A, class T> INLINE A widened(T v) {
  if constexpr (sizeof(T) == 2) return widen(v);
  else return (A)v;
}
template <class T, class A> INLINE T narrowed(A v) { return convert<T>(v); }

// `count` numbers `stride` apart as accumulators in a row of memory; lanes from there to `padded` are zero.
template <class A, class T> LOCAL void gather(const T *from, int64_t stride, int64_t count, A *RESTRICT to, int64_t padded) {
  enum { N = Lanes<A>::count };
  int64_t i = 0;
  if (stride == 1) {
    // A known number of steps is what the compiler makes vectors of.
    for (; i + N <= count; i += N) {
      if constexpr (sizeof(A) == sizeof(T)) *(typename Lanes<A>::unaligned *)(to + i) = load((const A *)from + i);
      else for (int64_t j = i; j < i + N; ++j) to[j] = widened<A>(from[j]);
    }
    for (; i < count; ++i) to[i] = widened<A>(from[i]);
  }
  else for (; i < count; ++i) to[i] = widened<A>(from[i * stride]);
  for (; i < padded; ++i) to[i] = 0;
}

// `count` accumulators times `factor`, rounded once, `stride` apart.
template <class A, class T> LOCAL void scatter(const A *from, A factor, int64_t count, T *RESTRICT to, int64_t stride) {
  enum { N = Lanes<A>::count };
  int64_t i = 0;
  if (stride == 1) {
    for (; i + N <= count; i += N) {
      if constexpr (sizeof(A) == sizeof(T)) *(typename Lanes<A>::unaligned *)(to + i) = load(from + i) * factor;
      else for (int64_t j = i; j < i + N; ++j) to[j] = narrowed<T, A>(from[j] * factor);
    }
    for (; i < count; ++i) to[i] = narrowed<T, A>(from[i] * factor);
  }
  else for (; i < count; ++i) to[i * stride] = narrowed<T, A>(from[i] * factor);
}

// C = C * keep + A B for BLOCK rows and `V` vectors of columns: A[i][k] is a[i * row + k * step], rows of B are `pitch` apart. Without
// `keep` (a factor for each column) what C held is not read.
template <class A, int V>
LOCAL void block_product(const A *a, int64_t row, int64_t step, const A *b, int64_t pitch, int64_t terms, A *c, int64_t c_pitch, const A *keep) {
  enum { N = Lanes<A>::count };
  Vector<A> sum[BLOCK][V];
  UNROLL(8) for (int i = 0; i < BLOCK; ++i)
    UNROLL(2) for (int j = 0; j < V; ++j) sum[i][j] = Vector<A>{};
  for (int64_t k = 0; k < terms; ++k) {
    Vector<A> x[V];
    UNROLL(2) for (int j = 0; j < V; ++j) {
      x[j] = at(b + j * N);
      keep_loaded(x[j]);
    }
    UNROLL(8) for (int i = 0; i < BLOCK; ++i) {
      const A factor = a[i * row];
      UNROLL(2) for (int j = 0; j < V; ++j) sum[i][j] += factor * x[j];
    }
    a += step;
    b += pitch;
  }
  UNROLL(8) for (int i = 0; i < BLOCK; ++i)
    UNROLL(2) for (int j = 0; j < V; ++j) {
      A *to = c + i * c_pitch + j * N;
      at(to) = keep ? at((const A *)to) * at(keep + j * N) + sum[i][j] : sum[i][j];
    }
}

// The same for any number of rows (rounded up to BLOCK) and of vectors.
template <class A>
LOCAL void product(const A *a, int64_t row, int64_t step, int64_t rows, const A *b, int64_t pitch, int64_t vectors, int64_t terms, A *c, int64_t c_pitch, const A *keep) {
  enum { N = Lanes<A>::count };
  for (int64_t j = 0; j < vectors; j += 2)
    for (int64_t i = 0; i < rows; i += BLOCK) {
      auto *function = vectors - j > 1 ? block_product<A, 2> : block_product<A, 1>;
      function(a + i * row, row, step, b + j * N, pitch, terms, c + i * c_pitch + j * N, c_pitch, keep ? keep + j * N : nullptr);
    }
}

// Cuts memory into parts, each aligned to vectors. Without memory it counts their bytes.
struct Cut {
  char *memory;
  int64_t bytes = 0;
  template <class A> void operator()(A *&part, int64_t count) {
    part = (A *)((__UINTPTR_TYPE__)memory + bytes);
    bytes += round_up(count * (int64_t)sizeof(A), VECTOR_BYTES);
  }
};
