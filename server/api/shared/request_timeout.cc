#include "server/api/shared/request_timeout.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace tramontane {
namespace {

constexpr size_t kMaxDigits = 8;
constexpr int64_t kMostNanoseconds = int64_t{1} << 58;  // nine years: added to any clock it is still a time

int64_t NanosecondsOf(char unit) {
  switch (unit) {
    case 'H':
      return 3'600'000'000'000;
    case 'M':
      return 60'000'000'000;
    case 'S':
      return 1'000'000'000;
    case 'm':
      return 1'000'000;
    case 'u':
      return 1'000;
    case 'n':
      return 1;
    default:
      return 0;
  }
}

}  // namespace

std::optional<std::chrono::nanoseconds> ParseTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > kMaxDigits + 1) return std::nullopt;
  const std::string_view digits = text.substr(0, text.size() - 1);
  const int64_t unit = NanosecondsOf(text.back());
  uint32_t count = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (unit == 0 || fault != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  const int64_t most = kMostNanoseconds / unit;
  return std::chrono::nanoseconds(std::min<int64_t>(count, most) * unit);
}

std::optional<std::chrono::nanoseconds> TimeoutOf(const HttpRequest& request) {
  const std::string* text = request.Header(kTimeoutHeader);
  return text == nullptr ? std::nullopt : ParseTimeout(*text);
}

}  // namespace tramontane
