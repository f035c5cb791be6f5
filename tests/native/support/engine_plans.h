// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives as data, for tests of the engine: a Plan says which collective is called and knows
// every rank's input and, computed by one thread with the plain reference kernels, every rank's
// output. Each element tells its rank and index (and the plan's salt). Outputs are compared bit by
// bit: the engine promises to reduce in rank order.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "algorithms/request.h"
#include "kernels/kernels.h"

namespace smd::engine::test {

using algorithms::Request;

// Buffers of one thread: ThreadSanitizer is spared these loops, which would take most of the time.
#define SMD_ONE_THREAD __attribute__((no_sanitize("thread")))

SMD_ONE_THREAD inline void fillElement(DType type, std::byte* at, int rank, std::uint64_t index,
                                       std::uint64_t salt) {
  const auto store = [at](auto value) { std::memcpy(at, &value, sizeof value); };
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(rank) * 7919 + index * 13 + (index >> 8) + salt * 31) *
      2654435761u;
  // Fractions, so that another order of summation gives other bits.
  const float fraction =
      static_cast<float>(rank + 1) * 17.3f + static_cast<float>((index + salt) % 1013) * 0.37f;
  switch (type) {
    case DType::kFloat32:
      return store(fraction);
    case DType::kFloat64:
      return store(static_cast<double>(fraction) / 3.0);
    case DType::kFloat16:  // 0.25 to 4, in steps of 2^-12 or more
      return store(static_cast<std::uint16_t>(0x3400 + (rank % 4) * 0x400 + (mixed >> 9) % 0x400));
    case DType::kBFloat16:
      return store(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(fraction) >> 16));
    case DType::kInt64:
    case DType::kUInt64:
      return store((static_cast<std::uint64_t>(rank + 1) << 48) + index * 3 + salt);
    case DType::kInt32:
    case DType::kUInt32:
      return store(static_cast<std::uint32_t>(mixed >> 8));
    case DType::kInt16:
    case DType::kUInt16:
      return store(static_cast<std::uint16_t>(mixed >> 8));
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kOpaque8:
      return store(static_cast<std::uint8_t>(mixed >> 11));
    case DType::kBool:
      return store(static_cast<std::uint8_t>((mixed >> 17) & 1));
    case DType::kComplex64:
      std::memcpy(at, &fraction, sizeof fraction);
      return fillElement(DType::kFloat32, at + sizeof(float), rank + 3, index, salt);
    case DType::kComplex128:
      fillElement(DType::kFloat64, at, rank, index, salt);
      return fillElement(DType::kFloat64, at + sizeof(double), rank + 3, index, salt);
  }
}

SMD_ONE_THREAD inline void fill(DType type, std::byte* buffer, std::uint64_t count, int rank,
                                std::uint64_t salt) {
  const std::uint64_t element = elementSize(type);
  for (std::uint64_t i = 0; i < count; ++i) {
    fillElement(type, buffer + i * element, rank, i, salt);
  }
}

struct PlanOptions {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::uint64_t count = 0;  // elements of all_reduce, reduce, broadcast; of each rank's part else
  bool isUneven = false;    // parts of different sizes, some of them empty
  bool isInPlace = false;   // the output is (within) the input
  std::uint64_t salt = 0;
};

class Plan {
 public:
  Plan(PlanOptions options, int worldSize) : options_(options), size_(worldSize) {
    for (int rank = 0; rank < size_; ++rank) {
      const std::uint64_t count = inputSize(rank);
      fill(options_.dtype, inputs_.emplace_back(count * element()).data(), count, rank,
           options_.salt);
    }
    for (int rank = 0; rank < size_; ++rank) expected_.push_back(computeExpected(rank));
  }

  const PlanOptions& options() const { return options_; }
  std::uint64_t element() const { return elementSize(options_.dtype); }
  const std::vector<std::byte>& input(int rank) const {
    return inputs_[static_cast<std::size_t>(rank)];
  }
  const std::vector<std::byte>& expected(int rank) const {
    return expected_[static_cast<std::size_t>(rank)];
  }

