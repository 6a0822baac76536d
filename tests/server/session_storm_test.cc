// Conversations in a storm, over the CPU and a pool that is too small for them: each goes on turn by turn in
// a session of its own, under a context policy or none, while others do; its name is wanted by a second
// request while a first has it, turns are cancelled, and strangers without a session ask between, for one
// choice or several; sessions are saved, and go back to what was saved; in the middle another server takes
// over, which knows what is in the files alone. Pages are of a drawn type, of each server's own layout and
// size, with a host or a disk behind them or nothing, and some servers have no prefix cache; layers have
// drawn windows. A turn's prompt begins with all that the turn before it was asked and has said, and each
// answer is, bit for bit, what its prompt gives alone, without a session and without a prefix cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_thread.h"
#include "models/chat/mistral_chat.h"
#include "models/opened_model.h"
#include "models/tokenizer/load.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/sessions/session_files.h"
#include "tests/server/call_reader.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

using Ids = std::vector<int32_t>;

constexpr int64_t kContextOfSessions = 128;

// Random weights behind Breeze's tokenizer, served. `options`: those of its engine, but for the tokenizer;
// `saved`: the folder of its sessions' files, "" for none.
class SmallServer {
 public:
  SmallServer(const std::string& folder, const Tokenizer& tokenizer, const BackendEngine::Options& options,
              const std::string& saved = "")
      : chat_format_(tokenizer, tokenizer.version().value()),
        engine_(folder, WithTokenizer(options, tokenizer)),
        core_(OptionsOf(saved)) {
    thread_ = std::make_unique<EngineThread>(engine_.engine());
    ServedModel served;
    served.names = {"m"};
    served.config.vocab_size = tokenizer.vocab_size();
    served.config.context = options.limits.context;
    served.config.eos_ids = {tokenizer.eos_id()};
    served.device = "cpu";
    served.engine = &engine_.engine();
    served.tokenizer = &tokenizer;
    served.chat_format = &chat_format_;
    served.clock = &engine_.clock();
    core_.Serve(served);
  }

  InferenceClient& client() { return client_; }
  EngineLoad Load() { return engine_.engine().Load(); }

  // What a restored session says of itself, and how many of its tokens need no computing now.
  v1::RestoreSessionResponse Restore(const std::string& session) {
    v1::RestoreSessionRequest request;
    v1::RestoreSessionResponse response;
    request.set_name(session);
    const RpcError error = core_.sessions().Restore({}, request, &response);
    EXPECT_TRUE(error.ok()) << session << ": " << error.message();
    return response;
  }
  void Save(const std::string& session) {
    v1::SaveSessionRequest request;
    v1::SaveSessionResponse response;
    request.set_name(session);
    const RpcError error = core_.sessions().Save({}, request, &response);
    EXPECT_TRUE(error.ok()) << session << ": " << error.message();
  }
  void Delete(const std::string& session) {
    v1::DeleteSessionRequest request;
    request.set_name(session);
    const RpcError error = core_.sessions().Delete({}, request);
    EXPECT_TRUE(error.ok()) << session << ": " << error.message();
  }

 private:
  static InferenceCoreOptions OptionsOf(const std::string& saved) {
    InferenceCoreOptions options;
    options.workers.threads = 1;  // calls begin in the order in which they were made
    if (!saved.empty()) options.session_files = SessionFiles::Open(saved).value();
    return options;
  }
  static BackendEngine::Options WithTokenizer(BackendEngine::Options options, const Tokenizer& tokenizer) {
    options.tokenizer = &tokenizer;
    return options;
  }

  const MistralChatFormat chat_format_;
  CpuEngine engine_;
  std::unique_ptr<EngineThread> thread_;
  InferenceCore core_;
  EngineClient client_{core_};
};

// A turn that ended well. By choice: what was said.
struct Turn {
  v1::GenerateRequest request;
  Ids prompt;
  std::vector<Ids> said;
  std::vector<std::vector<std::string>> logprobs;
};

