// ApiKey: a name and what its holder may do. A plain value, but for what is counted of it; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

using KeyDigest = std::array<uint8_t, 32>;  // SHA-256 of a key

class KeyUse;

inline constexpr int32_t kMostKeyPriority = 1'000;  // and the least is as far below 0
inline constexpr int32_t kMostKeyWeight = 1'000;

struct ApiKey {
  std::string name = {};
  KeyDigest digest{};
  std::vector<std::string> models =
      {};                // that may be asked for, by the names they are served under; empty: all
  bool admin = false;    // /debug/* beyond this machine
  bool gateway = false;  // what it says of its own callers is believed
  bool disabled = false;
  std::optional<int64_t> expires_s = {};  // since 1970; from then on it is none
  std::string salt = {};                  // its prompts share no cached pages with those of other salts
  int64_t max_concurrent = 0;             // requests that generate; 0, as below: any number
  int64_t requests_per_minute = 0;        // that generate
  int64_t tokens_per_minute = 0;          // of their prompts and answers
  int32_t priority = 0;                   // the best that they may have: the lowest
  int32_t weight = 1;                     // its caller's (Caller::weight)
  std::shared_ptr<KeyUse> use = {};       // what of these bounds is used; null: nothing is counted

  bool MayUse(const std::string& model) const;
  bool IsValidAt(int64_t unix_s) const { return !disabled && (!expires_s || unix_s < *expires_s); }
};

inline constexpr size_t kMostKeyBytes = 512;  // of a key; a longer one is wrong unread

// REQUIRES: no more than kMostKeyBytes.
KeyDigest DigestOfKey(std::string_view key);

// A new key, drawn from the system's randomness: "tm-" and 43 letters.
std::string DrawKey();

}  // namespace tramontane
