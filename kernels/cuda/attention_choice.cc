#include "kernels/cuda/attention_choice.h"

#include <algorithm>

#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/hopper_attention.h"

namespace tramontane::cuda {
namespace {

// Whether rows see other keys than those of the window, or keys are decoded first.
bool IsByRow(const AttentionParams& p) {
  return p.sinks.len != nullptr || p.mask.bits != nullptr || p.kv.format.element != DType::kBf16;
}

// Whether tiles of the smallest size hold a sequence's rows: a step of decode.
bool FitsSmallTiles(const AttentionParams& p) {
  return p.query.rows * (p.query_heads / p.kv.format.kv_heads) <= int64_t{kByRowTileRows} * p.batch;
}

// Whether tiles of kWideTileRows, which issue fewer instructions a row and read keys half as often, fill the
// device on their own: where they do not, tiles of half as many rows are twice as many blocks, and splits
// that would make up for it have their parts written and joined. Counted are those that are full whatever
// the lengths, all but one of each sequence; and they are to be the most, since the one that is not full
// takes the time of one that is.
bool FillsWideTiles(const AttentionParams& p, const DeviceProperties& device) {
  const int32_t kv_heads = p.kv.format.kv_heads;
  const int64_t full = p.query.rows * (p.query_heads / kv_heads) / kWideTileRows - p.batch;
  return HasWideTile(p.kv.format.head_dim) && full >= p.batch &&
         full * kv_heads >=
             TargetBlocks(device, AttentionKernels::kMmaSync, kWideTileRows, p.kv.format.head_dim);
}

// Of the kernels of attention.cu and its kin.
int32_t TileRows(const AttentionParams& p, AttentionKernels kernels, const DeviceProperties& device) {
  if (kernels != AttentionKernels::kMmaSync || FitsSmallTiles(p)) return kByRowTileRows;
  return FillsWideTiles(p, device) ? kWideTileRows : kLargeTileRows;
}

// Of a block.
int64_t SharedBytesOf(AttentionKernels kernels, int32_t tile_rows, int32_t head_dim) {
  if (kernels == AttentionKernels::kLatent) return LatentSharedBytes(head_dim);
  return kernels == AttentionKernels::kByRow ? AttentionByRowSharedBytes(head_dim)
                                             : AttentionSharedBytes(head_dim, tile_rows);
}

}  // namespace

AttentionKernels ChooseAttention(const AttentionParams& p, const DeviceProperties& device) {
  if (p.kv.format.latent()) return AttentionKernels::kLatent;
  if (IsByRow(p)) return AttentionKernels::kByRow;
  if (!device.hopper) return AttentionKernels::kMmaSync;
  if (FitsSmallTiles(p))
    return HopperDecodeSupported(p.kv) ? AttentionKernels::kHopperDecode : AttentionKernels::kMmaSync;
  return HopperSupported(p.kv) ? AttentionKernels::kHopperPrefill : AttentionKernels::kMmaSync;
}

bool DecodesPages(const AttentionParams& p, const DecodedRoom& room) {
  const bool by_windows = p.sinks.len == nullptr && p.mask.bits == nullptr;
  return p.kv.format.element != DType::kBf16 && by_windows && !FitsSmallTiles(p) &&
         p.table.listed_pages > 0 && room.Holds(p.table.listed_pages, p.kv.format);
}

AttentionParams PlainPart(const AttentionParams& p) {
  AttentionParams plain = p;
  if (p.plain.qo_indptr != nullptr) {
    plain.qo_indptr = p.plain.qo_indptr;
  } else {
    plain.query.rows = p.plain.tokens;
    plain.batch = p.plain.sequences;
  }
  plain.mask = {};
  plain.sinks = {};
  plain.table.sink_entry = nullptr;
  plain.plain = {};
  return plain;
}

AttentionParams OtherPart(const AttentionParams& p) {
  const auto behind = [&p](const int32_t*& of_sequences) {
    if (of_sequences != nullptr) of_sequences += p.plain.sequences;
  };
  AttentionParams others = p;
  others.plain = {};
  if (p.plain.qo_indptr != nullptr) {
    others.qo_indptr = p.plain.others_qo_indptr;
    return others;
  }
  others.query.rows -= p.plain.tokens;
  others.batch -= p.plain.sequences;
  behind(others.table.first_entry);
  behind(others.table.page_mask);
  behind(others.table.kv_base);
  behind(others.table.kv_end);
  behind(others.table.sink_entry);
  behind(others.qo_indptr);
  behind(others.mask.indptr);
  return others;
}

AttentionTiling TileAttention(const AttentionParams& p, AttentionKernels kernels,
                              const DeviceProperties& device) {
  const int32_t kv_heads = p.kv.format.kv_heads, group = p.query_heads / kv_heads;
  const bool prefill = kernels == AttentionKernels::kHopperPrefill;
  const bool hopper = prefill || kernels == AttentionKernels::kHopperDecode;
  AttentionTiling tiling;
  tiling.tile_rows = prefill ? kHopperPrefillRows : TileRows(p, kernels, device);
  tiling.target_blocks = hopper ? HopperTargetBlocks(device, tiling.tile_rows)
                                : TargetBlocks(device, kernels, tiling.tile_rows, p.kv.format.head_dim);
  const int64_t keys =
      p.mask.bits != nullptr ? INT64_MAX : AttentionKeyBound(p.window, group, tiling.tile_rows);
  tiling.max_merges = AttentionMergeBound(kv_heads, tiling.target_blocks, keys);
  tiling.max_items = AttentionItemBound(static_cast<int32_t>(p.query.rows), p.batch, group, tiling.tile_rows,
                                        kv_heads, tiling.target_blocks);
  return tiling;
}

AttentionRunParams RunParamsOf(const AttentionParams& p) {
  AttentionRunParams run{};
  run.query = p.query.data;
  run.out = p.out.data;
  run.query_stride = p.query.row_stride;
  run.out_stride = p.out.row_stride;
  run.kv = p.kv;
  run.table = p.table;
  run.qo_indptr = p.qo_indptr;
  run.lse = p.lse;
  run.window = p.window;
  run.group = p.query_heads / p.kv.format.kv_heads;
  run.scale = p.scale;
  return run;
}

int32_t TargetBlocks(const DeviceProperties& device, AttentionKernels kernels, int32_t tile_rows,
                     int32_t head_dim) {
  const int64_t shared_bytes = SharedBytesOf(kernels, tile_rows, head_dim) + device.shared_bytes_reserved;
  const int64_t by_shared = std::max<int64_t>(1, device.shared_bytes / shared_bytes);
  const int64_t by_registers = AttentionBlocksPerMultiprocessor(tile_rows);
  return static_cast<int32_t>(std::min(by_registers, by_shared)) * device.multiprocessors;
}

int32_t MostTargetBlocks(const DeviceProperties& device, int32_t tile_rows) {
  return AttentionBlocksPerMultiprocessor(tile_rows) * device.multiprocessors;
}

int32_t HopperTargetBlocks(const DeviceProperties& device, int32_t tile_rows) {
  return HopperBlocksPerMultiprocessor(tile_rows) * device.multiprocessors;
}

}  // namespace tramontane::cuda