struct Conversation {
  std::string session;
  bool is_chat = false;
  v1::ContextPolicy policy;
  std::vector<Turn> turns;
  v1::Chat chat;  // so far
  v1::GenerateRequest asked;
  std::unique_ptr<CallReader> open;  // null: nobody asks
  size_t saved_turns = 0;            // in the session's file; 0: there is none
  v1::Chat saved_chat;

  Ids Held() const {
    if (turns.empty()) return {};
    Ids ids = turns.back().prompt;
    ids.insert(ids.end(), turns.back().said[0].begin(), turns.back().said[0].end());
    return ids;
  }
};

int32_t ChoicesOf(const v1::GenerateRequest& request) {
  return request.has_choices() ? request.choices() : 1;
}

Turn ReadTurn(const v1::GenerateRequest& request, const CallReader& reader) {
  Turn turn;
  turn.request = request;
  for (const v1::GenerateResponse& event : reader.events()) {
    for (const v1::PromptToken& token : event.started().prompt()) turn.prompt.push_back(token.token_id());
  }
  for (int32_t choice = 0; choice < ChoicesOf(request); ++choice) {
    turn.said.push_back(reader.token_ids(choice));
    turn.logprobs.push_back(reader.logprobs(choice));
  }
  return turn;
}

constexpr DType kKvDTypes[] = {DType::kF32, DType::kBf16, DType::kFp8E4M3, DType::kInt8, DType::kInt4};

// What lies behind a server's pool. kDisk: behind a host too small for a text.
enum class TierBehind { kNothing, kHost, kSmallHost, kDisk };

// A server's own: all but the type of its pages, by which files are known.
struct ServerDraw {
  KvOrder kv_order = KvOrder::kHnd;
  int32_t page_size = 0;
  TierBehind behind = TierBehind::kNothing;
  bool prefix_cache = true;  // always where there is a tier
};

// What a seed draws, but for what is asked.
struct SessionDraw {
  std::vector<int32_t> windows;
  DType kv_dtype = DType::kF32;
  ServerDraw first, second;
};

ServerDraw DrawServer(std::mt19937* random) {
  constexpr int32_t kPageSizes[] = {1, 4, 8, 16};
  ServerDraw drawn;
  drawn.kv_order = (*random)() % 2 == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  drawn.page_size = kPageSizes[(*random)() % std::size(kPageSizes)];
  drawn.behind = static_cast<TierBehind>((*random)() % 4);
  drawn.prefix_cache = drawn.behind != TierBehind::kNothing || (*random)() % 2 == 0;
  return drawn;
}

SessionDraw DrawSessions(uint32_t seed) {
  const std::vector<int32_t> windows[] = {{16, 0}, {0, 9}, {12}, {0}};
  std::mt19937 random(seed);
  SessionDraw drawn;
  drawn.windows = windows[random() % std::size(windows)];
  drawn.kv_dtype = kKvDTypes[random() % std::size(kKvDTypes)];
  drawn.first = DrawServer(&random);
  drawn.second = DrawServer(&random);
  return drawn;
}

class SessionStorm : public testing::TestWithParam<uint32_t> {
 protected:
  SessionStorm() : tokenizer_(LoadTokenizer(TRAMONTANE_SOURCE_DIR "/models/breeze/weights").value()) {
    TinyModel model;
    model.vocab = tokenizer_->vocab_size();
    model.context = kContextOfSessions;
    model.window = drawn_.windows;
    must_preempt_ = std::count(model.window.begin(), model.window.end(), 0) > 0;
    model.Randomise(8);
    model.WriteMistral(folder_);
  }

