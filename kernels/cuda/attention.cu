// Paged grouped-query attention with a sliding window: prefill, decode and mixtures, one family.
//
// Shapes: query, out [tokens, query_heads * head_dim] T; pages of T (KvLayerView); tables in compressed rows.
// Grid:   AttentionKernel (max_items, kv_heads) blocks of 4 warps. A block takes one AttentionItem for one kv
//         head: a tile of rows (row = token * group + head in group, so that all query heads of a kv head
//         share each key) against the keys [key_begin, key_end), 64 at a time. Two tiles:
//           64 rows (prefill): warp w takes rows 16w..16w+15 and all 64 keys;
//           16 rows (decode):  every warp takes all rows and 16 of the 64 keys; the warps' softmax states are
//                              joined in warp order at the end.
//         MergeKernel (max_items, kv_heads): a block joins the splits of one AttentionMerge for one kv head.
// Bytes:  d = head_dim; rows = live rows of the tile; keys = those of the item's range that some row sees.
//         an item and kv head reads    48 + rows * 2d + keys * (4d + d / 2): its lengths, the query, keys and
//                                      values, and a page number for each 16 bytes of a key
//                             writes   rows * 2d (+ rows * 4 with lse), or rows * (4d + 4) when it is a part
//         a merge and kv head reads    28 + rows * splits * 8d: parts, and their lse twice for each pair of
//                                      elements (the caches' bytes, not the memory's)
//                             writes   rows * 2d (+ rows * 4 with lse)
//         every other block of the two grids reads 4.
//         So decode reads the keys inside the window, whatever the context: tiles outside do not exist, and
//         keys of an edge tile that no row sees are not fetched.
// Limits: head_dim 32, 64, 96, 128; group 1..16; T bf16 or f16; any page size; sm_80 and later (mma.sync).
// Math:   scores in f32, softmax in base 2, P rounded to T before the second product, f32 sums.
// Ideas:  FlashAttention-2 (online softmax over key tiles, P in registers), FlashInfer (rows = tokens x group
//         in the tile's M dimension; CSR page tables; partial states as an algebra), PagedAttention (pages).
#include "kernels/cuda/attention.h"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

template <typename T, int kHeadDim, int kTileRows>
struct Tile {
  static constexpr int kRowWarps = kTileRows / 16;        // warps side by side over rows
  static constexpr int kKeyWarps = kWarps / kRowWarps;    // and over keys
  static constexpr int kWarpKeys = kKeyTile / kKeyWarps;  // keys of a tile that one warp takes
  static constexpr int kKeySteps = kWarpKeys / 16;
  static constexpr int kDimSteps = kHeadDim / 16;
  static constexpr int kChunks = kHeadDim / 8;  // 16-byte pieces of a row
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kKeyBytes = kKeyTile * kRowBytes;
  static constexpr int kStateBytes = kTileRows * (kHeadDim + 2) * 4;  // one warp's O, max and sum
  static constexpr int kLoadBytes = kQueryBytes + 2 * kStages * kKeyBytes;
  static constexpr int kSharedBytes =
      kKeyWarps > 1 && kKeyWarps* kStateBytes > kLoadBytes ? kKeyWarps* kStateBytes : kLoadBytes;
  static_assert(kRowWarps * kKeyWarps == kWarps && kKeySteps * 16 * kKeyWarps == kKeyTile);

  // Byte offset of a 16-byte piece in a tile. The exclusive or spreads eight neighbouring rows over all
  // banks.
  TM_DEVICE static int Swizzle(int row, int chunk) {
    const int twist = kChunks % 8 == 0 ? row & 7 : (row >> 1) & 3;
    return row * kRowBytes + (chunk ^ twist) * 16;
  }
};

