// Rows of a decode step that read the same keys: sequences of one query each whose tables list the same pages
// from their beginning (or their window's) on, as a prefix cache and forks make them. Attention walks those
// pages once for all of them (cascade attention), each row with a softmax of its own.
// The idea: Ye et al., Cascade Inference (FlashInfer, 2024); Juravsky et al., Hydragen (2024).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace tramontane {

// Some sequences, and the segments of keys that all of them see whole and have in the same pages.
struct PrefixSharers {
  const int32_t* sequences = nullptr;  // [count]
  int32_t count = 0;
  int64_t first_segment = 0;
  int64_t end_segment = 0;
};

struct SharedPrefixes {
  const PrefixSharers* groups = nullptr;
  int32_t count = 0;
};

// How many sequences walk together.
struct SharerLimits {
  int64_t most = 0;  // of a group
  // A group of fewer than `many` is cut into groups of at most `few`, or left where that is below 2.
  int64_t many = 0;
  int64_t few = 0;
};

// Bytes of memory, aligned to 8, that a search over so many sequences takes.
int64_t SharedPrefixBytes(int64_t batch);

// Finds groups of 2 and more sequences; each sequence is in one at most. What is found lies in `memory`, and
// the same params give the same groups. None where rows see by a mask or sinks.
SharedPrefixes FindSharedPrefixes(const AttentionParams& params, const SharerLimits& limits,
                                  std::byte* memory);

}  // namespace tramontane
