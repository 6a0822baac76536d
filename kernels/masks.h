// Masks as values: which keys each query of a ragged batch sees, and how other projects write that down.
// Any thread; pure functions of host memory.
//
// A window counts the query itself everywhere here: the query at p sees p - W + 1 .. p (FlashInfer's
// window_left is W - 1). Every builder asks the one rule of paged_kv.h, FirstVisible.
//
// Three families:
//   ragged      one [queries, keys] block for each sequence, a byte a pair: what the article's masks are, and
//               FlashInfer's custom masks, which attention takes packed in bits (AttentionParams::mask);
//   rolling     the positions of queries and keys in the article's three phases, over a ring of W slots;
//   compressed  Ascend's: one [512, 512] mask from which every tile of a longer one is cut.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/context_policy.h"
#include "kernels/core/status.h"

namespace tramontane {

// Pairs of one ragged mask: a byte each, so this is memory too.
inline constexpr int64_t kMaxMaskPairs = int64_t{1} << 30;

// ---- ragged masks

// One block for each sequence, row-major: pair (q, k) of sequence b is element
// indptr[b] + q * keys[b] + k. 1: the query sees the key.
struct RaggedMask {
  std::vector<int32_t> queries;  // [batch]
  std::vector<int32_t> keys;     // [batch]
  std::vector<int64_t> indptr;   // [batch + 1] cumulative queries x keys
  std::vector<uint8_t> visible;  // [indptr[batch]] 0 or 1

  bool Sees(size_t b, int64_t query, int64_t key) const {
    return visible[static_cast<size_t>(indptr[b] + query * keys[b] + key)] != 0;
  }
};

// The mask of bits that attention takes: bit q * keys + k of a sequence, least significant first, each
// sequence beginning at a byte.
struct PackedMask {
  std::vector<uint8_t> bits;    // [indptr[batch]]
  std::vector<int32_t> indptr;  // [batch + 1] in bytes
};

// A mask of such lengths in which `sees(b, query, key)` decides. INVALID_ARGUMENT names the list, its element
// and the limit: lists of different lengths, a negative length, more than kMaxMaskPairs pairs.
StatusOr<RaggedMask> MakeRaggedMask(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                    const std::function<bool(size_t, int64_t, int64_t)>& sees);

// Queries aligned with the last keys, as paged attention has them: what AttentionParams::window shows
// (causal), or without the upper bound, when only the window hides keys. window 0: none.
StatusOr<RaggedMask> AlignedMask(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                 bool causal, int32_t window);

// Queries and keys at positions of their own: query r of sequence b stands at query_positions[b][r], key k at
// first_key[b] + k. A level of a tree of shared prefixes is such a mask. window 0: none.
StatusOr<RaggedMask> PositionMask(const std::vector<std::vector<int32_t>>& query_positions,
                                  const std::vector<int32_t>& first_key, const std::vector<int32_t>& keys,
                                  int32_t window);

// Bytes or bits that somebody else made, for sequences of such lengths. INVALID_ARGUMENT names the mask's
// size, the one it must have, or the first element that is neither 0 nor 1; for bits `indptr` says where each
// sequence begins, in bytes.
StatusOr<RaggedMask> MaskOfBools(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                 const std::vector<uint8_t>& bools);
StatusOr<RaggedMask> MaskOfBits(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                const std::vector<uint8_t>& bits, const std::vector<int32_t>& indptr);

// Bit e of byte e / 8, least significant first: the whole mask in one stream (FlashInfer's packbits), and
// each sequence at a byte of its own (segment_packbits).
std::vector<uint8_t> PackFlat(const RaggedMask& mask);
PackedMask PackSegments(const RaggedMask& mask);

// Bits [begin, end) of a mask become 1: keys begin .. end - 1 of a row that begins at bit 0.
void ShowKeys(uint8_t* bits, int64_t begin, int64_t end);

// ---- the article's masks: a rolling buffer of W slots, sequences side by side

enum class RollingPhase { kFirstPrefill, kSubsequentPrefill, kDecode };
const char* RollingPhaseName(RollingPhase phase);  // "first_prefill"

// Where a token lies in the ring of sequence b: position p in slot p % W, rings side by side.
constexpr int64_t RingSlot(int64_t position, int32_t window, int64_t b) {
  return position % window + b * window;
}

// The rows and columns of one sequence in an iteration, as positions; -1 is an empty slot.
struct RollingBlock {
  std::vector<int64_t> queries;
  std::vector<int64_t> keys;
};

// One sequence's block. `ring` [W] says which position each slot holds: before the iteration in both
// prefills, which attend over what it holds, oldest first, and then over the new keys; after it in decode,
// which writes first and then attends over the slots in their order.
RollingBlock MakeRollingBlock(RollingPhase phase, int64_t seen, int64_t new_tokens,
                              const std::vector<int64_t>& ring);

// The block-diagonal mask of such blocks: the last W positions up to the query's own.
StatusOr<RaggedMask> RollingMask(const std::vector<RollingBlock>& blocks, int32_t window);

// The same without an end to the text: what such rows see under a context policy, and of that what a layer's
// window leaves (0: none). AttentionSinks as a mask, for policies whose tokens stay where they are: a key is
// seen by its true position, wherever the query stands for it. INVALID_ARGUMENT: kReevaluate, whose tokens
// move.
StatusOr<RaggedMask> ContextMask(const std::vector<RollingBlock>& blocks, const ContextPolicy& policy,
                                 int32_t window);

// A row of '0' and '1' for each query over the columns of all sequences side by side.
std::vector<std::string> BlockDiagonalRows(const RaggedMask& mask);

// ---- Ascend's sliding-window masks

// The row's visible columns [first, end); all others hold `masked_value` (-65536 is added to a score; 1 marks
// and is multiplied by a large negative number).
struct DenseMask {
  int32_t size = 0;  // rows and columns
  double masked_value = 0;
  std::vector<int32_t> first;  // [size]
  std::vector<int32_t> end;    // [size]