// Copies the keys and values at absolute positions [tile, tile + 64) into a tile; zero where not in [begin,
// end).
template <typename Shape>
TM_DEVICE void LoadKeys(const AttentionRunParams& p, const int32_t* pages, int kv_base, int kv_head, int tile,
                        int begin, int end, std::byte* keys, std::byte* values) {
  const int page_size = p.kv.format.page_size;
  for (int piece = ThreadX(); piece < kKeyTile * Shape::kChunks; piece += kThreads) {
    const int row = piece / Shape::kChunks, chunk = piece % Shape::kChunks;
    const int position = tile + row;
    const bool live = position >= begin && position < end;
    const std::byte* key = p.kv.pool;  // a valid address for a copy of no bytes
    if (live) {
      const int page = LoadGlobal(pages + PageOf(position, kv_base, page_size));
      key = p.kv.Key(page, kv_head, OffsetInPage(position, page_size)) + chunk * 16;
    }
    const int at = Shape::Swizzle(row, chunk);
    CopyAsync16(keys + at, key, live ? 16 : 0);
    CopyAsync16(values + at, live ? key + p.kv.value_offset : key, live ? 16 : 0);
  }
}

}  // namespace

template <typename T, int kHeadDim, int kTileRows>
TM_KERNEL void AttentionKernel(AttentionRunParams p) {
  AwaitPriorKernels();
  using Shape = Tile<T, kHeadDim, kTileRows>;
  if (BlockX() >= LoadUniform(&p.work->items)) return;
  const AttentionItem item = LoadUniform(p.items + BlockX());
  const int kv_head = BlockY();
  const int lane = LaneId(), warp = ThreadX() / 32;
  const int row_warp = warp % Shape::kRowWarps, key_warp = warp / Shape::kRowWarps;
  const int group_lane = lane / 4, pair = lane % 4;  // the fragment's row and column pair of this lane

  // The sequence's lengths: its queries are its last tokens.
  const int first_token = LoadUniform(p.qo_indptr + item.sequence);
  const int tokens = LoadUniform(p.qo_indptr + item.sequence + 1) - first_token;
  const int rows = tokens * p.group;
  const int first_page = LoadUniform(p.kv_indptr + item.sequence);
  const int pages = LoadUniform(p.kv_indptr + item.sequence + 1) - first_page;
  const int kv_base = LoadUniform(p.kv_base + item.sequence);
  const int kv_end =
      kv_base + (pages - 1) * p.kv.format.page_size + LoadUniform(p.last_page_len + item.sequence);
  const int first_position = kv_end - tokens;
  const int tile_first =
      first_position + item.row_begin / p.group;  // positions of the tile's first and last rows
  const int last_row = item.row_begin + kTileRows < rows ? item.row_begin + kTileRows : rows;
  const int tile_last = first_position + (last_row - 1) / p.group;
  const int tile_begin_visible =
      p.window > 0 && tile_first - p.window + 1 > 0 ? tile_first - p.window + 1 : 0;
  const int key_begin = item.key_begin > tile_begin_visible ? item.key_begin : tile_begin_visible;

  std::byte* query_tile = SharedBytes();
  std::byte* key_tiles = query_tile + Shape::kQueryBytes;
  std::byte* value_tiles = key_tiles + kStages * Shape::kKeyBytes;

  // The query rows, zero beyond the last one.
  for (int piece = ThreadX(); piece < kTileRows * Shape::kChunks; piece += kThreads) {
    const int row = piece / Shape::kChunks, chunk = piece % Shape::kChunks;
    const int r = item.row_begin + row;
    const auto* source = static_cast<const std::byte*>(p.query);
    if (r < rows) {
      const int64_t element = (first_token + r / p.group) * p.query_stride +
                              int64_t{kv_head * p.group + r % p.group} * kHeadDim + chunk * 8;
      source += element * 2;
    }
    CopyAsync16(query_tile + Shape::Swizzle(row, chunk), source, r < rows ? 16 : 0);
  }
  const int32_t* page_table = p.page_indices + first_page;
  LoadKeys<Shape>(p, page_table, kv_base, kv_head, item.key_begin, key_begin, item.key_end, key_tiles,
                  value_tiles);
  CopyCommit();

  // The two rows of this lane: fragment rows group_lane and group_lane + 8.
  int position[2];
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int r = item.row_begin + row_warp * 16 + group_lane + 8 * i;
    position[i] = first_position + (r < rows ? r : rows - 1) / p.group;
  }
  float out[Shape::kDimSteps * 2][4] = {};
  float row_max[2] = {kMinusInfinity, kMinusInfinity}, row_sum[2] = {0.0f, 0.0f};
  uint32_t query[Shape::kDimSteps][4];
  const float scale = p.scale * kLog2E;

  const int tiles = (item.key_end - item.key_begin + kKeyTile - 1) / kKeyTile;
  for (int t = 0; t < tiles; ++t) {
    const int stage = t % kStages;
    if (t + 1 < tiles) {
      const int next = (t + 1) % kStages;
      LoadKeys<Shape>(p, page_table, kv_base, kv_head, item.key_begin + (t + 1) * kKeyTile, key_begin,
                      item.key_end, key_tiles + next * Shape::kKeyBytes,
                      value_tiles + next * Shape::kKeyBytes);
    }
    CopyCommit();
    CopyWait<1>();  // all but the next tile
    SyncThreads();
    if (t == 0) {
      TM_UNROLL
      for (int k = 0; k < Shape::kDimSteps; ++k) {
        const int row = row_warp * 16 + lane % 8 + (lane / 8 % 2) * 8;
        LoadMatrix4(query[k], query_tile + Shape::Swizzle(row, 2 * k + lane / 16));
      }
    }
    const std::byte* keys = key_tiles + stage * Shape::kKeyBytes;
    const std::byte* values = value_tiles + stage * Shape::kKeyBytes;
    const int warp_key = key_warp * Shape::kWarpKeys;

    // Scores: [16 rows, kWarpKeys] = query * keys^T.
    float score[Shape::kKeySteps * 2][4] = {};
    TM_UNROLL
    for (int k = 0; k < Shape::kDimSteps; ++k) {
      TM_UNROLL
      for (int n = 0; n < Shape::kKeySteps; ++n) {
        uint32_t key[4];
        const int row = warp_key + n * 16 + (lane / 16) * 8 + lane % 8;
        LoadMatrix4(key, keys + Shape::Swizzle(row, 2 * k + lane / 8 % 2));
        Mma16816<T>(score[2 * n], query[k], key);
        Mma16816<T>(score[2 * n + 1], query[k], key + 2);
      }
    }

    // Mask at the edges only: the first tiles of the window, and the last ones before the rows' own
    // positions.
    const int tile_key = item.key_begin + t * kKeyTile;
    const bool edge = tile_key + kKeyTile - 1 > tile_first || tile_key + kKeyTile > item.key_end ||
                      (p.window > 0 && tile_key < tile_last - p.window + 1);
    TM_UNROLL
    for (int n = 0; n < Shape::kKeySteps * 2; ++n) {
      TM_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = tile_key + warp_key + n * 8 + pair * 2 + i % 2;
        const int at = position[i / 2];
        const bool visible =
            !edge || (key <= at && key < item.key_end && (p.window <= 0 || key > at - p.window));
        score[n][i] = visible ? score[n][i] * scale : kMinusInfinity;
      }
    }

    // Online softmax in base 2; a row is spread over the four lanes of a quad.
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      float most = row_max[i];
      TM_UNROLL
      for (int n = 0; n < Shape::kKeySteps * 2; ++n)
        most = Max(most, Max(score[n][2 * i], score[n][2 * i + 1]));
      most = Max(most, ShuffleXor(most, 1));
      most = Max(most, ShuffleXor(most, 2));
      const float base = most == kMinusInfinity ? 0.0f : most;  // no key seen yet: every weight is 0
      const float shrink = Exp2(row_max[i] - base);
      row_max[i] = most;
      float sum = 0.0f;
      TM_UNROLL
      for (int n = 0; n < Shape::kKeySteps * 2; ++n) {
        TM_UNROLL
        for (int j = 2 * i; j < 2 * i + 2; ++j) {
          score[n][j] = Exp2(score[n][j] - base);
          sum += score[n][j];
        }
      }
      row_sum[i] = row_sum[i] * shrink + sum;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        out[d][2 * i] *= shrink;
        out[d][2 * i + 1] *= shrink;
      }
    }

    // out += P * values.
    TM_UNROLL
    for (int n = 0; n < Shape::kKeySteps; ++n) {
      const uint32_t weight[4] = {PackPair<T>(score[2 * n][0], score[2 * n][1]),
                                  PackPair<T>(score[2 * n][2], score[2 * n][3]),
                                  PackPair<T>(score[2 * n + 1][0], score[2 * n + 1][1]),
                                  PackPair<T>(score[2 * n + 1][2], score[2 * n + 1][3])};
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps; ++d) {
        uint32_t value[4];
        const int row = warp_key + n * 16 + (lane / 8 % 2) * 8 + lane % 8;
        LoadMatrix4Transposed(value, values + Shape::Swizzle(row, 2 * d + lane / 16));
        Mma16816<T>(out[2 * d], weight, value);
        Mma16816<T>(out[2 * d + 1], weight, value + 2);
      }
    }
    SyncThreads();  // the stage may be overwritten
  }
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    row_sum[i] += ShuffleXor(row_sum[i], 1);
    row_sum[i] += ShuffleXor(row_sum[i], 2);
  }

  // Warps that shared rows join their states, in warp order; warp 0 of each row goes on with the result.
  if (Shape::kKeyWarps > 1) {
    auto* state = reinterpret_cast<float*>(SharedBytes());  // [kKeyWarps][16][head_dim + 2]
    constexpr int kStride = kHeadDim + 2;
    CopyWait<0>();
    SyncThreads();
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      float* row = state + (key_warp * kTileRows + group_lane + 8 * i) * kStride;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        row[d * 8 + pair * 2] = out[d][2 * i];
        row[d * 8 + pair * 2 + 1] = out[d][2 * i + 1];
      }
      if (pair == 0) {
        row[kHeadDim] = row_max[i];
        row[kHeadDim + 1] = row_sum[i];
      }
    }
    SyncThreads();
    if (key_warp > 0) return;
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float* row = state + (group_lane + 8 * i) * kStride;
      float most = kMinusInfinity;
      TM_UNROLL
      for (int w = 0; w < Shape::kKeyWarps; ++w) most = Max(most, row[w * kTileRows * kStride + kHeadDim]);
      const float base = most == kMinusInfinity ? 0.0f : most;
      row_max[i] = most;
      row_sum[i] = 0.0f;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) out[d][2 * i] = out[d][2 * i + 1] = 0.0f;
      TM_UNROLL
      for (int w = 0; w < Shape::kKeyWarps; ++w) {
        const float* other = row + w * kTileRows * kStride;
        const float shrink = Exp2(other[kHeadDim] - base);
        row_sum[i] += other[kHeadDim + 1] * shrink;
        TM_UNROLL
        for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
          out[d][2 * i] += other[d * 8 + pair * 2] * shrink;
          out[d][2 * i + 1] += other[d * 8 + pair * 2 + 1] * shrink;
        }
      }
    }
  }

  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int tile_row = row_warp * 16 + group_lane + 8 * i;
    const int r = item.row_begin + tile_row;
    if (r >= rows) continue;
    const float inverse = row_sum[i] > 0.0f ? 1.0f / row_sum[i] : 0.0f;
    const float lse = row_sum[i] > 0.0f ? row_max[i] + Log2(row_sum[i]) : kMinusInfinity;
    const int64_t token = first_token + r / p.group;
    const int head = kv_head * p.group + r % p.group;
    if (item.partial >= 0) {
      const int64_t slot = (int64_t{item.partial} * p.kv.format.kv_heads + kv_head) * kTileRows + tile_row;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        float* at = p.partial_out + slot * kHeadDim + d * 8 + pair * 2;
        StoreGlobal(at, out[d][2 * i] * inverse);
        StoreGlobal(at + 1, out[d][2 * i + 1] * inverse);
      }
      if (pair == 0) StoreGlobal(p.partial_lse + slot, lse);
    } else {
      auto* at = static_cast<T*>(p.out) + token * p.out_stride + int64_t{head} * kHeadDim + pair * 2;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        StoreGlobal(reinterpret_cast<uint32_t*>(at + d * 8),
                    PackPair<T>(out[d][2 * i] * inverse, out[d][2 * i + 1] * inverse));
      }
      if (p.lse != nullptr && pair == 0) {
        StoreGlobal(p.lse + token * (p.kv.format.kv_heads * p.group) + head, lse);
      }
    }
  }
}

