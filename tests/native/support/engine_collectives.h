// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The fixture of the tests of collectives: one algorithm or transport, one world size, lists of
// plans. What is expected is computed by one thread and compared bit by bit: so all ranks, and all
// algorithms, give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace smd::engine::test {

inline constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;
inline constexpr std::uint64_t kManyBlocks =
    (std::uint64_t{3} << 20) + 4099;  // bytes; 3 MiB and a prime

struct Wires {
  std::string name;
  TransportChoice transport = TransportChoice::kAuto;
  std::string algorithm;
};

inline std::string everything(const std::string& algorithm) {
  std::string text;
  for (OpKind kind : kCollectives) {
    text += (text.empty() ? "" : ",") + std::string(smd::name(kind)) + "=" + algorithm;
  }
  return text;
}

inline std::vector<Wires> allWires() {
  return {{"chosen", TransportChoice::kAuto, ""},
          {"one_shot", TransportChoice::kSharedMemory, everything("one_shot")},
          {"staged", TransportChoice::kSharedMemory, everything("staged")},
          {"tcp", TransportChoice::kTcp, ""}};
}

struct Case {
  Wires wires;
  int size;
};

// Every algorithm and transport with every world size.
inline std::vector<Case> allCases(const std::vector<Wires>& wires) {
  std::vector<Case> cases;
  for (const Wires& each : wires) {
    for (int size : {1, 2, 3, 5, 8}) {
      if (size == 2 || size == 3 || !kIsSlow) cases.push_back({each, size});
    }
  }
  return cases;
}

inline std::string nameOf(const ::testing::TestParamInfo<Case>& info) {
  return info.param.wires.name + "_" + std::to_string(info.param.size);
}

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  World& world() {
    if (!world_) {
      world_ = std::make_unique<World>(WorldOptions{.size = GetParam().size,
                                                    .transport = GetParam().wires.transport,
                                                    .algorithm = GetParam().wires.algorithm});
    }
    return *world_;
  }
  int size() const { return GetParam().size; }

  // All plans one after the other, blocking; then all at once, asynchronously.
  void check(const std::vector<PlanOptions>& options) {
    std::vector<Plan> plans;
    for (PlanOptions each : options) {
      each.salt = ++salt_;
      each.root = static_cast<int>(salt_) % size();
      plans.emplace_back(each, size());
    }
    world().run([&](int rank) {
      for (const Plan& plan : plans) {
        world().at(rank, plan.describe());
        Buffers buffers(plan, rank);
        const auto work = world().of(rank).collective(buffers.request(), Mode::kBlocking, {});
        buffers.overwriteInput();
        SMD_REQUIRE(work->isCompleted());
        requireNone(errorOf(*work));
        requireNone(buffers.problem());
      }
      std::vector<std::unique_ptr<Buffers>> buffers;
      std::vector<std::shared_ptr<Work>> works;
      for (const Plan& plan : plans) {
        buffers.push_back(std::make_unique<Buffers>(plan, rank));
        works.push_back(world().of(rank).collective(buffers.back()->request(), Mode::kAsync, {}));
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        world().at(rank, "asynchronous " + plans[i].describe());
        waitFor(*works[i]);
        buffers[i]->overwriteInput();
        requireNone(errorOf(*works[i]));
        requireNone(buffers[i]->problem());
      }
    });
  }

 private:
  std::unique_ptr<World> world_;
  std::uint64_t salt_ = 0;
};

}  // namespace smd::engine::test
