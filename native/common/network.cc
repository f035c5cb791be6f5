// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <memory>

#include "common/error.h"
#include "common/file_descriptor.h"

namespace smd {
namespace {

// Interfaces that container and virtual machine managers make on a host. Their addresses look like
// any other but are unreachable, or worse, the same on every host.
constexpr std::array<std::string_view, 9> kVirtualInterfaces = {
    "docker", "br-", "veth", "virbr", "podman", "lxcbr", "lxdbr", "cni", "kube"};

template <typename Number>
std::optional<Number> parseNumber(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

// Splits "host:port", "[v6]:port", "host", "v6"; the port is empty if there is none.
std::pair<std::string, std::string> splitPort(std::string_view text) {
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      return {std::string(text), ""};
    }
    const std::string_view rest = text.substr(end + 1);
    return {std::string(text.substr(1, end - 1)),
            rest.starts_with(':') ? std::string(rest.substr(1)) : std::string(rest)};
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos) {
    return {std::string(text), ""};  // no colon: no port; several: a bare IPv6 address
  }
  return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  return text;
}

std::vector<std::string_view> splitList(std::string_view list) {
  std::vector<std::string_view> entries;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view entry = trim(list.substr(0, comma));
    if (!entry.empty()) {
      entries.push_back(entry);
    }
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return entries;
}

bool matches(const InterfaceAddress& candidate, std::string_view entry) {
  if (entry.find('/') != std::string_view::npos) {
    return candidate.address.isIn(entry);
  }
  return candidate.name.starts_with(entry) || candidate.address.host().starts_with(entry);
}

bool isVirtual(const InterfaceAddress& candidate) {
  return std::any_of(kVirtualInterfaces.begin(), kVirtualInterfaces.end(),
                     [&](std::string_view prefix) { return candidate.name.starts_with(prefix); });
}

std::string describeInterfaces(const std::vector<InterfaceAddress>& present) {
  std::string text;
  for (const InterfaceAddress& each : present) {
    text += (text.empty() ? "" : ", ") + each.name + " (" + each.address.host() +
            (each.isUp ? ")" : ", down)");
  }
  return text.empty() ? "none" : text;
}

// IPv4 first: where both exist, it is the one that is more often routed and let through.
const InterfaceAddress* firstOf(const std::vector<InterfaceAddress>& candidates,
                                const auto& isWanted) {
  for (const int family : {AF_INET, AF_INET6}) {
    for (const InterfaceAddress& candidate : candidates) {
      if (candidate.address.family() == family && isWanted(candidate)) {
        return &candidate;
      }
    }
  }
  return nullptr;
}

// One address of each interface, in the family of the main one.
void addTo(std::vector<InterfaceAddress>& chosen, const InterfaceAddress& candidate) {
  const bool isKnown = std::any_of(chosen.begin(), chosen.end(), [&](const InterfaceAddress& each) {
    return each.name == candidate.name || each.address == candidate.address;
  });
  if (!isKnown && (chosen.empty() || chosen[0].address.family() == candidate.address.family())) {
    chosen.push_back(candidate);
  }
}

// Other interfaces that may carry data unasked. Whether other hosts can be reached through them is
// for the connections to find out; those of another driver than the main one (tunnels and overlays
// beside hardware) are left alone.
bool isLike(const InterfaceAddress& main, const InterfaceAddress& other) {
  const bool isAsQuick = main.megabitsPerSecond == 0 || other.megabitsPerSecond == 0
                             ? main.megabitsPerSecond == other.megabitsPerSecond
                             : 2 * other.megabitsPerSecond >= main.megabitsPerSecond;
  return !main.address.isLoopback() && !other.address.isLoopback() && !isVirtual(other) &&
         main.driver == other.driver && isAsQuick;
}

const InterfaceAddress* automatic(const std::vector<InterfaceAddress>& candidates,
                                  const std::optional<SocketAddress>& routed) {
  if (routed.has_value()) {
    const auto* found = firstOf(candidates, [&](const InterfaceAddress& candidate) {
      return candidate.address == routed->withPort(0);
    });
    if (found != nullptr) {
      return found;
    }
  }
  const auto* physical = firstOf(candidates, [](const InterfaceAddress& candidate) {
    return !candidate.address.isLoopback() && !isVirtual(candidate);
  });
  if (physical != nullptr) {
    return physical;
  }
  return firstOf(candidates,
                 [](const InterfaceAddress& candidate) { return candidate.address.isLoopback(); });
}

// Fills in what the driver tells. (Not from /sys: that may show another network namespace.)
void ask(InterfaceAddress& found) {
  const FileDescriptor socket =
      FileDescriptor::fromCall([] { return ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  const auto askFor = [&](auto& answer) {
    ifreq request{};
    found.name.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&answer);
    return ::ioctl(socket.get(), SIOCETHTOOL, &request) == 0;
  };
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  if (askFor(info)) {
    found.driver.assign(info.driver, ::strnlen(info.driver, sizeof(info.driver)));
  }
  ethtool_cmd link{};
  link.cmd = ETHTOOL_GSET;
  if (askFor(link)) {
    const std::uint32_t speed = ethtool_cmd_speed(&link);
    const bool isKnown = speed != static_cast<std::uint32_t>(SPEED_UNKNOWN);
    found.megabitsPerSecond = isKnown ? static_cast<int>(std::min(speed, 10'000'000U)) : 0;
  }
}

unsigned prefixBits(const sockaddr* mask) {
  if (mask == nullptr) {
    return 0;
  }
  const bool isV6 = mask->sa_family == AF_INET6;
  const auto* bytes = isV6 ? reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr
                           : reinterpret_cast<const unsigned char*>(
                                 &reinterpret_cast<const sockaddr_in*>(mask)->sin_addr);
  unsigned bits = 0;
  for (std::size_t i = 0; i < (isV6 ? 16U : 4U); ++i) {
    bits += static_cast<unsigned>(std::popcount(bytes[i]));
  }
  return bits;
}

}  // namespace

SocketAddress::SocketAddress() : address_{} { address_.v4.sin_family = AF_INET; }

std::optional<SocketAddress> SocketAddress::parse(std::string_view text) {
  const auto [host, portText] = splitPort(text);
  std::uint16_t port = 0;
  if (!portText.empty()) {
    const auto number = parseNumber<std::uint16_t>(portText);
    if (!number.has_value()) {
      return std::nullopt;
    }
    port = *number;
  }
  SocketAddress result;
  if (::inet_pton(AF_INET, host.c_str(), &result.address_.v4.sin_addr) == 1) {
    return result.withPort(port);
  }
  result.address_.v6 = {};
  result.address_.v6.sin6_family = AF_INET6;
  if (::inet_pton(AF_INET6, host.c_str(), &result.address_.v6.sin6_addr) == 1) {
    return result.withPort(port);
  }
  return std::nullopt;
}

std::optional<SocketAddress> SocketAddress::from(const sockaddr& address) {
  SocketAddress result;
  if (address.sa_family == AF_INET) {
    std::memcpy(&result.address_.v4, &address, sizeof(sockaddr_in));
    return result;
  }
  if (address.sa_family == AF_INET6) {
    std::memcpy(&result.address_.v6, &address, sizeof(sockaddr_in6));
    return result;
  }
  return std::nullopt;
}

socklen_t SocketAddress::size() const {
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? address_.v6.sin6_port : address_.v4.sin_port);
}

