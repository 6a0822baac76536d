// Trees of expressions held against their automata: what was bounded, met or written out has the texts that
// it should, whatever the expression.

#include "models/grammar/regex_automaton.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>

#include "models/grammar/regex_grammar.h"
#include "models/grammar/regex_meeting.h"
#include "tests/support/random_constraints.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

RegexNode Parsed(const std::string& pattern) {
  return ParseRegex(pattern, RegexReading::Match::kWhole, {}).value();
}

// Texts of `a` that are none of `b`: there are, or are not. Nothing: it was too large to know.
std::optional<bool> HasMore(const RegexAutomaton& a, const RegexAutomaton& b) {
  RegexWork work;
  const auto more = Difference(a, b, &work);
  if (!more) return std::nullopt;
  return !more->empty();
}

std::optional<RegexAutomaton> Automaton(const RegexNode& node) {
  RegexWork work;
  return ToAutomaton(node, &work);
}

class RegexAutomata : public ::testing::Test {
 protected:
  void SetUp() override { random_.seed(TestSeed()); }
  std::mt19937 random_;
};

TEST_F(RegexAutomata, WhatIsBoundedHasTheTextsOfItsLengthsAndNoOthers) {
  int64_t compared = 0;
  for (int64_t i = 0; i < ScaledCount(100, 20); ++i) {
    const std::string pattern = RandomRegex(random_);
    const auto least = static_cast<int64_t>(random_() % 8);
    const int64_t most = random_() % 4 == 0 ? kUnbounded : least + static_cast<int64_t>(random_() % 12);
    const auto all = Automaton(Parsed(pattern));
    const auto lengths = Automaton(RegexRepeat(RegexClass(CodePoints::All()), least, most));
    RegexWork work;
    const auto expected = all && lengths ? Meeting(*all, *lengths, &work) : std::nullopt;
    if (!expected) continue;
    const auto bounded = WithinLengths(Parsed(pattern), least, most);
    ASSERT_EQ(bounded.has_value(), !expected->empty()) << pattern << " " << least << " " << most;
    const auto actual = bounded ? Automaton(bounded->node) : std::nullopt;
    if (!actual) continue;
    ++compared;
    EXPECT_FALSE(actual->empty()) << pattern;
    EXPECT_FALSE(HasMore(*actual, *expected).value_or(false)) << pattern << " " << least << " " << most;
    if (!bounded->is_all) continue;
    EXPECT_FALSE(HasMore(*expected, *actual).value_or(false)) << pattern << " " << least << " " << most;
  }
  EXPECT_GT(compared, 10);
}

TEST_F(RegexAutomata, AMeetingHasTheTextsOfBothAndNoOthers) {
  int64_t compared = 0;
  for (int64_t i = 0; i < ScaledCount(60, 20); ++i) {
    const std::string first = RandomRegex(random_);
    const std::string second = "(" + RandomRegex(random_) + "|[a-z0-9]*)";
    const RegexNode a = Parsed(first);
    const RegexNode b = Parsed(second);
    RegexWork work;
    const StatusOr<RegexNode> met = MeetingOf({a, b}, &work);
    if (!met.ok()) continue;  // empty, or too large
    const auto of_a = Automaton(a);
    const auto of_b = Automaton(b);
    const auto actual = Automaton(*met);
    RegexWork more;
    const auto expected = of_a && of_b ? Meeting(*of_a, *of_b, &more) : std::nullopt;
    if (!expected || !actual) continue;
    ++compared;
    EXPECT_FALSE(HasMore(*actual, *expected).value_or(false)) << first << "\n" << second;
    EXPECT_FALSE(HasMore(*expected, *actual).value_or(false)) << first << "\n" << second;
  }
  EXPECT_GT(compared, 5);
}

TEST_F(RegexAutomata, AnAutomatonEndsWhereItsExpressionDoes) {
  const auto automaton = Automaton(Parsed("(?!ab)[a-c]{2}|(x(?=y)y)?é*"));
  ASSERT_TRUE(automaton);
  for (const char* text : {"ac", "ca", "", "xy", "xyéé", "é"}) EXPECT_TRUE(Matches(*automaton, text)) << text;
  for (const char* text : {"ab", "abc", "x", "xé", "d"}) EXPECT_FALSE(Matches(*automaton, text)) << text;
}

// Any amount of work ends where it is bounded, with nothing.
TEST_F(RegexAutomata, WorkIsBounded) {
  RegexWork work{1000};
  EXPECT_FALSE(ToAutomaton(Parsed("(.{0,40}a){20}"), &work));
  RegexWork enough;
  EXPECT_FALSE(ToAutomaton(Parsed("(a|b)*a(a|b){14}"), &enough)) << "16,384 states";
}

}  // namespace
}  // namespace tramontane
