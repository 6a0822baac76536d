#include "engine/run/batch_builder.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/kv/kv_store.h"
#include "kernels/paged_kv.h"
#include "tests/support/placed_sequence.h"
#include "tests/support/test_scale.h"
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
      request->prompt.push_back(static_cast<int32_t>(1000 * sequences.size() + i));
    }
    sequence->tokens = SequenceTokens(request->prompt);
    PlacedSequence::SlotOf(*sequence) = static_cast<int32_t>(sequences.size());
    PlacedSequence::LeaseOf(*sequence) = store.NewLease();
    store.Extend(PlacedSequence::LeaseOf(*sequence), 0, start, &plan.copies);
    store.Roll(PlacedSequence::LeaseOf(*sequence), start);
    store.Extend(PlacedSequence::LeaseOf(*sequence), start, start + count + beyond * kPageSize, &plan.copies);
    plan.rows.push_back({.sequence = sequence.get(), .start = start, .count = count});
    plan.tokens += count;
    requests.push_back(std::move(request));
    sequences.push_back(std::move(sequence));
  }

  KvStore store;
  StepPlan plan;
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

void ExpectLists(const PageTableView& view, int32_t r, const PageTable& table) {
  for (int64_t position = view.kv_base[r]; position < view.kv_end[r]; position += kPageSize) {
    EXPECT_EQ(PagesOf(view, r)[PageOf(position, 0, kPageSize)],
              table.pages[static_cast<size_t>(PageOf(position, table.kv_base, kPageSize))]);
  }
}

// The block as the device would hold it: host and device are the same memory here.
void ExpectDescribes(const PackedBatch& packed, const Scene& scene) {
  const std::vector<StepRow>& rows = scene.plan.rows;
  const ForwardBatch& batch = packed.forward;
  ASSERT_EQ(batch.sequences, static_cast<int32_t>(rows.size()));
  ASSERT_EQ(batch.tokens, scene.plan.tokens);
  std::vector<int64_t> listed_pages(rows.empty() ? 0 : rows[0].sequence->lease().tables.size());
  for (int32_t r = 0; r < batch.sequences; ++r) {
    const StepRow& row = rows[static_cast<size_t>(r)];
    ASSERT_EQ(batch.qo_indptr[r + 1] - batch.qo_indptr[r], row.count);
    for (size_t g = 0; g < row.sequence->lease().tables.size(); ++g) {
      EXPECT_EQ(batch.groups[g].kv_end[r], row.start + row.count) << "row " << r << " group " << g;
    }
    for (int32_t i = 0; i < row.count; ++i) {
      const int32_t t = batch.qo_indptr[r] + i;
      const int64_t position = row.start + i;
      EXPECT_EQ(batch.positions[t], position);
      EXPECT_EQ(batch.token_ids[t], row.sequence->tokens[static_cast<size_t>(position)]);
      for (size_t g = 0; g < row.sequence->lease().tables.size(); ++g) {
        const PageTableView& view = batch.groups[g];
        const int32_t page = PagesOf(view, r)[PageOf(position, 0, kPageSize)];
        EXPECT_EQ(view.slots[t], SlotOf(page, position, kPageSize));
      }
    }
    for (size_t g = 0; g < row.sequence->lease().tables.size(); ++g) {
      const PageTable& table = row.sequence->lease().tables[g];
      const PageTableView& view = batch.groups[g];
      EXPECT_EQ(view.kv_base[r], table.kv_base);
      ExpectLists(view, r, table);
      listed_pages[g] += PagesFor(view.kv_end[r] - view.kv_base[r], kPageSize);
    }
  }
  for (size_t g = 0; g < listed_pages.size(); ++g) EXPECT_EQ(batch.groups[g].listed_pages, listed_pages[g]);
}

