// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/diagnostics/flight_record.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>

namespace smd::engine {
namespace {

constexpr std::size_t kEntriesOnWire = 6;
constexpr std::size_t kRowsInTable = 8;
constexpr std::size_t kShownBefore = 3;  // earlier operations in one line

std::mutex adviceMutex;
std::string unevenBatchesAdvice = "give all ranks equally many";

// As it crosses the network, between hosts of one byte order (checked at bootstrap).
struct WirePosition {
  std::int64_t nowNs = 0;
  std::uint64_t numCalled = 0;
  std::uint32_t numCollectives = 0;
  std::uint32_t numMessages = 0;
  std::uint32_t hasElsewhere = 0;
  std::uint32_t hasPurpose = 0;
  FlightEntry collectives[kEntriesOnWire];
  FlightEntry messages[kEntriesOnWire];
  FlightNote elsewhere;
  FlightPurpose purpose;
};
static_assert(std::is_trivially_copyable_v<WirePosition>);

std::string groupOf(const FlightNote& note) {
  return std::string(note.group, strnlen(note.group, sizeof note.group));
}

std::string countedRanks(std::int32_t first, std::uint32_t count) {
  std::string text = first < 0 ? "any rank" : "rank " + std::to_string(first);
  if (count > 1) text += " and " + std::to_string(count - 1) + " more";
  return text;
}

std::string operations(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " operation" : " operations");
}

// The ends of what there is, those under way first: they are what matters.
void copyLast(const std::vector<FlightEntry>& from, FlightEntry* to, std::uint32_t& count,
              std::uint64_t wanted) {
  std::vector<FlightEntry> chosen(
      from.end() - static_cast<std::ptrdiff_t>(std::min(from.size(), kEntriesOnWire)), from.end());
  const auto isChosen = [&chosen](const FlightEntry& entry) {
    return std::any_of(chosen.begin(), chosen.end(),
                       [&entry](const FlightEntry& other) { return other.number == entry.number; });
  };
  std::size_t replaced = 0;
  for (const FlightEntry& entry : from) {
    const bool matters = entry.state == FlightState::kUnderWay ||
                         (wanted != 0 && entry.signature.sequence == wanted);
    if (matters && !isChosen(entry) && replaced < chosen.size()) chosen[replaced++] = entry;
  }
  count = static_cast<std::uint32_t>(chosen.size());
  std::copy(chosen.begin(), chosen.end(), to);
}

std::vector<FlightEntry> takeEntries(const FlightEntry* from, std::uint32_t count) {
  std::vector<FlightEntry> entries(from, from + count);
  for (FlightEntry& entry : entries) {
    if (entry.state != FlightState::kDone && entry.state != FlightState::kFailed) {
      entry.state = FlightState::kUnderWay;
    }
  }
  return entries;
}

const FlightEntry* firstUnderWay(const std::vector<FlightEntry>& entries) {
  const auto found = std::find_if(entries.begin(), entries.end(), [](const FlightEntry& entry) {
    return entry.state == FlightState::kUnderWay;
  });
  return found == entries.end() ? nullptr : &*found;
}

std::string_view stateText(FlightState state) {
  switch (state) {
    case FlightState::kUnderWay:
      return "under way";
    case FlightState::kDone:
      return "done";
    case FlightState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string numbered(const char* format, std::int64_t ns) {
  char text[48];
  std::snprintf(text, sizeof text, format, static_cast<double>(ns) / 1e9);
  return text;
}

std::string rankNames(const std::vector<const RankView*>& views) {
  std::string text = views.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (i == 8) return text + " and " + std::to_string(views.size() - i) + " more";
    if (i > 0) text += ", ";
    text += std::to_string(views[i]->rank);
  }
  return text;
}

}  // namespace

std::string secondsText(std::int64_t ns) { return numbered("%.1f s", ns); }

std::optional<Signature> Position::signatureOf(std::uint64_t sequence) const {
  for (const FlightEntry& entry : collectives) {
    if (entry.signature.sequence == sequence) return entry.signature;
  }
  return std::nullopt;
}

std::string Position::purposeOf(std::uint64_t sequence) const {
  return purpose ? purpose->of(sequence) : "";
}

const FlightEntry* Position::underWay() const {
  const FlightEntry* collective = firstUnderWay(collectives);
  const FlightEntry* message = firstUnderWay(messages);
  if (collective == nullptr || message == nullptr) return collective ? collective : message;
  return message->queuedNs < collective->queuedNs ? message : collective;
}

Position positionOn(const FlightBoard& board, std::int64_t nowNs) {
  Position position;
  position.nowNs = nowNs;
  position.numCalled = board.numCalled.load(std::memory_order_acquire);
  position.collectives = board.collectives.read();
  position.messages = board.messages.read();
  if (const auto words = board.elsewhere.read()) {
    const auto note = std::bit_cast<FlightNote>(*words);
    if (note.sinceNs != 0) position.elsewhere = note;
  }
  position.purpose = purposeOn(board);
  return position;
}

std::vector<std::byte> encodePosition(const Position& position, std::uint64_t sequence) {
  WirePosition wire;
  wire.nowNs = position.nowNs;
  wire.numCalled = position.numCalled;
  copyLast(position.collectives, wire.collectives, wire.numCollectives, sequence);
  copyLast(position.messages, wire.messages, wire.numMessages, 0);
  wire.hasElsewhere = position.elsewhere.has_value() ? 1 : 0;
  if (position.elsewhere) wire.elsewhere = *position.elsewhere;
  wire.hasPurpose = position.purpose.has_value() ? 1 : 0;
  if (position.purpose) wire.purpose = *position.purpose;
  const auto bytes = std::as_bytes(std::span(&wire, 1));
  return {bytes.begin(), bytes.end()};
}

std::optional<Position> decodePosition(std::span<const std::byte> bytes) {
  WirePosition wire;
  if (bytes.size() != sizeof wire) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.numCollectives > kEntriesOnWire || wire.numMessages > kEntriesOnWire) {
    return std::nullopt;
  }
  Position position;
  position.nowNs = wire.nowNs;
  position.numCalled = wire.numCalled;
  position.collectives = takeEntries(wire.collectives, wire.numCollectives);
  position.messages = takeEntries(wire.messages, wire.numMessages);
  if (wire.hasElsewhere != 0) position.elsewhere = wire.elsewhere;
  if (wire.hasPurpose != 0) position.purpose = wire.purpose;
  return position;
}

