#include "server/answers/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/utf8.h"
#include "tests/support/json_beginning.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::MatchesRegex;

using End = AnswerReader::End;

// What a reader told, put together; what always holds is checked.
struct Told {
  struct Call {
    CallBegins head;
    std::string arguments;
    bool ends = false, is_whole = false;
  };
  std::string thoughts, text;
  std::vector<Call> calls;
  std::string order;  // of events, with bytes joined: "T" text, "(" call ")" whole, "|" cut

  void Add(const AnswerEvents& events) {
    int pieces = 0;
    for (const AnswerEvent& event : events) {
      const bool in_call = !calls.empty() && !calls.back().ends;
      if (const auto* thought = std::get_if<AnswerThought>(&event)) thoughts += thought->bytes;
      if (const auto* said = std::get_if<AnswerText>(&event)) {
        EXPECT_FALSE(in_call) << said->bytes;
        text += said->bytes;
        if (!order.ends_with('T')) order += 'T';
      }
      if (const auto* call = std::get_if<CallBegins>(&event)) {
        EXPECT_FALSE(in_call) << call->name;
        EXPECT_EQ(call->number, calls.size());
        EXPECT_THAT(call->id, MatchesRegex("[a-zA-Z0-9]{9}"));
        calls.push_back({.head = *call, .arguments = ""});
        pieces = 0;
        order += '(';
      }
      if (const auto* piece = std::get_if<CallArguments>(&event)) {
        ASSERT_TRUE(in_call) << piece->bytes;
        EXPECT_EQ(++pieces, 1) << "one of a Delta";
        std::string& arguments = calls.back().arguments;
        arguments += piece->bytes;
        EXPECT_EQ(arguments[0], '{');
        EXPECT_TRUE(IsUtf8(piece->bytes)) << piece->bytes;
        order += order.ends_with('(') ? "A" : "";
      }
      if (const auto* end = std::get_if<CallEnds>(&event)) {
        ASSERT_TRUE(in_call);
        calls.back().ends = true;
        calls.back().is_whole = end->is_whole;
        const std::string& arguments = calls.back().arguments;
        if (end->is_whole) {
          EXPECT_TRUE(json::parse(arguments, nullptr, false).is_object()) << arguments;
        } else {
          EXPECT_TRUE(BeginsJson(arguments)) << arguments;
        }
        order += end->is_whole ? ')' : '|';
      }
    }
  }
  std::vector<std::string> Whole() const { return Spelled(true); }
  std::vector<std::string> Cut() const { return Spelled(false); }
  std::vector<std::string> Spelled(bool whole) const {
    std::vector<std::string> spelled;
    for (const Call& call : calls) {
      if (call.is_whole == whole) spelled.push_back(call.head.name + call.arguments);
    }
    return spelled;
  }
};

// An answer as a test spells it: "<call>", "<id>" and "<args>" are the marks of v11 and later, "<list>" is
// where the list of the formats before begins.
constexpr std::string_view kSpelled[] = {"<list>", "<call>", "<id>", "<args>"};

class Reading {
 public:
  explicit Reading(bool one_call = false) : reader_({.id_seed = "seed", .one_call = one_call}) {}

  // The next Delta.
  void Say(std::string_view spelled) {
    v1::Delta delta;
    while (!spelled.empty()) {
      size_t mark = 0;
      while (mark < 4 && !spelled.starts_with(kSpelled[mark])) ++mark;
      if (mark == 4) {
        const std::string_view text = spelled.substr(0, spelled.find('<', 1));
        delta.mutable_text()->append(text);
        spelled.remove_prefix(text.size());
        continue;
      }
      spelled.remove_prefix(kSpelled[mark].size());
      const auto at = static_cast<int32_t>(delta.text().size());
      if (mark < 2 && !std::exchange(calls_, true)) delta.set_tool_calls_at(at);
      if (mark == 0) continue;
      delta.add_marks()->set_kind(static_cast<v1::MarkKind>(mark));
      delta.mutable_marks()->rbegin()->set_at(at);
    }
    told_.Add(reader_.Read(delta));
  }
  void Think(const std::string& thought) {
    v1::Delta delta;
    delta.set_reasoning(thought);
    told_.Add(reader_.Read(delta));
  }
  Told Finish(End end = End::kOfTheModel) {
    told_.Add(reader_.Finish(end));
    EXPECT_TRUE(told_.calls.empty() || told_.calls.back().ends) << "each call that begins ends";
    return told_;
  }
  const Told& told() const { return told_; }
  const AnswerReader& reader() const { return reader_; }

