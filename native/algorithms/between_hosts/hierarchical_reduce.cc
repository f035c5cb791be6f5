// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// all_reduce and reduce over several hosts (hierarchical.h). An all_reduce of S bytes over h hosts,
// whatever the number of ranks on each, sends
//
//   small (exchange, doubling)   S from every rank to each host, or log2 h times
//   large (the other patterns)   2 (h - 1) / h S from every host, the least there is, spread over
//                                as many lanes as the smallest host has ranks
//
// A host's part is combined in rank order, the hosts' parts in an order that depends on the pattern
// (step_tables/between_hosts.h), which is chosen by size. So the bits are the same on every rank
// and in every run, and for exchange and direct also for every size.
#include <algorithm>

#include "algorithms/between_hosts/hierarchical.h"
#include "algorithms/between_hosts/parts.h"
#include "kernels/kernels.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

using step_tables::pieceOf;
using step_tables::Range;
using step_tables::shareOf;
using step_tables::Table;

bool hasOutput(const Context& context) {
  return context.request.kind == OpKind::kAllReduce || context.rank == context.request.root;
}

// Of all_reduce, or reduce to a rank of one host.
Table reductionTable(const Context& context) {
  const hosts::Hosts& hosts = *context.hosts;
  if (context.request.kind == OpKind::kAllReduce) {
    return step_tables::allReduceTable(context.pattern, hosts.count(), hosts.self);
  }
  Table table = step_tables::reduceScatterTable(context.pattern, hosts.count(), hosts.self);
  const int root = hostOf(hosts, context.request.root);
  for (auto& step : step_tables::gatherTable(hosts.count(), hosts.self, root)) {
    table.push_back(std::move(step));
  }
  return table;
}

// What is cut into segments at a time, in elements.
std::uint64_t elementsPerRound(const Parts& parts, const Request& request) {
  return kRoundBytes / std::max<std::uint64_t>(parts.element(), elementSize(request.dtype));
}

// The only rank of its host: straight from the input, unless parts are wide, and into the output.
Task reduceAlone(Context& context, Held& held) {
  const Request& request = context.request;
  const Parts parts(context);
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perRound = elementsPerRound(parts, request);
  const Table table = reductionTable(context);
  const Lane lane(*context.hosts, 1);
  const auto makeCrossing = [&](std::uint64_t round, Reached turn) {
    const Range block = pieceOf(request.count, perRound, round);
    const std::byte* source = request.input + block.begin * element;
    const std::uint64_t number = round % kMostAlone;
    if (parts.areWide()) {
      std::byte* part = held.numbered(number, kRoundBytes);
      parts.reduce(part, {source}, block.size);
      source = part;
    }
    std::byte* target = hasOutput(context) ? request.output + block.begin * element
                                           : held.numbered(kMostAlone + number, kRoundBytes);
    return cross(context, lane, table,
                 {source, target, block.size, lane.numHosts(), round * table.size()}, turn);
  };
  Task body =
      crossInRounds(held.crossings, step_tables::numPieces(request.count, perRound), makeCrossing);
  Nested nested(body);
  co_await nested;
}

