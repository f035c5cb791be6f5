// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The parameters that many methods of a group share, so that each is written once.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/communicator_py.h"

#define SMD_CALL_PARAMETERS bool asyncOp, double timeoutSeconds, nb::object keepAlive
#define SMD_CALL \
  CallOptions { asyncOp, timeoutSeconds, std::move(keepAlive) }
#define SMD_ARRAY_ARGS nb::arg("async_op") = false, nb::arg("timeout_s") = 0.0
// Of calls whose ranks must agree on a layout too: a detail of the signature, 0 for nothing.
#define SMD_LAYOUT_ARGS SMD_CALL_ARGS, nb::arg("layout") = 0
#define SMD_CALL_ARGS SMD_ARRAY_ARGS, nb::arg("keep_alive") = nb::none()
// What the ranks must agree on besides: see Request::label.
#define SMD_LABEL_PARAMETERS std::uint64_t label, const char *purpose
#define SMD_LABEL_ARGS nb::arg("label") = 0, nb::arg("purpose") = ""
#define SMD_LABEL(request) \
  request.label = label;   \
  request.purpose = purpose

namespace smd::bindings {

// Of methods on an array, which bring address, count and dtype in one call instead of two: where
// ranks share cores, each call finds the interpreter's code and data displaced from the caches by
// the others, and takes some 2 us.
inline constexpr const char* kOfArray =
    "What its namesake with _ptr does, on the memory of an array. Errors as of buffer().";

// Whose memory has been looked at, and is held meanwhile.
inline CallOptions onArray(bool isAsync, double timeoutSeconds, nb::object array) {
  if (isAsync) array = holderOf(std::move(array), 0);
  return {isAsync, timeoutSeconds, std::move(array)};
}

}  // namespace smd::bindings
