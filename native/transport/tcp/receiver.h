// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The receiving end of a connection: brings the bytes of one peer to its parser, or straight to
// where they belong.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "transport/frame_parser.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/link_end.h"
#include "transport/tcp/protocol.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// Not thread-safe: used with the right to make progress (transport.cc). Calls the sink, so no
// lock may be held.
class Receiver {
 public:
  // `endpoint` is where the peer listens (for messages), `proofs` those of this connection; `sink`
  // must outlive this.
  Receiver(Connection connection, Stream from, std::string endpoint, const Proofs& proofs,
           FrameSink& sink);

  struct Result {
    std::size_t bytes = 0;       // that were read
    bool hasMore = false;        // that no poll reports: to be called again, when others had a turn
    std::optional<LinkEnd> end;  // the connection has ended, everything before was delivered
    std::optional<Refusal> refusal;  // what comes cannot be received: not to be called again
  };
  // Reads until nothing is left or about `budget` bytes have come. `scratch` takes what belongs
  // to no payload yet; it is empty again on return, so all connections may share one.
  Result receive(std::size_t budget, std::span<std::byte> scratch);

  // Nothing will be read any more: drops a frame that has not come whole.
  void cancel() { parser_.cancel(); }

  Connection& connection() { return connection_; }
  Stream from() const { return from_; }
  bool hasReceived() const { return hasReceived_; }  // anything at all
  // That its group's failure was told to the peer.
  bool isTold() const { return isTold_; }
  void noteTold() { isTold_ = true; }
  const Proofs& proofs() const { return proofs_; }

 private:
  Connection connection_;
  const Stream from_;
  const std::string endpoint_;
  const Proofs proofs_;
  FrameParser parser_;
  bool hasReceived_ = false;
  bool isTold_ = false;
};

}  // namespace smd::transport::tcp
