// Attention on sm_90a: keys and values fetched page by page by the TMA unit, products by warpgroups. The same
// calls as attention.h, for pages of bf16 of which a tile of keys takes whole ones; hopper_attention.cu has
// the grids, the bytes and the limits. Host side; any CUDA stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/tensor_map.h"

namespace tramontane::cuda {

inline constexpr int kHopperKeyTile = 128;      // keys that a block works on at once in prefill
inline constexpr int kHopperPrefillRows = 128;  // rows (tokens x group) of its tile
inline constexpr int kHopperDecodeRows = 16;    // and of that of decode, which works on kKeyTile keys at once

// Blocks that fit on a multiprocessor at once, by their registers.
constexpr int32_t HopperBlocksPerMultiprocessor(int32_t tile_rows) {
  return tile_rows == kHopperPrefillRows ? 1 : 2;
}

// Whether these kernels serve such pages: bf16, head_dim 64 or 128, 8 to 128 tokens a page that divide 128,
// laid out as a pool of ours is.
bool HopperSupported(const KvLayerView& kv);

// The same of decode: pages of up to kKeyTile tokens.
bool HopperDecodeSupported(const KvLayerView& kv);

// The map of a whole pool, all its layers: (head_dim, token, kv head, layer and half, page), in boxes of one
// page and 64 of head_dim. Made once a pool. 0 or the runtime's error. REQUIRES: HopperSupported.
int MakePoolMap(const KvLayerView& kv, TensorMap* map);

struct HopperAttentionParams {
  TensorMap pool;          // of run.kv's pool
  AttentionRunParams run;  // planned for tiles of kHopperPrefillRows, or of kHopperDecodeRows
  int32_t blocks = 0;      // of prefill, that the device runs at once: its multiprocessors
  // Set by PreparedForHopper.
  int32_t page_log2 = 0;   // of the tokens of a page
  int32_t first_half = 0;  // number of the layer's keys among the halves of all layers
  PageDivisor by_kv_heads = {}, by_group = {};
};

// Queue a launch on `stream`: prefill and mixtures, and steps of few rows a sequence. 0 or the runtime's
// error. REQUIRES: HopperSupported (decode: HopperDecodeSupported), a device of compute capability 9.0.
int RunHopperPrefill(const HopperAttentionParams& params, void* stream);
int RunHopperDecode(const HopperAttentionParams& params, void* stream);
// What both do first.
HopperAttentionParams PreparedForHopper(const HopperAttentionParams& params);

}  // namespace tramontane::cuda
