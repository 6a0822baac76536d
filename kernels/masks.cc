#include "kernels/masks.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

Status CheckLength(const char* name, size_t b, int32_t length) {
  if (length >= 0) return Status::Ok();
  return InvalidArgument("is " + std::to_string(length) + "; the least is 0")
      .WithField(FieldElement(name, b));
}

// As many as there are lists of queries.
Status CheckSequences(const char* name, size_t lists, size_t queries) {
  if (lists == queries) return Status::Ok();
  return InvalidArgument("has " + std::to_string(lists) + " elements, not " + std::to_string(queries) +
                         ", as queries have")
      .WithField(name);
}

// A mask whose lengths are checked and whose pairs are all hidden.
StatusOr<RaggedMask> HiddenMask(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys) {
  TM_RETURN_IF_ERROR(CheckSequences("keys", keys.size(), queries.size()));
  RaggedMask mask;
  mask.queries = queries;
  mask.keys = keys;
  mask.indptr.push_back(0);
  for (size_t b = 0; b < queries.size(); ++b) {
    TM_RETURN_IF_ERROR(CheckLength("queries", b, queries[b]));
    TM_RETURN_IF_ERROR(CheckLength("keys", b, keys[b]));
    mask.indptr.push_back(mask.indptr.back() + int64_t{queries[b]} * keys[b]);
    if (mask.indptr.back() > kMaxMaskPairs) {
      return InvalidArgument("is " + std::to_string(keys[b]) + ", which with " + std::to_string(queries[b]) +
                             " queries makes " + std::to_string(mask.indptr.back()) +
                             " pairs so far; the most is " + std::to_string(kMaxMaskPairs))
          .WithField(FieldElement("keys", b));
    }
  }
  mask.visible.resize(static_cast<size_t>(mask.indptr.back()));
  return mask;
}

void SetBit(std::vector<uint8_t>& bits, int64_t bit) {
  bits[static_cast<size_t>(bit / 8)] |= static_cast<uint8_t>(1u << (bit % 8));
}

int64_t BytesOfBits(int64_t bits) { return (bits + 7) / 8; }

// The rows of a banded mask: the last `window` columns up to the diagonal.
DenseMask BandedMask(int32_t size, int32_t window, double masked_value) {
  DenseMask mask;
  mask.size = size;
  mask.masked_value = masked_value;
  for (int32_t row = 0; row < size; ++row) {
    mask.first.push_back(static_cast<int32_t>(FirstVisible(row, window)));
    mask.end.push_back(row + 1);
  }
  return mask;
}

Status CheckWindow(int32_t window) {
  if (window >= 1) return Status::Ok();
  return InvalidArgument("is " + std::to_string(window) + "; the least is 1, the query's own key")
      .WithField("window");
}

// Rows and columns of a tile, and the window of the compressed mask.
StatusOr<AscendCompressedMask> AscendShape(const AscendMaskSpec& spec) {
  TM_RETURN_IF_ERROR(CheckWindow(spec.window));
  constexpr int32_t kWideBlock = 128, kNarrowBlock = 64;
  constexpr int32_t kBlockElements = 16384, kBlockUnit = 16;  // of the C++ rule: elements of a tile's keys
  if (spec.head_size < 1) {
    return InvalidArgument("is " + std::to_string(spec.head_size) + "; the least is 1")
        .WithField("head_size");
  }
  AscendCompressedMask shape;
  if (spec.head_size <= kWideBlock) {
    shape.block = kWideBlock;
  } else if (spec.rule == AscendRule::kPython) {
    shape.block = kNarrowBlock;
  } else {
    shape.block = kBlockElements / spec.head_size / kBlockUnit * kBlockUnit;
    if (shape.block == 0) {
      return InvalidArgument("is " + std::to_string(spec.head_size) +
                             ", whose block is 0; the most under rule cpp is " +
                             std::to_string(kBlockElements / kBlockUnit))
          .WithField("head_size");
    }
  }
  // Beyond three blocks, whole blocks are taken out of the middle of the window.
  shape.compressed_window = spec.window;
  if (spec.window > 3 * shape.block) {
    const int32_t rest = spec.window % shape.block;
    shape.compressed_window = 2 * shape.block + rest;
    if (spec.rule == AscendRule::kPython && rest == 0) shape.compressed_window = 3 * shape.block;
  }
  return shape;
}

}  // namespace