  std::string describe() const {
    return std::string(smd::name(options_.kind)) + " " + std::string(smd::name(options_.op)) + " " +
           std::string(smd::name(options_.dtype)) + " x " + std::to_string(options_.count) +
           (options_.isUneven ? " uneven" : "") + (options_.isInPlace ? " in place" : "") +
           " root " + std::to_string(options_.root) + " of " + std::to_string(size_) + " ranks";
  }

  // Elements that `from` sends to `to`, for kinds with parts.
  std::uint64_t part(int from, int to) const {
    switch (options_.kind) {
      case OpKind::kReduceScatter:
      case OpKind::kScatter:
        return sizeOf(to);
      case OpKind::kAllGather:
      case OpKind::kGather:
        return sizeOf(from);
      default:
        return sizeOf(from + 2 * to);
    }
  }

  bool isRoot(int rank) const { return rank == options_.root; }
  bool isReduction() const {
    return options_.kind == OpKind::kAllReduce || options_.kind == OpKind::kReduce ||
           options_.kind == OpKind::kReduceScatter;
  }

  std::uint64_t inputSize(int rank) const {
    switch (options_.kind) {
      case OpKind::kAllReduce:
      case OpKind::kReduce:
        return options_.count;
      case OpKind::kBroadcast:
        return isRoot(rank) ? options_.count : 0;
      case OpKind::kAllGather:
      case OpKind::kGather:
        return part(rank, rank);
      case OpKind::kScatter:
        return isRoot(rank) ? partsFrom(rank) : 0;
      case OpKind::kReduceScatter:
      case OpKind::kAllToAll:
        return partsFrom(rank);
      default:
        return 0;
    }
  }

  std::uint64_t outputSize(int rank) const {
    switch (options_.kind) {
      case OpKind::kAllReduce:
        return options_.count;
      case OpKind::kReduce:
        return isRoot(rank) ? options_.count : 0;
      case OpKind::kBroadcast:
        return isRoot(rank) ? 0 : options_.count;
      case OpKind::kGather:
        return isRoot(rank) ? partsTo(rank) : 0;
      case OpKind::kAllGather:
      case OpKind::kAllToAll:
        return partsTo(rank);
      case OpKind::kScatter:
      case OpKind::kReduceScatter:
        return part(options_.root < 0 ? 0 : options_.root, rank);
      default:
        return 0;
    }
  }

  std::uint64_t partsFrom(int from, int before = -1) const {
    std::uint64_t total = 0;
    for (int to = 0; to < (before < 0 ? size_ : before); ++to) total += part(from, to);
    return total;
  }
  std::uint64_t partsTo(int to, int before = -1) const {
    std::uint64_t total = 0;
    for (int from = 0; from < (before < 0 ? size_ : before); ++from) total += part(from, to);
    return total;
  }
  int size() const { return size_; }

 private:
  // Some empty, some longer than others; the same function of the index on every rank.
  std::uint64_t sizeOf(int index) const {
    if (!options_.isUneven) return options_.count;
    switch (index % 4) {
      case 0:
        return options_.count;
      case 1:
        return 0;
      case 2:
        return options_.count / 3;
      default:
        return options_.count + options_.count / 2 + 1;
    }
  }

