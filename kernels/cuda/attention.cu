// Paged grouped-query attention with a sliding window: prefill, decode and mixtures, one family.
//
// Shapes: query, out [tokens, query_heads * head_dim] T; pages of T (KvLayerView); PageTableView.
// Grid:   AttentionKernel max_items * kv_heads blocks of 4 warps, an item's kv heads side by side: the
//         longest items begin first. A block takes one AttentionItem for one kv head: a tile of rows (row =
//         token * group + head in group, so that all query heads of a kv head share each key) against the
//         keys [key_begin, key_end), 64 at a time. Three tiles:
//           128 rows (prefill that fills the device with them; head_dim 64 alone): warp w takes rows
//                              32w..32w+31 and all 64 keys, so that what it reads of them feeds twice the
//                              products;
//           64 rows (prefill): warp w takes rows 16w..16w+15 and all 64 keys;
//           16 rows (decode):  every warp takes all rows and 16 of the 64 keys; the warps' softmax states are
//                              joined in warp order at the end.
//         Of rows whose keys were split the block that writes the last part joins all
//         (attention_join.cuh). Whether there are any only the device knows.
// Bytes:  d = head_dim; rows = live rows of the tile; keys = those of the item's range that some row sees.
//         an item and kv head reads    44 + rows * 2d + keys * 4d + tiles * 256: its lengths, the query, keys
//                                      and values, and of each tile of 64 keys a page number a row; + 4
//                                      where tables are rings
//                             writes   rows * 2d (+ rows * 4 with lse), or rows * (4d + 4) when it is a part
//         of sharers it reads rows * 4 more, and has the rows of as many sequences as fill its tile.
//         a part and those who join some: attention_join.cuh. Every other block reads 4.
//         So decode reads the keys inside the window, whatever the context: tiles outside do not exist, and
//         keys of an edge tile that no row sees are not fetched.
// Limits: head_dim 32, 64, 96, 128; group 1..16; T bf16 or f16; any page size; sm_80 and later (mma.sync).
// Issue:  per warp and tile of keys as budget.txt says: no division, and where no key is masked no branch but
//         the loop's own; in shapes without an inner loop (kHasInnerLoop) those that ask for the next tile
//         and for an edge besides.
// Math:   scores in f32; softmax in base 2, the scale in its exponent; P rounded to T before the second
//         product; f32 sums.
// Ideas:  FlashAttention-2 (online softmax over key tiles, P in registers), FlashInfer (rows = tokens x group
//         in the tile's M dimension; CSR page tables; partial states as an algebra), PagedAttention (pages).
#include "kernels/cuda/attention.h"

#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace tramontane::cuda {

static_assert(kAttentionThreads == kPartThreads);

namespace {

// Whether inner tiles have a loop to themselves, with no branch but its own: the price is up to 21 registers.
// The wide tile and that of 16 rows over heads of 128 have none left and would spill, and that of 64 rows
// over heads of 32 would be a block less on a multiprocessor.
template <int kHeadDim, int kTileRows>
constexpr bool kHasInnerLoop =
    kTileRows == kByRowTileRows ? kHeadDim < 128 : kTileRows != kWideTileRows && kHeadDim > 32;

// Blocks of a kernel that its registers shall leave room for: of heads of 64 and 64 rows it is one more than
// others have, which fits their shared memory.
template <int kHeadDim, int kTileRows>
constexpr int kBlocksByRegisters =
    kHeadDim == 64 && kTileRows == kLargeTileRows ? 3 : AttentionBlocksPerMultiprocessor(kTileRows);

}  // namespace

