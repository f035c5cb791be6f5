// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Reductions of 16-bit floats in two steps: some of the operands here, the rest elsewhere. What
// goes from one step to the next is float32, so that the result is rounded to 16 bits once, as by
// ReduceFn.
#pragma once

#include <cstddef>

#include "common/types.h"

namespace smd::kernels {

// dst[i] = srcs[0][i] op ... op srcs[numSrcs - 1][i] in float32, in exactly that order; `type` is
// float16 or bfloat16, `op` SUM, PREMUL_SUM or PRODUCT. `dst` must not overlap a source.
void reduceToFloat(ReduceOp op, DType type, float* dst, const void* const* srcs,
                   std::size_t numSrcs, std::size_t count);

// The same of such parts, each an array of float32, into `dst` of `type`. `op` may also be AVG,
// which divides before it rounds. `dst` must not overlap a source.
void reduceFromFloats(ReduceOp op, DType type, void* dst, const void* const* srcs,
                      std::size_t numSrcs, std::size_t count, double divisor);

}  // namespace smd::kernels
