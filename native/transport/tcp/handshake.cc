// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.h"

namespace smd::transport::tcp {
namespace {

auth::Bytes bytesOf(const std::optional<ChannelBinding>& binding) {
  return binding.has_value() ? auth::Bytes(*binding) : auth::Bytes();
}

}  // namespace

std::span<std::byte> AcceptorHandshake::missing() {
  return (from_.peer < 0 ? std::span<std::byte>(hello_) : std::span<std::byte>(proof_))
      .subspan(filled_);
}

AcceptorHandshake::Step AcceptorHandshake::advance(std::size_t bytes) {
  filled_ += bytes;
  if (!missing().empty()) {
    return Step::kMore;
  }
  if (from_.peer < 0) {
    const HelloResult hello = checkHello(hello_, *self_);
    if (hello.verdict != HelloVerdict::kAccepted) {
      reason_ = describe(hello.verdict);
      return Step::kRefused;
    }
    from_ = hello.from;
    filled_ = 0;
    challenge_ = makeNonce();
    proofs_ = proofsOf(self_->key, hello_, challenge_, bytesOf(binding_));
    return Step::kSendChallenge;
  }
  if (!auth::isEqual(proof_, proofs_.proof)) {
    reason_ = self_->key.level == auth::Level::kToken ? "it does not know the job's token"
                                                      : "it does not know the group's key";
    return Step::kRefused;
  }
  return Step::kProved;
}

OpenerHandshake::OpenerHandshake(const Identity& self, Stream target,
                                 const std::optional<ChannelBinding>& binding)
    : hello_(makeHello(self, target, makeNonce())), binding_(binding) {}

const auth::Digest& OpenerHandshake::answerChallenge(const Identity& self, const Nonce& challenge) {
  proofs_ = proofsOf(self.key, hello_, challenge, bytesOf(binding_));
  return proofs_.proof;
}

}  // namespace smd::transport::tcp
