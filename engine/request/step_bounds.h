// What a step of the engine does at most for requests beside its rows, whatever they ask: counts, and the
// time that one of each took when it was measured (step_bench --adversary, rounded up). What is left comes
// with the next step. EngineLimits::ToString prints the products beside the limits that they belong to.
#pragma once

#include <cstdint>

namespace tramontane {

struct StepPart {
  int64_t most = 0;  // in one step; of one request at least all that it has
  int64_t ns = 0;    // of each
  constexpr int64_t us() const { return most * ns / 1000; }
};

inline constexpr StepPart kChoicesBegun = {.most = 128, .ns = 1'600};    // branches among them
inline constexpr StepPart kWaitingEnded = {.most = 128, .ns = 4'000};    // cancelled, or out of time
inline constexpr StepPart kCancelsLookedUp = {.most = 1024, .ns = 100};  // of streams that wait or not
inline constexpr StepPart kPagesLetGo = {.most = 8192, .ns = 50};        // by texts that end
inline constexpr StepPart kPagesCopied = {.most = 256,
                                          .ns = 2'100};  // of sessions that are saved or restored
// Of texts that are made ready, or begin behind what the cache knows: blocks that are looked up, pages that
// are leased again. A step begins what was put off before it looks up more.
inline constexpr StepPart kBlocksWalked = {.most = 2048, .ns = 70};
// Of a row: planned, sampled, applied; and of one whose prompt begins and ends in the step.
inline constexpr int64_t kRowNs = 300;
inline constexpr int64_t kPromptRowNs = 1'700;
// Of one that has slots and waits, where priorities differ: its level, looked at ten times a level.
inline constexpr int64_t kRankNs = 100;

}  // namespace tramontane
