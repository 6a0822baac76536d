// The storm: random requests arrive, are cancelled, run out of time, are read slowly or not at all, wait for
// their masks, begin as others did, in a pool that is far too small for them; and still each gives what it
// gives alone and without a prefix cache, and every page comes back. Over a model they speak a vocabulary of
// each kind of file, with its grammars and its prompts to fill in the middle; its weights are of each form.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/transfer/kv_transfer.h"
#include "models/grammar/constraint_compiler.h"
#include "models/opened_model.h"
#include "models/tokenizer/fill_in_middle.h"
#include "tests/support/drawn_model.h"
#include "tests/support/drawn_tokenizer.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/fake_grammar.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/support/random_constraints.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::IsSupersetOf;
using testing::Pair;
using testing::UnorderedElementsAre;

// Ids 3 to 95 spell a, b or c, so that short stop strings are met often.
const PieceTokenizer& ThreeLetters() {
  static const PieceTokenizer tokenizer([] {
    std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
    while (pieces.size() < 96) pieces.emplace_back(1, char('a' + pieces.size() % 3));
    return pieces;
  }());
  return tokenizer;
}

// Two of three tokens at each place, which ones depends on all before; the end from some length on.
std::shared_ptr<const Grammar> RandomGrammar(uint32_t salt) {
  return std::make_shared<FakeGrammar>([salt](const std::vector<int32_t>& output) {
    uint32_t sum = salt;
    for (const int32_t token : output) sum = sum * 31 + static_cast<uint32_t>(token);
    std::vector<int32_t> allowed;
    for (int32_t token = 3; token < 60; ++token) {
      if ((static_cast<uint32_t>(token) + sum) % 3 != 0) allowed.push_back(token);
    }
    if (output.size() > 4 + salt % 12) allowed.assign(1, SteppedEngine::kEos);
    return allowed;
  });
}

// What takes its time, without a bound on it: a storm's limits are those of a grammar that costs nothing.
class Patient final : public Grammar {
 public:
  explicit Patient(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override {
    return std::make_unique<Matcher>(grammar_->NewMatcher(start));
  }
  int64_t memory_bytes() const override { return grammar_->memory_bytes(); }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(std::unique_ptr<GrammarMatcher> matcher) : matcher_(std::move(matcher)) {}
    void FillMask(std::span<uint32_t> mask, GrammarWork&) override { matcher_->FillMask(mask); }
    bool Accept(int32_t token, GrammarWork&) override { return matcher_->Accept(token); }

   private:
    const std::unique_ptr<GrammarMatcher> matcher_;
  };

  const std::shared_ptr<const Grammar> grammar_;
};

// A vocabulary, and what requests can say in it.
class Language {
 public:
  explicit Language(TokenizerKind kind)
      : tokenizer_(LoadTokenizerOf(kind)), compiler_(MakeCompiler(*tokenizer_)) {}

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool has_grammars() const { return compiler_ != nullptr; }

  // At most 26 tokens, and few enough bytes for as many.
  std::vector<int32_t> RandomPrompt(std::mt19937& random) const {
    const auto text = [&random] {
      static constexpr const char* kWords[] = {"the ", "if", " x", "ß", "(1)", "\n", "世"};
      std::string words;
      for (uint32_t count = random() % 5; count > 0; --count) words += kWords[random() % std::size(kWords)];
      return words;
    };
    if (random() % 2 == 0) return FillInMiddleIds(*tokenizer_, text(), text(), /*add_bos=*/true).value();
    std::vector<int32_t> ids = tokenizer_->Encode(text()).value();
    ids.insert(ids.begin(), tokenizer_->bos_id());
    return ids;
  }

  // All are compiled in milliseconds; most end within a storm's answers. grammar_property_test draws more.
  static ConstraintSpec RandomSpec(std::mt19937& random) {
    static constexpr const char* kRegexes[] = {"[a-dß]{1,4}", " ?(the|if|世界){1,3}", "\\(-?[0-9]{1,3}\\)",
                                               "\\w*"};
    static constexpr const char* kSchemas[] = {
        R"({"enum": ["ab", 12, null]})",
        R"({"type": "string", "maxLength": 3})",
        R"({"type": "array", "items": {"type": "boolean"}, "maxItems": 2})",
        R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})",
    };
    ConstraintSpec spec;
    const bool is_regex = random() % 2 == 0;
    spec.kind = is_regex ? ConstraintSpec::Kind::kRegex : ConstraintSpec::Kind::kJsonSchema;
    spec.text =
        is_regex ? kRegexes[random() % std::size(kRegexes)] : kSchemas[random() % std::size(kSchemas)];
    return spec;
  }
  std::shared_ptr<const Grammar> Compile(const ConstraintSpec& spec) {
    return std::make_shared<Patient>(compiler_->Compile(spec).value());
  }

 private:
  static std::unique_ptr<ConstraintCompiler> MakeCompiler(const Tokenizer& tokenizer) {
    ConstraintLimits limits;
    limits.max_compile_ns = std::numeric_limits<int64_t>::max();  // seconds on a machine that is busy
    return ConstraintCompiler::Create(tokenizer, tokenizer.vocab_size(), {tokenizer.eos_id()}, limits);
  }

  const std::unique_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<ConstraintCompiler> compiler_;  // null: a build without structured output
};

