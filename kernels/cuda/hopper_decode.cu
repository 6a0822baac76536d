// Paged grouped-query attention with a sliding window on sm_90a: steps of few rows a sequence, fetched by the
// TMA unit.
//
// Shapes: as hopper_attention.cu.
// Grid:   HopperDecodeKernel: max_items * kv_heads blocks of five warps, kv heads fastest. A block takes one
//         AttentionItem for one kv head: 16 rows (row = token * group + head in group) against the keys
//         [key_begin, key_end), 64 at a time.
//           warp 4 fetches keys and values in turn through four stages, by boxes of one page, and leaves;
//           warps 0 to 3 take all rows and 16 keys of a tile each, by mma.sync; their softmax states are
//             joined in warp order at the end (attention_tile.cuh).
//         Of rows whose keys were split the block that writes the last part joins all
//         (attention_join.cuh).
// Bytes:  d = head_dim; pages = those of the item's range in which some row sees a key.
//         an item and kv head reads    44 + rows * 2d + pages * (4 + page_size * 4d)
//                             writes   rows * 2d (+ rows * 4 with lse), or rows * (4d + 4) when it is a part
//         of sharers it reads rows * 4 more, and writes the parts of all;
//         a part and those who join some: attention_join.cuh. Every other block reads 4.
// Limits: head_dim 64 and 128; group 1..16; bf16; pages of 8, 16, 32 or 64 tokens; sm_90a alone.
// Math:   as attention.cu.
// Ideas:  XQA (a warp that fetches, the last block joins), FlashInfer (rows = tokens x group).
#include "kernels/core/check.h"
#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/hopper_tile.cuh"

namespace tramontane::cuda {
namespace {

constexpr int kDecodeStages = 4;  // of a tile's keys, or values
static_assert(kAttentionThreads == kPartThreads);

// Keys and values as the TMA unit writes them; queries as attention.cu has them.
template <int kHeadDimensions>
struct DecodeTile : AttentionTile<Bf16, kHeadDimensions, kHopperDecodeRows> {
  using Queries = AttentionTile<Bf16, kHeadDimensions, kHopperDecodeRows>;
  static constexpr int kPartBytes = kKeyTile * kBoxRowBytes;  // of 64 of head_dim
  static constexpr int kStagesBytes = kDecodeStages * Queries::kKeyBytes;
  static constexpr int kSharedBytes = kStagesBytes + Queries::kQueryBytes + 128;
  static_assert(Queries::kJoinBytes <= kStagesBytes);

  TM_HOST_DEVICE static constexpr int Swizzle(int row, int chunk) {
    return chunk / 8 * kPartBytes + row * kBoxRowBytes + ((chunk ^ row) & 7) * 16;
  }
};

// A count in brackets is that of arrivals.
struct DecodeShared {
  Mbarrier full[kDecodeStages], empty[kDecodeStages];  // [1], [warps that compute]
  int32_t is_last[kByRowTileRows];                     // of FinishPart
};
static_assert(sizeof(DecodeShared) <= 128);

template <typename Shape>
TM_DEVICE void FetchInTurn(const HopperAttentionParams& p, const HopperItem& item, std::byte* stages,
                           DecodeShared* shared) {
  unsigned n = 0;
  int tile = item.tile_begin;
  do {  // a tile at least, as warps that compute expect it
    const int page = PageOfLane<kKeyTile>(p, item, tile);
    TM_UNROLL
    for (int half = 0; half < 2; ++half, ++n) {
      const int stage = static_cast<int>(n % kDecodeStages);
      WaitPhase(&shared->empty[stage], static_cast<int>(n / kDecodeStages % 2) ^ 1);
      FetchTile<kKeyTile, Shape::kHeadDim>(p, item, page, p.first_half + half,
                                           stages + stage * Shape::kKeyBytes, &shared->full[stage]);
    }
  } while ((tile += kKeyTile) < item.key_end);
}

// Of the rows of values that are this warp's. Plain loads read them, and the TMA unit writes over them.
template <typename Shape>
TM_DEVICE void ClearOwnRows(const AttentionPlace<Shape>& at, const StaleRows& stale, std::byte* values) {
  const int begin = at.warp_key(), end = begin + Shape::kWarpKeys;
  ClearRows<kKeyTile, Shape::kHeadDim>(Max(stale.before_begin, begin), Min(stale.before_end, end), values);
  ClearRows<kKeyTile, Shape::kHeadDim>(Max(stale.behind_begin, begin), Min(stale.behind_end, end), values);
  FenceAsyncProxy();
  SyncWarp();
}

}  // namespace

template <int kHeadDim>
TM_KERNEL
TM_BOUNDS(kAttentionThreads + 32, HopperBlocksPerMultiprocessor(kHopperDecodeRows)) void HopperDecodeKernel(
    const TM_GRID_CONSTANT HopperAttentionParams p) {
  using Shape = DecodeTile<kHeadDim>;
  using Queries = typename Shape::Queries;
  AwaitPriorKernels();
  if (BlockX() >= LoadUniform(&p.run.work->items) * p.by_kv_heads.size()) return;
  std::byte* const stages = AlignedSharedBytes();
  std::byte* const query_tile = stages + Shape::kStagesBytes;
  auto* const shared = reinterpret_cast<DecodeShared*>(query_tile + Queries::kQueryBytes);
  if (ThreadX() == 0) {
    for (int i = 0; i < kDecodeStages; ++i) {
      InitBarrier(&shared->full[i], 1);
      InitBarrier(&shared->empty[i], kAttentionWarps);
    }
    FenceBarrierInit();
    PrefetchMap(p.pool);
  }
  SyncThreads();
  const HopperItem item = ReadItem<kKeyTile, true>(p, BlockX());
  if (ThreadX() >= kAttentionThreads) {
    FetchInTurn<Shape>(p, item, stages, shared);
    return;  // SyncThreads counts those who are left
  }

  LoadQueries<Queries>(p.run.query, p.run.query_stride, item.first_token, p.run.group, item.kv_head,
                       item.row_begin, item.rows, query_tile);
  CopyCommit();
  const auto at = AttentionPlace<Shape>::OfThread();
  // What the two rows of this lane see, fragment rows group_lane and group_lane + 8, and what all 16 do.
  const auto position = [&](int r) {
    return item.first_position + p.by_group.Quotient(Min(r, item.rows - 1));
  };
  const auto begin_of = [&](int own) {
    return Max(item.key_begin, static_cast<int>(FirstVisible(own, item.window)));
  };
  int begin[2], end[2];
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int own = position(item.row_begin + at.group_lane + 8 * i);
    begin[i] = begin_of(own);
    end[i] = Min(own + 1, item.key_end);
  }
  const int all_begin = begin_of(position(item.row_begin + kHopperDecodeRows - 1));
  const int all_end = Min(position(item.row_begin) + 1, item.key_end);

