// Attention by masks, to sinks, over foreign layouts, and its log-sum-exp, on the CPU backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "kernels/foreign_kv.h"
#include "kernels/masks.h"
#include "tests/reference/attention.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/paged_kv_fixture.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

// A batch over pages of random keys, its queries and what attention gives for them.
struct Batch {
  PagedKvShape shape;
  int32_t query_heads = 1;
  std::vector<PagedSpan> spans;
  std::vector<int32_t> queries;  // [sequences] last tokens
};

struct Outputs {
  std::vector<float> out;
  std::vector<float> lse;
};

class Attending {
 public:
  Attending(const Batch& batch, uint64_t seed) : batch_(batch), kv_(batch.shape, batch.spans) {
    kv_.FillRandom(seed);
    kv_.SetQueries(batch.queries);
    std::mt19937_64 random(seed + 1);
    std::normal_distribution<float> normal;
    query_.resize(static_cast<size_t>(kv_.tokens() * Columns()));
    for (float& q : query_) q = normal(random);
  }

  int64_t Columns() const { return int64_t{batch_.query_heads} * batch_.shape.head_dim; }
  const PagedKvFixture& kv() const { return kv_; }
  const std::vector<float>& query() const { return query_; }
  std::vector<int32_t> Keys() const {
    std::vector<int32_t> keys;
    for (const PagedSpan& span : batch_.spans)
      keys.push_back(static_cast<int32_t>(span.kv_end - span.kv_base));
    return keys;
  }

  AttentionParams Params(int32_t window) {
    AttentionParams params;
    params.query = MakeTensor(query_.data(), DType::kF32, kv_.tokens(), Columns());
    params.kv = kv_.View();
    params.table = kv_.Table();
    params.qo_indptr = kv_.qo_indptr();
    params.batch = kv_.batch();
    params.query_heads = batch_.query_heads;
    params.window = window;
    params.scale = 1.0f / std::sqrt(static_cast<float>(batch_.shape.head_dim));
    return params;
  }

  // Sequence 0 has no number at these positions, as where nothing was written yet.
  void Poison(int64_t begin, int64_t end) {
    const std::vector<float> nothing(static_cast<size_t>(batch_.shape.head_dim), std::nanf(""));
    for (; begin < end; ++begin) {
      for (int32_t head = 0; head < batch_.shape.kv_heads; ++head) {
        kv_.SetVector(KvHalf::kKey, 0, begin, head, nothing);
        kv_.SetVector(KvHalf::kValue, 0, begin, head, nothing);
      }
    }
  }

  StepMaxima Maxima() const { return kv_.Maxima(batch_.query_heads); }

  Outputs Run(Backend& backend, AttentionParams params) const {
    Outputs outputs;
    outputs.out.assign(static_cast<size_t>(kv_.tokens() * Columns()), std::nanf(""));
    outputs.lse.assign(static_cast<size_t>(kv_.tokens()) * static_cast<size_t>(batch_.query_heads),
                       std::nanf(""));
    params.out = MakeTensor(outputs.out.data(), DType::kF32, kv_.tokens(), Columns());
    params.lse = outputs.lse.data();
    EXPECT_EQ(backend.Attention(params), OpCode::kOk);
    return outputs;
  }

 private:
  Batch batch_;
  PagedKvFixture kv_;
  std::vector<float> query_;
};

void ExpectSameBits(const Outputs& a, const Outputs& b) {
  ASSERT_EQ(a.out.size(), b.out.size());
  EXPECT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)), 0);
}

// Sums in another order: a few units in the last place of numbers around 1.
void ExpectNear(const Outputs& a, const Outputs& b) {
  ASSERT_EQ(a.out.size(), b.out.size());
  for (size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], 1e-5) << i;
  for (size_t i = 0; i < a.lse.size(); ++i) {
    if (a.lse[i] == b.lse[i]) continue;  // infinities
    ASSERT_NEAR(a.lse[i], b.lse[i], 1e-4) << i;
  }
}

class AttentionByMaskTest : public CpuVariantTest {};
TM_INSTANTIATE_FOR_CPU_VARIANTS(AttentionByMaskTest);

