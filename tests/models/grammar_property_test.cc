// Whatever the schema or the expression, whatever the model: every output that ends is valid. Random
// constraints, tokens of real vocabularies drawn at temperature 1.5 from Breeze and from random weights, and
// judges that share no code with the grammars.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "models/grammar/constraint_compiler.h"
#include "models/tokenizer/load.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/random_constraints.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

const std::string kBreeze = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights";

ConstraintSpec RandomSpec(std::mt19937& random) {
  ConstraintSpec spec;
  const bool schema = random() % 2 == 0;
  spec.kind = schema ? ConstraintSpec::Kind::kJsonSchema : ConstraintSpec::Kind::kRegex;
  spec.text = schema ? RandomSchema(random) : RandomRegex(random);
  return spec;
}

std::string FaultOf(const ConstraintSpec& spec, const std::string& text) {
  return spec.kind == ConstraintSpec::Kind::kRegex ? RegexFault(spec.text, text)
                                                   : SchemaFault(spec.text, text);
}

class GrammarProperty : public ::testing::Test {
 protected:
  void SetUp() override {
    seed_ = TestSeed();
    random_.seed(seed_);
    RecordProperty("seed", static_cast<int>(seed_));
    tokenizer_ = LoadTokenizer(kBreeze).value();
    ConstraintLimits limits;
    limits.max_compile_ns = std::numeric_limits<int64_t>::max();  // seconds on a machine that is busy
    compiler_ =
        ConstraintCompiler::Create(*tokenizer_, tokenizer_->vocab_size(), {tokenizer_->eos_id()}, limits);
    if (compiler_ == nullptr) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  }

  // (A few ranges of integers are as much as a grammar may have.)
  StatusOr<std::shared_ptr<const Grammar>> CompileOneThatFits(ConstraintSpec* spec) {
    while (true) {
      *spec = RandomSpec(random_);
      auto grammar = compiler_->Compile(*spec);
      if (grammar.ok() || grammar.status().message().find("symbols of grammar") == std::string::npos) {
        return grammar;
      }
    }
  }

  // Submits `count` random constraints and judges what ends.
  void RunOn(const std::string& folder, int64_t count) {
    CpuEngine::Options options;
    options.limits = SmallLimits(/*pool_pages=*/4000);
    options.limits.context = 400;
    options.limits.max_sequences = 32;
    options.limits.max_step_tokens = 64;
    options.limits.max_queued_requests = static_cast<int32_t>(count);
    options.threads = 2;
    options.tokenizer = tokenizer_.get();
    CpuEngine test(folder, options);
    std::vector<ConstraintSpec> specs;
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> all;
    for (int64_t i = 0; i < count; ++i) {
      ConstraintSpec spec;
      auto grammar = CompileOneThatFits(&spec);
      ASSERT_TRUE(grammar.ok()) << "seed " << seed_ << ": " << spec.text << "\n" << grammar.status();
      Request request;
      request.id = "r" + std::to_string(i);
      request.prompt = {tokenizer_->bos_id()};
      request.sampling.temperature = 1.5f;
      request.sampling.seed = random_();
      request.stopping.max_tokens = 120;
      request.constraint.grammar = *std::move(grammar);
      specs.push_back(spec);
      readers.push_back(test.Submit(request));
      all.push_back(readers.back().get());
    }
    test.RunToEnd(all);
    int64_t ended = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      const ChoiceReading& choice = readers[i]->choice();
      ASSERT_TRUE(readers[i]->status().ok()) << specs[i].text << "\n" << readers[i]->status();
      if (choice.end().reason == FinishReason::kLength) {
        EXPECT_EQ(choice.ids.size(), 120u);
        continue;
      }
      ASSERT_EQ(choice.end().reason, FinishReason::kStop);
      ++ended;
      EXPECT_EQ(FaultOf(specs[i], choice.text), "") << "seed " << seed_ << "\n"
                                                    << specs[i].text << "\n"
                                                    << choice.text;
    }
    EXPECT_GT(ended, count / 4) << "too few outputs ended for this to say much";
  }

  uint32_t seed_ = 0;
  std::mt19937 random_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<ConstraintCompiler> compiler_;
};

TEST_F(GrammarProperty, WhatBreezeEndsIsValid) { RunOn(kBreeze, ScaledCount(300, 40)); }

TEST_F(GrammarProperty, WhatRandomWeightsEndIsValid) {
  const TempFolder folder;
  TinyModel model;
  model.vocab = tokenizer_->vocab_size();
  model.Randomise(seed_);
  model.WriteMistral(folder);
  RunOn(folder.path(), ScaledCount(300, 40));
}

// Without a model: any allowed token is as likely as any other, but for ends, which come more often. Many
// more constraints, and each mask is held against what the matcher then accepts.
TEST_F(GrammarProperty, AnyWalkThroughAGrammarEndsInAValidText) {
  const int64_t count = ScaledCount(2500, 200);
  int64_t ended = 0;
  std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
  for (int64_t i = 0; i < count; ++i) {
    ConstraintSpec spec;
    auto grammar = CompileOneThatFits(&spec);
    ASSERT_TRUE(grammar.ok()) << "seed " << seed_ << ": " << spec.text << "\n" << grammar.status();
    const auto matcher = (*grammar)->NewMatcher(TextStart::kOfMessage);
    std::vector<int32_t> ids;
    while (ids.size() < 200) {
      matcher->FillMask(mask);
      std::vector<int32_t> allowed;
      for (int32_t t = 0; t < tokenizer_->vocab_size(); ++t) {
        if (MaskAllows(mask, t)) allowed.push_back(t);
      }
      ASSERT_FALSE(allowed.empty()) << "seed " << seed_ << ": " << spec.text << " is stuck";
      const int32_t refused =
          static_cast<int32_t>(random_() % static_cast<uint32_t>(tokenizer_->vocab_size()));
      if (!MaskAllows(mask, refused)) {
        ASSERT_FALSE(matcher->Accept(refused)) << spec.text;
      }
      int32_t token = allowed[random_() % allowed.size()];
      if (MaskAllows(mask, tokenizer_->eos_id()) && random_() % 4 == 0) token = tokenizer_->eos_id();
      if (token == tokenizer_->eos_id()) break;
      ASSERT_TRUE(matcher->Accept(token)) << "seed " << seed_ << ": " << spec.text;
      ids.push_back(token);
    }
    if (ids.size() == 200) continue;
    ++ended;
    const std::string text = tokenizer_->Decode(ids).value();
    ASSERT_EQ(FaultOf(spec, text), "") << "seed " << seed_ << "\n" << spec.text << "\n" << text;
  }
  EXPECT_GT(ended, count / 3);
}

}  // namespace
}  // namespace tramontane
