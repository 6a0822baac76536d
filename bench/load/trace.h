// What a file says arrived when, and how long it was: Azure's CSV, Mooncake's JSONL, and our own JSONL, which
// is what a dry run writes. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane::load {

inline constexpr int32_t kTraceBlockTokens = 512;  // of one of Mooncake's hash_ids

// Of a trace. More of any: INVALID_ARGUMENT.
inline constexpr size_t kMaxTraceBytes = size_t{1} << 30;
inline constexpr size_t kMaxTraceLineBytes = size_t{1} << 20;
inline constexpr int64_t kMaxTraceSeconds = 366LL * 24 * 3600;  // from its first stamp to its last

struct TraceRow {
  int64_t at_ns = 0;  // from the start of the run: the first row's stamp; in our own files they say it
  int32_t input_tokens = 0;
  int32_t output_tokens = 0;
  std::vector<int64_t>
      blocks;  // of kTraceBlockTokens ids each, the last may be shorter; empty: shares nothing
};

// In the order of their stamps, none below 0. Errors name the file, the line and the field.
StatusOr<std::vector<TraceRow>> ReadTrace(const std::string& path);
// The same of a text; `name` is what errors call it.
StatusOr<std::vector<TraceRow>> ParseTrace(const std::string& name, std::string_view text);

}  // namespace tramontane::load
