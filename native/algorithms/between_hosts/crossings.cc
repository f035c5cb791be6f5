// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/between_hosts/crossings.h"

#include <algorithm>
#include <utility>

#include "algorithms/between_hosts/parts.h"
#include "algorithms/message_set.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

using step_tables::Move;
using step_tables::Range;
using step_tables::Step;

// One buffer and where its segments are.
class Segments {
 public:
  Segments(const Context& context, const Crossing& crossing)
      : crossing_(crossing),
        element_(elementSize(context.request.dtype)),
        partElement_(Parts(context).element()),
        unit_(std::max<std::uint64_t>(1, kCacheLine / element_)),
        isInTarget_(static_cast<std::size_t>(crossing.segments),
                    crossing.source == crossing.target) {}

  // In elements.
  Range rangeOf(const Move& move) const {
    const std::uint64_t begin = segment(move.first).begin;
    const Range last = segment(move.first + move.count - 1);
    return {begin, last.begin + last.size - begin};
  }
  // Of what is moved in a step.
  std::uint64_t bytes(const Move& move, const Step& step) const {
    return rangeOf(move).size * (step.isReducing ? partElement_ : element_);
  }
  // All segments of a move are in one place: what is sent together was combined together.
  const std::byte* current(const Move& move) const {
    const bool isInTarget = isInTarget_[static_cast<std::size_t>(move.first)];
    return isInTarget ? target(move) : crossing_.source + rangeOf(move).begin * partElement_;
  }
  std::byte* target(const Move& move) const {
    return crossing_.target + rangeOf(move).begin * element_;
  }
  void setInTarget(const Move& move) {
    const auto first = isInTarget_.begin() + move.first;
    std::fill(first, first + move.count, true);
  }

 private:
  static constexpr std::uint64_t kCacheLine = 64;

  Range segment(int index) const {
    return step_tables::shareOf(crossing_.count, crossing_.segments, index, unit_);
  }

  Crossing crossing_;
  std::uint64_t element_;
  std::uint64_t partElement_;
  std::uint64_t unit_;
  std::vector<bool> isInTarget_;
};

// What is received to be combined; the receives of a step are all of the same segments.
std::uint64_t scratchBytes(const Segments& segments, const step_tables::Table& table) {
  std::uint64_t bytes = 0;
  for (const Step& step : table) {
    if (!step.isReducing || step.receives.empty()) continue;
    bytes += step.receives.size() * segments.bytes(step.receives.front(), step);
  }
  return bytes;
}

// Combines what a step has received with this host's part, in the order of the hosts.
void combine(const Context& context, Segments& segments, const Step& step, int self,
             const std::byte* received, bool isLast) {
  const Move& move = step.receives.front();
  const std::uint64_t bytes = segments.bytes(move, step);
  const std::uint64_t count = segments.rangeOf(move).size;
  if (count == 0) return;
  std::vector<std::pair<int, const void*>> operands{{self, segments.current(move)}};
  for (std::size_t i = 0; i < step.receives.size(); ++i) {
    operands.emplace_back(step.receives[i].peer, received + i * bytes);
  }
  std::ranges::sort(operands, {}, [](const auto& operand) { return operand.first; });
  std::vector<const void*> sources;
  for (const auto& operand : operands) sources.push_back(operand.second);
  Parts(context).combine(segments.target(move), sources, count, isLast);
}

}  // namespace

Lane::Lane(const hosts::Hosts& hosts, int width, int position, int first)
    : hosts_(&hosts), width_(width), place_(position) {
  if (first < 0) return;
  for (int host = 0; host < hosts.count(); ++host) {
    const std::vector<int>& ranks = hosts.ranksOf(host);
    const auto found = std::ranges::lower_bound(ranks, first);
    if (found == ranks.end() || *found != first) continue;
    turnedHost_ = host;
    turnedBy_ = static_cast<int>(found - ranks.begin());
  }
  const int size = hosts.sizeOf(hosts.self);
  if (turnedHost_ == hosts.self) place_ = (position - turnedBy_ + size) % size;
}

int Lane::rankAt(int host, int place) const {
  const int position = host == turnedHost_ ? (turnedBy_ + place) % hosts_->sizeOf(host) : place;
  return hosts_->ranksOf(host)[static_cast<std::size_t>(position)];
}

std::vector<int> Lane::toldAt(int host) const {
  std::vector<int> told;
  for (int place = place_; place < widthAt(host); place += widthAt(hosts_->self)) {
    told.push_back(rankAt(host, place));
  }
  return told;
}

namespace {

// What messages of one crossing may be using.
struct UnderWay {
  Scratch::Buffer received;
  std::deque<MessageSet> messageSets;
};

Task carryOut(const Context& context, const Lane& lane, const step_tables::Table& table,
              const Crossing& crossing, Reached turn, UnderWay& underWay) {
  Segments segments(context, crossing);
  const std::uint64_t needed = scratchBytes(segments, table);
  Scratch::Buffer& received = underWay.received;
  if (needed != 0) received = context.scratch->take(needed);
  std::vector<const std::byte*> receivedIn;  // by step
  std::size_t lastReducing = table.size();
  std::deque<MessageSet>& messageSets = underWay.messageSets;
  // A segment's result cannot come before this host's part of it has arrived where it is combined:
  // so its place may be given away from the start, though the part still lies there.
  std::byte* free = received.data.get();
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Step& step = table[i];
    MessageSet& messages =
        messageSets.emplace_back(context, crossing.firstTag + i, MessageSet::Polling::kByOwner);
    receivedIn.push_back(free);
    for (const Move& move : step.receives) {
      const std::uint64_t bytes = segments.bytes(move, step);
      messages.receive(lane.heardFrom(move.peer), step.isReducing ? free : segments.target(move),
                       bytes);
      if (step.isReducing) free += bytes;
    }
    if (step.isReducing) lastReducing = i;
  }
  co_await turn;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Step& step = table[i];
    MessageSet& messages = messageSets[i];
    for (const Move& move : step.sends) {
      for (const int peer : lane.toldAt(move.peer)) {
        messages.send(peer, segments.current(move), segments.bytes(move, step));
      }
    }
    co_await messages;
    if (step.isReducing && !step.receives.empty()) {
      combine(context, segments, step, lane.self(), receivedIn[i], i == lastReducing);
    }
    for (const Move& move : step.receives) segments.setInTarget(move);
  }
}

}  // namespace

Task cross(const Context& context, Lane lane, const step_tables::Table& table, Crossing crossing,
           Reached turn) {
  // An error (no memory, say) ends the frame that it leaves, and messages may still be on their way
  // then. What they use is in this frame, which only waits and so stays (common/task.h).
  UnderWay underWay;
  Task body = carryOut(context, lane, table, crossing, turn, underWay);
  Nested nested(body);
  co_await nested;
  underWay.messageSets.clear();
  if (underWay.received.bytes != 0) context.scratch->giveBack(std::move(underWay.received));
}

namespace {

Task passWith(MessageSet& messages, const Parcels& parcels, Reached turn) {
  for (const Incoming& each : parcels.receives) messages.receive(each.peer, each.data, each.bytes);
  co_await turn;
  for (const Outgoing& each : parcels.sends) messages.send(each.peer, each.data, each.bytes);
  co_await messages;
}

}  // namespace

Task pass(const Context& context, Parcels parcels, std::uint64_t tag, Reached turn) {
  MessageSet messages(context, tag, MessageSet::Polling::kByOwner);  // as in cross()
  Task body = passWith(messages, parcels, turn);
  Nested nested(body);
  co_await nested;
}

}  // namespace smd::algorithms
