// A fixture that asks text by text what a grammar takes, over the vocabulary of the 256 bytes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/grammar/constraint_compiler.h"
#include "tests/support/byte_tokenizer.h"

namespace tramontane {

using Kind = ConstraintSpec::Kind;
using Texts = std::vector<std::string>;

// A fixture, so that a build without the library says what it did not test.
class GrammarCase : public ::testing::Test {
 protected:
  void SetUp() override {
    compiler_ = ConstraintCompiler::Create(tokenizer_, ByteTokenizer::kVocab, {ByteTokenizer::kEos}, limits_);
    if (compiler_ == nullptr) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  }

  std::shared_ptr<const Grammar> Compile(Kind kind, const std::string& text) {
    auto grammar = compiler_->Compile({kind, text, {}});
    EXPECT_TRUE(grammar.ok()) << text << "\n" << grammar.status();
    return grammar.ok() ? *grammar : nullptr;
  }
  std::string Refusal(Kind kind, const std::string& text) {
    const auto grammar = compiler_->Compile({kind, text, {}});
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << text;
    return grammar.status().message();
  }

  // Every byte is allowed in its turn, by mask and by Accept, and then the end is.
  static bool Takes(const Grammar& grammar, const std::string& text) {
    const auto matcher = grammar.NewMatcher(TextStart::kWithinMessage);
    std::vector<uint32_t> mask(MaskWords(ByteTokenizer::kVocab));
    for (const char c : text) {
      const int32_t token = static_cast<unsigned char>(c);
      matcher->FillMask(mask);
      const bool allowed = MaskAllows(mask, token);
      EXPECT_EQ(matcher->Accept(token), allowed) << text;
      if (!allowed) return false;
    }
    matcher->FillMask(mask);
    return MaskAllows(mask, ByteTokenizer::kEos);
  }

  void Expect(Kind kind, const std::string& asked, const Texts& taken, const Texts& refused) {
    const auto grammar = Compile(kind, asked);
    ASSERT_NE(grammar, nullptr);
    for (const std::string& text : taken) EXPECT_TRUE(Takes(*grammar, text)) << asked << " and " << text;
    for (const std::string& text : refused) EXPECT_FALSE(Takes(*grammar, text)) << asked << " and " << text;
  }

  const ByteTokenizer tokenizer_;
  ConstraintLimits limits_;
  std::unique_ptr<ConstraintCompiler> compiler_;
};

}  // namespace tramontane
