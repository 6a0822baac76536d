#include "server/base/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace tramontane {
namespace {

constexpr char kUnix[] = "unix";
constexpr int kIpv4Prefix = 96;  // bits in front of an IPv4 address in IPv6
constexpr size_t kIpv4At = kIpv4Prefix / 8;
constexpr int kShareBits = 64;

using Bytes = std::array<uint8_t, 16>;

// IPv4 as ::ffff:0:0/96. A zone ("fe80::1%eth0") is not part of the address.
std::optional<Bytes> Parsed(std::string_view text) {
  const std::string plain(text.substr(0, text.find('%')));
  Bytes bytes{};
  if (inet_pton(AF_INET6, plain.c_str(), bytes.data()) == 1) return bytes;
  if (inet_pton(AF_INET, plain.c_str(), bytes.data() + kIpv4At) != 1) return std::nullopt;
  bytes[kIpv4At - 2] = bytes[kIpv4At - 1] = 0xff;
  return bytes;
}

bool IsMapped(const Bytes& bytes) {
  return std::all_of(bytes.begin(), bytes.begin() + kIpv4At - 2, [](uint8_t byte) { return byte == 0; }) &&
         bytes[kIpv4At - 2] == 0xff && bytes[kIpv4At - 1] == 0xff;
}

std::string Text(const Bytes& bytes) {
  char text[INET6_ADDRSTRLEN];
  const bool is_ipv4 = IsMapped(bytes);
  inet_ntop(is_ipv4 ? AF_INET : AF_INET6, bytes.data() + (is_ipv4 ? kIpv4At : 0), text, sizeof text);
  return text;
}

void KeepBits(int bits, Bytes* bytes) {
  for (int bit = bits; bit < 128; ++bit) {
    (*bytes)[static_cast<size_t>(bit / 8)] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
  }
}

}  // namespace

std::string PlainAddress(std::string_view address) {
  const auto bytes = Parsed(address);
  return bytes ? Text(*bytes) : std::string(address);
}

std::string AddressShare(std::string_view plain_address) {
  auto bytes = Parsed(plain_address);
  if (!bytes || IsMapped(*bytes)) return std::string(plain_address);
  KeepBits(kShareBits, &*bytes);
  return Text(*bytes) + "/" + std::to_string(kShareBits);
}

std::string AddressOfGrpcPeer(std::string_view peer) {
  if (peer.starts_with("unix:") || peer.starts_with("unix-abstract:")) return kUnix;
  constexpr std::string_view kOpen = "%5B", kClose = "%5D";
  if (peer.starts_with("ipv6:")) {
    const size_t open = peer.find(kOpen), close = peer.find(kClose);
    const bool has_both = open != std::string_view::npos && close != std::string_view::npos && open < close;
    if (has_both) return PlainAddress(peer.substr(open + kOpen.size(), close - open - kOpen.size()));
  }
  if (peer.starts_with("ipv4:")) return PlainAddress(peer.substr(5, peer.rfind(':') - 5));
  return std::string(peer);
}

StatusOr<AddressRange> AddressRange::Parse(std::string_view text) {
  AddressRange range;
  range.is_unix_ = text == kUnix;
  if (range.is_unix_) return range;
  const size_t slash = text.find('/');
  const auto bytes = Parsed(text.substr(0, slash));
  if (!bytes) {
    return InvalidArgument("is \"" + std::string(text) +
                           "\", it must be an IP address, ADDRESS/BITS, or unix");
  }
  const int most = IsMapped(*bytes) ? 32 : 128;
  int bits = most;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error != std::errc() || end != digits.data() + digits.size() || bits < 0 || bits > most) {
      return InvalidArgument("is \"" + std::string(text) + "\", whose prefix must have 0 to " +
                             std::to_string(most) + " bits");
    }
  }
  range.bytes_ = *bytes;
  range.bits_ = bits + 128 - most;
  KeepBits(range.bits_, &range.bytes_);
  return range;
}

bool AddressRange::Contains(std::string_view plain_address) const {
  if (is_unix_ || plain_address == kUnix) return is_unix_ && plain_address == kUnix;
  auto bytes = Parsed(plain_address);
  if (!bytes) return false;
  KeepBits(bits_, &*bytes);
  return *bytes == bytes_;
}

bool IsInAny(const std::vector<AddressRange>& ranges, std::string_view plain_address) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [plain_address](const AddressRange& range) { return range.Contains(plain_address); });
}

}  // namespace tramontane
