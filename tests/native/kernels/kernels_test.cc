// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The reduction kernels: the scalar reference against independent arithmetic, every set that this
// processor can run against the scalar reference, bit for bit, and the choice of a set.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/error.h"
#include "kernels/select.h"
#define SMD_KERNEL_SET under_test
#include "kernels/half.h"

namespace smd::kernels {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<DType> allTypes() {
  std::vector<DType> types;
  for (int i = 0; i < kNumDTypes; ++i) {
    types.push_back(static_cast<DType>(i));
  }
  return types;
}

std::vector<ReduceOp> allOps() {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kNumReduceOps; ++i) {
    ops.push_back(static_cast<ReduceOp>(i));
  }
  return ops;
}

const KernelSet& setNamed(std::string_view wanted) {
  for (const KernelSet* set : allKernelSets()) {
    if (set->name() == wanted) {
      return *set;
    }
  }
  throw Error(ErrorKind::kInternal, "no set " + std::string(wanted));
}

const KernelSet& scalarSet() { return setNamed("scalar"); }

template <class T>
Bytes bytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

template <class T>
std::vector<T> valuesOf(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

// The reduction of `sources` by one set, into memory of its own.
Bytes reduced(const KernelSet& set, ReduceOp op, DType type, const std::vector<Bytes>& sources,
              double divisor = 1.0) {
  const ReduceFn reduce = set.reduce(op, type);
  EXPECT_NE(reduce, nullptr) << name(op) << " of " << name(type);
  Bytes result(sources[0].size());
  std::vector<const void*> srcs;
  for (const Bytes& source : sources) {
    srcs.push_back(source.data());
  }
  reduce(result.data(), nullptr, srcs.data(), srcs.size(), result.size() / elementSize(type),
         divisor);
  return result;
}

template <class T>
std::vector<T> reducedValues(ReduceOp op, DType type, const std::vector<std::vector<T>>& sources,
                             double divisor = 1.0) {
  std::vector<Bytes> bytes;
  for (const auto& source : sources) {
    bytes.push_back(bytesOf(source));
  }
  return valuesOf<T>(reduced(scalarSet(), op, type, bytes, divisor));
}

// ---- float16 and bfloat16, by the definition of the formats
// ---------------------------------------

// The value of a 16-bit float with the given number of mantissa bits; NaN for NaN.
double valueOfShort(std::uint16_t bits, int mantissaBits) {
  const int exponentBits = 15 - mantissaBits;
  const int bias = (1 << (exponentBits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissaBits;
  const int mantissa = bits & ((1 << mantissaBits) - 1);
  double value = 0;
  if (exponent == (1 << exponentBits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissaBits);
  } else {
    value = std::ldexp(mantissa + (1 << mantissaBits), exponent - bias - mantissaBits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

double valueOfHalf(std::uint16_t bits) { return valueOfShort(bits, 10); }
double valueOfBfloat(std::uint16_t bits) { return valueOfShort(bits, 7); }

// The nearest 16-bit float, even among equals, found by arithmetic in double: not for NaN.
std::uint16_t nearestShort(double value, int mantissaBits) {
  const int exponentBits = 15 - mantissaBits;
  const int bias = (1 << (exponentBits - 1)) - 1;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = 0x7fff & ~((1 << mantissaBits) - 1);
  const double size = std::fabs(value);
  if (size == 0.0 || std::isinf(size)) {
    return static_cast<std::uint16_t>(sign | (size == 0.0 ? 0 : infinity));
  }
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  // In units of the last place; a full 2^(mantissaBits + 1) carries into the exponent by itself.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, mantissaBits - exponent)));
  const int bits = ((exponent + bias - 1) << mantissaBits) + units;
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

float floatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Every 16-bit float, the points half way to its neighbours, and what lies just beside those.
std::vector<float> roundingCases(int mantissaBits) {
  std::vector<float> cases;
  for (int bits = 0; bits < 0x7fff; ++bits) {
    const double here = valueOfShort(static_cast<std::uint16_t>(bits), mantissaBits);
    const double next = valueOfShort(static_cast<std::uint16_t>(bits + 1), mantissaBits);
    if (!std::isfinite(here) || !std::isfinite(next)) {
      continue;
    }
    const auto middle = static_cast<float>((here + next) / 2);
    for (const float value : {static_cast<float>(here), middle, std::nextafterf(middle, 0.0f),
                              std::nextafterf(middle, INFINITY)}) {
      cases.push_back(value);
      cases.push_back(-value);
    }
  }
  for (const float value : {65504.0f, 65519.996f, 65520.0f, 65536.0f, 3.38e38f, 3.4e38f, INFINITY,
                            std::numeric_limits<float>::max(), 1e-40f, 1e-45f, 0.0f}) {
    cases.push_back(value);
    cases.push_back(-value);
  }
  return cases;
}

TEST(HalfTest, WideningIsExactForEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double half = valueOfHalf(static_cast<std::uint16_t>(bits));
    const double bfloat = valueOfBfloat(static_cast<std::uint16_t>(bits));
    const float fromHalf = under_test::floatFromHalf<float>(bits);
    const float fromBfloat = under_test::floatFromBfloat<float>(bits);
    ASSERT_EQ(std::isnan(fromHalf), std::isnan(half)) << bits;
    ASSERT_EQ(std::isnan(fromBfloat), std::isnan(bfloat)) << bits;
    if (!std::isnan(half)) {
      ASSERT_EQ(double{fromHalf}, half) << bits;
      ASSERT_EQ(std::signbit(fromHalf), std::signbit(half)) << bits;
    }
    if (!std::isnan(bfloat)) {
      ASSERT_EQ(double{fromBfloat}, bfloat) << bits;
      ASSERT_EQ(std::signbit(fromBfloat), std::signbit(bfloat)) << bits;
    }
  }
}

TEST(HalfTest, NarrowingRoundsToNearestEven) {
  for (const float value : roundingCases(10)) {
    ASSERT_EQ((under_test::halfFromFloat<float, std::uint32_t>(value)), nearestShort(value, 10))
        << value;
  }
  for (const float value : roundingCases(7)) {
    ASSERT_EQ((under_test::bfloatFromFloat<float, std::uint32_t>(value)), nearestShort(value, 7))
        << value;
  }
}

TEST(HalfTest, NanStaysNan) {
  for (const std::uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const auto half = under_test::halfFromFloat<float, std::uint32_t>(floatOf(bits));
    const auto bfloat = under_test::bfloatFromFloat<float, std::uint32_t>(floatOf(bits));
    EXPECT_TRUE(std::isnan(valueOfHalf(static_cast<std::uint16_t>(half)))) << bits;
    EXPECT_TRUE(std::isnan(valueOfBfloat(static_cast<std::uint16_t>(bfloat)))) << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
    EXPECT_EQ(bfloat >> 15, bits >> 31);
  }
}

// ---- The scalar reference ----------------------------------------------------------------------

TEST(ScalarKernelsTest, DefinesExactlyTheMeaningfulPairs) {
  for (const DType type : allTypes()) {
    const bool isComplex = type == DType::kComplex64 || type == DType::kComplex128;
    const bool isFloat = type == DType::kFloat32 || type == DType::kFloat64 ||
                         type == DType::kFloat16 || type == DType::kBFloat16;
    for (const ReduceOp op : allOps()) {
      bool expected = type != DType::kOpaque8;
      if (op == ReduceOp::kAvg) {
        expected = expected && type != DType::kBool;
      } else if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
        expected = expected && !isComplex;
      } else if (op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor) {
        expected = expected && !isComplex && !isFloat;
      }
      for (const KernelSet* set : allKernelSets()) {
        EXPECT_EQ(set->reduce(op, type) != nullptr, expected)
            << set->name() << " " << name(op) << " " << name(type);
      }
    }
    for (const KernelSet* set : allKernelSets()) {
      EXPECT_EQ(set->scale(type) != nullptr, type != DType::kOpaque8) << set->name();
    }
  }
}

// Small whole numbers: every intermediate result is exact, so plain arithmetic must agree exactly.
template <class T>
void expectExactFloatArithmetic(DType type) {
  const std::vector<std::vector<T>> sources = {{1, -2, 3, 0}, {4, 5, -6, 0}, {7, -8, 9, 0}};
  EXPECT_EQ(reducedValues(ReduceOp::kSum, type, sources), (std::vector<T>{12, -5, 6, 0}));
  EXPECT_EQ(reducedValues(ReduceOp::kPremulSum, type, sources), (std::vector<T>{12, -5, 6, 0}));
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, type, sources, 4), (std::vector<T>{3, -1.25, 1.5, 0}));
  EXPECT_EQ(reducedValues(ReduceOp::kProduct, type, sources), (std::vector<T>{28, 80, -162, 0}));
  EXPECT_EQ(reducedValues(ReduceOp::kMin, type, sources), (std::vector<T>{1, -8, -6, 0}));
  EXPECT_EQ(reducedValues(ReduceOp::kMax, type, sources), (std::vector<T>{7, 5, 9, 0}));
}

TEST(ScalarKernelsTest, FloatsFollowPlainArithmetic) {
  expectExactFloatArithmetic<float>(DType::kFloat32);
  expectExactFloatArithmetic<double>(DType::kFloat64);
}

TEST(ScalarKernelsTest, FloatSumRoundsOncePerSource) {
  // In float32, 2^24 + 1 is 2^24: the order of the sources decides.
  const float big = 16777216.0f;
  EXPECT_EQ(reducedValues<float>(ReduceOp::kSum, DType::kFloat32, {{big}, {1}, {1}})[0], big);
  EXPECT_EQ(reducedValues<float>(ReduceOp::kSum, DType::kFloat32, {{1}, {1}, {big}})[0], big + 2);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int i = 0; i < 1000; ++i) {
    // The sum of two floats in double is near enough to be rounded like the exact sum.
    const float a = uniform(random);
    const float b = uniform(random);
    ASSERT_EQ(reducedValues<float>(ReduceOp::kSum, DType::kFloat32, {{a}, {b}})[0],
              static_cast<float>(double{a} + double{b}));
    ASSERT_EQ(reducedValues<float>(ReduceOp::kProduct, DType::kFloat32, {{a}, {b}})[0],
              static_cast<float>(double{a} * double{b}));
    ASSERT_EQ(reducedValues<float>(ReduceOp::kAvg, DType::kFloat32, {{a}}, 3)[0],
              static_cast<float>(double{a} / 3));
  }
}

__extension__ using Wide = unsigned __int128;
__extension__ using SignedWide = __int128;

template <class T>
void expectIntegerArithmetic(DType type) {
  std::mt19937_64 random(2);
  std::vector<std::vector<T>> sources(3);
  for (auto& source : sources) {
    source = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), 0, 1};
    for (int i = 0; i < 100; ++i) {
      source.push_back(static_cast<T>(random()));
    }
  }
  const std::size_t count = sources[0].size();
  std::vector<T> sum, average, product, least, most, band, bor, bxor;
  for (std::size_t i = 0; i < count; ++i) {
    // 128 bits hold the sum exactly; the product wraps at a multiple of every narrower type.
    Wide total = 0;
    Wide times = 1;
    std::vector<T> column;
    for (const auto& source : sources) {
      total += static_cast<Wide>(source[i]);
      times *= static_cast<Wide>(source[i]);
      column.push_back(source[i]);
    }
    sum.push_back(static_cast<T>(total));
    // The quotient of what is left of the sum in the type, in 128 bits again.
    average.push_back(static_cast<T>(static_cast<SignedWide>(sum.back()) / 3));
    product.push_back(static_cast<T>(times));
    least.push_back(*std::min_element(column.begin(), column.end()));
    most.push_back(*std::max_element(column.begin(), column.end()));
    band.push_back(static_cast<T>(column[0] & column[1] & column[2]));
    bor.push_back(static_cast<T>(column[0] | column[1] | column[2]));
    bxor.push_back(static_cast<T>(column[0] ^ column[1] ^ column[2]));
  }
  EXPECT_EQ(reducedValues(ReduceOp::kSum, type, sources), sum) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, type, sources, 3), average) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kProduct, type, sources), product) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kMin, type, sources), least) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kMax, type, sources), most) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kBand, type, sources), band) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kBor, type, sources), bor) << name(type);
  EXPECT_EQ(reducedValues(ReduceOp::kBxor, type, sources), bxor) << name(type);
}