 private:
  AnswerReader reader_;
  Told told_;
  bool calls_ = false;
};

Told Read(std::string_view spelled, End end = End::kOfTheModel) {
  Reading reading;
  reading.Say(spelled);
  return reading.Finish(end);
}

// ---- calls --------------------------------------------------------------------------------------

TEST(AnswerReader, AListOfCallsIsTakenApart) {
  const Told told = Read(R"(<list> [{"name": "f", "arguments": {"a": 1.0, "b": "}]\""}}, {"name": "g"}])");
  EXPECT_EQ(told.text, "");
  EXPECT_THAT(told.Whole(), ElementsAre(R"(f{"a": 1.0, "b": "}]\""})", "g{}"));
}

TEST(AnswerReader, ArgumentsKeepTheirBytes) {
  const std::string arguments = R"({ "z":1.50,"a" : 12345678901234567890123, "é": "\u00e9\n" })";
  EXPECT_THAT(Read(R"(<list>[{"arguments":)" + arguments + R"(,"name":"f"}])").Whole(),
              ElementsAre("f" + arguments));
  EXPECT_THAT(Read("<call>f<args> " + arguments + " ").Whole(), ElementsAre("f" + arguments));
}

TEST(AnswerReader, OneCallAloneAndArgumentsInAStringAreTaken) {
  const Told told = Read(R"(<list>{"name": "f", "arguments": " {\"a\": 1}\n", "id": 5, "type": "function"})");
  EXPECT_EQ(told.text, "");
  EXPECT_THAT(told.Whole(), ElementsAre(R"(f{"a": 1})"));
  EXPECT_THAT(Read(R"(<list>{"arguments": "{\"a\": 1}", "id": null, "name": "\u0066"})").Whole(),
              ElementsAre(R"(f{"a": 1})"));
  EXPECT_THAT(Read(R"(<list>[{"arguments": "", "name": "f"}])").Whole(), ElementsAre("f{}"));
}

TEST(AnswerReader, MarkedCallsAreTakenOneByOne) {
  const Told told = Read(R"(So:<call>f<id>abc<args>{"a": "]é"}<call> g <args><call>h<args>)");
  EXPECT_EQ(told.text, "So:");
  EXPECT_THAT(told.Whole(), ElementsAre(R"(f{"a": "]é"})", "g{}", "h{}"));
  EXPECT_EQ(told.order, "T(A)(A)(A)");
}

TEST(AnswerReader, ANameHasUpTo128Characters) {
  const std::string most(128, 'x');
  EXPECT_THAT(Read("<call>" + most + "<args>{}").Whole(), ElementsAre(most + "{}"));
  EXPECT_THAT(Read(R"(<list>[{"name": ")" + most + "\"}]").Whole(), ElementsAre(most + "{}"));
  EXPECT_THAT(Read("<call>x" + most + "<args>{}").calls, IsEmpty());
  EXPECT_THAT(Read(R"(<list>[{"name": "x)" + most + "\"}]").calls, IsEmpty());
}

