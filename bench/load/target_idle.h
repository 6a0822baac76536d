// Waits until a target has nothing more to do from the run before. Main thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "bench/load/clock.h"
#include "bench/load/prompt_text.h"

namespace tramontane::load {

// Every request of ours has ended; one that was aborted or timed out may still run there. Where the target
// has /metrics under vLLM's names (vllm:num_requests_running and _waiting) it is idle when both are 0; else,
// after a run of which something was given up, it is given a second. What is no count of requests, NaN too,
// is no answer. At most `most_ns` until kBusy; kStopped soon after `stop`, which may be null, is set.
enum class IdleWait { kIdle, kBusy, kStopped };
IdleWait WaitUntilIdle(const TargetOptions& target, const AskTarget& ask, bool gave_up, int64_t most_ns,
                       Clock& clock, const std::atomic<bool>* stop);

}  // namespace tramontane::load
