// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A communicator as other shared libraries see it (plugin_api/group.h).
#pragma once

#include <memory>

#include "plugin_api/group.h"

namespace smd::engine {

class Communicator;

// Keeps the communicator, open or closed.
std::shared_ptr<plugin_api::Group> makePluginGroup(std::shared_ptr<Communicator> communicator);

}  // namespace smd::engine