std::string describePosition(const RankView& view) {
  const std::string silent =
      "does not answer: its process is stopped, its host is down, or the network between is cut";
  if (!view.position) return silent;
  const Position& position = *view.position;
  std::string text;
  if (view.oldNs != 0) text += silent + "; " + secondsText(view.oldNs) + " ago it said: ";
  if (view.isStopped) text += "its process is STOPPED (SIGSTOP, or a debugger); ";
  const FlightEntry* current = position.underWay();
  const FlightEntry* last = position.collectives.empty() ? nullptr : &position.collectives.back();
  if (current != nullptr) {
    text += "in " + describe(current->signature) + " for " +
            secondsText(position.nowNs - current->startedNs);
    if (current->numMissing > 0) {
      text += ", waits for " + countedRanks(current->waitsFor, current->numMissing);
    }
  } else if (last == nullptr) {
    text += "has not been in any collective of this group yet";
  } else {
    text += "in no operation of this group since " + describe(last->signature) +
            (last->state == FlightState::kFailed ? " failed " : " ended ") +
            secondsText(position.nowNs - last->finishedNs) + " ago";
  }
  if (current == nullptr && !position.messages.empty()) {
    text += "; its last message was " + describe(position.messages.back().signature);
  }
  const std::uint64_t reached = last == nullptr ? 0 : last->signature.sequence;
  if (position.numCalled > reached) {
    text += "; has called " + operations(position.numCalled - reached) + " more, to #" +
            std::to_string(position.numCalled);
  }
  if (position.elsewhere) {
    text += "; waits in " + describe(position.elsewhere->signature) + " of group '" +
            groupOf(*position.elsewhere) + "' for " +
            secondsText(position.nowNs - position.elsewhere->sinceNs);
  }
  std::string before;
  std::size_t shown = 0;
  for (auto entry = position.collectives.rbegin();
       entry != position.collectives.rend() && shown < kShownBefore; ++entry) {
    if (&*entry == current || (current == nullptr && &*entry == last)) continue;
    before += (shown++ == 0 ? ". Before: " : ", ") + describe(entry->signature);
  }
  return text + before;
}

