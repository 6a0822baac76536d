// A RollingTrace in words and boxes, for `inspect --kv`. Pure; main thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/commands/rolling_trace.h"

namespace tramontane {

// "4, 1, 3"
std::string JoinNumbers(const std::vector<int64_t>& numbers, const char* separator);

// "0 1 + 6 7": pages of sinks, then the others. "-": none.
std::string PageTableText(const PageTable& table);

// "2..3"; "2" of one; "-" of none.
std::string TokensText(const RollingRow& row);

// "iteration 2, subsequent_prefill"
std::string IterationTitle(size_t index, const RollingStep& step);

// Each iteration: its mask, then a line a sequence with its tokens, page table, what it lets go, kv_base, and
// what the slots of its ring hold, or under a policy what its last query sees.
StatusOr<std::string> ListKvTrace(const RollingTraceOptions& options, const std::vector<RollingStep>& steps);

}  // namespace tramontane