StatusOr<RaggedMask> MakeRaggedMask(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                    const std::function<bool(size_t, int64_t, int64_t)>& sees) {
  TM_ASSIGN_OR_RETURN(RaggedMask mask, HiddenMask(queries, keys));
  auto element = mask.visible.begin();
  for (size_t b = 0; b < queries.size(); ++b) {
    for (int64_t query = 0; query < queries[b]; ++query) {
      for (int64_t key = 0; key < keys[b]; ++key) *element++ = sees(b, query, key) ? 1 : 0;
    }
  }
  return mask;
}

StatusOr<RaggedMask> AlignedMask(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                 bool causal, int32_t window) {
  return MakeRaggedMask(queries, keys, [&](size_t b, int64_t query, int64_t key) {
    const int64_t position = keys[b] - queries[b] + query;
    return key >= FirstVisible(position, window) && (!causal || key <= position);
  });
}

StatusOr<RaggedMask> PositionMask(const std::vector<std::vector<int32_t>>& query_positions,
                                  const std::vector<int32_t>& first_key, const std::vector<int32_t>& keys,
                                  int32_t window) {
  std::vector<int32_t> queries;
  for (const std::vector<int32_t>& positions : query_positions) {
    queries.push_back(static_cast<int32_t>(positions.size()));
  }
  TM_RETURN_IF_ERROR(CheckSequences("first_key", first_key.size(), queries.size()));
  return MakeRaggedMask(queries, keys, [&](size_t b, int64_t query, int64_t key) {
    const int64_t at = query_positions[b][static_cast<size_t>(query)];
    const int64_t held = first_key[b] + key;
    return held >= FirstVisible(at, window) && held <= at;
  });
}

StatusOr<RaggedMask> MaskOfBools(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                 const std::vector<uint8_t>& bools) {
  TM_ASSIGN_OR_RETURN(RaggedMask mask, HiddenMask(queries, keys));
  if (bools.size() != mask.visible.size()) {
    return InvalidArgument("has " + std::to_string(bools.size()) + " elements; queries x keys make " +
                           std::to_string(mask.visible.size()))
        .WithField("custom_mask");
  }
  const auto strange = std::find_if(bools.begin(), bools.end(), [](uint8_t value) { return value > 1; });
  if (strange != bools.end()) {
    return InvalidArgument("is " + std::to_string(*strange) + ", not 0 or 1")
        .WithField(FieldElement("custom_mask", static_cast<size_t>(strange - bools.begin())));
  }
  mask.visible = bools;
  return mask;
}

StatusOr<RaggedMask> MaskOfBits(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                                const std::vector<uint8_t>& bits, const std::vector<int32_t>& indptr) {
  TM_ASSIGN_OR_RETURN(RaggedMask mask, HiddenMask(queries, keys));
  if (indptr.size() != queries.size() + 1) {
    return InvalidArgument("has " + std::to_string(indptr.size()) + " elements; " +
                           std::to_string(queries.size()) + " sequences need one more than there are")
        .WithField("packed_mask_indptr");
  }
  for (size_t b = 0; b <= queries.size(); ++b) {
    const int64_t wanted = b == 0 ? 0 : indptr[b - 1] + BytesOfBits(mask.indptr[b] - mask.indptr[b - 1]);
    if (indptr[b] == wanted) continue;
    return InvalidArgument("is " + std::to_string(indptr[b]) + ", not " + std::to_string(wanted))
        .WithField(FieldElement("packed_mask_indptr", b));
  }
  if (static_cast<int64_t>(bits.size()) != indptr.back()) {
    return InvalidArgument("has " + std::to_string(bits.size()) + " bytes; packed_mask_indptr ends at " +
                           std::to_string(indptr.back()))
        .WithField("packed_custom_mask");
  }
  for (size_t b = 0; b < queries.size(); ++b) {
    const int64_t pairs = mask.indptr[b + 1] - mask.indptr[b];
    for (int64_t e = 0; e < pairs; ++e) {
      mask.visible[static_cast<size_t>(mask.indptr[b] + e)] =
          (bits[static_cast<size_t>(indptr[b] + e / 8)] >> (e % 8)) & 1;
    }
  }
  return mask;
}

