// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/bootstrap.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "common/error.h"
#include "transport/shm/arena_size.h"
#include "transport/shm/attach.h"

namespace smd::engine {
namespace {

constexpr milliseconds kAttachPatience{10'000};

std::string randomSecret() {
  std::string secret(16, '\0');
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    throw systemError("getrandom");
  }
  return secret;
}

transport::shm::AttachSecret attachSecret(const topology::Identity& leader) {
  transport::shm::AttachSecret secret{};
  std::memcpy(secret.data(), leader.secret.data(), std::min(secret.size(), leader.secret.size()));
  return secret;
}

std::vector<std::string> exchangeAll(const ExchangeFn& exchange, const std::string& key,
                                     const std::string& value, int worldSize) {
  std::vector<std::string> values = exchange(key, value);
  if (static_cast<int>(values.size()) != worldSize) {
    throw Error(ErrorKind::kConfiguration,
                "the exchange function returned " + std::to_string(values.size()) +
                    " values for \"" + key + "\"; expected one per rank, " +
                    std::to_string(worldSize) + ". Return every rank's bytes in rank order.");
  }
  return values;
}

}  // namespace

Membership bootstrap(int rank, int worldSize, const ExchangeFn& exchange,
                     const BootstrapOptions& options) {
  Membership membership;
  topology::Identity self = topology::describeThisProcess();
  if (worldSize == 1) {
    membership.identities = {self};
    membership.localRanks = {0};
    return membership;
  }
  self.secret = randomSecret();
  std::unique_ptr<transport::shm::AttachServer> server;
  if (options.transport != TransportChoice::kTcp) {
    server = std::make_unique<transport::shm::AttachServer>();
    self.attachSocket = server->socketName();
  }
  std::unique_ptr<transport::tcp::TcpTransport> tcp;
  if (options.transport != TransportChoice::kSharedMemory) {
    transport::tcp::Options tcpOptions;
    tcpOptions.rank = rank;
    tcpOptions.worldSize = worldSize;
    tcpOptions.interfaces = options.interfaces;
    tcpOptions.rendezvousAddress = options.rendezvousAddress;
    tcp = transport::tcp::create(tcpOptions);
    self.endpoint = tcp->endpoint();
  }
  for (const std::string& bytes :
       exchangeAll(exchange, "identity", topology::serialize(self), worldSize)) {
    membership.identities.push_back(topology::parse(bytes));
  }

  const std::vector<int> leaders = topology::leadersByMachine(membership.identities);
  const int leader = leaders[static_cast<std::size_t>(rank)];
  const auto sharers = std::count(leaders.begin(), leaders.end(), leader);
  // How far a rank got with its leader's region.
  constexpr const char *kAlone = "A", *kSharesRegion = "S", *kSharesArenasToo = "B";
  std::string status = kAlone;
  if (server != nullptr && sharers > 1) {
    const topology::Identity& leading = membership.identities[static_cast<std::size_t>(leader)];
    if (leader == rank) {
      const int size = static_cast<int>(sharers);
      // Buffers are shared for what all ranks reduce: of no use if some are on other hosts.
      const std::size_t arenaBytes =
          size < worldSize
              ? 0
              : transport::shm::arenaBytesFor(transport::shm::memoryLimitsOfThisProcess(), size,
                                              transport::shm::Region::bytesWithoutArenas(size));
      membership.region = transport::shm::Region::create(size, arenaBytes);
      server->offer(membership.region, attachSecret(leading));
    } else if (!leading.attachSocket.empty()) {
      FileDescriptor descriptor = transport::shm::requestRegion(
          leading.attachSocket, attachSecret(leading), kAttachPatience);
      if (descriptor.isOpen()) {
        membership.region =
            transport::shm::Region::attach(std::move(descriptor), static_cast<int>(sharers));
      }
    }
    if (membership.region != nullptr) {
      status = membership.region->mapsArenas() ? kSharesArenasToo : kSharesRegion;
    }
  }
  const std::vector<std::string> statuses = exchangeAll(exchange, "attached", status, worldSize);

  // A region is laid out for everyone who might attach; its positions are given in rank order. If
  // somebody could not, the whole machine's group falls back to TCP rather than leave holes.
  bool everyoneShares = membership.region != nullptr;
  for (int peer = 0; peer < worldSize; ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (leaders[index] == leader && statuses[index] == kAlone) everyoneShares = false;
  }
  membership.hasArenas =
      everyoneShares && std::count(statuses.begin(), statuses.end(), kSharesArenasToo) == worldSize;
  if (!everyoneShares) membership.region.reset();
  for (int peer = 0; peer < worldSize; ++peer) {
    if (peer == rank || (everyoneShares && leaders[static_cast<std::size_t>(peer)] == leader)) {
      membership.localRanks.push_back(peer);
    }
  }
  if (static_cast<int>(membership.localRanks.size()) < worldSize) {
    if (tcp == nullptr) {
      std::string remote;
      for (int peer = 0; peer < worldSize; ++peer) {
        if (!std::binary_search(membership.localRanks.begin(), membership.localRanks.end(), peer)) {
          remote = std::to_string(peer) + " (host " +
                   membership.identities[static_cast<std::size_t>(peer)].host + ")";
          break;
        }
      }
      throw Error(ErrorKind::kConfiguration,
                  "SMDDP_TRANSPORT=shm, but this rank cannot share memory with rank " + remote +
                      "; expected all ranks on one host, in one network and process namespace. Set "
                      "SMDDP_TRANSPORT=auto.");
    }
    membership.tcp = std::move(tcp);
  }
  return membership;
}

}  // namespace smd::engine
