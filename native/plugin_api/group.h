// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks as another shared library of this package sees it, that does not link the
// engine: a process must have one engine (its progress thread, its registry, its fork handlers),
// and that is in the Python module _native. Pointers to these interfaces pass through Python.
//
// Both sides are built together, by one compiler, so standard types may cross. Exceptions do not:
// an error is what a completion is called with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/fragment.h"
#include "common/types.h"

namespace smd::plugin_api {

// Called once, when an operation has ended: with its error, or null if it went well. On the thread
// that ends it: the progress thread, or the one that asks for the operation, before that returns.
using Completion = std::function<void(const Error* error)>;

// What the ranks must agree on besides elements and type.
struct Agreement {
  std::uint64_t layout = 0;  // a digest of shapes; 0: nothing
  std::uint64_t label = 0;   // a digest of what the operation is for; 0: nothing
  std::string purpose;       // both in words, for ranks that do not agree; unused without a label
};

// Operations are asynchronous, and start in the order of the calls, which is the same on all ranks.
// Memory stays valid until the completion is called. Any thread, completions too.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // `input` in whole elements, one fragment at least unless `count` is 0. It may be `output` (one
  // fragment, which is all of it), and does not overlap that otherwise.
  virtual void allReduce(Fragments input, std::byte* output, std::uint64_t count, DType dtype,
                         ReduceOp op, Agreement agreement, Completion completion) noexcept = 0;
  // From the root's `data`, which is only read, into the others'.
  virtual void broadcast(std::byte* data, std::uint64_t count, DType dtype, int root,
                         Agreement agreement, Completion completion) noexcept = 0;
  // `outputs` and `counts` by rank; this rank's input has counts[rank()] elements. Of the agreement
  // the layout is not used: the counts are compared.
  virtual void allGather(const std::byte* input, std::vector<std::byte*> outputs,
                         std::vector<std::uint64_t> counts, DType dtype, Agreement agreement,
                         Completion completion) noexcept = 0;

  // Memory that all ranks can reach, on a page boundary, with whatever lies there: operations on it
  // are fastest if every rank uses such memory. Null where there is none. It outlives the group.
  virtual std::shared_ptr<std::byte> allocateShared(std::size_t bytes) noexcept = 0;

  // This rank cannot go on: all operations of the group end, on all ranks, with an error that names
  // it and the reason. Completions may be called before this returns.
  virtual void abort(const std::string& reason) noexcept = 0;
};

// What an address that passes through Python points to. `version` first, for ever: libraries of
// different builds must find out before they call each other.
struct Handle {
  static constexpr std::uint64_t kVersion = 0x5345414d'00000005;  // change it with the interfaces
  std::uint64_t version = kVersion;
  std::shared_ptr<Group> group;
};

}  // namespace smd::plugin_api