std::string FaultOf(const ConstraintSpec& spec, const std::string& text) {
  return spec.kind == ConstraintSpec::Kind::kRegex ? RegexFault(spec.text, text)
                                                   : SchemaFault(spec.text, text);
}

class Storm {
 public:
  // `language`: null for requests of any ids, under rules that are no language's.
  Storm(EngineUnderTest& storm, EngineUnderTest& calm, uint32_t seed, Language* language = nullptr)
      : storm_(storm), calm_(calm), random_(seed), language_(language) {}

  // Goes on until `requests` were taken up and what the storm is meant to see has been seen (which depends on
  // when masks come, and so on the machine); a failure where it is not seen within eight times as many.
  void RunUntil(const std::function<bool()>& has_seen_all, int64_t requests) {
    const int64_t most = std::max<int64_t>(8 * requests, 2000);
    Run(requests);
    while (!has_seen_all() && requests < most && !testing::Test::HasFailure()) Run(requests += 100);
    EXPECT_TRUE(has_seen_all()) << "after " << requests << " requests: preempted "
                                << storm_.engine().Load().preemptions << ", scored " << scored_
                                << ", policies " << policies_.size() << ", choices " << most_choices_
                                << ", whole texts " << whole_texts_ << ", tokens put back " << moved_tokens_
                                << ", bytes on the host " << most_on_host_ << ", on the disk "
                                << most_on_disk_;
  }

  // How many of each kind there were.
  const std::map<std::string, int64_t>& ends() const { return ends_; }
  // Answers that ended where the grammar of a language let them.
  int64_t whole_texts() const { return whole_texts_; }
  // Requests whose candidates were scored to the end.
  int64_t scored() const { return scored_; }
  // Whether a request of each policy and one of several choices ended by themselves.
  bool SawEveryPolicy() const { return policies_.size() == kContextPolicyTypes && most_choices_ > 1; }
  // Whether there were images wherever there may be some.
  bool SawTier(const TestTier& tier) const {
    return (most_on_host_ > 0 || tier.host_pages == 0) && (most_on_disk_ > 0 || tier.disk_pages == 0);
  }
  // That were found where they had been put back.
  int64_t moved_tokens() const { return moved_tokens_; }

 private:
  // Until `requests` of them were taken up since the storm began, and all that came of them is as in calm.
  void Run(int64_t requests) {
    const size_t first = readers_.size();
    while (static_cast<int64_t>(readers_.size()) < requests) {
      if (Chance(0.4)) SubmitOne();
      if (Chance(0.08)) Pick().stream().Cancel();
      if (Chance(0.3)) Pick().Poll();  // the others stall
      if (storm_.engine().keeps_pages()) MovePages();
      if (Chance(0.01)) storm_.clock().Advance(30'000'000);
      storm_.Step();
      const EngineLoad load = storm_.engine().Load();
      ASSERT_EQ(load.free_pages + load.held_pages + load.cached_pages, load.total_pages);
      most_on_host_ = std::max(most_on_host_, load.host_kv_bytes);
      most_on_disk_ = std::max(most_on_disk_, load.disk_kv_bytes);
    }
    std::vector<StreamReader*> all;
    for (const auto& reader : readers_) all.push_back(reader.get());
    storm_.RunToEnd(all);
    storm_.Step();  // sees the last stop strings
    storm_.engine().CheckAccounting();
    EXPECT_EQ(storm_.engine().Load().held_pages, 0);
    EXPECT_EQ(storm_.engine().Load().running, 0);
    EXPECT_EQ(storm_.engine().Load().waiting, 0);
    for (size_t i = first; i < readers_.size(); ++i) {
      SCOPED_TRACE(requests_[i].id);
      ExpectAsInCalm(requests_[i], *readers_[i]);
      if (specs_[i]) ExpectWithinGrammar(requests_[i], *specs_[i], *readers_[i]);
    }
    EXPECT_LE(storm_.engine().Load().failed_rows, most_failed_rows_) << "logits that are no numbers";
  }

