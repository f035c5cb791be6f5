// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// reduce_scatter over several hosts (hierarchical.h). What the ranks of a host have for a rank
// elsewhere is combined by the one at that rank's position (counted round, if there are fewer) and
// sent to it as one part, and it combines the parts of all hosts. So of T bytes that each rank has
// a link of one of h equal hosts carries (h - 1) / h T in each direction, the least there is.
//
// A host's part is combined in rank order, the parts (parts.h) in the order of the hosts: the bits
// are the same in every run and for every size.
//
// A staging block has a slot for a piece of each rank's part. In the slots of those that its owner
// combines for lies, once combined, the part of this host.
#include "algorithms/between_hosts/hierarchical.h"
#include "algorithms/between_hosts/parts.h"
#include "algorithms/message_set.h"
#include "kernels/kernels.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

using step_tables::pieceOf;
using step_tables::Range;

struct Plan {
  explicit Plan(const Context& each)
      : context(each),
        lane(*each.hosts, each.hosts->mostRanks()),
        parts(each),
        element(elementSize(each.request.dtype)),
        slotElement(std::max(element, parts.element())),
        perPiece(elementsPerSlot(static_cast<std::uint64_t>(each.size), slotElement)),
        rounds(roundsOf(std::ranges::max(each.request.inputCounts), perPiece)),
        isMine(static_cast<std::size_t>(each.size), false) {
    for (int host = 0; host < lane.numHosts(); ++host) {
      for (const int rank : lane.toldAt(host)) {
        mine.push_back(rank);
        isMine[static_cast<std::size_t>(rank)] = true;
      }
    }
  }

  Range piece(int rank, std::uint64_t round) const {
    return pieceOf(context.request.inputCount(rank), perPiece, round);
  }
  std::uint64_t bytes(int rank, std::uint64_t round) const {
    return piece(rank, round).size * element;
  }
  // The same of a host's part.
  std::uint64_t partBytes(int rank, std::uint64_t round) const {
    return piece(rank, round).size * parts.element();
  }
  const std::byte* input(int rank, std::uint64_t round) const {
    return context.request.inputs[static_cast<std::size_t>(rank)] +
           piece(rank, round).begin * element;
  }
  // Where in a block the piece for a rank lies.
  std::uint64_t slot(int rank) const {
    return static_cast<std::uint64_t>(rank) * perPiece * slotElement;
  }

  const Context& context;
  Lane lane;
  Parts parts;
  std::uint64_t element;
  std::uint64_t slotElement;  // there is room for operands, then for a part
  std::uint64_t perPiece;
  std::uint64_t rounds;
  std::vector<int> mine;  // ranks that this one combines for
  std::vector<bool> isMine;
};

// Sends this host's parts of a round, receives those for this rank and combines them. `partFor`
// says where this host's part for a rank lies.
template <class PartFor>
Task crossAndCombine(const Plan& plan, std::uint64_t round, Reached turn, PartFor partFor) {
  const Context& context = plan.context;
  const Lane& lane = plan.lane;
  const Range piece = plan.piece(context.rank, round);
  const std::uint64_t bytes = plan.partBytes(context.rank, round);
  // Nothing is sent empty but in the first round.
  const auto isSent = [&plan, round](int rank) {
    return round == 0 || plan.bytes(rank, round) != 0;
  };
  Scratch::Buffer received =
      context.scratch->take(static_cast<std::uint64_t>(lane.numHosts()) * bytes);
  MessageSet messages(context, round, MessageSet::Polling::kByOwner);
  std::vector<const void*> parts(static_cast<std::size_t>(lane.numHosts()));
  for (int offset = 1; offset < lane.numHosts() && isSent(context.rank); ++offset) {
    const int host = (lane.self() - offset + lane.numHosts()) % lane.numHosts();
    std::byte* place = received.data.get() + static_cast<std::uint64_t>(host) * bytes;
    parts[static_cast<std::size_t>(host)] = place;
    messages.receive(lane.heardFrom(host), place, bytes);
  }
  co_await turn;
  for (int offset = 1; offset < lane.numHosts(); ++offset) {
    for (const int rank : lane.toldAt((lane.self() + offset) % lane.numHosts())) {
      if (isSent(rank)) messages.send(rank, partFor(rank), plan.partBytes(rank, round));
    }
  }
  co_await messages;
  if (piece.size != 0) {
    parts[static_cast<std::size_t>(lane.self())] = partFor(context.rank);
    plan.parts.combine(context.request.output + piece.begin * plan.element, parts, piece.size,
                       true);
  }
  context.scratch->giveBack(std::move(received));
}