void ShowKeys(uint8_t* bits, int64_t begin, int64_t end) {
  for (; begin < end && begin % 8 != 0; ++begin) bits[begin / 8] |= static_cast<uint8_t>(1 << begin % 8);
  for (; begin + 8 <= end; begin += 8) bits[begin / 8] = 0xff;
  for (; begin < end; ++begin) bits[begin / 8] |= static_cast<uint8_t>(1 << begin % 8);
}

std::vector<uint8_t> PackFlat(const RaggedMask& mask) {
  const auto pairs = static_cast<int64_t>(mask.visible.size());
  std::vector<uint8_t> bits(static_cast<size_t>(BytesOfBits(pairs)));
  for (int64_t e = 0; e < pairs; ++e) {
    if (mask.visible[static_cast<size_t>(e)] != 0) SetBit(bits, e);
  }
  return bits;
}

PackedMask PackSegments(const RaggedMask& mask) {
  PackedMask packed;
  packed.indptr.push_back(0);
  for (size_t b = 0; b < mask.queries.size(); ++b) {
    const int64_t pairs = mask.indptr[b + 1] - mask.indptr[b];
    const int64_t first = int64_t{packed.indptr.back()} * 8;
    packed.indptr.push_back(packed.indptr.back() + static_cast<int32_t>(BytesOfBits(pairs)));
    packed.bits.resize(static_cast<size_t>(packed.indptr.back()));
    for (int64_t e = 0; e < pairs; ++e) {
      if (mask.visible[static_cast<size_t>(mask.indptr[b] + e)] != 0) SetBit(packed.bits, first + e);
    }
  }
  return packed;
}

const char* RollingPhaseName(RollingPhase phase) {
  switch (phase) {
    case RollingPhase::kFirstPrefill:
      return "first_prefill";
    case RollingPhase::kSubsequentPrefill:
      return "subsequent_prefill";
    case RollingPhase::kDecode:
      return "decode";
  }
  return "";
}

RollingBlock MakeRollingBlock(RollingPhase phase, int64_t seen, int64_t new_tokens,
                              const std::vector<int64_t>& ring) {
  RollingBlock block;
  for (int64_t i = 0; i < new_tokens; ++i) block.queries.push_back(seen + i);
  block.keys = ring;
  if (phase == RollingPhase::kDecode) return block;
  std::erase(block.keys, -1);
  std::sort(block.keys.begin(), block.keys.end());
  block.keys.insert(block.keys.end(), block.queries.begin(), block.queries.end());
  return block;
}

StatusOr<RaggedMask> RollingMask(const std::vector<RollingBlock>& blocks, int32_t window) {
  TM_RETURN_IF_ERROR(CheckWindow(window));
  return ContextMask(blocks, {}, window);
}

