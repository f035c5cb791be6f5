// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a group are: what this rank keeps for others to see, what it reads from ranks
// of its own host, and what it asks ranks of other hosts. Nothing in here waits for an answer.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/fork.h"
#include "engine/diagnostics/flight_record.h"
#include "engine/diagnostics/positions.h"
#include "engine/group/bootstrap.h"
#include "engine/group/liveness.h"
#include "engine/group/work.h"
#include "transport/mailbox.h"
#include "transport/peer_memory.h"

namespace smd::engine {

class GroupPositions {
 public:
  GroupPositions(int rank, int size) : rank_(rank), size_(size) {}
  GroupPositions(const GroupPositions&) = delete;
  GroupPositions& operator=(const GroupPositions&) = delete;

  // Says who the ranks are, before anything below is called. All arguments outlive this. `memory`
  // is null if no peer is on this host, the other pointers are null if there is no peer at all.
  void join(const Membership& membership, const transport::PeerMemory* memory,
            transport::Mailbox* mailbox, const Liveness* liveness);

  // For people: "rank 3 (host a, pid 77)".
  std::string describePeer(int peer) const;

  // What others see of this rank.
  FlightBoard& board() { return memory_ != nullptr ? memory_->mine().flight : ownBoard_; }
  void noteBegin(Work& work);
  void noteEnd(Work& work, bool isDone);
  void noteMissing(const Work& work, const std::vector<int>& missing);
  // Shows that this process waits in another group; one thread at a time.
  void showElsewhere(const FlightNote& where);

  // Questions to ranks on other hosts, and their answers: control frames with the tags of
  // positions.h. The thread that receives calls answer() and noteAnswer().
  void ask(const std::vector<int>& peers, std::uint64_t sequence);
  void answer(int peer, std::uint64_t sequence);
  void noteAnswer(int peer, std::string_view payload);

  const FlightBoard* boardOf(int peer) const;           // null: it is on another host
  const transport::RankCells& cellsOf(int peer) const;  // of this host
  // Where a rank is, as far as it is known, without times.
  std::optional<Position> knownOf(int rank) const;
  std::vector<RankView> viewsOf(const std::vector<int>& ranks) const;
  // A table of where all ranks are, as far as it is known, beginning with the ranks `first`.
  std::string whereRanksAre(const std::vector<int>& first) const;
  std::string lastSeen(int peer) const;

 private:
  const int rank_;
  const int size_;
  const std::uint64_t generation_ = forkGeneration();
  const Membership* membership_ = nullptr;
  const transport::PeerMemory* memory_ = nullptr;
  transport::Mailbox* mailbox_ = nullptr;
  const Liveness* liveness_ = nullptr;
  FlightBoard ownBoard_;      // used if there is no region
  std::mutex messagesMutex_;  // one thread at a time writes the messages of the board
  Positions positions_;       // of ranks on other hosts
};

}  // namespace smd::engine