Batch DrawBatch(std::mt19937& random, int32_t window) {
  const auto draw = [&random](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  Batch batch;
  batch.shape.dtype = std::array{DType::kF32, DType::kBf16, DType::kF16}[static_cast<size_t>(draw(0, 2))];
  batch.shape.kv_heads = draw(1, 2);
  batch.shape.head_dim = 2 * draw(4, 20);
  batch.shape.page_size = draw(1, 20);
  batch.shape.order = draw(0, 1) == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  batch.query_heads = batch.shape.kv_heads * draw(1, 4);
  for (int32_t sequences = draw(1, 4); sequences > 0; --sequences) {
    const int64_t end = draw(0, 3) == 0 ? draw(500, 700) : draw(0, 90);
    const auto queries = static_cast<int32_t>(std::min<int64_t>(end, draw(0, 1) == 0 ? 1 : draw(0, 40)));
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, end - queries - window + 1);
    batch.spans.push_back({first / batch.shape.page_size * batch.shape.page_size, end});
    batch.queries.push_back(queries);
  }
  return batch;
}

// What a mask hides has weight zero, and blocks and segments begin at the same positions: so the same bits.
TEST_P(AttentionByMaskTest, TheMaskOfAWindowGivesTheBitsOfTheWindow) {
  std::mt19937 random(TestSeed());
  for (int64_t round = ScaledCount(40, 8); round > 0; --round) {
    const int32_t window = std::array{0, 1, 7, 64, 300}[random() % 5];
    Batch batch = DrawBatch(random, window);
    SCOPED_TRACE(testing::Message() << "seed " << TestSeed() << " round " << round << " window " << window);
    Attending attending(batch, random());
    const BackendPtr backend =
        MakeBackend(GetParam(), static_cast<int32_t>(1 + random() % 3), attending.Maxima());
    const Outputs by_window = attending.Run(*backend, attending.Params(window));
    const StatusOr<RaggedMask> mask = AlignedMask(batch.queries, attending.Keys(), true, window);
    ASSERT_TRUE(mask.ok()) << mask.status();
    const PackedMask packed = PackSegments(*mask);
    AttentionParams params = attending.Params(0);
    params.mask = {packed.bits.data(), packed.indptr.data()};
    ExpectSameBits(attending.Run(*backend, params), by_window);
  }
}

// Some of the sequences have a mask, and the others, whose part of it is empty, their window.
TEST_P(AttentionByMaskTest, ASequenceWithoutAPartOfTheMaskHasItsWindow) {
  std::mt19937 random(TestSeed());
  for (int64_t round = ScaledCount(20, 4); round > 0; --round) {
    const int32_t window = std::array{0, 7, 64}[random() % 3];
    const Batch batch = DrawBatch(random, window);
    SCOPED_TRACE(testing::Message() << "seed " << TestSeed() << " round " << round << " window " << window);
    Attending attending(batch, random());
    const BackendPtr backend =
        MakeBackend(GetParam(), static_cast<int32_t>(1 + random() % 3), attending.Maxima());
    const StatusOr<RaggedMask> mask = AlignedMask(batch.queries, attending.Keys(), true, window);
    ASSERT_TRUE(mask.ok()) << mask.status();
    const PackedMask all = PackSegments(*mask);
    PackedMask some = {.bits = {0xff}, .indptr = {1}};
    for (size_t b = 0; b < batch.queries.size(); ++b) {
      if (random() % 2 == 0)
        some.bits.insert(some.bits.end(), all.bits.begin() + all.indptr[b],
                         all.bits.begin() + all.indptr[b + 1]);
      some.indptr.push_back(static_cast<int32_t>(some.bits.size()));
    }
    AttentionParams params = attending.Params(window);
    const Outputs by_window = attending.Run(*backend, params);
    params.mask = {some.bits.data(), some.indptr.data()};
    ExpectSameBits(attending.Run(*backend, params), by_window);
  }
}