// Several ranks on this host: reduced by shares, one for each lane.
Task reduceByLanes(Context& context, Held& held) {
  const Request& request = context.request;
  const transport::PeerMemory& memory = *context.memory;
  const std::uint64_t element = elementSize(request.dtype);
  const Parts parts(context);
  const std::uint64_t perRound = elementsPerRound(parts, request);
  const std::uint64_t unit = std::max<std::uint64_t>(1, kCacheLine / element);
  const int lanes = context.hosts->fewestRanks();
  const Lane lane(*context.hosts, lanes);
  const Table table = reductionTable(context);
  std::uint64_t numReduced = 0;
  Crossings& crossings = held.crossings;

  Stages stages;
  stages.blockBytes = kRoundBytes;
  stages.copyAhead = kBlocks;
  stages.rounds = step_tables::numPieces(request.count, perRound);
  stages.reduces = lane.isIn();
  stages.consumes = hasOutput(context);
  stages.consumesResults = true;
  if (lane.isIn()) stages.crossings = &crossings;

  const auto blockOf = [&request, perRound](std::uint64_t round) {
    return pieceOf(request.count, perRound, round);
  };
  const auto shareAt = [blockOf, lanes, unit](std::uint64_t round, int position) {
    return position < lanes ? shareOf(blockOf(round).size, lanes, position, unit) : Range{};
  };
  const int self = memory.index();
  // Of a round, this rank's share: where its host's part lies. Where the result will, if it fits.
  const auto partAt = [&, shareAt, element, self](Pipeline& pipeline, std::uint64_t round) {
    return parts.areWide() ? held.numbered(round % kBlocks, kRoundBytes)
                           : pipeline.block(self, round) + shareAt(round, self).begin * element;
  };
  arrive(context);
  Task body = runPipeline(
      context, stages,
      [&](Pipeline& pipeline) {
        return [&, blockOf, shareAt, element, self](std::uint64_t round) {
          const Range block = blockOf(round);
          const Range mine = shareAt(round, self);
          const std::byte* source = request.input + block.begin * element;
          std::byte* target = pipeline.block(self, round);
          const std::uint64_t after = mine.begin + mine.size;
          if (mine.begin != 0) kernels::copy(target, source, mine.begin * element);
          if (block.size != after) {
            kernels::copy(target + after * element, source + after * element,
                          (block.size - after) * element);
          }
          if (!lane.isIn()) return;
          // The part is there when it is reduced.
          crossings.start(cross(context, lane, table,
                                {partAt(pipeline, round), target + mine.begin * element, mine.size,
                                 lane.numHosts(), round * table.size()},
                                Reached(numReduced, round + 1)));
        };
      },
      [&](Pipeline& pipeline) {
        return [&, blockOf, shareAt, element, self](std::uint64_t round) {
          const Range mine = shareAt(round, self);
          std::vector<const void*> sources;
          for (int peer = 0; peer < memory.size(); ++peer) {
            sources.push_back(peer == self
                                  ? request.input + (blockOf(round).begin + mine.begin) * element
                                  : pipeline.block(peer, round) + mine.begin * element);
          }
          parts.reduce(partAt(pipeline, round), sources, mine.size);
          numReduced = round + 1;
        };
      },
      [&](Pipeline& pipeline) {
        return [&, blockOf, shareAt, element, self, lanes](std::uint64_t round) {
          for (int step = 1; step <= memory.size(); ++step) {
            const int peer = (self + step) % memory.size();
            const Range share = shareAt(round, peer);
            if (share.size == 0) continue;
            kernels::copy(request.output + (blockOf(round).begin + share.begin) * element,
                          pipeline.block(peer, round) + share.begin * element,
                          share.size * element);
          }
        };
      });
  Nested nested(body);
  co_await nested;
}

// Every rank combines what its host has and takes part between hosts: nothing to hand on then.
Task reduceAtOnce(Context& context, Held& held) {
  const Request& request = context.request;
  const Parts parts(context);
  const std::uint64_t bytes = request.count * elementSize(request.dtype);
  std::vector<const void*> operands{request.input};
  if (context.memory != nullptr) {
    arrive(context, Bytes(request.input, bytes));
    AllArrived allArrived(context);
    co_await allArrived;
    operands.clear();
    for (int peer = 0; peer < context.memory->size(); ++peer) {
      operands.push_back(payloadOf(context, peer, bytes));
    }
  }
  const std::byte* source = request.input;
  if (context.memory != nullptr || parts.areWide()) {
    std::byte* part = held.take(request.count * parts.element());
    parts.reduce(part, operands, request.count);
    source = part;
  }
  std::byte* target = hasOutput(context) ? request.output : held.take(bytes);
  const Lane lane(*context.hosts, context.hosts->mostRanks());
  const Table table = step_tables::allReduceTable(context.pattern, lane.numHosts(), lane.self());
  held.crossings.start(cross(context, lane, table,
                             {source, target, request.count, lane.numHosts(), 0},
                             Reached(held.crossings.numDone(), 0)));
  FewCrossings none(held.crossings, 0);
  co_await none;
}

Task reduction(Context& context, Held& held) {
  const bool isAtOnce = context.pattern == step_tables::Pattern::kExchange ||
                        context.pattern == step_tables::Pattern::kDoubling;
  return isAtOnce                    ? reduceAtOnce(context, held)
         : context.memory == nullptr ? reduceAlone(context, held)
                                     : reduceByLanes(context, held);
}

}  // namespace

Task reduceOverHosts(Context& context) { return holding(context, reduction); }

}  // namespace smd::algorithms
