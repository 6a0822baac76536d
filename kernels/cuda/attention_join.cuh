// The end of an attention kernel where rows were split: whoever has written the last part of some rows joins
// all of them, in the order of the keys. So the result does not depend on who that is. Device side.
//
// Who writes a part together is four warps: a block, or on Hopper a warpgroup of prefill, whose rows are a
// half of the tile and are counted for themselves.
// Bytes: d = elements of a row, up to 128.
//        a part reads 12 and writes 4 for each sequence that it has rows of: whose part it is, of how many,
//        and the count;
//        the last part of some rows reads 112 (what they are, in each warp) + rows * splits * (4d + 8),
//        parts, and their lse twice; and writes 4 + rows * 2d (+ rows * 4 with lse).
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/last_block.cuh"

namespace tramontane::cuda {

inline constexpr int kPartWarps = 4;
inline constexpr int kPartThreads = kPartWarps * 32;

// What four warps have written: the part that an item has of its tile's rows, for one kv head.
struct WrittenPart {
  const AttentionItem* item;  // global memory
  int sequence, partial;      // the item's; partial is not -1
  int kv_head;
  int groups = 1, group = 0;  // of four warps each, that have equal shares of the tile's rows; which one
};

// By four warps: rows [first_row, end_row) of the tile of a merge, for one kv head. A warp takes a row, a
// lane four elements of it at once.
template <typename T>
TM_DEVICE void JoinParts(const AttentionRunParams& p, const AttentionMerge& merge, int kv_head,
                         int row_elements, int first_row, int end_row) {
  if (ThreadX() % kPartThreads == 0) CountJoinedParts(merge.splits);
  const int kv_heads = p.kv.format.kv_heads;
  const int first_token = LoadTogether<32>(p.qo_indptr + merge.sequence);
  const int tokens = LoadTogether<32>(p.qo_indptr + merge.sequence + 1) - first_token;
  const int end = Min(end_row, tokens * p.group - merge.row_begin);
  const int64_t split_rows = int64_t{kv_heads} * p.tile_rows;  // from a split to the next
  TM_ROLLED
  for (int row = first_row + ThreadX() / 32 % kPartWarps; row < end; row += kPartWarps) {
    const int64_t slot = (int64_t{merge.partial_begin} * kv_heads + kv_head) * p.tile_rows + row;
    const float* const lse = p.partial_lse + slot;
    float max = kMinusInfinity;
    TM_ROLLED
    for (int s = LaneId(); s < merge.splits; s += 32) max = Max(max, LoadGlobalWritten(lse + s * split_rows));
    TM_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) max = Max(max, ShuffleXor(max, mask));
    const float base = max == kMinusInfinity ? 0.0f : max;
    const int r = merge.row_begin + row;
    const int64_t token = first_token + r / p.group;
    const int head = kv_head * p.group + r % p.group;
    TM_ROLLED
    for (int d = LaneId() * 4; d < row_elements; d += 128) {
      const float* const part = p.partial_out + slot * row_elements + d;
      float sum = 0.0f, out[4] = {};
      TM_UNROLL_BY_4
      for (int s = 0; s < merge.splits; ++s) {
        const float weight = Exp2(LoadTogetherWritten<32>(lse + s * split_rows) - base);
        const Vector16 four = LoadGlobal16Written(part + s * split_rows * row_elements);
        sum += weight;
        TM_UNROLL
        for (int i = 0; i < 4; ++i) out[i] += weight * FloatOf(four.word[i]);
      }
      const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
      auto* const to = static_cast<T*>(p.out) + token * p.out_stride + int64_t{head} * row_elements + d;
      StoreGlobal(reinterpret_cast<Vector8*>(to), Vector8{{PackPair<T>(out[0] * inverse, out[1] * inverse),
                                                           PackPair<T>(out[2] * inverse, out[3] * inverse)}});
      if (p.lse != nullptr && d == 0) {
        StoreGlobal(p.lse + token * (kv_heads * p.group) + head,
                    sum > 0.0f ? base + Log2(sum) : kMinusInfinity);
      }
    }
  }
}

// By the four warps that have written a part, or of sharers one of each: counts it, and joins the parts of
// those rows of which it is the last. is_last: [kByRowTileRows] in shared memory, as CountDone has it, of all
// but sharers the first alone. `sync`: a barrier of the four warps.
template <typename T, typename Sync>
TM_DEVICE void FinishPart(const AttentionRunParams& p, const WrittenPart& part, int row_elements,
                          int32_t* is_last, const Sync& sync) {
  const int members = MembersOf(part.partial);
  const auto merge_of = [&](int member) {
    return IsOfSharers(part.partial) ? &p.shares[part.sequence + member].merge : &part.item->merge;
  };
  const auto count_of = [&](int member) {
    const int number = LoadGlobal(merge_of(member));
    const int place = (number * p.kv.format.kv_heads + part.kv_head) * part.groups + part.group;
    return DoneCount{p.parts_done + place, LoadGlobal(&p.merges[number].splits)};
  };
  CountDone(ThreadX() % kPartThreads, members, count_of, is_last, sync);
  const int rows = p.tile_rows / part.groups;
  TM_ROLLED
  for (int member = 0; member < members; ++member) {
    if (is_last[member] == 0) continue;
    const AttentionMerge merge = LoadTogether<32>(p.merges + LoadTogether<32>(merge_of(member)));
    JoinParts<T>(p, merge, part.kv_head, row_elements, part.group * rows, (part.group + 1) * rows);
  }
}

}  // namespace tramontane::cuda
