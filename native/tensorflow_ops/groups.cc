// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/groups.h"

#include <map>
#include <utility>

#include "common/fork.h"

namespace smd::tensorflow_ops {
namespace {

// Never destroyed: operations may run while static destructors do. Guarded by ForkGuard: a forked
// child finds it whole, and nobody in it.
std::map<std::int64_t, std::shared_ptr<const OpenGroup>>& groups() {
  static auto* instance = new std::map<std::int64_t, std::shared_ptr<const OpenGroup>>;
  return *instance;
}

}  // namespace

void setGroup(std::int64_t id, std::shared_ptr<plugin_api::Group> group) {
  auto memory = std::make_shared<MemoryPool>(group);
  auto open = std::make_shared<const OpenGroup>(OpenGroup{std::move(group), std::move(memory)});
  clearGroup(id);
  const ForkGuard lock;
  groups()[id].swap(open);
}

void clearGroup(std::int64_t id) {
  std::shared_ptr<const OpenGroup> closed;  // destroyed without the lock
  {
    const ForkGuard lock;
    const auto found = groups().find(id);
    if (found == groups().end()) return;
    closed = std::move(found->second);
    groups().erase(found);
  }
  closed->memory->close();
}

std::shared_ptr<const OpenGroup> findGroup(std::int64_t id) {
  const ForkGuard lock;
  const auto found = groups().find(id);
  return found == groups().end() ? nullptr : found->second;
}

}  // namespace smd::tensorflow_ops