  bool Chance(double probability) { return std::uniform_real_distribution<>()(random_) < probability; }
  int64_t Number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  // A prompt's new tokens are drawn from `first_id` on: those of two callers are never the same.
  v1::GenerateRequest NextOf(const Conversation& of, int32_t first_id) {
    v1::GenerateRequest request;
    if (of.is_chat) {
      *request.mutable_chat() = of.chat;
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role(v1::ROLE_USER);
      message->set_content("the wind " + std::to_string(first_id + Number(0, 9)));
    } else {
      for (const int32_t id : of.Held()) request.mutable_token_ids()->add_ids(id);
      for (int64_t i = Number(1, 9); i > 0; --i)
        request.mutable_token_ids()->add_ids(first_id + static_cast<int32_t>(Number(0, 99)));
    }
    request.set_session(of.session);
    if (of.session.empty() && Chance(0.4)) request.set_choices(static_cast<int32_t>(Number(2, 3)));
    if (of.policy.type() != v1::ContextPolicy::TYPE_UNSPECIFIED)
      *request.mutable_context_policy() = of.policy;
    request.mutable_sampling()->set_temperature(Chance(0.3) ? 0.0f : 0.9f);
    request.mutable_sampling()->set_seed(random_());
    request.mutable_stopping()->set_max_tokens(Number(1, 40));
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_logprobs(1);
    request.mutable_output()->set_prompt_tokens(true);
    return request;
  }

  Conversation NewConversation() {
    Conversation made;
    const int64_t number = conversations_++;
    made.session = "s" + std::to_string(number);
    made.is_chat = number % 3 == 2;
    made.policy = DrawPolicy(number);
    return made;
  }
  Conversation NewStranger() {
    Conversation made;
    made.policy = DrawPolicy(Number(0, 3));
    return made;
  }
  v1::ContextPolicy DrawPolicy(int64_t number) {
    constexpr v1::ContextPolicy::Type kTypes[] = {
        v1::ContextPolicy::TYPE_UNSPECIFIED, v1::ContextPolicy::TYPE_SINKS, v1::ContextPolicy::TYPE_SHIFT,
        v1::ContextPolicy::TYPE_REEVALUATE};
    v1::ContextPolicy policy;
    policy.set_type(kTypes[number % std::ssize(kTypes)]);
    policy.set_n_ctx(Number(24, 40));
    policy.set_n_keep(Number(0, 6));
    return policy;
  }

  // A second request for a session that is in use. The first may have ended, which nobody has read: then the
  // session holds what this one does not go on from.
  void Intrude(const Conversation& on) {
    CallReader reader(server_->client(), NextOf(on, 500));
    const RpcError error = reader.refused() ? reader.refusal() : reader.ReadAll();
    ASSERT_EQ(error.code, StatusCode::kFailedPrecondition) << error.message();
    if (error.reason == "SESSION_IN_USE") {
      ++in_use_;
    } else {
      EXPECT_EQ(error.reason, "SESSION_DIFFERS") << error.message();
    }
  }

  // Reads what is open to its end. Where it did not end well, the session is as it was.
  void End(Conversation* of) {
    const std::unique_ptr<CallReader> reader = std::move(of->open);
    ASSERT_FALSE(reader->refused()) << reader->refusal().message();
    if (Chance(0.2)) reader->Cancel();
    const RpcError outcome = reader->ReadAll();
    if (outcome.code == StatusCode::kCancelled) {
      ++cancelled_;
      return;
    }
    ASSERT_TRUE(outcome.ok()) << outcome.message();
    Turn turn = ReadTurn(of->asked, *reader);
    cached_tokens_ += reader->finished().usage().cached_tokens();
    several_ += ChoicesOf(of->asked) > 1 ? 1 : 0;
    const Ids held = of->Held();
    ASSERT_GE(turn.prompt.size(), held.size()) << of->session;
    EXPECT_TRUE(std::equal(held.begin(), held.end(), turn.prompt.begin()))
        << of->session << " turn " << of->turns.size();
    for (const Ids& said : turn.said) ASSERT_EQ(std::ssize(said), of->asked.stopping().max_tokens());
    if (of->is_chat) {
      of->chat = of->asked.chat();
      v1::ChatMessage* answer = of->chat.add_messages();
      answer->set_role(v1::ROLE_ASSISTANT);
      answer->set_content(reader->text());
    }
    of->turns.push_back(std::move(turn));
  }