// What it has is the part of its host, once widened if parts are wide.
Task scatterAlone(Held& held, const Plan& plan) {
  return crossInRounds(held.crossings, plan.rounds, [&](std::uint64_t round, Reached turn) {
    std::byte* widened = nullptr;
    if (plan.parts.areWide()) {
      widened = held.numbered(round % kMostAlone, kRoundBytes);
      for (const int rank : plan.mine) {
        plan.parts.reduce(widened + plan.slot(rank), {plan.input(rank, round)},
                          plan.piece(rank, round).size);
      }
    }
    return crossAndCombine(plan, round, turn, [&plan, round, widened](int rank) {
      return widened == nullptr ? plan.input(rank, round) : widened + plan.slot(rank);
    });
  });
}

Task scatterByLanes(Context& context, Held& held, const Plan& plan, std::uint64_t& numReduced) {
  const int self = context.memory->index();
  Stages stages;
  stages.rounds = plan.rounds;
  stages.blockBytes = kRoundBytes;
  stages.copyAhead = kBlocks;
  stages.reduces = true;
  stages.consumes = false;
  stages.crossings = &held.crossings;
  return runPipeline(
      context, stages,
      [&context, &held, &plan, &numReduced, self](Pipeline& pipeline) {
        return [&context, &held, &plan, &numReduced, &pipeline, self](std::uint64_t round) {
          std::byte* block = pipeline.block(self, round);
          for (int rank = 0; rank < context.size; ++rank) {
            const std::uint64_t bytes = plan.bytes(rank, round);
            if (plan.isMine[static_cast<std::size_t>(rank)] || bytes == 0) continue;
            kernels::copy(block + plan.slot(rank), plan.input(rank, round), bytes);
          }
          // What it sends is there once it is reduced.
          held.crossings.start(
              crossAndCombine(plan, round, Reached(numReduced, round + 1),
                              [&plan, block](int rank) { return block + plan.slot(rank); }));
        };
      },
      [&context, &plan, &numReduced, self](Pipeline& pipeline) {
        return [&context, &plan, &numReduced, &pipeline, self](std::uint64_t round) {
          std::vector<const void*> sources(static_cast<std::size_t>(context.memory->size()));
          for (const int rank : plan.mine) {
            const std::uint64_t count = plan.piece(rank, round).size;
            if (count == 0) continue;
            for (int peer = 0; peer < context.memory->size(); ++peer) {
              sources[static_cast<std::size_t>(peer)] =
                  peer == self ? plan.input(rank, round)
                               : pipeline.block(peer, round) + plan.slot(rank);
            }
            plan.parts.reduce(pipeline.block(self, round) + plan.slot(rank), sources, count);
          }
          numReduced = round + 1;
        };
      },
      kSkip);
}

Task reduceScatter(Context& context, Held& held) {
  const Plan plan(context);
  std::uint64_t numReduced = 0;
  if (context.memory != nullptr) arrive(context);
  Task body = context.memory == nullptr ? scatterAlone(held, plan)
                                        : scatterByLanes(context, held, plan, numReduced);
  Nested nested(body);
  co_await nested;
}

}  // namespace

Task reduceScatterOverHosts(Context& context) { return holding(context, reduceScatter); }

}  // namespace smd::algorithms