  std::vector<std::byte> computeExpected(int rank) const {
    std::vector<std::byte> result(outputSize(rank) * element());
    std::byte* to = result.data();
    const auto append = [&](const std::byte* from, std::uint64_t count) {
      if (count != 0) std::memcpy(to, from, count * element());
      to += count * element();
    };
    const int root = options_.root;
    switch (options_.kind) {
      case OpKind::kAllReduce:
        reduce(to, 0, options_.count);
        break;
      case OpKind::kReduce:
        if (isRoot(rank)) reduce(to, 0, options_.count);
        break;
      case OpKind::kReduceScatter:
        reduce(to, partsFrom(0, rank), part(0, rank));
        break;
      case OpKind::kBroadcast:
        if (!isRoot(rank)) append(input(root).data(), options_.count);
        break;
      case OpKind::kAllGather:
      case OpKind::kGather:
        if (options_.kind == OpKind::kGather && !isRoot(rank)) break;
        for (int from = 0; from < size_; ++from) append(input(from).data(), part(from, rank));
        break;
      case OpKind::kScatter:
        append(input(root).data() + partsFrom(root, rank) * element(), part(root, rank));
        break;
      case OpKind::kAllToAll:
        for (int from = 0; from < size_; ++from) {
          append(input(from).data() + partsFrom(from, rank) * element(), part(from, rank));
        }
        break;
      default:
        break;
    }
    return result;
  }

  void reduce(std::byte* to, std::uint64_t first, std::uint64_t count) const {
    if (count == 0) return;
    const kernels::KernelSet& reference = *kernels::allKernelSets().front();
    std::vector<std::vector<std::byte>> scaled;
    std::vector<const void*> sources;
    for (int rank = 0; rank < size_; ++rank) {
      const std::byte* source = input(rank).data() + first * element();
      if (options_.op == ReduceOp::kPremulSum) {
        std::vector<std::byte>& product = scaled.emplace_back(count * element());
        reference.scale(options_.dtype)(product.data(), source, count, factorOf(rank));
        source = product.data();
      }
      sources.push_back(source);
    }
    reference.reduce(options_.op, options_.dtype)(to, nullptr, sources.data(), sources.size(),
                                                  count, size_);
  }

 public:
  // Of PREMUL_SUM: another one on every rank.
  static double factorOf(int rank) { return 1.5 + rank; }

 private:
  PlanOptions options_;
  int size_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::vector<std::byte>> expected_;
};

// Gives memory that outlives the Buffers it is for.
using Allocate = std::function<std::byte*(std::uint64_t bytes)>;

// One rank's buffers for one Plan: on the heap, but where `allocate` says for the one that holds
// the input (of operations in place, that is the output too) or, away from a broadcast's root, the
// output.
class Buffers {
 public:
  Buffers(const Plan& plan, int rank, const Allocate& allocate = {})
      : plan_(plan), rank_(rank), outputBytes_(plan.outputSize(rank) * plan.element()) {
    const std::uint64_t element = plan.element();
    const std::vector<std::byte>& input = plan.input(rank);
    const OpKind kind = plan.options().kind;
    const bool isInPlace = plan.options().isInPlace && !input.empty() && outputBytes_ != 0;
    const bool isWhole = kind == OpKind::kAllReduce || kind == OpKind::kReduce;
    const bool isPart = kind == OpKind::kAllGather || kind == OpKind::kGather;
    const bool isInOutput = isInPlace && (isWhole || isPart);
    inputBegin_ = take(input_, input.size(), isInOutput ? Allocate{} : allocate);
    output_ = take(outputMemory_, outputBytes_ + 2 * kGuard,
                   isInOutput || kind == OpKind::kBroadcast ? allocate : Allocate{});
    std::memset(output_, static_cast<int>(kGuardByte), outputBytes_ + 2 * kGuard);
    inputAt_ = inputBegin_;
    outputAt_ = output_ + kGuard;
    if (isInOutput) {
      inputAt_ = outputAt_ + (isPart ? plan.partsTo(rank, rank) * element : 0);
    } else if (isInPlace && kind == OpKind::kReduceScatter) {
      outputAt_ = inputBegin_ + plan.partsFrom(rank, rank) * element;
    }
    refillInput();
  }

