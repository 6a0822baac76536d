// On the CPU a request's bytes depend on the request and the model only: not on its neighbours, on how its
// prompt is cut, on preemption, on the number of threads. Logprobs are compared bit by bit, so this is about
// logits, not only about which token won.

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/cpu_variants.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/fake_grammar.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_seed.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

struct Bytes {
  std::vector<int32_t> ids;
  std::vector<uint32_t> logprob_bits;
  bool operator==(const Bytes&) const = default;
};

Bytes BytesOf(const StreamReader& reader, int32_t choice = 0) {
  Bytes bytes{reader.choice(choice).ids, {}};
  const auto add = [&bytes](float logprob) {
    bytes.logprob_bits.push_back(std::bit_cast<uint32_t>(logprob));
  };
  for (const TokenInfo& info : reader.started().at(0).prompt_logprobs) add(info.logprob);
  for (const TokenInfo& info : reader.choice(choice).logprobs) {
    add(info.logprob);
    for (const TokenLogprob& top : info.top) add(top.logprob);
  }
  return bytes;
}

// A third of the vocabulary may come next, another third after each token.
std::shared_ptr<const Grammar> EveryThird(int32_t vocab_size) {
  return std::make_shared<FakeGrammar>([vocab_size](const std::vector<int32_t>& output) {
    std::vector<int32_t> allowed;
    for (int32_t t = (output.empty() ? 0 : output.back() * 7) % 3; t < vocab_size; t += 3)
      allowed.push_back(t);
    return allowed;
  });
}

const PieceTokenizer& Pieces() {
  static const PieceTokenizer tokenizer(
      std::vector<std::string>(static_cast<size_t>(TinyModel().vocab), "a"));
  return tokenizer;
}

std::vector<Request> SomeRequests() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 7; ++i) {
    Request request = MakeRequest("r" + std::to_string(i), 2 + 6 * i, 24, static_cast<uint32_t>(i));
    request.sampling.temperature = i == 0 ? 0.0f : 0.9f;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.top_p = 0.95f;
    request.sampling.repetition_penalty = i % 2 == 0 ? 1.0f : 1.2f;
    request.output.logprobs = 3;
    request.output.prompt_logprobs = 0;
    if (i % 3 == 1) request.constraint.grammar = EveryThird(TinyModel().vocab);
    requests.push_back(request);
  }
  return requests;
}

class Determinism : public CpuVariantTest {
 protected:
  explicit Determinism(int32_t experts = 0) {
    TinyModel model;
    model.experts = experts;
    model.layers = 3;
    model.context = 2048;
    model.window = {12, 0, 12};  // shorter than most prompts
    model.Randomise(5);
    for (auto& [name, tensor] : model.tensors) tensor.dtype = DType::kBf16;
    model.WriteMistral(folder_);
    path_ = folder_.path();
  }

  CpuEngine::Options Roomy() const {
    CpuEngine::Options options;
    options.limits = SmallLimits(/*pool_pages=*/400);
    options.limits.max_step_tokens = 64;
    options.variant = GetParam();
    options.linear = linear_;
    options.kv_dtype = kv_dtype_;
    options.tokenizer = &Pieces();
    return options;
  }

  std::vector<Bytes> RunTogether(const CpuEngine::Options& options, int64_t* preemptions = nullptr) const {
    CpuEngine test(path_, options);
    return RunTogether(test, preemptions);
  }

  static std::vector<Bytes> RunTogether(CpuEngine& test, int64_t* preemptions = nullptr) {
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> all;
    for (const Request& request : SomeRequests()) {
      readers.push_back(test.Submit(request));
      all.push_back(readers.back().get());
    }
    test.RunToEnd(all);
    std::vector<Bytes> bytes;
    for (const StreamReader* reader : all) bytes.push_back(BytesOf(*reader));
    if (preemptions != nullptr) *preemptions = test.engine().Load().preemptions;
    EXPECT_EQ(test.engine().Load().held_pages, 0);
    return bytes;
  }

  std::vector<Bytes> RunAlone() const {
    std::vector<Bytes> bytes;
    CpuEngine test(path_, Roomy());
    for (const Request& request : SomeRequests()) {
      auto reader = test.Submit(request);
      test.RunToEnd({reader.get()});
      bytes.push_back(BytesOf(*reader));
    }
    return bytes;
  }

  // Short chunks, preemption and another thread at once.
  void ExpectSameInATightPool(CpuEngine::Options options, const std::vector<Bytes>& alone) const {
    options.limits.max_step_tokens = 5;
    options.limits.pool_pages = 40;
    options.threads = 2;
    int64_t preemptions = 0;
    EXPECT_EQ(RunTogether(options, &preemptions), alone);
    EXPECT_GT(preemptions, 0) << "the pool was meant to be too small";
  }

  const TempFolder folder_;
  std::string path_;  // of the model: the folder, or a file elsewhere
  LinearMode linear_ = LinearMode::kExact;
  DType kv_dtype_ = DType::kBf16;
};

