// Attention whose rows see other keys than a window (sinks, by numbers that each row brings, or a mask), or
// whose pages are quantised and were not decoded before (decode_pages.cu).
//
// Shapes: as attention.cu, bf16, and pages of int8, int4 (in groups of 8 and more) or fp8; sinks.len, left,
//         query_position [tokens]; sinks.query [tokens, query_heads * head_dim]; a mask of bits
//         (AttentionMaskView).
// Grid:   as attention.cu, the tile of 16 rows alone. Who takes the first keys of a tile of rows walks the
//         tile's sinks before them, with the queries that stand for sink keys, in one softmax.
// Bytes:  d = head_dim; rows = live rows of the tile; keys = those of the item's range from the first that
//         some row sees; sinks = sink positions from the first to the last that some row sees, where the item
//         takes them; tiles = tiles of 64 keys that hold them, and sink tiles those of sinks.
//         an item and kv head reads    48 + rows * 2d + keys * 4d + tiles * 256: as attention.cu; + 4 where
//                                      tables are rings, + 4 where they list sinks apart
//                                      where rows see sinks + rows * 8 (+ rows * 4 where they are windowed
//                                      and there is a window) + rows * 2d + sinks * 4d + sink tiles * 256,
//                                      the last three if the item takes any
//                                      where a sequence of the call has a mask + 8, and where it is this one
//                                      rows * keys, a byte for each pair
//                                      over quantised pages instead of 4d a key or sink: 2d of int8 and
//                                      fp8, d of int4, and its scales, or for fp8 with scales 8 in all;
//                                      512 more a tile where rows lie at multiples of 2 bytes alone
//                             writes   as attention.cu, whose words on sharers and parts hold here, too
// Limits: head_dim 32, 64, 96, 128; group 1..16; any page size; sm_80 and later.
// Order:  over bf16 a tile is copied while the one before is worked on. Over quantised pages its codes are,
//         and then decoded from one part of shared memory into another (coded_tile.cuh).
// Math:   as attention.cu; a quantised number times its scale is rounded once to bf16.
// Ideas:  StreamingLLM (sinks); a query turned back instead of keys turned forward: kernels/attention.h.
#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/coded_tile.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kRows = kByRowTileRows;
static_assert(kAttentionThreads == kPartThreads);

// What a row sees: positions [begin, end), and sinks at [sink_begin, sink_end).
struct RowView {
  int begin, end;
  int sink_begin, sink_end;
};

// Of a row at `position`, of a sequence that has no mask.
TM_DEVICE RowView ViewOf(const AttentionByRowParams& p, int token, int position) {
  const int window = p.run.window;
  const auto first = static_cast<int>(FirstVisible(position, window));
  if (p.sinks.len == nullptr) return {first, position + 1, 0, 0};
  const int left = LoadGlobal(p.sinks.left + token);
  const int sink_end = Min(LoadGlobal(p.sinks.len + token), position + 1);
  int sink_begin = 0;
  if (p.sinks.windowed != 0 && window > 0) {
    sink_begin = static_cast<int>(FirstVisible(LoadGlobal(p.sinks.query_position + token), window));
  }
  return {Max(first, left), position + 1, Min(sink_begin, sink_end), sink_end};
}

TM_DEVICE bool Sees(const uint8_t* mask, int64_t pair) {
  return (LoadGlobal(mask + pair / 8) >> (pair % 8) & 1) != 0;
}

// What some row of the tile sees.
TM_DEVICE RowView UnionOf(const RowView* views, int rows) {
  RowView all = views[0];
  for (int row = 1; row < rows; ++row) {
    const RowView view = views[row];
    all.begin = Min(all.begin, view.begin);
    all.end = Max(all.end, view.end);
    if (view.sink_begin == view.sink_end) continue;
    all.sink_begin = all.sink_begin == all.sink_end ? view.sink_begin : Min(all.sink_begin, view.sink_begin);
    all.sink_end = Max(all.sink_end, view.sink_end);
  }
  return all;
}

// Of the keys in [begin, end) hides those that the bits of a mask do not show; row i's bit for the key at
// position k is bits_of_row[i] + k.
template <typename Shape>
TM_DEVICE void MaskByBits(const AttentionPlace<Shape>& at, int key, const uint8_t* mask,
                          const int64_t (&bits_of_row)[2], const int (&begin)[2], const int (&end)[2],
                          float (&score)[Shape::kKeySteps * 2][4]) {
  TM_UNROLL
  for (int n = 0; n < Shape::kKeySteps * 2; ++n) {
    TM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int own = key + n * 8 + at.pair * 2 + i % 2;
      if (own < begin[i / 2] || own >= end[i / 2]) continue;
      if (!Sees(mask, bits_of_row[i / 2] + own)) score[n][i] = kMinusInfinity;
    }
  }
}

