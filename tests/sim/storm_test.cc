// The storm: random requests arrive, are cancelled, run out of time, are read slowly or not at all, wait for
// their masks, begin as others did, in a pool that is far too small for them; and still each gives what it
// gives alone and without a prefix cache, and every page comes back. Over a model they speak a vocabulary of
// each kind of file, with its grammars and its prompts to fill in the middle; its weights are of each form.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv_transfer.h"
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
    EXPECT_EQ(storm_.engine().Load().held_pages, 0);
    EXPECT_EQ(storm_.engine().Load().running, 0);
    EXPECT_EQ(storm_.engine().Load().waiting, 0);
    for (size_t i = first; i < readers_.size(); ++i) {
      SCOPED_TRACE(requests_[i].id);
      ExpectAsInCalm(requests_[i], *readers_[i]);
      if (specs_[i]) ExpectWithinGrammar(requests_[i], *specs_[i], *readers_[i]);
    }
  }

  // Cached pages of some prompt go to the host, and come back when others may have taken their room.
  void MovePages() {
    if (transfer_ == nullptr && Chance(0.2) && !requests_.empty()) {
      const Request& request = requests_[random_() % requests_.size()];
      moved_ = CachedTextOf(request.prompt, request.cache_salt,
                            ContextPolicyOf(request, storm_.engine().limits()));
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
    policy.n_discard = discards && Chance(0.7) ? Number(1, policy.n_ctx - policy.n_keep) : 0;
    return policy;
  }

  // A next turn, the same question again, or another one behind the same text; mostly under its policy.
  void BeginAsAnother(Request* request) {
    constexpr size_t kLongest = 40;
    std::vector<int32_t>* prompt = &request->prompt;
    const size_t back = 1 + random_() % std::min<size_t>(6, requests_.size());  // the pool knows the last few
    const std::vector<int32_t>& other = requests_[requests_.size() - back].prompt;
    if (Chance(0.7)) request->context_policy = requests_[requests_.size() - back].context_policy;
    std::vector<int32_t> joined(other.begin(),
                                other.end() - static_cast<int64_t>(random_() % other.size()) / 2);
    if (Chance(0.8)) joined.insert(joined.end(), prompt->begin(), prompt->end());
    joined.resize(std::min(joined.size(), kLongest));
    *prompt = std::move(joined);
  }

  void ExpectAsInCalm(Request request, const StreamReader& stormy) {
    request.deadline_ns = 0;
    request.stopping.time_limit_ns = 0;
    auto calm = calm_.Submit(request);
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
      ++ends_[FinishReasonName(got.end().reason)];
      const FinishReason reason = got.end().reason;
      if (reason == FinishReason::kCancelled || reason == FinishReason::kError ||
          reason == FinishReason::kTimeLimit) {
        // Cut off from outside: what came is the beginning of what would have come.
        ASSERT_LE(got.ids.size(), alone.ids.size());
        EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), alone.ids.begin()));
        continue;
      }
      EXPECT_EQ(got.ids, alone.ids);
      EXPECT_EQ(got.text, alone.text);
      EXPECT_EQ(reason, alone.end().reason);
      EXPECT_EQ(got.end().stop_string, alone.end().stop_string);
      EXPECT_EQ(got.end().stop_token_id, alone.end().stop_token_id);
      for (size_t i = 0; i < got.logprobs.size(); ++i)
        EXPECT_EQ(got.logprobs[i].logprob, alone.logprobs[i].logprob);
      if (!request.candidates.empty()) ExpectScoresOfEachAlone(request, stormy.started()[0].prompt_logprobs);
    }
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
      if (choice.end().reason != FinishReason::kStop) continue;
      ++whole_texts_;
      EXPECT_EQ(FaultOf(spec, choice.text), "") << spec.text << "\n" << choice.text;
    }
  }

  EngineUnderTest& storm_;
  EngineUnderTest& calm_;
  std::mt19937 random_;
  Language* const language_;
  std::vector<Request> requests_;
  std::vector<std::optional<ConstraintSpec>> specs_;  // of the language's grammars, by request
  int64_t whole_texts_ = 0;
  int64_t scored_ = 0;
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
TestTier DrawnTier(uint32_t seed, const EngineLimits& limits, const TempFolder& disk) {
  if (!limits.prefix_cache || seed % 3 == 0) return {};
  TestTier tier;
  tier.host_pages = seed / 3 % 2 == 0 ? 3 : 60;
  tier.disk_pages = seed / 6 % 2 == 0 ? 0 : 150;
  tier.folder = disk.path();
  return tier;
}

class StormOverTheFakeModel : public testing::TestWithParam<int32_t> {};  // steps in flight
INSTANTIATE_TEST_SUITE_P(StepsInFlight, StormOverTheFakeModel, testing::Values(1, 2));

