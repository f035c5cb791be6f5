// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// broadcast over several hosts (hierarchical.h): the table of a pattern, with the host of the root
// as its root. Of S bytes each link carries
//
//   small (exchange, doubling)   S for each host that the root's sends to, by the root alone
//   large (direct)               S at most in each direction, spread over as many lanes as the
//                                smallest host has ranks
//
// On the root's host the other ranks take it from the root's staging buffer, and those in a lane
// send from there; on the others the lanes receive into theirs, for all to take.
#include "algorithms/between_hosts/hierarchical.h"
#include "kernels/kernels.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

using step_tables::pieceOf;
using step_tables::Range;
using step_tables::shareOf;
using step_tables::Table;

// What all ranks agree on, and this one's part in it.
struct Plan {
  explicit Plan(const Context& context)
      : rootHost(hostOf(*context.hosts, context.request.root)),
        table(step_tables::broadcastTable(context.pattern, context.hosts->count(),
                                          context.hosts->self, rootHost)),
        segments(step_tables::broadcastSegments(context.hosts->count())),
        lanes(context.pattern == step_tables::Pattern::kDirect ? context.hosts->fewestRanks() : 1),
        lane(*context.hosts, lanes, context.hosts->position, context.request.root),
        element(elementSize(context.request.dtype)),
        perRound(kRoundBytes / element),
        count(context.request.count) {}

  std::uint64_t rounds() const { return roundsOf(count, perRound); }
  Range block(std::uint64_t round) const { return pieceOf(count, perRound, round); }
  // Of a block, in elements.
  Range share(std::uint64_t round, int place) const {
    const std::uint64_t unit = std::max<std::uint64_t>(1, kCacheLine / element);
    return shareOf(block(round).size, lanes, place, unit);
  }
  Range mine(std::uint64_t round) const { return share(round, lane.place()); }
  // `source` and `target` are where this rank's share begins.
  Crossing crossing(std::uint64_t round, const std::byte* source, std::byte* target) const {
    return {source, target, mine(round).size, segments, round * table.size()};
  }

  int rootHost;
  Table table;
  int segments;
  int lanes;
  Lane lane;
  std::uint64_t element;
  std::uint64_t perRound;
  std::uint64_t count;
};

// From where or to where it is in the caller's buffer.
Task broadcastAlone(Context& context, Held& held, const Plan& plan) {
  const Request& request = context.request;
  return crossInRounds(held.crossings, plan.rounds(),
                       [&context, &request, &plan](std::uint64_t round, Reached turn) {
                         const std::uint64_t at = plan.block(round).begin * plan.element;
                         const Crossing crossing =
                             context.rank == request.root
                                 ? plan.crossing(round, request.input + at, nullptr)
                                 : plan.crossing(round, request.output + at, request.output + at);
                         return cross(context, plan.lane, plan.table, crossing, turn);
                       });
}

Stages stagesOf(const Plan& plan, Crossings& crossings) {
  Stages stages;
  stages.blockBytes = kRoundBytes;
  stages.copyAhead = kBlocks;
  stages.rounds = plan.rounds();
  if (plan.lane.isIn()) stages.crossings = &crossings;
  return stages;
}

// On the root's host.
Task handOut(Context& context, Held& held, const Plan& plan) {
  const Request& request = context.request;
  const int root = (context.memory->index() - plan.lane.place() + context.memory->size()) %
                   context.memory->size();
  const bool isRoot = context.rank == request.root;
  Stages stages = stagesOf(plan, held.crossings);
  stages.contributes = isRoot;
  stages.contributor = root;
  stages.reduces = plan.lane.isIn();
  stages.consumes = !isRoot;
  return runPipeline(
      context, stages,
      [&request, &plan, root](Pipeline& pipeline) {
        return [&request, &plan, &pipeline, root](std::uint64_t round) {
          const Range block = plan.block(round);
          if (block.size == 0) return;
          kernels::copy(pipeline.block(root, round), request.input + block.begin * plan.element,
                        block.size * plan.element);
        };
      },
      // There is nothing to reduce: this is when the root's block is there to be sent.
      [&context, &request, &held, &plan, root, isRoot](Pipeline& pipeline) {
        return [&context, &request, &held, &plan, &pipeline, root, isRoot](std::uint64_t round) {
          const std::byte* block = isRoot ? request.input + plan.block(round).begin * plan.element
                                          : pipeline.block(root, round);
          const std::byte* source = block + plan.mine(round).begin * plan.element;
          held.crossings.start(cross(context, plan.lane, plan.table,
                                     plan.crossing(round, source, nullptr),
                                     Reached(held.crossings.numDone(), 0)));
        };
      },
      [&request, &plan, root](Pipeline& pipeline) {
        return [&request, &plan, &pipeline, root](std::uint64_t round) {
          const Range block = plan.block(round);
          if (block.size == 0) return;
          kernels::copy(request.output + block.begin * plan.element, pipeline.block(root, round),
                        block.size * plan.element);
        };
      });
}

// On the other hosts.
Task takeIn(Context& context, Held& held, const Plan& plan) {
  const Request& request = context.request;
  const int self = context.memory->index();
  Stages stages = stagesOf(plan, held.crossings);
  stages.contributes = plan.lane.isIn();
  stages.consumesResults = true;
  return runPipeline(
      context, stages,
      [&context, &held, &plan, self](Pipeline& pipeline) {
        return [&context, &held, &plan, &pipeline, self](std::uint64_t round) {
          std::byte* target = pipeline.block(self, round) + plan.mine(round).begin * plan.element;
          held.crossings.start(cross(context, plan.lane, plan.table,
                                     plan.crossing(round, target, target),
                                     Reached(held.crossings.numDone(), 0)));
        };
      },
      kSkip,
      [&request, &plan](Pipeline& pipeline) {
        return [&request, &plan, &pipeline](std::uint64_t round) {
          for (int place = 0; place < plan.lanes; ++place) {
            const Range share = plan.share(round, place);
            if (share.size == 0) continue;
            std::byte* output =
                request.output + (plan.block(round).begin + share.begin) * plan.element;
            kernels::copy(output, pipeline.block(place, round) + share.begin * plan.element,
                          share.size * plan.element);
          }
        };
      });
}

Task broadcast(Context& context, Held& held) {
  const Plan plan(context);
  if (context.memory != nullptr) arrive(context);
  Task body = context.memory == nullptr           ? broadcastAlone(context, held, plan)
              : plan.rootHost == plan.lane.self() ? handOut(context, held, plan)
                                                  : takeIn(context, held, plan);
  Nested nested(body);
  co_await nested;
}

}  // namespace

Task broadcastOverHosts(Context& context) { return holding(context, broadcast); }

}  // namespace smd::algorithms
