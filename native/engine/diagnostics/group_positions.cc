// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What this rank shows of itself, what it reads of its own host and what it asks of others.
#include "engine/diagnostics/group_positions.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "engine/group/registry.h"

namespace smd::engine {
namespace {

constexpr std::size_t kMostAsked = 64;

// As the kernel says: T by a signal, t by a debugger.
bool isStopped(std::int64_t pid) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char text[512];
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[size] = '\0';
  const char* end = std::strrchr(text, ')');  // the name may hold anything
  return end != nullptr && end + 2 < text + size && (end[2] == 'T' || end[2] == 't');
}

}  // namespace

void GroupPositions::join(const Membership& membership, const transport::PeerMemory* memory,
                          transport::Mailbox* mailbox, const Liveness* liveness) {
  membership_ = &membership;
  memory_ = memory;
  mailbox_ = mailbox;
  liveness_ = liveness;
}

std::string GroupPositions::describePeer(int peer) const {
  const hosts::Identity& identity = membership_->identities[static_cast<std::size_t>(peer)];
  const bool isNumbered = membership_->jobRanks.empty();
  return membership_->nameOf(peer) +
         (isNumbered ? " (" : " (" + std::to_string(peer) + " of this group, ") + "host " +
         identity.host + ", pid " + std::to_string(identity.pid) + ")";
}

void GroupPositions::noteBegin(Work& work) {
  const std::int64_t queuedNs = toNs(work.started);
  if (work.signature().sequence == 0) {  // messages may begin on several threads at once
    const std::lock_guard lock(messagesMutex_);
    work.flight = board().messages.begin(work.signature(), queuedNs, queuedNs);
    return;
  }
  const algorithms::Request& request = work.context.request;
  if (request.label != 0) {
    const FlightPurpose purpose(work.signature().sequence, request.purpose);
    board().purpose.publish(
        std::bit_cast<PublishedWords<sizeof(FlightPurpose) / 8>::Words>(purpose));
  }
  const std::int64_t startedNs = work.wasQueued ? toNs(Clock::now()) : queuedNs;
  work.flight = board().collectives.begin(work.signature(), queuedNs, startedNs);
}

void GroupPositions::noteEnd(Work& work, bool isDone) {
  if (work.flight != 0) {
    const FlightState state = isDone ? FlightState::kDone : FlightState::kFailed;
    // What nobody had to wait for took less than people read from a report.
    const std::int64_t finishedNs = work.stall.isBegun() ? toNs(Clock::now()) : 0;
    if (work.signature().sequence == 0) {
      const std::lock_guard lock(messagesMutex_);
      board().messages.finish(work.flight, state, finishedNs);
    } else {
      board().collectives.finish(work.flight, state, finishedNs);
    }
  }
  if (work.noteElsewhere != 0) endElsewhere(work.noteElsewhere);
}

void GroupPositions::showElsewhere(const FlightNote& where) {
  if (isForkedChild(generation_)) return;
  board().elsewhere.publish(std::bit_cast<PublishedWords<sizeof(FlightNote) / 8>::Words>(where));
}

const transport::RankCells& GroupPositions::cellsOf(int peer) const {
  const auto& locals = membership_->localRanks;
  return memory_->cells(static_cast<int>(std::ranges::lower_bound(locals, peer) - locals.begin()));
}

const FlightBoard* GroupPositions::boardOf(int peer) const {
  if (peer == rank_) return memory_ ? &memory_->mine().flight : &ownBoard_;
  if (!memory_ || !std::ranges::binary_search(membership_->localRanks, peer)) return nullptr;
  return &cellsOf(peer).flight;
}

void GroupPositions::ask(const std::vector<int>& peers, std::uint64_t sequence) {
  transport::FrameHeader question;
  question.channel = transport::Channel::kControl;
  question.tag = kAskPosition;
  question.signature.sequence = sequence;
  std::size_t asked = 0;
  for (int peer : peers) {
    if (peer < 0 || boardOf(peer) != nullptr || liveness_->isLost(peer)) continue;
    if (++asked > kMostAsked) return;
    positions_.noteAsked(peer, Clock::now());
    mailbox_->send(peer, question, nullptr, nullptr);
  }
}

std::vector<RankView> GroupPositions::viewsOf(const std::vector<int>& ranks) const {
  std::vector<RankView> views;
  for (int rank : ranks) {
    if (rank < 0) continue;
    RankView view{rank, describePeer(rank), std::nullopt, false, 0};
    if (const FlightBoard* board = boardOf(rank)) {
      view.position = positionOn(*board, toNs(Clock::now()));
      view.isStopped =
          rank != rank_ && isStopped(membership_->identities[static_cast<std::size_t>(rank)].pid);
    } else {
      const auto answer = positions_.of(rank);
      if (!answer) continue;
      view.position = answer->position;
      const TimePoint now = Clock::now();
      if (answer->isOld(now)) view.oldNs = toNs(now) - toNs(answer->received);
    }
    views.push_back(std::move(view));
  }
  return views;
}

// A table of what is known, those of interest first.
std::string GroupPositions::whereRanksAre(const std::vector<int>& first) const {
  std::vector<int> order = first;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(first.begin(), first.end(), rank) == first.end()) order.push_back(rank);
  }
  const std::vector<RankView> views = viewsOf(order);
  // Of a group that carries nothing but messages (messages.h) it would say nothing.
  const bool isOfMessages = std::all_of(views.begin(), views.end(), [](const RankView& view) {
    return view.position && view.position->collectives.empty() && view.position->messages.empty() &&
           !view.position->elsewhere && view.oldNs == 0 && !view.isStopped;
  });
  const std::string table = isOfMessages ? "" : positionTable(views);
  return table.empty() ? "" : "\nWhere the ranks of this group are:" + table;
}

std::string GroupPositions::lastSeen(int peer) const {
  const std::vector<RankView> views = viewsOf({peer});
  if (views.empty() || !views.front().position) return "";
  const std::vector<FlightEntry>& entries = views.front().position->collectives;
  if (entries.empty()) return ", not seen in any collective yet";
  return ", last seen in " + describe(entries.back().signature);
}

void GroupPositions::noteMissing(const Work& work, const std::vector<int>& missing) {
  if (work.signature().sequence != 0) {
    board().collectives.noteMissing(work.flight, missing);
  } else {
    const std::lock_guard lock(messagesMutex_);
    board().messages.noteMissing(work.flight, missing);
  }
}

// It answers also while this rank computes, or reads its next batch.
void GroupPositions::answer(int peer, std::uint64_t sequence) {
  const auto answer = encodePosition(positionOn(board(), toNs(Clock::now())), sequence);
  transport::FrameHeader reply;
  reply.channel = transport::Channel::kControl;
  reply.tag = kTellPosition;
  reply.length = answer.size();
  mailbox_->send(peer, reply, answer.data(), nullptr);
}

void GroupPositions::noteAnswer(int peer, std::string_view payload) {
  if (auto position = decodePosition(std::as_bytes(std::span(payload)))) {
    positions_.noteAnswer(peer, std::move(*position), Clock::now());
  }
}

std::optional<Position> GroupPositions::knownOf(int rank) const {
  if (const FlightBoard* board = boardOf(rank)) return positionOn(*board, 0);
  if (const auto answer = positions_.of(rank)) return answer->position;
  return std::nullopt;
}

}  // namespace smd::engine
