#include "engine/batch_builder.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/kv_store.h"
#include "kernels/paged_kv.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

constexpr int32_t kPageSize = 4;

KvLayout Layout(const std::vector<int32_t>& windows) {
  KvFormat format;
  format.kv_heads = format.head_dim = 1;
  format.page_size = kPageSize;
  return MakeKvLayout(windows, format);
}

EngineLimits Limits() {
  EngineLimits limits;
  limits.max_step_tokens = 32;
  limits.max_sequences = 6;
  return limits;
}

// A plan whose sequences hold real page tables.
struct Scene {
  explicit Scene(const KvLayout& layout) : store(layout, 1000, PrefixCache::kOff) {}

  // Positions below `start` are there already, `count` are computed now; `beyond` more pages are held
  // already, as with another step in flight.
  void AddRow(int64_t start, int32_t count, int64_t beyond = 0) {
    auto request = std::make_unique<Request>();
    request->id = "r" + std::to_string(sequences.size());
    auto sequence = std::make_unique<Sequence>();
    sequence->request = request.get();
    for (int64_t i = 0; i < start + count; ++i) {
      sequence->tokens.push_back(static_cast<int32_t>(1000 * sequences.size() + i));
    }
    request->prompt = sequence->tokens;
    sequence->lease = store.NewLease();
    store.Extend(sequence->lease, 0, start, &plan.copies);
    store.Roll(sequence->lease, start);
    store.Extend(sequence->lease, start, start + count + beyond * kPageSize, &plan.copies);
    plan.rows.push_back({.sequence = sequence.get(), .start = start, .count = count, .ask = {}});
    plan.tokens += count;
    requests.push_back(std::move(request));
    sequences.push_back(std::move(sequence));
  }