template <int kHeadDim, bool kQuantised>
struct ByRowTile : AttentionTile<Bf16, kHeadDim, kRows> {
  using Base = AttentionTile<Bf16, kHeadDim, kRows>;
  // Queries, queries for sinks, stages of keys and of values, a tile as it stands in quantised pages, what
  // rows see.
  static constexpr int kStages = kQuantised ? 1 : kAttentionStages;
  static constexpr int kKeysAt = 2 * Base::kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + kStages * Base::kKeyBytes;
  static constexpr int kCodedAt = kValuesAt + kStages * Base::kKeyBytes;
  static constexpr int kViewsAt = kCodedAt + (kQuantised ? CodedTile<Base>::kBytes : 0);
  static constexpr int kSharedBytes = kViewsAt + kRows * static_cast<int>(sizeof(RowView));
  static_assert(kSharedBytes >= Base::kJoinBytes &&
                (kQuantised ? kSharedBytes <= AttentionByRowSharedBytes(kHeadDim)
                            : kSharedBytes == AttentionByRowSharedBytes(kHeadDim)));
};

}  // namespace

template <int kHeadDim, bool kQuantised>
TM_KERNEL TM_BOUNDS(kAttentionThreads, AttentionBlocksPerMultiprocessor(kRows)) void AttentionByRowKernel(
    AttentionByRowParams p) {
  AwaitPriorKernels();
  using Shape = ByRowTile<kHeadDim, kQuantised>;
  const AttentionRunParams& run = p.run;
  const int kv_head = BlockX() % run.kv.format.kv_heads, index = BlockX() / run.kv.format.kv_heads;
  if (index >= LoadUniform(&run.work->items)) return;
  const AttentionItem item = LoadUniform(run.items + index);
  const auto at = AttentionPlace<Shape>::OfThread();

  // The sequence's lengths: its queries are its last tokens. Sharers have one each.
  const int first_token = LoadUniform(run.qo_indptr + item.sequence);
  const int tokens = LoadUniform(run.qo_indptr + item.sequence + MembersOf(item.partial)) - first_token;
  const int rows = tokens * run.group;
  const int kv_base = LoadUniform(run.table.kv_base + item.sequence);
  const int kv_end = LoadUniform(run.table.kv_end + item.sequence);
  const int listed = kv_end - kv_base;
  const bool planned_by_mask = p.mask.bits != nullptr;
  const uint8_t* mask = nullptr;
  if (planned_by_mask) {
    const int begin = LoadUniform(p.mask.indptr + item.sequence);
    if (begin < LoadUniform(p.mask.indptr + item.sequence + 1)) mask = p.mask.bits + begin;
  }
  const int tile_rows = Min(kRows, rows - item.row_begin);

  std::byte* const queries = SharedBytes();
  std::byte* const sink_queries = queries + Shape::kQueryBytes;
  std::byte* const key_tiles = queries + Shape::kKeysAt;
  std::byte* const value_tiles = queries + Shape::kValuesAt;
  const CodedTile<Shape> coded = {queries + Shape::kCodedAt};
  auto* const views = reinterpret_cast<RowView*>(queries + Shape::kViewsAt);
  if (ThreadX() < kRows) {
    const int query = (item.row_begin + ThreadX()) / run.group;
    if (ThreadX() >= tile_rows) {
      views[ThreadX()] = {0, 0, 0, 0};
    } else if (mask != nullptr) {
      views[ThreadX()] = {kv_base, kv_end, 0, 0};
    } else if (IsOfSharers(item.partial)) {
      views[ThreadX()] = {item.key_begin, item.key_end, 0, 0};
    } else {
      views[ThreadX()] = ViewOf(p, first_token + query, kv_end - tokens + query);
    }
  }
  SyncThreads();
  const RowView seen = UnionOf(views, tile_rows);

  const KeyRun others = {LoadPages(run.table, item.sequence), item.key_begin, Max(item.key_begin, seen.begin),
                         Min(item.key_end, seen.end)};
  KeyRun sinks = {LoadSinkPages(run.table, item.sequence, others.pages), seen.sink_begin, seen.sink_begin,
                  seen.sink_end};
  const int first_key = planned_by_mask ? kv_base : seen.begin;  // of the tile's first item
  const bool takes_sinks = item.key_begin == first_key / kKeyTile * kKeyTile;
  if (!takes_sinks) sinks.end = sinks.begin;
  const int sink_tiles = sinks.tiles();
  const int tiles = sink_tiles + others.tiles();

  float head_scale[2] = {1.0f, 1.0f};  // of keys and of values in fp8
  if (kQuantised && run.kv.format.element.companion_bytes == 0 && run.kv.scale.scales != nullptr) {
    head_scale[0] = LoadUniform(reinterpret_cast<const float*>(run.kv.scale.Key(0, kv_head, 0)));
    head_scale[1] = LoadUniform(reinterpret_cast<const float*>(run.kv.scale.Value(0, kv_head, 0)));
  }
  const auto load = [&](int t) {
    const bool of_sinks = t < sink_tiles;
    const KeyRun keys = of_sinks ? sinks : others;
    const int first = keys.first + (of_sinks ? t : t - sink_tiles) * kKeyTile;
    const int stage = t % Shape::kStages * Shape::kKeyBytes;
    if constexpr (kQuantised) {
      CopyCoded(run, p.coded, keys, kv_head, first, coded);
    } else {
      CopyKeys<Shape>(run.pages, keys, kv_head, first, key_tiles + stage, value_tiles + stage);
    }
  };
  LoadQueries<Shape>(run.query, run.query_stride, first_token, run.group, kv_head, item.row_begin, rows,
                     queries);
  if (sink_tiles > 0) {
    LoadQueries<Shape>(p.sinks.query.data, p.sinks.query.row_stride, first_token, run.group, kv_head,
                       item.row_begin, rows, sink_queries);
  }
  if (tiles > 0) load(0);
  CopyCommit();

  AttentionState<Shape> state;
  uint32_t query[Shape::kDimSteps][4];
  const float scale = run.scale * kAttentionLog2E;
  for (int t = 0; t < tiles; ++t) {
    const int stage = t % Shape::kStages * Shape::kKeyBytes;
    if constexpr (kQuantised) {
      CopyWait<0>();
      SyncThreads();  // the tile is there, and nobody works on the one before
      static_assert(Shape::kValuesAt == Shape::kKeysAt + Shape::kKeyBytes);
      DecodeCoded(run.kv.format.element, p.coded, coded, head_scale, key_tiles);
      SyncThreads();
      if (t + 1 < tiles) load(t + 1);
      CopyCommit();
    } else {
      if (t + 1 < tiles) load(t + 1);
      CopyCommit();
      CopyWait<1>();  // all but the next tile
      SyncThreads();
    }
    const bool of_sinks = t < sink_tiles;
    if (t == 0 || t == sink_tiles) QueryFragments<Shape>(at, of_sinks ? sink_queries : queries, query);
    float score[Shape::kKeySteps * 2][4] = {};
    Scores<Shape>(at, query, key_tiles + stage, score);

    const int tile_key = of_sinks ? sinks.first + t * kKeyTile : others.first + (t - sink_tiles) * kKeyTile;
    int begin[2], end[2];
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const RowView view = views[at.group_lane + 8 * i];
      begin[i] = of_sinks ? view.sink_begin : view.begin;
      end[i] = of_sinks ? view.sink_end : Min(view.end, item.key_end);
    }
    Mask<Shape>(at, tile_key + at.warp_key(), begin, end, score);
    if (mask != nullptr) {
      int64_t bits_of_row[2];  // of its query's bits that of position 0
      TM_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int64_t query_of_row = (item.row_begin + at.group_lane + 8 * i) / run.group;
        bits_of_row[i] = query_of_row * listed - kv_base;
      }
      MaskByBits<Shape>(at, tile_key + at.warp_key(), mask, bits_of_row, begin, end, score);
    }
    Softmax<Shape>(state, score, scale);
    Accumulate<Shape>(at, score, value_tiles + stage, state);
    if constexpr (!kQuantised) SyncThreads();  // the stage may be overwritten
  }
  if (JoinWarps<Shape>(at, state, scale)) Write<Shape>(run, at, item, kv_head, first_token, rows, state);
  if (item.partial != -1) {
    FinishPart<Bf16>(run, {run.items + index, item.sequence, item.partial, kv_head}, kHeadDim,
                     reinterpret_cast<int32_t*>(SharedBytes()), [] { SyncThreads(); });
  }
}

