// Prompts of several lengths in chunks, then decode steps, over page tables that roll: what each iteration
// writes, what it attends over, and what the tables give back. The schedule is that of Mistral's rolling
// buffer (one iteration takes the next chunk of every prompt; when all are in, one token each); the tables
// are the engine's own. One thread.
//
// Beyond that buffer: a context policy, no window, or prompts that begin alike, over the prefix cache. Then a
// prompt starts when the ones before it are in, since a page is found once it is full.
//
// A ring of W slots is a way to read a page table: slot s is the newest stored position p with p % W = s. It
// is read before the table rolls, since afterwards the position that the next token would overwrite may be
// gone.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/kv_store.h"
#include "kernels/core/status.h"
#include "kernels/masks.h"

namespace tramontane {

struct RollingTraceOptions {
  std::vector<int32_t> prompt_tokens;  // of each sequence
  int32_t window = 0;                  // W; 0: none, and no ring
  int32_t chunk = 0;                   // tokens of a prompt in one iteration
  int32_t decode_steps = 0;            // iterations of one token each, after the prompts
  int32_t page_size = 1;
  ContextPolicy policy = {};  // kNone, kSinks or kShift
  int32_t shared_prefix = 0;  // first tokens that all prompts have in common; 0: the prefix cache is off
};

// One sequence in one iteration.
struct RollingRow {
  int64_t seen = 0;        // tokens before it
  int64_t hit_tokens = 0;  // of these, found in the prefix cache when this iteration began
  RollingBlock block;      // of W slots; under a policy or without a window, of what the table lists
  std::vector<int64_t> cache_slots;  // of the last W new tokens: RingSlot
  std::vector<int64_t> ring;         // [W] after the iteration; -1: empty
  PageTable table;                   // when the iteration ran: its tokens have their pages
  int64_t rolled_kv_base = 0;        // of the table afterwards
  std::vector<PageId> let_go;        // pages that it listed before and does not list afterwards

  int64_t end() const { return seen + static_cast<int64_t>(block.queries.size()); }
};

struct RollingStep {
  RollingPhase phase = RollingPhase::kFirstPrefill;
  std::vector<RollingRow> rows;  // [sequences]
  // Of the pool afterwards.
  int64_t free_pages = 0, cached_pages = 0, held_pages = 0;
};

// INVALID_ARGUMENT names the option, its value and what is allowed: no sequence, a prompt without a token, a
// chunk or page below 1, a policy that is refused or moves tokens, a shared prefix longer than a prompt.
StatusOr<std::vector<RollingStep>> TraceRolling(const RollingTraceOptions& options);

// The block of each sequence, as RollingMask and ContextMask take them.
std::vector<RollingBlock> BlocksOf(const RollingStep& step);

// What the rows of an iteration see of the keys of their blocks.
StatusOr<RaggedMask> MaskOf(const RollingTraceOptions& options, const RollingStep& step);

// Positions that a table lists when `end` tokens are written, in its order: those of sinks first.
std::vector<int64_t> PositionsOf(const PageTable& table, int32_t page_size, int64_t end);

// The place of a listed position in the pool, page * page_size + offset; -1: the table does not list it.
int64_t PoolSlotOf(const PageTable& table, int32_t page_size, int64_t position);

}  // namespace tramontane
