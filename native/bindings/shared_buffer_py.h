// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "transport/shm/arena.h"

namespace smd::bindings {

namespace nb = nanobind;

// The Python object of a buffer in memory that all ranks of a host share.
class PySharedBuffer {
 public:
  explicit PySharedBuffer(std::shared_ptr<transport::shm::SharedBuffer> buffer)
      : buffer_(std::move(buffer)) {}

  const transport::shm::SharedBuffer& buffer() const { return *buffer_; }
  nb::object toDlpack() const;

 private:
  std::shared_ptr<transport::shm::SharedBuffer> buffer_;
};

void registerSharedBuffer(nb::module_& module);

}  // namespace smd::bindings