TEST(ScalarKernelsTest, IntegersWrapAround) {
  expectIntegerArithmetic<std::int8_t>(DType::kInt8);
  expectIntegerArithmetic<std::int16_t>(DType::kInt16);
  expectIntegerArithmetic<std::int32_t>(DType::kInt32);
  expectIntegerArithmetic<std::int64_t>(DType::kInt64);
  expectIntegerArithmetic<std::uint8_t>(DType::kUInt8);
  expectIntegerArithmetic<std::uint16_t>(DType::kUInt16);
  expectIntegerArithmetic<std::uint32_t>(DType::kUInt32);
  expectIntegerArithmetic<std::uint64_t>(DType::kUInt64);
}

TEST(ScalarKernelsTest, AveragesOfIntegersLoseTheirFractionAndNothingElse) {
  using Longs = std::vector<std::int64_t>;
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, DType::kInt64,
                          std::vector<Longs>{{7, -7, -1, 1}, {0, 0, 0, -2}}, 2),
            (Longs{3, -3, 0, 0}));
  // A double has no 2^53 + 1, nor its neighbours up there.
  constexpr std::int64_t kBeyondDouble = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, DType::kInt64,
                          std::vector<Longs>(3, {kBeyondDouble, -kBeyondDouble}), 3),
            (Longs{kBeyondDouble, -kBeyondDouble}));
  // More ranks than the type has numbers.
  using Chars = std::vector<std::int8_t>;
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, DType::kInt8, std::vector<Chars>{{127, -128}}, 200),
            (Chars{0, 0}));
  using Bytes8 = std::vector<std::uint8_t>;
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, DType::kUInt8, std::vector<Bytes8>{{255}}, 300),
            (Bytes8{0}));
  // Sums wrap around before they are divided: 200 + 100 is 44 in 8 bits.
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, DType::kUInt8, std::vector<Bytes8>{{200}, {100}}, 2),
            (Bytes8{22}));
}