SocketAddress SocketAddress::withPort(std::uint16_t port) const {
  SocketAddress result = *this;
  if (family() == AF_INET6) {
    result.address_.v6.sin6_port = htons(port);
  } else {
    result.address_.v4.sin_port = htons(port);
  }
  return result;
}

bool SocketAddress::isLinkLocal() const {
  if (family() == AF_INET6) {
    return IN6_IS_ADDR_LINKLOCAL(&address_.v6.sin6_addr);
  }
  return (ntohl(address_.v4.sin_addr.s_addr) >> 16) == 0xA9FE;  // 169.254.0.0/16
}

bool SocketAddress::isLoopback() const {
  if (family() == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&address_.v6.sin6_addr);
  }
  return (ntohl(address_.v4.sin_addr.s_addr) >> 24) == 127;
}

bool SocketAddress::isIn(std::string_view network) const {
  const std::size_t slash = network.find('/');
  if (slash == std::string_view::npos) {
    return false;
  }
  const auto base = parse(network.substr(0, slash));
  const auto bits = parseNumber<unsigned>(network.substr(slash + 1));
  if (!base.has_value() || !bits.has_value()) {
    return false;
  }
  return *bits <= (family() == AF_INET6 ? 128U : 32U) && sharesPrefix(*base, *bits);
}

bool SocketAddress::sharesPrefix(const SocketAddress& other, unsigned bits) const {
  if (other.family() != family()) {
    return false;
  }
  const auto bytesOf = [](const SocketAddress& address) {
    return address.family() == AF_INET6
               ? reinterpret_cast<const unsigned char*>(&address.address_.v6.sin6_addr)
               : reinterpret_cast<const unsigned char*>(&address.address_.v4.sin_addr);
  };
  const unsigned char* mine = bytesOf(*this);
  const unsigned char* theirs = bytesOf(other);
  for (unsigned bit = 0; bit < bits; ++bit) {
    if ((((mine[bit / 8] ^ theirs[bit / 8]) >> (7 - bit % 8)) & 1) != 0) {
      return false;
    }
  }
  return true;
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = family() == AF_INET6 ? static_cast<const void*>(&address_.v6.sin6_addr)
                                           : static_cast<const void*>(&address_.v4.sin_addr);
  ::inet_ntop(family(), bytes, text.data(), static_cast<socklen_t>(text.size()));
  return text.data();
}

