// The ids of prompts. Any thread; pure.
//
// A prompt's first ids spell its key and the run's nonce, in digits to the base of the range of ids: prompts
// of one run differ from each other there (those that are too short for it differ as far as they can), and
// runs with another nonce from this one, so that a prefix cache finds only what is shared on purpose.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/load/schedule.h"
#include "bench/load/work.h"

namespace tramontane::load {

class PromptWriter {
 public:
  PromptWriter(IdRange range, uint64_t nonce) : range_(range), nonce_(nonce) {}

  std::vector<int32_t> Ids(const ScheduledRequest& request) const;

 private:
  // What a stream of ids is for: two streams of one key and different kinds differ.
  enum class Kind : uint64_t { kOwn = 0, kPrefix = 1, kBlock = 2 };
  // Appends the first `count` ids of a stream.
  void Append(Kind kind, int64_t key, int64_t count, std::vector<int32_t>* ids) const;

  IdRange range_;
  uint64_t nonce_;
};

}  // namespace tramontane::load