TEST(ScalarKernelsTest, BooleansTakeAnyNonzeroByteAsTrue) {
  const std::vector<Bytes> sources = {{0, 0, 1, 2}, {0, 255, 0, 1}};
  const auto result = [&](ReduceOp op) { return reduced(scalarSet(), op, DType::kBool, sources); };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor}) {
    EXPECT_EQ(result(op), (Bytes{0, 1, 1, 1})) << name(op);
  }
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBand}) {
    EXPECT_EQ(result(op), (Bytes{0, 0, 0, 1})) << name(op);
  }
  EXPECT_EQ(result(ReduceOp::kBxor), (Bytes{0, 1, 1, 0}));
}

template <class T>
void expectComplexArithmetic(DType type) {
  using C = std::complex<T>;
  const std::vector<std::vector<C>> sources = {{{1, 2}, {0, 1}}, {{3, -4}, {0, 1}}};
  EXPECT_EQ(reducedValues(ReduceOp::kSum, type, sources), (std::vector<C>{{4, -2}, {0, 2}}));
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, type, sources, 2), (std::vector<C>{{2, -1}, {0, 1}}));
  EXPECT_EQ(reducedValues(ReduceOp::kProduct, type, sources), (std::vector<C>{{11, 2}, {-1, 0}}));
}