  // Cached pages of some text go to the host, and come back when others may have taken their room.
  void MovePages() {
    if (transfer_ == nullptr && Chance(0.2) && !requests_.empty()) {
      const size_t back =
          1 + random_() % std::min<size_t>(Chance(0.5) ? 6 : requests_.size(), requests_.size());
      const Request& request = requests_[requests_.size() - back];
      moved_ = CachedTextOf(TextOf(requests_.size() - back), request.cache_salt,
                            ContextPolicyOf(request, storm_.engine().limits()), request.kv_owner);
      transfer_ = std::make_shared<KvTransfer>(moved_);
      ASSERT_TRUE(storm_.engine().StartTransfer(transfer_).ok());
      is_out_ = false;
    }
    if (transfer_ == nullptr || !transfer_->done() || Chance(0.7)) return;
    ASSERT_TRUE(transfer_->status().ok()) << transfer_->status();
    if (is_out_ || transfer_->tokens() == 0) {
      moved_tokens_ += is_out_ ? transfer_->tokens() : 0;
      transfer_ = nullptr;
      return;
    }
    transfer_ = std::make_shared<KvTransfer>(moved_, transfer_->TakePages());
    ASSERT_TRUE(storm_.engine().StartTransfer(transfer_).ok());
    is_out_ = true;
  }

  bool Chance(double probability) { return std::uniform_real_distribution<>()(random_) < probability; }
  int64_t Number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  StreamReader& Pick() {
    while (readers_.empty()) SubmitOne();  // one may be refused
    return *readers_[random_() % readers_.size()];
  }

  void SubmitOne() {
    const size_t number = requests_.size();
    Request request = MakeRequest("r" + std::to_string(number), Number(1, 40), Number(0, 20),
                                  static_cast<uint32_t>(random_()));
    if (language_ != nullptr && Chance(0.5)) request.prompt = language_->RandomPrompt(random_);
    if (Chance(0.3)) request.context_policy = RandomPolicy();
    if (!requests_.empty() && Chance(0.5)) BeginAsAnother(&request);
    if (Chance(0.2)) request.cache_salt = "salt";
    request.prefers_cache = Chance(0.2);
    request.share = {.caller = std::string(static_cast<size_t>(Number(0, 3)), 'c'),
                     .weight = static_cast<int32_t>(Number(1, 3)),
                     .priority = Chance(0.2) ? static_cast<int32_t>(Number(-2, 2)) : 0};
    request.choices = Chance(0.2) ? static_cast<int32_t>(Number(2, 3)) : 1;
    request.sampling.temperature = Chance(0.3) ? 0.0f : 0.9f;
    request.sampling.seed = random_();
    if (Chance(0.2)) request.sampling.repetition_penalty = 1.2f;
    if (Chance(0.2)) request.sampling.presence_penalty = 0.6f;
    if (Chance(0.2)) request.sampling.frequency_penalty = -0.4f;
    if (Chance(0.2)) request.sampling.logit_bias = {{3, 1.5f}, {9, -2.0f}};
    if (Chance(0.2)) request.sampling.top_k = 5;
    if (Chance(0.3)) request.stopping.stop = {"ab", "caca", "bbb"};
    if (language_ != nullptr && Chance(0.2)) request.stopping.stop = {"e", "th", "\n"};
    if (Chance(0.3)) request.stopping.stop_token_ids = {5, 6, 7, 8};
    if (Chance(0.2)) request.stopping.min_tokens = std::min<int64_t>(4, *request.stopping.max_tokens);
    request.stopping.ignore_eos = Chance(0.5);
    request.stopping.include_stop = Chance(0.5);
    if (Chance(0.3)) request.constraint.grammar = RandomGrammar(static_cast<uint32_t>(random_()));
    std::optional<ConstraintSpec> spec;
    if (language_ != nullptr && language_->has_grammars() && Chance(0.4)) {
      spec = Language::RandomSpec(random_);
      request.constraint.grammar = language_->Compile(*spec);
    }
    if (Chance(0.3)) request.output.logprobs = 2;
    const bool moves =
        request.context_policy && request.context_policy->type == ContextPolicyType::kReevaluate;
    if (Chance(0.2) && !moves) request.output.prompt_logprobs = 1;
    if (Chance(0.15)) {
      spec.reset();
      ScoreInstead(&request);
    }
    if (Chance(0.5)) GiveOwner(&request);
    if (Chance(0.1)) request.deadline_ns = storm_.clock().NowNs() + Number(1, 60) * 1'000'000;
    if (Chance(0.1)) request.stopping.time_limit_ns = Number(1, 60) * 1'000'000;
    auto reader = storm_.Submit(request);
    if (!request.candidates.empty() && reader->refused().code() == StatusCode::kInvalidArgument) return;
    if (!reader->refused().ok()) {
      EXPECT_EQ(reader->refused().code(), StatusCode::kResourceExhausted) << reader->refused();
      return;
    }
    requests_.push_back(std::move(request));
    specs_.push_back(std::move(spec));
    readers_.push_back(std::move(reader));
  }