TEST(AnswerReader, WithOneCallFurtherOnesAreDropped) {
  for (const char* two : {R"(<list>[{"name": "f"}, {"name": "g", "arguments": {"a": 1}}])",
                          R"(<call>f<args><call>g<args>{"a": 1})"}) {
    Reading reading(/*one_call=*/true);
    reading.Say(two);
    const Told told = reading.Finish();
    EXPECT_THAT(told.Whole(), ElementsAre("f{}"));
    EXPECT_EQ(told.calls.size(), 1u);
    EXPECT_EQ(told.text, "");
  }
}

// ---- as they come -------------------------------------------------------------------------------

TEST(AnswerReader, AListedCallBeginsWithItsNameAndItsArgumentsAreToldAsTheyCome) {
  Reading reading;
  reading.Say(R"(<list>[{"name": "f)");
  EXPECT_THAT(reading.told().calls, IsEmpty());
  reading.Say("\", ");
  ASSERT_EQ(reading.told().calls.size(), 1u);
  const Told::Call& call = reading.told().calls[0];
  reading.Say(R"("arguments": )");
  EXPECT_EQ(call.arguments, "");
  reading.Say(R"({"a)");
  EXPECT_EQ(reading.told().calls[0].arguments, R"({"a)");
  reading.Say("\": \"\xC3");
  EXPECT_EQ(reading.told().calls[0].arguments, R"({"a": ")");
  reading.Say("\xA9\"}");
  EXPECT_EQ(reading.told().calls[0].arguments, R"({"a": "é"})");
  EXPECT_FALSE(reading.told().calls[0].ends) << "the object goes on";
  reading.Say("}");
  EXPECT_TRUE(reading.told().calls[0].is_whole);
}

TEST(AnswerReader, AMarkedCallBeginsWithTheMarkBehindItsName) {
  for (const char* mark : {"<id>", "<args>"}) {
    Reading reading;
    reading.Say("<call>f");
    EXPECT_THAT(reading.told().calls, IsEmpty());
    reading.Say(mark);
    EXPECT_EQ(reading.told().calls.size(), 1u) << mark;
  }
}

TEST(AnswerReader, ArgumentsBeforeTheirNameWaitForIt) {
  Reading reading;
  reading.Say(R"(<list>[{"arguments": {"a": 1}, "na)");
  EXPECT_THAT(reading.told().calls, IsEmpty());
  reading.Say(R"(me": "f")");
  EXPECT_EQ(reading.told().calls[0].arguments, R"({"a": 1})");
}