namespace {

template <int kHeadDim, bool kQuantised>
int Launch(const AttentionByRowParams& p, Stream stream) {
  constexpr int kSharedBytes = ByRowTile<kHeadDim, kQuantised>::kSharedBytes;
  if (const int error = AllowSharedBytes<AttentionByRowKernel<kHeadDim, kQuantised>, kSharedBytes>())
    return error;
  const Dim3 grid{static_cast<unsigned>(p.run.max_items * p.run.kv.format.kv_heads)};
  return TM_LAUNCH((AttentionByRowKernel<kHeadDim, kQuantised>), grid, Dim3{kAttentionThreads}, kSharedBytes,
                   stream, p);
}

template <bool kQuantised>
int LaunchDim(const AttentionByRowParams& p, Stream stream) {
  switch (p.run.kv.format.head_dim) {
    case 32:
      return Launch<32, kQuantised>(p, stream);
    case 64:
      return Launch<64, kQuantised>(p, stream);
    case 96:
      return Launch<96, kQuantised>(p, stream);
    default:
      return Launch<128, kQuantised>(p, stream);
  }
}

}  // namespace

int RunAttentionByRow(const AttentionByRowParams& given, void* stream) {
  AttentionByRowParams params = given;
  params.run.pages = DevicePages(given.run.kv);
  params.coded = CodedRowsOf(given.run.kv);
  const auto queue = static_cast<Stream>(stream);
  return params.run.kv.format.element.plain() && params.run.kv.format.element != Format::BareFp8()
             ? LaunchDim<false>(params, queue)
             : LaunchDim<true>(params, queue);
}

}  // namespace tramontane::cuda
