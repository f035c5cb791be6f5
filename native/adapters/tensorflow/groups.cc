// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "adapters/tensorflow/groups.h"

#include <map>
#include <mutex>
#include <utility>

namespace smd::tensorflow {
namespace {

// Never destroyed: operations may run while static destructors do.
struct Groups {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<const OpenGroup>> byId;
};
Groups& groups() {
  static auto* instance = new Groups;
  return *instance;
}

}  // namespace

void setGroup(std::int64_t id, std::shared_ptr<seam::Group> group) {
  auto open = std::make_shared<OpenGroup>();
  open->memory = std::make_shared<MemoryPool>(group);
  open->group = std::move(group);
  clearGroup(id);
  const std::lock_guard lock(groups().mutex);
  groups().byId[id] = std::move(open);
}

void clearGroup(std::int64_t id) {
  std::shared_ptr<const OpenGroup> closed;  // let go of without the lock
  {
    const std::lock_guard lock(groups().mutex);
    const auto found = groups().byId.find(id);
    if (found == groups().byId.end()) return;
    closed = std::move(found->second);
    groups().byId.erase(found);
  }
  closed->memory->close();
}

std::shared_ptr<const OpenGroup> findGroup(std::int64_t id) {
  const std::lock_guard lock(groups().mutex);
  const auto found = groups().byId.find(id);
  return found == groups().byId.end() ? nullptr : found->second;
}

}  // namespace smd::tensorflow
