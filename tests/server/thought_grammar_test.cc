// Thoughts in front of what a grammar holds: free in between, and what ends them.
#include "server/answers/thought_grammar.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat/answer_syntax.h"
#include "server/answers/thought_budget.h"
#include "tests/models/tekken_test_file.h"
#include "tests/support/fake_grammar.h"

namespace tramontane {
namespace {

constexpr int32_t kNoToken = -1;

// A token a byte, control tokens of Mistral's formats, and some pieces of more bytes.
class ThoughtGrammarTest : public ::testing::Test {
 protected:
  explicit ThoughtGrammarTest(const std::vector<std::string>& merges = {})
      : tokenizer_(SmallTekken(TekkenJson(merges, "v13"))),
        syntax_(MistralAnswerSyntax(*tokenizer_, TokenizerVersion::kV13)) {}

  int32_t Id(std::string_view piece) const {
    if (const auto control = tokenizer_->ControlId(piece)) return *control;
    for (int32_t id = kTestSpecialTokens; id < tokenizer_->vocab_size(); ++id) {
      if (tokenizer_->PieceBytes(id) == piece) return id;
    }
    return kNoToken;
  }
  // The text "{}", then the end.
  std::shared_ptr<FakeGrammar> Braces() {
    return std::make_shared<FakeGrammar>([this](const std::vector<int32_t>& output) {
      return std::vector<int32_t>{output.empty()       ? Id("{")
                                  : output.size() == 1 ? Id("}")
                                                       : tokenizer_->eos_id()};
    });
  }
  void Begin(const ThoughtMarks& marks, TextStart start = TextStart::kOfMessage) {
    vocabulary_ = std::make_shared<const ThoughtVocabulary>(marks, *tokenizer_, tokenizer_->vocab_size());
    ASSERT_TRUE(vocabulary_->MayThink(marks.open));
    braces_ = Braces();
    grammar_ = std::make_unique<ThoughtGrammar>(vocabulary_, braces_, marks.open);
    matcher_ = grammar_->NewMatcher(start);
  }
  void BeginBudget(const ThoughtMarks& marks, int64_t tokens, bool held = false) {
    Begin(marks);
    std::shared_ptr<const Grammar> answer = std::move(grammar_);
    budget_ = std::make_unique<ThoughtBudget>(vocabulary_, marks, tokens, held ? answer : nullptr);
    matcher_ = budget_->NewMatcher(TextStart::kOfMessage);
  }
  bool Allows(std::string_view piece) { return AllowsId(Id(piece)); }
  bool AllowsId(int32_t id) {
    std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
    GrammarWork work;
    matcher_->FillMask(mask, work);
    return MaskAllows(mask, id);
  }
  // Byte by byte, or the one control token; false: not all of it was taken.
  bool Take(std::string_view text) {
    if (tokenizer_->ControlId(text)) return Accept(Id(text));
    for (const char c : text) {
      if (!Accept(Id(std::string_view(&c, 1)))) return false;
    }
    return true;
  }
  bool Accept(int32_t id) {
    const bool allowed = AllowsId(id);
    EXPECT_EQ(matcher_->Accept(id), allowed) << id;
    return allowed;
  }

