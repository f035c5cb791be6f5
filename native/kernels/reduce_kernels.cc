// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The vector kernels, compiled once per instruction set with -DSMD_KERNEL_SET=<name>.
//
// The text is written with the compiler's vector types, whose width follows the target, so that it
// serves SSE2, AVX2, AVX-512 and NEON alike; only the float16 conversion has instructions of its
// own. One loop serves every operation and type: a few vectors of accumulators stay in registers
// while all sources pass by, so each source is read once and each destination written once.
//
// Every floating result that is NaN is stored as the one canonical quiet NaN: processors and
// compilers differ in which operand's NaN survives an addition, and the result must have the same
// bits everywhere.
//
// See kernel_table.h for what this file may include and call.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/types.h"
#include "kernels/half.h"
#include "kernels/kernel_table.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace smd::kernels::SMD_KERNEL_SET {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif

constexpr std::size_t kCacheLine = 64;

template <class T, std::size_t lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * lanes)));
};

template <class T>
inline T loadAs(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void storeAs(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// ---- Element types -----------------------------------------------------------------------------
//
// An element type says how elements lie in memory (kSize bytes each) and what they are while being
// computed with: one at a time a Single, kLanes at once a Vector. load and store exist for both.
// kTurn vectors at a time are kept in registers. Sources are asked for kAhead bytes before they are
// needed, 0 for not at all.
// Real is the type of the factor or divisor that a finished result may be scaled with.

template <class T>
struct Native {
  using Single = T;
  using Real = T;
  static constexpr std::size_t kSize = sizeof(T);
  static constexpr std::size_t kLanes = kVectorBytes / sizeof(T);
  static constexpr std::size_t kTurn = 4;
  static constexpr std::size_t kAhead = 0;  // tried with float32: a tenth slower
  using Vector = typename VectorOf<T, kLanes>::type;

  template <class V>
  static V load(const void* from) {
    return loadAs<V>(from);
  }
  template <class V>
  static void store(void* to, V value) {
    storeAs(to, value);
  }
};

// Bytes, of which any but zero is true; 0 or 1 in computations and results.
struct Boolean : Native<std::uint8_t> {
  template <class V>
  static V load(const void* from) {
    const V byte = loadAs<V>(from);
    return static_cast<V>(V(byte != 0) & 1);  // lanes compare to 0 or all ones, single values to 1
  }
};

// A vector of 16-bit elements while being computed with: two of float32.
template <class V>
struct Twin {
  V low;
  V high;
};

// What float16 and bfloat16 share: 16 bits in memory, float32 in computations. The conversions fill
// the processor's window of instructions, so by itself it looks less far ahead than with float32.
// Two arrays of 25 MiB reduced in place, float16 and bfloat16: 2 KiB ahead 42 and 40 GB/s, not at
// all 35 and 33, 1 KiB 40 and 36, 3 KiB 37 and 32.
struct Short {
  using Single = float;
  using Real = float;
  static constexpr std::size_t kSize = 2;
  static constexpr std::size_t kLanes = kVectorBytes / kSize;
  static constexpr std::size_t kAhead = 2048;
  using Floats = VectorOf<float, kLanes / 2>::type;
  using Bits = VectorOf<std::uint32_t, kLanes / 2>::type;
  using Vector = Twin<Floats>;

  static std::uint32_t loadBits(const void* from) { return loadAs<std::uint16_t>(from); }
  static void storeBits(void* to, std::uint32_t bits) {
    storeAs(to, static_cast<std::uint16_t>(bits));
  }
};

// Without any shuffling: a vector of 32-bit words holds two elements in each lane. The lower ones
// are computed with in `low`, the upper ones in `high`. Finished values have no NaN but the
// canonical one, which the shorter roundings leave as it is.
struct BFloat : Short {
  static constexpr std::size_t kTurn = 4;
  using Shorts = VectorOf<std::uint16_t, kLanes>::type;
  using SignedShorts = VectorOf<std::int16_t, kLanes>::type;

  template <class V>
  static V load(const void* from) {
    if constexpr (__is_same(V, Single)) {
      return floatFromBfloat<Single>(loadBits(from));
    } else {
      const Bits words = loadAs<Bits>(from);
      return {bitsAs<Floats>(Bits(words << 16)), bitsAs<Floats>(Bits(words & 0xffff0000u))};
    }
  }
  static void store(void* to, Single value) {
    storeBits(to, roundToHighHalf(bitsAs<std::uint32_t>(value)) >> 16);
  }
  // Rounds all elements at once, in 16-bit lanes: `kept` is the half of a float32 that a bfloat16
  // has room for, `rest` the other one. Up if the rest is more than a half of the last kept place,
  // or is exactly that and the place odd; a carry raises the exponent, up to infinity.
  static void store(void* to, Vector value) {
    const Bits low = bitsAs<Bits>(value.low);
    const Bits high = bitsAs<Bits>(value.high);
    const auto kept = bitsAs<Shorts>(merged(low >> 16, high));
    const auto rest = bitsAs<Shorts>(merged(low, high << 16));
    const auto beyondHalf = bitsAs<SignedShorts>(Shorts(rest ^ 0x8000u));  // rest - 2^15
    const auto odd = bitsAs<SignedShorts>(Shorts(kept & 1u));
    const SignedShorts isUp = beyondHalf > -odd;  // 0 or -1
    storeAs(to, Shorts(kept - bitsAs<Shorts>(isUp)));
  }

 private:
  // The lower half of each 32-bit word from `low`, the upper one from `high`.
#if defined(__AVX2__)
  static Bits merged(Bits low, Bits high) {
    return blended(bitsAs<Shorts>(low), bitsAs<Shorts>(high), std::make_index_sequence<kLanes>());
  }
  // One instruction, where there is one; else GCC 12 would take the vectors apart.
  template <std::size_t... lane>
  static Bits blended(Shorts low, Shorts high, std::index_sequence<lane...>) {
    return bitsAs<Bits>(
        __builtin_shufflevector(low, high, (lane % 2 == 0 ? lane : kLanes + lane)...));
  }
#else
  static Bits merged(Bits low, Bits high) { return (low & 0x0000ffffu) | (high & 0xffff0000u); }
#endif
};

#if defined(__F16C__)
// `low` holds the first half of the elements, `high` the second.
struct Half : Short {
  static constexpr std::size_t kTurn = 2;
  static constexpr int kToNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  template <class V>
  static V load(const void* from) {
    if constexpr (__is_same(V, Single)) {
      return _cvtsh_ss(loadAs<std::uint16_t>(from));
    } else {
      // From memory each: to convert from the upper half of a register takes a shuffle more.
      const auto* bytes = static_cast<const std::byte*>(from);
      return {widened(bytes), widened(bytes + kVectorBytes / 2)};
    }
  }
  static void store(void* to, Single value) { storeAs(to, _cvtss_sh(value, kToNearestEven)); }
  static void store(void* to, Vector value) {
    storeAs(to, joined(narrowed(value.low), narrowed(value.high)));
  }

 private:
#if defined(__AVX512F__)
  // The forms without a mask make GCC 12 warn of an uninitialised variable in its own header.
  static Floats widened(const void* from) {
    return Floats(_mm512_maskz_cvtph_ps(0xffff, loadAs<__m256i>(from)));
  }
  static __m256i narrowed(Floats value) {
    return _mm512_maskz_cvtps_ph(0xffff, __m512(value), kToNearestEven);
  }
  static __m512i joined(__m256i first, __m256i second) {
    return _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(first), second, 1);
  }
#else
  static Floats widened(const void* from) { return Floats(_mm256_cvtph_ps(loadAs<__m128i>(from))); }
  static __m128i narrowed(Floats value) { return _mm256_cvtps_ph(__m256(value), kToNearestEven); }
  static __m256i joined(__m128i first, __m128i second) { return _mm256_set_m128i(second, first); }
#endif
};
#else
// Elements lie in the lanes as with BFloat.
struct Half : Short {
  static constexpr std::size_t kTurn = 1;  // the conversion needs all the registers

  template <class V>
  [[gnu::always_inline]] static V load(const void* from) {
    if constexpr (__is_same(V, Single)) {
      return floatFromHalf<Single>(loadBits(from));
    } else {
      const Bits words = loadAs<Bits>(from);
      return {floatFromHalf<Floats>(Bits(words & 0xffffu)),
              floatFromHalf<Floats>(Bits(words >> 16))};
    }
  }
  [[gnu::always_inline]] static void store(void* to, Single value) {
    storeBits(to, halfFromFloat<Single, std::uint32_t>(value));
  }
  [[gnu::always_inline]] static void store(void* to, Vector value) {
    const Bits low = halfFromFloat<Floats, Bits>(value.low);
    const Bits high = halfFromFloat<Floats, Bits>(value.high);
    storeAs(to, Bits(low | (high << 16)));
  }
};
#endif

template <class T>
struct Pair {
  T real;
  T imaginary;
};

// Complex numbers, for products only: sums and scaling take the parts for twice as many reals.
template <class T>
struct Complex {
  using Single = Pair<T>;
  using Real = T;
  static constexpr std::size_t kSize = sizeof(Single);
  static constexpr std::size_t kLanes = 1;
  static constexpr std::size_t kTurn = 4;
  static constexpr std::size_t kAhead = 0;
  using Vector = Single;

  template <class V>
  static V load(const void* from) {
    return loadAs<V>(from);
  }
  static void store(void* to, Single value) { storeAs(to, value); }
};

// ---- Operations --------------------------------------------------------------------------------
//
// Each on two single values or two vectors: `left` is the result so far, `right` the next source.

struct Sum {
  template <class V>
  static V apply(V left, V right) {
    return static_cast<V>(left + right);
  }
};

struct Product {
  template <class V>
  static V apply(V left, V right) {
    if constexpr (__is_same(V, std::uint16_t)) {
      return static_cast<V>(std::uint32_t{left} * right);  // would overflow the int it promotes to
    } else {
      return static_cast<V>(left * right);
    }
  }
  template <class T>
  static Pair<T> apply(Pair<T> left, Pair<T> right) {
    return {left.real * right.real - left.imaginary * right.imaginary,
            left.real * right.imaginary + left.imaginary * right.real};
  }
};

// Of equal values (and of -0 and +0) the first stays; the first NaN stays against everything.
struct Min {
  template <class V>
  static V apply(V left, V right) {
    return (right < left) | (right != right) ? right : left;
  }
};

struct Max {
  template <class V>
  static V apply(V left, V right) {
    return (right > left) | (right != right) ? right : left;
  }
};

struct Band {
  template <class V>
  static V apply(V left, V right) {
    return static_cast<V>(left & right);
  }
};

struct Bor {
  template <class V>
  static V apply(V left, V right) {
    return static_cast<V>(left | right);
  }
};

struct Bxor {
  template <class V>
  static V apply(V left, V right) {
    return static_cast<V>(left ^ right);
  }
};

template <class Op, class V>
inline V combine(V left, V right) {
  return Op::apply(left, right);
}

template <class Op, class V>
inline Twin<V> combine(Twin<V> left, Twin<V> right) {
  return {Op::apply(left.low, right.low), Op::apply(left.high, right.high)};
}

// ---- Finishing ---------------------------------------------------------------------------------

enum class Scaling { kNone, kMultiply, kDivide };

template <Scaling scaling, class Real, class V>
inline V scaled(V value, [[maybe_unused]] Real factor) {
  if constexpr (scaling == Scaling::kMultiply) {
    if constexpr (__is_same(V, Real)) {
      return Product::apply(value, factor);
    } else {
      return value * factor;
    }
  } else if constexpr (scaling == Scaling::kDivide) {
    return value / factor;
  } else {
    return value;
  }
}

template <Scaling scaling, class Real, class V>
inline Twin<V> scaled(Twin<V> value, Real factor) {
  return {scaled<scaling>(value.low, factor), scaled<scaling>(value.high, factor)};
}

template <class Real, class V>
inline V canonical(V value) {
  constexpr Real nan = __is_same(Real, float) ? __builtin_nanf("") : Real(__builtin_nan(""));
  return value == value ? value : V{} + nan;  // the sum, of constants, makes a vector of it
}

template <class Real, class T>
inline Pair<T> canonical(Pair<T> value) {
  return {canonical<Real>(value.real), canonical<Real>(value.imaginary)};
}

template <class Real, class V, std::size_t width>
[[gnu::always_inline]] inline void replaceNan(V (&results)[width]) {
  if constexpr (__is_same(Real, float) || __is_same(Real, double)) {
    for (std::size_t i = 0; i < width; ++i) {
      results[i] = canonical<Real>(results[i]);
    }
  }
}

// Which lanes of either are NaN, as a mask that "or" and isAny take: one comparison for two
// vectors, where the compiler makes two of `left != left` and its like.
template <class V>
inline auto unordered(V left, V right) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(__m512(left), __m512(right), _CMP_UNORD_Q);
#elif defined(__AVX2__)
  return __m256i(_mm256_cmp_ps(__m256(left), __m256(right), _CMP_UNORD_Q));
#elif defined(__SSE2__)
  return __m128i(_mm_cmpunord_ps(__m128(left), __m128(right)));
#else
  return (left != left) | (right != right);
#endif
}

