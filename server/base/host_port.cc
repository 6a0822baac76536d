#include "server/base/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace tramontane {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool IsHostCharacter(char c) {
  return (Lower(c) >= 'a' && Lower(c) <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

bool IsIpv4(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool IsIpv6(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// Digits and nothing else: no sign, no blank.
bool ParsePort(std::string_view text, uint16_t* port) {
  uint32_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size()) return false;
  if (value > std::numeric_limits<uint16_t>::max()) return false;
  *port = static_cast<uint16_t>(value);
  return true;
}

struct Parts {
  std::string host;  // without brackets
  std::optional<std::string_view> port;
};

// "HOST", "HOST:PORT", "[IPV6]", "[IPV6]:PORT"; whether the port is one is not looked at.
std::optional<Parts> Split(std::string_view text) {
  Parts parts;
  std::string_view rest;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    parts.host = std::string(text.substr(1, end - 1));
    if (!IsIpv6(parts.host)) return std::nullopt;
    rest = text.substr(end + 1);
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    parts.host = std::string(text.substr(0, colon));
    if (parts.host.empty() || !std::all_of(parts.host.begin(), parts.host.end(), IsHostCharacter)) {
      return std::nullopt;
    }
    rest = text.substr(colon);
  }
  if (rest.empty()) return parts;
  if (!rest.starts_with(':')) return std::nullopt;
  parts.port = rest.substr(1);
  return parts;
}

}  // namespace

StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const std::string is = "is \"" + std::string(text) + "\", ";
  const auto parts = Split(text);
  if (!parts || !parts->port) {
    return InvalidArgument(is + "it must be HOST:PORT, and an IPv6 address [HOST]:PORT");
  }
  HostPort address{.host = parts->host};
  if (!ParsePort(*parts->port, &address.port)) {
    return InvalidArgument(is + "it must be HOST:PORT, the port a whole number from 0 to 65535");
  }
  return address;
}

std::string ToString(const HostPort& address) {
  const bool needs_brackets = address.host.find(':') != std::string::npos;
  return (needs_brackets ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::optional<std::string> HostOf(std::string_view authority) {
  auto parts = Split(authority);
  if (!parts) return std::nullopt;
  uint16_t port = 0;
  const bool has_port = parts->port && !parts->port->empty();  // "localhost:" is allowed by its grammar
  if (has_port && !ParsePort(*parts->port, &port)) return std::nullopt;
  std::transform(parts->host.begin(), parts->host.end(), parts->host.begin(), Lower);
  if (parts->host.ends_with('.')) parts->host.pop_back();
  if (parts->host.empty()) return std::nullopt;
  return std::move(parts->host);
}

std::optional<std::string> HostOfOrigin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == 0 || scheme == std::string_view::npos) return std::nullopt;
  return HostOf(origin.substr(scheme + 3));
}

bool IsIpAddress(const std::string& host) { return IsIpv4(host) || IsIpv6(host); }

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  if (IsIpv4(host)) return host.starts_with("127.");
  in6_addr address{};
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

}  // namespace tramontane
