// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/outbound.h"

#include <string>
#include <utility>

#include "common/log.h"

namespace smd::transport::tcp {
namespace {

// Shorter ones gain nothing from another connection.
constexpr std::uint64_t kLongFrame = std::uint64_t{64} << 10;

}  // namespace

void Outbound::configure(const Sender::Context& context, int peer, const std::vector<Rail>& rails) {
  for (std::size_t stream = 0; stream < rails.size(); ++stream) {
    senders_.emplace_back().configure(context, {peer, static_cast<int>(stream)}, rails[stream]);
  }
}

void Outbound::send(const FrameHeader& header, const void* payload, SendTicket* ticket) {
  Sender* best = &first();
  if (senders_.size() > 1 && header.channel == Channel::kCollective &&
      header.length >= kLongFrame) {
    std::optional<Sender::Load> least;
    for (Sender& sender : senders_) {
      sender.open();
      const std::optional<Sender::Load> load = sender.load();
      if (load.has_value() && (!least.has_value() || *load < *least)) {
        least = load;
        best = &sender;
      }
    }
  }
  best->send(header, payload, ticket);
}

Outbound::Progress Outbound::handleEvents(int stream, std::uint32_t events) {
  return judged(stream, senders_[static_cast<std::size_t>(stream)].handleEvents(events));
}

Outbound::Progress Outbound::retry(int stream) {
  return judged(stream, senders_[static_cast<std::size_t>(stream)].retry());
}

Outbound::Progress Outbound::look() {
  Progress all;
  for (std::size_t stream = 0; stream < senders_.size(); ++stream) {
    if (!senders_[stream].isInUse()) continue;
    Progress one = judged(static_cast<int>(stream), senders_[stream].look());
    if (one.end.has_value() && !all.end.has_value()) all.end = std::move(one.end);
  }
  return all;
}

void Outbound::disconnect() {
  for (Sender& sender : senders_) sender.disconnect();
}

bool Outbound::fail() {
  bool hadTickets = false;
  for (Sender& sender : senders_) hadTickets |= sender.fail();
  return hadTickets;
}

bool Outbound::finish() {
  bool isFinished = true;
  for (Sender& sender : senders_) isFinished &= sender.finish();
  return isFinished;
}

Outbound::Progress Outbound::judged(int stream, Progress progress) {
  Sender& sender = senders_[static_cast<std::size_t>(stream)];
  if (stream == 0 || !progress.end.has_value() || sender.hasBeenConnected()) return progress;
  logWarning("one of the connections to a rank is missing, so the job uses fewer interfaces: " +
             progress.end->text +
             ". Set SMDDP_INTERFACE to those through which all hosts reach "
             "one another.");
  sender.fail();
  progress.end.reset();
  return progress;
}

}  // namespace smd::transport::tcp
