// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The plain reference: one element at a time, in the words of the contract in kernels.h. The vector
// kernels must give the same bits.
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/types.h"
#include "kernels/kernel_table.h"
#define SMD_KERNEL_SET scalar
#include "kernels/half.h"

namespace smd::kernels::scalar {
namespace {

// A complex number whose product is the textbook formula, without the C library's special cases.
template <class T>
struct Complex {
  T real;
  T imaginary;
};

// Value<type> is what the elements of a DType are computed with; load and store convert.
template <DType type>
auto valueOf() {
  if constexpr (type == DType::kFloat32 || type == DType::kFloat16 || type == DType::kBFloat16) {
    return float{};
  } else if constexpr (type == DType::kFloat64) {
    return double{};
  } else if constexpr (type == DType::kComplex64) {
    return Complex<float>{};
  } else if constexpr (type == DType::kComplex128) {
    return Complex<double>{};
  } else if constexpr (type == DType::kBool) {
    return bool{};
  } else if constexpr (type == DType::kInt8) {
    return std::int8_t{};
  } else if constexpr (type == DType::kInt16) {
    return std::int16_t{};
  } else if constexpr (type == DType::kInt32) {
    return std::int32_t{};
  } else if constexpr (type == DType::kInt64) {
    return std::int64_t{};
  } else if constexpr (type == DType::kUInt8) {
    return std::uint8_t{};
  } else if constexpr (type == DType::kUInt16) {
    return std::uint16_t{};
  } else if constexpr (type == DType::kUInt32) {
    return std::uint32_t{};
  } else {
    static_assert(type == DType::kUInt64);
    return std::uint64_t{};
  }
}
template <DType type>
using Value = decltype(valueOf<type>());

template <DType type>
Value<type> load(const void* array, std::size_t index) {
  const auto* from = static_cast<const unsigned char*>(array) + index * elementSize(type);
  if constexpr (type == DType::kFloat16 || type == DType::kBFloat16) {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return type == DType::kFloat16 ? floatFromHalf<float>(std::uint32_t{bits})
                                   : floatFromBfloat<float>(std::uint32_t{bits});
  } else if constexpr (type == DType::kBool) {
    return *from != 0;
  } else {
    Value<type> value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
}

template <DType type>
void store(void* array, std::size_t index, Value<type> value) {
  auto* to = static_cast<unsigned char*>(array) + index * elementSize(type);
  if constexpr (type == DType::kFloat16 || type == DType::kBFloat16) {
    const auto bits = static_cast<std::uint16_t>(
        type == DType::kFloat16 ? halfFromFloat<float, std::uint32_t>(value)
                                : bfloatFromFloat<float, std::uint32_t>(value));
    std::memcpy(to, &bits, sizeof bits);
  } else {
    std::memcpy(to, &value, sizeof value);
  }
}

template <class T>
constexpr bool isReal = std::is_floating_point_v<T>;
template <class T>
constexpr bool isComplex = false;
template <class T>
constexpr bool isComplex<Complex<T>> = true;
template <class T>
constexpr bool isInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Wraps around: the arithmetic is done on 64 unsigned bits and cut to the type.
template <class T, class Function>
T wrapping(T left, T right, Function function) {
  return static_cast<T>(
      function(static_cast<std::uint64_t>(left), static_cast<std::uint64_t>(right)));
}

template <ReduceOp op, class T>
T combine(T left, T right) {
  using Wide = std::uint64_t;
  if constexpr (std::is_same_v<T, bool>) {
    switch (op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
      case ReduceOp::kBand:
        return left && right;
      case ReduceOp::kBxor:
        return left != right;
      default:
        return left || right;
    }
  } else if constexpr (op == ReduceOp::kSum) {
    if constexpr (isComplex<T>) {
      return {left.real + right.real, left.imaginary + right.imaginary};
    } else if constexpr (isReal<T>) {
      return left + right;
    } else {
      return wrapping(left, right, [](Wide a, Wide b) { return a + b; });
    }
  } else if constexpr (op == ReduceOp::kProduct) {
    if constexpr (isComplex<T>) {
      return {left.real * right.real - left.imaginary * right.imaginary,
              left.real * right.imaginary + left.imaginary * right.real};
    } else if constexpr (isReal<T>) {
      return left * right;
    } else {
      return wrapping(left, right, [](Wide a, Wide b) { return a * b; });
    }
  } else if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    if (left != left) {
      return left;
    }
    const bool replaces = op == ReduceOp::kMin ? right < left : right > left;
    return replaces || right != right ? right : left;
  } else if constexpr (op == ReduceOp::kBand) {
    return wrapping(left, right, [](Wide a, Wide b) { return a & b; });
  } else if constexpr (op == ReduceOp::kBor) {
    return wrapping(left, right, [](Wide a, Wide b) { return a | b; });
  } else {
    static_assert(op == ReduceOp::kBxor);
    return wrapping(left, right, [](Wide a, Wide b) { return a ^ b; });
  }
}

template <class T>
T divided(T value, double divisor) {
  if constexpr (isComplex<T>) {
    return {divided(value.real, divisor), divided(value.imaginary, divisor)};
  } else if constexpr (isInteger<T>) {
    using Wide = decltype(T{} + 1);  // at least an int, so that every divisor fits
    return static_cast<T>(value / static_cast<Wide>(divisor));
  } else {
    return value / static_cast<T>(divisor);
  }
}

// Every NaN becomes the one quiet NaN; the rest stays.
template <class T>
T canonical(T value) {
  if constexpr (isComplex<T>) {
    return {canonical(value.real), canonical(value.imaginary)};
  } else if constexpr (isReal<T>) {
    return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
  } else {
    return value;
  }
}

template <DType type, ReduceOp op>
void reduce(void* dst, void* dstCopy, const void* const* srcs, std::size_t numSrcs,
            std::size_t count, double divisor) {
  constexpr bool isSum = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  for (std::size_t i = 0; i < count; ++i) {
    Value<type> result = load<type>(srcs[0], i);
    for (std::size_t which = 1; which < numSrcs; ++which) {
      result = combine<isSum ? ReduceOp::kSum : op>(result, load<type>(srcs[which], i));
    }
    if constexpr (op == ReduceOp::kAvg) {
      result = divided(result, divisor);
    }
    result = canonical(result);
    store<type>(dst, i, result);
    if (dstCopy != nullptr) {
      store<type>(dstCopy, i, result);
    }
  }
}

// The factor in type T. What does not fit an integer becomes the nearest value that does, NaN zero.
template <class T>
T convertFactor(double factor) {
  if constexpr (!isInteger<T>) {
    return static_cast<T>(factor);
  } else {
    // The limits as doubles round to themselves or to a power of two just past them.
    constexpr auto least = static_cast<double>(std::numeric_limits<T>::min());
    constexpr auto most = static_cast<double>(std::numeric_limits<T>::max());
    if (factor != factor) {
      return 0;
    }
    if (factor <= least) {
      return std::numeric_limits<T>::min();
    }
    return factor >= most ? std::numeric_limits<T>::max() : static_cast<T>(factor);
  }
}

template <class T>
T scaled(T value, double factor) {
  if constexpr (isComplex<T>) {
    return {scaled(value.real, factor), scaled(value.imaginary, factor)};
  } else {
    return combine<ReduceOp::kProduct>(value, convertFactor<T>(factor));
  }
}

template <DType type>
void scale(void* dst, const void* src, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    store<type>(dst, i, canonical(scaled(load<type>(src, i), factor)));
  }
}

template <DType type, ReduceOp op>
consteval bool isDefined() {
  using T = Value<type>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kPremulSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAvg:
      return !std::is_same_v<T, bool>;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !isComplex<T>;
    default:
      return isInteger<T> || std::is_same_v<T, bool>;
  }
}

