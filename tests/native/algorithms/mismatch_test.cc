// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The words for ranks whose calls differ in nothing but the detail of their signatures.
#include "algorithms/mismatch.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace smd::algorithms {
namespace {

Signature sumOf4(std::uint64_t detail) {
  Signature signature;
  signature.kind = OpKind::kAllReduce;
  signature.dtype = DType::kFloat32;
  signature.count = 4;
  signature.detail = detail;
  return signature;
}

std::string told(const std::vector<Call>& calls) { return mismatchError(calls).what(); }

bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

std::uint64_t channelsLast() { return storageOrder(std::array{0, 2, 3, 1}); }

TEST(Mismatch, OrdersInMemoryAreNamed) {
  const std::string text = told({{0, sumOf4(0), ""}, {1, sumOf4(channelsLast()), ""}});
  EXPECT_TRUE(contains(text, "(channels_last)")) << text;
  EXPECT_TRUE(contains(text, "one memory format")) << text;
}

// A digest may look like an order by chance.
TEST(Mismatch, CallsThatSayWhatTheyAreForAreNotToldOfMemoryFormats) {
  const std::string text = told({{0, sumOf4(channelsLast()), "gradients 1 of 2, shape [4]"},
                                 {1, sumOf4(storageOrder(std::array{1, 0})), "tensors 'a'"},
                                 {2, sumOf4(7), "gradients 1 of 2, shape [4]"}});
  EXPECT_FALSE(contains(text, "format")) << text;
  EXPECT_TRUE(contains(text, "for gradients 1 of 2, shape [4]; rank 1 called")) << text;
  EXPECT_TRUE(contains(text, "for tensors 'a'; rank 2 called")) << text;
  EXPECT_TRUE(contains(text, "of another name, or in another order. Expected: ")) << text;
  EXPECT_TRUE(contains(text, "in the same order")) << text;
}

TEST(Mismatch, ListsOfSizesAreToldWithoutAPurpose) {
  const std::string text = told({{0, sumOf4(5), ""}, {1, sumOf4(7), ""}});
  EXPECT_TRUE(contains(text, "with another list of sizes or memory formats")) << text;
}

}  // namespace
}  // namespace smd::algorithms