// Pages may be listed of which a part was never written, in front of what is seen of a block and behind it.
TEST_P(AttentionByMaskTest, OfABlockOnlyWhatLiesBetweenVisibleKeysIsRead) {
  for (const int32_t queries : {1, 60}) {
    const Batch batch = {.shape = {.kv_heads = 2, .head_dim = 16, .page_size = 4},
                         .query_heads = 4,
                         .spans = {{0, 700}},
                         .queries = {queries}};
    Attending attending(batch, 4);
    const BackendPtr backend = MakeBackend(GetParam(), 1, attending.Maxima());
    const StatusOr<RaggedMask> mask =
        MakeRaggedMask({queries}, {700}, [](size_t, int64_t query, int64_t key) {
          return (key >= 70 && key < 100 + query / 3) || (key >= 513 && key < 520);
        });
    const PackedMask packed = PackSegments(*mask);
    AttentionParams params = attending.Params(0);
    params.mask = {packed.bits.data(), packed.indptr.data()};
    const Outputs whole = attending.Run(*backend, params);
    EXPECT_FALSE(std::isnan(whole.out[0]));
    attending.Poison(0, 70);
    attending.Poison(100 + (queries - 1) / 3, 513);
    attending.Poison(520, 700);
    ExpectSameBits(attending.Run(*backend, params), whole);
  }
}

TEST_P(AttentionByMaskTest, TheLogSumExpMatchesTheDefinition) {
  const Batch batch = {.shape = {.dtype = DType::kF32, .kv_heads = 2, .head_dim = 16, .page_size = 4},
                       .query_heads = 4,
                       .spans = {{0, 9}, {0, 600}, {0, 3}},
                       .queries = {9, 2, 1}};
  Attending attending(batch, 5);
  const BackendPtr backend = MakeBackend(GetParam(), 2, attending.Maxima());
  const Outputs outputs = attending.Run(*backend, attending.Params(6));
  size_t row = 0;
  for (int32_t b = 0; b < 3; ++b) {
    reference::AttentionProblem problem;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 16;
    problem.window = 6;
    problem.scale = 0.25;
    problem.query_begin = attending.kv().QueryBegin(b);
    problem.keys = attending.kv().All(KvHalf::kKey, b, 0);
    problem.values = attending.kv().All(KvHalf::kValue, b, 0);
    const auto first = attending.query().begin() + attending.kv().qo_indptr()[b] * attending.Columns();
    problem.query.assign(first, first + attending.kv().QueryCount(b) * attending.Columns());
    for (const double expected : reference::AttentionLse(problem)) {
      EXPECT_NEAR(outputs.lse[row], expected, 1e-5) << row;
      ++row;
    }
  }
}

TEST_P(AttentionByMaskTest, ARowThatSeesNothingIsZeroWithMinusInfinity) {
  const Batch batch = {
      .shape = {.head_dim = 8, .page_size = 4}, .query_heads = 1, .spans = {{0, 70}}, .queries = {12}};
  Attending attending(batch, 3);
  const BackendPtr backend = MakeBackend(GetParam(), 1, attending.Maxima());
  // Row 0 sees nothing, the others the last key alone.
  const StatusOr<RaggedMask> mask =
      MakeRaggedMask({12}, {70}, [](size_t, int64_t query, int64_t key) { return query > 0 && key == 69; });
  const PackedMask packed = PackSegments(*mask);
  AttentionParams params = attending.Params(0);
  params.mask = {packed.bits.data(), packed.indptr.data()};
  const Outputs outputs = attending.Run(*backend, params);
  EXPECT_EQ(outputs.lse[0], -std::numeric_limits<float>::infinity());
  for (int32_t d = 0; d < 8; ++d) {
    EXPECT_EQ(outputs.out[static_cast<size_t>(d)], 0.0f);
    EXPECT_EQ(outputs.out[static_cast<size_t>(8 + d)],
              static_cast<float>(attending.kv().Get(KvHalf::kValue, 0, 69, 0, d)));
  }
}

// The first `sink_len` tokens and those from `left` on, as numbers of each row.
struct SinkRows {
  std::vector<int32_t> len, left, position;
};

SinkRows SinksOf(const Batch& batch, int32_t sink_len, int32_t newest) {
  SinkRows rows;
  for (size_t b = 0; b < batch.spans.size(); ++b) {
    for (int32_t i = 0; i < batch.queries[b]; ++i) {
      const auto position = static_cast<int32_t>(batch.spans[b].kv_end - batch.queries[b] + i);
      rows.len.push_back(sink_len);
      rows.left.push_back(std::max(sink_len, position - newest + 1));
      rows.position.push_back(position);
    }
  }
  return rows;
}