template <typename T, int kHeadDim, int kTileRows>
TM_KERNEL TM_BOUNDS(kAttentionThreads,
                    kBlocksByRegisters<kHeadDim, kTileRows>) void AttentionKernel(AttentionRunParams p) {
  AwaitPriorKernels();
  using Shape = AttentionTile<T, kHeadDim, kTileRows>;
  const int kv_head = BlockX() % p.kv.format.kv_heads, index = BlockX() / p.kv.format.kv_heads;
  if (index >= LoadUniform(&p.work->items)) return;
  const AttentionItem item = LoadUniform(p.items + index);
  const auto at = AttentionPlace<Shape>::OfThread();

  const ItemRows of = LoadRows(p, item);
  const int first_token = of.first_token, rows = of.rows, window = of.window;
  const int tile_first =
      of.first_position + item.row_begin / p.group;  // positions of the tile's first and last rows
  const int last_row = item.row_begin + kTileRows < rows ? item.row_begin + kTileRows : rows;
  const int tile_last = of.first_position + (last_row - 1) / p.group;
  const int key_begin = Max(item.key_begin, static_cast<int>(FirstVisible(tile_first, window)));
  const auto all_begin = static_cast<int>(FirstVisible(tile_last, window));  // what all rows see begins

  std::byte* const query_tile = SharedBytes();
  std::byte* const key_tiles = query_tile + Shape::kQueryBytes;
  std::byte* const value_tiles = key_tiles + kAttentionStages * Shape::kKeyBytes;
  const KeyRun keys = {LoadPages(p.table, item.sequence), item.key_begin, key_begin, item.key_end};
  const int tiles = keys.tiles();
  const auto copy = [&](int t) {
    const int stage = t % kAttentionStages;
    CopyKeys<Shape>(p.pages, keys, kv_head, keys.first + t * kKeyTile, key_tiles + stage * Shape::kKeyBytes,
                    value_tiles + stage * Shape::kKeyBytes);
  };
  LoadQueries<Shape>(p.query, p.query_stride, first_token, p.group, kv_head, item.row_begin, rows,
                     query_tile);
  CopyCommit();
  if (tiles > 0) copy(0);
  CopyCommit();

  // What the thread's rows see.
  int begin[Shape::kThreadRows], end[Shape::kThreadRows];
  TM_UNROLL
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    const int r = item.row_begin + at.row(i);
    const int position = of.first_position + (r < rows ? r : rows - 1) / p.group;
    begin[i] = static_cast<int>(FirstVisible(position, window));
    end[i] = Min(position + 1, item.key_end);
  }
  AttentionState<Shape> state;
  const float scale = p.scale * kAttentionLog2E;
  uint32_t query[Shape::kDimSteps][4 * Shape::kFragments];
  CopyWait<1>();  // the queries
  SyncThreads();
  QueryFragments(at, query_tile, query);

  // inner: behind tile t is another one, and no row has a key of tile t hidden from it.
  const auto step = [&](int t, auto inner) {
    constexpr bool kInner = decltype(inner)::value;
    const int stage = t % kAttentionStages;
    if (kInner || t + 1 < tiles) copy(t + 1);
    CopyCommit();
    CopyWait<1>();  // all but the next tile
    SyncThreads();
    float score[Shape::kKeySteps * 2][2 * Shape::kThreadRows] = {};
    Scores(at, query, key_tiles + stage * Shape::kKeyBytes, score);
    if constexpr (!kInner) {
      // At the edges only: the first tiles of the window, and the last ones before the rows' own positions.
      const int tile_key = keys.first + t * kKeyTile;
      const bool edge =
          tile_key + kKeyTile - 1 > tile_first || tile_key + kKeyTile > item.key_end || tile_key < all_begin;
      if (edge) Mask(at, tile_key + at.warp_key(), begin, end, score);
    }
    Softmax(state, score, scale);
    Accumulate(at, score, value_tiles + stage * Shape::kKeyBytes, state);
    SyncThreads();  // the stage may be overwritten
  };
  // Inner tiles are [inner_begin, inner_end) but for the first, which goes as any does.
  const int inner_begin = (Max(all_begin - keys.first, 0) + kKeyTile - 1) / kKeyTile;
  const int inner_end = Min(tiles - 1, (Min(tile_first + 1, item.key_end) - keys.first) / kKeyTile);
  for (int t = 0; t < tiles;) {
    step(t++, std::false_type());
    if constexpr (kHasInnerLoop<kHeadDim, kTileRows>) {
      if (t < inner_begin) continue;
      TM_ROLLED
      for (; t < inner_end; ++t) step(t, std::true_type());
    }
  }
  if (JoinWarps(at, state, scale)) Write(p, at, item, kv_head, first_token, rows, state);
  if (item.partial != -1) {
    FinishPart<T>(p, {p.items + index, item.sequence, item.partial, kv_head}, kHeadDim,
                  reinterpret_cast<int32_t*>(SharedBytes()), [] { SyncThreads(); });
  }
}

namespace {

// Calls launch(type, head_dim), both known to the compiler.
template <typename Launch>
int WithShape(const KvFormat& format, Launch&& launch) {
  const auto with_type = [&]<typename T>(T type) {
    switch (format.head_dim) {
      case 32:
        return launch(type, std::integral_constant<int, 32>());
      case 64:
        return launch(type, std::integral_constant<int, 64>());
      case 96:
        return launch(type, std::integral_constant<int, 96>());
      default:
        return launch(type, std::integral_constant<int, 128>());
    }
  };
  return format.element.dtype == DType::kF16 ? with_type(F16()) : with_type(Bf16());
}

template <typename T, int kHeadDim, int kTileRows>
int LaunchTile(const AttentionRunParams& p, Stream stream) {
  using Shape = AttentionTile<T, kHeadDim, kTileRows>;
  if (const int error = AllowSharedBytes<AttentionKernel<T, kHeadDim, kTileRows>, Shape::kSharedBytes>())
    return error;
  const Dim3 grid{static_cast<unsigned>(p.max_items * p.kv.format.kv_heads)};
  return TM_LAUNCH((AttentionKernel<T, kHeadDim, kTileRows>), grid, Dim3{kAttentionThreads},
                   Shape::kSharedBytes, stream, p);
}

}  // namespace

int RunAttention(const AttentionRunParams& given, void* stream) {
  TM_CHECK(given.tile_rows != kWideTileRows || HasWideTile(given.kv.format.head_dim),
           "tiles of %d rows over heads of %d", given.tile_rows, given.kv.format.head_dim);
  AttentionRunParams params = given;
  params.pages = DevicePages(given.kv);
  const auto launch = [&]<typename T, int kHeadDim>(T, std::integral_constant<int, kHeadDim>) {
    const auto queue = static_cast<Stream>(stream);
    if constexpr (HasWideTile(kHeadDim)) {
      if (params.tile_rows == kWideTileRows) return LaunchTile<T, kHeadDim, kWideTileRows>(params, queue);
    }
    return params.tile_rows == kByRowTileRows ? LaunchTile<T, kHeadDim, kByRowTileRows>(params, queue)
                                              : LaunchTile<T, kHeadDim, kLargeTileRows>(params, queue);
  };
  return WithShape(params.kv.format, launch);
}

}  // namespace tramontane::cuda