template <class Mask>
inline bool isAny(Mask mask) {
#if defined(__AVX512F__)
  return mask != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8(mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8(mask) != 0;
#else
  const auto words = bitsAs<VectorOf<std::uint64_t, 2>::type>(mask);
  return (words[0] | words[1]) != 0;
#endif
}

// Twins are twice as many vectors, so to look first takes less than to replace. Training has no NaN
// as a rule.
template <class Real, class V, std::size_t width>
[[gnu::always_inline]] inline void replaceNan(Twin<V> (&results)[width]) {
  auto isNan = unordered(results[0].low, results[0].high);
  for (std::size_t i = 1; i < width; ++i) {
    isNan |= unordered(results[i].low, results[i].high);
  }
  if (isAny(isNan)) [[unlikely]] {
    for (Twin<V>& result : results) {
      result = {canonical<Real>(result.low), canonical<Real>(result.high)};
    }
  }
}

// ---- The loop ----------------------------------------------------------------------------------

struct Operands {
  std::byte* dst;
  std::byte* dstCopy;
  const std::byte* const* srcs;
  std::size_t numSrcs;
};

// Reduces `width` values of type V at byte `at`: all are loaded before any is stored, so that a
// destination may be one of the sources.
template <class Element, class Op, Scaling scaling, class V, std::size_t width>
[[gnu::always_inline]] inline void step(const Operands& operands, std::size_t numSrcs,
                                        std::size_t at, typename Element::Real factor) {
  constexpr std::size_t stride =
      Element::kSize * (__is_same(V, typename Element::Single) ? 1 : Element::kLanes);
  V result[width];
  for (std::size_t i = 0; i < width; ++i) {
    result[i] = Element::template load<V>(operands.srcs[0] + at + i * stride);
  }
  for (std::size_t which = 1; which < numSrcs; ++which) {
    const std::byte* src = operands.srcs[which] + at;
    for (std::size_t i = 0; i < width; ++i) {
      result[i] = combine<Op>(result[i], Element::template load<V>(src + i * stride));
    }
  }
  for (std::size_t i = 0; i < width; ++i) {
    result[i] = scaled<scaling>(result[i], factor);
  }
  replaceNan<typename Element::Real>(result);
  for (std::size_t i = 0; i < width; ++i) {
    Element::store(operands.dst + at + i * stride, result[i]);
  }
  if (operands.dstCopy != nullptr) {
    for (std::size_t i = 0; i < width; ++i) {
      Element::store(operands.dstCopy + at + i * stride, result[i]);
    }
  }
}

// Asks for `bytes` bytes of each source. They may lie beyond its end: nothing comes of that.
template <std::size_t bytes>
[[gnu::always_inline]] inline void prefetch(const Operands& operands, std::size_t numSrcs,
                                            std::size_t at) {
  for (std::size_t which = 0; which < numSrcs; ++which) {
    for (std::size_t line = 0; line < bytes; line += kCacheLine) {
      __builtin_prefetch(operands.srcs[which] + at + line);
    }
  }
}

// fixedSrcs is the number of sources where it was worth telling the compiler, else 0.
template <class Element, class Op, Scaling scaling, std::size_t fixedSrcs>
void reduceLoop(const Operands& given, std::size_t count, typename Element::Real factor) {
  using Single = typename Element::Single;
  using Vector = typename Element::Vector;
  // A copy that no store can reach, as far as the compiler knows: these stay in registers.
  const std::byte* srcs[fixedSrcs == 0 ? 1 : fixedSrcs];
  for (std::size_t which = 0; which < fixedSrcs; ++which) {
    srcs[which] = given.srcs[which];
  }
  const Operands operands{given.dst, given.dstCopy, fixedSrcs == 0 ? given.srcs : srcs,
                          given.numSrcs};
  const std::size_t numSrcs = fixedSrcs == 0 ? given.numSrcs : fixedSrcs;

  constexpr std::size_t vectorBytes = Element::kLanes * Element::kSize;
  constexpr std::size_t width = Element::kTurn;
  const std::size_t end = count * Element::kSize;
  std::size_t at = 0;
  for (; end - at >= width * vectorBytes; at += width * vectorBytes) {
    if constexpr (Element::kAhead != 0) {
      prefetch<width * vectorBytes>(operands, numSrcs, at + Element::kAhead);
    }
    step<Element, Op, scaling, Vector, width>(operands, numSrcs, at, factor);
  }
  for (; end - at >= vectorBytes; at += vectorBytes) {
    step<Element, Op, scaling, Vector, 1>(operands, numSrcs, at, factor);
  }
  for (; at < end; at += Element::kSize) {
    step<Element, Op, scaling, Single, 1>(operands, numSrcs, at, factor);
  }
}

// Sums of few floats are what training does; all else shares one loop to keep the library small.
template <class Element, class Op, Scaling scaling>
void reduceWith(const Operands& operands, std::size_t count, typename Element::Real factor) {
  using Real = typename Element::Real;
  if constexpr (__is_same(Op, Sum) && scaling != Scaling::kDivide &&
                (__is_same(Real, float) || __is_same(Real, double))) {
    switch (operands.numSrcs) {
      case 2:
        return reduceLoop<Element, Op, scaling, 2>(operands, count, factor);
      case 3:
        return reduceLoop<Element, Op, scaling, 3>(operands, count, factor);
      case 4:
        return reduceLoop<Element, Op, scaling, 4>(operands, count, factor);
      default:
        break;
    }
  }
  reduceLoop<Element, Op, scaling, 0>(operands, count, factor);
}

// ---- The functions of the table ----------------------------------------------------------------

inline Operands makeOperands(void* dst, void* dstCopy, const void* const* srcs,
                             std::size_t numSrcs) {
  return {static_cast<std::byte*>(dst), static_cast<std::byte*>(dstCopy),
          reinterpret_cast<const std::byte* const*>(srcs), numSrcs};
}

// elementsEach is 2 for complex types taken as reals.
template <class Element, class Op, std::size_t elementsEach = 1>
void reduce(void* dst, void* dstCopy, const void* const* srcs, std::size_t numSrcs,
            std::size_t count, double) {
  reduceWith<Element, Op, Scaling::kNone>(makeOperands(dst, dstCopy, srcs, numSrcs),
                                          count * elementsEach, {});
}

// Is it a power of two whose reciprocal is a normal number too? Then multiplying with the
// reciprocal gives the same bits as dividing, several times as fast.
inline bool hasExactReciprocal(float divisor) {
  const auto bits = bitsAs<std::uint32_t>(divisor);
  const std::uint32_t exponent = (bits >> 23) & 0xffu;
  return (bits & 0x007fffffu) == 0 && exponent >= 1 && exponent <= 253;
}

inline bool hasExactReciprocal(double divisor) {
  const auto bits = bitsAs<std::uint64_t>(divisor);
  const std::uint64_t exponent = (bits >> 52) & 0x7ffu;
  return (bits & 0x000fffffffffffffu) == 0 && exponent >= 1 && exponent <= 2045;
}

template <class Element, std::size_t elementsEach = 1>
void average(void* dst, void* dstCopy, const void* const* srcs, std::size_t numSrcs,
             std::size_t count, double divisor) {
  using Real = typename Element::Real;
  const Operands operands = makeOperands(dst, dstCopy, srcs, numSrcs);
  const Real by = static_cast<Real>(divisor);
  if (hasExactReciprocal(by)) {
    reduceWith<Element, Sum, Scaling::kMultiply>(operands, count * elementsEach, Real{1} / by);
  } else {
    reduceWith<Element, Sum, Scaling::kDivide>(operands, count * elementsEach, by);
  }
}

// One element at a time: processors have no vector division of integers. Sums are taken unsigned,
// where they wrap around, and divided with the element's own sign.
template <class Given, class Unsigned>
void averageIntegers(void* dst, void* dstCopy, const void* const* srcs, std::size_t numSrcs,
                     std::size_t count, double divisor) {
  using Wide = decltype(Given{} + 1);  // at least an int, so that every divisor fits
  const Operands operands = makeOperands(dst, dstCopy, srcs, numSrcs);
  const auto by = static_cast<Wide>(divisor);
  const std::size_t end = count * sizeof(Given);
  for (std::size_t at = 0; at < end; at += sizeof(Given)) {
    auto sum = loadAs<Unsigned>(operands.srcs[0] + at);
    for (std::size_t which = 1; which < numSrcs; ++which) {
      sum = Sum::apply(sum, loadAs<Unsigned>(operands.srcs[which] + at));
    }
    const auto quotient = static_cast<Given>(static_cast<Given>(sum) / by);
    storeAs(operands.dst + at, quotient);
    if (operands.dstCopy != nullptr) {
      storeAs(operands.dstCopy + at, quotient);
    }
  }
}

// The factor as an integer: the fraction is dropped, what does not fit becomes the nearest value
// that does, NaN becomes 0.
template <class Integer>
inline Integer integerFactor(double factor) {
  constexpr bool isSigned = Integer(-1) < Integer(0);
  constexpr int bits = 8 * sizeof(Integer) - (isSigned ? 1 : 0);
  constexpr auto most = static_cast<Integer>(~std::uint64_t{0} >> (64 - bits));
  constexpr Integer least = isSigned ? static_cast<Integer>(-most - 1) : Integer{0};
  // 2^bits, the first that is too large, is exact as a double, which `most` is not always.
  constexpr double tooLarge = 2.0 * static_cast<double>(std::uint64_t{1} << (bits - 1));
  if (factor != factor) {
    return 0;
  }
  if (factor >= tooLarge) {
    return most;
  }
  if (factor <= static_cast<double>(least)) {
    return least;
  }
  return static_cast<Integer>(factor);
}

// Given is the element's own type, where Element computes with its unsigned counterpart.
template <class Element, class Given = typename Element::Real, std::size_t elementsEach = 1>
void scale(void* dst, const void* src, std::size_t count, double factor) {
  using Real = typename Element::Real;
  Real by{};
  if constexpr (__is_same(Given, bool)) {
    by = factor != 0.0;
  } else if constexpr (__is_same(Real, float) || __is_same(Real, double)) {
    by = static_cast<Real>(factor);
  } else {
    by = static_cast<Real>(integerFactor<Given>(factor));
  }
  const auto* bytes = static_cast<const std::byte*>(src);
  const Operands operands{static_cast<std::byte*>(dst), nullptr, &bytes, 1};
  reduceLoop<Element, Sum, Scaling::kMultiply, 1>(operands, count * elementsEach, by);
}

// ---- The table ---------------------------------------------------------------------------------

consteval ReduceFn& entry(KernelTable& table, ReduceOp op, DType type) {
  return table.reduce[static_cast<int>(op)][static_cast<int>(type)];
}

consteval ScaleFn& scaleEntry(KernelTable& table, DType type) {
  return table.scale[static_cast<int>(type)];
}

template <class Element>
consteval void addReal(KernelTable& table, DType type) {
  entry(table, ReduceOp::kSum, type) = reduce<Element, Sum>;
  entry(table, ReduceOp::kPremulSum, type) = reduce<Element, Sum>;
  entry(table, ReduceOp::kAvg, type) = average<Element>;
  entry(table, ReduceOp::kProduct, type) = reduce<Element, Product>;
  entry(table, ReduceOp::kMin, type) = reduce<Element, Min>;
  entry(table, ReduceOp::kMax, type) = reduce<Element, Max>;
  scaleEntry(table, type) = scale<Element>;
}

template <class T>
consteval void addComplex(KernelTable& table, DType type) {
  entry(table, ReduceOp::kSum, type) = reduce<Native<T>, Sum, 2>;
  entry(table, ReduceOp::kPremulSum, type) = reduce<Native<T>, Sum, 2>;
  entry(table, ReduceOp::kAvg, type) = average<Native<T>, 2>;
  entry(table, ReduceOp::kProduct, type) = reduce<Complex<T>, Product>;
  scaleEntry(table, type) = scale<Native<T>, T, 2>;
}

// Sums, products and bits are the same for both signs, and only unsigned ones may overflow in C++.
template <class Given, class Unsigned>
consteval void addInteger(KernelTable& table, DType type) {
  entry(table, ReduceOp::kSum, type) = reduce<Native<Unsigned>, Sum>;
  entry(table, ReduceOp::kPremulSum, type) = reduce<Native<Unsigned>, Sum>;
  entry(table, ReduceOp::kAvg, type) = averageIntegers<Given, Unsigned>;
  entry(table, ReduceOp::kProduct, type) = reduce<Native<Unsigned>, Product>;
  entry(table, ReduceOp::kMin, type) = reduce<Native<Given>, Min>;
  entry(table, ReduceOp::kMax, type) = reduce<Native<Given>, Max>;
  entry(table, ReduceOp::kBand, type) = reduce<Native<Unsigned>, Band>;
  entry(table, ReduceOp::kBor, type) = reduce<Native<Unsigned>, Bor>;
  entry(table, ReduceOp::kBxor, type) = reduce<Native<Unsigned>, Bxor>;
  scaleEntry(table, type) = scale<Native<Unsigned>, Given>;
}

consteval void addBoolean(KernelTable& table) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kPremulSum, ReduceOp::kMax, ReduceOp::kBor}) {
    entry(table, op, DType::kBool) = reduce<Boolean, Bor>;
  }
  for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBand}) {
    entry(table, op, DType::kBool) = reduce<Boolean, Band>;
  }
  entry(table, ReduceOp::kBxor, DType::kBool) = reduce<Boolean, Bxor>;
  scaleEntry(table, DType::kBool) = scale<Boolean, bool>;
}