  // One of few, so that it may have left what this one begins with; now and then they are others.
  void GiveOwner(Request* request) {
    if (request->choices > 1 || !request->candidates.empty()) return;
    std::shared_ptr<const KvOwner>& owner = owners_[request->cache_salt.empty() ? 0 : 1][random_() % 3];
    if (owner == nullptr || Chance(0.1)) owner = std::make_shared<const KvOwner>();
    request->kv_owner = owner;
  }

  // The pool may be too small for so many, or the context.
  void ScoreInstead(Request* request) {
    request->candidates.resize(static_cast<size_t>(Number(1, 5)));
    for (std::vector<int32_t>& candidate : request->candidates) {
      candidate.resize(static_cast<size_t>(Number(1, 7)));
      for (int32_t& token : candidate) token = static_cast<int32_t>(Number(3, SteppedEngine::kVocab - 1));
    }
    request->choices = 1;
    request->stopping = {};
    request->stopping.max_tokens = 0;
    request->constraint = {};
    request->context_policy.reset();
    request->output.prompt_logprobs = -1;
  }

  // Contexts that most of the requests fill.
  ContextPolicy RandomPolicy() {
    ContextPolicy policy;
    policy.type = static_cast<ContextPolicyType>(Number(0, int64_t{kContextPolicyTypes} - 1));
    policy.n_ctx = Number(6, 40);
    policy.n_keep = Number(0, 5);
    const bool discards =
        policy.type == ContextPolicyType::kShift || policy.type == ContextPolicyType::kReevaluate;
    const int64_t least = policy.type == ContextPolicyType::kReevaluate ? LeastReevaluatedDiscard(policy) : 1;
    policy.n_discard = discards && Chance(0.7) ? Number(least, policy.n_ctx - policy.n_keep) : 0;
    return policy;
  }

  // What it was asked, and mostly what it has said.
  std::vector<int32_t> TextOf(size_t number) {
    std::vector<int32_t> text = requests_[number].prompt;
    const StreamReader& reader = *readers_[number];
    if (reader.done() && Chance(0.7))
      text.insert(text.end(), reader.choice().ids.begin(), reader.choice().ids.end());
    return text;
  }

  // A next turn, the same question again, or another one behind the same text; mostly under its policy.
  void BeginAsAnother(Request* request) {
    constexpr size_t kLongest = 40;
    std::vector<int32_t>* prompt = &request->prompt;
    const size_t back = 1 + random_() % std::min<size_t>(6, requests_.size());  // the pool knows the last few
    const std::vector<int32_t> other = TextOf(requests_.size() - back);
    if (Chance(0.7)) request->context_policy = requests_[requests_.size() - back].context_policy;
    std::vector<int32_t> joined(other.begin(),
                                other.end() - (Chance(0.5) ? Number(0, std::ssize(other) / 2) : 0));
    if (Chance(0.8)) joined.insert(joined.end(), prompt->begin(), prompt->end());
    joined.resize(std::min(joined.size(), kLongest));
    *prompt = std::move(joined);
  }

