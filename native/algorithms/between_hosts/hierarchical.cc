// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/between_hosts/hierarchical.h"

#include "algorithms/message_set.h"
#include "step_tables/dissemination.h"

namespace smd::algorithms {
namespace {

// Nobody leaves before it knows, from one rank of each host that it hears of, that all there have
// come.
Task barrier(Context& context) {
  if (context.memory != nullptr) {
    arrive(context);
    AllArrived allArrived(context);
    co_await allArrived;
  }
  const Lane lane(*context.hosts, context.hosts->mostRanks());
  const int hosts = lane.numHosts();
  std::uint64_t step = 0;
  for (const int distance : step_tables::disseminationDistances(hosts)) {
    MessageSet messages(context, step++);
    messages.receive(lane.heardFrom((lane.self() - distance + hosts) % hosts), nullptr, 0);
    for (const int peer : lane.toldAt((lane.self() + distance) % hosts)) {
      messages.send(peer, nullptr, 0);
    }
    co_await messages;
  }
}

}  // namespace

int hostOf(const hosts::Hosts& hosts, int rank) {
  for (int host = 0; host < hosts.count(); ++host) {
    if (std::ranges::binary_search(hosts.ranksOf(host), rank)) return host;
  }
  return -1;
}

Task holding(Context& context, Task (*body)(Context&, Held&)) {
  Held held(context);
  Task task = body(context, held);
  Nested nested(task);
  co_await nested;
  held.giveBack();
}

Task runHierarchical(Context& context) {
  switch (context.request.kind) {
    case OpKind::kBarrier:
      return barrier(context);
    case OpKind::kBroadcast:
      return broadcastOverHosts(context);
    case OpKind::kAllGather:
      return allGatherOverHosts(context);
    case OpKind::kReduceScatter:
      return reduceScatterOverHosts(context);
    default:
      return reduceOverHosts(context);
  }
}

}  // namespace smd::algorithms