TEST(ScalarKernelsTest, ComplexFollowsPlainArithmetic) {
  expectComplexArithmetic<float>(DType::kComplex64);
  expectComplexArithmetic<double>(DType::kComplex128);
}

TEST(ScalarKernelsTest, ShortFloatsAccumulateInFloatAndRoundOnce) {
  const auto half = [](double value) { return nearestShort(value, 10); };
  const auto bfloat = [](double value) { return nearestShort(value, 7); };
  using Shorts = std::vector<std::vector<std::uint16_t>>;
  // 8 * 60000 exceeds the largest float16, the average does not.
  EXPECT_EQ(reducedValues(ReduceOp::kAvg, DType::kFloat16, Shorts(8, {half(60000)}), 8)[0],
            half(60000));
  EXPECT_EQ(reducedValues(ReduceOp::kSum, DType::kFloat16, Shorts(8, {half(60000)}))[0],
            half(INFINITY));
  // 300 * 300 / 1000 likewise, and each of 2048 + 1 + 1 = 2050 would be lost on its own.
  EXPECT_EQ(reducedValues<std::uint16_t>(ReduceOp::kProduct, DType::kFloat16,
                                         {{half(300)}, {half(300)}, {half(0.0009765625)}})[0],
            half(90000 * 0.0009765625));
  EXPECT_EQ(reducedValues<std::uint16_t>(ReduceOp::kSum, DType::kFloat16,
                                         {{half(2048)}, {half(1)}, {half(1)}})[0],
            half(2050));
  EXPECT_EQ(reducedValues<std::uint16_t>(ReduceOp::kSum, DType::kBFloat16,
                                         {{bfloat(256)}, {bfloat(1)}, {bfloat(1)}})[0],
            bfloat(258));
  EXPECT_EQ(reducedValues<std::uint16_t>(ReduceOp::kMin, DType::kFloat16,
                                         {{half(-1)}, {half(-2)}, {half(3)}})[0],
            half(-2));
}

TEST(ScalarKernelsTest, MinAndMaxPassNanOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const auto& result : {reducedValues<float>(op, DType::kFloat32, {{nan}, {1}, {2}}),
                               reducedValues<float>(op, DType::kFloat32, {{1}, {nan}, {2}}),
                               reducedValues<float>(op, DType::kFloat32, {{1}, {2}, {nan}})}) {
      EXPECT_TRUE(std::isnan(result[0])) << name(op);
    }
  }
}

TEST(ScalarKernelsTest, ScaleMultipliesInTheType) {
  const auto scaled = [](auto example, DType type, double factor) {
    auto result = example;
    scalarSet().scale(type)(result.data(), example.data(), example.size(), factor);
    return result;
  };
  EXPECT_EQ(scaled(std::vector<float>{3, -1}, DType::kFloat32, 0.1),
            (std::vector<float>{3 * 0.1f, -0.1f}));
  EXPECT_EQ(scaled(std::vector<double>{3, -1}, DType::kFloat64, 0.1),
            (std::vector<double>{3 * 0.1, -0.1}));
  EXPECT_EQ(scaled(std::vector<std::complex<float>>{{3, -1}}, DType::kComplex64, 2),
            (std::vector<std::complex<float>>{{6, -2}}));
  EXPECT_EQ(scaled(std::vector<std::uint16_t>{nearestShort(3, 10)}, DType::kFloat16, 0.5),
            (std::vector<std::uint16_t>{nearestShort(1.5, 10)}));
  EXPECT_EQ(scaled(std::vector<int>{3, -1}, DType::kInt32, 2.9), (std::vector<int>{6, -2}));
  EXPECT_EQ(scaled(std::vector<int>{1, 0}, DType::kInt32, 1e300),
            (std::vector<int>{std::numeric_limits<int>::max(), 0}));
  EXPECT_EQ(scaled(std::vector<std::int64_t>{1}, DType::kInt64, -1e300),
            (std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min()}));
  EXPECT_EQ(scaled(std::vector<std::uint8_t>{7}, DType::kUInt8, -3),
            (std::vector<std::uint8_t>{0}));
  EXPECT_EQ(scaled(Bytes{0, 9}, DType::kBool, 0.5), (Bytes{0, 1}));
  EXPECT_EQ(scaled(Bytes{0, 9}, DType::kBool, 0.0), (Bytes{0, 0}));
}

