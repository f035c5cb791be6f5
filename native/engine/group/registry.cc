// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/registry.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "common/per_process.h"
#include "engine/group/communicator.h"

namespace smd::engine {
namespace {

using Notes = std::vector<std::pair<std::uint64_t, FlightNote>>;  // by number

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Communicator>> communicators;
  std::mutex notesMutex;  // what follows, and a group's note has one writer at a time
  std::uint64_t nextNote = 1;
  Notes notes;
};

Registry& registry() {
  static PerProcess<Registry> instance;
  return instance.get();
}

// Each group shows one: the first that is not about a group of its own name. Of its own group
// everyone sees it anyway, and ranks that are threads of one process are no "elsewhere" of each
// other.
void showNotes(const std::vector<std::shared_ptr<Communicator>>& communicators,
               const Notes& notes) {
  for (const auto& communicator : communicators) {
    const std::string_view own = communicator->name();
    const auto isElsewhere = [own](const auto& entry) {
      const FlightNote& note = entry.second;
      const std::string_view group(note.group, strnlen(note.group, sizeof note.group));
      return own.substr(0, sizeof note.group - 1) != group;
    };
    const auto first = std::ranges::find_if(notes, isElsewhere);
    communicator->showElsewhere(first == notes.end() ? FlightNote{} : first->second);
  }
}

}  // namespace

void addToRegistry(const std::shared_ptr<Communicator>& communicator) {
  const std::lock_guard lock(registry().mutex);
  auto& known = registry().communicators;
  std::erase_if(known, [](const auto& weak) { return weak.expired(); });
  known.push_back(communicator);
}

std::vector<std::shared_ptr<Communicator>> liveCommunicators() {
  std::vector<std::shared_ptr<Communicator>> live;
  const std::lock_guard lock(registry().mutex);
  for (auto& weak : registry().communicators) {
    if (auto communicator = weak.lock()) live.push_back(std::move(communicator));
  }
  return live;
}

std::vector<GroupRecord> flightRecords() {
  std::vector<GroupRecord> records;
  for (const auto& communicator : liveCommunicators()) {
    records.push_back(communicator->flightRecord());
  }
  return records;
}

std::string flightRecordText() {
  std::string text = "flight record of process " + std::to_string(getpid());
  const std::vector<GroupRecord> records = flightRecords();
  if (records.empty()) return text + ": no group\n";
  text += ", the oldest operation first\n";
  for (const GroupRecord& record : records) text += recordText(record);
  return text;
}

std::uint64_t beginElsewhere(const FlightNote& where) {
  const auto communicators = liveCommunicators();
  const std::lock_guard lock(registry().notesMutex);
  const std::uint64_t number = registry().nextNote++;
  registry().notes.emplace_back(number, where);
  showNotes(communicators, registry().notes);
  return number;
}

void endElsewhere(std::uint64_t number) {
  const auto communicators = liveCommunicators();
  const std::lock_guard lock(registry().notesMutex);
  std::erase_if(registry().notes, [number](const auto& note) { return note.first == number; });
  showNotes(communicators, registry().notes);
}

}  // namespace smd::engine