template <DType type, ReduceOp op>
consteval void addReduce(KernelTable& table) {
  if constexpr (isDefined<type, op>()) {
    table.reduce[static_cast<int>(op)][static_cast<int>(type)] = reduce<type, op>;
  }
}

template <DType type>
consteval void addType(KernelTable& table) {
#define SMD_ADD(op, ...) addReduce<type, ReduceOp::op>(table);
  SMD_REDUCE_OPS(SMD_ADD)
#undef SMD_ADD
  table.scale[static_cast<int>(type)] = scale<type>;
}

void copyBytes(void* dst, const void* src, std::size_t bytes) {
  if (bytes != 0) std::memcpy(dst, src, bytes);
}

consteval KernelTable makeTable() {
  KernelTable table{};
  table.copy = copyBytes;
  addType<DType::kFloat32>(table);
  addType<DType::kFloat64>(table);
  addType<DType::kFloat16>(table);
  addType<DType::kBFloat16>(table);
  addType<DType::kInt8>(table);
  addType<DType::kInt16>(table);
  addType<DType::kInt32>(table);
  addType<DType::kInt64>(table);
  addType<DType::kUInt8>(table);
  addType<DType::kBool>(table);
  addType<DType::kComplex64>(table);
  addType<DType::kComplex128>(table);
  addType<DType::kUInt16>(table);
  addType<DType::kUInt32>(table);
  addType<DType::kUInt64>(table);
  return table;
}

}  // namespace

constinit const KernelTable kTable = makeTable();

}  // namespace smd::kernels::scalar