StatusOr<RaggedMask> ContextMask(const std::vector<RollingBlock>& blocks, const ContextPolicy& policy,
                                 int32_t window) {
  TM_RETURN_IF_ERROR(CheckContextPolicy(policy));
  if (policy.type == ContextPolicyType::kReevaluate) {
    return InvalidArgument("is reevaluate, which moves tokens").WithField("policy", FieldForm::kSubject);
  }
  std::vector<int32_t> queries, keys;
  for (const RollingBlock& block : blocks) {
    queries.push_back(static_cast<int32_t>(block.queries.size()));
    keys.push_back(static_cast<int32_t>(block.keys.size()));
  }
  return MakeRaggedMask(queries, keys, [&](size_t b, int64_t query, int64_t key) {
    const int64_t at = blocks[b].queries[static_cast<size_t>(query)];
    const int64_t held = blocks[b].keys[static_cast<size_t>(key)];
    if (held < 0 || held > at) return false;
    const ContextView view = ViewAt(policy, at);
    // Under `shift` the window counts cache positions, for sinks too; under `sinks` those are always seen.
    if (held < view.sink_len) {
      return policy.type == ContextPolicyType::kSinks ||
             held >= FirstVisible(view.sink_query_position, window);
    }
    return held >= std::max(view.left, FirstVisible(at, window));
  });
}

std::vector<std::string> BlockDiagonalRows(const RaggedMask& mask) {
  size_t columns = 0;
  for (const int32_t keys : mask.keys) columns += static_cast<size_t>(keys);
  std::vector<std::string> rows;
  size_t first_column = 0;
  for (size_t b = 0; b < mask.queries.size(); ++b) {
    for (int64_t query = 0; query < mask.queries[b]; ++query) {
      std::string row(columns, '0');
      for (int64_t key = 0; key < mask.keys[b]; ++key) {
        if (mask.Sees(b, query, key)) row[first_column + static_cast<size_t>(key)] = '1';
      }
      rows.push_back(std::move(row));
    }
    first_column += static_cast<size_t>(mask.keys[b]);
  }
  return rows;
}

StatusOr<DenseMask> AscendFullMask(int32_t size, int32_t window, double masked_value) {
  constexpr int32_t kMaxSize = 1 << 15;
  TM_RETURN_IF_ERROR(CheckWindow(window));
  if (size < 1 || size > kMaxSize) {
    return InvalidArgument("is " + std::to_string(size) + ", allowed are 1 to " + std::to_string(kMaxSize))
        .WithField("maxseq");
  }
  return BandedMask(size, window, masked_value);
}

StatusOr<AscendCompressedMask> MakeAscendCompressedMask(const AscendMaskSpec& spec, double masked_value) {
  TM_ASSIGN_OR_RETURN(AscendCompressedMask compressed, AscendShape(spec));
  compressed.mask = BandedMask(kAscendMaskSize, compressed.compressed_window, masked_value);
  return compressed;
}

StatusOr<std::vector<int32_t>> AscendTiles(const AscendMaskSpec& spec, int32_t seqlen) {
  TM_ASSIGN_OR_RETURN(const AscendCompressedMask shape, AscendShape(spec));
  if (seqlen < 1) {
    return InvalidArgument("is " + std::to_string(seqlen) + "; the least is 1").WithField("seqlen");
  }
  const int32_t block = shape.block;
  const int32_t blocks_left_out = (spec.window - shape.compressed_window) / block;
  TM_CHECK(blocks_left_out * block == spec.window - shape.compressed_window,
           "a window of %d is compressed to %d by blocks of %d", spec.window, shape.compressed_window, block);
  std::vector<int32_t> tiles;
  for (int64_t d = 0; d * block < seqlen; ++d) {
    // How far the query stands behind the key, of any pair of the tile.
    const int64_t least = d * block - (block - 1), most = d * block + block - 1;
    if (least >= spec.window) {
      tiles.push_back(kTileSkipped);
    } else if (least >= 0 && most < spec.window) {
      tiles.push_back(kTileUnmasked);
    } else {
      // The diagonal stays where it is; what the window cuts moves up by the blocks that were left out.
      tiles.push_back(static_cast<int32_t>(d == 0 ? 0 : d - blocks_left_out));
    }
  }
  return tiles;
}

}  // namespace tramontane