  double At(int32_t row, int32_t column) const {
    return column >= first[static_cast<size_t>(row)] && column < end[static_cast<size_t>(row)] ? 0
                                                                                               : masked_value;
  }
};

// Ascend's Python and C++ choose block and compressed window differently; both are right, since the tiles of
// each are shifted alike.
enum class AscendRule { kPython, kCpp };

inline constexpr int32_t kAscendMaskSize = 512;

struct AscendMaskSpec {
  int32_t window = 0;
  int32_t head_size = 0;
  AscendRule rule = AscendRule::kPython;
};

// What a distance between query block and key block needs, besides a tile number >= 0.
inline constexpr int32_t kTileSkipped = -2;   // no pair is visible
inline constexpr int32_t kTileUnmasked = -1;  // every pair is

struct AscendCompressedMask {
  int32_t block = 0;              // rows and columns of a tile
  int32_t compressed_window = 0;  // the window of the [512, 512] mask
  DenseMask mask;
};

// The [size, size] mask. INVALID_ARGUMENT: window below 1, size outside 1..2^15.
StatusOr<DenseMask> AscendFullMask(int32_t size, int32_t window, double masked_value);

// INVALID_ARGUMENT: window below 1, head_size below 1, or above 1024 under kCpp, whose block is 0 there.
StatusOr<AscendCompressedMask> MakeAscendCompressedMask(const AscendMaskSpec& spec, double masked_value);

// For each distance d of query block and key block of a sequence: kTileSkipped, kTileUnmasked, or d', of
// which rows [d' block, (d' + 1) block) and columns [0, block) of the compressed mask are the tile.
StatusOr<std::vector<int32_t>> AscendTiles(const AscendMaskSpec& spec, int32_t seqlen);

}  // namespace tramontane