AttentionParams WithSinks(Attending& attending, const SinkRows& rows) {
  AttentionParams params = attending.Params(0);
  params.sinks = {.len = rows.len.data(),
                  .left = rows.left.data(),
                  .query_position = rows.position.data(),
                  .query = params.query};
  return params;
}

// Queries and keys of a batch whose tables begin at position 0.
std::vector<RollingBlock> BlocksFromZero(const Batch& batch) {
  std::vector<RollingBlock> blocks;
  for (size_t b = 0; b < batch.spans.size(); ++b) {
    RollingBlock& block = blocks.emplace_back();
    for (int64_t key = 0; key < batch.spans[b].kv_end; ++key) block.keys.push_back(key);
    block.queries.assign(block.keys.end() - batch.queries[b], block.keys.end());
  }
  return blocks;
}

TEST_P(AttentionByMaskTest, SinksAndWindowAreTheMaskThatShowsBoth) {
  const Batch batch = {.shape = {.dtype = DType::kF32, .kv_heads = 2, .head_dim = 16, .page_size = 5},
                       .query_heads = 6,
                       .spans = {{0, 700}, {0, 3}, {0, 40}, {0, 9}},
                       .queries = {1, 3, 33, 1}};
  Attending attending(batch, 8);
  for (const int32_t sink_len : {0, 1, 4, 70}) {
    SCOPED_TRACE(sink_len);
    const int32_t newest = 20;
    const SinkRows rows = SinksOf(batch, sink_len, newest);
    const StatusOr<RaggedMask> mask =
        MakeRaggedMask(batch.queries, attending.Keys(), [&](size_t b, int64_t query, int64_t key) {
          const int64_t at = batch.spans[b].kv_end - batch.queries[b] + query;
          return key <= at && (key < sink_len || key > at - newest);
        });
    const StatusOr<RaggedMask> of_policy = ContextMask(
        BlocksFromZero(batch),
        {.type = ContextPolicyType::kSinks, .n_ctx = sink_len + newest, .n_keep = sink_len, .n_discard = 0},
        0);
    ASSERT_TRUE(of_policy.ok()) << of_policy.status();
    EXPECT_EQ(of_policy->visible, mask->visible);
    const PackedMask packed = PackSegments(*mask);
    AttentionParams by_mask = attending.Params(0);
    by_mask.mask = {packed.bits.data(), packed.indptr.data()};
    const BackendPtr one = MakeBackend(GetParam(), 1, attending.Maxima());
    const BackendPtr three = MakeBackend(GetParam(), 3, attending.Maxima());
    const Outputs with_sinks = attending.Run(*one, WithSinks(attending, rows));
    ExpectNear(with_sinks, attending.Run(*one, by_mask));
    ExpectSameBits(attending.Run(*three, WithSinks(attending, rows)), with_sinks);
  }
}

// The pages between sinks and window are gone; the one that holds the end of the sinks and the begin of the
// window may stand in both lists.
TEST_P(AttentionByMaskTest, SinkPagesInFrontOfATableGiveTheBitsOfTheWholeTable) {
  constexpr int32_t kPage = 4;
  for (const int32_t end : {12, 14, 90}) {
    SCOPED_TRACE(end);
    const Batch batch = {.shape = {.kv_heads = 1, .head_dim = 16, .page_size = kPage},
                         .query_heads = 2,
                         .spans = {{0, end}},
                         .queries = {3}};
    Attending attending(batch, 9);
    const SinkRows rows = SinksOf(batch, 6, 5);
    const BackendPtr backend = MakeBackend(GetParam(), 1, attending.Maxima());
    const Outputs whole = attending.Run(*backend, WithSinks(attending, rows));

    AttentionParams params = WithSinks(attending, rows);
    const int32_t* all = params.table.page_indices;
    const int32_t first_page = rows.left[0] / kPage, pages = (end + kPage - 1) / kPage;
    std::vector<int32_t> listed = {all[0], all[1]};
    listed.insert(listed.end(), all + first_page, all + pages);
    const int32_t kv_base = first_page * kPage, sink_entry = 0, first_entry = 2 - first_page;
    params.table.page_indices = listed.data();
    params.table.first_entry = &first_entry;
    params.table.kv_base = &kv_base;
    params.table.sink_entry = &sink_entry;
    ExpectSameBits(attending.Run(*backend, params), whole);
  }
}

