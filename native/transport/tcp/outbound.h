// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// All connections through which frames go to one peer. Everything goes over the first, except long
// frames of collectives, which may overtake one another: they go over whichever has least to do.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "transport/tcp/rails.h"
#include "transport/tcp/sender.h"

namespace smd::transport::tcp {

// Thread-safe once configured, as Sender is, whose functions these are; `stream` is the number of
// one of its connections.
class Outbound {
 public:
  using Progress = Sender::Progress;

  // Before any other call, and once. The context must outlive this.
  void configure(const Sender::Context& context, int peer, const std::vector<Rail>& rails);

  void open() { first().open(); }
  void send(const FrameHeader& header, const void* payload, SendTicket* ticket);
  // Without a ticket, if there is a connection or one is being made; else nothing.
  void sendIfOpen(const FrameHeader& header, const void* payload) {
    first().sendIfOpen(header, payload);
  }

  // With the right to make progress.
  Progress handleEvents(int stream, std::uint32_t events);
  Progress retry(int stream);
  Progress look();
  void disconnect();
  bool fail();

  bool isInUse() { return first().isInUse(); }
  bool finish();

 private:
  Sender& first() { return senders_.front(); }
  // What the first connection meets is the link's end. Another one that never came to be is only
  // missed: its interface may lead elsewhere, or a firewall be in its way.
  Progress judged(int stream, Progress progress);

  std::deque<Sender> senders_;  // by stream; they do not move
};

}  // namespace smd::transport::tcp
