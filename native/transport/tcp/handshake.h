// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The two sides of one handshake (protocol.h), as state machines fed with bytes: no sockets here,
// so that tests and fuzzers can feed them what no socket would bring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "transport/tcp/protocol.h"

namespace smd::transport::tcp {

// Whoever accepted a connection: it may be anybody's.
class AcceptorHandshake {
 public:
  // `self` must outlive this.
  explicit AcceptorHandshake(const Identity& self) : self_(&self) {}

  // The connection is inside TLS. Before the first advance().
  void bindTo(const ChannelBinding& binding) { binding_ = binding; }

  // Where the next bytes of the opener belong, and how many: never empty before the end.
  std::span<std::byte> missing();

  enum class Step : std::uint8_t {
    kMore,           // bytes are missing
    kSendChallenge,  // send challenge(); after that bytes are missing
    kRefused,        // see reason(); nothing may follow
    kProved,         // the opener is from(); proofs() has the welcome to send
  };
  // `bytes` more have been put into missing(). Throws as makeNonce() does.
  Step advance(std::size_t bytes);

  const Nonce& challenge() const { return challenge_; }
  std::string_view reason() const { return reason_; }  // "it ...", for people
  Stream from() const { return from_; }
  const Proofs& proofs() const { return proofs_; }

 private:
  const Identity* self_;
  HelloBytes hello_;
  auth::Digest proof_;
  std::size_t filled_ = 0;                 // of the hello, then of the proof
  Stream from_ = -1;                       // that the hello claims; -1: it is not complete
  std::optional<ChannelBinding> binding_;  // none in the clear
  Nonce challenge_;
  Proofs proofs_;
  std::string_view reason_;
};

// Whoever opened it. The answers come one after the other, kAnswerBytes each.
class OpenerHandshake {
 public:
  // `binding`: none in the clear.
  OpenerHandshake(const Identity& self, Stream target,
                  const std::optional<ChannelBinding>& binding = std::nullopt);

  const HelloBytes& hello() const { return hello_; }
  // The proof to send.
  const auth::Digest& answerChallenge(const Identity& self, const Nonce& challenge);
  // These are meaningful once the challenge has come.
  bool isWelcome(const auth::Digest& answer) const {
    return auth::isEqual(answer, proofs_.welcome);
  }
  bool isFarewell(const auth::Digest& answer) const {
    return auth::isEqual(answer, proofs_.farewell);
  }
  bool isFailure(const auth::Digest& answer) const {
    return auth::isEqual(answer, proofs_.failure);
  }

 private:
  HelloBytes hello_;
  std::optional<ChannelBinding> binding_;
  Proofs proofs_;
};

}  // namespace smd::transport::tcp
