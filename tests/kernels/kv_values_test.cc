// Masks, foreign layouts' inputs, context policies and merges: the host's values of kernels/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/context_policy.h"
#include "kernels/foreign_kv.h"
#include "kernels/lse_merge.h"
#include "kernels/masks.h"

namespace tramontane {
namespace {

using testing::HasSubstr;

// ---- masks

TEST(AscendMaskTest, TilesOfTheCompressedMaskAreTheFullMask) {
  for (const AscendRule rule : {AscendRule::kPython, AscendRule::kCpp}) {
    for (const int32_t head_size : {16, 128, 192, 1024}) {
      for (const int32_t window : {1, 3, 64, 200, 384, 385, 512, 700}) {
        if (rule == AscendRule::kCpp && head_size == 1024 && window > 384) continue;  // many small tiles
        SCOPED_TRACE(testing::Message() << static_cast<int>(rule) << " " << head_size << " " << window);
        constexpr int32_t kLength = 800;
        const AscendMaskSpec spec = {.window = window, .head_size = head_size, .rule = rule};
        const StatusOr<AscendCompressedMask> compressed = MakeAscendCompressedMask(spec, 1.0);
        const StatusOr<std::vector<int32_t>> tiles = AscendTiles(spec, kLength);
        const StatusOr<DenseMask> full = AscendFullMask(kLength, window, 1.0);
        ASSERT_TRUE(compressed.ok() && tiles.ok() && full.ok());
        const int32_t block = compressed->block;
        for (int32_t row = 0; row < kLength; ++row) {
          for (int32_t column = 0; column <= row; ++column) {
            const int32_t tile = (*tiles)[static_cast<size_t>(row / block - column / block)];
            const double built = tile == kTileSkipped ? 1.0
                                 : tile == kTileUnmasked
                                     ? 0.0
                                     : compressed->mask.At(tile * block + row % block, column % block);
            ASSERT_EQ(built, full->At(row, column)) << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST(AscendMaskTest, HeadsWithoutABlockAndWindowsBelowOneAreRefused) {
  EXPECT_THAT(AscendTiles({.window = 8, .head_size = 1025, .rule = AscendRule::kCpp}, 64).status().message(),
              HasSubstr("head_size: is 1025, whose block is 0; the most under rule cpp is 1024"));
  EXPECT_THAT(AscendTiles({.window = 0, .head_size = 64}, 64).status().message(),
              HasSubstr("window: is 0; the least is 1"));
  EXPECT_THAT(AscendFullMask(8, 0, 1.0).status().message(), HasSubstr("window: is 0; the least is 1"));
  EXPECT_THAT(MakeAscendCompressedMask({.window = -1, .head_size = 64}, 1.0).status().message(),
              HasSubstr("window: is -1; the least is 1"));
  EXPECT_THAT(MakeAscendCompressedMask({.window = 8, .head_size = 0}, 1.0).status().message(),
              HasSubstr("head_size: is 0; the least is 1"));
}

TEST(AscendMaskTest, LengthsOutsideTheirRangesAreRefusedByName) {
  for (const int32_t maxseq : {-1, 0, (1 << 15) + 1}) {
    EXPECT_EQ(AscendFullMask(maxseq, 3, 1.0).status().message(),
              "maxseq: is " + std::to_string(maxseq) + ", allowed are 1 to 32768");
  }
  EXPECT_TRUE(AscendFullMask(1, 3, 1.0).ok());
  EXPECT_TRUE(AscendFullMask(1 << 15, 3, 1.0).ok());
  for (const int32_t seqlen : {-7, 0}) {
    EXPECT_EQ(AscendTiles({.window = 8, .head_size = 64}, seqlen).status().message(),
              "seqlen: is " + std::to_string(seqlen) + "; the least is 1");
  }
  EXPECT_TRUE(AscendTiles({.window = 8, .head_size = 64}, 1).ok());
}

// The row at position 9 of the example in kernels/context_policy.h, over tokens 0 .. 9.
TEST(ContextMaskTest, ShowsWhatAPolicyAndAWindowLeave) {
  const std::vector<RollingBlock> blocks = {{.queries = {9}, .keys = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}};
  const auto shown = [&](const ContextPolicy& policy, int32_t window) {
    const StatusOr<RaggedMask> mask = ContextMask(blocks, policy, window);
    return mask.ok() ? BlockDiagonalRows(*mask).at(0) : mask.status().ToString();
  };
  const ContextPolicy shift = {.type = ContextPolicyType::kShift, .n_ctx = 8, .n_keep = 2, .n_discard = 3};
  const ContextPolicy sinks = {.type = ContextPolicyType::kSinks, .n_ctx = 8, .n_keep = 2, .n_discard = 0};
  EXPECT_EQ(shown(shift, 0), "1100011111");
  EXPECT_EQ(shown(shift, 6), "0100011111") << "a window counts cache positions, and 9 stands at 6";
  EXPECT_EQ(shown(shift, 4), "0000001111");
  EXPECT_EQ(shown(sinks, 0), "1100111111");
  EXPECT_EQ(shown(sinks, 4), "1100001111") << "sinks are seen whatever the window";
  EXPECT_EQ(shown({}, 0), "1111111111");
  EXPECT_EQ(shown({}, 4), "0000001111");
  ContextPolicy again = shift;
  again.type = ContextPolicyType::kReevaluate;
  EXPECT_THAT(shown(again, 0), HasSubstr("policy is reevaluate"));
  again.n_keep = 8;
  EXPECT_THAT(shown(again, 0), HasSubstr("n_keep is 8, allowed are 0 to 7"));
}

TEST(RaggedMaskTest, SizesAndElementsAreChecked) {
  EXPECT_THAT(MaskOfBools({2}, {3}, {1, 0, 1}).status().message(),
              HasSubstr("custom_mask: has 3 elements; queries x keys make 6"));
  EXPECT_THAT(MaskOfBools({1}, {2}, {1, 2}).status().message(),
              HasSubstr("custom_mask[1]: is 2, not 0 or 1"));
  EXPECT_THAT(MaskOfBits({3, 1}, {3, 9}, {1, 0, 7, 1}, {0, 2, 5}).status().message(),
              HasSubstr("packed_mask_indptr[2]: is 5, not 4"));
  EXPECT_THAT(MaskOfBits({3}, {3}, {1}, {0, 2}).status().message(),
              HasSubstr("packed_custom_mask: has 1 bytes; packed_mask_indptr ends at 2"));
  EXPECT_THAT(MaskOfBits({3}, {3}, {1, 1}, {0}).status().message(),
              HasSubstr("packed_mask_indptr: has 1 elements"));
}

TEST(RaggedMaskTest, ListsOfLengthsAreCheckedByNameElementAndLimit) {
  const auto refusal = [](const std::vector<int32_t>& queries, const std::vector<int32_t>& keys) {
    const std::string message = AlignedMask(queries, keys, true, 0).status().message();
    EXPECT_EQ(MaskOfBools(queries, keys, {}).status().message(), message);
    EXPECT_EQ(MaskOfBits(queries, keys, {}, {}).status().message(), message);
    return message;
  };
  EXPECT_EQ(refusal({1, 2}, {3}), "keys: has 1 elements, not 2, as queries have");
  EXPECT_EQ(refusal({1}, {3, 4}), "keys: has 2 elements, not 1, as queries have");
  EXPECT_EQ(refusal({1, -2}, {3, 4}), "queries[1]: is -2; the least is 0");
  EXPECT_EQ(refusal({1, 2}, {3, -1}), "keys[1]: is -1; the least is 0");
  EXPECT_EQ(
      refusal({1 << 10, 1 << 20}, {1, 1 << 10}),
      "keys[1]: is 1024, which with 1048576 queries makes 1073742848 pairs so far; the most is 1073741824");
  EXPECT_TRUE(AlignedMask({0, 2}, {0, 3}, true, 0).ok());
  EXPECT_EQ(PositionMask({{0}, {1}}, {0}, {2, 2}, 0).status().message(),
            "first_key: has 1 elements, not 2, as queries have");
  EXPECT_EQ(PositionMask({{0}, {1}}, {0, 0}, {2}, 0).status().message(),
            "keys: has 1 elements, not 2, as queries have");
}

// ---- OpenPPL's inputs

struct OpenPplCall {
  OpenPplAttributes attributes = {.quant_bit = 0, .cache_mode = 1, .page_size = 4};
  OpenPplShape shape = {.cache_tokens = 32, .kv_heads = 2, .head_dim = 16, .current_rows = 5};
  OpenPplInputs inputs = {.seqstarts = {0, 3, 5},
                          .kvstarts = {0, 5, 7},
                          .cachestarts = {9, 20, 1, -1},
                          .start_pos = {2, 0},
                          .max_seqlen = 3,
                          .max_kvlen = 5};

  std::string Refusal() const { return OpenPplTables(attributes, inputs, shape).status().message(); }
};

TEST(OpenPplTest, SlotsFollowThePagesOfTheCall) {
  const OpenPplCall call;
  const StatusOr<HostPageTables> tables = OpenPplTables(call.attributes, call.inputs, call.shape);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_THAT(tables->page_indices, testing::ElementsAre(9, 20, 1));
  EXPECT_THAT(tables->first_entry, testing::ElementsAre(0, 2));
  EXPECT_THAT(tables->kv_end, testing::ElementsAre(5, 2));
  // Page 9 holds positions 0..3: the current ones begin at 2.
  EXPECT_THAT(tables->slots, testing::ElementsAre(9 * 4 + 2, 9 * 4 + 3, 20 * 4, 1 * 4, 1 * 4 + 1));
}

TEST(OpenPplTest, EveryInputIsCheckedByNameElementAndLimit) {
  struct Fault {
    std::function<void(OpenPplCall&)> plant;
    const char* refusal;
  };
  const Fault faults[] = {
      {[](OpenPplCall& c) { c.inputs.max_seqlen = 2; }, "max_seqlen is 2, sequence 0 has 3 tokens"},
      {[](OpenPplCall& c) { c.inputs.max_kvlen = 4; }, "max_kvlen is 4, sequence 0 has 5 keys"},
      {[](OpenPplCall& c) { c.inputs.start_pos[1] = 1; },
       "kvstarts[2] is 7, a kvlen of 2; start_pos + seqlen is 3"},
      {[](OpenPplCall& c) { c.inputs.start_pos[0] = -1; }, "start_pos[0] is -1, allowed are 0 to 2147483647"},
      {[](OpenPplCall& c) { c.inputs.seqstarts[1] = 6; }, "seqstarts[2] is 5, less than the 6 before it"},
      {[](OpenPplCall& c) { c.inputs.kvstarts[0] = 1; }, "kvstarts[0] is 1, not 0"},
      {[](OpenPplCall& c) { c.inputs.kvstarts[1] = 8; }, "kvstarts[2] is 7, less than the 8 before it"},
      {[](OpenPplCall& c) { c.inputs.kvstarts[1] = 4; },
       "kvstarts[1] is 4, a kvlen of 4; start_pos + seqlen is 5"},
      {[](OpenPplCall& c) { c.inputs.kvstarts.pop_back(); }, "kvstarts has 2 elements, not 3"},
      {[](OpenPplCall& c) { c.inputs.kvstarts.push_back(9); }, "kvstarts has 4 elements, not 3"},
      {[](OpenPplCall& c) { c.inputs.seqstarts[0] = -1; }, "seqstarts[0] is -1, not 0"},
      {[](OpenPplCall& c) { c.inputs.start_pos[1] = int64_t{1} << 31; },
       "start_pos[1] is 2147483648, allowed are 0 to 2147483647"},
      {[](OpenPplCall& c) { c.inputs.kvstarts[2] = int64_t{1} << 31; },
       "kvstarts[2] is 2147483648, the most is 2147483647"},
      {[](OpenPplCall& c) { c.inputs.seqstarts.pop_back(); }, "seqstarts has 2 elements, not 3"},
      {[](OpenPplCall& c) { c.shape.current_rows = 4; }, "seqstarts[2] is 5, current_key has 4 rows"},
      {[](OpenPplCall& c) { c.inputs.cachestarts[0] = 29; },
       "cachestarts[0] is 29, 4 slots from there are not in the cache's 32"},
      {[](OpenPplCall& c) { c.inputs.cachestarts[2] = -1; },
       "cachestarts[2] is -1, 2 slots from there are not in the cache's 32"},
      {[](OpenPplCall& c) { c.inputs.cachestarts[2] = 20; },
       "cachestarts[2] is 20, a slot that this call writes already"},
      {[](OpenPplCall& c) { c.inputs.cachestarts = {9, 1}; },
       "cachestarts has 1 pages of each sequence; sequence 0 needs 2"},
      {[](OpenPplCall& c) { c.inputs.cachestarts.pop_back(); }, "cachestarts has 3 elements, not 2"},
      {[](OpenPplCall& c) { c.attributes.cache_layout = 4; }, "cache_layout is 4, allowed are 0 to 3"},
      {[](OpenPplCall& c) { c.attributes.layer_idx = 1; }, "layer_idx is 1, allowed are 0 to 0"},
      {[](OpenPplCall& c) { c.attributes.page_size = 0; }, "page_size is 0, allowed are 1 to 2147483647"},
  };
  EXPECT_EQ(OpenPplCall().Refusal(), "");
  for (const Fault& fault : faults) {
    OpenPplCall call;
    fault.plant(call);
    EXPECT_THAT(call.Refusal(), HasSubstr(fault.refusal));
  }
}

TEST(OpenPplTest, AGroupMustDivideTheHeadAndAScaleGoesWithQuantBit) {
  const auto refusal = [](int32_t bits, int32_t group, bool has_scale, int32_t head_dim = 24) {
    return OpenPplRowFormat({.quant_bit = bits, .quant_group = group},
                            {.kv_heads = 1, .head_dim = head_dim, .has_scale = has_scale}, DType::kF32,
                            DType::kF16)
        .status()
        .message();
  };
  EXPECT_EQ(refusal(8, 8, true), "");
  EXPECT_EQ(refusal(0, 7, false), "");
  EXPECT_THAT(refusal(8, 16, true),
              HasSubstr("quant_group is 16, no power of two from 2 to 128 that divides head_dim 24"));
  EXPECT_THAT(refusal(4, 1, true), HasSubstr("quant_group is 1"));
  EXPECT_THAT(refusal(8, 256, true, 256),
              HasSubstr("quant_group is 256, no power of two from 2 to 128 that divides head_dim 256"));
  EXPECT_EQ(refusal(8, 128, true, 256), "");
  EXPECT_THAT(refusal(3, 8, true), HasSubstr("quant_bit is 3, allowed are 0, 8 and 4"));
  EXPECT_THAT(refusal(8, 8, false), HasSubstr("scale is missing, and quant_bit is 8"));
  EXPECT_THAT(refusal(0, 8, true), HasSubstr("scale is given, and quant_bit is 0"));
  const auto of_int8 = [](int32_t bits) {
    return OpenPplRowFormat({.quant_bit = bits, .quant_group = 8},
                            {.kv_heads = 1, .head_dim = 8, .has_scale = bits != 0}, kBareInt8, DType::kF16);
  };
  EXPECT_EQ(of_int8(0).value(), kBareInt8);
  EXPECT_THAT(of_int8(4).status().message(), HasSubstr("quant_bit is 4, keys and values come in int8"));
}

// ---- FlashInfer's tables

TEST(FlashInferTablesTest, EveryInputIsCheckedByNameElementAndLimit) {
  const auto refusal = [](std::vector<int32_t> indptr, std::vector<int32_t> pages,
                          std::vector<int32_t> last) {
    return FlashInferTables(std::move(indptr), std::move(pages), std::move(last), 4, 6).status().message();
  };
  EXPECT_EQ(refusal({0, 2, 2}, {5, 0}, {1, 0}), "");
  EXPECT_THAT(refusal({0, 2}, {5, 6}, {1}),
              HasSubstr("kv_page_indices[1] is 6, the pool's pages are 0 to 5"));
  EXPECT_THAT(refusal({0, 2}, {-1, 5}, {1}), HasSubstr("kv_page_indices[0] is -1"));
  EXPECT_THAT(refusal({0, 1}, {5}, {5}), HasSubstr("kv_last_page_len[0] is 5, allowed are 1 to 4"));
  EXPECT_THAT(refusal({0, 1}, {5}, {0}), HasSubstr("kv_last_page_len[0] is 0, allowed are 1 to 4"));
  EXPECT_THAT(refusal({0, 0}, {}, {2}), HasSubstr("kv_last_page_len[0] is 2, not 0, and it has no page"));
  EXPECT_THAT(refusal({1, 1}, {5}, {1}), HasSubstr("kv_indptr[0] is 1, not 0"));
  EXPECT_THAT(refusal({0, 2, 1}, {5}, {1, 1}), HasSubstr("kv_indptr[2] is 1, less than the 2 before it"));
  EXPECT_THAT(refusal({0, 2}, {5}, {1}), HasSubstr("kv_page_indices has 1 elements, not 2"));
  EXPECT_EQ(refusal({0, 1}, {5}, {1, 1}), "kv_indptr has 2 elements, not 3");
  EXPECT_EQ(refusal({0, 1, 2}, {5, 4}, {1}), "kv_indptr has 3 elements, not 2");
  EXPECT_EQ(refusal({}, {}, {}), "kv_indptr has 0 elements, not 1");
  EXPECT_EQ(refusal({0, -1}, {}, {0}), "kv_indptr[1] is -1, less than the 0 before it");
  EXPECT_EQ(FlashInferTables({0, 1}, {0}, {1}, 0, 6).status().message(),
            "page_size is 0, allowed are 1 to 2147483647");
}

TEST(FlashInferTablesTest, StartsOfAppendedRowsAreCheckedByNameElementAndLimit) {
  const auto refusal = [](const std::vector<int32_t>& append_indptr) {
    HostPageTables tables = FlashInferTables({0, 2, 3}, {5, 0, 4}, {1, 2}, 4, 6).value();
    return AddAppendSlots(append_indptr, 4, &tables).message();
  };
  EXPECT_EQ(refusal({0, 5, 7}), "");
  EXPECT_EQ(refusal({0, 5}), "append_indptr has 2 elements, not 3");
  EXPECT_EQ(refusal({1, 5, 7}), "append_indptr[0] is 1, not 0");
  EXPECT_EQ(refusal({0, 5, 4}), "append_indptr[2] is 4, less than the 5 before it");
  EXPECT_EQ(refusal({0, 5, 8}), "append_indptr[2] is 8, more rows than the 2 that sequence 1 holds");
  EXPECT_EQ(CheckIndptr("qo_indptr", {0, 3, 2}, 2).message(), "qo_indptr[2] is 2, less than the 3 before it");
  EXPECT_EQ(CheckIndptr("qo_indptr", {0, 3}, 2).message(), "qo_indptr has 2 elements, not 3");
}

TEST(FlashInferTablesTest, AppendedRowsAreTheLastAndOfOneSlotEach) {
  StatusOr<HostPageTables> tables = FlashInferTables({0, 2, 3}, {5, 0, 5}, {1, 2}, 4, 6);
  ASSERT_TRUE(tables.ok());
  EXPECT_THAT(AddAppendSlots({0, 6, 6}, 4, &*tables).message(),
              HasSubstr("append_indptr[1] is 6, more rows than the 5 that sequence 0 holds"));
  EXPECT_THAT(AddAppendSlots({0, 5, 6}, 4, &*tables).message(),
              HasSubstr("kv_page_indices[2] is 21, a slot that this call writes already"));
  tables->slots.clear();
  ASSERT_TRUE(AddAppendSlots({0, 2, 2}, 4, &*tables).ok());
  EXPECT_THAT(tables->slots, testing::ElementsAre(5 * 4 + 3, 0));
}

// ---- context policies

TEST(ContextPolicyTest, FieldsOutsideTheirRangesAreRefusedByName) {
  const auto refusal = [](ContextPolicyType type, int64_t n_ctx, int64_t n_keep, int64_t n_discard) {
    return CheckContextPolicy({type, n_ctx, n_keep, n_discard}).message();
  };
  EXPECT_EQ(refusal(ContextPolicyType::kShift, 16, 4, 12), "");
  EXPECT_EQ(refusal(ContextPolicyType::kSinks, 16, 15, 0), "");
  EXPECT_THAT(refusal(ContextPolicyType::kShift, 16, 16, 1), HasSubstr("n_keep is 16, allowed are 0 to 15"));
  EXPECT_THAT(refusal(ContextPolicyType::kShift, 16, 4, 13),
              HasSubstr("n_discard is 13, allowed are 1 to 12"));
  EXPECT_THAT(refusal(ContextPolicyType::kReevaluate, 16, 4, 0),
              HasSubstr("n_discard is 0, allowed are 1 to 12"));
  EXPECT_THAT(refusal(ContextPolicyType::kSinks, 16, 4, 1),
              HasSubstr("n_discard is 1; together with type sinks it must be unset"));
  EXPECT_THAT(refusal(ContextPolicyType::kSinks, 0, 0, 0), HasSubstr("n_ctx is 0"));
}

TEST(ContextPolicyTest, ARowHoldsNeverMoreThanItsContextAndItsViewOnlyMovesOn) {
  for (const ContextPolicyType type : {ContextPolicyType::kSinks, ContextPolicyType::kShift}) {
    for (int64_t n_keep = 0; n_keep < 7; ++n_keep) {
      for (int64_t n_discard = 1; n_discard <= 7 - n_keep; ++n_discard) {
        const ContextPolicy policy = {type, 7, n_keep, type == ContextPolicyType::kSinks ? 0 : n_discard};
        ASSERT_TRUE(CheckContextPolicy(policy).ok());
        int64_t left = 0;
        for (int64_t position = 0; position < 40; ++position) {
          const ContextView view = ViewAt(policy, position);
          ASSERT_GE(view.left, left);
          left = view.left;
          const int64_t held =
              std::min(view.sink_len, position + 1) + std::max<int64_t>(0, position + 1 - left);
          ASSERT_LE(held, 7);
          ASSERT_TRUE(position < 7 ? held == position + 1 : left <= position);
          if (type == ContextPolicyType::kSinks) continue;
          ASSERT_EQ(view.sink_query_position + 1, held);
        }
      }
    }
  }
}

// ---- merges

TEST(MergeByLseTest, PartsOfASoftmaxAreTheWholeAndEmptyPartsAreNothing) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  // Row 0: weights 1 and 3 of values 8 and 4; row 1: the second part alone; row 2: none.
  const std::vector<float> first = {8, 99, 99}, second = {4, 5, 99};
  const std::vector<float> first_lse = {0, minus_infinity, minus_infinity},
                           second_lse = {std::log2(3.0f), 7, minus_infinity};
  std::vector<float> out(3), lse(3);
  MergeByLse({{first.data(), first_lse.data()}, {second.data(), second_lse.data()}}, 3, 1, out.data(),
             lse.data());
  EXPECT_THAT(out, testing::Pointwise(testing::FloatEq(), {5.0f, 5.0f, 0.0f}));
  EXPECT_FLOAT_EQ(lse[0], 2);
  EXPECT_FLOAT_EQ(lse[1], 7);
  EXPECT_EQ(lse[2], minus_infinity);
}

}  // namespace
}  // namespace tramontane
