// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A reduction over several hosts in two steps: the operands of a host's ranks are combined to its
// part, then the hosts' parts to the result. Parts are of the operands' type, but of 16-bit floats
// where a host has more than one of them: there they are float32, and the result is rounded once.
#pragma once

#include <algorithm>
#include <vector>

#include "algorithms/request.h"
#include "kernels/kernels.h"
#include "kernels/partial.h"

namespace smd::algorithms {

class Parts {
 public:
  explicit Parts(const Context& context)
      : request_(context.request),
        groupSize_(context.size),
        areWide_(isSummedWide(context.request) && context.hosts->mostRanks() > 1) {}

  // Whether parts are of another type than operands and results.
  bool areWide() const { return areWide_; }
  // Bytes.
  std::uint64_t element() const { return areWide_ ? sizeof(float) : elementSize(request_.dtype); }

  // `operands` to `part`, which may be one of them unless parts are wide.
  void reduce(std::byte* part, const std::vector<const void*>& operands,
              std::uint64_t count) const {
    // An average is a sum until the last step.
    const ReduceOp op = request_.op == ReduceOp::kAvg ? ReduceOp::kSum : request_.op;
    if (count == 0) return;
    if (areWide_) {
      kernels::reduceToFloat(op, request_.dtype, reinterpret_cast<float*>(part), operands.data(),
                             operands.size(), count);
    } else {
      kernels::reduceOrThrow(op, request_.dtype)(part, nullptr, operands.data(), operands.size(),
                                                 count, groupSize_);
    }
  }

  // `parts` to the result or, unless they are wide, to one of some hosts.
  void combine(std::byte* result, const std::vector<const void*>& parts, std::uint64_t count,
               bool isLast) const {
    if (count == 0) return;
    if (!isLast) return reduce(result, parts, count);
    if (areWide_) {
      kernels::reduceFromFloats(request_.op, request_.dtype, result, parts.data(), parts.size(),
                                count, groupSize_);
    } else {
      kernels::reduceOrThrow(request_.op, request_.dtype)(result, nullptr, parts.data(),
                                                          parts.size(), count, groupSize_);
    }
  }

 private:
  const Request& request_;
  int groupSize_;
  bool areWide_;
};

}  // namespace smd::algorithms
