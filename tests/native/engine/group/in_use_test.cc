// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicator::isInUse: whoever wants to move a buffer elsewhere asks whether an operation is
// still in it.
#include <gtest/gtest.h>

#include <latch>
#include <vector>

#include "support/engine_harness.h"

namespace smd::engine::test {
namespace {

using algorithms::Request;

constexpr std::uint64_t kCount = 100'000;  // too many bytes for the calling thread to try them

Request allReduce(std::vector<float>& buffer, ReduceOp op = ReduceOp::kSum) {
  Request request;
  request.kind = OpKind::kAllReduce;
  request.dtype = DType::kFloat32;
  request.op = op;
  request.count = buffer.size();
  request.input = reinterpret_cast<const std::byte*>(buffer.data());
  request.output = reinterpret_cast<std::byte*>(buffer.data());
  return request;
}

bool isInUse(Communicator& on, const std::vector<float>& buffer, std::size_t element,
             std::size_t numElements) {
  return on.isInUse(reinterpret_cast<const std::byte*>(buffer.data() + element),
                    numElements * sizeof(float));
}

bool isInUse(Communicator& on, const std::vector<float>& buffer) {
  return isInUse(on, buffer, 0, buffer.size());
}

TEST(InUse, FromTheCallUntilCompletion) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kPremulSum}) {
    World all(2);
    std::latch looked(1);
    all.run([&](int rank) {
      std::vector<float> first(kCount), second(kCount), other(kCount);
      if (rank == 1) looked.wait();
      const auto one = all.of(rank).collective(allReduce(first, op), Mode::kAsync, {});
      const auto two = all.of(rank).collective(allReduce(second, op), Mode::kAsync, {});
      if (rank == 0) {  // rank 1 has called neither
        EXPECT_TRUE(isInUse(all.of(0), first));
        EXPECT_TRUE(isInUse(all.of(0), second));
        EXPECT_FALSE(isInUse(all.of(0), other));
        EXPECT_FALSE(isInUse(all.of(1), first));
        looked.count_down();
      }
      waitFor(*one);
      waitFor(*two);
      requireNone(errorOf(*one));
      EXPECT_FALSE(isInUse(all.of(rank), first));
      EXPECT_FALSE(isInUse(all.of(rank), second));
    });
  }
}

TEST(InUse, CountsWhatTheOperationTouchesAndNothingBeside) {
  World all(2);
  std::latch looked(1);
  all.run([&](int rank) {
    // Of each buffer the elements in the middle take part.
    std::vector<float> parts(2 * kCount + 2), share(kCount + 2);
    Request request;
    request.kind = OpKind::kReduceScatter;
    request.dtype = DType::kFloat32;
    const auto* inputs = reinterpret_cast<const std::byte*>(parts.data() + 1);
    request.inputs = {inputs, inputs + kCount * sizeof(float)};
    request.inputCounts = {kCount, kCount};
    request.output = reinterpret_cast<std::byte*>(share.data() + 1);
    request.count = kCount;
    if (rank == 1) looked.wait();
    const auto work = all.of(rank).collective(std::move(request), Mode::kAsync, {});
    if (rank == 0) {
      Communicator& mine = all.of(0);
      EXPECT_TRUE(isInUse(mine, parts, 1, 1));
      EXPECT_TRUE(isInUse(mine, parts, 2 * kCount, 1));
      EXPECT_TRUE(isInUse(mine, share, 0, kCount + 2));
      EXPECT_FALSE(isInUse(mine, parts, 0, 1));
      EXPECT_FALSE(isInUse(mine, parts, 2 * kCount + 1, 1));
      EXPECT_FALSE(isInUse(mine, share, 0, 1));
      EXPECT_FALSE(isInUse(mine, share, kCount + 1, 1));
      looked.count_down();
    }
    waitFor(*work);
    requireNone(errorOf(*work));
  });
}

TEST(InUse, CountsAsynchronousMessages) {
  World all(2);
  all.run([&](int rank) {
    std::vector<float> buffer(kCount);
    auto* bytes = reinterpret_cast<std::byte*>(buffer.data());
    if (rank == 0) {
      const auto work = all.of(0).receive(bytes, kCount, DType::kFloat32, 1, 7, Mode::kAsync, {});
      EXPECT_TRUE(isInUse(all.of(0), buffer));
      const auto go = all.of(0).send(nullptr, 0, DType::kFloat32, 1, 8, Mode::kBlocking, {});
      requireNone(errorOf(*go));
      waitFor(*work);
      requireNone(errorOf(*work));
      EXPECT_FALSE(isInUse(all.of(0), buffer));
    } else {
      const auto go = all.of(1).receive(nullptr, 0, DType::kFloat32, 0, 8, Mode::kBlocking, {});
      requireNone(errorOf(*go));
      const auto work = all.of(1).send(bytes, kCount, DType::kFloat32, 0, 7, Mode::kBlocking, {});
      requireNone(errorOf(*work));
    }
  });
}

}  // namespace
}  // namespace smd::engine::test