// ---- Every set against the reference -----------------------------------------------------------

// Bytes of `count` elements: a third any bits at all (with NaN, infinity and subnormals among
// them), a third values of ordinary size, a third drawn from the special ones.
Bytes testBytes(DType type, std::size_t count, std::mt19937_64& random) {
  const std::size_t size = elementSize(type);
  Bytes bytes(count * size);
  const bool isDouble = type == DType::kFloat64 || type == DType::kComplex128;
  const bool isFloat = type == DType::kFloat32 || type == DType::kComplex64;
  const bool isHalf = type == DType::kFloat16;
  const bool isBfloat = type == DType::kBFloat16;
  const std::size_t part = isDouble ? 8 : isFloat ? 4 : size;
  constexpr double kSpecial[] = {0.0,   -0.0,    1.0,    -1.0,   INFINITY, -INFINITY,
                                 NAN,   65504.0, 6e-5,   6e-8,   3e-8,     1e-39,
                                 1e-45, 3.4e38,  2e-308, 5e-324, 1.7e308,  60000.0};
  std::uniform_real_distribution<double> ordinary(-100, 100);
  for (std::size_t at = 0; at < bytes.size(); at += part) {
    std::uint64_t bits = random();
    const auto kind = random() % 3;
    if (kind != 0) {
      const double value = kind == 1 ? ordinary(random) : kSpecial[random() % std::size(kSpecial)];
      if (isDouble) {
        std::memcpy(&bits, &value, sizeof value);
      } else if (isFloat) {
        const auto single = static_cast<float>(value);
        std::memcpy(&bits, &single, sizeof single);
      } else if (isHalf || isBfloat) {
        bits = std::isnan(value) ? 0x7fffu : nearestShort(value, isHalf ? 10 : 7);
      } else if (kind == 2) {
        bits = std::uint64_t{1} << (8 * size - 1);  // the least signed number, or one less:
        bits -= random() % 2;
      }
    }
    std::memcpy(bytes.data() + at, &bits, part);
  }
  return bytes;
}

// Element arrays `shift` elements past a 64-byte boundary, with guard bytes around.
class Array {
 public:
  Array(const Bytes& content, std::size_t shift)
      : memory_(content.size() + shift + 2 * kGuard + 64, kGuardByte), size_(content.size()) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + kGuard);
    offset_ = kGuard + (64 - address % 64) % 64 + shift;
    std::copy(content.begin(), content.end(),
              memory_.begin() + static_cast<std::ptrdiff_t>(offset_));
  }
  void* data() { return memory_.data() + offset_; }
  Bytes content() const {
    const auto start = memory_.begin() + static_cast<std::ptrdiff_t>(offset_);
    return Bytes(start, start + static_cast<std::ptrdiff_t>(size_));
  }
  bool guardsAreIntact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + size_) && memory_[i] != kGuardByte) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::uint8_t kGuardByte = 0xa5;
  Bytes memory_;
  std::size_t size_;
  std::size_t offset_ = 0;
};

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 1000, 4099};
constexpr std::size_t kNumSrcs[] = {1, 2, 3, 4, 5, 8, 9};

// Which array a result goes to: one of its own, or that of a source.
constexpr int kOwn = -1;

class KernelSetTest : public testing::TestWithParam<const KernelSet*> {
 protected:
  void SetUp() override {
    if (!GetParam()->isUsable()) {
      GTEST_SKIP() << "this processor lacks the instructions of the set " << GetParam()->name()
                   << ", so its kernels cannot be run here";
    }
  }

