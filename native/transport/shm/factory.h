// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages between ranks of one host, through rings in their shared region.
#pragma once

#include <memory>
#include <vector>

#include "transport/shm/region.h"
#include "transport/transport.h"

namespace smd::transport::shm {

// `ranks[i]` is the rank in the communicator of position i in the region; `index` is this rank's
// position. The sink must outlive the transport.
std::unique_ptr<Transport> createTransport(std::shared_ptr<Region> region, int index,
                                           std::vector<int> ranks, FrameSink& sink);

}  // namespace smd::transport::shm