// The same keys in OpenPPL's four layouts and in pages: one kernel, the same bits.
TEST_P(AttentionByMaskTest, EveryForeignLayoutGivesTheBitsOfPages) {
  constexpr int32_t kTokens = 23, kSlots = 40, kPage = 4, kDim = 16, kHeads = 2;
  const Batch batch = {
      .shape = {.dtype = DType::kF32, .kv_heads = kHeads, .head_dim = kDim, .page_size = kPage},
      .query_heads = 4,
      .spans = {{0, kTokens}},
      .queries = {5}};
  Attending attending(batch, 4);
  const BackendPtr backend = MakeBackend(GetParam(), 2, attending.Maxima());
  const Outputs in_pages = attending.Run(*backend, attending.Params(7));

  std::vector<float> kv;  // [tokens, (keys, values), heads, dim]
  for (int32_t position = 0; position < kTokens; ++position) {
    for (const KvHalf half : {KvHalf::kKey, KvHalf::kValue}) {
      for (int32_t head = 0; head < kHeads; ++head) {
        for (int32_t d = 0; d < kDim; ++d) {
          kv.push_back(static_cast<float>(attending.kv().Get(half, 0, position, head, d)));
        }
      }
    }
  }
  for (int32_t layout = 0; layout < 4; ++layout) {
    for (const int32_t mode : {0, 1}) {
      SCOPED_TRACE(testing::Message() << "layout " << layout << " mode " << mode);
      const OpenPplAttributes attributes = {
          .num_layer = 3, .layer_idx = 1, .cache_mode = mode, .cache_layout = layout, .page_size = kPage};
      const OpenPplShape shape = {
          .cache_tokens = kSlots, .kv_heads = kHeads, .head_dim = kDim, .current_rows = kTokens};
      std::vector<float> cache(static_cast<size_t>(3 * 2 * kSlots * kHeads * kDim), std::nanf(""));
      const StatusOr<KvLayerView> view =
          OpenPplView(attributes, shape, DType::kF32, reinterpret_cast<std::byte*>(cache.data()), nullptr);
      ASSERT_TRUE(view.ok()) << view.status();
      OpenPplInputs inputs = {.seqstarts = {0, kTokens},
                              .kvstarts = {0, kTokens},
                              .cachestarts = {11},
                              .start_pos = {0},
                              .max_seqlen = kTokens,
                              .max_kvlen = kTokens};
      if (mode == 1) inputs.cachestarts = {30, 3, 9, 21, 15, 35};  // no multiples of the page size
      const StatusOr<HostPageTables> tables = OpenPplTables(attributes, inputs, shape);
      ASSERT_TRUE(tables.ok()) << tables.status();
      ASSERT_EQ(backend->RopeAppend({.qkv = MakeTensor(kv.data(), DType::kF32, kTokens, 2 * kHeads * kDim),
                                     .kv = *view,
                                     .slots = tables->slots.data()}),
                OpCode::kOk);
      AttentionParams params = attending.Params(7);
      params.kv = *view;
      params.table = tables->View();
      ExpectSameBits(attending.Run(*backend, params), in_pages);

      std::vector<float> key(kv.size() / 2), value(kv.size() / 2);
      const int32_t out_indptr[] = {0, kTokens};
      ASSERT_EQ(backend->GatherKv({.kv = *view,
                                   .table = params.table,
                                   .out_indptr = out_indptr,
                                   .batch = 1,
                                   .key = MakeTensor(key.data(), DType::kF32, kTokens, kHeads * kDim),
                                   .value = MakeTensor(value.data(), DType::kF32, kTokens, kHeads * kDim)}),
                OpCode::kOk);
      for (size_t i = 0; i < key.size(); ++i) {
        const size_t row = i / (kHeads * kDim), column = i % (kHeads * kDim);
        ASSERT_EQ(key[i], kv[row * 2 * kHeads * kDim + column]);
        ASSERT_EQ(value[i], kv[(row * 2 + 1) * kHeads * kDim + column]);
      }
    }
  }
}

}  // namespace
}  // namespace tramontane
