// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/request_py.h"

#include <nanobind/stl/vector.h>

#include <string>

#include "common/error.h"

namespace smd::bindings {
namespace {

template <class Enum>
[[noreturn]] void refuse(int code, int size, const char* what) {
  std::string text = std::string(what) + " code " + std::to_string(code) + " is unknown; expected ";
  for (int known = 0; known < size; ++known) {
    if (known > 0) text += known + 1 == size ? " or " : ", ";
    text += std::to_string(known) + " (" + std::string(name(static_cast<Enum>(known))) + ")";
  }
  throw Error(ErrorKind::kConfiguration, text + ". Pass a constant of this module.");
}

template <class Enum>
Enum toEnum(int code, int size, const char* what) {
  if (code < 0 || code >= size) refuse<Enum>(code, size, what);
  return static_cast<Enum>(code);
}

ReduceOp toReduceOp(int code) { return toEnum<ReduceOp>(code, kNumReduceOps, "reduce op"); }

}  // namespace

const std::byte* input(std::uintptr_t address) {
  return reinterpret_cast<const std::byte*>(address);
}
std::byte* output(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DType toDType(int code) { return toEnum<DType>(code, kNumDTypes, "dtype"); }

std::vector<const std::byte*> inputs(const Addresses& addresses) {
  std::vector<const std::byte*> pointers;
  for (std::uintptr_t address : addresses) pointers.push_back(input(address));
  return pointers;
}
std::vector<std::byte*> outputs(const Addresses& addresses) {
  std::vector<std::byte*> pointers;
  for (std::uintptr_t address : addresses) pointers.push_back(output(address));
  return pointers;
}

void requireLists(int size, const char* what, std::size_t pointers, std::size_t counts) {
  const auto each = static_cast<std::size_t>(size);
  if (pointers == each && counts == each) return;
  throw nb::value_error((std::string(what) + ": " + std::to_string(pointers) + " buffers and " +
                         std::to_string(counts) +
                         " sizes were given; expected one of each per rank, " +
                         std::to_string(size) + ".")
                            .c_str());
}

void requireRank(int size, int root) {
  if (root >= 0 && root < size) return;
  throw nb::value_error(("root " + std::to_string(root) +
                         " is not a rank of this group; expected 0 to " + std::to_string(size - 1) +
                         ".")
                            .c_str());
}

Request reduction(OpKind kind, int dtype, int op, double factor) {
  Request request;
  request.kind = kind;
  request.dtype = toDType(dtype);
  request.op = toReduceOp(op);
  request.factor = factor;
  return request;
}

Request movement(OpKind kind, int dtype) {
  Request request;
  request.kind = kind;
  request.dtype = toDType(dtype);
  return request;
}

Request inPlace(Request request, const ArrayMemory& memory) {
  request.count = memory.count;
  request.input = input(memory.address);
  request.output = output(memory.address);
  return request;
}

OpKind toCoalesced(const std::string& collective) {
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter}) {
    if (smd::name(kind) == collective) return kind;
  }
  throw nb::value_error(("\"" + collective +
                         "\" cannot be coalesced; expected all_reduce, all_gather or "
                         "reduce_scatter. Make one call for each buffer.")
                            .c_str());
}

std::vector<algorithms::Piece> pieces(const Addresses& inPtrs, const Addresses& outPtrs,
                                      const Counts& counts) {
  if (inPtrs.empty() || inPtrs.size() != counts.size() || outPtrs.size() != counts.size()) {
    throw nb::value_error(("coalesced: " + std::to_string(inPtrs.size()) + " inputs, " +
                           std::to_string(outPtrs.size()) + " outputs and " +
                           std::to_string(counts.size()) +
                           " sizes were given; expected the same number of each, and at least one.")
                              .c_str());
  }
  std::vector<algorithms::Piece> all;
  all.reserve(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    all.push_back({input(inPtrs[i]), output(outPtrs[i]), counts[i]});
  }
  return all;
}

std::vector<std::byte*> consecutive(std::uintptr_t address, std::uint64_t bytesEach, int size) {
  std::vector<std::byte*> pointers;
  for (int peer = 0; peer < size; ++peer) {
    pointers.push_back(output(address + static_cast<std::uint64_t>(peer) * bytesEach));
  }
  return pointers;
}

void registerRequest(nb::module_& module) {
  module.def(
      "storage_order", [](const std::vector<int>& dimensions) { return storageOrder(dimensions); },
      nb::arg("dimensions"),
      "The ``layout`` of an array whose dimensions lie in memory in this order, the one whose "
      "elements\nlie farthest apart first; without those of one element.");
}

}  // namespace smd::bindings