void copyBytes(void* dst, const void* src, std::size_t bytes) {
  using Vector = VectorOf<char, kVectorBytes>::type;
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  constexpr std::size_t kTurnBytes = 4 * kVectorBytes;
  if (bytes < kTurnBytes) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  // One unaligned vector, then from the next aligned address on: stores that cross cache lines cost
  // more than loads that do.
  storeAs(to, loadAs<Vector>(from));
  const std::size_t head = kVectorBytes - reinterpret_cast<std::size_t>(to) % kVectorBytes;
  std::size_t at = head;
  for (; at + kTurnBytes <= bytes; at += kTurnBytes) {
    const Vector a = loadAs<Vector>(from + at);
    const Vector b = loadAs<Vector>(from + at + kVectorBytes);
    const Vector c = loadAs<Vector>(from + at + 2 * kVectorBytes);
    const Vector d = loadAs<Vector>(from + at + 3 * kVectorBytes);
    storeAs(to + at, a);
    storeAs(to + at + kVectorBytes, b);
    storeAs(to + at + 2 * kVectorBytes, c);
    storeAs(to + at + 3 * kVectorBytes, d);
  }
  for (; at + kVectorBytes <= bytes; at += kVectorBytes)
    storeAs(to + at, loadAs<Vector>(from + at));
  storeAs(to + bytes - kVectorBytes, loadAs<Vector>(from + bytes - kVectorBytes));
}