  // Runs set and reference on the same data and compares all arrays afterwards.
  void compare(ReduceOp op, DType type, const std::vector<Bytes>& sources, std::size_t shift,
               int dstAt, bool hasCopy, int copyAt, double divisor) {
    std::vector<Bytes> results[2];
    const KernelSet* sets[2] = {&scalarSet(), GetParam()};
    for (int which = 0; which < 2; ++which) {
      std::vector<Array> arrays;
      const std::size_t size = elementSize(type);
      // Unlike shifts, so that no two arrays are aligned to each other.
      for (std::size_t i = 0; i < sources.size(); ++i) {
        arrays.emplace_back(sources[i], shift == 0 ? 0 : (shift + i) * size);
      }
      Array dst(Bytes(sources[0].size()), shift * size);
      Array copy(Bytes(sources[0].size()), shift * 2 * size);
      std::vector<const void*> srcs;
      for (Array& array : arrays) {
        srcs.push_back(array.data());
      }
      void* to = dstAt == kOwn ? dst.data() : arrays[static_cast<std::size_t>(dstAt)].data();
      void* copyTo = copyAt == kOwn ? copy.data() : arrays[static_cast<std::size_t>(copyAt)].data();
      sets[which]->reduce(op, type)(to, hasCopy ? copyTo : nullptr, srcs.data(), srcs.size(),
                                    sources[0].size() / size, divisor);
      arrays.push_back(std::move(dst));
      arrays.push_back(std::move(copy));
      for (const Array& array : arrays) {
        ASSERT_TRUE(array.guardsAreIntact()) << "wrote outside an array";
        results[which].push_back(array.content());
      }
    }
    ASSERT_TRUE(results[0] == results[1])
        << name(op) << " of " << name(type) << ", " << sources.size() << " sources, "
        << sources[0].size() / elementSize(type) << " elements, shift " << shift << ", dst at "
        << dstAt << ", copy " << (hasCopy ? copyAt : -2) << ", divisor " << divisor;
  }
};

TEST_P(KernelSetTest, GivesTheBitsOfTheReference) {
  std::mt19937_64 random(3);
  for (const DType type : allTypes()) {
    for (const std::size_t numSrcs : kNumSrcs) {
      for (const std::size_t count : kCounts) {
        std::vector<Bytes> sources;
        for (std::size_t i = 0; i < numSrcs; ++i) {
          sources.push_back(testBytes(type, count, random));
        }
        for (const ReduceOp op : allOps()) {
          if (scalarSet().reduce(op, type) == nullptr) {
            continue;
          }
          const auto divisor = static_cast<double>(numSrcs);
          ASSERT_NO_FATAL_FAILURE(compare(op, type, sources, 0, kOwn, false, kOwn, divisor));
          ASSERT_NO_FATAL_FAILURE(compare(op, type, sources, 1, kOwn, true, kOwn, divisor));
        }
      }
    }
  }
}

TEST_P(KernelSetTest, WritesOverAnySource) {
  std::mt19937_64 random(4);
  for (const DType type : allTypes()) {
    for (const std::size_t numSrcs : kNumSrcs) {
      for (const std::size_t count : {1, 7, 17, 65, 300}) {
        std::vector<Bytes> sources;
        for (std::size_t i = 0; i < numSrcs; ++i) {
          sources.push_back(testBytes(type, count, random));
        }
        for (const ReduceOp op : allOps()) {
          if (scalarSet().reduce(op, type) == nullptr) {
            continue;
          }
          const auto last = static_cast<int>(numSrcs) - 1;
          for (int at = 0; at <= last; ++at) {
            ASSERT_NO_FATAL_FAILURE(compare(op, type, sources, 3, at, false, kOwn, 3));
            ASSERT_NO_FATAL_FAILURE(compare(op, type, sources, 0, at, true, last - at, 3));
            ASSERT_NO_FATAL_FAILURE(compare(op, type, sources, 0, kOwn, true, at, 3));
          }
        }
      }
    }
  }
}

TEST_P(KernelSetTest, AveragesIntegersByAnyNumberOfRanks) {
  std::mt19937_64 random(7);
  for (const DType type : {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kUInt8,
                           DType::kUInt16, DType::kUInt32, DType::kUInt64}) {
    const std::vector<Bytes> sources = {testBytes(type, 333, random), testBytes(type, 333, random)};
    for (const double divisor : {1.0, 2.0, 3.0, 8.0, 127.0, 128.0, 300.0, 65536.0, 0x1p31 - 1}) {
      ASSERT_NO_FATAL_FAILURE(compare(ReduceOp::kAvg, type, sources, 1, kOwn, true, kOwn, divisor));
    }
  }
}

TEST_P(KernelSetTest, AveragesByAnyDivisor) {
  std::mt19937_64 random(5);
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                           DType::kComplex64, DType::kComplex128}) {
    const std::vector<Bytes> sources = {testBytes(type, 1000, random),
                                        testBytes(type, 1000, random)};
    // Powers of two take another path, at the ends of the range too.
    for (const double divisor : {1.0, 2.0, 3.0, 7.0, 8.0, 1024.0, -4.0, 0.5, 0x1p126, 0x1p127,
                                 0x1p-126, 0x1p1022, 0x1p1023, 0x1p-1022, 0.0, 1e-310}) {
      ASSERT_NO_FATAL_FAILURE(
          compare(ReduceOp::kAvg, type, sources, 0, kOwn, false, kOwn, divisor));
    }
  }
}