// Joins the splits of one tile of rows, in key order. Grid: (merges, kv_heads); a thread takes (row, 2
// elements).
template <typename T, int kHeadDim>
TM_KERNEL void MergeKernel(AttentionRunParams p) {
  AwaitPriorKernels();
  if (BlockX() >= LoadUniform(&p.work->merges)) return;
  const AttentionMerge merge = LoadUniform(p.merges + BlockX());
  const int kv_head = BlockY();
  const int first_token = LoadUniform(p.qo_indptr + merge.sequence);
  const int rows = (LoadUniform(p.qo_indptr + merge.sequence + 1) - first_token) * p.group;
  for (int piece = ThreadX(); piece < p.tile_rows * kHeadDim / 2; piece += BlockSizeX()) {
    const int tile_row = piece / (kHeadDim / 2), d = piece % (kHeadDim / 2) * 2;
    const int r = merge.row_begin + tile_row;
    if (r >= rows) break;
    auto slot = [&](int s) {
      return (int64_t{merge.partial_begin + s} * p.kv.format.kv_heads + kv_head) * p.tile_rows + tile_row;
    };
    float most = kMinusInfinity;
    for (int s = 0; s < merge.splits; ++s) most = Max(most, LoadGlobal(p.partial_lse + slot(s)));
    const float base = most == kMinusInfinity ? 0.0f : most;
    float sum = 0.0f, first = 0.0f, second = 0.0f;
    for (int s = 0; s < merge.splits; ++s) {
      const float weight = Exp2(LoadGlobal(p.partial_lse + slot(s)) - base);
      sum += weight;
      first += weight * LoadGlobal(p.partial_out + slot(s) * kHeadDim + d);
      second += weight * LoadGlobal(p.partial_out + slot(s) * kHeadDim + d + 1);
    }
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    const int64_t token = first_token + r / p.group;
    const int head = kv_head * p.group + r % p.group;
    auto* at = static_cast<T*>(p.out) + token * p.out_stride + int64_t{head} * kHeadDim + d;
    StoreGlobal(reinterpret_cast<uint32_t*>(at), PackPair<T>(first * inverse, second * inverse));
    if (p.lse != nullptr && d == 0) {
      StoreGlobal(p.lse + token * (p.kv.format.kv_heads * p.group) + head,
                  sum > 0.0f ? base + Log2(sum) : kMinusInfinity);
    }
  }
}

