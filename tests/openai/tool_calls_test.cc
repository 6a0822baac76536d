#include "server/api/shared/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/answers/answer_reader.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::MatchesRegex;

struct Parsed {
  struct Call {
    CallBegins head;
    std::string arguments;
  };
  std::string text;
  std::vector<Call> calls;

  void Add(const AnswerEvents& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* said = std::get_if<AnswerText>(&event)) text += said->bytes;
      if (const auto* call = std::get_if<CallBegins>(&event))
        calls.push_back({.head = *call, .arguments = ""});
      if (const auto* piece = std::get_if<CallArguments>(&event)) calls.back().arguments += piece->bytes;
    }
  }
  void Add(const Parsed& more) {
    text += more.text;
    calls.insert(calls.end(), more.calls.begin(), more.calls.end());
  }
  std::vector<std::string> Spelled() const {
    std::vector<std::string> spelled;
    for (const Call& call : calls) spelled.push_back(call.head.name + call.arguments);
    return spelled;
  }
};

Parsed ReadPiece(AnswerReader& reader, std::string_view text, std::optional<int32_t> tool_calls_at = {}) {
  v1::Delta delta;
  delta.set_text(std::string(text));
  if (tool_calls_at) delta.set_tool_calls_at(*tool_calls_at);
  Parsed parsed;
  parsed.Add(reader.Read(delta));
  return parsed;
}
Parsed Ended(AnswerReader& reader) {
  Parsed parsed;
  parsed.Add(reader.Finish(AnswerReader::End::kOfTheModel));
  return parsed;
}

Parsed ParseWhole(const std::string& answer, const std::string& calls) {
  AnswerReader reader({.id_seed = "seed"});
  Parsed parsed = ReadPiece(reader, answer + calls, static_cast<int32_t>(answer.size()));
  parsed.Add(Ended(reader));
  return parsed;
}

TEST(ToolCalls, AListOfCallsIsTakenApart) {
  const Parsed parsed =
      ParseWhole("", R"( [{"name": "f", "arguments": {"a": 1.0, "b": "}]\""}}, {"name": "g"}])");
  EXPECT_EQ(parsed.text, "");
  EXPECT_THAT(parsed.Spelled(), ElementsAre(R"(f{"a": 1.0, "b": "}]\""})", "g{}"));
}

TEST(ToolCalls, ArgumentsKeepTheirBytes) {
  const std::string arguments = R"({ "z":1.50,"a" : 12345678901234567890123, "é": "\u00e9\n" })";
  EXPECT_THAT(ParseWhole("", R"([{"arguments":)" + arguments + R"(,"name":"f"}])").Spelled(),
              ElementsAre("f" + arguments));
}

TEST(ToolCalls, OneCallAloneAndArgumentsInAStringAreTaken) {
  const Parsed parsed =
      ParseWhole("", R"({"name": "f", "arguments": "{\"a\": 1}", "id": "x", "type": "function"})");
  EXPECT_EQ(parsed.text, "");
  EXPECT_THAT(parsed.Spelled(), ElementsAre(R"(f{"a": 1})"));
}

TEST(ToolCalls, WithoutTheControlTokenEverythingIsText) {
  AnswerReader reader({.id_seed = "seed"});
  EXPECT_EQ(ReadPiece(reader, R"([{"name": "f"}])").text, R"([{"name": "f"}])");
  EXPECT_EQ(reader.calls(), 0u);
}

TEST(ToolCalls, TextBeforeTheCallsIsShownAtOnce) {
  AnswerReader reader({.id_seed = "seed"});
  EXPECT_EQ(ReadPiece(reader, "I look [").text, "I look [");
  EXPECT_EQ(ReadPiece(reader, "it up.[", 6).text, "it up.");
  EXPECT_EQ(ReadPiece(reader, R"({"name": "f"}])").calls.size(), 1u);
}

