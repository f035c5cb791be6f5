// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which group an operation's attribute `group` means. Python sets it (kernels.py).
#pragma once

#include <cstdint>
#include <memory>

#include "plugin_api/group.h"
#include "tensorflow_ops/memory_pool.h"

namespace smd::tensorflow_ops {

struct OpenGroup {
  std::shared_ptr<plugin_api::Group> group;
  std::shared_ptr<MemoryPool> memory;
};

void setGroup(std::int64_t id, std::shared_ptr<plugin_api::Group> group);
// Operations that run from now on fail; those under way end as the engine says.
void clearGroup(std::int64_t id);
// Null: there is none.
std::shared_ptr<const OpenGroup> findGroup(std::int64_t id);

}  // namespace smd::tensorflow_ops
