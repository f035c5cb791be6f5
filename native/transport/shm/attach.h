// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Proving locality: two ranks share a host if one can pass a file descriptor to the other over a
// Unix socket. The socket has an abstract name, so nothing is left in the file system and ranks in
// different network namespaces (different test hosts, separate containers) cannot meet by accident.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/file_descriptor.h"
#include "transport/shm/region.h"

namespace smd::transport::shm {

using AttachSecret = std::array<std::byte, 16>;

// The leader's side: hands the region's descriptor to every peer that presents the secret and runs
// as the same user, from a thread of its own until destroyed.
class AttachServer {
 public:
  // Binds at once (the name can be published); serves after offer().
  AttachServer();
  ~AttachServer();
  const std::string& socketName() const { return name_; }
  void offer(std::shared_ptr<Region> region, const AttachSecret& secret);

 private:
  void serve();

  std::string name_;
  FileDescriptor listener_;
  FileDescriptor stopEvent_;
  std::shared_ptr<Region> region_;
  AttachSecret secret_{};
  std::thread thread_;
};

// The other side: a descriptor of the leader's region, or none if this process cannot reach it
// (then the two do not share a host, and TCP is used).
FileDescriptor requestRegion(const std::string& socketName, const AttachSecret& secret,
                             milliseconds timeout);

}  // namespace smd::transport::shm
