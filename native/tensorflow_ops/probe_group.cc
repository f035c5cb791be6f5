// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/probe_group.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace smd::tensorflow_ops {
namespace {

// Long enough for the kernel to have returned, and its stack to have been used for something else.
constexpr std::chrono::milliseconds kDelay{50};

class ProbeGroup final : public plugin_api::Group {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }

  void allReduce(Fragments input, std::byte* output, std::uint64_t, DType, ReduceOp,
                 plugin_api::Agreement, plugin_api::Completion completion) noexcept override {
    for (const Fragment& each : input) {
      if (each.data != output) std::memcpy(output + each.offset, each.data, each.bytes);
    }
    endLater(std::move(completion));
  }
  void broadcast(std::byte*, std::uint64_t, DType, int, plugin_api::Agreement,
                 plugin_api::Completion completion) noexcept override {
    endLater(std::move(completion));
  }
  void allGather(const std::byte* input, std::vector<std::byte*> outputs,
                 std::vector<std::uint64_t> counts, DType dtype, plugin_api::Agreement,
                 plugin_api::Completion completion) noexcept override {
    if (counts[0] != 0) std::memcpy(outputs[0], input, counts[0] * elementSize(dtype));
    endLater(std::move(completion));
  }
  std::shared_ptr<std::byte> allocateShared(std::size_t) noexcept override { return nullptr; }
  void abort(const std::string&) noexcept override {}

 private:
  static void endLater(plugin_api::Completion completion) {
    std::thread([completion = std::move(completion)] {
      std::this_thread::sleep_for(kDelay);
      completion(nullptr);
    }).detach();
  }
};

}  // namespace

std::shared_ptr<plugin_api::Group> makeProbeGroup() { return std::make_shared<ProbeGroup>(); }

}  // namespace smd::tensorflow_ops