// Everything a 16-bit float can be, through the vector conversions of the set.
TEST_P(KernelSetTest, ConvertsEveryShortFloat) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(i);
  }
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    ASSERT_NO_FATAL_FAILURE(compare(ReduceOp::kSum, type, {bytesOf(all)}, 0, kOwn, false, kOwn, 1));
    // Thirds fall between the representable values: roundings up, down and into subnormals.
    ASSERT_NO_FATAL_FAILURE(compare(ReduceOp::kAvg, type, {bytesOf(all)}, 0, kOwn, false, kOwn, 3));
    // Halves of subnormals fall exactly between them: ties.
    ASSERT_NO_FATAL_FAILURE(compare(ReduceOp::kAvg, type, {bytesOf(all)}, 0, kOwn, false, kOwn, 2));
  }
}

// Every 16-bit float plus every kind of other: sums that fall between the representable values on
// either side of the middle, on it, and past the largest.
TEST_P(KernelSetTest, RoundsSumsOfAnyTwoShortFloats) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(i);
  }
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    for (const std::ptrdiff_t distance : {1, 2, 3, 64, 127, 255, 1024, 1500, 4097, 32769, 40000}) {
      std::vector<std::uint16_t> others = all;
      std::rotate(others.begin(), others.begin() + distance, others.end());
      ASSERT_NO_FATAL_FAILURE(
          compare(ReduceOp::kSum, type, {bytesOf(all), bytesOf(others)}, 0, kOwn, true, kOwn, 1))
          << "distance " << distance;
    }
  }
}

// A single NaN, in whichever place, is found and leaves its neighbours alone.
TEST_P(KernelSetTest, FindsOneNanAmongMany) {
  constexpr std::size_t kCount = 150;
  for (const DType type : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const std::size_t size = elementSize(type);
    // All bits set is a NaN in each of these types, and zeros are 0.
    for (std::size_t place = 0; place < kCount; ++place) {
      Bytes source(kCount * size);
      std::fill_n(source.begin() + static_cast<std::ptrdiff_t>(place * size), size, 0xff);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
        ASSERT_NO_FATAL_FAILURE(
            compare(op, type, {source, Bytes(source.size())}, 0, kOwn, false, kOwn, 1))
            << "place " << place;
      }
    }
  }
}

// The error bound that kernels.h states. n sources are added with n - 1 roundings to float32, each
// by at most 2^-24 of what has been added so far; an average has one more; then the result is
// rounded once to its type, by at most half a unit in the last place.
TEST_P(KernelSetTest, ShortFloatsStayWithinTheErrorBound) {
  constexpr std::size_t kCount = 20000;
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-12, 10);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const int mantissaBits = type == DType::kFloat16 ? 10 : 7;
    const int leastExponent = type == DType::kFloat16 ? -14 : -126;
    const auto halfUnit = [&](double value) {
      const int of = value == 0 ? leastExponent : std::max(std::ilogb(value), leastExponent);
      return std::ldexp(1, of - mantissaBits - 1);
    };
    for (std::size_t numSrcs = 2; numSrcs <= 8; ++numSrcs) {
      std::vector<std::vector<std::uint16_t>> sources(numSrcs);
      for (auto& source : sources) {
        for (std::size_t i = 0; i < kCount; ++i) {
          source.push_back(
              nearestShort(std::ldexp(mantissa(random), exponent(random)), mantissaBits));
        }
      }
      std::vector<Bytes> bytes;
      for (const auto& source : sources) {
        bytes.push_back(bytesOf(source));
      }
      const auto divisor = static_cast<double>(numSrcs);
      const auto sums = valuesOf<std::uint16_t>(reduced(*GetParam(), ReduceOp::kSum, type, bytes));
      const auto averages =
          valuesOf<std::uint16_t>(reduced(*GetParam(), ReduceOp::kAvg, type, bytes, divisor));
      int beyondIfRoundedEachTime = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        double exact = 0;  // 53 bits hold every sum of such numbers
        double size = 0;
        std::uint16_t roundedEachTime = sources[0][i];
        for (std::size_t which = 0; which < numSrcs; ++which) {
          const double value = valueOfShort(sources[which][i], mantissaBits);
          exact += value;
          size += std::fabs(value);
          if (which > 0) {
            roundedEachTime =
                nearestShort(valueOfShort(roundedEachTime, mantissaBits) + value, mantissaBits);
          }
        }
        const double inSum = (divisor - 1) * 0x1p-24 * size;
        const double inAverage = 0x1p-24 * size;  // n of them, divided by n
        const double sum = valueOfShort(sums[i], mantissaBits);
        const double average = valueOfShort(averages[i], mantissaBits);
        ASSERT_LE(std::fabs(sum - exact), halfUnit(sum) + inSum)
            << name(type) << ", " << numSrcs << " sources, element " << i;
        ASSERT_LE(std::fabs(average - exact / divisor), halfUnit(average) + inAverage)
            << name(type) << ", average of " << numSrcs << " sources, element " << i;
        const double other = valueOfShort(roundedEachTime, mantissaBits);
        beyondIfRoundedEachTime += std::fabs(other - exact) > halfUnit(other) + inSum;
      }
      // The bound tells the two ways apart from three sources on.
      EXPECT_EQ(beyondIfRoundedEachTime > 0, numSrcs > 2) << name(type) << ", " << numSrcs;
    }
  }
}

