// Prompts of several lengths in chunks, then decode steps, over page tables that roll: what each iteration
// writes, what it attends over, and what the tables give back. The schedule is that of Mistral's rolling
// buffer (one iteration takes the next chunk of every prompt; when all are in, one token each); the tables
// are the engine's own. One thread.
//
// A ring of W slots is a way to read a page table: slot s is the newest stored position p with p % W = s. It
// is read before the table rolls, since afterwards the position that the next token would overwrite may be
// gone.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_store.h"
#include "kernels/core/status.h"
#include "kernels/masks.h"

namespace tramontane {

struct RollingTraceOptions {
  std::vector<int32_t> prompt_tokens;  // of each sequence
  int32_t window = 0;                  // W, 1 and more
  int32_t chunk = 0;                   // tokens of a prompt in one iteration
  int32_t decode_steps = 0;            // iterations of one token each, after the prompts
  int32_t page_size = 1;
};

// One sequence in one iteration.
struct RollingRow {
  int64_t seen = 0;  // tokens before it
  RollingBlock block;
  std::vector<int64_t> cache_slots;  // of the last W new tokens: RingSlot
  std::vector<int64_t> ring;         // [W] after the iteration; -1: empty
  PageTable table;                   // when the iteration ran: its tokens have their pages
  int64_t rolled_kv_base = 0;        // of the table afterwards
};

struct RollingStep {
  RollingPhase phase = RollingPhase::kFirstPrefill;
  std::vector<RollingRow> rows;  // [sequences]
};

// INVALID_ARGUMENT names the option, its value and what is allowed: no sequence, a prompt without a token, a
// window, chunk or page below 1.
StatusOr<std::vector<RollingStep>> TraceRolling(const RollingTraceOptions& options);

// The block of each sequence, as RollingMask takes them.
std::vector<RollingBlock> BlocksOf(const RollingStep& step);

}  // namespace tramontane
