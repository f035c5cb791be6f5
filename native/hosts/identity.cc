// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "hosts/identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "common/cpu.h"
#include "common/error.h"

namespace smd::hosts {
namespace {

constexpr std::string_view kRelease = "smd-engine-2";
constexpr std::uint64_t kMaxField = 16384;  // a list of 4,000 processors fits
static_assert(std::endian::native == std::endian::little,
              "headers cross hosts as raw little-endian bytes");

std::string readLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Two processes in different network namespaces are to talk like different hosts; in different
// process namespaces they could not watch each other live.
std::string namespaceId(const char* path) {
  struct stat status;
  return stat(path, &status) == 0 ? std::to_string(status.st_ino) : std::string();
}

void append(std::string& out, std::string_view field) {
  const auto length = static_cast<std::uint32_t>(field.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  out.append(field);
}

Error malformed(std::string_view bytes) {
  return Error(ErrorKind::kConfiguration,
               "a rank published bytes that are no engine identity (the last " +
                   std::to_string(bytes.size()) +
                   " of them); expected what this release publishes. Run the same release of "
                   "smdistributed-open on all ranks, and use a store of their own.");
}

std::string take(std::string_view& in) {
  std::uint32_t length = 0;
  if (in.size() >= sizeof length) std::memcpy(&length, in.data(), sizeof length);
  if (in.size() < sizeof length || length > kMaxField || in.size() - sizeof length < length) {
    throw malformed(in);
  }
  std::string field(in.substr(sizeof length, length));
  in.remove_prefix(sizeof length + length);
  return field;
}

template <class Number>
Number takeNumber(std::string_view& in) {
  const std::string_view whole = in;
  const std::string field = take(in);
  Number value{};
  const char* end = field.data() + field.size();
  const auto result = std::from_chars(field.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) throw malformed(whole);
  return value;
}

}  // namespace

Identity describeThisProcess() {
  Identity identity;
  identity.release = kRelease;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const char* current = std::getenv("SM_CURRENT_HOST");
  identity.host = current != nullptr && *current != '\0' ? current : host;
  identity.machine = readLine("/proc/sys/kernel/random/boot_id") + "/" +
                     namespaceId("/proc/self/ns/net") + "/" + namespaceId("/proc/self/ns/pid") +
                     "/" + std::to_string(geteuid());
  identity.pid = getpid();
  identity.processors = affinityMask();
  identity.cpuQuota = cpuQuota();
  return identity;
}

std::string serialize(const Identity& identity) {
  std::string out;
  append(out, identity.release);
  append(out, identity.host);
  append(out, identity.machine);
  append(out, std::to_string(identity.pid));
  append(out, identity.attachSocket);
  append(out, identity.secret);
  append(out, identity.link);
  append(out, identity.endpoint);
  append(out, std::to_string(identity.cpuQuota));
  std::string processors;
  for (int processor : identity.processors) processors += std::to_string(processor) + " ";
  append(out, processors);
  return out;
}

Identity parse(std::string_view bytes) {
  Identity identity;
  identity.release = take(bytes);
  if (identity.release != kRelease) {
    throw Error(ErrorKind::kConfiguration,
                "a rank runs engine \"" + identity.release + "\", this one \"" +
                    std::string(kRelease) +
                    "\"; all ranks must run the same release of smdistributed-open");
  }
  identity.host = take(bytes);
  identity.machine = take(bytes);
  identity.pid = takeNumber<std::int64_t>(bytes);
  identity.attachSocket = take(bytes);
  identity.secret = take(bytes);
  identity.link = take(bytes);
  identity.endpoint = take(bytes);
  identity.cpuQuota = takeNumber<int>(bytes);
  std::istringstream processors(take(bytes));
  for (int processor = 0; processors >> processor;) identity.processors.push_back(processor);
  if (!processors.eof() || !bytes.empty()) throw malformed(bytes);
  return identity;
}

std::vector<int> leadersByMachine(const std::vector<Identity>& identities) {
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    std::size_t leader = 0;
    while (identities[leader].machine != identities[rank].machine) ++leader;
    leaders.push_back(static_cast<int>(leader));
  }
  return leaders;
}

int coresOf(const std::vector<Identity>& identities, const std::vector<int>& ranks) {
  std::set<int> processors;
  int quota = 0;
  for (int rank : ranks) {
    const Identity& identity = identities[static_cast<std::size_t>(rank)];
    processors.insert(identity.processors.begin(), identity.processors.end());
    quota = std::max(quota, identity.cpuQuota);
  }
  const int cores = std::max(1, static_cast<int>(processors.size()));
  return quota == 0 ? cores : std::min(cores, quota);
}

}  // namespace smd::hosts