TEST_P(KernelSetTest, ScalesLikeTheReference) {
  std::mt19937_64 random(6);
  for (const DType type : allTypes()) {
    if (type == DType::kOpaque8) {
      continue;
    }
    for (const std::size_t count : kCounts) {
      const Bytes source = testBytes(type, count, random);
      for (const double factor : {1.0, 0.1, -3.7, 1e30, -1e30, 0.0, 2147483647.5, 0x1p63, 1e300,
                                  static_cast<double>(NAN)}) {
        Array from(source, elementSize(type));
        Array expected(source, 0);
        Array actual(Bytes(source.size()), 0);
        scalarSet().scale(type)(expected.data(), expected.data(), count, factor);
        GetParam()->scale(type)(actual.data(), from.data(), count, factor);
        ASSERT_TRUE(actual.guardsAreIntact());
        ASSERT_TRUE(actual.content() == expected.content())
            << name(type) << " times " << factor << ", " << count << " elements";
        GetParam()->scale(type)(from.data(), from.data(), count, factor);
        ASSERT_TRUE(from.content() == expected.content()) << name(type) << " in place";
      }
    }
  }
}

TEST_P(KernelSetTest, EveryNanIsTheCanonicalOne) {
  // Which operand's NaN survives an addition differs between processors; the result must not.
  const std::vector<float> left(33, floatOf(0xffc12345u));
  const std::vector<float> right(33, floatOf(0x7fd54321u));
  const auto check = [&](const std::vector<Bytes>& sources) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const std::uint32_t bits :
           valuesOf<std::uint32_t>(reduced(*GetParam(), op, DType::kFloat32, sources))) {
        ASSERT_EQ(bits, 0x7fc00000u) << name(op);
      }
    }
  };
  check({bytesOf(left), bytesOf(right)});
  check({bytesOf(right), bytesOf(left)});
  check({bytesOf(left)});
}

INSTANTIATE_TEST_SUITE_P(All, KernelSetTest,
                         testing::ValuesIn(allKernelSets().begin(), allKernelSets().end()),
                         [](const auto& test) { return std::string(test.param->name()); });

// ---- Choosing ----------------------------------------------------------------------------------

TEST(ChooseKernelsTest, TheReferenceIsFirstAndUsable) {
  EXPECT_EQ(allKernelSets()[0]->name(), "scalar");
  EXPECT_TRUE(allKernelSets()[0]->isUsable());
}

TEST(ChooseKernelsTest, TakesTheLastUsableSet) {
  const KernelSet* best = nullptr;
  for (const KernelSet* set : allKernelSets()) {
    best = set->isUsable() ? set : best;
  }
  EXPECT_EQ(&chooseKernels(""), best);
  EXPECT_NE(best->name(), "scalar");
}

TEST(ChooseKernelsTest, ObeysTheNameOrRefuses) {
  for (const KernelSet* set : allKernelSets()) {
    if (set->isUsable()) {
      EXPECT_EQ(&chooseKernels(set->name()), set);
      continue;
    }
    try {
      chooseKernels(set->name());
      FAIL() << "chose " << set->name();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
      EXPECT_NE(std::string(error.what()).find("does not have"), std::string::npos);
    }
  }
}

TEST(ChooseKernelsTest, NamesTheChoicesWhenTheNameIsUnknown) {
  try {
    chooseKernels("mmx");
    FAIL() << "chose mmx";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
    const std::string text = error.what();
    EXPECT_NE(text.find("SMDDP_KERNELS=mmx"), std::string::npos) << text;
    EXPECT_NE(text.find("scalar, "), std::string::npos) << text;
  }
}

TEST(ChooseKernelsTest, SaysWhatToDoInsteadOfAnUndefinedReduction) {
  EXPECT_EQ(reduceOrThrow(ReduceOp::kSum, DType::kFloat32),
            kernels().reduce(ReduceOp::kSum, DType::kFloat32));
  const auto textOf = [](ReduceOp op, DType type) -> std::string {
    try {
      reduceOrThrow(op, type);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(textOf(ReduceOp::kAvg, DType::kBool).find("bool with AVG"), std::string::npos);
  EXPECT_NE(textOf(ReduceOp::kAvg, DType::kBool).find("floating type"), std::string::npos);
  EXPECT_NE(textOf(ReduceOp::kMin, DType::kComplex64).find("no order"), std::string::npos);
  EXPECT_NE(textOf(ReduceOp::kBor, DType::kFloat16).find("integer"), std::string::npos);
  EXPECT_NE(textOf(ReduceOp::kSum, DType::kOpaque8).find("cast"), std::string::npos);
}

}  // namespace
}  // namespace smd::kernels