TEST_P(Determinism, ACrowdChangesNoBit) { EXPECT_EQ(RunTogether(Roomy()), RunAlone()); }

TEST_P(Determinism, HowPromptsAreCutChangesNoBit) {
  const std::vector<Bytes> alone = RunAlone();
  for (const int32_t step_tokens : {1, 5, 13}) {
    CpuEngine::Options options = Roomy();
    options.limits.max_step_tokens = step_tokens;
    EXPECT_EQ(RunTogether(options), alone) << "steps of " << step_tokens;
  }
}

// Beside decode the steps' measured times decide how prompts are cut; here they are drawn.
TEST_P(Determinism, CutsByMeasuredTimesChangeNoBit) {
  std::mt19937 random(TestSeed());
  FakeClock* clock = nullptr;
  CpuEngine::Options options = Roomy();
  options.limits.decode_gap_ns = 5'000'000;
  options.limits.least_step_tokens = 2;
  options.on_forward = [&](const StepPlan& plan) {
    const int64_t tokens = plan.lane == Lane::kPrefill ? plan.tokens : 1;
    clock->Advance(tokens * std::uniform_int_distribution<int64_t>(100'000, 1'000'000)(random));
  };
  CpuEngine test(path_, options);
  clock = &test.clock();
  const std::vector<Bytes> cut = RunTogether(test);
  EXPECT_GT(test.engine().Load().prefill_steps, 6) << "uncut it would be three";
  EXPECT_EQ(cut, RunAlone());
}

TEST_P(Determinism, PreemptionChangesNoBit) {
  CpuEngine::Options options = Roomy();
  options.limits.pool_pages = 40;
  int64_t preemptions = 0;
  const std::vector<Bytes> squeezed = RunTogether(options, &preemptions);
  EXPECT_GT(preemptions, 0) << "the pool was meant to be too small";
  EXPECT_EQ(squeezed, RunAlone());
}

// Of four slots two go to a second caller, again and again: who is set aside goes on in another slot, with
// its penalties, its grammar, or as one of several choices.
TEST_P(Determinism, SlotsThatAreGivenToAnotherCallerChangeNoBit) {
  const std::vector<Bytes> alone = RunAlone();
  Request several = SomeRequests()[2];
  several.choices = 3;
  CpuEngine other(path_, Roomy());
  auto several_alone = other.Submit(several);
  other.RunToEnd({several_alone.get()});

  CpuEngine::Options options = Roomy();
  options.limits.max_sequences = 4;
  CpuEngine test(path_, options);
  std::vector<std::unique_ptr<StreamReader>> readers;
  const auto submit = [&](Request request, const char* caller) {
    request.share.caller = caller;
    readers.push_back(test.Submit(std::move(request)));
  };
  for (const Request& request : SomeRequests()) submit(request, "many");
  submit(several, "many");
  const size_t compared = readers.size();
  for (uint32_t i = 0; !readers[compared - 1]->done(); ++i) {
    const bool has_room = readers.size() < compared + 60;  // the output thread may be long behind the steps
    if (i % 5 == 3 && has_room) submit(MakeRequest("other" + std::to_string(i), 4, 3, i), "few");
    test.Step();
    for (const auto& reader : readers) reader->Poll();
  }
  std::vector<StreamReader*> all;
  for (const auto& reader : readers) all.push_back(reader.get());
  test.RunToEnd(all);
  EXPECT_GT(test.engine().Load().preemptions, 10) << "few were set aside";
  int32_t of_several = 0;
  for (int32_t c = 0; c < 3; ++c) {
    EXPECT_EQ(BytesOf(*readers[compared - 1], c), BytesOf(*several_alone, c));
    of_several += readers[compared - 1]->choice(c).end().usage.preemptions;
  }
  EXPECT_GT(of_several, 0);
  for (size_t i = 0; i + 1 < compared; ++i) EXPECT_EQ(BytesOf(*readers[i]), alone[i]) << i;
}

TEST_P(Determinism, ThreadsAndSlicesOfLogitsChangeNoBit) {
  CpuEngine::Options options = Roomy();
  options.threads = 2;
  options.limits.max_logit_rows = 1;
  EXPECT_EQ(RunTogether(options), RunAlone());
}

TEST_P(Determinism, AChoiceOfSeveralIsTheSameFromASharedPrompt) {
  // Choice c draws with its own key; the first of three is the only one of one.
  CpuEngine test(path_, Roomy());
  Request request = SomeRequests()[3];
  request.choices = 3;
  auto three = test.Submit(request);
  test.RunToEnd({three.get()});
  EXPECT_EQ(BytesOf(*three, 0), RunAlone()[3]);
  EXPECT_NE(BytesOf(*three, 1).ids, BytesOf(*three, 0).ids);
  auto again = test.Submit(request);
  auto neighbour = test.Submit(SomeRequests()[5]);
  test.RunToEnd({again.get(), neighbour.get()});
  for (int32_t c = 0; c < 3; ++c) EXPECT_EQ(BytesOf(*again, c), BytesOf(*three, c));
}

// Rows whose tables begin with the same pages walk those together in the layer without a window.
TEST_P(Determinism, RequestsOverOneLongPromptHaveTheBitsTheyHaveAlone) {
  constexpr int32_t kShared = 1100;  // two segments of attention
  CpuEngine::Options options = Roomy();
  options.limits.pool_pages = 1000;
  options.limits.context = 1200;
  options.limits.max_step_tokens = 256;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 12; ++i) {
    Request request = MakeRequest("r" + std::to_string(i), kShared, 8);
    for (int32_t own = 0; own <= i; ++own) request.prompt.push_back(3 + (i * 7 + own) % 80);
    request.output.logprobs = 3;
    requests.push_back(request);
  }
  CpuEngine::Options plain = options;
  plain.limits.prefix_cache = false;
  CpuEngine alone(path_, plain), together(path_, options);
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  auto first = together.Submit(requests[0]);
  together.RunToEnd({first.get()});
  for (const Request& request : requests) {
    readers.push_back(together.Submit(request));
    all.push_back(readers.back().get());
  }
  together.RunToEnd(all);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto expected = alone.Submit(requests[i]);
    alone.RunToEnd({expected.get()});
    EXPECT_EQ(BytesOf(*readers[i]), BytesOf(*expected)) << "request " << i;
    EXPECT_GE(readers[i]->choice().end().usage.cached_tokens, kShared);
  }
}

