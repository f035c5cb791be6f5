// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A communicator as other shared libraries see it (seam/group.h).
#pragma once

#include <memory>

#include "seam/group.h"

namespace smd::engine {

class Communicator;

// Keeps the communicator, open or closed.
std::shared_ptr<seam::Group> makeSeamGroup(std::shared_ptr<Communicator> communicator);

}  // namespace smd::engine
