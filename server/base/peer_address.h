// Addresses of clients: as they are told apart, and the ranges that settings name. Pure functions and a plain
// value; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

// An IP address as text: an IPv4 address that came as IPv6 ("::ffff:10.0.0.1") is the IPv4 one. Others,
// "unix" too, as they are.
std::string PlainAddress(std::string_view address);

// Who shares limits with whom: IPv4 addresses are one each, those of an IPv6 network of 64 bits are one
// ("2001:db8:0:1::/64"), and all clients of a unix socket ("unix") are one.
std::string AddressShare(std::string_view plain_address);

// The address in gRPC's name of a peer: "ipv4:10.0.0.1:443", "ipv6:%5B::1%5D:443", "unix:/run/s". Another
// name as it is.
std::string AddressOfGrpcPeer(std::string_view peer);

// "10.0.0.0/8", "::1", "fd00::/8", "unix".
class AddressRange {
 public:
  // INVALID_ARGUMENT: not an address, or longer a prefix than it.
  static StatusOr<AddressRange> Parse(std::string_view text);

  bool Contains(std::string_view plain_address) const;

 private:
  bool is_unix_ = false;
  std::array<uint8_t, 16> bytes_{};  // of IPv6, IPv4 as ::ffff:0:0/96
  int bits_ = 0;
};

bool IsInAny(const std::vector<AddressRange>& ranges, std::string_view plain_address);

}  // namespace tramontane