  std::unique_ptr<const TekkenTokenizer> tokenizer_;
  const AnswerSyntax syntax_;
  std::shared_ptr<const ThoughtVocabulary> vocabulary_;
  std::shared_ptr<FakeGrammar> braces_;
  std::unique_ptr<ThoughtGrammar> grammar_;
  std::unique_ptr<ThoughtBudget> budget_;
  std::unique_ptr<GrammarMatcher> matcher_;
};

TEST_F(ThoughtGrammarTest, AThoughtIsFreeAndTheAnswerBehindItIsHeld) {
  Begin(syntax_.thoughts());
  EXPECT_TRUE(Allows("[THINK]"));
  EXPECT_TRUE(Allows("{"));
  EXPECT_FALSE(Allows("a"));
  EXPECT_TRUE(Take("[THINK]"));
  EXPECT_TRUE(Take("so {] a"));
  EXPECT_TRUE(Take("[THINK]")) << "the same thought";
  for (const char* control : {"</s>", "[TOOL_CALLS]", "[INST]"}) EXPECT_FALSE(Take(control)) << control;
  EXPECT_TRUE(Take("[/THINK]"));
  EXPECT_FALSE(Take("[THINK]"));
  EXPECT_FALSE(Take("a"));
  EXPECT_TRUE(Take("{}"));
  EXPECT_TRUE(AllowsId(tokenizer_->eos_id()));
}

TEST_F(ThoughtGrammarTest, AnAnswerMayComeWithoutAThought) {
  Begin(syntax_.thoughts());
  EXPECT_TRUE(Take("{"));
  EXPECT_FALSE(Take("[THINK]"));
  EXPECT_TRUE(Take("}"));
}

TEST_F(ThoughtGrammarTest, AThoughtOfThePromptGoesOn) {
  ThoughtMarks marks = syntax_.thoughts();
  marks.open = true;
  Begin(marks);
  EXPECT_FALSE(AllowsId(tokenizer_->eos_id()));
  EXPECT_TRUE(Take("hm"));
  EXPECT_TRUE(Take("[/THINK]"));
  EXPECT_TRUE(Take("{}"));
}

TEST_F(ThoughtGrammarTest, WithinAThoughtNoMaskIsComputed) {
  Begin(syntax_.thoughts());
  Take("[THINK]");
  std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
  GrammarWork nothing{.most_ns = 0};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(matcher_->Accept(Id("a"), nothing));
    matcher_->FillMask(mask, nothing);
  }
  EXPECT_EQ(braces_->starts().size(), 1u) << "of the answer without a thought";
}

TEST_F(ThoughtGrammarTest, BehindAThoughtTheTextIsWithinTheMessage) {
  Begin(syntax_.thoughts());
  Take("[THINK]");
  Take("[/THINK]");
  EXPECT_EQ(braces_->starts().back(), TextStart::kOfMessage) << "nothing was said";
  Begin(syntax_.thoughts());
  Take("[THINK]");
  Take("a");
  Take("[/THINK]");
  EXPECT_EQ(braces_->starts().back(), TextStart::kWithinMessage);
}

// ---- budgets --------------------------------------------------------------------------------------------

TEST_F(ThoughtGrammarTest, BehindABudgetOfThoughtsOnlyTheirEndComes) {
  BeginBudget(syntax_.thoughts(), 3);
  EXPECT_TRUE(matcher_->IsFree());
  EXPECT_TRUE(Take("[THINK]"));
  EXPECT_TRUE(Take("abc"));
  EXPECT_FALSE(matcher_->IsFree());
  EXPECT_FALSE(Allows("d"));
  EXPECT_FALSE(AllowsId(tokenizer_->eos_id()));
  EXPECT_TRUE(Take("[/THINK]"));
  EXPECT_TRUE(matcher_->IsFree());
  EXPECT_TRUE(Take("def[")) << "an answer is not counted";
  EXPECT_TRUE(Take("[THINK]"));
  EXPECT_FALSE(matcher_->IsFree()) << "all thoughts of the answer have one budget";
  EXPECT_TRUE(Allows("[/THINK]"));
}

TEST_F(ThoughtGrammarTest, WhatStaysFreeIsCountedWithoutAMask) {
  BeginBudget(syntax_.thoughts(), 3);
  for (const char* text : {"x", "[THINK]", "a", "b"}) EXPECT_TRUE(matcher_->StayFree(Id(text))) << text;
  EXPECT_FALSE(matcher_->StayFree(Id("c"))) << "the end is forced behind it";
  EXPECT_TRUE(matcher_->Accept(Id("c")));
  EXPECT_TRUE(Take("[/THINK]"));
}

TEST_F(ThoughtGrammarTest, ABudgetOfNothingEndsAThoughtOfThePromptAtOnce) {
  ThoughtMarks marks = syntax_.thoughts();
  marks.open = true;
  BeginBudget(marks, 0);
  EXPECT_FALSE(matcher_->IsFree());
  EXPECT_FALSE(Take("a"));
  EXPECT_TRUE(Take("[/THINK]"));
  EXPECT_TRUE(Take("a"));
}

TEST_F(ThoughtGrammarTest, ACharacterThatHasBegunIsCompletedFirst) {
  BeginBudget(syntax_.thoughts(), 2);
  EXPECT_TRUE(Take("[THINK]"));
  EXPECT_TRUE(Take("a\xE2"));
  EXPECT_FALSE(Allows("[/THINK]"));
  EXPECT_FALSE(Allows("b"));
  EXPECT_TRUE(Take("\x82\xAC"));
  EXPECT_FALSE(Allows("\xAC"));
  EXPECT_TRUE(Take("[/THINK]"));
}

TEST_F(ThoughtGrammarTest, ABudgetHoldsWhatIsHeldAnyway) {
  BeginBudget(syntax_.thoughts(), 1, /*held=*/true);
  EXPECT_FALSE(Allows("a"));
  EXPECT_TRUE(Take("[THINK]"));
  EXPECT_TRUE(Take("a"));
  EXPECT_FALSE(Allows("b"));
  EXPECT_TRUE(Take("[/THINK]"));
  EXPECT_TRUE(Take("{}"));
  EXPECT_TRUE(AllowsId(tokenizer_->eos_id()));
}

// ---- marks that are text --------------------------------------------------------------------------------

class ThoughtTextGrammarTest : public ThoughtGrammarTest {
 protected:
  ThoughtTextGrammarTest() : ThoughtGrammarTest({"<think>", "k>{", "\n\n", ">\n", "</think>x"}) {}
};

TEST_F(ThoughtTextGrammarTest, OnePieceBeginsAThoughtAndItsTextEndsIt) {
  Begin({.in_text = true});
  EXPECT_TRUE(Allows("<think>"));
  EXPECT_FALSE(Allows("<")) << "what only spells it is no thought";
  EXPECT_TRUE(Accept(Id("<think>")));
  EXPECT_FALSE(AllowsId(tokenizer_->eos_id()));
  EXPECT_FALSE(Allows("</think>x")) << "it goes on with what is no answer";
  EXPECT_TRUE(Allows("k>{"));
  EXPECT_TRUE(Take("a < b </thin"));
  EXPECT_FALSE(Allows("k>{")) << "here it does, too";
  EXPECT_TRUE(Take("k"));
  EXPECT_TRUE(Accept(Id(">\n")));
  EXPECT_TRUE(Allows("\n\n"));
  EXPECT_FALSE(Allows("a"));
  EXPECT_TRUE(Accept(Id("\n\n")));
  EXPECT_TRUE(Take("{}"));
  EXPECT_TRUE(AllowsId(tokenizer_->eos_id()));
}

TEST_F(ThoughtTextGrammarTest, BlankLinesBehindAThoughtEnd) {
  Begin({.in_text = true, .open = true});
  EXPECT_TRUE(Take("hm</think>"));
  int lines = 0;
  while (lines < 20 && Allows("\n") && Take("\n")) ++lines;
  EXPECT_EQ(lines, 4);
  EXPECT_TRUE(Take("{}"));
}

TEST_F(ThoughtTextGrammarTest, TheMarkOfAnEndIsSpelledBehindABudget) {
  BeginBudget({.in_text = true}, 2);
  EXPECT_TRUE(Take("<th"));
  EXPECT_TRUE(Take("ink>"));
  EXPECT_TRUE(Take("ab"));
  EXPECT_FALSE(Allows("c"));
  EXPECT_TRUE(Take("</think>"));
  EXPECT_TRUE(matcher_->IsFree());
  EXPECT_TRUE(Take("<think>abcd")) << "no thought any more";
}

TEST_F(ThoughtTextGrammarTest, AMarkThatHasBegunIsCompletedAndNotBegunAgain) {
  BeginBudget({.in_text = true, .open = true}, 2);
  EXPECT_TRUE(Take("a<"));
  EXPECT_FALSE(Allows("<"));
  EXPECT_TRUE(Take("/think>"));
  EXPECT_TRUE(matcher_->IsFree());
}

TEST_F(ThoughtGrammarTest, WithoutAPieceForTheMarkOnlyAPromptBeginsAThought) {
  const ThoughtVocabulary vocabulary({.in_text = true}, *tokenizer_, tokenizer_->vocab_size());
  EXPECT_FALSE(vocabulary.MayThink(/*open=*/false));
  EXPECT_TRUE(vocabulary.MayThink(/*open=*/true));
}

}  // namespace
}  // namespace tramontane
