// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace smd::transport::tcp {

bool Silence::isOver(int socket, Clock::time_point now) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // Probes are what asks a receiver whose window is full.
  const bool isOutstanding = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  const auto heard = now - std::chrono::milliseconds(info.tcpi_last_ack_recv);
  if (!isOutstanding || !wasOutstanding_ || heard >= lastLook_) begin_ = now;
  wasOutstanding_ = isOutstanding;
  lastLook_ = now;
  return isOutstanding && now - begin_ >= kSilenceLimit;
}

}  // namespace smd::transport::tcp