TEST(ToolCalls, ACallIsShownWhenItIsWholeAndNotBefore) {
  AnswerReader reader({.id_seed = "seed"});
  EXPECT_TRUE(ReadPiece(reader, R"([{"name": "f", "arguments": {"a": 1})", 0).calls.empty());
  EXPECT_EQ(ReadPiece(reader, "}").calls.size(), 1u);
  EXPECT_EQ(ReadPiece(reader, R"(, {"name": "g"})").calls.size(), 1u);
}

TEST(ToolCalls, BrokenJsonIsText) {
  for (const char* broken : {
           "",
           "[",
           "[]",
           "[{",
           "]",
           "no JSON at all",
           "[{}]",
           "[1]",
           R"(["name"])",
           R"([{"name": "f", "arguments": {"a": 1})",  // cut off
           R"([{"name": "f", "arguments": {a: 1}}])",  // no JSON
           R"([{"name": "f", "arguments": [1]}])",     // no object
           R"([{"name": "f", "arguments": "a"}])",     // a string that holds no object
           R"([{"name": "f", "arguments": null}])",
           R"([{"name": 1, "arguments": {}}])",
           R"([{"name": "", "arguments": {}}])",
           R"([{"name": "no function", "arguments": {}}])",
           R"([{"arguments": {}}])",
           R"([{"name": "f", "parameters": {}}])",
           R"([{"name": "f", "arguments": {"a": "\ud800"}}])",  // half a surrogate pair
           R"([[{"name": "f"}]])",
           R"(, [{"name": "f"}])",
       }) {
    const Parsed parsed = ParseWhole("answer", broken);
    EXPECT_EQ(parsed.text, std::string("answer") + broken);
    EXPECT_TRUE(parsed.calls.empty()) << broken;
  }
}

// A parser takes it for the end of the JSON.
TEST(ToolCalls, AZeroByteBehindArgumentsIsBrokenJson) {
  const std::string calls = R"([{"name":"f","arguments":"{\"a\":1}\u0000junk"}])";
  const Parsed parsed = ParseWhole("", calls);
  EXPECT_TRUE(parsed.calls.empty());
  EXPECT_EQ(parsed.text, calls);
}

TEST(ToolCalls, WhatFollowsSoundCallsIsTextAndPunctuationIsNot) {
  const auto text_after = [](const std::string& rest) {
    const Parsed parsed = ParseWhole("", R"([{"name": "f"})" + rest);
    EXPECT_THAT(parsed.Spelled(), ElementsAre("f{}")) << rest;
    return parsed.text;
  };
  for (const char* punctuation : {"", "]", " ] \n", ",", ", ", ",]"}) EXPECT_EQ(text_after(punctuation), "");
  EXPECT_EQ(text_after("] Done."), " Done.");
  EXPECT_EQ(text_after(R"(, {"name": "g", "argu)"), R"(, {"name": "g", "argu)");
  EXPECT_EQ(text_after(" and more]"), " and more]");
}

TEST(ToolCalls, CallsBeyondTheMostAreDropped) {
  AnswerReader reader({.id_seed = "seed", .one_call = true});
  const Parsed output = ReadPiece(reader, R"([{"name": "f"}, {"name": "g"}])", 0);
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].head.name, "f");
  EXPECT_EQ(Ended(reader).text, "");
}

TEST(ToolCalls, DeepAndLongJsonIsNoTrouble) {
  const std::string deep(200'000, '[');
  EXPECT_EQ(ParseWhole("", "[{\"name\": \"f\", \"arguments\": {\"a\": " + deep).calls.size(), 0u);
  const std::string closed = "{\"a\": " + deep + std::string(deep.size(), ']') + "}";
  EXPECT_THAT(ParseWhole("", R"([{"name": "f", "arguments": )" + closed + "}]").Spelled(),
              ElementsAre("f" + closed));
}

// ---- properties ---------------------------------------------------------------------------------

// A list of calls, damaged in `faults` places; with markers "<n>", to see what becomes of it.
std::string DamagedCalls(std::mt19937& random, int faults) {
  std::string text = random() % 8 == 0 ? "" : "[";
  const int calls = static_cast<int>(random() % 4);
  for (int call = 0; call < calls; ++call) {
    text += call == 0 ? "" : ", ";
    text += R"({"name": "f_)" + std::to_string(call) + R"(", "arguments": {"é\\\"": "<)" +
            std::to_string(call) + R"(>"}})";
  }
  text += random() % 8 == 0 ? "" : "]";
  if (random() % 4 == 0) text += " tail <9>";
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