std::string positionTable(const std::vector<RankView>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == kRowsInTable) {
      return text + "\n  ... and " + std::to_string(ranks.size() - i) + " more ranks";
    }
    text += "\n  " + ranks[i].name + ": " + describePosition(ranks[i]);
  }
  return text;
}

void setUnevenBatchesAdvice(const std::string& advice) {
  const std::lock_guard lock(adviceMutex);
  unevenBatchesAdvice = advice;
}

std::string likelyCause(const Signature& waiting, const std::vector<RankView>& missing) {
  // The surest first: one stopped rank explains why others are late as well.
  std::vector<const RankView*> stopped, silent, elsewhere, behind;
  for (const RankView& view : missing) {
    if (view.isStopped) {
      stopped.push_back(&view);
    } else if (!view.position || view.oldNs != 0) {
      silent.push_back(&view);
    } else if (view.position->elsewhere || view.position->underWay() != nullptr) {
      elsewhere.push_back(&view);
    } else {
      behind.push_back(&view);
    }
  }
  if (!stopped.empty()) {
    return "the process of " + rankNames(stopped) +
           " is stopped. Continue it (kill -CONT), or end the job.";
  }
  if (!silent.empty()) {
    return rankNames(silent) + (silent.size() == 1 ? " does" : " do") +
           " not answer: a dead host, a stopped process or a broken network. Look whether the host "
           "can be reached and the process lives.";
  }
  if (!elsewhere.empty()) {
    const bool isSame = std::all_of(elsewhere.begin(), elsewhere.end(), [&](const RankView* view) {
      const FlightEntry* entry = view->position->underWay();
      return !view->position->elsewhere && entry != nullptr &&
             entry->signature.sequence == waiting.sequence && waiting.sequence != 0;
    });
    if (isSame) {
      return rankNames(elsewhere) +
             (elsewhere.size() == 1 ? " is in the same operation and waits itself"
                                    : " are in the same operation and wait themselves") +
             ": look at whom the others wait for, and at the speed of the network.";
    }
    return rankNames(elsewhere) + (elsewhere.size() == 1 ? " waits" : " wait") +
           " in another operation: the ranks make different calls, or the same ones in another "
           "order. Look for a branch that depends on the rank, and for groups that are used in "
           "different orders.";
  }
  const std::lock_guard lock(adviceMutex);
  return rankNames(behind) + (behind.size() == 1 ? " is" : " are") +
         " inside no operation: either slow between two calls (data loading, a checkpoint, "
         "validation on one rank only), or through with " +
         (behind.size() == 1 ? "its" : "their") +
         " batches, if the ranks have uneven numbers of them. See what the process does (py-spy "
         "dump "
         "--pid); for uneven batches " +
         unevenBatchesAdvice + ".";
}

std::string recordText(const GroupRecord& record) {
  const Position& position = record.position;
  std::string text = "group '" + record.group + "', rank " + std::to_string(record.rank) + " of " +
                     std::to_string(record.size) + ", " + record.state + ", " +
                     operations(position.numCalled) + " called\n";
  const auto append = [&](const std::vector<FlightEntry>& entries) {
    for (const FlightEntry& entry : entries) {
      text += "  " + numbered("%9.2f s ago  ", position.nowNs - entry.queuedNs);
      std::string line = describe(entry.signature);
      line.resize(std::max<std::size_t>(line.size(), 44), ' ');
      text += line + "  " + std::string(stateText(entry.state));
      if (entry.finishedNs != 0)
        text += numbered(" after %.2f s", entry.finishedNs - entry.queuedNs);
      if (entry.state == FlightState::kUnderWay && entry.numMissing > 0) {
        text += ", waits for " + countedRanks(entry.waitsFor, entry.numMissing);
      }
      text += '\n';
    }
  };
  append(position.collectives);
  for (const Signature& signature : record.queued) {
    text += "                  " + describe(signature) + "  queued\n";
  }
  if (!position.messages.empty()) {
    text += " messages\n";
    append(position.messages);
  }
  return text;
}

}  // namespace smd::engine
