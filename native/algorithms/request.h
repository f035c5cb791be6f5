// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One collective as the caller asked for it, and what an algorithm is given to carry it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/exposed_buffer.h"
#include "algorithms/scratch.h"
#include "common/fragment.h"
#include "common/signature.h"
#include "common/task.h"
#include "hosts/hosts.h"
#include "step_tables/between_hosts.h"
#include "transport/mailbox.h"
#include "transport/peer_memory.h"

namespace smd::algorithms {

// One of the buffers of a coalesced request: `count` elements, or as many for each rank on the side
// that has a share for each.
struct Piece {
  const std::byte* input;
  std::byte* output;
  std::uint64_t count;
};

// Element counts, byte pointers. Which fields are used:
//   kind            input        output       inputs/inputCounts   outputs/outputCounts
//   all_reduce      count        count (may equal input)
//   reduce          count        count (root only; may equal input)
//   broadcast       root: count  others: count
//   all_gather      count                                          by rank
//   reduce_scatter               count        by rank
//   all_to_all                                by rank              by rank
//   gather          count                                          by rank (root only)
//   scatter                      count        by rank (root only)
struct Request {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kOpaque8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  double factor = 1.0;  // of kPremulSum
  std::uint64_t count = 0;
  // Of all_reduce, reduce and broadcast: a digest of what else the ranks must agree on, 0 for
  // nothing. A caller that has packed several buffers gives one of their sizes; one whose buffer is
  // not in the usual order gives its storageOrder().
  std::uint64_t layout = 0;
  // A digest of what the call is for (its name, its place in the program), which the ranks must
  // agree on as well; 0 for nothing. `purpose` says it in words, to ranks that do not agree.
  std::uint64_t label = 0;
  std::string purpose;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::vector<std::uint64_t> inputCounts;
  std::vector<std::uint64_t> outputCounts;
  // Not empty: coalesced. Then these are the caller's buffers, and the fields above are filled by
  // pack() (coalesce.h).
  std::vector<Piece> pieces;

  // Not empty: of an all_reduce, the input, which does not overlap the output (fragments.h).
  Fragments fragments;

  std::uint64_t inputCount(int rank) const { return inputCounts[static_cast<std::size_t>(rank)]; }
  std::uint64_t outputCount(int rank) const { return outputCounts[static_cast<std::size_t>(rank)]; }
};

// Largest number of bytes any rank moves in or out: what algorithms are selected by. The same on
// every rank for collectives whose ranks must agree on sizes.
std::uint64_t agreedBytes(const Request& request);

// Whether its operands are 16-bit floats that are summed in float32 and rounded once: a part of the
// sum, rounded, could overflow where the result does not.
bool isSummedWide(const Request& request);

// Whether a buffer that has elements is at no address, seen from a rank that is the root or not.
bool lacksMemory(const Request& request, bool isRoot);

// What the ranks must agree on, in one signature (sequence number not yet set).
Signature signatureOf(const Request& request);

// Whether any byte of [begin, begin + bytes) is in one of its buffers.
bool touches(const Request& request, const std::byte* begin, std::uint64_t bytes);

// Lives as long as the operation.
struct Context {
  Request request;
  Signature signature;
  int rank = 0;
  int size = 1;
  // Of this rank's host; null if no other rank is there. Positions in it are not ranks if there are
  // several hosts.
  const transport::PeerMemory* memory = nullptr;
  const hosts::Hosts* hosts = nullptr;    // null if size is 1
  step_tables::Pattern pattern{};         // between hosts, if there are several
  Scratch* scratch = nullptr;             // of the communicator
  transport::Mailbox* mailbox = nullptr;  // null if size is 1
  std::uint64_t copyAhead = 1;            // see copyAheadFor(); set by the driver
  std::uint64_t* blocksDone = nullptr;    // of the communicator's staged operations so far
  ExposedBuffer* exposed = nullptr;       // of the communicator; null: nobody asks
  std::int64_t* arrivedNs = nullptr;      // where to note when all ranks had arrived; null: nowhere
  bool isInPlace = false;                 // without staging; set by runShared() once it knows

  int rankAt(int position) const {
    return hosts == nullptr ? position
                            : hosts->ranksOf(hosts->self)[static_cast<std::size_t>(position)];
  }
};

// For kPremulSum: multiplies the input by the factor, in place where it is also the output, else
// into `scratch`, so that what follows is a sum.
void premultiply(Context& context, std::vector<std::byte>& scratch);

// A group of one rank: copies input to output.
void runAlone(Context& context);

// Every rank writes its whole contribution beside its arrival and reads all others': one exchange.
// For payloads of at most kSlotBytes on one host. Also the barrier.
Task runOneShot(Context& context);
// Bytes that would have to fit into a slot.
std::uint64_t oneShotBytes(const Request& request);

// How many blocks a rank may copy in before it has reduced and consumed them: one while each rank
// has a processor, so that what was copied in is still in the cache when its result is copied out
// (25 MiB, 2 ranks: 2.1 ms; without a limit 3.6 ms); all there are where ranks take turns on
// processors, so that each gets far in its turn. So it is for a thread that sleeps at once when it
// has to wait, however many processors there are (the same: from twice as long to as long).
std::uint64_t copyAheadFor(int ranks, int cores);
// Blocks stream through the ranks' staging buffers: any size, on one host.
Task runStaged(Context& context);
// The same for an operation whose ranks have all arrived, with announce().
Task runStagedAfterArrival(Context& context);

// Without staging, on one host, where all buffers that peers use lie in their owners' arenas: those
// of an all_reduce or reduce, in place; the inputs of the others. Staged if one lies elsewhere.
// Only where this rank mayShareBuffers(); other ranks may run staged from the start.
Task runShared(Context& context);
bool mayShareBuffers(const Context& context);

// Messages between every pair that has something to exchange: any hosts.
Task runDirect(Context& context);

// Over several hosts: within each host through its memory, between hosts by `pattern`, where there
// are several. Not gather, scatter and all_to_all.
Task runHierarchical(Context& context);

}  // namespace smd::algorithms
