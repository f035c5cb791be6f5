// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/bucket.h"

#include <cstring>
#include <numeric>
#include <string>

#include "tensorflow_ops/dtypes.h"

namespace smd::tensorflow_ops {
namespace {

// Two cache lines, since processors fetch pairs of them. TensorFlow asks for 64.
constexpr std::size_t kAlignment = 128;

// FNV-1a, word by word.
constexpr std::uint64_t kDigestOfNothing = 14695981039346656037ull;
void mix(std::uint64_t& digest, std::uint64_t word) { digest = (digest ^ word) * 1099511628211ull; }

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Layout layOut(const std::vector<TensorView>& tensors) {
  const TfType type = tensors.front().type;
  const std::optional<DType> dtype = toDType(type);
  if (!dtype) {
    throw Error(ErrorKind::kUnsupported,
                "TensorFlow's data type number " + std::to_string(static_cast<int>(type)) +
                    " is not taken; expected numbers or bool. Convert with tf.cast()");
  }
  Layout layout;
  layout.dtype = *dtype;
  const auto total =
      std::accumulate(tensors.begin(), tensors.end(), std::size_t{0},
                      [](std::size_t sum, const TensorView& each) { return sum + each.bytes; });
  const bool isPadded = tensors.size() > 1 && total > kSmallBytes;
  layout.offsets.reserve(tensors.size());
  std::uint64_t digest = kDigestOfNothing;
  for (const TensorView& each : tensors) {
    layout.offsets.push_back(layout.bytes);
    layout.bytes += isPadded ? padded(each.bytes) : each.bytes;
    mix(digest, each.dims.size());
    for (const std::int64_t dim : each.dims) mix(digest, static_cast<std::uint64_t>(dim));
  }
  layout.digest = digest;
  return layout;
}

void pack(const Layout& layout, const std::vector<TensorView>& tensors, std::byte* target) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::byte* at = target + layout.offsets[i];
    copyBytes(at, tensors[i].data, tensors[i].bytes);
    const std::size_t end = i + 1 < tensors.size() ? layout.offsets[i + 1] : layout.bytes;
    const std::size_t gap = end - layout.offsets[i] - tensors[i].bytes;
    if (gap != 0) std::memset(at + tensors[i].bytes, 0, gap);
  }
}

void copyBytes(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

std::vector<TensorView> tensorsOf(const Invocation& invocation) {
  std::vector<TensorView> tensors;
  const int numTensors = invocation.numTensors();
  tensors.reserve(static_cast<std::size_t>(numTensors));
  for (int i = 0; i < numTensors; ++i) tensors.push_back(invocation.tensor(i));
  return tensors;
}

std::vector<TensorView> allocateLike(Invocation& invocation,
                                     const std::vector<TensorView>& tensors) {
  std::vector<TensorView> outputs;
  outputs.reserve(tensors.size());
  for (const TensorView& each : tensors) {
    outputs.push_back(
        invocation.allocate(static_cast<int>(outputs.size()), each.type, each.dims, each.bytes));
  }
  return outputs;
}

}  // namespace smd::tensorflow_ops
