// Floats of eight bits: storage, as halves are. Included by kernels that have some.
//
// With M bits of mantissa and a bias of B, a number's bits stand M places above the last of a float's mantissa, with another bias;
// so a float is one multiplication away, which normalises subnormals too. Back, the rounding is added to the bits, and carries into
// the exponent; subnormals are rounded by a sum with a power of two whose last bit is theirs.
enum class e4m3 : uint8_t {};
enum class e5m2 : uint8_t {};

template <class T> struct Format;
template <> struct Format<e4m3> {
  static constexpr int32_t SHIFT = 20, BIAS = 120, SPECIAL = 0x7f, LAST = E4M3_LAST;  // one NaN of each sign, no infinity
  static constexpr float UNIT = 0x1p14f;
};
template <> struct Format<e5m2> {
  static constexpr int32_t SHIFT = 21, BIAS = 112, SPECIAL = 0x7c, LAST = 0x7c;
  static constexpr float UNIT = 0x1p7f;
};
// SPECIAL: the first of the values that are no numbers; LAST: what is too large becomes.

template <class T> INLINE float widen_byte(T v) {
  const int32_t raw = (int32_t)(uint8_t)v, rest = raw & 0x7f;
  const float scaled = bits<float>(rest << Format<T>::SHIFT) * bits<float>((127 + Format<T>::BIAS) << 23);
  const int32_t mantissa = rest == Format<T>::SPECIAL && Format<T>::SPECIAL != 0x7f ? 0 : 0x400000;
  const int32_t found = rest >= Format<T>::SPECIAL ? 0x7f800000 | mantissa : bits<int32_t>(scaled);
  return bits<float>(found | (int32_t)((uint32_t)(raw & 0x80) << 24));
}
template <class T> INLINE T narrow_byte(float f) {
  typedef Format<T> F;
  const int32_t u = bits<int32_t>(f), a = u & 0x7fffffff;
  const int32_t rounded = (a - (F::BIAS << 23) + (1 << (F::SHIFT - 1)) - 1 + ((a >> F::SHIFT) & 1)) >> F::SHIFT;
  const int32_t small = bits<int32_t>(bits<float>(a) + F::UNIT) - bits<int32_t>(F::UNIT);
  int32_t found = a < ((F::BIAS + 1) << 23) ? small : rounded < F::LAST ? rounded : F::LAST;
  found = a > 0x7f800000 ? 0x7f : found;
  return (T)(uint8_t)(found | ((uint32_t)u >> 31) << 7);
}
INLINE float widen(e4m3 v) { return widen_byte(v); }
INLINE float widen(e5m2 v) { return widen_byte(v); }
template <> struct Convert<float, e4m3> { INLINE float apply(e4m3 v) { return widen_byte(v); } };
template <> struct Convert<float, e5m2> { INLINE float apply(e5m2 v) { return widen_byte(v); } };
template <class From> struct Convert<e4m3, From> { INLINE e4m3 apply(From v) { return narrow_byte<e4m3>((float)v); } };
template <class From> struct Convert<e5m2, From> { INLINE e5m2 apply(From v) { return narrow_byte<e5m2>((float)v); } };

template <> struct Element<e4m3> { typedef uint8_t type; };
template <> struct Element<e5m2> { typedef uint8_t type; };
template <> struct Plain<e4m3> : Plain<bf16> {};
template <> struct Plain<e5m2> : Plain<bf16> {};

template <class T> INLINE V<float> widen_bytes(V<T> v) {
  const Mask raw = widened((Part<uint8_t>)v.v), rest = raw & 0x7f;
  const Part<float> scaled = (Part<float>)(rest << Format<T>::SHIFT) * bits<float>((127 + Format<T>::BIAS) << 23);
  Mask special = Mask{} + 0x7fc00000;
  if constexpr (Format<T>::SPECIAL != 0x7f) special = rest == Format<T>::SPECIAL ? Mask{} + 0x7f800000 : special;
  const Mask found = rest >= Format<T>::SPECIAL ? special : (Mask)scaled;
  return V<float>((Part<float>)(found | (raw & 0x80) << 24));
}
template <class T> INLINE V<T> narrow_bytes(V<float> v) {
  typedef Format<T> F;
  const Mask u = (Mask)v.v, a = u & 0x7fffffff;
  const Mask rounded = (a - (F::BIAS << 23) + ((1 << (F::SHIFT - 1)) - 1) + ((a >> F::SHIFT) & 1)) >> F::SHIFT;
  const Mask small = (Mask)((Part<float>)a + F::UNIT) - bits<int32_t>(F::UNIT);
  Mask found = a < ((F::BIAS + 1) << 23) ? small : rounded < F::LAST ? rounded : Mask{} + F::LAST;
  found = a > 0x7f800000 ? Mask{} + 0x7f : found;
  return V<T>((Part<T>)VectorConvert<uint8_t, int32_t>::apply(V<int32_t>(found | ((u >> 24) & 0x80))).v);
}
template <> struct VectorConvert<float, e4m3, void> { INLINE_METHOD static V<float> apply(V<e4m3> a) { return widen_bytes(a); } };
template <> struct VectorConvert<float, e5m2, void> { INLINE_METHOD static V<float> apply(V<e5m2> a) { return widen_bytes(a); } };
template <> struct VectorConvert<e4m3, float, void> { INLINE_METHOD static V<e4m3> apply(V<float> a) { return narrow_bytes<e4m3>(a); } };
template <> struct VectorConvert<e5m2, float, void> { INLINE_METHOD static V<e5m2> apply(V<float> a) { return narrow_bytes<e5m2>(a); } };