// A token's bytes follow from its own key and value, and attention reads the pages, its own chunk's too.
TEST_P(Determinism, PagesOfAnyTypeAndOrderChangeNoBitByCrowdsCutsPreemptionOrThreads) {
  std::vector<std::vector<Bytes>> of_dtypes;
  for (const DType dtype : {DType::kBf16, DType::kFp8E4M3, DType::kInt8, DType::kInt4}) {
    SCOPED_TRACE(DTypeName(dtype));
    kv_dtype_ = dtype;
    const std::vector<Bytes> alone = RunAlone();
    EXPECT_EQ(RunTogether(Roomy()), alone);
    CpuEngine::Options options = Roomy();
    options.kv_order = KvOrder::kNhd;
    EXPECT_EQ(RunTogether(options), alone) << "pages laid out in another order";
    ExpectSameInATightPool(options, alone);
    for (const std::vector<Bytes>& other : of_dtypes) EXPECT_NE(other, alone) << "another type, other logits";
    of_dtypes.push_back(alone);
  }
}

TM_INSTANTIATE_FOR_CPU_VARIANTS(Determinism);

// What a token's experts are given to do depends on all tokens of a step; what they give it must not.
class DeterminismOfExperts : public Determinism {
 protected:
  DeterminismOfExperts() : Determinism(/*experts=*/5) {}
};

TEST_P(DeterminismOfExperts, NeitherACrowdNorCutsNorPreemptionNorThreadsChangeABit) {
  const std::vector<Bytes> alone = RunAlone();
  EXPECT_EQ(RunTogether(Roomy()), alone);
  ExpectSameInATightPool(Roomy(), alone);
}

TM_INSTANTIATE_FOR_CPU_VARIANTS(DeterminismOfExperts);

// What --linear int8 rounds is a row's own, whoever stands beside it and however many they are.
class DeterminismInEightBits : public Determinism {
 protected:
  void Use(const WeightForm& form) {
    DrawnModel drawn;  // in Mistral's own files
    drawn.model.layers = 3;
    drawn.model.experts = 3;
    drawn.model.window = {12, 0, 12};
    FitWidths(form, &drawn.model);
    drawn.model.Randomise(5);
    written_ = std::make_unique<TempFolder>();
    path_ = WriteInForm(drawn, form, /*seed=*/5, *written_);
  }

 private:
  std::unique_ptr<TempFolder> written_;
};

TEST_P(DeterminismInEightBits, NeitherACrowdNorCutsNorPreemptionNorThreadsChangeABit) {
  int forms = 0;
  for (const WeightForm& form : WeightForms()) {
    if (form.blocks.empty() && form.bits == 0) continue;  // without products in 8 bits
    ++forms;
    SCOPED_TRACE(form.name);
    Use(form);
    linear_ = LinearMode::kInt8;
    const std::vector<Bytes> alone = RunAlone();
    EXPECT_EQ(RunTogether(Roomy()), alone);
    ExpectSameInATightPool(Roomy(), alone);
    linear_ = LinearMode::kExact;
    EXPECT_NE(RunTogether(Roomy()), alone) << "nothing was rounded to 8 bits";
  }
  EXPECT_EQ(forms, 6);
}

TM_INSTANTIATE_FOR_CPU_VARIANTS(DeterminismInEightBits);

}  // namespace
}  // namespace tramontane