TEST(AnswerReader, MemoryIsConstantInTheLengthOfACallAndBoundedWhereArgumentsAreHeld) {
  const std::string megabyte(1 << 20, 'x');
  for (const char* begin : {R"(<list>[{"name": "f", "arguments": {"a": ")", R"(<call>f<args>{"a": ")"}) {
    Reading reading;
    reading.Say(begin);
    reading.Say(megabyte);
    EXPECT_LT(reading.reader().held_bytes(), 100u) << begin;
    EXPECT_GT(reading.told().calls[0].arguments.size(), megabyte.size());
  }
  for (const char* begin :
       {R"(<list>[{"arguments": {"a": ")", R"(<list>[{"name": "f", "arguments": "{\"a\": \")"}) {
    Reading reading;
    reading.Say(begin);
    reading.Say(megabyte.substr(1000));
    EXPECT_GT(reading.reader().held_bytes(), megabyte.size() / 2) << begin;
    reading.Say(megabyte);
    EXPECT_LT(reading.reader().held_bytes(), 100u) << begin << ": given up";
    EXPECT_THAT(reading.Finish().Whole(), IsEmpty());
  }
  for (const char* begin :
       {"<list>", "<call>", "<call>f<id>", "<call>f<args>", "<call>f<args>{}", "<list>[1", "<list>[{\""}) {
    for (const char c : {' ', 'x'}) {
      Reading reading;
      reading.Say(begin);
      reading.Say(std::string(5000, c));
      EXPECT_LT(reading.reader().held_bytes(), 1100u) << begin << c;
    }
  }
}

TEST(AnswerReader, JsonOfAThousandBracketsIsTakenAndNoMore) {
  const auto call = [](size_t depth) {
    return R"(<call>f<args>{"a":)" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(Read(call(kMaxJsonDepth)).Whole().size(), 1u);
  const Told deeper = Read(call(kMaxJsonDepth + 1));
  EXPECT_THAT(deeper.Whole(), IsEmpty());
  EXPECT_EQ(deeper.text, "");
}

TEST(AnswerReader, ThoughtsMayComeAmidACall) {
  Reading reading;
  reading.Say(R"(<call>f<args>{"a":)");
  reading.Think("hm");
  reading.Say("1}");
  const Told told = reading.Finish();
  EXPECT_EQ(told.thoughts, "hm");
  EXPECT_THAT(told.Whole(), ElementsAre(R"(f{"a":1})"));
}

// What stands between the parts of a call may be cut, too, and so may a call that another follows.
TEST(AnswerReader, ACharacterThatIsCutHoldsBackNothingElse) {
  Reading reading;
  reading.Say("<list>[{\"name\": \"f\", \"arguments\": {}, \"\xC3");
  EXPECT_EQ(reading.told().calls[0].arguments, "{}");
  EXPECT_THAT(Read("<call>f<args>{\"a\": \"\xC3<call>g<args>").Whole(), ElementsAre("g{}"));
}

// ---- text, and what is none ---------------------------------------------------------------------

TEST(AnswerReader, WithoutTheControlTokenEverythingIsText) {
  EXPECT_EQ(Read(R"([{"name": "f"}])").text, R"([{"name": "f"}])");
}

TEST(AnswerReader, TextBeforeTheCallsIsToldAtOnce) {
  Reading reading;
  reading.Say("I look [");
  EXPECT_EQ(reading.told().text, "I look [");
  reading.Say("it up.<list>[");
  EXPECT_EQ(reading.told().text, "I look [it up.");
}

TEST(AnswerReader, WhatBeginsAsACallAndIsNoneIsToldToNobody) {
  for (const char* none : {
           "<list>",
           "<list>[",
           "<list>[]",
           "<list>[{",
           "<list>]",
           "<list>[{}]",
           "<list>[1]",
           "<list>[\"name\"]",
           R"(<list>[{"name": 1, "arguments": {}}])",
           R"(<list>[{"name": "", "arguments": {}}])",
           R"(<list>[{"name": "no function", "arguments": {}}])",
           R"(<list>[{"arguments": {}}])",
           R"(<list>[{"arguments": {}, "x": 1, "name": "f"}])",
           R"(<list>[[{"name": "f"}]])",
           R"(<list>, [{"name": "f"}])",
           R"(<list>[{"parameters": {}, "name": "f"}])",
           R"(<list>[{"name": "f)",
           R"(<list>[{"arguments": {"a": "\ud800"}, "name": "f"}])",
           R"(<list>[{"arguments": [1], "name": "f"}])",
           R"(<list>[{"arguments": "a", "name": "f"}])",
           "<call>",
           "<call>f",
           "<call> f ",
           "<call>no name<args>{}",
           "<call><args>{}",
           "<call>f{}<args>",
       }) {
    for (const End end : {End::kOfTheModel, End::kCutOff}) {
      const Told told = Read("answer" + std::string(none), end);
      EXPECT_EQ(told.text, "answer") << none;
      EXPECT_THAT(told.calls, IsEmpty()) << none;
    }
  }
}

TEST(AnswerReader, ACallThatGoesWrongBehindItsNameIsCutWhereItWasRight) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(<list>[{"name": "f", "arguments": {a: 1}}] x)", "f{"},
      {R"(<list>[{"name": "f", "arguments": [1]}])", "f"},
      {R"(<list>[{"name": "f", "arguments": "a"}])", "f"},
      {R"(<list>[{"name": "f", "arguments": null}])", "f"},
      {R"(<list>[{"name": "f", "arguments": {}, "x": 1}])", "f{}"},
      {R"(<list>[{"name": "f", "arguments": {}, "name": "g"}])", "f{}"},
      {R"(<list>[{"name":"f","arguments":"{\"a\":1}\u0000junk"}])", "f"},
      {R"(<call>f<args>{"a": "\ud800"} x)", R"(f{"a": "\ud800)"},
      {R"(<call>f<args>{"a": "\udc00"})", R"(f{"a": "\ud)"},
      {"<call>f<args>{\"a\": \"\xC3\x28", R"(f{"a": ")"},
      {"<call>f<args>[1] x", "f"},
      {"<call>f<args>{a}", "f{"},
      {"<call>f<args>{\"a\": 01}", R"(f{"a": 0)"},
      {"<call>f<args>{\"a\": 1,}", R"(f{"a": 1,)"},
  };
  for (const auto& [spelled, cut] : cases) {
    const Told told = Read(spelled);
    EXPECT_EQ(told.text, "") << spelled;
    EXPECT_THAT(told.Whole(), IsEmpty()) << spelled;
    EXPECT_THAT(told.Cut(), ElementsAre(cut)) << spelled;
  }
}

TEST(AnswerReader, AMarkedCallBehindABrokenOneCounts) {
  const Told told = Read(R"(<call>f<args>{"a": "<call>g<args>{} z<call>no name<args>{}<call>h<args>{})");
  EXPECT_THAT(told.Cut(), ElementsAre(R"(f{"a": ")"));
  EXPECT_THAT(told.Whole(), ElementsAre("g{}", "h{}"));
  EXPECT_EQ(told.text, " z");
}

TEST(AnswerReader, ACallIsCutByTheEndUnlessTheModelEndsBeforeArguments) {
  const auto within = [](const char* spelled) {
    Reading reading;
    reading.Say(spelled);
    return reading.reader().is_within_call();
  };
  for (const char* cut : {R"(<list>)", R"(<list>[{)", R"(<list>[{"name": "f", "arguments": {"a": 1})",
                          "<call>", "<call>f", "<call>f<id>", "<call>f<args>", "<call>f<args>{"}) {
    EXPECT_TRUE(within(cut)) << cut;
  }
  for (const char* whole : {"Hi", R"(<list>[{"name": "f"})", R"(<list>[{"name": "f"}, )",
                            R"(<list>[{"name": "f"}])", "<list>Hi", "<call>f<args>{}", "<call>No, I"}) {
    EXPECT_FALSE(within(whole)) << whole;
  }
  EXPECT_THAT(Read("<call>f<args>", End::kCutOff).Cut(), ElementsAre("f"));
  EXPECT_THAT(Read("<call>f<args>", End::kOfTheModel).Whole(), ElementsAre("f{}"));
}

TEST(AnswerReader, WordsBehindACallAreTextAndItsPunctuationIsNot) {
  const std::pair<const char*, const char*> rests[] = {{"]", ""},
                                                       {" ] \n", ""},
                                                       {",", ""},
                                                       {", ", ""},
                                                       {",]", ""},
                                                       {"] Done.", " Done."},
                                                       {"]\n\nDone. [x]", "\n\nDone. [x]"},
                                                       {R"(, {"name": "g", "argu)", ""},
                                                       {"]]", ""},
                                                       {R"(] [{"name": "g"}])", ""},
                                                       {R"(], {"name": "g"})", ""},
                                                       {" and more]", ""}};
  for (const auto& [rest, text] : rests) {
    const Told told = Read(R"(<list>[{"name": "f"})" + std::string(rest));
    EXPECT_THAT(told.Whole(), ElementsAre("f{}")) << rest;
    EXPECT_EQ(told.text, text) << rest;
  }
  EXPECT_EQ(Read("<call>f<args>{} Done.").text, " Done.");
  EXPECT_EQ(Read("<call>f<args>{}}").text, "");
  EXPECT_EQ(Read("<call>f<args>{}<args>{}").text, "");
}

TEST(AnswerReader, WordsBehindTheControlTokenAreText) {
  for (const char* mark : {"<list>", "<call>"}) {
    EXPECT_EQ(Read(std::string(mark) + " I can't call. [1]").text, " I can't call. [1]") << mark;
    EXPECT_EQ(Read(std::string(mark) + "No, I", End::kCutOff).text, "No, I") << mark;
  }
  EXPECT_EQ(Read("<call>Hello there<call>f<args>").text, "Hello there");
  EXPECT_EQ(Read("<call>" + std::string(1000, 'x') + "<args>{}").text, std::string(1000, 'x'));
}

// ---- properties ---------------------------------------------------------------------------------

// Calls in one of the formats, damaged in `faults` places.
std::string DamagedCalls(std::mt19937& random, bool marked, int faults) {
  const char* const kValues[] = {R"("é\\\"𝄞")", "-12.5e+3", "[true, null, {}]", R"("\ud834\udd1e")",
                                 R"({"é": [0]})"};
  const auto arguments = [&] {
    return R"({"a": )" + std::string(kValues[random() % 5]) + R"(, "b": )" + kValues[random() % 5] + "}";
  };
  std::string text = random() % 2 == 0 ? "" : "I call: ";
  const int calls = static_cast<int>(random() % 4);
  if (!marked) text += random() % 8 == 0 ? "<list>" : "<list>[";
  for (int call = 0; call < calls; ++call) {
    const std::string name = "f_" + std::to_string(call);
    if (marked) {
      text += "<call>" + name + (random() % 4 == 0 ? "<id>abc<args>" : "<args>") + arguments();
    } else if (random() % 4 == 0) {
      text += (call == 0 ? "" : ", ") + (R"({"arguments": )" + json(arguments()).dump()) + R"(, "name": ")" +
              name + "\"}";
    } else {
      text += (call == 0 ? "" : ", ") + (R"({"name": ")" + name) + R"(", "arguments": )" + arguments() + "}";
    }
  }
  if (!marked && random() % 8 != 0) text += "]";
  if (random() % 4 == 0) text += " tail";
  for (int fault = 0; fault < faults; ++fault) {
    constexpr std::string_view kDirt = "{}[]\",:\\ x1";
    const size_t at = random() % (text.size() + 1);
    if (random() % 2 == 0) {
      text.insert(at, 1, kDirt[random() % kDirt.size()]);
    } else {
      text.erase(at, 1 + random() % 5);
    }
  }
  return text;
}

// Cut into Deltas anywhere but within a mark.
Told ReadInPieces(std::string_view spelled, std::mt19937& random, End end) {
  Reading reading;
  while (!spelled.empty()) {
    size_t size = std::min<size_t>(spelled.size(), 1 + random() % 9);
    for (const std::string_view mark : kSpelled) {
      for (size_t inside = 1; inside < mark.size() && inside <= size; ++inside) {
        if (spelled.substr(size - inside).starts_with(mark)) size += mark.size() - inside;
      }
    }
    reading.Say(spelled.substr(0, size));
    spelled.remove_prefix(size);
  }
  return reading.Finish(end);
}

TEST(AnswerReaderProperty, WhereTheAnswerIsCutMakesNoDifference) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  size_t whole_calls = 0;
  for (int64_t round = 0; round < ScaledCount(1500); ++round) {
    const std::string spelled = DamagedCalls(random, round % 2 == 0, static_cast<int>(random() % 3));
    SCOPED_TRACE(spelled);
    const End end = random() % 2 == 0 ? End::kOfTheModel : End::kCutOff;
    const Told whole = Read(spelled, end);
    const Told pieces = ReadInPieces(spelled, random, end);
    ASSERT_EQ(pieces.text, whole.text);
    ASSERT_EQ(pieces.order, whole.order);
    ASSERT_EQ(pieces.Whole(), whole.Whole());
    ASSERT_EQ(pieces.Cut(), whole.Cut());
    if (HasFailure()) return;
    whole_calls += whole.Whole().size();
  }
  EXPECT_GT(whole_calls, static_cast<size_t>(ScaledCount(300)));
}