// What a runner does with a packed step: the block is copied behind the tables, which are changed.
class Device {
 public:
  explicit Device(BatchBuilder& builder)
      : builder_(builder),
        host_(static_cast<size_t>(builder.max_bytes()), std::byte{0xee}),
        memory_(static_cast<size_t>(builder.table_bytes() + builder.max_bytes()), std::byte{0xdd}) {}

  PackedBatch Build(const StepPlan& plan, std::span<const int32_t> records = {}) {
    return Copy(builder_.Build(plan, records, host_.data(), memory_.data()));
  }
  PackedBatch BuildPadded(const StepPlan& plan, const RecordedShape& shape) {
    return Copy(builder_.Build(plan, {}, host_.data(), memory_.data(), &shape));
  }

 private:
  PackedBatch Copy(const PackedBatch& packed) {
    EXPECT_LE(packed.bytes, builder_.max_bytes());
    std::copy_n(host_.begin(), packed.bytes, memory_.begin() + builder_.table_bytes());
    const ScatterParams& changes = packed.table_changes;
    for (size_t i = 0; i < packed.early_changes.size(); i += 2) {
      changes.out[packed.early_changes[i]] = packed.early_changes[i + 1];
    }
    for (int32_t i = 0; i < changes.count; ++i) changes.out[changes.pairs[2 * i]] = changes.pairs[2 * i + 1];
    return packed;
  }

  BatchBuilder& builder_;
  std::vector<std::byte> host_, memory_;
};

TEST(BatchBuilder, PacksDecodeRowsAtEveryPlaceOfAPage) {
  const KvLayout layout = Layout({0, 6});
  Scene scene(layout);
  for (const int64_t start : {0, 3, 4, 5, 17, 60}) scene.AddRow(start, 1);
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  ExpectDescribes(device.Build(scene.plan), scene);
}