namespace {

template <typename T, int kHeadDim, int kTileRows>
int LaunchTile(const AttentionRunParams& p, Stream stream) {
  using Shape = Tile<T, kHeadDim, kTileRows>;
  const Dim3 grid{static_cast<unsigned>(p.max_items), static_cast<unsigned>(p.kv.format.kv_heads)};
  if (const int error = AllowSharedBytes<AttentionKernel<T, kHeadDim, kTileRows>, Shape::kSharedBytes>())
    return error;
  if (const int error = TM_LAUNCH((AttentionKernel<T, kHeadDim, kTileRows>), grid, Dim3{kThreads},
                                  Shape::kSharedBytes, stream, p)) {
    return error;
  }
  return TM_LAUNCH((MergeKernel<T, kHeadDim>), grid, Dim3{kThreads}, 0, stream, p);
}

template <typename T, int kHeadDim>
int LaunchDim(const AttentionRunParams& p, Stream stream) {
  return p.tile_rows == 16 ? LaunchTile<T, kHeadDim, 16>(p, stream) : LaunchTile<T, kHeadDim, 64>(p, stream);
}

template <typename T>
int LaunchType(const AttentionRunParams& p, Stream stream) {
  switch (p.kv.format.head_dim) {
    case 32:
      return LaunchDim<T, 32>(p, stream);
    case 64:
      return LaunchDim<T, 64>(p, stream);
    case 96:
      return LaunchDim<T, 96>(p, stream);
    default:
      return LaunchDim<T, 128>(p, stream);
  }
}

}  // namespace

int RunAttention(const AttentionRunParams& params, void* stream) {
  return params.kv.format.element.dtype == DType::kBf16
             ? LaunchType<Bf16>(params, static_cast<Stream>(stream))
             : LaunchType<F16>(params, static_cast<Stream>(stream));
}

}  // namespace tramontane::cuda