  KvStore store;
  StepPlan plan;
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

// The block as the device would hold it: host and device are the same memory here.
void ExpectDescribes(const PackedBatch& packed, const Scene& scene) {
  const std::vector<StepRow>& rows = scene.plan.rows;
  const ForwardBatch& batch = packed.forward;
  ASSERT_EQ(batch.sequences, static_cast<int32_t>(rows.size()));
  ASSERT_EQ(batch.tokens, scene.plan.tokens);
  for (int32_t r = 0; r < batch.sequences; ++r) {
    const StepRow& row = rows[static_cast<size_t>(r)];
    ASSERT_EQ(batch.qo_indptr[r + 1] - batch.qo_indptr[r], row.count);
    for (size_t g = 0; g < row.sequence->lease.tables.size(); ++g) {
      EXPECT_EQ(KvEnd(batch.groups[g], r, kPageSize), row.start + row.count) << "row " << r << " group " << g;
    }
    for (int32_t i = 0; i < row.count; ++i) {
      const int32_t t = batch.qo_indptr[r] + i;
      const int64_t position = row.start + i;
      EXPECT_EQ(batch.positions[t], position);
      EXPECT_EQ(batch.token_ids[t], row.sequence->tokens[static_cast<size_t>(position)]);
      for (size_t g = 0; g < row.sequence->lease.tables.size(); ++g) {
        const PageTableView& view = batch.groups[g];
        const int64_t entry = view.kv_indptr[r] + PageOf(position, view.kv_base[r], kPageSize);
        ASSERT_LT(entry, view.kv_indptr[r + 1]);
        EXPECT_EQ(view.slots[t], SlotOf(view.page_indices[entry], position, kPageSize));
      }
    }
    for (size_t g = 0; g < row.sequence->lease.tables.size(); ++g) {
      const PageTable& table = row.sequence->lease.tables[g];
      const PageTableView& view = batch.groups[g];
      EXPECT_EQ(view.kv_base[r], table.kv_base);
      for (int32_t e = view.kv_indptr[r]; e < view.kv_indptr[r + 1]; ++e) {
        EXPECT_EQ(view.page_indices[e], table.pages[static_cast<size_t>(e - view.kv_indptr[r])]);
      }
    }
  }
}

PackedBatch Build(BatchBuilder& builder, const StepPlan& plan, std::vector<std::byte>& block) {
  block.assign(static_cast<size_t>(builder.max_bytes()), std::byte{0xee});
  return builder.Build(plan, {}, block.data(), block.data());
}

TEST(BatchBuilder, PacksDecodeRowsAtEveryPlaceOfAPage) {
  const KvLayout layout = Layout({0, 6});
  Scene scene(layout);
  for (const int64_t start : {0, 3, 4, 5, 17, 60}) scene.AddRow(start, 1);
  BatchBuilder builder(layout, Limits(), 64);
  std::vector<std::byte> block;
  ExpectDescribes(Build(builder, scene.plan, block), scene);
}

TEST(BatchBuilder, PacksRaggedChunksOfAnySplit) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const KvLayout layout = Layout({0, 6, 6, 9});
  BatchBuilder builder(layout, Limits(), 64);
  for (int round = 0; round < 200; ++round) {
    Scene scene(layout);
    int64_t left = Limits().max_step_tokens;
    for (int r = 0; r < Limits().max_sequences && left > 0; ++r) {
      const auto count = static_cast<int32_t>(1 + random() % std::min<int64_t>(left, 12));
      left -= count;
      scene.AddRow(random() % (64 - count + 1), count);
    }
    std::vector<std::byte> block;
    ExpectDescribes(Build(builder, scene.plan, block), scene);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(BatchBuilder, ListsNoPageBeyondTheRowsEnd) {
  const KvLayout layout = Layout({0});
  Scene scene(layout);
  scene.AddRow(7, 1, /*beyond=*/2);
  BatchBuilder builder(layout, Limits(), 64);
  std::vector<std::byte> block;
  const PackedBatch packed = Build(builder, scene.plan, block);
  EXPECT_EQ(packed.forward.groups[0].kv_indptr[1], 2) << "8 tokens are 2 pages, though 4 are held";
}

TEST(BatchBuilder, PacksCopies) {
  const KvLayout layout = Layout({0});
  Scene scene(layout);
  scene.AddRow(1, 1);
  scene.plan.copies = {{5, 9}, {7, 11}};
  BatchBuilder builder(layout, Limits(), 64);
  std::vector<std::byte> block;
  const PackedBatch packed = Build(builder, scene.plan, block);
  ASSERT_EQ(packed.copy_count, 2);
  EXPECT_EQ(std::vector<int32_t>(packed.copy_pairs, packed.copy_pairs + 4),
            (std::vector<int32_t>{5, 9, 7, 11}));
  EXPECT_LE(packed.pieces.back().offset + packed.pieces.back().bytes, builder.max_bytes());
}

TEST(BatchBuilder, TokensInFlightAreTakenFromRecordsOfTheStepBefore) {
  const KvLayout layout = Layout({0});
  Scene scene(layout);
  scene.AddRow(0, 3);
  scene.AddRow(9, 1);
  scene.AddRow(5, 1);
  scene.AddRow(8, 1);
  for (const size_t r : {1u, 3u}) scene.sequences[r]->tokens.pop_back();  // sampled, and not read yet
  BatchBuilder builder(layout, Limits(), 64);
  std::vector<std::byte> block(static_cast<size_t>(builder.max_bytes()));
  const std::vector<int32_t> records = {-1, 4, 7, 2};  // row 2's token is known meanwhile
  const PackedBatch packed = builder.Build(scene.plan, records, block.data(), block.data());
  ASSERT_EQ(packed.advance.count, 2);
  EXPECT_EQ(std::vector<int32_t>(packed.advance.pairs, packed.advance.pairs + 4),
            (std::vector<int32_t>{4, 3, 2, 5}));
  EXPECT_EQ(packed.advance.token_ids, packed.forward.token_ids);
  EXPECT_EQ(packed.forward.positions[5], 8);
  EXPECT_EQ(packed.forward.token_ids[4], scene.sequences[2]->tokens[5]);
}

// A recorded step reads the same places whatever is planned, and padding has no tokens, no pages and no
// slots.
TEST(BatchBuilder, PaddedStepsOfAnyPlanHaveTheirPartsInTheSamePlaces) {
  const KvLayout layout = Layout({0, 6});
  BatchBuilder builder(layout, Limits(), 64);
  std::vector<std::byte> first, block;
  const auto build = [&](const Scene& scene, std::vector<std::byte>& host) {
    first.resize(static_cast<size_t>(builder.max_bytes()));
    host.assign(static_cast<size_t>(builder.max_bytes()), std::byte{0xee});
    std::vector<std::byte> device(host.size(), std::byte{0xdd});
    const PackedBatch packed = builder.BuildPadded(scene.plan, {}, 4, host.data(), first.data());
    // What the device gets is complete: the pieces, and nothing else, are copied.
    for (const PackedBatch::Piece& piece : packed.pieces) {
      std::copy_n(host.begin() + piece.offset, piece.bytes, device.begin() + piece.offset);
    }
    std::copy(device.begin(), device.end(), first.begin());
    return packed;
  };
  Scene none(layout), some(layout), full(layout);
  for (const int64_t start : {5, 60}) some.AddRow(start, 1);
  for (const int64_t start : {0, 3, 17, 63}) full.AddRow(start, 1);
  std::vector<const void*> places;
  for (const Scene* scene : {&none, &some, &full}) {
    const PackedBatch packed = build(*scene, block);
    ASSERT_EQ(packed.forward.sequences, 4);
    ASSERT_EQ(packed.forward.tokens, 4);
    const auto rows = static_cast<int32_t>(scene->plan.rows.size());
    std::vector<const void*> found = {packed.forward.token_ids, packed.forward.positions,
                                      packed.forward.qo_indptr};
    for (size_t g = 0; g < 2; ++g) {
      const PageTableView& view = packed.forward.groups[g];
      found.insert(found.end(),
                   {view.kv_indptr, view.page_indices, view.last_page_len, view.kv_base, view.slots});
      for (int32_t r = 0; r < rows; ++r) {
        const StepRow& row = scene->plan.rows[static_cast<size_t>(r)];
        EXPECT_EQ(KvEnd(view, r, kPageSize), row.start + 1);
        const PageTable& table = row.sequence->lease.tables[g];
        for (int32_t e = view.kv_indptr[r]; e < view.kv_indptr[r + 1]; ++e) {
          EXPECT_EQ(view.page_indices[e], table.pages[static_cast<size_t>(e - view.kv_indptr[r])]);
        }
        EXPECT_GE(view.slots[r], 0);
      }
      for (int32_t r = rows; r < 4; ++r) {
        EXPECT_EQ(packed.forward.qo_indptr[r + 1], rows);
        EXPECT_EQ(KvEnd(view, r, kPageSize), 0);
        EXPECT_EQ(view.slots[r], -1);
      }
    }
    if (places.empty()) places = found;
    EXPECT_EQ(found, places);
  }
}

TEST(BatchBuilder, TheFullestStepFitsItsBound) {
  // Every slot taken by a sequence of the whole context, in both lanes.
  const KvLayout layout = Layout({0, 6});
  BatchBuilder builder(layout, Limits(), 64);
  for (const int32_t count : {1, 5}) {
    Scene scene(layout);
    for (int r = 0; r < Limits().max_sequences; ++r) scene.AddRow(64 - count, count);
    for (int32_t i = 0; i < 2 * Limits().max_sequences; ++i) scene.plan.copies.push_back({i, i + 100});
    std::vector<std::byte> block;
    ExpectDescribes(Build(builder, scene.plan, block), scene);
  }
}

}  // namespace
}  // namespace tramontane