  void ExpectAsInCalm(const Request& request, StreamReader& stormy) {
    Request unhurried = request;
    unhurried.kv_owner = nullptr;
    unhurried.deadline_ns = 0;
    unhurried.stopping.time_limit_ns = 0;
    auto calm = calm_.Submit(unhurried);
    ASSERT_TRUE(calm->refused().ok()) << calm->refused();
    calm_.RunToEnd({calm.get()});
    ASSERT_EQ(stormy.started().size(), 1u);
    for (int32_t c = 0; c < request.choices; ++c) {
      SCOPED_TRACE("choice " + std::to_string(c));
      const ChoiceReading& got = stormy.choice(c);
      const ChoiceReading& alone = calm->choice(c);
      ASSERT_EQ(got.finished.size(), 1u);
      EXPECT_EQ(got.end().usage.completion_tokens, static_cast<int64_t>(got.ids.size()));
      EXPECT_EQ(got.logprobs.size(), request.output.logprobs >= 0 ? got.ids.size() : 0);
      // Without the cache only an owner finds anything: what it has left.
      const bool may_find = request.kv_owner != nullptr || storm_.engine().limits().prefix_cache;
      EXPECT_TRUE(may_find || got.end().usage.cached_tokens == 0) << got.end().usage.cached_tokens;
      ++ends_[FinishReasonName(got.end().reason)];
      ExpectNoFault(alone.end());
      if (IsCutOff(request, stormy, got.end())) {
        // What came is the beginning of what would have come.
        ASSERT_LE(got.ids.size(), alone.ids.size());
        EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), alone.ids.begin()));
        continue;
      }
      ExpectNoFault(got.end());
      EXPECT_EQ(got.ids, alone.ids);
      EXPECT_EQ(got.text, alone.text);
      EXPECT_EQ(got.end().reason, alone.end().reason);
      EXPECT_EQ(got.end().status, alone.end().status);
      EXPECT_EQ(got.end().stop_string, alone.end().stop_string);
      EXPECT_EQ(got.end().stop_token_id, alone.end().stop_token_id);
      for (size_t i = 0; i < got.logprobs.size(); ++i)
        EXPECT_EQ(got.logprobs[i].logprob, alone.logprobs[i].logprob);
      policies_.insert(ContextPolicyOf(request, storm_.engine().limits()).type);
      most_choices_ = std::max(most_choices_, request.choices);
      if (!request.candidates.empty())
        ExpectScoresOfEachAlone(unhurried, stormy.started()[0].prompt_logprobs);
    }
  }

  // From outside: what its reader or the request itself asked for, and nothing else.
  static bool IsCutOff(const Request& request, StreamReader& reader, const StreamFinished& end) {
    if (end.reason == FinishReason::kCancelled) {
      EXPECT_TRUE(reader.stream().cancelled());
      return true;
    }
    if (end.reason == FinishReason::kTimeLimit) {
      EXPECT_GT(request.stopping.time_limit_ns, 0);
      return true;
    }
    if (end.status.code() != StatusCode::kDeadlineExceeded) return false;
    EXPECT_GT(request.deadline_ns, 0);
    return true;
  }

  // The one error by itself: the grammar of a language allows no token.
  static void ExpectNoFault(const StreamFinished& end) {
    if (end.reason != FinishReason::kError) return;
    EXPECT_EQ(end.status.code(), StatusCode::kInvalidArgument) << end.status;
  }

  // Of the prompt with that candidate, as a prompt that is scored.
  void ExpectScoresOfEachAlone(const Request& request, const std::vector<TokenInfo>& scores) {
    ++scored_;
    size_t score = 0;
    for (const std::vector<int32_t>& candidate : request.candidates) {
      Request alone = request;
      alone.candidates.clear();
      alone.output.prompt_logprobs = 0;
      alone.prompt.insert(alone.prompt.end(), candidate.begin(), candidate.end());
      auto calm = calm_.Submit(alone);
      ASSERT_TRUE(calm->refused().ok()) << calm->refused();
      calm_.RunToEnd({calm.get()});
      const std::vector<TokenInfo>& expected = calm->started().at(0).prompt_logprobs;
      for (size_t i = expected.size() - candidate.size(); i < expected.size(); ++i, ++score) {
        ASSERT_LT(score, scores.size());
        EXPECT_EQ(scores[score].token, expected[i].token);
        EXPECT_EQ(scores[score].logprob, expected[i].logprob);
      }
    }
    EXPECT_EQ(score, scores.size());
  }

  void ExpectWithinGrammar(const Request& request, const ConstraintSpec& spec, const StreamReader& reader) {
    for (int32_t c = 0; c < request.choices; ++c) {
      const ChoiceReading& choice = reader.choice(c);
      // A row without a token; a stop string may have ended the choice before that was known.
      const FinishReason reason = choice.end().reason;
      if (reason == FinishReason::kError || reason == FinishReason::kStopSequence) ++most_failed_rows_;
      if (reason != FinishReason::kStop) continue;
      ++whole_texts_;
      EXPECT_EQ(FaultOf(spec, choice.text), "") << spec.text << "\n" << choice.text;
    }
  }

  EngineUnderTest& storm_;
  EngineUnderTest& calm_;
  std::mt19937 random_;
  Language* const language_;
  std::array<std::array<std::shared_ptr<const KvOwner>, 3>, 2> owners_;  // by salt
  std::vector<Request> requests_;
  std::vector<std::optional<ConstraintSpec>> specs_;  // of the language's grammars, by request
  int64_t whole_texts_ = 0;
  int64_t scored_ = 0;
  int64_t most_failed_rows_ = 0;          // that grammars account for
  std::set<ContextPolicyType> policies_;  // of requests that ended by themselves
  int32_t most_choices_ = 0;              // of them
  std::shared_ptr<KvTransfer> transfer_;  // null: none
  CachedText moved_;                      // what it moves
  bool is_out_ = false;                   // the pages are on the host, or on their way back
  int64_t moved_tokens_ = 0;
  int64_t most_on_host_ = 0, most_on_disk_ = 0;  // bytes
  std::vector<std::unique_ptr<StreamReader>> readers_;
  std::map<std::string, int64_t> ends_;
};