  Request request() {
    const PlanOptions& options = plan_.options();
    const std::uint64_t element = plan_.element();
    Request request;
    request.kind = options.kind;
    request.dtype = options.dtype;
    request.op = options.op;
    request.factor = Plan::factorOf(rank_);
    const bool isRooted = options.kind == OpKind::kReduce || options.kind == OpKind::kBroadcast ||
                          options.kind == OpKind::kGather || options.kind == OpKind::kScatter;
    if (isRooted) request.root = options.root;
    request.input = inputAt_;
    request.output = outputAt_;
    const auto splitInput = [&] {
      for (int to = 0; to < plan_.size(); ++to) {
        request.inputCounts.push_back(plan_.part(rank_, to));
        request.inputs.push_back(inputAt_ + plan_.partsFrom(rank_, to) * element);
      }
    };
    const auto splitOutput = [&] {
      for (int from = 0; from < plan_.size(); ++from) {
        request.outputCounts.push_back(plan_.part(from, rank_));
        request.outputs.push_back(outputAt_ + plan_.partsTo(rank_, from) * element);
      }
    };
    switch (options.kind) {
      case OpKind::kAllReduce:
      case OpKind::kReduce:
      case OpKind::kBroadcast:
        request.count = options.count;
        break;
      case OpKind::kAllGather:
        request.count = plan_.part(rank_, rank_);
        splitOutput();
        break;
      case OpKind::kGather:
        request.count = plan_.part(rank_, rank_);
        if (plan_.isRoot(rank_)) splitOutput();
        break;
      case OpKind::kReduceScatter:
        request.count = plan_.part(rank_, rank_);
        splitInput();
        break;
      case OpKind::kScatter:
        request.count = plan_.part(options.root, rank_);
        if (plan_.isRoot(rank_)) splitInput();
        break;
      case OpKind::kAllToAll:
        splitInput();
        splitOutput();
        break;
      default:
        break;
    }
    return request;
  }

  // As an application may, once its call has returned (or its work is complete).
  void overwriteInput() {
    if (inputAt_ == inputBegin_ && outputAt_ == output_ + kGuard && !plan_.input(rank_).empty()) {
      std::memset(inputBegin_, 0xEE, plan_.input(rank_).size());
    }
  }

  void refillInput() {
    const std::vector<std::byte>& input = plan_.input(rank_);
    if (!input.empty()) std::memcpy(inputAt_, input.data(), input.size());
  }

  // Whether the output is right, in words if not.
  std::string problem() const {
    const std::vector<std::byte>& expected = plan_.expected(rank_);
    const bool isEqual =
        expected.empty() || std::memcmp(outputAt_, expected.data(), expected.size()) == 0;
    for (std::size_t i = 0; !isEqual && i < expected.size(); ++i) {
      if (outputAt_[i] == expected[i]) continue;
      char bytes[64];
      std::snprintf(bytes, sizeof bytes, "byte %zu is %02x, expected %02x", i,
                    static_cast<unsigned>(outputAt_[i]), static_cast<unsigned>(expected[i]));
      return plan_.describe() + ", rank " + std::to_string(rank_) + ", element " +
             std::to_string(i / plan_.element()) + ": " + bytes;
    }
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (output_[i] != kGuardByte || output_[outputBytes_ + kGuard + i] != kGuardByte) {
        return plan_.describe() + ", rank " + std::to_string(rank_) +
               ": bytes beside the output were written";
      }
    }
    return "";
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuardByte{0xA5};

  static std::byte* take(std::vector<std::byte>& heap, std::uint64_t bytes,
                         const Allocate& allocate) {
    if (allocate && bytes != 0) return allocate(bytes);
    heap.resize(bytes);
    return heap.data();
  }

  const Plan& plan_;
  int rank_;
  std::uint64_t outputBytes_;
  std::vector<std::byte> input_;
  std::vector<std::byte> outputMemory_;
  std::byte* inputBegin_;
  std::byte* output_;  // between two guards
  std::byte* inputAt_;
  std::byte* outputAt_;
};

inline constexpr OpKind kCollectives[] = {
    OpKind::kAllReduce,     OpKind::kReduce,   OpKind::kBroadcast, OpKind::kAllGather,
    OpKind::kReduceScatter, OpKind::kAllToAll, OpKind::kGather,    OpKind::kScatter};

}  // namespace smd::engine::test
