#include "server/access/key_use.h"

#include <algorithm>
#include <chrono>

namespace tramontane {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecondNs = 1'000 * kMs;

int64_t RoundedUp(int64_t amount, int64_t unit) { return (amount + unit - 1) / unit; }

RpcError BoundError(const char* reason, const ApiKey& key, const std::string& what, int64_t retry_ns) {
  RpcError error = BusyError(reason, "the key \"" + key.name + "\" has " + what);
  error.retry_after_ms = std::max<int64_t>(1, RoundedUp(retry_ns, kMs));
  return error;
}

// "120ms", "1s", "6m0s", "1h0m0s": rounded up.
std::string DurationText(int64_t ns) {
  if (ns > 0 && ns < kSecondNs) return std::to_string(RoundedUp(ns, kMs)) + "ms";
  const int64_t seconds = RoundedUp(ns, kSecondNs);
  const std::string hours = seconds < 3600 ? "" : std::to_string(seconds / 3600) + "h";
  const std::string minutes = seconds < 60 ? "" : std::to_string(seconds / 60 % 60) + "m";
  return hours + minutes + std::to_string(seconds % 60) + "s";
}

}  // namespace

int64_t SteadyNowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

KeyUse::KeyUse(const ApiKey& key, NowNs now_ns)
    : now_ns_(std::move(now_ns)), requests_(key.requests_per_minute), tokens_(key.tokens_per_minute) {}

void KeyUse::SetBounds(const ApiKey& key) {
  requests_.SetBound(key.requests_per_minute, now_ns_());
  tokens_.SetBound(key.tokens_per_minute, now_ns_());
}

RpcError KeyUse::Begin(const ApiKey& key) {
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = now_ns_();
  const int64_t in_progress = in_progress_.waiting();
  if (key.max_concurrent > 0 && in_progress >= key.max_concurrent) {
    return BoundError("KEY_CONCURRENCY", key,
                      std::to_string(in_progress) + " requests in progress, its own limit, max_concurrent",
                      in_progress_.TellNextNs(now_ns));
  }
  if (tokens_.IsBelowZero(now_ns)) {
    return BoundError("KEY_TOKENS", key,
                      "taken more than its " + std::to_string(tokens_.per_minute()) +
                          " tokens of a minute, its own limit, tokens_per_minute",
                      tokens_.NsUntil(0, now_ns));
  }
  if (!requests_.TryTake(now_ns)) {
    return BoundError("KEY_REQUESTS", key,
                      "made its " + std::to_string(requests_.per_minute()) +
                          " requests of a minute, its own limit, requests_per_minute",
                      requests_.NsUntil(1, now_ns));
  }
  in_progress_.Came(now_ns);
  return {};
}

void KeyUse::End() { in_progress_.Left(now_ns_()); }

std::vector<std::pair<std::string, std::string>> KeyUse::Headers() const {
  std::vector<std::pair<std::string, std::string>> headers;
  const int64_t now_ns = now_ns_();
  const auto add = [&headers, now_ns](const std::string& of, const RateBucket& bucket) {
    const int64_t most = bucket.per_minute();
    if (most == 0) return;
    headers.emplace_back("x-ratelimit-limit-" + of, std::to_string(most));
    headers.emplace_back("x-ratelimit-remaining-" + of,
                         std::to_string(std::max<int64_t>(0, bucket.Left(now_ns))));
    headers.emplace_back("x-ratelimit-reset-" + of, DurationText(bucket.NsUntil(most, now_ns)));
  };
  add("requests", requests_);
  add("tokens", tokens_);
  return headers;
}

std::vector<std::pair<std::string, std::string>> RateLimitHeaders(const ApiKey* key) {
  if (key == nullptr || key->use == nullptr) return {};
  return key->use->Headers();
}

}  // namespace tramontane