EngineLimits Stormy() {
  EngineLimits limits = SmallLimits(/*pool_pages=*/48);  // one sequence of the context needs about 30
  limits.max_queued_requests = 12;
  limits.priority_ageing_ns = 20'000'000;
  limits.max_partial_prefills = 3;
  limits.output_queue_steps = 3;
  limits.max_constraint_step_ns = 1;  // no mask is waited for: rows sit steps out all the time
  return limits;
}

EngineLimits Calm() {
  EngineLimits limits = SmallLimits(/*pool_pages=*/500);
  limits.max_step_tokens = 64;
  limits.prefix_cache = false;
  return limits;
}

// With a pool that holds the longest sequence, and about half of one more.
EngineLimits Narrow(EngineLimits limits, const KvLayout& layout) {
  limits.page_size = layout.format.page_size;
  limits.pool_pages =
      layout.PagesForSequence(limits.context, LeastChunk(layout, limits.max_step_tokens)) * 8 / 5;
  return limits;
}

// None, the host alone, a host too small for anything, and a disk behind either.
TestTier DrawTier(uint32_t seed, bool prefix_cache) {
  if (!prefix_cache || seed % 3 == 0) return {};
  return {.host_pages = seed / 3 % 2 == 0 ? 3 : 60, .disk_pages = seed / 6 % 2 == 0 ? 0 : 150};
}

// What a seed draws, but for the requests.
struct FakeDraw {
  std::vector<int32_t> windows;
  bool prefix_cache = true;
  TestTier tier;
};

FakeDraw DrawFake(uint32_t seed) {
  FakeDraw drawn;
  drawn.windows = seed % 2 == 0 ? std::vector<int32_t>{16, 0} : std::vector<int32_t>{0, 8, 8, 13};
  drawn.prefix_cache = seed % 8 != 0;
  drawn.tier = DrawTier(seed, drawn.prefix_cache);
  return drawn;
}

constexpr uint32_t kFakeSeeds[] = {1, 3, 4, 7, 8, 10};

class StormOverTheFakeModel : public testing::TestWithParam<std::tuple<int32_t, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, StormOverTheFakeModel,
                         testing::Combine(testing::Values(1, 2), testing::ValuesIn(TestSeeds(kFakeSeeds))),
                         [](const auto& info) {
                           return (std::get<0>(info.param) == 1 ? "OneStep" : "TwoSteps") +
                                  SeedName(std::get<1>(info.param));
                         });

TEST(StormSeeds, OverTheFakeModelDrawEveryWindowAndTier) {
  std::set<std::vector<int32_t>> windows;
  std::set<std::pair<int64_t, int64_t>> tiers;
  std::set<bool> caches;
  for (const uint32_t seed : kFakeSeeds) {
    const FakeDraw drawn = DrawFake(seed);
    windows.insert(drawn.windows);
    tiers.insert({drawn.tier.host_pages, drawn.tier.disk_pages});
    caches.insert(drawn.prefix_cache);
  }
  EXPECT_THAT(windows, UnorderedElementsAre(ElementsAre(16, 0), ElementsAre(0, 8, 8, 13)));
  EXPECT_THAT(tiers, UnorderedElementsAre(Pair(0, 0), Pair(3, 0), Pair(60, 0), Pair(3, 150), Pair(60, 150)));
  EXPECT_EQ(caches.size(), 2u);
}

TEST_P(StormOverTheFakeModel, EachRequestGivesWhatItGivesAlone) {
  const auto [steps_in_flight, seed] = GetParam();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  FakeDraw drawn = DrawFake(seed);
  EngineLimits limits = Stormy();
  limits.steps_in_flight = steps_in_flight;
  limits.prefix_cache = drawn.prefix_cache;
  const TempFolder disk;
  drawn.tier.folder = disk.path();
  SteppedEngine stormy(limits, drawn.windows, &ThreeLetters(), drawn.tier);
  SteppedEngine calm(Calm(), drawn.windows, &ThreeLetters());
  Storm storm(stormy, calm, seed);
  const auto has_seen_all = [&] {
    for (const char* end : {"length", "stop_sequence", "cancelled"}) {
      if (storm.ends().count(end) == 0) return false;
    }
    const EngineLoad load = stormy.engine().Load();
    return load.preemptions > 0 && storm.scored() > 0 && load.prefix_hits > 0 && storm.SawEveryPolicy() &&
           storm.SawTier(drawn.tier);
  };
  storm.RunUntil(has_seen_all, ScaledCount(1500, 100));
}

