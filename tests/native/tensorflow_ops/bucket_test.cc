// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The digest by which ranks notice that their buckets hold other shapes.
#include "tensorflow_ops/bucket.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace smd::tensorflow_ops {
namespace {

std::uint64_t digestOf(const std::vector<Dims>& shapes) {
  std::vector<TensorView> tensors;
  for (const Dims& dims : shapes) {
    TensorView& tensor = tensors.emplace_back();
    tensor.type = TfType::kFloat;
    tensor.dims = dims;
    tensor.bytes = sizeof(float);
    for (const std::int64_t dim : dims) tensor.bytes *= static_cast<std::size_t>(dim);
  }
  return layOut(tensors).digest;
}

TEST(Bucket, DigestsDifferWhereShapesOrTheirOrderDo) {
  // Each has four elements or five, cut up in other ways.
  const std::vector<std::vector<Dims>> buckets = {
      {{4}},      {{2, 2}},     {{4, 1}},     {{1, 4}},       {{2}, {2}},   {{1}, {3}},
      {{3}, {1}}, {{}, {3}},    {{3}, {}},    {{4}, {}},      {{}, {4}},    {{4}, {1}},
      {{1}, {4}}, {{2, 2}, {}}, {{}, {2, 2}}, {{2}, {2}, {}}, {{4, 1}, {}}, {{4, 0}, {}},
  };
  std::set<std::uint64_t> digests;
  for (const std::vector<Dims>& shapes : buckets) digests.insert(digestOf(shapes));
  EXPECT_EQ(digests.size(), buckets.size());
  EXPECT_EQ(digestOf({{4}, {}}), digestOf({{4}, {}}));
}

}  // namespace
}  // namespace smd::tensorflow_ops
