// ThoughtInText and ThoughtTokens: a leading <think> block, however the text is cut on its way.
#include "models/chat/thought_in_text.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

using Told = std::pair<std::string, std::string>;  // reasoning, text

void Add(ThoughtInText::Parts parts, Told* told) {
  told->first += parts.reasoning;
  told->second += parts.text;
}

// In one piece, byte by byte and with a cut at every place: always the same.
Told Everyway(std::string_view answer, bool thinks = false) {
  Told whole;
  ThoughtInText at_once(thinks);
  Add(at_once.Take(answer), &whole);
  Add(at_once.End(), &whole);
  for (size_t cut = 0; cut <= answer.size(); ++cut) {
    Told told;
    ThoughtInText thought(thinks);
    Add(thought.Take(answer.substr(0, cut)), &told);
    Add(thought.Take(answer.substr(cut)), &told);
    Add(thought.End(), &told);
    EXPECT_EQ(told, whole) << answer << ", cut at " << cut;
  }
  Told slowly;
  ThoughtInText thought(thinks);
  for (size_t i = 0; i < answer.size(); ++i) Add(thought.Take(answer.substr(i, 1)), &slowly);
  Add(thought.End(), &slowly);
  EXPECT_EQ(slowly, whole) << answer;
  return whole;
}

TEST(ThoughtInText, ALeadingBlockIsReasoning) {
  EXPECT_EQ(Everyway("<think>\nHm,\n\nwell.\n</think>\n\nYes."), Told("Hm,\n\nwell.", "Yes."));
  EXPECT_EQ(Everyway(" \n<think>Hm</think>Yes"), Told("Hm", "Yes"));
  EXPECT_EQ(Everyway("<think>\n\n</think>\n\nYes"), Told("", "Yes"));
  EXPECT_EQ(Everyway("<think>a</thin</think>b</think>"), Told("a</thin", "b</think>"))
      << "only the first ends it";
}

TEST(ThoughtInText, AnyOtherTextIsTheAnswer) {
  for (const std::string_view answer :
       {"Yes", "", "<thin", "<thinking>a</thinking>", "a <think>b</think>", " \n Yes\n", "<"}) {
    EXPECT_EQ(Everyway(answer), Told("", answer));
  }
}

TEST(ThoughtInText, AThoughtThatDoesNotEndIsReasoning) {
  EXPECT_EQ(Everyway("<think>a\n</thi"), Told("a\n</thi", ""));
  EXPECT_EQ(Everyway("<think>"), Told("", ""));
}

TEST(ThoughtInText, APromptMayLeaveAThoughtOpen) {
  EXPECT_EQ(Everyway("\nHm\n</think>\nYes", /*thinks=*/true), Told("Hm", "Yes"));
  EXPECT_TRUE(LeavesThoughtOpen("assistant\n<think>\n"));
  EXPECT_FALSE(LeavesThoughtOpen("assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(LeavesThoughtOpen("assistant\n"));
  EXPECT_TRUE(LeavesThoughtOpen("<think>a</think><think>"));
}

int64_t TokensOfThought(const std::vector<std::string>& pieces, bool thinks = false) {
  ThoughtTokens tokens(thinks);
  for (const std::string& piece : pieces) tokens.Take(piece);
  return tokens.count();
}

TEST(ThoughtTokens, AreThoseBetweenTheMarks) {
  EXPECT_EQ(TokensOfThought({"\n", "<", "think", ">", "H", "m", "</", "think", ">", "Yes", "."}), 2);
  EXPECT_EQ(TokensOfThought({"<think>", "\n", "Hm", "\n", "</think>", "Yes"}), 3) << "new lines too";
  EXPECT_EQ(TokensOfThought({"<think>", "Hm", "", "</think>"}), 2) << "one without text too";
  EXPECT_EQ(TokensOfThought({"H", "m", "</think>", "Yes"}, /*thinks=*/true), 2);
}

// Of the mark is what begins in it.
TEST(ThoughtTokens, BelongWhereTheyBegin) {
  EXPECT_EQ(TokensOfThought({"<thi", "nk>Hm", ", ", "well.</", "think>Yes", "."}), 2);
  EXPECT_EQ(TokensOfThought({"<think>Hm</think>", "Yes"}), 0);
}

TEST(ThoughtTokens, WhatOnlyBeginsLikeAMarkIsThought) {
  EXPECT_EQ(TokensOfThought({"<think>", "a", "</", "thin", "</", "think", ">", "b", "</think>"}), 3);
  EXPECT_EQ(TokensOfThought({"<think>", "a", "</", "thi"}), 3) << "the answer ends there";
  for (const std::string first : {"Yes", "<thinking>", "<thin", "a<think>"}) {
    EXPECT_EQ(TokensOfThought({first, "a", "</think>"}), 0) << first;
  }
}

TEST(ThoughtTokens, OneByteATokenCountsTheBytesOfTheThought) {
  const std::string thought = "a < b </ c </th> <think> </thinkk>";
  std::vector<std::string> pieces;
  for (const char c : "<think>" + thought + "</think> Yes </think>") pieces.emplace_back(1, c);
  EXPECT_EQ(TokensOfThought(pieces), static_cast<int64_t>(thought.size()));
}

}  // namespace
}  // namespace tramontane