// On the CPU as it is; and as an asynchronous device, two steps in flight.
struct Device {
  uint32_t number;
  const char* name;
  std::optional<DelayedBackend::Runs> delayed;
  bool recorded = false;
};
constexpr Device kDevices[] = {{0, "AtOnce", std::nullopt},
                               {1, "Late", DelayedBackend::Runs::kWhenWaitedFor},
                               {2, "Threaded", DelayedBackend::Runs::kOnItsOwnThread},
                               {3, "LateAndRecorded", DelayedBackend::Runs::kWhenWaitedFor, true},
                               {4, "ThreadedAndRecorded", DelayedBackend::Runs::kOnItsOwnThread, true}};
constexpr DType kKvDTypes[] = {DType::kBf16, DType::kF32, DType::kFp8E4M3, DType::kInt8, DType::kInt4};

// What a seed draws for a device, but for the vocabulary and the requests.
struct CpuDraw {
  const WeightForm* form = nullptr;
  DrawnModel model;
  DType kv_dtype = DType::kBf16;
  LinearMode linear = LinearMode::kExact;
  KvOrder kv_order = KvOrder::kHnd;  // of the stormy engine alone: outputs are the same
  bool prefix_cache = true;
  TestTier tier;
};

CpuDraw DrawCpu(const Device& device, uint32_t seed, int32_t vocab) {
  CpuDraw drawn;
  TinyModel sizes;
  sizes.vocab = vocab;
  sizes.layers = 4;
  sizes.experts = 4;
  sizes.context = 64;
  drawn.form = &WeightForms()[(seed / 13 + device.number) % WeightForms().size()];
  FitWidths(*drawn.form, &sizes);
  if (sizes.hidden > 64) sizes.layers = 2;
  // Another kind of model on each device, whatever the seed, and every kind on each over the seeds.
  drawn.model = DrawModel(seed + device.number, seed, sizes);
  drawn.kv_dtype = kKvDTypes[(seed / 7 + device.number) % std::size(kKvDTypes)];
  drawn.linear = (seed / 2 + device.number) % 2 == 0 ? LinearMode::kExact : LinearMode::kInt8;
  drawn.kv_order = seed / 3 % 2 == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  drawn.prefix_cache = (seed + device.number) % 4 != 0;
  drawn.tier = DrawTier(seed / 5 + device.number, drawn.prefix_cache);
  return drawn;
}

constexpr uint32_t kCpuSeeds[] = {1, 4, 35, 66};

class StormOnTheCpu : public testing::TestWithParam<std::tuple<Device, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Devices, StormOnTheCpu,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::ValuesIn(TestSeeds(kCpuSeeds))),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + SeedName(std::get<1>(info.param));
                         });

TEST(StormSeeds, OnTheCpuDrawEveryKindOfPage) {
  std::set<DType> kv_dtypes;
  std::set<KvOrder> orders;
  std::set<int32_t> page_sizes;
  std::set<std::pair<int64_t, int64_t>> tiers;
  std::set<LinearMode> linear;
  std::set<bool> caches;
  std::set<std::set<int32_t>> windows;  // of a model's layers
  std::set<std::string> forms;
  for (const uint32_t seed : kCpuSeeds) {
    for (const Device& device : kDevices) {
      const CpuDraw drawn = DrawCpu(device, seed, SteppedEngine::kVocab);
      kv_dtypes.insert(drawn.kv_dtype);
      orders.insert(drawn.kv_order);
      page_sizes.insert(drawn.model.page_size);
      tiers.insert({drawn.tier.host_pages, drawn.tier.disk_pages});
      linear.insert(drawn.linear);
      forms.insert(drawn.form->name);
      caches.insert(drawn.prefix_cache);
      const std::vector<int32_t>& of_layers = drawn.model.model.window;
      windows.insert({of_layers.begin(), of_layers.end()});
    }
  }
  EXPECT_EQ(kv_dtypes.size(), std::size(kKvDTypes));
  EXPECT_EQ(orders.size(), 2u);
  EXPECT_THAT(page_sizes, UnorderedElementsAre(1, 4, 8, 16));
  EXPECT_THAT(tiers, IsSupersetOf({Pair(0, 0), Pair(3, 0), Pair(60, 0), Pair(3, 150), Pair(60, 150)}));
  EXPECT_EQ(linear.size(), 2u);
  EXPECT_EQ(forms.size(), WeightForms().size());
  EXPECT_EQ(caches.size(), 2u);
  EXPECT_THAT(windows, UnorderedElementsAre(ElementsAre(0), ElementsAre(16), ElementsAre(0, 16)));
}

