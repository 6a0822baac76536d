// The KV cache's tables as the engine tells them.
#include "engine/transfer/kv_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_thread.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/placed_sequence.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

std::set<PageId> PagesOf(const KvReport& report) {
  std::set<PageId> pages;
  for (const KvReport::OfSequence& sequence : report.sequences) {
    for (const KvReport::Table& table : sequence.tables) {
      pages.insert(table.sinks.begin(), table.sinks.end());
      pages.insert(table.pages.begin(), table.pages.end());
    }
  }
  return pages;
}

TEST(KvReport, AQuestionIsAnsweredByTheNextStepWithAllPagesThatAreHeld) {
  SteppedEngine test(SmallLimits(64), {16, 0});
  auto first = test.Submit(MakeRequest("first", 20, 5));
  auto second = test.Submit(MakeRequest("second", 3, 5));
  for (int step = 0; step < 4; ++step) test.Step();
  const auto question = *test.engine().AskKv();
  EXPECT_EQ(question->answer(), nullptr);
  const EngineLoad load = test.engine().Load();
  test.Step();
  const KvReport* const report = question->answer();
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->total_pages, 64);
  EXPECT_EQ(report->held_pages, load.held_pages);
  EXPECT_EQ(report->free_pages + report->cached_pages + report->held_pages, report->total_pages);
  ASSERT_EQ(report->groups.size(), 2u);
  EXPECT_EQ(report->groups[0].held_pages + report->groups[1].held_pages, report->held_pages);
  EXPECT_EQ(report->groups[0].layers, 1);
  ASSERT_EQ(report->sequences.size(), 2u);
  EXPECT_EQ(report->sequences[0].id, "first");
  EXPECT_GE(report->sequences[0].tokens, 16);
  EXPECT_EQ(report->sequences[1].id, "second");
  EXPECT_EQ(report->sequences[1].policy.type, ContextPolicyType::kNone);
  EXPECT_EQ(static_cast<int64_t>(PagesOf(*report).size()), report->held_pages);
  test.RunToEnd({first.get(), second.get()});

  const auto after = *test.engine().AskKv();
  test.engine().Step();
  ASSERT_NE(after->answer(), nullptr) << "a step without work answers too";
  EXPECT_TRUE(after->answer()->sequences.empty());
  EXPECT_EQ(after->answer()->held_pages, 0);
}

TEST(KvReport, SequencesAndPagesBeyondTheLimitsAreCounted) {
  constexpr int64_t kLong = static_cast<int64_t>(KvReport::kPagesOfTable) + 44;
  constexpr auto kMany = KvReport::kSequences + 3;
  KvStore store(MakeKvLayout({0}, {.kv_heads = 1, .head_dim = 2, .page_size = 1}),
                kLong + static_cast<int64_t>(kMany), PrefixCache::kOff);
  const Request request = MakeRequest("r", 1, 1);
  const TextIdentity identity;
  std::vector<Sequence> sequences(kMany + 1);
  std::vector<const Sequence*> all;
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].request = &request;
    sequences[i].identity = &identity;
    PlacedSequence::LeaseOf(sequences[i]) = store.NewLease();
    std::vector<PageCopy> copies;
    // One holds nothing; it is not shown, and not left out.
    if (i != 1) store.Extend(PlacedSequence::LeaseOf(sequences[i]), 0, i == 0 ? kLong : 1, &copies);
    all.push_back(&sequences[i]);
  }
  const KvReport report = ReportKv(store, all);
  EXPECT_EQ(report.sequences.size(), KvReport::kSequences);
  EXPECT_EQ(report.sequences_left_out, 3);
  EXPECT_EQ(report.sequences[0].tables[0].pages.size(), KvReport::kPagesOfTable);
  EXPECT_EQ(report.sequences[0].tables[0].pages_left_out, 44);
  EXPECT_EQ(report.sequences[0].tables[0].pages[7], sequences[0].lease().tables[0].pages[7]);
  EXPECT_EQ(report.sequences[1].tables[0].pages_left_out, 0);
  for (Sequence& sequence : sequences) store.Release(PlacedSequence::LeaseOf(sequence));
}

TEST(LiveReport, IsOfWhatRunsAndVisitsNothingThatWaits) {
  EngineLimits limits = SmallLimits(64);
  limits.max_sequences = 2;
  SteppedEngine test(limits);
  auto first = test.Submit(MakeRequest("first", 5, 9));
  auto second = test.Submit(MakeRequest("second", 3, 9));
  auto third = test.Submit(MakeRequest("third", 3, 9));
  for (int step = 0; step < 4; ++step) test.Step();
  const auto question = *test.engine().AskLive();
  EXPECT_EQ(question->answer(), nullptr);
  const int64_t held = test.engine().Load().held_pages;
  test.Step();
  const LiveReport* const report = question->answer();
  ASSERT_NE(report, nullptr);
  ASSERT_EQ(report->requests.size(), 2u);
  EXPECT_EQ(report->requests[0].pages + report->requests[1].pages, held);
  for (const LiveReport::OfRequest& request : report->requests) {
    EXPECT_EQ(request.state, SequenceState::kDecode);
    EXPECT_GT(request.output_tokens, 0);
    EXPECT_LT(request.output_tokens, 9);
  }
  EXPECT_NE(report->requests[0].stream, report->requests[1].stream);
  test.RunToEnd({first.get(), second.get(), third.get()});
  test.Step();  // lets go of the last
  const auto after = *test.engine().AskLive();
  test.engine().Step();
  ASSERT_NE(after->answer(), nullptr);
  EXPECT_TRUE(after->answer()->requests.empty());
}

TEST(KvReport, OneQuestionTooManyIsRefusedUntilTheOthersAreAnswered) {
  SteppedEngine test(SmallLimits(64));
  std::vector<std::shared_ptr<KvQuestion>> questions;
  for (int32_t i = 0; i < KvQuestions::kMost; ++i) questions.push_back(*test.engine().AskKv());
  const auto refused = test.engine().AskKv();
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("at most 64"), std::string::npos);
  test.engine().Step();
  for (const auto& question : questions) EXPECT_NE(question->answer(), nullptr);
  EXPECT_TRUE(test.engine().AskKv().ok());
}

TEST(KvReport, ManyThreadsAskOfAnEngineThatRuns) {
  SteppedEngine test(SmallLimits(64));
  const auto ask = [&] {
    for (int64_t i = ScaledCount(200); i > 0; --i) {
      const auto question = test.engine().AskKv();
      while (question.ok() && (*question)->answer() == nullptr) std::this_thread::yield();
      if (!question.ok()) continue;
      const KvReport& report = *(*question)->answer();
      EXPECT_EQ(report.free_pages + report.cached_pages + report.held_pages, report.total_pages);
    }
  };
  const EngineThread thread(test.engine());
  auto reader = test.Submit(MakeRequest("r", 20, 40));
  std::vector<std::thread> askers;
  for (int i = 0; i < 4; ++i) askers.emplace_back(ask);
  for (std::thread& asker : askers) asker.join();
  reader->WaitToEnd();
  EXPECT_TRUE(reader->status().ok());
}

}  // namespace
}  // namespace tramontane