  AttentionState<Shape> state;
  const float scale = p.run.scale * kAttentionLog2E;
  uint32_t query[Shape::kDimSteps][4];
  CopyWait<0>();
  SyncNamedBarrier(1, kAttentionThreads);
  QueryFragments(AttentionPlace<Queries>::OfThread(), query_tile, query);
  unsigned n = 0;  // tiles of keys and of values that went by
  const auto wait = [&] {
    const int stage = static_cast<int>(n % kDecodeStages);
    WaitPhase(&shared->full[stage], static_cast<int>(n / kDecodeStages % 2));
    return stages + stage * Shape::kKeyBytes;
  };
  const auto release = [&] { Release(&shared->empty[n++ % kDecodeStages]); };
  int tile = item.tile_begin;
  do {
    float score[Shape::kKeySteps * 2][4] = {};
    const std::byte* const keys = wait();
    Scores(at, query, keys, score);
    release();
    if (tile < all_begin || tile + kKeyTile > all_end) Mask(at, tile + at.warp_key(), begin, end, score);
    Softmax(state, score, scale);
    std::byte* const values = wait();
    const StaleRows stale = StaleRowsOf<kKeyTile>(item, tile, p.page_log2);
    if (stale.Any()) ClearOwnRows(at, stale, values);
    Accumulate(at, score, values, state);
    release();
  } while ((tile += kKeyTile) < item.key_end);

  const AttentionItem rows = {item.sequence, item.row_begin, item.key_begin, item.key_end, item.partial, -1};
  if (JoinWarps(at, state, scale)) Write(p.run, at, rows, item.kv_head, item.first_token, item.rows, state);
  if (item.partial != -1) {
    const AttentionItem* const own = p.run.items + p.by_kv_heads.Quotient(BlockX());
    FinishPart<Bf16>(p.run, {own, item.sequence, item.partial, item.kv_head}, kHeadDim, shared->is_last,
                     [] { SyncThreads(); });
  }
}

bool HopperDecodeSupported(const KvLayerView& kv) {
  return HopperSupported(kv) && kv.format.page_size <= kKeyTile;
}

namespace {

template <int kHeadDim>
int LaunchDecode(const HopperAttentionParams& p, Stream stream) {
  using Shape = DecodeTile<kHeadDim>;
  if (const int error = AllowSharedBytes<HopperDecodeKernel<kHeadDim>, Shape::kSharedBytes>()) return error;
  const auto blocks = static_cast<unsigned>(p.run.max_items * p.run.kv.format.kv_heads);
  return TM_LAUNCH((HopperDecodeKernel<kHeadDim>), Dim3{blocks}, Dim3{kAttentionThreads + 32},
                   Shape::kSharedBytes, stream, p);
}

}  // namespace

int RunHopperDecode(const HopperAttentionParams& params, void* stream) {
  TM_CHECK(HopperDecodeSupported(params.run.kv) && params.run.tile_rows == kHopperDecodeRows,
           "decode in tiles of %d rows", params.run.tile_rows);
  const HopperAttentionParams p = PreparedForHopper(params);
  const auto to = static_cast<Stream>(stream);
  return p.run.kv.format.head_dim == 64 ? LaunchDecode<64>(p, to) : LaunchDecode<128>(p, to);
}

}  // namespace tramontane::cuda
