// What requests are like: lengths, what prompts share, classes. Plain values, as the options give them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/load/distribution.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// `--shared-prefix N:P`: each prompt begins with one of P texts of N tokens, before its own tokens.
struct SharedPrefix {
  int32_t tokens = 0;  // 0: none
  int32_t count = 1;
};

// `--token-ids A:B`: ids from A to B - 1.
struct IdRange {
  int32_t begin = 1300;
  int32_t end = 2000;
};

// One class of requests; a run without --mix has one.
struct WorkClass {
  std::string name = "all";
  double weight = 1;
  LengthDistribution prompt_tokens{512};
  LengthDistribution output_tokens{128};
  SharedPrefix shared_prefix;
  int32_t turns = 1;
};

StatusOr<SharedPrefix> ParseSharedPrefix(std::string_view flag, std::string_view text);
StatusOr<IdRange> ParseIdRange(std::string_view flag, std::string_view text);
StatusOr<int32_t> ParseTurns(std::string_view flag, std::string_view text);

inline constexpr size_t kMaxMixBytes = 1 << 20;

// `--mix FILE`: a JSON list of objects with `name`, `weight` and the keys of a class; what a class leaves out
// is as in `defaults`. Errors name the file, the class and the key.
StatusOr<std::vector<WorkClass>> ReadMix(const std::string& path, const WorkClass& defaults);
StatusOr<std::vector<WorkClass>> ParseMix(const std::string& name, std::string_view text,
                                          const WorkClass& defaults);

}  // namespace tramontane::load