TEST(BatchBuilder, PacksRaggedChunksOfAnySplit) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const KvLayout layout = Layout({0, 6, 6, 9});
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  for (int round = 0; round < 200; ++round) {
    Scene scene(layout);
    int64_t left = Limits().max_step_tokens;
    for (int r = 0; r < Limits().max_sequences && left > 0; ++r) {
      const auto count = static_cast<int32_t>(1 + random() % std::min<int64_t>(left, 12));
      left -= count;
      scene.AddRow(random() % (64 - count + 1), count);
    }
    ExpectDescribes(device.Build(scene.plan), scene);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(BatchBuilder, ListsNoPageBeyondTheRowsEnd) {
  const KvLayout layout = Layout({0});
  Scene scene(layout);
  scene.AddRow(7, 1, /*beyond=*/2);
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  const PackedBatch packed = device.Build(scene.plan);
  EXPECT_EQ(packed.forward.groups[0].kv_end[0], 8) << "8 tokens, though there are pages for 16";
}

TEST(BatchBuilder, PacksCopies) {
  const KvLayout layout = Layout({0});
  Scene scene(layout);
  scene.AddRow(1, 1);
  scene.plan.copies = {{5, 9}, {7, 11}};
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  const PackedBatch packed = device.Build(scene.plan);
  ASSERT_EQ(packed.copy_count, 2);
  EXPECT_EQ(std::vector<int32_t>(packed.copy_pairs, packed.copy_pairs + 4),
            (std::vector<int32_t>{5, 9, 7, 11}));
}

TEST(BatchBuilder, TokensInFlightAreTakenFromRecordsOfTheStepBefore) {
  const KvLayout layout = Layout({0});
  Scene scene(layout);
  scene.AddRow(0, 3);
  scene.AddRow(9, 1);
  scene.AddRow(5, 1);
  scene.AddRow(8, 1);
  for (const size_t r : {1u, 3u}) {  // sampled, and not read yet
    SequenceTokens& tokens = scene.sequences[r]->tokens;
    tokens.Erase(static_cast<int64_t>(tokens.size()) - 1, 1);
  }
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  const std::vector<int32_t> records = {-1, 4, 7, 2};  // row 2's token is known meanwhile
  const PackedBatch packed = device.Build(scene.plan, records);
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
  Device device(builder);
  Scene none(layout), some(layout), full(layout);
  for (const int64_t start : {5, 60}) some.AddRow(start, 1);
  for (const int64_t start : {0, 3, 17, 63}) full.AddRow(start, 1);
  std::vector<const void*> places;
  for (const Scene* scene : {&none, &some, &full}) {
    const PackedBatch packed = device.BuildPadded(scene->plan, {.rows = 4});
    ASSERT_EQ(packed.forward.sequences, 4);
    ASSERT_EQ(packed.forward.tokens, 4);
    const auto rows = static_cast<int32_t>(scene->plan.rows.size());
    std::vector<const void*> found = {packed.forward.token_ids, packed.forward.positions,
                                      packed.forward.qo_indptr};
    for (size_t g = 0; g < 2; ++g) {
      const PageTableView& view = packed.forward.groups[g];
      found.insert(found.end(), {view.page_indices, view.first_entry, view.page_mask, view.kv_base,
                                 view.kv_end, view.slots});
      for (int32_t r = 0; r < rows; ++r) {
        const StepRow& row = scene->plan.rows[static_cast<size_t>(r)];
        EXPECT_EQ(view.kv_end[r], row.start + 1);
        const PageTable& table = row.sequence->lease().tables[g];
        ExpectLists(view, r, table);
        EXPECT_GE(view.slots[r], 0);
      }
      for (int32_t r = rows; r < 4; ++r) {
        EXPECT_EQ(packed.forward.qo_indptr[r + 1], rows);
        EXPECT_EQ(view.kv_end[r], 0);
        EXPECT_EQ(view.slots[r], -1);
      }
      EXPECT_EQ(view.listed_pages, 0) << "another step will be replayed";
    }
    if (places.empty()) places = found;
    EXPECT_EQ(found, places);
  }
}

TEST(BatchBuilder, TheFullestStepFitsItsBound) {
  // Every slot taken by a sequence of the whole context, in both lanes.
  const KvLayout layout = Layout({0, 6});
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  for (const int32_t count : {1, 5}) {
    Scene scene(layout);
    for (int r = 0; r < Limits().max_sequences; ++r) scene.AddRow(64 - count, count);
    for (int32_t i = 0; i < 2 * Limits().max_sequences; ++i) scene.plan.copies.push_back({i, i + 100});
    ExpectDescribes(device.Build(scene.plan), scene);
  }
}

TEST(BatchBuilder, ItsBoundHasRoomForWhatEveryTokenSeesOfSinks) {
  const KvLayout layout = Layout({0, 6});
  EngineLimits more = Limits();
  more.max_step_tokens = Limits().max_step_tokens + 1000;
  constexpr int64_t kTokenBytes = 2 * 4 + 2 * 8 + 4 * 4;  // id, position; a slot in each group; of sinks
  EXPECT_GE(BatchBuilder(layout, more, 64).max_bytes() - BatchBuilder(layout, Limits(), 64).max_bytes(),
            900 * kTokenBytes);
}

// ---- the tables that stay on the device ----------------------------------------------------------

// One sequence of a slot, as the scheduler moves it.
struct Runner {
  Runner(KvStore& the_store, int32_t slot, const ContextPolicy& policy) : store(the_store) {
    sequence.request = &request;
    PlacedSequence::SlotOf(sequence) = slot;
    PlacedSequence::LeaseOf(sequence) = store.NewLease(policy);
  }
  ~Runner() { store.Release(PlacedSequence::LeaseOf(sequence)); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  int64_t end() const { return static_cast<int64_t>(sequence.tokens.size()); }
  void Plan(int32_t count, StepPlan& plan) {
    const int64_t start = end();
    for (int32_t i = 0; i < count; ++i) sequence.tokens.push_back(7);
    store.Extend(PlacedSequence::LeaseOf(sequence), start, start + count, &plan.copies);
    plan.rows.push_back({.sequence = &sequence, .start = start, .count = count});
    plan.tokens += count;
  }

  KvStore& store;
  Request request;
  Sequence sequence;
};

// Of what the rows of a plan see: every page in its ring, every sink apart.
void ExpectSeen(const PackedBatch& packed, const StepPlan& plan, const KvLayout& layout) {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const PageTableView& view = packed.forward.groups[g];
    for (int32_t r = 0; r < static_cast<int32_t>(plan.rows.size()); ++r) {
      const StepRow& row = plan.rows[static_cast<size_t>(r)];
      const Lease& lease = row.sequence->lease();
      const PageTable& table = lease.tables[g];
      const auto page_of = [&](int64_t position) {
        return position < table.kv_base
                   ? table.sinks[static_cast<size_t>(PageOf(position, 0, kPageSize))]
                   : table.pages[static_cast<size_t>(PageOf(position, table.kv_base, kPageSize))];
      };
      ASSERT_EQ(view.kv_end[r], row.start + row.count);
      for (int64_t query = row.start; query < row.start + row.count; ++query) {
        const RowView seen = SeenAt(lease, query);
        for (int64_t key = std::max(FirstVisible(query, layout.groups[g].window), seen.left); key <= query;
             ++key) {
          ASSERT_EQ(PagesOf(view, r)[PageOf(key, 0, kPageSize)], page_of(key))
              << "row " << r << " key " << key;
        }
        const int64_t sinks = std::min({seen.sink_len, query + 1, SinkPages(lease, layout, g) * kPageSize});
        for (int64_t key = 0; key < sinks; ++key) {
          ASSERT_EQ(SinkPagesOf(view, r)[PageOf(key, 0, kPageSize)], page_of(key))
              << "row " << r << " sink " << key;
        }
      }
    }
  }
}

// In front of the first that sees sinks; behind it plain ones are not counted, and without it nobody is.
TEST(BatchBuilder, CountsThePlainRowsInFrontOfOthers) {
  const KvLayout layout = Layout({0, 6});
  KvStore store(layout, 1000, PrefixCache::kOff);
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  const ContextPolicy policy = {.type = ContextPolicyType::kShift, .n_ctx = 8, .n_keep = 2, .n_discard = 1};
  Runner first(store, 0, {}), before_it_is_full(store, 1, policy), full(store, 2, policy), last(store, 3, {});
  StepPlan plan;
  first.Plan(9, plan);
  before_it_is_full.Plan(7, plan);
  const PackedBatch alone = device.Build(plan);
  EXPECT_EQ(alone.forward.plain.sequences, 0);
  EXPECT_EQ(alone.forward.plain.tokens, 0);
  EXPECT_EQ(alone.forward.sinks.len, nullptr);

  full.Plan(10, plan);
  last.Plan(1, plan);
  const PackedBatch beside = device.Build(plan);
  EXPECT_NE(beside.forward.sinks.len, nullptr);
  EXPECT_EQ(beside.forward.plain.sequences, 2);
  EXPECT_EQ(beside.forward.plain.tokens, 16);
  for (size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(beside.forward.groups[g].listed_pages, 3 + 2) << "of 9 and 7 tokens";
  }
}

// What rows see of sinks and which see none lie where they lay, too, whatever is copied and in flight;
// padding has neither.
TEST(BatchBuilder, PaddedStepsWithSinksHaveTheirPartsInTheSamePlaces) {
  const KvLayout layout = Layout({0, 6});
  KvStore store(layout, 1000, PrefixCache::kOff);
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  const ContextPolicy policy = {.type = ContextPolicyType::kShift, .n_ctx = 8, .n_keep = 2, .n_discard = 1};
  Runner plain(store, 0, {}), sees(store, 1, policy), sees_too(store, 2, policy);
  StepPlan before, none, plans[3];
  for (Runner* runner : {&plain, &sees, &sees_too}) runner->Plan(10, before);
  for (StepPlan& plan : plans) {
    plain.Plan(1, plan);
    sees.Plan(1, plan);
    plan.copies.clear();
  }
  sees_too.Plan(1, plans[1]);
  plans[2].copies = {{500, 501}};
  std::swap(plans[2].rows[0], plans[2].rows[1]);  // the plain one is not in front
  const std::vector<std::vector<int32_t>> of_plain = {
      {0, 0, 0, 0, 0}, {0, 1, 1, 1, 1}, {0, 1, 1, 1, 1}, {0, 0, 0, 0, 0}};
  const std::vector<std::vector<int32_t>> of_others = {
      {0, 0, 0, 0, 0}, {1, 1, 2, 2, 2}, {1, 1, 2, 3, 3}, {0, 1, 2, 2, 2}};
  std::vector<const void*> places;
  size_t number = 0;
  for (const StepPlan* plan : {&none, &plans[0], &plans[1], &plans[2]}) {
    const PackedBatch packed = device.BuildPadded(*plan, {.rows = 4, .sinks = true});
    const SinkRows& sinks = packed.forward.sinks;
    const AttentionPlain& kinds = packed.forward.plain;
    std::vector<const void*> found = {packed.forward.token_ids,
                                      packed.forward.qo_indptr,
                                      sinks.len,
                                      sinks.left,
                                      sinks.positions,
                                      sinks.limits,
                                      kinds.qo_indptr,
                                      kinds.others_qo_indptr};
    for (size_t g = 0; g < 2; ++g) found.push_back(packed.forward.groups[g].sink_entry);
    if (places.empty()) places = found;
    EXPECT_EQ(found, places);
    EXPECT_EQ(kinds.sequences, 0) << "the device alone is told";
    EXPECT_EQ(std::vector<int32_t>(kinds.qo_indptr, kinds.qo_indptr + 5), of_plain[number]);
    EXPECT_EQ(std::vector<int32_t>(kinds.others_qo_indptr, kinds.others_qo_indptr + 5), of_others[number]);
    for (int32_t r = 0; r < 4; ++r) {
      const bool sees_sinks = r < std::ssize(plan->rows) && SeesSinks(plan->rows[static_cast<size_t>(r)]);
      EXPECT_EQ(sinks.len[r], sees_sinks ? 2 : 0);
      EXPECT_EQ(sinks.left[r] > 0, sees_sinks);
    }
    if (!plan->rows.empty()) ExpectSeen(packed, *plan, layout);
    ++number;
  }
}

TEST(SlotTablesTest, ADecodeRowChangesEntriesOnlyWhereItBeginsAPage) {
  const KvLayout layout = Layout({0, 6});
  KvStore store(layout, 1000, PrefixCache::kOff);
  BatchBuilder builder(layout, Limits(), 64);
  Device device(builder);
  Runner runner(store, 2, {});
  for (int64_t position = 0; position < 64; ++position) {
    StepPlan plan;
    runner.Plan(1, plan);
    const PackedBatch packed = device.Build(plan);
    EXPECT_EQ(packed.table_changes.count, position % kPageSize == 0 ? 2 : 0) << "position " << position;
    ExpectSeen(packed, plan, layout);
    store.Roll(PlacedSequence::LeaseOf(runner.sequence), position + 1);
  }
}

// Sequences of all policies come, go, fork and begin again in any slot; nothing of those before is left.
TEST(SlotTablesTest, RowsSeeTheirOwnPagesInAnyHistory) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const KvLayout layout = Layout({0, 6, 6, 9});
  constexpr int64_t kContext = 64;
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int64_t history = ScaledCount(40, 5); history > 0; --history) {
    KvStore store(layout, 4000, PrefixCache::kOff);
    BatchBuilder builder(layout, Limits(), kContext);
    Device device(builder);
    std::vector<std::unique_ptr<Runner>> runners(static_cast<size_t>(Limits().max_sequences));
    for (int step = 0; step < 60; ++step) {
      StepPlan plan;
      int64_t left = Limits().max_step_tokens;
      for (size_t slot = 0; slot < runners.size(); ++slot) {
        std::unique_ptr<Runner>& runner = runners[slot];
        if (runner != nullptr && draw(0, 30) == 0) runner = nullptr;
        if (runner != nullptr && draw(0, 30) == 0) {  // preempted
          store.Release(PlacedSequence::LeaseOf(runner->sequence));
          runner->sequence.tokens = {};
        }
        if (runner == nullptr) {
          ContextPolicy policy;
          if (draw(0, 1) == 0) {
            policy.type = draw(0, 1) == 0 ? ContextPolicyType::kSinks : ContextPolicyType::kShift;
            policy.n_ctx = draw(2, kContext);
            policy.n_keep = draw(0, policy.n_ctx - 1);
            policy.n_discard = draw(1, policy.n_ctx - policy.n_keep);
          }
          const auto other = static_cast<size_t>(draw(0, static_cast<int64_t>(runners.size()) - 1));
          runner = std::make_unique<Runner>(store, static_cast<int32_t>(slot), policy);
          if (runners[other] != nullptr && other != slot && other > slot && runners[other]->end() > 0) {
            runner->sequence.tokens = runners[other]->sequence.tokens;
            PlacedSequence::LeaseOf(runner->sequence) =
                store.Fork(runners[other]->sequence.lease(), runners[other]->end());
          }
        }
        const bool endless = runner->sequence.lease().plain_len != INT64_MAX;
        const int64_t room = endless ? left : std::min(left, kContext - runner->end());
        if (room == 0 || draw(0, 3) == 0) continue;
        const auto count = static_cast<int32_t>(draw(0, 2) == 0 ? draw(1, room) : 1);
        runner->Plan(count, plan);
        left -= count;
      }
      if (plan.rows.empty()) continue;
      ExpectSeen(device.Build(plan), plan, layout);
      if (HasFatalFailure()) return;
      for (const StepRow& row : plan.rows)
        store.Roll(PlacedSequence::LeaseOf(*row.sequence), row.start + row.count);
    }
  }
}