  static bool IsFull(const Conversation& of) {
    const bool is_endless = of.policy.type() != v1::ContextPolicy::TYPE_UNSPECIFIED;
    return std::ssize(of.Held()) > (is_endless ? 2 * kContextOfSessions : kContextOfSessions - 50);
  }

  // As a prompt of ids, without a session.
  void ExpectAsAlone(SmallServer& calm, const Turn& turn) {
    v1::GenerateRequest request = turn.request;
    request.clear_session();
    if (request.has_chat()) {  // without tools: it may not call
      const int32_t calls = tokenizer_->ControlId("[TOOL_CALLS]").value();
      (*request.mutable_sampling()->mutable_logit_bias())[calls] = -100;
    }
    request.clear_chat();
    *request.mutable_token_ids()->mutable_ids() = {turn.prompt.begin(), turn.prompt.end()};
    CallReader reader(calm.client(), request);
    ASSERT_FALSE(reader.refused()) << reader.refusal().message();
    const RpcError outcome = reader.ReadAll();
    ASSERT_TRUE(outcome.ok()) << outcome.message();
    const Turn alone = ReadTurn(request, reader);
    EXPECT_EQ(alone.said, turn.said);
    EXPECT_EQ(alone.logprobs, turn.logprobs);
  }

  BackendEngine::Options OptionsOf(const ServerDraw& drawn) {
    BackendEngine::Options options;
    options.kv_dtype = drawn_.kv_dtype;
    options.kv_order = drawn.kv_order;
    options.limits = SmallLimits(/*pool_pages=*/0);
    options.limits.context = kContextOfSessions;
    options.limits.page_size = drawn.page_size;
    options.limits.prefix_cache = drawn.prefix_cache;
    // The longest sequence, the sinks of another, and less than half of one more.
    const KvOptions pages = {.dtype = options.kv_dtype, .page_size = options.limits.page_size};
    const KvLayout layout = OpenModel(folder_.path(), pages)->kv_layout;
    options.limits.pool_pages =
        layout.PagesForSequence(kContextOfSessions, LeastChunk(layout, options.limits.max_step_tokens)) * 7 /
            5 +
        2 * std::ssize(layout.groups);
    if (drawn.behind != TierBehind::kNothing)
      options.tier.host_pages = drawn.behind == TierBehind::kHost ? 4 * options.limits.pool_pages : 3;
    if (drawn.behind == TierBehind::kDisk) options.tier.disk_pages = 4 * options.limits.pool_pages;
    options.tier.folder = disk_.path();
    server_kinds_ += std::string(", ") + (options.kv_order == KvOrder::kHnd ? "hnd" : "nhd") + " pages of " +
                     std::to_string(options.limits.page_size) + " with " +
                     std::to_string(options.tier.host_pages) + " behind them on the host, " +
                     std::to_string(options.tier.disk_pages) + " on a disk" +
                     (drawn.prefix_cache ? "" : ", without a prefix cache");
    return options;
  }

  void Save(Conversation* of) {
    server_->Save(of->session);
    of->saved_turns = of->turns.size();
    of->saved_chat = of->chat;
  }
  // To the turns that were saved; those after them stay as they were said.
  void GoBack(Conversation* of) {
    Conversation left;
    left.session = of->session + " before it went back";
    const auto first = of->turns.begin() + static_cast<std::ptrdiff_t>(of->saved_turns);
    std::move(first, of->turns.end(), std::back_inserter(left.turns));
    of->turns.erase(first, of->turns.end());
    over_.push_back(std::move(left));
    of->chat = of->saved_chat;
    const v1::RestoreSessionResponse restored = server_->Restore(of->session);
    EXPECT_EQ(restored.session().tokens(), std::ssize(of->Held()));
    ++restored_;
    restored_tokens_ += restored.kv_tokens();
  }
  // Between two turns: the session is saved, or goes back to what was, whether it is still known or not.
  void SaveOrGoBack(Conversation* of) {
    if (of->turns.empty()) return;
    if (of->saved_turns == 0 || Chance(0.5)) return Save(of);
    if (Chance(0.5)) server_->Delete(of->session);
    GoBack(of);
  }