consteval KernelTable makeTable() {
  KernelTable table{};
  table.copy = copyBytes;
  addReal<Native<float>>(table, DType::kFloat32);
  addReal<Native<double>>(table, DType::kFloat64);
  addReal<Half>(table, DType::kFloat16);
  addReal<BFloat>(table, DType::kBFloat16);
  addComplex<float>(table, DType::kComplex64);
  addComplex<double>(table, DType::kComplex128);
  addInteger<std::int8_t, std::uint8_t>(table, DType::kInt8);
  addInteger<std::int16_t, std::uint16_t>(table, DType::kInt16);
  addInteger<std::int32_t, std::uint32_t>(table, DType::kInt32);
  addInteger<std::int64_t, std::uint64_t>(table, DType::kInt64);
  addInteger<std::uint8_t, std::uint8_t>(table, DType::kUInt8);
  addInteger<std::uint16_t, std::uint16_t>(table, DType::kUInt16);
  addInteger<std::uint32_t, std::uint32_t>(table, DType::kUInt32);
  addInteger<std::uint64_t, std::uint64_t>(table, DType::kUInt64);
  addBoolean(table);
  return table;
}

}  // namespace

constinit const KernelTable kTable = makeTable();

}  // namespace smd::kernels::SMD_KERNEL_SET
