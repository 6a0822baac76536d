#include "server/base/request_id.h"

#include <cstdint>
#include <random>

namespace tramontane {

std::string RequestIdFault(std::string_view id) {
  if (id.empty() || id.size() > kMaxRequestIdBytes) {
    return "has " + std::to_string(id.size()) + " bytes, the range is [1, " +
           std::to_string(kMaxRequestIdBytes) + "]";
  }
  for (size_t i = 0; i < id.size(); ++i) {
    if (id[i] <= ' ' || id[i] > '~') {
      return "has a character that is not printable ASCII, or a space, at byte " + std::to_string(i);
    }
  }
  return "";
}

std::string DrawRequestId() {
  thread_local std::mt19937_64 random{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id = "req-";
  for (uint64_t bits = random(), i = 0; i < 16; ++i, bits >>= 4) id.push_back(kDigits[bits & 15]);
  return id;
}

}  // namespace tramontane
