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
//         Of an item's parts the block that is done last joins all, in the order of the keys: no launch
//         behind this one. Its result does not depend on the order in which blocks ran, and it leaves the
//         count of parts at zero, so that a recorded step can be replayed.
// Bytes:  d = head_dim; pages = those of the item's range in which some row sees a key.
//         an item and kv head reads    40 + rows * 2d + pages * (4 + page_size * 4d)
//                             writes   rows * 2d (+ rows * 4 with lse), or rows * (4d + 4) when it is a part
//         a part also reads 16 + 8 for each merge of the list, and writes 4: it counts itself;
//         of sharers it reads rows * 4 more, and of each sequence 16 and nothing of other merges, and writes
//         the parts of all and 4 for each;
//         the last part also reads rows * splits * 6d, parts and for each 16 bytes of them their lse twice,
//         and writes 4 + rows * 2d (+ rows * 4 with lse).
//         Every other block reads 4.
// Limits: head_dim 64 and 128; group 1..16; bf16; pages of 8, 16, 32 or 64 tokens; sm_90a alone.
// Math:   as attention.cu.
// Ideas:  XQA (a warp that fetches, the last block merges), FlashInfer (rows = tokens x group).
#include "kernels/core/check.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/hopper_tile.cuh"

namespace tramontane::cuda {
namespace {

constexpr int kDecodeStages = 4;  // of a tile's keys, or values

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
  int32_t merge;                                       // of a part: number of its merge
  int32_t is_last;
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

// Joins the parts of a merge, in key order: by the threads that compute of the block that was last.
template <typename Shape>
TM_DEVICE void MergeParts(const AttentionRunParams& p, const HopperItem& item, const AttentionMerge& merge) {
  constexpr int kPieces = Shape::kHeadDim / 4;  // 16 bytes each, of a row
  for (int i = ThreadX(); i < Shape::kTileRows * kPieces; i += kAttentionThreads) {
    const int tile_row = i / kPieces, piece = i % kPieces, r = item.row_begin + tile_row;
    if (r >= item.rows) break;
    const auto slot = [&](int s) {
      return (int64_t{merge.partial_begin + s} * p.kv.format.kv_heads + item.kv_head) * Shape::kTileRows +
             tile_row;
    };
    float max = kMinusInfinity;
    for (int s = 0; s < merge.splits; ++s) max = Max(max, LoadGlobalWritten(p.partial_lse + slot(s)));
    const float base = max == kMinusInfinity ? 0.0f : max;
    float sum = 0.0f, out[4] = {};
    for (int s = 0; s < merge.splits; ++s) {
      const float weight = Exp2(LoadGlobalWritten(p.partial_lse + slot(s)) - base);
      const Vector16 part = LoadGlobal16Written(p.partial_out + slot(s) * Shape::kHeadDim + piece * 4);
      sum += weight;
      TM_UNROLL
      for (int j = 0; j < 4; ++j) out[j] += weight * FloatOf(part.word[j]);
    }
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    const int64_t token = item.first_token + r / p.group;
    const int head = item.kv_head * p.group + r % p.group;
    auto* const to = static_cast<Bf16*>(p.out) + token * p.out_stride + head * Shape::kHeadDim + piece * 4;
    StoreGlobal(reinterpret_cast<Vector8*>(to),
                Vector8{{PackPair<Bf16>(out[0] * inverse, out[1] * inverse),
                         PackPair<Bf16>(out[2] * inverse, out[3] * inverse)}});
    if (p.lse != nullptr && piece == 0) {
      StoreGlobal(p.lse + token * (p.kv.format.kv_heads * p.group) + head,
                  sum > 0.0f ? base + Log2(sum) : kMinusInfinity);
    }
  }
}

// Number of the merge that joins a part of one sequence. By the threads that compute.
TM_DEVICE int MergeOfPart(const AttentionRunParams& run, int partial, DecodeShared* shared) {
  const int merges = LoadUniform(&run.work->merges);
  for (int m = ThreadX(); m < merges; m += kAttentionThreads) {
    const int begin = LoadGlobal(&run.merges[m].partial_begin), splits = LoadGlobal(&run.merges[m].splits);
    if (partial >= begin && partial < begin + splits) shared->merge = m;
  }
  SyncThreads();
  return shared->merge;
}

// Counts a part; whoever counts the last one joins all. By the threads that compute.
template <typename Shape>
TM_DEVICE void FinishPart(const HopperAttentionParams& p, const HopperItem& item, int number,
                          DecodeShared* shared) {
  const AttentionRunParams& run = p.run;
  AttentionMerge merge;
  merge.partial_begin = LoadUniform(&run.merges[number].partial_begin);
  merge.splits = LoadUniform(&run.merges[number].splits);
  int32_t* const done = p.parts_done + number * run.kv.format.kv_heads + item.kv_head;
  if (ThreadX() == 0) shared->is_last = AtomicAddGlobal(done, 1) == merge.splits - 1 ? 1 : 0;
  SyncThreads();
  if (shared->is_last == 0) return;
  FenceGlobal();  // the others' parts, behind their count
  MergeParts<Shape>(run, item, merge);
  if (ThreadX() == 0) StoreGlobal(done, 0);
}

// Of sharers a part of each.
template <typename Shape>
TM_DEVICE void FinishParts(const HopperAttentionParams& p, const HopperItem& item, DecodeShared* shared) {
  FenceGlobal();  // the parts, before they are counted
  if (!IsOfSharers(item.partial)) {
    return FinishPart<Shape>(p, item, MergeOfPart(p.run, item.partial, shared), shared);
  }
  SyncThreads();  // all have stored theirs
  HopperItem own = item;
  own.rows = p.run.group;
  for (int m = 0; m < MembersOf(item.partial); ++m) {
    own.first_token = item.first_token + m;
    FinishPart<Shape>(p, own, LoadUniform(&p.run.shares[item.sequence + m].merge), shared);
    SyncThreads();  // before it is asked again who is last
  }
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

  const AttentionItem rows = {item.sequence, item.row_begin, item.key_begin, item.key_end, item.partial};
  if (JoinWarps(at, state, scale)) Write(p.run, at, rows, item.kv_head, item.first_token, item.rows, state);
  if (item.partial != -1) FinishParts<Shape>(p, item, shared);
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
  TM_CHECK(HopperDecodeSupported(params.run.kv) && params.run.tile_rows == kHopperDecodeRows &&
               params.parts_done != nullptr,
           "decode in tiles of %d rows", params.run.tile_rows);
  const HopperAttentionParams p = PreparedForHopper(params);
  const auto to = static_cast<Stream>(stream);
  return p.run.kv.format.head_dim == 64 ? LaunchDecode<64>(p, to) : LaunchDecode<128>(p, to);
}

}  // namespace tramontane::cuda
