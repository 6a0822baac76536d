// Conversations in a storm, over the CPU and a pool that is too small for them: each goes on turn by turn in
// a session of its own, under a context policy or none, while others do; its name is wanted by a second
// request while a first has it, turns are cancelled, and strangers without a session ask between; pages are
// of a drawn type, layout and size, layers have drawn windows. A turn's prompt begins with all that the turn
// before it was asked and has said, and each answer is, bit for bit, what its prompt gives alone, without a
// session and without a prefix cache.

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_thread.h"
#include "models/chat/mistral_chat.h"
#include "models/opened_model.h"
#include "models/tokenizer/load.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "tests/server/call_reader.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kContextOfSessions = 128;

// Random weights behind Breeze's tokenizer, served. `options`: those of its engine, but for the tokenizer.
class SmallServer {
 public:
  SmallServer(const std::string& folder, const Tokenizer& tokenizer, const BackendEngine::Options& options)
      : chat_format_(tokenizer, tokenizer.version().value()),
        engine_(folder, WithTokenizer(options, tokenizer)) {
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

 private:
  static BackendEngine::Options WithTokenizer(BackendEngine::Options options, const Tokenizer& tokenizer) {
    options.tokenizer = &tokenizer;
    return options;
  }

  const MistralChatFormat chat_format_;
  CpuEngine engine_;
  std::unique_ptr<EngineThread> thread_;
  InferenceCore core_{{.workers = {.threads = 1}}};  // calls begin in the order in which they were made
  EngineClient client_{core_};
};

// A turn that ended well.
struct Turn {
  v1::GenerateRequest request;
  Ids prompt, said;
  std::vector<std::string> logprobs;
};

struct Conversation {
  std::string session;
  bool is_chat = false;
  v1::ContextPolicy policy;
  std::vector<Turn> turns;
  v1::Chat chat;  // so far
  v1::GenerateRequest asked;
  std::unique_ptr<CallReader> open;  // null: nobody asks

  Ids Held() const {
    if (turns.empty()) return {};
    Ids ids = turns.back().prompt;
    ids.insert(ids.end(), turns.back().said.begin(), turns.back().said.end());
    return ids;
  }
};

class SessionStorm : public testing::Test {
 protected:
  SessionStorm() : tokenizer_(LoadTokenizer(TRAMONTANE_SOURCE_DIR "/models/breeze/weights").value()) {
    TinyModel model;
    model.vocab = tokenizer_->vocab_size();
    model.context = kContextOfSessions;
    const std::vector<int32_t> windows[] = {{16, 0}, {0, 9}, {12}, {0}};
    model.window = windows[random_() % std::size(windows)];
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
    constexpr v1::ContextPolicy::Type kTypes[] = {
        v1::ContextPolicy::TYPE_UNSPECIFIED, v1::ContextPolicy::TYPE_SINKS, v1::ContextPolicy::TYPE_SHIFT,
        v1::ContextPolicy::TYPE_REEVALUATE};
    made.policy.set_type(kTypes[number % 4]);
    made.policy.set_n_ctx(Number(24, 40));
    made.policy.set_n_keep(Number(0, 6));
    return made;
  }

  // A second request for a session that is in use. The first may have ended, which nobody has read: then the
  // session holds what this one does not go on from.
  void Intrude(SmallServer& server, const Conversation& on) {
    CallReader reader(server.client(), NextOf(on, 500));
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
    Turn turn;
    turn.request = of->asked;
    for (const v1::GenerateResponse& event : reader->events()) {
      for (const v1::PromptToken& token : event.started().prompt()) turn.prompt.push_back(token.token_id());
    }
    turn.said = reader->token_ids();
    turn.logprobs = reader->logprobs();
    cached_tokens_ += reader->finished().usage().cached_tokens();
    const Ids held = of->Held();
    ASSERT_GE(turn.prompt.size(), held.size()) << of->session;
    EXPECT_TRUE(std::equal(held.begin(), held.end(), turn.prompt.begin()))
        << of->session << " turn " << of->turns.size();
    ASSERT_EQ(turn.said.size(), static_cast<size_t>(of->asked.stopping().max_tokens()));
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
    request.clear_chat();
    *request.mutable_token_ids()->mutable_ids() = {turn.prompt.begin(), turn.prompt.end()};
    CallReader reader(calm.client(), request);
    ASSERT_FALSE(reader.refused()) << reader.refusal().message();
    const RpcError outcome = reader.ReadAll();
    ASSERT_TRUE(outcome.ok()) << outcome.message();
    EXPECT_EQ(reader.token_ids(), turn.said);
    EXPECT_EQ(reader.logprobs(), turn.logprobs);
  }