// Until `requests` were taken up, and everything was seen that the draw has.
void ExpectTheSameBitsAlone(const Device& device, uint32_t seed, Language& language, CpuDraw drawn,
                            int64_t requests, const std::vector<const char*>& ends = {}) {
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  SCOPED_TRACE(language.tokenizer().family());
  SCOPED_TRACE(drawn.model.name);
  SCOPED_TRACE(drawn.form->name);
  const TempFolder folder, disk;
  const std::string path = WriteInForm(drawn.model, *drawn.form, seed, folder);
  CpuEngine::Options options;
  options.kv_dtype = drawn.kv_dtype;
  SCOPED_TRACE(DTypeName(options.kv_dtype));
  options.linear = drawn.linear;
  SCOPED_TRACE(options.linear == LinearMode::kExact ? "exact" : "products in 8 bits");
  options.kv_order = drawn.kv_order;
  const KvLayout layout =
      OpenModel(path, {.dtype = options.kv_dtype, .page_size = drawn.model.page_size})->kv_layout;
  options.tokenizer = &language.tokenizer();
  options.threads = 2;
  options.limits = Narrow(Stormy(), layout);
  options.delayed = device.delayed;
  options.recorded = device.recorded;
  options.limits.steps_in_flight = options.delayed ? 2 : 1;
  options.limits.prefix_cache = drawn.prefix_cache;
  drawn.tier.folder = disk.path();
  options.tier = drawn.tier;
  CpuEngine stormy(path, options);
  options.tier = {};
  options.threads = 1;
  options.limits = Calm();
  options.limits.page_size = drawn.model.page_size;
  options.limits.pool_pages *= 4;
  options.delayed = std::nullopt;
  options.kv_order = KvOrder::kHnd;
  CpuEngine calm(path, options);
  Storm storm(stormy, calm, seed, &language);
  const auto has_seen_all = [&] {
    // Without the cache an owner's last text alone has pages, if they are still there.
    const bool moves_pages = stormy.engine().keeps_pages() && drawn.prefix_cache;
    const bool has_ended =
        std::all_of(ends.begin(), ends.end(), [&](const char* end) { return storm.ends().count(end) > 0; });
    return has_ended && stormy.engine().Load().preemptions > 0 && storm.scored() > 0 &&
           (storm.whole_texts() > 0 || !language.has_grammars()) &&
           (storm.moved_tokens() > 0 || !moves_pages) && storm.SawEveryPolicy() && storm.SawTier(drawn.tier);
  };
  storm.RunUntil(has_seen_all, requests);
}

TEST_P(StormOnTheCpu, EachRequestGivesTheSameBitsAlone) {
  const auto& [device, seed] = GetParam();
  // Another kind of vocabulary, too: there are more devices than kinds.
  Language language(static_cast<TokenizerKind>((seed + device.number) % kTokenizerKinds));
  ExpectTheSameBitsAlone(device, seed, language, DrawCpu(device, seed, language.tokenizer().vocab_size()),
                         ScaledCount(300, 40));
}

// Layers with a window beside others, the cache, the host and the disk, two steps in flight: all that
// requests do beside each other over all that an engine has.
TEST(StormOfEverything, EachRequestGivesTheSameBitsAlone) {
  Language language(TokenizerKind::kTekken);
  const Device& device = kDevices[2];
  const auto has_everything = [](const CpuDraw& drawn) {
    const std::set<int32_t> windows(drawn.model.model.window.begin(), drawn.model.model.window.end());
    return windows.size() > 1 && drawn.prefix_cache && drawn.tier.host_pages > 3 && drawn.tier.disk_pages > 0;
  };
  for (uint32_t seed = TestSeed();; ++seed) {
    CpuDraw drawn = DrawCpu(device, seed, language.tokenizer().vocab_size());
    if (!has_everything(drawn)) continue;
    return ExpectTheSameBitsAlone(device, seed, language, std::move(drawn), ScaledCount(300, 40),
                                  {"stop", "length", "stop_sequence", "cancelled", "time_limit"});
  }
}

}  // namespace
}  // namespace tramontane
