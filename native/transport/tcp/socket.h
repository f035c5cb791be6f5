// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The socket calls and options of this transport, in one place.
#pragma once

#include <optional>
#include <string>

#include "common/file_descriptor.h"
#include "common/network.h"

namespace smd::transport::tcp {

// A non-blocking listening socket at `address` (port 0: the system chooses). Throws
// Error(kInternal).
FileDescriptor listenAt(const SocketAddress& address);
SocketAddress localAddress(const FileDescriptor& socket);

// A non-blocking socket on its way to `address`. Empty, with errno, if that failed at once.
FileDescriptor connectTo(const SocketAddress& address,
                         const std::optional<SocketAddress>& source = std::nullopt);

// The next connection, non-blocking, and whom it is from. Empty, with errno, if there is none.
FileDescriptor acceptFrom(const FileDescriptor& listener, SocketAddress& from);

// The error that a socket has met since it was last asked; 0 for none.
int takeError(int socket);

// "Connection refused"
std::string errnoText(int error);

}  // namespace smd::transport::tcp