  const std::unique_ptr<const Tokenizer> tokenizer_;
  const TempFolder folder_;
  const uint32_t seed_ = TestSeed();
  std::mt19937 random_{seed_};
  bool must_preempt_ = false;  // layers that see all hold so many pages that somebody has to give up some
  int64_t conversations_ = 0, in_use_ = 0, cancelled_ = 0, cached_tokens_ = 0;
};

TEST_F(SessionStorm, EachTurnGivesWhatItsPromptGivesAlone) {
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed_));
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>()));
  constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kFp8E4M3, DType::kInt8, DType::kInt4};
  BackendEngine::Options options;
  options.kv_dtype = kTypes[random_() % std::size(kTypes)];
  options.kv_order = Chance(0.5) ? KvOrder::kHnd : KvOrder::kNhd;
  options.limits = SmallLimits(/*pool_pages=*/0);
  options.limits.context = kContextOfSessions;
  if (Chance(0.5)) options.limits.page_size *= 2;
  // The longest sequence, the sinks of another, and less than half of one more.
  const KvOptions pages = {.dtype = options.kv_dtype, .page_size = options.limits.page_size};
  const KvLayout layout = OpenModel(folder_.path(), pages)->kv_layout;
  options.limits.pool_pages =
      layout.PagesForSequence(kContextOfSessions, LeastChunk(layout, options.limits.max_step_tokens)) * 7 /
          5 +
      2 * std::ssize(layout.groups);
  BackendEngine::Options roomy = options;
  roomy.limits.pool_pages = 600;
  roomy.limits.prefix_cache = false;
  SmallServer server(folder_.path(), *tokenizer_, options), calm(folder_.path(), *tokenizer_, roomy);

  std::vector<Conversation> live(6), over;
  for (Conversation& each : live) each = NewConversation();
  Conversation strangers;  // each of its turns is of nobody's session
  const auto storm = [&](int64_t rounds) {
    for (int64_t round = 0; round < rounds && !HasFailure(); ++round) {
      Conversation& one = live[random_() % live.size()];
      if (one.open == nullptr) {
        if (IsFull(one)) {
          over.push_back(std::move(one));
          one = NewConversation();
        }
        one.asked = NextOf(one, 300);
        one.open = std::make_unique<CallReader>(server.client(), one.asked);
      } else if (Chance(0.4)) {
        Intrude(server, one);
      } else {
        End(&one);
      }
      if (Chance(0.8)) continue;
      if (strangers.open != nullptr) {
        End(&strangers);
        over.push_back(std::move(strangers));
        strangers = {};
      }
      strangers.asked = NextOf(strangers, 700);
      strangers.open = std::make_unique<CallReader>(server.client(), strangers.asked);
    }
  };
  const auto has_seen_all = [&] {
    const bool has_later_turns = std::any_of(over.begin(), over.end(), [](const Conversation& each) {
      return each.is_chat && each.turns.size() > 2;
    });
    return in_use_ > 0 && cancelled_ > 0 && cached_tokens_ > 0 && has_later_turns &&
           (server.Load().preemptions > 0 || !must_preempt_);
  };
  int64_t rounds = ScaledCount(600, 200);
  storm(rounds);
  for (; !has_seen_all() && rounds < 4000 && !HasFailure(); rounds += 200) storm(200);
  EXPECT_TRUE(has_seen_all()) << "after " << rounds << " rounds: in use " << in_use_ << ", cancelled "
                              << cancelled_ << ", found " << cached_tokens_ << ", preempted "
                              << server.Load().preemptions;
  live.push_back(std::move(strangers));
  for (Conversation& each : live) {
    if (each.open != nullptr && !HasFailure()) End(&each);
    over.push_back(std::move(each));
  }
  for (const Conversation& each : over) {
    for (size_t t = 0; t < each.turns.size() && !HasFailure(); ++t) {
      SCOPED_TRACE(each.session + ", turn " + std::to_string(t));
      ExpectAsAlone(calm, each.turns[t]);
    }
  }
}

}  // namespace
}  // namespace tramontane
