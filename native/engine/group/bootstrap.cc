// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/bootstrap.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "auth/crypto.h"
#include "common/error.h"
#include "engine/choose/link_measure.h"
#include "engine/group/token_agreement.h"
#include "transport/shm/arena_size.h"
#include "transport/shm/attach.h"

namespace smd::engine {
namespace {

constexpr milliseconds kAttachPatience{10'000};

std::string randomSecret() {
  std::string secret(sizeof(auth::SessionId), '\0');
  auth::fillRandom(std::as_writable_bytes(std::span(secret)));
  return secret;
}

// Rank 0's random bits are the group's.
auth::SessionId sessionOf(const hosts::Identity& first) {
  auth::SessionId session{};
  std::memcpy(session.data(), first.secret.data(), std::min(session.size(), first.secret.size()));
  return session;
}

// Of those that can be reached over TCP only.
void requireEndpoints(const Membership& membership, int rank, TransportChoice choice) {
  for (int peer = 0; peer < static_cast<int>(membership.identities.size()); ++peer) {
    const hosts::Identity& identity = membership.identities[static_cast<std::size_t>(peer)];
    const bool isLocal = std::ranges::binary_search(membership.localRanks, peer);
    if (isLocal || !identity.endpoint.empty()) continue;
    throw Error(ErrorKind::kConfiguration,
                "rank " + std::to_string(peer) + " (host " + identity.host +
                    ") has SMDDP_TRANSPORT=shm, and rank " + std::to_string(rank) +
                    (choice == TransportChoice::kTcp
                         ? " has SMDDP_TRANSPORT=tcp; expected the same on all ranks"
                         : " cannot share memory with it; expected all ranks on one host, in one "
                           "network and process namespace") +
                    ". Set SMDDP_TRANSPORT=auto on all ranks.");
  }
}

transport::shm::AttachSecret attachSecret(const hosts::Identity& leader) {
  transport::shm::AttachSecret secret{};
  std::memcpy(secret.data(), leader.secret.data(), std::min(secret.size(), leader.secret.size()));
  return secret;
}

}  // namespace

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

std::string Membership::nameOf(int rank) const {
  if (jobRanks.empty()) return "rank " + std::to_string(rank);
  return "rank " + std::to_string(jobRanks[static_cast<std::size_t>(rank)]) + " of the job";
}

Membership bootstrap(int rank, int worldSize, const ExchangeFn& exchange,
                     const EngineOptions& options) {
  Membership membership;
  const auto numNames = static_cast<int>(options.jobRanks.size());
  if (numNames != 0 && numNames != worldSize) {
    throw Error(ErrorKind::kConfiguration,
                std::to_string(numNames) + " ranks of the job were named for a group of " +
                    std::to_string(worldSize) +
                    "; expected one per rank of the group. Pass all of them, or none.");
  }
  membership.jobRanks = options.jobRanks;
  hosts::Identity self = hosts::describeThisProcess();
  self.machine += options.machineSuffix;
  if (worldSize == 1) {
    membership.identities = {self};
    membership.localRanks = {0};
    membership.hosts.ranks = {{0}};
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
    tcpOptions.tls = options.tls;
    tcp = transport::tcp::create(tcpOptions);
    self.endpoint = tcp->endpoint();
    self.link = serializeLink(knownLink());
  }
  for (const std::string& bytes :
       exchangeAll(exchange, "identity", hosts::serialize(self), worldSize)) {
    membership.identities.push_back(hosts::parse(bytes));
  }
  membership.key = auth::deriveSessionKey(options.token, sessionOf(membership.identities[0]));

  const std::vector<int> leaders = hosts::leadersByMachine(membership.identities);
  const int leader = leaders[static_cast<std::size_t>(rank)];
  const auto sharers = std::count(leaders.begin(), leaders.end(), leader);
  // How far a rank got with its leader's region.
  constexpr const char *kAlone = "A", *kSharesRegion = "S", *kSharesArenasToo = "B";
  std::string status = kAlone;
  if (server != nullptr && sharers > 1) {
    const hosts::Identity& leading = membership.identities[static_cast<std::size_t>(leader)];
    if (leader == rank) {
      const int size = static_cast<int>(sharers);
      const std::size_t stagingBytes =
          size < worldSize ? transport::kCrossingStagingBytes : transport::kStagingBytes;
      const std::size_t otherBytes = transport::shm::Region::bytesWithoutArenas(size, stagingBytes);
      membership.region = transport::shm::Region::create(
          size,
          transport::shm::arenaBytesFor(transport::shm::memoryLimitsOfThisProcess(), size,
                                        otherBytes),
          stagingBytes);
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
  std::vector<std::string> statuses;
  std::vector<std::string> marks;
  for (std::string& answer :
       exchangeAll(exchange, "attached", status + tokenMark(membership.key, options.tls.areGiven()),
                   worldSize)) {
    marks.push_back(answer.substr(std::min(status.size(), answer.size())));
    answer.resize(std::min(status.size(), answer.size()));
    statuses.push_back(std::move(answer));
  }
  requireOneToken(marks, membership.identities);
  std::vector<bool> canShare;
  for (const std::string& each : statuses) canShare.push_back(each != kAlone);

  // A region is laid out for everyone who might attach; its positions are given in rank order. If
  // somebody could not, the whole machine's group falls back to TCP rather than leave holes.
  membership.hosts = hosts::makeHosts(rank, leaders, canShare);
  membership.localRanks = membership.hosts.ranksOf(membership.hosts.self);
  const bool everyoneShares = membership.localRanks.size() > 1;
  membership.hasArenas =
      everyoneShares && std::ranges::all_of(membership.localRanks, [&](int peer) {
        return statuses[static_cast<std::size_t>(peer)] == kSharesArenasToo;
      });
  if (!everyoneShares) membership.region.reset();
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
    requireEndpoints(membership, rank, options.transport);
    membership.tcp = std::move(tcp);
  }
  return membership;
}

}  // namespace smd::engine