TEST_P(StormOverTheFakeModel, EachRequestGivesWhatItGivesAlone) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  const std::vector<int32_t> windows =
      seed % 2 == 0 ? std::vector<int32_t>{16, 0} : std::vector<int32_t>{0, 8, 8, 13};
  EngineLimits limits = Stormy();
  limits.steps_in_flight = GetParam();
  limits.prefix_cache = seed % 8 != 0;
  const TempFolder disk;
  SteppedEngine stormy(limits, windows, &ThreeLetters(), DrawnTier(seed, limits, disk));
  SteppedEngine calm(Calm(), windows, &ThreeLetters());
  Storm storm(stormy, calm, seed);
  const auto has_seen_all = [&] {
    for (const char* end : {"length", "stop_sequence", "cancelled"}) {
      if (storm.ends().count(end) == 0) return false;
    }
    const EngineLoad load = stormy.engine().Load();
    return load.preemptions > 0 && storm.scored() > 0 && (load.prefix_hits > 0 || !limits.prefix_cache) &&
           storm.SawTier(DrawnTier(seed, limits, disk));
  };
  storm.RunUntil(has_seen_all, ScaledCount(1500, 100));
  if (!limits.prefix_cache) {
    EXPECT_EQ(stormy.engine().Load().prefix_hits, 0);
  }
}

// On the CPU as it is; and as an asynchronous device, two steps in flight.
struct Device {
  uint32_t number;
  const char* name;
  std::optional<DelayedBackend::Runs> delayed;
  bool recorded = false;
};
class StormOnTheCpu : public testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(
    Devices, StormOnTheCpu,
    testing::Values(Device{0, "AtOnce", std::nullopt},
                    Device{1, "Late", DelayedBackend::Runs::kWhenWaitedFor},
                    Device{2, "Threaded", DelayedBackend::Runs::kOnItsOwnThread},
                    Device{3, "LateAndRecorded", DelayedBackend::Runs::kWhenWaitedFor, true},
                    Device{4, "ThreadedAndRecorded", DelayedBackend::Runs::kOnItsOwnThread, true}),
    [](const auto& info) { return info.param.name; });

TEST_P(StormOnTheCpu, EachRequestGivesTheSameBitsAlone) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  // Another kind of vocabulary, too: there are more devices than kinds.
  Language language(static_cast<TokenizerKind>((seed + GetParam().number) % kTokenizerKinds));
  SCOPED_TRACE(language.tokenizer().family());
  TinyModel sizes;
  sizes.vocab = language.tokenizer().vocab_size();
  sizes.layers = 4;
  sizes.experts = 4;
  sizes.context = 64;
  const WeightForm& form = WeightForms()[(seed / 13 + GetParam().number) % WeightForms().size()];
  FitWidths(form, &sizes);
  if (sizes.hidden > 64) sizes.layers = 2;
  // Another kind of model on each device, whatever the seed, and every kind on each over the seeds.
  const DrawnModel drawn = DrawModel(seed + GetParam().number, seed, sizes);
  SCOPED_TRACE(drawn.name);
  SCOPED_TRACE(form.name);
  const TempFolder folder;
  const std::string path = WriteInForm(drawn, form, seed, folder);
  constexpr DType kKvDTypes[] = {DType::kBf16, DType::kF32, DType::kFp8E4M3, DType::kInt8, DType::kInt4};
  CpuEngine::Options options;
  options.kv_dtype = kKvDTypes[(seed / 7 + GetParam().number) % std::size(kKvDTypes)];
  SCOPED_TRACE(DTypeName(options.kv_dtype));
  options.linear = (seed / 2 + GetParam().number) % 2 == 0 ? LinearMode::kExact : LinearMode::kInt8;
  SCOPED_TRACE(options.linear == LinearMode::kExact ? "exact" : "products in 8 bits");
  if (seed / 3 % 2 == 1)
    options.kv_order = KvOrder::kNhd;  // of the stormy engine alone: outputs are the same
  const KvLayout layout =
      OpenModel(path, {.dtype = options.kv_dtype, .page_size = drawn.page_size})->kv_layout;
  options.tokenizer = &language.tokenizer();
  options.threads = 2;
  options.limits = Narrow(Stormy(), layout);
  options.delayed = GetParam().delayed;
  options.recorded = GetParam().recorded;
  options.limits.steps_in_flight = options.delayed ? 2 : 1;
  options.limits.prefix_cache = (seed + GetParam().number) % 4 != 0;
  const TempFolder disk;
  const TestTier tier = DrawnTier(seed / 5 + GetParam().number, options.limits, disk);
  options.tier = tier;
  CpuEngine stormy(path, options);
  options.tier = {};
  options.threads = 1;
  options.limits = Calm();
  options.limits.page_size = drawn.page_size;
  options.limits.pool_pages *= 4;
  options.delayed = std::nullopt;
  options.kv_order = KvOrder::kHnd;
  CpuEngine calm(path, options);
  Storm storm(stormy, calm, seed, &language);
  const auto has_seen_all = [&] {
    const bool moves_pages = stormy.engine().keeps_pages();
    return stormy.engine().Load().preemptions > 0 && storm.scored() > 0 &&
           (storm.whole_texts() > 0 || !language.has_grammars()) &&
           (storm.moved_tokens() > 0 || !moves_pages) && storm.SawTier(tier);
  };
  storm.RunUntil(has_seen_all, ScaledCount(300, 40));
}

}  // namespace
}  // namespace tramontane