std::string SocketAddress::toString() const {
  const std::string port = std::to_string(this->port());
  return family() == AF_INET6 ? "[" + host() + "]:" + port : host() + ":" + port;
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  if (family() != other.family() || port() != other.port()) {
    return false;
  }
  return family() == AF_INET6
             ? IN6_ARE_ADDR_EQUAL(&address_.v6.sin6_addr, &other.address_.v6.sin6_addr)
             : address_.v4.sin_addr.s_addr == other.address_.v4.sin_addr.s_addr;
}

std::vector<InterfaceAddress> listInterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw systemError("getifaddrs");
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) {
      continue;
    }
    if (const auto address = SocketAddress::from(*each->ifa_addr); address.has_value()) {
      InterfaceAddress found;
      found.name = each->ifa_name;
      found.address = *address;
      found.isUp = (each->ifa_flags & IFF_UP) != 0;
      found.prefixBits = prefixBits(each->ifa_netmask);
      ask(found);
      result.push_back(std::move(found));
    }
  }
  return result;
}

std::optional<SocketAddress> routedSource(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(splitPort(host).first.c_str(), nullptr, &hints, &list) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    const auto target = SocketAddress::from(*each->ai_addr);
    if (!target.has_value()) {
      continue;
    }
    const FileDescriptor socket = FileDescriptor::fromCall(
        [&] { return ::socket(target->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0); });
    // Connecting a datagram socket only looks up the route. The port matters to nobody, but 0 is
    // refused by some systems.
    const SocketAddress peer = target->withPort(9);
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    if (socket.isOpen() && ::connect(socket.get(), peer.data(), peer.size()) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0) {
      if (const auto source = SocketAddress::from(reinterpret_cast<const sockaddr&>(local))) {
        return source->withPort(0);
      }
    }
  }
  return std::nullopt;
}

std::vector<InterfaceAddress> chooseAddresses(std::string_view wanted,
                                              const std::vector<InterfaceAddress>& present,
                                              const std::optional<SocketAddress>& routed) {
  const std::vector<std::string_view> entries = splitList(wanted);
  const auto isExclusion = [](std::string_view entry) { return entry.starts_with('^'); };

  std::vector<InterfaceAddress> candidates;
  for (const InterfaceAddress& each : present) {
    const bool isExcluded =
        std::any_of(entries.begin(), entries.end(), [&](std::string_view entry) {
          return isExclusion(entry) && matches(each, entry.substr(1));
        });
    if (each.isUp && !each.address.isLinkLocal() && !isExcluded) {
      candidates.push_back(each);
    }
  }

  std::vector<InterfaceAddress> chosen;
  const auto addAutomatic = [&] {
    const InterfaceAddress* main = automatic(candidates, routed);
    if (main == nullptr) return;
    addTo(chosen, *main);
    for (const InterfaceAddress& candidate : candidates) {
      if (isLike(*main, candidate)) addTo(chosen, candidate);
    }
  };
  for (const std::string_view entry : entries) {
    if (isExclusion(entry)) continue;
    if (entry == "auto") {
      if (chosen.empty()) addAutomatic();
      continue;
    }
    const auto isWanted = [&](const InterfaceAddress& candidate) {
      return matches(candidate, entry);
    };
    const InterfaceAddress* first = firstOf(candidates, isWanted);
    if (first != nullptr) addTo(chosen, *first);
    for (const InterfaceAddress& candidate : candidates) {
      if (isWanted(candidate)) addTo(chosen, candidate);
    }
  }
  if (std::all_of(entries.begin(), entries.end(), isExclusion)) {
    addAutomatic();
  }
  if (chosen.empty()) {
    throw Error(ErrorKind::kConfiguration,
                "SMDDP_INTERFACE=" + std::string(wanted) +
                    " matches no network interface of this host; expected the beginning of an "
                    "interface name or address, a network such as 10.1.0.0/16, or \"auto\", and it "
                    "must be up. Choose among: " +
                    describeInterfaces(present) + ".");
  }
  return chosen;
}

std::vector<InterfaceAddress> chooseLocalAddresses(std::string_view wanted,
                                                   const std::string& rendezvous) {
  std::optional<SocketAddress> routed;
  if (!rendezvous.empty()) {
    routed = routedSource(rendezvous);
    const std::string host = splitPort(rendezvous).first;
    const auto literal = SocketAddress::parse(host);
    const bool saysLoopback = host == "localhost" || (literal.has_value() && literal->isLoopback());
    if (routed.has_value() && routed->isLoopback() && !saysLoopback) {
      routed.reset();
    }
  }
  return chooseAddresses(wanted, listInterfaceAddresses(), routed);
}

}  // namespace smd
