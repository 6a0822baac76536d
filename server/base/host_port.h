// Hosts, ports and origins as people and clients write them: the one place that takes such a text apart, for
// addresses to listen on and for the names that a request was sent to.
// Pure functions; any thread. Nothing is looked up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

// Where a server listens.
struct HostPort {
  std::string host;   // without the brackets of an IPv6 address; never empty
  uint16_t port = 0;  // 0: a free one

  bool operator==(const HostPort&) const = default;
};

// "127.0.0.1:8000", "[::1]:0". INVALID_ARGUMENT says what is wrong, to be put behind a name: "is \"x\", it
// must be HOST:PORT".
StatusOr<HostPort> ParseHostPort(std::string_view text);
// "[::1]:8000"
std::string ToString(const HostPort& address);

// The host of "HOST" or "HOST:PORT", as the header Host has it: in lower case, without brackets, port and the
// dot at its end. Nothing where it is neither.
std::optional<std::string> HostOf(std::string_view authority);
// The host of "SCHEME://HOST[:PORT]", as the header Origin has it. Nothing for anything else ("null").
std::optional<std::string> HostOfOrigin(std::string_view origin);

// Of a host as HostOf gives it: an IPv4 or IPv6 address, not a name.
bool IsIpAddress(const std::string& host);
// This machine, whoever is asked: localhost, a name below it, or a loopback address.
bool IsLoopback(const std::string& host);

bool EqualsIgnoringCase(std::string_view a, std::string_view b);

}  // namespace tramontane
