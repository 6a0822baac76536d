// KeyUse: what the requests of one key use, against its bounds: how many are in progress, and what is left of
// a minute's requests and tokens. Any thread; a token waits for no lock.
// Always: it is the same object for as long as the file of keys has a key of its name (KeyRing).
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/access/api_key.h"
#include "server/access/rate_bucket.h"
#include "server/base/queue_drain.h"
#include "server/call/rpc_error.h"

namespace tramontane {

int64_t SteadyNowNs();

class KeyUse {
 public:
  using NowNs = std::function<int64_t()>;

  explicit KeyUse(const ApiKey& key, NowNs now_ns = SteadyNowNs);
  // Those of its key are others now.
  void SetBounds(const ApiKey& key);

  // RESOURCE_EXHAUSTED, and when to come again: KEY_CONCURRENCY, KEY_REQUESTS, KEY_TOKENS. OK: End follows.
  RpcError Begin(const ApiKey& key);
  void End();
  // One that has begun does not count: it was refused for another reason.
  void GiveBack() { requests_.Take(-1, now_ns_()); }
  void NoteTokens(int64_t tokens) {
    if (tokens_.per_minute() > 0) tokens_.Take(tokens, now_ns_());
  }

  // What OpenAI's headers say of it: x-ratelimit-limit-tokens and their like, of the bounds that there are.
  std::vector<std::pair<std::string, std::string>> Headers() const;

 private:
  const NowNs now_ns_;
  RateBucket requests_;
  RateBucket tokens_;
  std::mutex mutex_;  // of Begin against another
  QueueDrain in_progress_;
};

// Of a key; null, and one of which nothing is counted: none.
std::vector<std::pair<std::string, std::string>> RateLimitHeaders(const ApiKey* key);

}  // namespace tramontane
