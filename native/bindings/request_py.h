// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What Python passes for an operation (addresses, counts and codes), checked and turned into what
// the engine takes. Codes that nobody knows throw Error(kConfiguration), all else value_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/request.h"
#include "bindings/buffer_py.h"
#include "common/types.h"

namespace smd::bindings {

using algorithms::Request;
using Addresses = std::vector<std::uintptr_t>;
using Counts = std::vector<std::uint64_t>;

const std::byte* input(std::uintptr_t address);
std::byte* output(std::uintptr_t address);
std::vector<const std::byte*> inputs(const Addresses& addresses);
std::vector<std::byte*> outputs(const Addresses& addresses);
// Consecutive equal parts of one buffer.
std::vector<std::byte*> consecutive(std::uintptr_t address, std::uint64_t bytesEach, int size);

DType toDType(int code);

// By-rank lists of a group of `size`: one entry per rank, pointers and counts alike.
void requireLists(int size, const char* what, std::size_t pointers, std::size_t counts);
void requireRank(int size, int root);

// Without buffers yet.
Request reduction(OpKind kind, int dtype, int op, double factor);
Request movement(OpKind kind, int dtype);
// Of one buffer that is input and output.
Request inPlace(Request request, const ArrayMemory& memory);

OpKind toCoalesced(const std::string& collective);
std::vector<algorithms::Piece> pieces(const Addresses& inPtrs, const Addresses& outPtrs,
                                      const Counts& counts);

// Adds storage_order().
void registerRequest(nb::module_& module);

}  // namespace smd::bindings