// A call that is cut off anywhere is told up to there, and so is the beginning of what it would have been.
TEST(AnswerReaderProperty, ACallCutOffAnywhereIsTheBeginningOfTheWholeOne) {
  for (const std::string_view spelled :
       {std::string_view(
            R"(<list>[{"name": "f", "arguments": {"a": ["é\u00e9\ud834\udd1e", -1.5e3, true]}}])"),
        std::string_view(R"(<call>f<args>{"a": ["é\u00e9\ud834\udd1e", -1.5e3, true]})")}) {
    const std::string arguments = Read(spelled).calls[0].arguments;
    size_t longest = 0;
    for (size_t size = spelled.find(R"({"a")"); size < spelled.size(); ++size) {
      const Told told = Read(spelled.substr(0, size), End::kCutOff);
      EXPECT_EQ(told.text, "");
      if (told.calls.empty()) continue;
      EXPECT_TRUE(arguments.starts_with(told.calls[0].arguments));
      EXPECT_GE(told.calls[0].arguments.size(), longest);
      longest = told.calls[0].arguments.size();
    }
    EXPECT_GE(longest + 1, arguments.size());
  }
}

TEST(JsonPrefix, TakesWhatAParserTakesAndNoMore) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr const char* kPieces[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"",
                                     "\"a\"",
                                     " ",
                                     "0",
                                     "1",
                                     "-",
                                     ".",
                                     "e",
                                     "E+",
                                     "true",
                                     "false",
                                     "null",
                                     "\\n",
                                     "\\u00e9",
                                     "\\ud834",
                                     "\\udd1e",
                                     "\\u",
                                     "\\\"",
                                     "é",
                                     "\xC3",
                                     "\xED\xA0\x80",
                                     "\xF0\x9D\x84\x9E",
                                     "\xC0\x80",
                                     "\n",
                                     "\x01",
                                     "{\"a\":",
                                     "[1,",
                                     "\"b\":",
                                     "},",
                                     "],"};
  for (int64_t round = 0; round < ScaledCount(1000); ++round) {
    std::string text = "{\"a\":";
    JsonPrefix prefix;
    for (const char c : text) ASSERT_TRUE(prefix.Take(c));
    // Pieces that do not fit are left out, but for the last.
    for (int pieces = 0; pieces < 12; ++pieces) {
      const std::string piece = kPieces[random() % std::size(kPieces)];
      JsonPrefix longer = prefix;
      if (!std::all_of(piece.begin(), piece.end(), [&](char c) { return longer.Take(c); })) {
        EXPECT_FALSE(json::accept(text + piece)) << text << piece;
        continue;
      }
      prefix = longer;
      text += piece;
      const bool is_whole = prefix.is_behind_value() && prefix.depth() == 0;
      ASSERT_EQ(is_whole, IsJson(text)) << text;
    }
    if (TruncatedUtf8Bytes(text) == 0) {
      ASSERT_TRUE(BeginsJson(text)) << text;
    }
  }
}

// ---- ids ----------------------------------------------------------------------------------------

TEST(AnswerReader, EveryCallHasAnIdOfItsOwn) {
  const Told told = Read(R"(<list>[{"name": "f"}, {"name": "f"}])");
  ASSERT_EQ(told.calls.size(), 2u);
  EXPECT_NE(told.calls[0].head.id, told.calls[1].head.id);
}

}  // namespace
}  // namespace tramontane
