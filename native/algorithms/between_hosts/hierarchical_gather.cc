// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// all_gather over several hosts (hierarchical.h). Each rank sends its part to one rank of each
// other host, that at its own position there (counted round, if the host has fewer), which
// receives it into its staging buffer for all ranks of the host to take. So a part crosses once
// to each host, and of T bytes in all a link of one of h equal hosts carries (h - 1) / h T in
// each direction, the least there is.
//
// A staging block has slots for a piece of each: its owner's part, and those of the ranks that the
// owner hears from. Parts may be of different lengths; short ones are through in fewer rounds.
#include <cstring>

#include "algorithms/between_hosts/hierarchical.h"
#include "kernels/kernels.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

using step_tables::pieceOf;
using step_tables::Range;

// Slots of a staging block: as many as the fullest needs, the same on all hosts, as the ranks of
// one send what those of another receive.
std::uint64_t numSlots(const hosts::Hosts& hosts) {
  int fewest = 0;  // ranks of a host that has more than one
  for (const std::vector<int>& ranks : hosts.ranks) {
    const int size = static_cast<int>(ranks.size());
    if (size > 1 && (fewest == 0 || size < fewest)) fewest = size;
  }
  if (fewest == 0) return 1;
  std::uint64_t slots = 0;
  for (const std::vector<int>& ranks : hosts.ranks) {
    slots += step_tables::numPieces(ranks.size(), static_cast<std::uint64_t>(fewest));
  }
  return slots;
}

// What all ranks agree on.
struct Plan {
  explicit Plan(const Context& each)
      : context(each),
        element(elementSize(each.request.dtype)),
        perPiece(elementsPerSlot(numSlots(*each.hosts), element)),
        rounds(roundsOf(std::ranges::max(each.request.outputCounts), perPiece)) {
    const int positions = each.hosts->sizeOf(each.hosts->self);
    for (int position = 0; position < positions; ++position) {
      const Lane lane(*each.hosts, each.hosts->mostRanks(), position);
      std::vector<int>& sources = sourcesOf.emplace_back();
      for (int offset = 1; offset < lane.numHosts(); ++offset) {
        const int host = (lane.self() + offset) % lane.numHosts();
        for (const int rank : lane.toldAt(host)) sources.push_back(rank);
      }
    }
  }

  Range piece(int rank, std::uint64_t round) const {
    return pieceOf(context.request.outputCount(rank), perPiece, round);
  }
  // Messages that are there in every round are sent empty in the first one only.
  bool isSent(int rank, std::uint64_t round) const {
    return round == 0 || piece(rank, round).size != 0;
  }
  std::byte* output(int rank, std::uint64_t round) const {
    return context.request.outputs[static_cast<std::size_t>(rank)] +
           piece(rank, round).begin * element;
  }
  const std::byte* input(std::uint64_t round) const {
    return context.request.input + piece(context.rank, round).begin * element;
  }
  std::uint64_t bytes(int rank, std::uint64_t round) const {
    return piece(rank, round).size * element;
  }
  const std::vector<int>& sourcesAt(int position) const {
    return sourcesOf[static_cast<std::size_t>(position)];
  }
  // Where in the block of a rank the piece of the source with this index lies; its own is first.
  std::uint64_t slot(std::size_t source) const { return (source + 1) * perPiece * element; }

  // This rank's crossing; `placeOf` says where the piece of a source is to be received.
  template <class PlaceOf>
  Parcels parcels(std::uint64_t round, PlaceOf placeOf) const {
    Parcels parcels;
    const std::vector<int>& sources = sourcesAt(context.hosts->position);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!isSent(sources[i], round)) continue;
      parcels.receives.push_back({sources[i], placeOf(i), bytes(sources[i], round)});
    }
    const Lane lane(*context.hosts, context.hosts->mostRanks());
    for (int offset = 1; offset < lane.numHosts() && isSent(context.rank, round); ++offset) {
      const int host = (lane.self() + offset) % lane.numHosts();
      parcels.sends.push_back({lane.heardFrom(host), input(round), bytes(context.rank, round)});
    }
    return parcels;
  }

  const Context& context;
  std::uint64_t element;
  std::uint64_t perPiece;
  std::uint64_t rounds;
  std::vector<std::vector<int>> sourcesOf;  // by position on this host
};

// The caller's own part: its input may already be where the output is.
void copyOwn(const Plan& plan, std::uint64_t round) {
  const int rank = plan.context.rank;
  std::byte* output = plan.output(rank, round);
  const std::uint64_t bytes = plan.bytes(rank, round);
  if (bytes != 0 && output != plan.input(round)) std::memmove(output, plan.input(round), bytes);
}

Task gatherAlone(Context& context, Held& held, const Plan& plan) {
  return crossInRounds(
      held.crossings, plan.rounds, [&context, &plan](std::uint64_t round, Reached turn) {
        copyOwn(plan, round);
        const std::vector<int>& sources = plan.sourcesAt(0);
        Parcels parcels = plan.parcels(
            round, [&](std::size_t source) { return plan.output(sources[source], round); });
        return pass(context, std::move(parcels), round, turn);
      });
}

Task gatherByLanes(Context& context, Held& held, const Plan& plan) {
  const int self = context.memory->index();
  Stages stages;
  stages.rounds = plan.rounds;
  stages.blockBytes = kRoundBytes;
  stages.copyAhead = kBlocks;
  stages.consumesResults = true;
  stages.crossings = &held.crossings;
  return runPipeline(
      context, stages,
      [&context, &held, &plan, self](Pipeline& pipeline) {
        return [&context, &held, &plan, &pipeline, self](std::uint64_t round) {
          std::byte* block = pipeline.block(self, round);
          const std::uint64_t bytes = plan.bytes(context.rank, round);
          if (bytes != 0) kernels::copy(block, plan.input(round), bytes);
          Parcels parcels =
              plan.parcels(round, [&](std::size_t source) { return block + plan.slot(source); });
          held.crossings.start(
              pass(context, std::move(parcels), round, Reached(held.crossings.numDone(), 0)));
        };
      },
      kSkip,
      [&context, &plan, self](Pipeline& pipeline) {
        return [&context, &plan, &pipeline, self](std::uint64_t round) {
          const int size = context.memory->size();
          for (int step = 0; step < size; ++step) {
            const int peer = (self + step) % size;
            const std::byte* block = pipeline.block(peer, round);
            const auto take = [&plan, round](int rank, const std::byte* from) {
              const std::uint64_t bytes = plan.bytes(rank, round);
              if (bytes != 0) kernels::copy(plan.output(rank, round), from, bytes);
            };
            if (peer == self) {
              copyOwn(plan, round);
            } else {
              take(context.rankAt(peer), block);
            }
            const std::vector<int>& sources = plan.sourcesAt(peer);
            for (std::size_t i = 0; i < sources.size(); ++i) take(sources[i], block + plan.slot(i));
          }
        };
      });
}

Task allGather(Context& context, Held& held) {
  const Plan plan(context);
  if (context.memory != nullptr) arrive(context);
  Task body = context.memory == nullptr ? gatherAlone(context, held, plan)
                                        : gatherByLanes(context, held, plan);
  Nested nested(body);
  co_await nested;
}

}  // namespace

Task allGatherOverHosts(Context& context) { return holding(context, allGather); }

}  // namespace smd::algorithms
