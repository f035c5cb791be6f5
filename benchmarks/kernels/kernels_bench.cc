// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How fast the reduction kernels are, next to memcpy. See README.md.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace {

using smd::DType;
using smd::ReduceOp;

constexpr int kRounds = 15;
constexpr double kSecondsPerRound = 0.003;

// Of this thread, so that what else runs on the machine disturbs less.
double processorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Seconds of one call: the best of a few rounds, each of enough calls to be measurable.
template <class Function>
double secondsOf(Function call) {
  long calls = 1;
  double best = 1e9;
  for (int round = 0; round < kRounds;) {
    const double start = processorSeconds();
    for (long i = 0; i < calls; ++i) {
      call();
    }
    const double seconds = processorSeconds() - start;
    if (seconds < kSecondsPerRound) {
      calls *= 2;
      continue;
    }
    best = std::min(best, seconds / static_cast<double>(calls));
    ++round;
  }
  return best;
}

// Where results go: to an array of their own, to two of them, or over the first two sources, as
// when two ranks' buffers are reduced where they lie.
enum class Results { kOne, kTwo, kInPlace };

struct Case {
  ReduceOp op;
  DType type;
  std::size_t numSrcs;
  Results results;
};

const char* nameOf(Results results) {
  return results == Results::kOne ? "1" : results == Results::kTwo ? "2" : "in place";
}

}  // namespace

// Arguments: bytes of one array (default 256 KiB), then names of sets (default: all but scalar).
int main(int argc, char** argv) {
  const std::size_t bytes = argc > 1 ? std::stoull(argv[1]) : 256 * 1024;
  const std::vector<std::string> wanted(argv + std::min(argc, 2), argv + argc);
  constexpr std::size_t kMaxSrcs = 8;
  std::vector<std::vector<std::uint8_t>> arrays(kMaxSrcs + 2, std::vector<std::uint8_t>(bytes));
  std::vector<const void*> srcs;
  for (std::size_t i = 0; i < kMaxSrcs; ++i) {
    srcs.push_back(arrays[i].data());
  }
  void* const dst = arrays[kMaxSrcs].data();
  void* const copy = arrays[kMaxSrcs + 1].data();

  const double copySeconds = secondsOf([&] { std::memcpy(dst, srcs[0], bytes); });
  std::printf("arrays of %zu bytes; memcpy %.1f GB/s (read + written)\n", bytes,
              2.0 * static_cast<double>(bytes) / copySeconds / 1e9);
  std::printf("%-9s %-7s %-10s %-5s %-8s %8s %8s\n", "set", "op", "dtype", "srcs", "dsts", "GB/s",
              "ns");

  std::vector<Case> cases;
  for (const std::size_t numSrcs : {2, 3, 4, 8}) {
    for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      cases.push_back({ReduceOp::kSum, type, numSrcs, Results::kOne});
      cases.push_back({ReduceOp::kSum, type, numSrcs, Results::kTwo});
      cases.push_back({ReduceOp::kSum, type, numSrcs, Results::kInPlace});
      cases.push_back({ReduceOp::kAvg, type, numSrcs, Results::kOne});
    }
  }
  for (const DType type : {DType::kFloat64, DType::kComplex64, DType::kInt8, DType::kInt32,
                           DType::kInt64, DType::kBool}) {
    cases.push_back({ReduceOp::kSum, type, 2, Results::kOne});
  }
  for (const DType type : {DType::kInt8, DType::kInt32, DType::kInt64}) {
    cases.push_back({ReduceOp::kAvg, type, 2, Results::kOne});
  }
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kProduct}) {
    for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt64}) {
      cases.push_back({op, type, 2, Results::kOne});
    }
  }
  cases.push_back({ReduceOp::kProduct, DType::kComplex64, 2, Results::kOne});

  for (const smd::kernels::KernelSet* set : smd::kernels::allKernelSets()) {
    const bool isWanted =
        wanted.empty() ? set->name() != "scalar"
                       : std::find(wanted.begin(), wanted.end(), set->name()) != wanted.end();
    if (!isWanted || !set->isUsable()) {
      continue;
    }
    for (const Case& one : cases) {
      const smd::kernels::ReduceFn reduce = set->reduce(one.op, one.type);
      const std::size_t count = bytes / smd::elementSize(one.type);
      const bool isInPlace = one.results == Results::kInPlace;
      void* const to = isInPlace ? arrays[0].data() : dst;
      void* const copyTo = one.results == Results::kOne ? nullptr
                           : isInPlace                  ? arrays[1].data()
                                                        : copy;
      const double seconds = secondsOf([&] {
        reduce(to, copyTo, srcs.data(), one.numSrcs, count, static_cast<double>(one.numSrcs));
      });
      const std::size_t dsts = one.results == Results::kOne ? 1 : 2;
      const double moved = static_cast<double>((one.numSrcs + dsts) * bytes);
      std::printf("%-9s %-7s %-10s %-5zu %-8s %8.1f %8.1f\n", set->name().data(),
                  smd::name(one.op).data(), smd::name(one.type).data(), one.numSrcs,
                  nameOf(one.results), moved / seconds / 1e9, seconds * 1e9);
    }
  }
  return 0;
}