  void StartServer(const ServerDraw& drawn) {
    const BackendEngine::Options options = OptionsOf(drawn);
    tier_ = options.tier;
    most_on_host_ = most_on_disk_ = 0;
    server_ = std::make_unique<SmallServer>(folder_.path(), *tokenizer_, options, saved_.path());
  }
  void EndAll() {
    for (Conversation& each : live_) {
      if (each.open != nullptr && !HasFailure()) End(&each);
    }
    if (strangers_.open != nullptr && !HasFailure()) End(&strangers_);
    over_.push_back(std::move(strangers_));
    strangers_ = NewStranger();
  }
  // Another server goes on from the files.
  void TakeOver(const ServerDraw& drawn) {
    EndAll();
    if (HasFailure()) return;
    for (Conversation& each : live_) {
      if (!each.turns.empty()) Save(&each);
    }
    preemptions_before_ = preemptions_;
    server_ = nullptr;
    StartServer(drawn);
    for (Conversation& each : live_) {
      if (!each.turns.empty()) GoBack(&each);
    }
  }

  void Storm(int64_t rounds) {
    SCOPED_TRACE(server_kinds_);
    for (int64_t round = 0; round < rounds && !HasFailure(); ++round) {
      Conversation& one = live_[random_() % live_.size()];
      if (one.open == nullptr) {
        if (IsFull(one)) {
          over_.push_back(std::move(one));
          one = NewConversation();
        }
        if (Chance(0.2)) SaveOrGoBack(&one);
        one.asked = NextOf(one, 300);
        one.open = std::make_unique<CallReader>(server_->client(), one.asked);
      } else if (Chance(0.4)) {
        Intrude(one);
      } else {
        End(&one);
      }
      const EngineLoad load = server_->Load();
      most_on_host_ = std::max(most_on_host_, load.host_kv_bytes);
      most_on_disk_ = std::max(most_on_disk_, load.disk_kv_bytes);
      preemptions_ = preemptions_before_ + load.preemptions;
      if (Chance(0.8)) continue;
      if (strangers_.open != nullptr) {
        End(&strangers_);
        over_.push_back(std::move(strangers_));
        strangers_ = NewStranger();
      }
      strangers_.asked = NextOf(strangers_, 700);
      strangers_.open = std::make_unique<CallReader>(server_->client(), strangers_.asked);
    }
  }
  // Of the server at hand: whether there were images wherever there may be some.
  bool SawTier() const {
    return (most_on_host_ > 0 || tier_.host_pages == 0) && (most_on_disk_ > 0 || tier_.disk_pages == 0);
  }
  bool HasSeenAll() const {
    const bool has_later_turns = std::any_of(over_.begin(), over_.end(), [](const Conversation& each) {
      return each.is_chat && each.turns.size() > 2;
    });
    return in_use_ > 0 && cancelled_ > 0 && cached_tokens_ > 0 && several_ > 0 && has_later_turns &&
           restored_ > 0 && restored_tokens_ > 0 && SawTier() && (preemptions_ > 0 || !must_preempt_);
  }

  const std::unique_ptr<const Tokenizer> tokenizer_;
  const TempFolder folder_, saved_, disk_;
  const SessionDraw drawn_ = DrawSessions(GetParam());
  std::mt19937 random_{GetParam()};
  bool must_preempt_ = false;  // layers that see all hold so many pages that somebody has to give up some
  int64_t conversations_ = 0, in_use_ = 0, cancelled_ = 0, cached_tokens_ = 0, several_ = 0;
  int64_t restored_ = 0, restored_tokens_ = 0, preemptions_ = 0, preemptions_before_ = 0;
  int64_t most_on_host_ = 0, most_on_disk_ = 0;  // bytes, of the server at hand
  TestTier tier_;
  std::string server_kinds_;  // ", hnd pages of 4 with 3 behind them on the host, 0 on a disk", of each
  std::unique_ptr<SmallServer> server_;
  std::vector<Conversation> live_ = std::vector<Conversation>(6);
  Conversation strangers_;          // each of its turns is of nobody's session
  std::vector<Conversation> over_;  // that nobody goes on with
};

