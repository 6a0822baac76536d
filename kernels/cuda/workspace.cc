#include "kernels/cuda/workspace.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/decode_weight.h"
#include "kernels/cuda/decoded_pages.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/sampling.h"

namespace tramontane::cuda {

constexpr int32_t kSmallTileRows = 16;  // of the smallest tile there is
static_assert(kSmallTileRows == kByRowTileRows);

ProductForms::ProductForms(const CudaBackendOptions& options, const DeviceProperties& device)
    : fp8(options.fp8_products != 0 && device.fp8_products),
      least_decoded_rows(
          std::max(options.least_decoded_rows > 0 ? options.least_decoded_rows : kLeastDecodedRows,
                   kSmallLinearRows + 1)),
      tiled_outputs(options.least_decoded_rows > 0 ? INT64_MAX : kTiledOutputs),
      decoded_slice_bytes(options.decoded_slice_bytes > 0 ? options.decoded_slice_bytes
                                                          : kDecodedSliceBytes) {}

WorkspaceMap MapWorkspace(const StepMaxima& maxima, const DeviceProperties& device,
                          const ProductForms& products) {
  WorkspaceMap map;
  const auto take = [](int64_t bytes, int64_t* total) {
    return std::exchange(*total, *total + RoundUp(bytes, kAlignment));
  };
  const int64_t rows = std::max(maxima.tokens, maxima.logit_rows);
  int64_t state_rows = 0;
  // Of a decode whose sequences share keys, in tiles of as many rows.
  const int32_t group = maxima.query_heads / maxima.kv_heads;
  const auto shared_rows = [&](int32_t target_blocks) {
    if (!CanShare(group)) return int64_t{0};
    return int64_t{SharingPartialBound(maxima.kv_heads, target_blocks, group, maxima.sequences)} *
           maxima.kv_heads * kSmallTileRows;
  };
  int64_t counts = 0;
  const auto count_parts = [&](int32_t target_blocks, int64_t of_a_tile = 1) {
    counts =
        std::max(counts, of_a_tile * AttentionCountBound(maxima.kv_heads, target_blocks, maxima.sequences));
  };
  state_rows = shared_rows(MostTargetBlocks(device, kSmallTileRows));
  for (const int32_t tile_rows : {kSmallTileRows, kLargeTileRows, kWideTileRows}) {
    if (tile_rows == kWideTileRows && !HasWideTile(maxima.head_dim)) continue;
    const int32_t partials = AttentionPartialBound(maxima.kv_heads, MostTargetBlocks(device, tile_rows));
    state_rows = std::max(state_rows, int64_t{partials} * maxima.kv_heads * tile_rows);
    count_parts(MostTargetBlocks(device, tile_rows));
  }
  if (device.hopper) {
    const int32_t prefill_blocks = HopperTargetBlocks(device, kHopperPrefillRows);
    const int32_t partials = AttentionPartialBound(maxima.kv_heads, prefill_blocks);
    state_rows = std::max(state_rows, int64_t{partials} * maxima.kv_heads * kHopperPrefillRows);
    count_parts(prefill_blocks, 2);
    const int32_t decode_blocks = HopperTargetBlocks(device, kHopperDecodeRows);
    state_rows = std::max(state_rows, shared_rows(decode_blocks));
    count_parts(decode_blocks);
  }
  map.parts_done = take(counts * int64_t{sizeof(int32_t)}, &map.bytes);
  if (SampleBlocks(1, maxima.vocab, device.multiprocessors) > 1) {
    map.split = take(SplitSampleBytes(), &map.bytes);
  }
  map.decoded_pages = map.bytes;
  if (rows >= products.least_decoded_rows) {
    map.decoded_bytes =
        DecodedScratchBytes(maxima.quantised_numbers, maxima.hidden, products.decoded_slice_bytes);
    map.decoded = take(map.decoded_bytes, &map.bytes);
  }
  map.normalised = take(rows * maxima.hidden * 2, &map.bytes);
  if (products.fp8) {
    map.quantised = take(int64_t{maxima.tokens} * maxima.hidden, &map.bytes);
    map.x_scales = take(maxima.tokens * int64_t{sizeof(float)}, &map.bytes);
  }
  map.gate_up = take(int64_t{maxima.tokens} * maxima.hidden * 2 * 2, &map.bytes);
  if (maxima.experts > 0) {
    const int64_t pairs = int64_t{maxima.tokens} * maxima.experts_per_token;
    map.moe_chosen = take(pairs * int64_t{sizeof(int32_t)}, &map.bytes);
    map.moe_shares = take(pairs * int64_t{sizeof(float)}, &map.bytes);
    map.moe_inner = take(pairs * maxima.expert_intermediate * 2, &map.bytes);
    map.moe_outer = take(pairs * maxima.hidden * int64_t{sizeof(float)}, &map.bytes);
    map.moe_order = take(pairs * int64_t{sizeof(int32_t)}, &map.bytes);
    const int64_t tiles = MoeTileBound(static_cast<int32_t>(pairs), maxima.experts);
    map.moe_tiles = take(tiles * int64_t{sizeof(MoeTile)}, &map.bytes);
  }
  map.adjusted = take(SampleScratchBytes(maxima.logit_rows, maxima.vocab), &map.bytes);
  const int64_t decoded_pages_end = map.decoded_pages + RoundUp(DecodedRoomFor(maxima).bytes, kAlignment);
  map.bytes = std::max(map.bytes, decoded_pages_end);
  map.page_lists = take(DecodedPages::ListBytes(maxima), &map.bytes);
  map.partial_out = take(state_rows * maxima.head_dim * int64_t{sizeof(float)}, &map.bytes);
  map.partial_lse = take(state_rows * int64_t{sizeof(float)}, &map.bytes);
  map.plan_items = AttentionItemBound(maxima.tokens, maxima.sequences, group, kSmallTileRows, maxima.kv_heads,
                                      MostTargetBlocks(device, kSmallTileRows));
  if (CanShare(group)) map.plan_items = SharingItemBound(map.plan_items, maxima.sequences, 1);
  take(map.plan_items * int64_t{sizeof(AttentionItem)}, &map.plan_bytes);
  map.plan_merges = take(map.plan_items * int64_t{sizeof(AttentionMerge)}, &map.plan_bytes);
  map.plan_work = take(sizeof(AttentionWork), &map.plan_bytes);
  map.plan_sharers = take(maxima.sequences * int64_t{sizeof(AttentionSharers)}, &map.plan_bytes);
  map.plan_shares = take(maxima.sequences * int64_t{sizeof(AttentionShare)}, &map.plan_bytes);
  map.plans = take(int64_t{kAttentionPlans} * map.plan_bytes, &map.bytes);
  return map;
}

}  // namespace tramontane::cuda