size_t Count(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(ToolCallsProperty, WhereTheTextIsCutMakesNoDifference) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int64_t round = 0; round < ScaledCount(4000); ++round) {
    const std::string answer = random() % 2 == 0 ? "" : "I call: ";
    const std::string calls = DamagedCalls(random, static_cast<int>(random() % 3));
    const Parsed whole = ParseWhole(answer, calls);

    // The boundary may be told at the end of one piece, or at the beginning of the next.
    const bool told_early = random() % 2 == 0;
    AnswerReader reader({.id_seed = "seed"});
    Parsed pieces;
    const std::string text = answer + calls;
    bool told = false;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.size(), at + random() % 9);  // of no byte too
      const bool reached = told_early ? answer.size() <= end : answer.size() < end;
      std::optional<int32_t> tool_calls_at;
      if (reached && !told) tool_calls_at = static_cast<int32_t>(answer.size() - at);
      told = told || reached;
      pieces.Add(ReadPiece(reader, std::string_view(text).substr(at, end - at), tool_calls_at));
      at = end;
    }
    pieces.Add(Ended(reader));
    ASSERT_EQ(pieces.text, whole.text) << text;
    ASSERT_EQ(pieces.Spelled(), whole.Spelled()) << text;
  }
}

TEST(ToolCallsProperty, BrokenJsonLosesNoTextAndMakesNoHalfCalls) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int64_t round = 0; round < ScaledCount(20000); ++round) {
    const std::string text = DamagedCalls(random, 1 + static_cast<int>(random() % 3));
    const Parsed parsed = ParseWhole("", text);
    std::string shown = parsed.text;
    for (const Parsed::Call& call : parsed.calls) {
      ASSERT_TRUE(json::parse(call.arguments, nullptr, false).is_object()) << text;
      shown += call.arguments;
    }
    for (const char* marker : {"<0>", "<1>", "<2>", "<9>"}) {
      ASSERT_EQ(Count(shown, marker), Count(text, marker)) << marker << " of " << text;
    }
  }
}

// ---- ids ----------------------------------------------------------------------------------------

TEST(ToolCallIds, EveryCallHasItsOwnOfNineCharacters) {
  const Parsed parsed = ParseWhole("", R"([{"name": "f"}, {"name": "f"}])");
  ASSERT_EQ(parsed.calls.size(), 2u);
  for (const Parsed::Call& call : parsed.calls) EXPECT_THAT(call.head.id, MatchesRegex("[a-zA-Z0-9]{9}"));
  EXPECT_NE(parsed.calls[0].head.id, parsed.calls[1].head.id);
}

TEST(ToolCallIds, ForeignOnesBecomeNineCharactersAndOursStay) {
  EXPECT_EQ(MistralCallId("Ab3456789"), "Ab3456789");
  for (const char* foreign :
       {"", "call_abcdefghijklmnop", "Ab345678", "Ab34567890", "Ab345678\n", "Ab34-6789"}) {
    EXPECT_THAT(MistralCallId(foreign), MatchesRegex("[a-zA-Z0-9]{9}")) << foreign;
    EXPECT_EQ(MistralCallId(foreign), MistralCallId(foreign));
  }
  EXPECT_NE(MistralCallId("call_1"), MistralCallId("call_2"));
}

}  // namespace
}  // namespace tramontane
