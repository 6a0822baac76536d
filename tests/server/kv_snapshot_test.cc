// Keys and values that go to a file and come back, in engines of other page sizes and layouts: the text goes
// on bit for bit as if nothing had been; or the file is refused.
#include "server/sessions/kv_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/transfer/kv_report.h"
#include "models/chat/mistral_chat.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/sessions/kv_export.h"
#include "server/sessions/session_files.h"
#include "server/watch/kv_tables_text.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr int64_t kPromptTokens = 150;
constexpr int64_t kSaid = 21;

struct Pool {
  int32_t page_size = 16;
  KvOrder order = KvOrder::kHnd;
  DType dtype = DType::kBf16;
  int64_t pages = 400;
  int32_t steps_in_flight = 1;
  int32_t step_tokens = 48;
  TestTier tier = {};
  bool prefix_cache = true;
};

EngineLimits LimitsOf(const Pool& pool) {
  EngineLimits limits;
  limits.context = 208;
  limits.max_sequences = 4;
  limits.page_size = pool.page_size;
  limits.pool_pages = pool.pages;
  limits.max_step_tokens = pool.step_tokens;
  limits.max_logit_rows = 4;
  limits.steps_in_flight = pool.steps_in_flight;
  limits.prefix_cache = pool.prefix_cache;
  return limits;
}

class PoolOfPages {
 public:
  PoolOfPages(const TempFolder& model, const Pool& pool) : engine_(model.path(), OptionsOf(pool)) {}

  std::unique_ptr<StreamReader> Ask(const Request& request) {
    auto reader = engine_.Submit(request);
    EXPECT_TRUE(reader->refused().ok()) << reader->refused();
    engine_.RunToEnd({reader.get()});
    return reader;
  }
  // The same, a step at a time, each when the disk has written what the one before it asked for: what leaves
  // the host sooner is lost.
  void AskSlowly(const Request& request, const KvDisk* disk) {
    const auto reader = engine_.Submit(request);
    while (!engine_.engine().idle()) {
      engine_.Step();
      while (disk != nullptr && !disk->is_idle()) std::this_thread::yield();
    }
    reader->WaitToEnd();
  }
  // Steps meanwhile.
  void Run(const std::shared_ptr<KvTransfer>& transfer) {
    ASSERT_TRUE(engine_.engine().StartTransfer(transfer).ok());
    while (!transfer->done()) engine_.Step();
    EXPECT_TRUE(transfer->status().ok()) << transfer->status();
  }
  SavedSessionModel model(const std::string& weights = "w") {
    return {.name = "m",
            .fingerprint = "f",
            .vocab_size = 96,
            .layout = &engine_.engine().kv_layout(),
            .weights = weights};
  }
  CpuEngine& engine() { return engine_; }

 private:
  static CpuEngine::Options OptionsOf(const Pool& pool) {
    CpuEngine::Options options;
    options.limits = LimitsOf(pool);
    options.kv_dtype = pool.dtype;
    options.kv_order = pool.order;
    options.tier = pool.tier;
    if (pool.steps_in_flight > 1) options.delayed = DelayedBackend::Runs::kWhenWaitedFor;
    return options;
  }
  CpuEngine engine_;
};

Request RequestOf(Ids prompt, int64_t tokens) {
  Request request;
  request.id = "r";
  request.prompt = std::move(prompt);
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  request.stopping.max_tokens = tokens;
  request.stopping.ignore_eos = true;
  request.output.logprobs = 3;
  return request;
}

Ids Prompt(int64_t tokens, uint32_t salt = 0) {
  Request request = MakeRequest("", tokens, 1, salt);
  return request.prompt;
}

void ExpectSame(const StreamReader& a, const StreamReader& b) {
  EXPECT_EQ(a.choice().ids, b.choice().ids);
  ASSERT_EQ(a.choice().logprobs.size(), b.choice().logprobs.size());
  for (size_t i = 0; i < a.choice().logprobs.size(); ++i) {
    EXPECT_EQ(a.choice().logprobs[i].logprob, b.choice().logprobs[i].logprob) << i;
  }
}

CachedText TextOf(const SessionState& state) {
  return CachedTextOf(state.ids, state.cache_salt, state.context_policy, state.kv_owner);
}

class KvSnapshot : public ::testing::Test {
 protected:
  KvSnapshot() : files_(SessionFiles::Open(folder_.path()).value()) {
    state_.kv_owner = std::make_shared<const KvOwner>();
  }

