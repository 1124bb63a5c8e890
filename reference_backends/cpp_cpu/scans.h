// Running results inside a vector. Follows vector.h.
template <int BYTES> struct LaneNumber { typedef int32_t type; };
template <> struct LaneNumber<8> { typedef int64_t type; };
// Lane l becomes the join of lanes 0 to l.
template <int STEP = 1, class P, class F> INLINE P prefix_of(P a, P identity, F f) {
  enum : int { N = sizeof(P) / sizeof(a[0]) };
  if constexpr (STEP < N) {
    typedef typename LaneNumber<sizeof(a[0])>::type Number;
    typedef typename Pack<Number, N>::type Numbers;
    Numbers take;
    for (int l = 0; l < N; ++l) take[l] = l < STEP ? N + l : l - STEP;
    P before = (P)shuffle((Numbers)a, (Numbers)identity, take);
    return prefix_of<STEP * 2>((P)f(before, a), identity, f);
  } else return a;
}
template <class T, class F> INLINE V<T, 4> prefix(V<T, 4> a, T identity, F f) { return V<T, 4>(prefix_of(a.v, spread<Part<T>>(identity), f)); }
template <class T, class F> INLINE V<T, 8> prefix(V<T, 8> a, T identity, F f) {
  Piece<T> none = spread<Piece<T>>(identity), low = prefix_of(a.low, none, f), high = prefix_of(a.high, none, f);
  return {low, (Piece<T>)f(spread<Piece<T>>((T)low[HALF - 1]), high)};
}