// More changes than a block has place for: the tables of many long texts at once, as when all find a prefix.
TEST(SlotTablesTest, ChangesWithoutAPlaceInTheBlockComeBeforeIt) {
  const KvLayout layout = Layout({0, 0, 0, 6});
  EngineLimits limits = Limits();
  limits.max_sequences = 40;
  constexpr int64_t kContext = 4000;
  KvStore store(layout, 200'000, PrefixCache::kOff);
  BatchBuilder builder(layout, limits, kContext);
  Device device(builder);
  std::vector<std::unique_ptr<Runner>> runners;
  StepPlan plan;
  for (int32_t slot = 0; slot < 32; ++slot) {
    Runner& runner = *runners.emplace_back(std::make_unique<Runner>(store, slot, ContextPolicy()));
    StepPlan before;
    runner.Plan(kContext - 1, before);
    runner.Plan(1, plan);
  }
  plan.copies.clear();
  const PackedBatch packed = device.Build(plan);
  EXPECT_GT(packed.early_changes.size(), 0u);
  ExpectSeen(packed, plan, layout);
  EXPECT_EQ(device.Build(plan).early_changes.size(), 0u) << "nothing is changed twice";
}

TEST(SlotTablesTest, MorePageIdsThan32BitsNameAreRefused) {
  EngineLimits limits = Limits();
  limits.max_sequences = 1 << 16;
  const Status refused = BatchBuilder(Layout({0}), limits, int64_t{1} << 20).CheckSize();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(BatchBuilder(Layout({0}), Limits(), int64_t{1} << 20).CheckSize().ok());
}

}  // namespace
}  // namespace tramontane