  void WriteModel(const std::vector<int32_t>& windows) {
    TinyModel tiny;
    tiny.layers = static_cast<int32_t>(windows.size());
    tiny.window = windows;
    tiny.Randomise(4);
    tiny.WriteMistral(model_);
  }
  Request Turn(Ids prompt, int64_t tokens) const {
    Request request = RequestOf(std::move(prompt), tokens);
    request.context_policy = state_.context_policy;
    request.kv_owner = state_.kv_owner;
    return request;
  }
  // Says the first turn and saves it; what is in the session then.
  void SaveFirstTurn(const Pool& pool) {
    PoolOfPages server(model_, pool);
    state_.ids = Prompt(prompt_tokens_);
    const auto answer = server.Ask(Turn(state_.ids, kSaid));
    state_.ids.insert(state_.ids.end(), answer->choice().ids.begin(), answer->choice().ids.end());
    const auto read = std::make_shared<KvTransfer>(TextOf(state_));
    server.Run(read);
    EXPECT_EQ(read->tokens(), std::ssize(TextOf(state_).tokens) - 1) << "the last token was not fed back";
    int64_t bytes = 0;
    const RpcError error = files_->Save({}, "s", state_, server.model(), &read->pages(), &bytes);
    ASSERT_TRUE(error.ok()) << error.message();
    EXPECT_EQ(bytes, static_cast<int64_t>(BytesOfFile().size()));
  }
  Request SecondTurn() {
    Ids prompt = state_.ids;
    prompt.insert(prompt.end(), {9, 10, 11});
    return Turn(prompt, 30);
  }
  // Restores into a server of that pool and goes on there; tokens that were found.
  int64_t GoOn(const Pool& pool, std::unique_ptr<StreamReader>* answer) {
    PoolOfPages server(model_, pool);
    SessionState state;
    KvPages pages;
    const RpcError error = files_->Restore({}, "s", "", server.model(), &state, &pages);
    EXPECT_TRUE(error.ok()) << error.message();
    EXPECT_EQ(state.ids, state_.ids);
    EXPECT_EQ(state.context_policy, state_.context_policy);
    state.kv_owner = state_.kv_owner;
    const auto written = std::make_shared<KvTransfer>(TextOf(state), std::move(pages));
    server.Run(written);
    *answer = server.Ask(SecondTurn());
    EXPECT_EQ((*answer)->choice().end().usage.cached_tokens, written->tokens());
    return written->tokens();
  }
  std::unique_ptr<StreamReader> NeverStopped(const Pool& pool) {
    PoolOfPages server(model_, pool);
    Ids first(state_.ids.begin(), state_.ids.begin() + prompt_tokens_);
    server.Ask(Turn(first, kSaid));
    return server.Ask(SecondTurn());
  }
  std::string BytesOfFile() {
    std::ifstream file(folder_.PathOf(SessionFileName("s", "", "")), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  RpcError Restore(const SavedSessionModel& model) {
    SessionState state;
    KvPages pages;
    const RpcError error = files_->Restore({}, "s", "", model, &state, &pages);
    if (!error.ok()) {
      EXPECT_TRUE(state.ids.empty());
      EXPECT_EQ(error.reason, "SESSION_FILE_UNUSABLE");
    }
    return error;
  }

  TempFolder model_, folder_;
  std::unique_ptr<SessionFiles> files_;
  SessionState state_;
  int64_t prompt_tokens_ = kPromptTokens;
};

class KvSnapshotOf : public KvSnapshot, public ::testing::WithParamInterface<std::vector<int32_t>> {};
INSTANTIATE_TEST_SUITE_P(Windows, KvSnapshotOf,
                         ::testing::Values(std::vector<int32_t>{0, 0}, std::vector<int32_t>{48, 0, 48},
                                           std::vector<int32_t>{40, 40}),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(KvSnapshotOf, GoesOnBitForBitInPoolsOfAnyPageSizeAndLayout) {
  WriteModel(GetParam());
  SaveFirstTurn({});
  const auto never_stopped = NeverStopped({});
  const auto expect_found = [&](const Pool& pool, int64_t tokens) {
    std::unique_ptr<StreamReader> answer;
    EXPECT_EQ(GoOn(pool, &answer), tokens) << pool.page_size;
    ExpectSame(*answer, *never_stopped);
  };
  // 170 tokens were computed.
  expect_found({}, 170);
  expect_found({.order = KvOrder::kNhd}, 170);
  expect_found({.page_size = 1, .pages = 3000}, 170);
  expect_found({.page_size = 4}, 170);
  expect_found({.page_size = 12, .order = KvOrder::kNhd}, 170);
  expect_found({.page_size = 64}, 170);
  expect_found({.steps_in_flight = 2}, 170);
  expect_found({.page_size = 256, .pages = 20}, 170);
  expect_found({.prefix_cache = false}, 170);
  expect_found({.page_size = 12, .prefix_cache = false}, 170);
}

// Of the window no more is there than what goes on from the end sees: a text that parts from the saved one
// within its last page is computed again, and so is one of somebody else who begins like it.
TEST_P(KvSnapshotOf, WhoPartsFromItBeforeItsEndIsRight) {
  WriteModel(GetParam());
  SaveFirstTurn({});
  for (const Pool& pool : {Pool{}, Pool{.page_size = 64}, Pool{.page_size = 4, .prefix_cache = false}}) {
    for (const ptrdiff_t parts : {131, 150, 160, 165, 168, 169}) {
      SCOPED_TRACE(std::to_string(pool.page_size) + " " + std::to_string(parts));
      std::unique_ptr<StreamReader> answer;
      PoolOfPages server(model_, pool);
      SessionState state;
      KvPages pages;
      ASSERT_TRUE(files_->Restore({}, "s", "", server.model(), &state, &pages).ok());
      state.kv_owner = state_.kv_owner;
      server.Run(std::make_shared<KvTransfer>(TextOf(state), std::move(pages)));
      Ids prompt(state_.ids.begin(), state_.ids.begin() + parts);
      prompt.push_back(state_.ids[static_cast<size_t>(parts)] == 9 ? 10 : 9);
      PoolOfPages calm(model_, {});
      const auto alone = calm.Ask(Turn(prompt, 12));
      ExpectSame(*server.Ask(Turn(prompt, 12)), *alone);
      Request stranger = Turn(prompt, 12);
      stranger.kv_owner = nullptr;
      ExpectSame(*server.Ask(stranger), *alone);
    }
  }
}

// A page that was restored in part gets no name when it fills: who found it could go on in front of its rows.
TEST_F(KvSnapshot, APageThatLacksRowsIsNobodyElses) {
  WriteModel({40, 40});
  SaveFirstTurn({});
  PoolOfPages server(model_, {.page_size = 64});  // the window of the row at 170 begins at 131
  SessionState state;
  KvPages pages;
  ASSERT_TRUE(files_->Restore({}, "s", "", server.model(), &state, &pages).ok());
  state.kv_owner = state_.kv_owner;
  server.Run(std::make_shared<KvTransfer>(TextOf(state), std::move(pages)));
  const auto answer = server.Ask(SecondTurn());  // far behind the page's end at 192
  Request stranger = SecondTurn();
  stranger.kv_owner = std::make_shared<const KvOwner>();
  stranger.prompt.insert(stranger.prompt.end(), answer->choice().ids.begin(), answer->choice().ids.end() - 1);
  stranger.stopping.max_tokens = 1;
  server.Ask(stranger);
  stranger.prompt.resize(168);
  stranger.prompt.push_back(stranger.prompt.back() == 9 ? 10 : 9);
  stranger.stopping.max_tokens = 12;
  PoolOfPages calm(model_, {});
  ExpectSame(*server.Ask(stranger), *calm.Ask(stranger));
}

// An idle session whose pages others took: they have gone to the host, and from there to a disk, of which the
// host has room for a part at a time.
class SessionInATier : public KvSnapshotOf {
 protected:
  SessionInATier() {
    WriteModel(GetParam());
    SaveFirstTurn({});
  }
  std::unique_ptr<PoolOfPages> ServerWith(TestTier tier) {
    KvDisk* own = nullptr;
    KvDisk*& disk = tier.disk != nullptr ? *tier.disk : own;
    tier.disk = &disk;
    const bool rolls =
        GetParam()[0] > 0 && GetParam()[1] > 0;  // in all layers: it never holds the whole text
    auto server =
        std::make_unique<PoolOfPages>(model_, Pool{.pages = rolls ? 8 : 34, .step_tokens = 16, .tier = tier});
    if (disk != nullptr) disk->set_wake(stuck_.wake());  // nothing was asked of it yet
    Request first = Turn(Ids(state_.ids.begin(), state_.ids.begin() + prompt_tokens_), kSaid);
    first.prefers_cache = true;
    server->Ask(first);
    for (uint32_t other = 1; other <= 4; ++other) {
      Request crowd = RequestOf(Prompt(kPromptTokens, other), 4);
      crowd.prefers_cache = true;
      server->AskSlowly(crowd, disk);
    }
    return server;
  }
  // Tokens of which there are pages.
  int64_t Save(PoolOfPages& server) {
    const auto read = std::make_shared<KvTransfer>(TextOf(state_));
    server.Run(read);
    int64_t bytes = 0;
    EXPECT_TRUE(files_->Save({}, "s", state_, server.model(), &read->pages(), &bytes).ok());
    return read->tokens();
  }

  // What /debug/kv says of the tier.
  static void ExpectTold(PoolOfPages& server, const TestTier& tier) {
    const auto question = *server.engine().engine().AskKv();
    server.engine().Step();
    ASSERT_NE(question->answer(), nullptr);
    const KvReport& report = *question->answer();
    const EngineLoad load = server.engine().engine().Load();
    EXPECT_EQ(report.host.pages, tier.host_pages);
    EXPECT_EQ(report.host.taken * report.page_bytes, load.host_kv_bytes);
    EXPECT_EQ(report.disk.pages, tier.disk_pages);
    EXPECT_EQ(report.disk.taken * report.page_bytes, load.disk_kv_bytes);
    int64_t on_host = 0, on_disk = 0, moving = 0;
    for (const KvReport::Group& group : report.groups) {
      EXPECT_GT(group.beyond.host_images + group.beyond.disk_images, 0);
      on_host += group.beyond.host_images;
      on_disk += group.beyond.disk_images;
      moving += group.beyond.moving_images;
    }
    EXPECT_EQ(on_host, report.host.taken);
    EXPECT_EQ(on_disk, report.disk.taken);
    EXPECT_EQ(moving, 0) << "it is idle";
    const std::string disk = tier.disk_pages == 0 ? "" : R"(,"disk":{"pages":400,)";
    EXPECT_THAT(KvReportJson(report),
                HasSubstr(R"("tiers":{"host":{"pages":)" + std::to_string(tier.host_pages) + R"(,"bytes":)" +
                          std::to_string(tier.host_pages * report.page_bytes) + R"(,"taken_pages":)" +
                          std::to_string(report.host.taken) + R"(,"taken_bytes":)" +
                          std::to_string(load.host_kv_bytes) + R"(,"works":true})" + disk));
  }

  const TempFolder disk_;
  StuckDisk stuck_;
};
INSTANTIATE_TEST_SUITE_P(Windows, SessionInATier,
                         ::testing::Values(std::vector<int32_t>{0, 0}, std::vector<int32_t>{48, 0, 48},
                                           std::vector<int32_t>{40, 40}),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(SessionInATier, GoesOnAndIsSavedFromThere) {
  const auto never_stopped = NeverStopped({});
  EXPECT_EQ(Save(*ServerWith({})), 0) << "of the pool nothing is left";
  for (const TestTier& tier :
       {TestTier{.host_pages = 400}, TestTier{.host_pages = 8, .disk_pages = 400, .folder = disk_.path()}}) {
    SCOPED_TRACE(tier.disk_pages == 0 ? "host" : "disk");
    const auto server = ServerWith(tier);
    EXPECT_EQ(server->engine().engine().Load().disk_kv_bytes > 0, tier.disk_pages > 0);
    ExpectTold(*server, tier);
    EXPECT_EQ(Save(*server), 170);
    std::unique_ptr<StreamReader> answer;
    EXPECT_EQ(GoOn({}, &answer), 170);
    ExpectSame(*answer, *never_stopped);
    const auto went_on = server->Ask(SecondTurn());
    ExpectSame(*went_on, *never_stopped);
    if (tier.disk_pages == 0) {  // from a disk it is read as long as that is faster than computing
      EXPECT_EQ(went_on->choice().end().usage.cached_tokens, 170);
    }
  }
}

// Of windows alone the host holds what is left of a text.
class SessionOnADisk : public SessionInATier {};
INSTANTIATE_TEST_SUITE_P(Windows, SessionOnADisk,
                         ::testing::Values(std::vector<int32_t>{0, 0}, std::vector<int32_t>{48, 0, 48}),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(SessionOnADisk, IsSavedWithoutWhatItNoLongerReads) {
  KvDisk* disk = nullptr;
  const auto server = ServerWith({.host_pages = 8, .disk_pages = 400, .folder = disk_.path(), .disk = &disk});
  struct Releases {  // before the server ends
    StuckDisk& disk;
    ~Releases() { disk.Release(); }
  } releases{stuck_};
  stuck_.Stick();
  const auto read = std::make_shared<KvTransfer>(TextOf(state_));
  ASSERT_TRUE(server->engine().engine().StartTransfer(read).ok());
  while (!stuck_.is_stuck() && !read->done()) server->engine().Step();
  for (int i = 0; i < 5; ++i) server->engine().Step();
  ASSERT_FALSE(read->done());
  server->engine().clock().Advance(11'000'000'000);
  for (int i = 0; i < 5; ++i) server->engine().Step();
  EXPECT_TRUE(read->done());
  EXPECT_TRUE(read->status().ok()) << read->status();
  EXPECT_LT(read->tokens(), 170);
  stuck_.Release();
  ExpectSame(*server->Ask(SecondTurn()), *NeverStopped({}));
}

// What is saved far behind n_ctx goes on in other pools as if nothing had been.
TEST_P(KvSnapshotOf, UnderAContextPolicyGoesOnBitForBit) {
  WriteModel(GetParam());
  prompt_tokens_ = 400;
  for (const ContextPolicy& policy :
       {ContextPolicy{.type = ContextPolicyType::kSinks, .n_ctx = 64, .n_keep = 4},
        ContextPolicy{.type = ContextPolicyType::kShift, .n_ctx = 64, .n_keep = 6, .n_discard = 10},
        ContextPolicy{.type = ContextPolicyType::kReevaluate, .n_ctx = 64, .n_keep = 4, .n_discard = 30}}) {
    SCOPED_TRACE(ContextPolicyText(policy));
    state_.context_policy = policy;
    SaveFirstTurn({});
    const auto never_stopped = NeverStopped({});
    const bool is_mask = policy.type != ContextPolicyType::kReevaluate;
    const auto expect_found = [&](const Pool& pool, int64_t tokens, int64_t tokens_left) {
      std::unique_ptr<StreamReader> answer;
      EXPECT_EQ(GoOn(pool, &answer), is_mask ? tokens : tokens_left) << pool.page_size;
      ExpectSame(*answer, *never_stopped);
    };
    // 420 tokens were computed, or of those that are left 60.
    expect_found({}, 420, 60);
    expect_found({.order = KvOrder::kNhd}, 420, 60);
    expect_found({.page_size = 1, .pages = 3000}, 420, 60);
    expect_found({.page_size = 4}, 420, 60);
    expect_found({.page_size = 12, .order = KvOrder::kNhd}, 420, 60);
    expect_found({.page_size = 64}, 420, 60);
    expect_found({.steps_in_flight = 2}, 420, 60);
    expect_found({.page_size = 256, .pages = 20}, 420, 60);
    expect_found({.prefix_cache = false}, 420, 60);
  }
}

TEST_F(KvSnapshot, HoldsOfATextWithoutAnEndWhatIsStillSeen) {
  WriteModel({16, 0});
  prompt_tokens_ = 400;
  state_.context_policy = {.type = ContextPolicyType::kSinks, .n_ctx = 64, .n_keep = 4};
  SaveFirstTurn({});
  // The row at 420 sees 0..3, and 405..420 in the first layer and 361..420 in the second.
  const size_t row = size_t{2} * 2 * 8 * 2;
  const size_t rows = (420 - 405) + (420 - 361) + 2 * 4;
  const size_t size = BytesOfFile().size();
  EXPECT_GT(size, rows * row);
  EXPECT_LT(size, rows * row + 421 * 2 + 500);
}

// Each layer has what it shows, in one numbering of tokens, and zeros elsewhere.
TEST_F(KvSnapshot, OfATextWithoutAnEndIsExportedWithoutWhatLiesBetween) {
  WriteModel({16, 0});
  prompt_tokens_ = 400;
  state_.context_policy = {.type = ContextPolicyType::kSinks, .n_ctx = 64, .n_keep = 4};
  PoolOfPages server(model_, {});
  state_.ids = Prompt(prompt_tokens_);
  server.Ask(Turn(state_.ids, 1));
  const auto read = std::make_shared<KvTransfer>(TextOf(state_));
  server.Run(read);
  ASSERT_EQ(read->tokens(), 400);
  const KvLayout& layout = server.engine().engine().kv_layout();
  const v1::SavedKv saved = DescribeKv(read->pages(), layout, state_.context_policy);
  ASSERT_EQ(saved.layers(0).sinks(), 4);
  ASSERT_EQ(saved.layers(0).begin(), 385);
  ASSERT_EQ(saved.layers(1).begin(), 341);
  const auto exported = DescribeExport(saved, "nhd");
  ASSERT_TRUE(exported.ok()) << exported.status();
  std::vector<std::byte> bytes;
  const Status status = ExportKv(
      saved, "nhd",
      [&](int32_t layer, std::vector<std::byte>* rows) {
        RowsOfPages(read->pages(), layout, saved, layer, rows);
        return Status::Ok();
      },
      [&](std::span<const std::byte> more) {
        bytes.insert(bytes.end(), more.begin(), more.end());
        return Status::Ok();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(exported->sinks, 4);
  EXPECT_EQ(exported->first_position, 341);
  const int64_t tokens = 4 + 400 - 341;
  const KvFormat& format = layout.format;
  const std::vector<std::byte> zeros(static_cast<size_t>(format.VectorBytes()));
  ASSERT_EQ(exported->tensors.size(), 2u);
  ASSERT_EQ(exported->tensors[0].bytes + exported->tensors[1].bytes, std::ssize(bytes));
  for (int32_t layer = 0; layer < 2; ++layer) {
    const ExportedTensor& tensor = exported->tensors[static_cast<size_t>(layer)];
    ASSERT_EQ(tensor.shape, (std::vector<int64_t>{1, 2, tokens, format.kv_heads, format.head_dim}));
    const std::byte* const of_layer = bytes.data() + layer * tensor.bytes;
    const KvLayout::Place& place = layout.places[static_cast<size_t>(layer)];
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t position = token < 4 ? token : 341 + token - 4;
      const bool is_there = position < 4 || position >= saved.layers(layer).begin();
      const auto& image = read->pages().at(static_cast<size_t>(place.group),
                                           static_cast<size_t>(position / format.page_size));
      for (int32_t head = 0; head < format.kv_heads; ++head) {
        const std::byte* expected = zeros.data();
        if (is_there) {
          expected = layout.LayerView(image.get(), place.layer_in_group)
                         .Key(0, head, static_cast<int32_t>(position % format.page_size));
        }
        const std::byte* key = of_layer + (token * format.kv_heads + head) * format.VectorBytes();
        ASSERT_EQ(std::memcmp(key, expected, zeros.size()), 0) << layer << " " << position;
      }
    }
  }
}

// Of a file that somebody made up: one long layer, and many of one row.
TEST_F(KvSnapshot, WhoseTensorsWouldBeZerosIsNotExported) {
  v1::SavedKv saved;
  saved.set_dtype("bf16");
  saved.set_kv_heads(2);
  saved.set_head_dim(32);
  saved.set_tokens(1 << 20);
  saved.add_layers();
  for (int i = 0; i < 100'000; ++i) saved.add_layers()->set_begin(saved.tokens() - 1);
  const std::string refusal =
      "holds 1148576 rows of 100001 layers, whose tensors would have 104858648576, more than 64 times as "
      "many";
  EXPECT_EQ(DescribeExport(saved, "hnd").status().message(), refusal);
  const Status status = ExportKv(
      saved, "hnd",
      [](int32_t, std::vector<std::byte>*) {
        ADD_FAILURE() << "nothing is read";
        return Status::Ok();
      },
      [](std::span<const std::byte>) {
        ADD_FAILURE() << "nothing is written";
        return Status::Ok();
      });
  EXPECT_EQ(status.message(), refusal);
}

// What an export holds at a time: where a layer's numbers lie side by side they are written before the next
// layer is read, and of all layers only OpenPPL's scales wait.
TEST_F(KvSnapshot, IsExportedALayerAtATime) {
  constexpr int32_t kLayers = 5;
  constexpr int64_t kTokens = 12, kHeads = 2, kHeadDim = 32, kGroup = 8;
  v1::SavedKv saved;
  saved.set_dtype("int8");
  saved.set_group(kGroup);
  saved.set_kv_heads(kHeads);
  saved.set_head_dim(kHeadDim);
  saved.set_tokens(kTokens);
  for (int32_t layer = 0; layer < kLayers; ++layer) saved.add_layers()->set_begin(layer);
  const int64_t numbers = 2 * kTokens * kHeads * kHeadDim, scales = numbers / kGroup * 2;  // bytes of a layer
  for (const std::string_view name : kKvExportLayouts) {
    SCOPED_TRACE(name);
    const std::string layout(name);
    const auto exported = DescribeExport(saved, layout);
    ASSERT_TRUE(exported.ok()) << exported.status();
    int64_t all = 0, written = 0, most = 0;
    for (const ExportedTensor& tensor : exported->tensors) all += tensor.bytes;
    EXPECT_EQ(all, kLayers * (numbers + scales));
    const int64_t of_layer = layout.starts_with("openppl") ? numbers : numbers + scales;
    const Status status = ExportKv(
        saved, layout,
        [&](int32_t layer, std::vector<std::byte>* rows) {
          EXPECT_EQ(written, layout == "openppl0" ? 0 : layer * of_layer);
          rows->assign(static_cast<size_t>(RowBytes(RowFormatOf(saved, layer).value())), std::byte{1});
          return Status::Ok();
        },
        [&](std::span<const std::byte> bytes) {
          written += std::ssize(bytes);
          most = std::max(most, std::ssize(bytes));
          return Status::Ok();
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(written, all);
    const int64_t waits = layout.starts_with("openppl") ? kLayers * scales : scales;
    EXPECT_EQ(most, layout == "openppl0" ? kLayers * numbers : std::max(numbers, waits));
  }
}

TEST_F(KvSnapshot, OfEveryKindOfPagesComesBack) {
  WriteModel({0, 24});
  for (const DType dtype :
       {DType::kF32, DType::kBf16, DType::kF16, DType::kFp8E4M3, DType::kInt8, DType::kInt4}) {
    SaveFirstTurn({.page_size = 8, .order = KvOrder::kNhd, .dtype = dtype});
    std::unique_ptr<StreamReader> answer;
    EXPECT_EQ(GoOn({.page_size = 16, .dtype = dtype}, &answer), 170);
    ExpectSame(*answer, *NeverStopped({.dtype = dtype}));
  }
}

TEST_F(KvSnapshot, HoldsOfWindowsWhatIsStillSeen) {
  WriteModel({16, 0});
  SaveFirstTurn({});
  // A layer's row is a key and a value of 2 heads of 8 numbers. The window begins at 170 - 15.
  const size_t row = size_t{2} * 2 * 8 * 2;
  const size_t rows = 170 + 15;
  const size_t size = BytesOfFile().size();
  EXPECT_GT(size, rows * row);
  EXPECT_LT(size, rows * row + 700);
}

// A file as version 3 wrote it: what the identity says in fields of the head.
std::string InVersion3(const std::string& file) {
  constexpr size_t kLine = sizeof("tramontane session 4\n") - 1, kFront = kLine + 8 + 32;
  uint64_t head_bytes = 0;
  std::memcpy(&head_bytes, file.data() + kLine, sizeof(head_bytes));
  const std::string layers = file.substr(kFront + head_bytes);
  v1::SavedSession head;
  EXPECT_TRUE(head.ParseFromString(file.substr(kFront, head_bytes)));
  head.set_model("m");
  head.set_fingerprint("f");
  head.mutable_kv()->set_weights("w");
  head.clear_identity();
  const std::string content = head.SerializeAsString();
  head_bytes = std::size(content);
  const std::string size(reinterpret_cast<const char*>(&head_bytes), sizeof(head_bytes));
  return "tramontane session 3\n" + size + Sha256Digest(size + content) + content + layers;
}

TEST_F(KvSnapshot, OfVersion3ComesBackWithItsKeysAndValues) {
  WriteModel({0, 24});
  SaveFirstTurn({});
  folder_.Write(SessionFileName("s", "", ""), InVersion3(BytesOfFile()));
  std::unique_ptr<StreamReader> answer;
  EXPECT_EQ(GoOn({}, &answer), 170);
  ExpectSame(*answer, *NeverStopped({}));
  PoolOfPages server(model_, {});
  EXPECT_THAT(Restore(server.model("others")).message(), HasSubstr("that other weights have given"));
}

// Of a pool without room nothing is put there, and nothing else goes wrong.
TEST_F(KvSnapshot, ThatFindsNoRoomIsComputedAgain) {
  WriteModel({0, 0});
  SaveFirstTurn({});
  std::unique_ptr<StreamReader> answer;
  PoolOfPages server(model_, {.pages = 14});  // a group of 2 layers: 9 pages of the prompt, and the answer
  const Ids other = Prompt(100, 7);
  auto busy = server.engine().Submit(RequestOf(other, 60));
  for (int i = 0; i < 10; ++i) server.engine().Step();
  SessionState state;
  KvPages pages;
  ASSERT_TRUE(files_->Restore({}, "s", "", server.model(), &state, &pages).ok());
  const auto written = std::make_shared<KvTransfer>(TextOf(state), std::move(pages));
  server.Run(written);
  EXPECT_EQ(written->tokens(), 0);
  server.engine().RunToEnd({busy.get()});
  ExpectSame(*server.Ask(SecondTurn()), *NeverStopped({}));
}

// Requests go on meanwhile, in a pool that is short of pages.
TEST_F(KvSnapshot, IsCopiedBetweenTheStepsOfOthers) {
  WriteModel({32, 0});
  SaveFirstTurn({});
  const auto never_stopped = NeverStopped({});
  for (const int64_t pool_pages : {40, 60, 400}) {
    PoolOfPages server(model_, {.pages = pool_pages});
    std::vector<std::unique_ptr<StreamReader>> others;
    for (uint32_t i = 0; i < 3; ++i) {
      others.push_back(server.engine().Submit(RequestOf(Prompt(60, i + 1), 70)));
      server.engine().Step();
    }
    SessionState state;
    KvPages pages;
    ASSERT_TRUE(files_->Restore({}, "s", "", server.model(), &state, &pages).ok());
    const auto written = std::make_shared<KvTransfer>(TextOf(state), std::move(pages));
    const auto read = std::make_shared<KvTransfer>(TextOf(state));
    ASSERT_TRUE(server.engine().engine().StartTransfer(written).ok());
    ASSERT_TRUE(server.engine().engine().StartTransfer(read).ok());
    std::vector<StreamReader*> readers;
    for (const auto& other : others) readers.push_back(other.get());
    server.engine().RunToEnd(readers);
    EXPECT_TRUE(written->done() && read->done());
    EXPECT_LE(read->tokens(), written->tokens());
    for (uint32_t i = 0; i < 3; ++i) {
      PoolOfPages alone(model_, {});
      ExpectSame(*others[i], *alone.Ask(RequestOf(Prompt(60, i + 1), 70)));
    }
    ExpectSame(*server.Ask(SecondTurn()), *never_stopped);
  }
}

// A core in front of a pool, with a folder for sessions.
class ServedPool {
 public:
  ServedPool(PoolOfPages& server, const TempFolder& folder) : server_(server), core_(OptionsOf(folder)) {
    ServedModel served;
    served.names = {"m"};
    served.config.vocab_size = tokenizer_.vocab_size();
    served.config.context = server.engine().engine().limits().context;
    served.engine = &server.engine().engine();
    served.tokenizer = &tokenizer_;
    served.chat_format = &chat_format_;
    served.clock = &server.engine().clock();
    core_.Serve(served);
  }
  void Keep(const std::string& caller, Ids ids) {
    SessionLease lease;
    ASSERT_TRUE(core_.sessions().store().Take({caller, "s"}, &lease).ok());
    lease.Keep({.ids = std::move(ids), .is_chat = false, .chat = {}, .cache_salt = ""});
  }
  // Steps meanwhile. Of the session "s": tokens that have keys and values.
  template <typename Request>
  int64_t Ask(const Caller& caller) {
    Request request;
    request.set_name("s");
    std::promise<int64_t> answered;
    client_.Ask(caller, request, [&](const RpcError& error, const auto& response) {
      EXPECT_TRUE(error.ok()) << error.message();
      answered.set_value(response.kv_tokens());
    });
    auto done = answered.get_future();
    while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) server_.engine().Step();
    return done.get();
  }
  EngineClient& client() { return client_; }

 private:
  static InferenceCoreOptions OptionsOf(const TempFolder& folder) {
    InferenceCoreOptions options;
    options.workers.threads = 1;
    options.session_files = SessionFiles::Open(folder.path()).value();
    return options;
  }
  PoolOfPages& server_;
  const ByteTokenizer tokenizer_;
  const MistralChatFormat chat_format_{tokenizer_, TokenizerVersion::kV1};
  InferenceCore core_;
  EngineClient client_{core_};
};

TEST_F(KvSnapshot, OfAKeyWithASaltSharesNoPagesWithOthers) {
  WriteModel({0, 0});
  const Caller alice = {.identity = "alice", .key_name = "alice", .key_salt = "key alice"};
  Request plain = RequestOf(Prompt(60), 2), salted = plain;
  salted.cache_salt = "key alice\n";
  {
    PoolOfPages server(model_, {});
    ServedPool pool(server, folder_);
    pool.Keep("alice", Prompt(60));
    server.Ask(salted);
    EXPECT_EQ(pool.Ask<v1::SaveSessionRequest>(alice), 48) << "whole pages that the prefix cache knows";
  }
  PoolOfPages server(model_, {});
  ServedPool pool(server, folder_);
  EXPECT_EQ(pool.Ask<v1::RestoreSessionRequest>(alice), 48);
  EXPECT_EQ(server.Ask(plain)->choice().end().usage.cached_tokens, 0);
  EXPECT_EQ(server.Ask(salted)->choice().end().usage.cached_tokens, 48);
}

// Of all its pages the host has a copy meanwhile.
TEST_F(KvSnapshot, OneSessionAtATimeIsSavedOrRestoredAndHoldsUpNobodysInput) {
  WriteModel({0, 24});
  PoolOfPages server(model_, {});
  ServedPool pool(server, folder_);
  pool.Keep("a", Prompt(60));
  server.Ask(RequestOf(Prompt(60), 2));

  EngineClient& client = pool.client();
  const Caller caller{.identity = "a", .address = "a"};
  std::promise<int64_t> saved;
  v1::SaveSessionRequest save;
  save.set_name("s");
  client.Ask(caller, save, [&](const RpcError&, const v1::SaveSessionResponse& response) {
    saved.set_value(response.kv_tokens());
  });
  // Nobody steps yet, so that it waits for the engine; and input is tokenised all the same.
  std::promise<RpcError> tokenized;
  v1::TokenizeRequest text;
  text.set_text("t");
  client.Ask(caller, text, [&](const RpcError& error, const auto&) { tokenized.set_value(error); });
  EXPECT_TRUE(tokenized.get_future().get().ok());

  std::mutex mutex;
  std::map<std::string, int> reasons;
  const auto restore_absent = [&](const Caller& of) {
    v1::RestoreSessionRequest request;
    request.set_name("absent");
    client.Ask(of, request, [&](const RpcError& error, const v1::RestoreSessionResponse&) {
      std::lock_guard lock(mutex);
      ++reasons[error.reason];
    });
  };
  const auto refused = [&] {
    std::lock_guard lock(mutex);
    return reasons["SESSION_FILES_BUSY"];
  };
  int asked = 0;
  for (; refused() == 0 && asked < 100; ++asked) restore_absent(caller);
  EXPECT_LE(asked, 18) << "16 wait beside the one that is saved";
  restore_absent({.identity = "b", .address = "b"});
  EXPECT_EQ(refused(), 2) << "another caller's is taken, and the newest gives way";
  auto done = saved.get_future();
  while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) server.engine().Step();
  EXPECT_EQ(done.get(), 48);
  while (true) {
    std::lock_guard lock(mutex);
    if (reasons["SESSION_NOT_FOUND"] == asked + 1 - 2) break;
  }
}

TEST_F(KvSnapshot, CutAtAnyByteOrWithAnyBitFlippedIsRefused) {
  WriteModel({0, 8});
  state_.ids = {};
  PoolOfPages server(model_, {.page_size = 4});
  state_.ids = Prompt(9);
  server.Ask(RequestOf(state_.ids, 1));
  const auto read = std::make_shared<KvTransfer>(TextOf(state_));
  server.Run(read);
  ASSERT_EQ(read->tokens(), 8);
  int64_t size = 0;
  ASSERT_TRUE(files_->Save({}, "s", state_, server.model(), &read->pages(), &size).ok());
  const std::string bytes = BytesOfFile();
  ASSERT_TRUE(Restore(server.model()).ok());
  const std::string name = SessionFileName("s", "", "");
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    folder_.Write(name, std::string_view(bytes).substr(0, cut));
    EXPECT_THAT(Restore(server.model()).message(), HasSubstr("is cut off")) << cut;
  }
  folder_.Write(name, bytes);
  std::fstream file(folder_.PathOf(name), std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte).flush();
  };
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    put(bit / 8, static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8)));
    EXPECT_FALSE(Restore(server.model()).ok()) << bit;
    // A server that keeps no pages has no use for them, and refuses a damaged file all the same.
    SavedSessionModel without = server.model();
    without.layout = nullptr;
    EXPECT_FALSE(bit % 16 == 0 && Restore(without).ok()) << bit;
    put(bit / 8, bytes[bit / 8]);
  }
  EXPECT_TRUE(Restore(server.model()).ok());
  folder_.Write(name, bytes + "x");
  EXPECT_THAT(Restore(server.model()).message(), HasSubstr("is cut off or damaged"));
}

TEST_F(KvSnapshot, OfAnotherModelOrTypeIsRefusedByName) {
  WriteModel({0, 24});
  SaveFirstTurn({});
  PoolOfPages same(model_, {});
  EXPECT_TRUE(Restore(same.model()).ok());
  EXPECT_THAT(Restore(same.model("others")).message(),
              HasSubstr("holds keys and values that other weights have given"));
  PoolOfPages other_type(model_, {.dtype = DType::kInt8});
  EXPECT_THAT(Restore(other_type.model()).message(),
              HasSubstr("holds keys and values as bf16, and this server keeps them as int8 in groups of 8"));
  WriteModel({0, 32});
  PoolOfPages other_windows(model_, {});
  EXPECT_THAT(Restore(other_windows.model()).message(), HasSubstr("of other layers than those"));
}

}  // namespace
}  // namespace tramontane