constexpr uint32_t kSessionSeeds[] = {1, 2, 3, 6, 10, 20, 41};
INSTANTIATE_TEST_SUITE_P(Seeds, SessionStorm, testing::ValuesIn(TestSeeds(kSessionSeeds)),
                         [](const auto& info) { return SeedName(info.param); });

TEST(SessionStormSeeds, DrawEveryKindOfPageAndWindow) {
  std::set<std::vector<int32_t>> windows;
  std::set<DType> kv_dtypes;
  std::set<KvOrder> orders;
  std::set<int32_t> page_sizes;
  std::set<TierBehind> behind;
  std::set<bool> caches;
  for (const uint32_t seed : kSessionSeeds) {
    const SessionDraw drawn = DrawSessions(seed);
    windows.insert(drawn.windows);
    kv_dtypes.insert(drawn.kv_dtype);
    for (const ServerDraw& server : {drawn.first, drawn.second}) {
      orders.insert(server.kv_order);
      page_sizes.insert(server.page_size);
      behind.insert(server.behind);
      caches.insert(server.prefix_cache);
    }
  }
  EXPECT_THAT(windows,
              UnorderedElementsAre(ElementsAre(16, 0), ElementsAre(0, 9), ElementsAre(12), ElementsAre(0)));
  EXPECT_EQ(kv_dtypes.size(), std::size(kKvDTypes));
  EXPECT_EQ(orders.size(), 2u);
  EXPECT_THAT(page_sizes, UnorderedElementsAre(1, 4, 8, 16));
  EXPECT_EQ(behind.size(), 4u);
  EXPECT_EQ(caches.size(), 2u);
}

TEST_P(SessionStorm, EachTurnGivesWhatItsPromptGivesAlone) {
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(GetParam()));
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>()));
  SCOPED_TRACE(DTypeName(drawn_.kv_dtype));
  BackendEngine::Options roomy;
  roomy.kv_dtype = drawn_.kv_dtype;
  roomy.limits = SmallLimits(/*pool_pages=*/600);
  roomy.limits.context = kContextOfSessions;
  roomy.limits.prefix_cache = false;
  SmallServer calm(folder_.path(), *tokenizer_, roomy);
  StartServer(drawn_.first);
  for (Conversation& each : live_) each = NewConversation();
  strangers_ = NewStranger();

  const int64_t half = ScaledCount(300, 100);
  Storm(half);
  TakeOver(drawn_.second);
  Storm(half);
  int64_t rounds = 2 * half;
  for (; !HasSeenAll() && rounds < 4000 && !HasFailure(); rounds += 200) Storm(200);
  EXPECT_TRUE(HasSeenAll()) << "after " << rounds << " rounds: in use " << in_use_ << ", cancelled "
                            << cancelled_ << ", found " << cached_tokens_ << ", of several choices "
                            << several_ << ", restored " << restored_ << " with " << restored_tokens_
                            << " tokens, preempted " << preemptions_ << server_kinds_;
  SCOPED_TRACE(server_kinds_);
  EndAll();
  for (Conversation& each : live_) over_.push_back(std::move(each));
  for (const Conversation& each : over_) {
    for (size_t t = 0; t < each.turns.size() && !HasFailure(); ++t) {
      SCOPED_TRACE(each.session + ", turn " + std::to_string(t));
      ExpectAsAlone(calm, each.turns[t]);
    }
  }
}

}  // namespace
}  // namespace tramontane
