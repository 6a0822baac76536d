// What the events of completions and chat streams are taken for: a table of what servers send, and drawn
// events beside a definition of the same on a parsed document.
#include "bench/load/wire/answer_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "tests/support/test_seed.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

AnswerEvent MustRead(const std::string& data) {
  std::string fault;
  const std::optional<AnswerEvent> event = ReadAnswerEvent(data, &fault);
  EXPECT_TRUE(event.has_value()) << data << ": " << fault;
  return event.value_or(AnswerEvent{});
}

struct Row {
  const char* data;
  bool has_choices = false;
  bool has_content = false;
  bool finishes = false;
  bool is_error = false;
  int32_t ids = 0;
  int32_t logprobs = 0;
};

TEST(AnswerEvent, IsWhatServersMeanByIt) {
  const std::vector<Row> rows = {
      // vLLM, chat: the role alone, text, the end, usage alone.
      {R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})", true},
      {R"({"choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]})", true,
       true},
      {R"({"choices":[{"delta":{"content":""},"finish_reason":"length"}]})", true, false, true},
      {R"({"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null})", true, false, true},
      {R"({"choices":[{"delta":{"content":"a"},"finish_reason":""}]})", true, true, false},
      {R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}})"},
      // Completions: text, empty text, text with the end.
      {R"({"choices":[{"index":0,"text":"x","finish_reason":null}]})", true, true},
      {R"({"choices":[{"index":0,"text":"","finish_reason":null}]})", true},
      {R"({"choices":[{"text":" end","finish_reason":"stop"}]})", true, true, true},
      // Reasoning, under either name.
      {R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})", true, true},
      {R"({"choices":[{"delta":{"reasoning":"hm"}}]})", true, true},
      {R"({"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"}}]})", true, true},
      {R"({"choices":[{"delta":{"reasoning_content":null,"content":null}}]})", true},
      {R"({"choices":[{"delta":{"refusal":"no"}}]})", true, true},
      // Tool calls: the name alone is no content, its arguments are.
      {R"({"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}}]})",
       true},
      {R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}}]})", true, true},
      {R"({"choices":[{"delta":{"function_call":{"arguments":"{"}}}]})", true, true},
      // Token ids, with text that lags; of the prompt they are none of the output.
      {R"({"choices":[{"text":"","token_ids":[5,6,7]}]})", true, true, false, false, 3},
      {R"({"choices":[{"text":"","token_ids":[]}]})", true},
      {R"({"choices":[{"text":"","prompt_token_ids":[1,2]}]})", true},
      {R"({"prompt_token_ids":[1,2],"choices":[]})"},
      // Log probabilities of both kinds.
      {R"({"choices":[{"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-1,-2.5e-1]}}]})", true,
       true, false, false, 0, 2},
      {R"({"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1}]}}]})", true,
       true, false, false, 0, 1},
      // Mistral's parts.
      {R"({"choices":[{"delta":{"content":[{"type":"text","text":"hi"}]}}]})", true, true},
      {R"({"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}]}]}}]})",
       true, true},
      {R"({"choices":[{"delta":{"content":[{"type":"text","text":""}]}}]})", true},
      // Several choices: one with content is enough.
      {R"({"choices":[{"index":0,"text":""},{"index":1,"text":"b","token_ids":[9]}]})", true, true, false,
       false, 1},
      // Errors.
      {R"({"error":{"message":"out of pages","code":500}})", false, false, false, true},
      {R"({"error":"out of pages"})", false, false, false, true},
      {R"({"object":"error","message":"out of pages"})", false, false, false, true},
      {R"({"error":null,"choices":[{"text":"x"}]})", true, true},
      // The words elsewhere mean nothing.
      {R"({"text":"x","content":"y","finish_reason":"stop","token_ids":[1]})"},
      {R"({"choices":{"text":"x"}})"},
      {R"({"other":{"choices":[{"text":"x"}],"error":"e"}})"},
      {R"({"choices":[{"other":{"text":"x","delta":{"content":"y"}}}]})", true},
      {R"({"choices":[{"":{"text":"x"}}]})", true},
      // Escapes and blanks.
      {"{ \"choices\" :\t[ { \"text\" : \"\\u0041\" } ]\r\n}", true, true},
      {R"({"\u0063hoices":[{"t\u0065xt":"x"}]})", true, true},
      {R"({"choices":[{"text":"half \ud83d"}]})", true, true},
      {"{\"choices\":[{\"text\":\"\xff\"}]}", true, true},
      {R"({})"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.data);
    const AnswerEvent event = MustRead(row.data);
    EXPECT_EQ(event.has_choices, row.has_choices);
    EXPECT_EQ(event.has_content, row.has_content);
    EXPECT_EQ(event.finishes, row.finishes);
    EXPECT_EQ(event.is_error, row.is_error);
    EXPECT_EQ(event.ids, row.ids);
    EXPECT_EQ(event.logprobs, row.logprobs);
  }
}

TEST(AnswerEvent, SomeFinishReasonsTellOfNoAnswer) {
  for (const char* reason : {"error", "abort"}) {
    const AnswerEvent event =
        MustRead(R"({"choices":[{"delta":{},"finish_reason":")" + std::string(reason) + R"("}]})");
    EXPECT_TRUE(event.finishes && event.fails) << reason;
  }
  for (const char* reason : {"stop", "length", "tool_calls", "content_filter"}) {
    const AnswerEvent event =
        MustRead(R"({"choices":[{"text":"","finish_reason":")" + std::string(reason) + R"("}]})");
    EXPECT_TRUE(event.finishes) << reason;
    EXPECT_FALSE(event.fails) << reason;
  }
}

TEST(AnswerEvent, TakesUsageOnlyWhereItIsACount) {
  const AnswerEvent usage =
      MustRead(R"({"usage":{"prompt_tokens":512,"completion_tokens":0,"total_tokens":512}})");
  EXPECT_EQ(usage.prompt_tokens, 512);
  EXPECT_EQ(usage.completion_tokens, 0);
  const AnswerEvent none = MustRead(R"({"usage":{"prompt_tokens":-1,"completion_tokens":"7"}})");
  EXPECT_FALSE(none.prompt_tokens.has_value());
  EXPECT_FALSE(none.completion_tokens.has_value());
  EXPECT_FALSE(MustRead(R"({"usage":{"completion_tokens":99999999999}})").completion_tokens.has_value());
}

TEST(AnswerEvent, WhatIsNoJsonObjectHasAFault) {
  const std::vector<std::string> texts = {
      "",
      "null",
      "5",
      "[1]",
      "\"x\"",
      "{",
      "}",
      "{\"a\"}",
      "{\"a\":}",
      "{\"a\":1,}",
      "{,}",
      "{\"a\":1 2}",
      "{\"a\":01}",
      "{\"a\":1.}",
      "{\"a\":.5}",
      "{\"a\":+1}",
      "{\"a\":-}",
      "{\"a\":1e}",
      "{\"a\":tru}",
      "{'a':1}",
      "{\"a\":\"\n\"}",
      "{\"a\":\"\\x\"}",
      "{\"a\":\"\\u12g4\"}",
      "{\"a\":\"",
      "{\"a\":[1,]}",
      "{\"a\":[1 2]}",
      "{\"a\":{]}",
      "{} {}",
      "{\"a\":NaN}",
      "{1:2}",
      "{\"a\" 1}",
      std::string("{\"a\":\"") + '\0' + "\"}",
      "{\"a\":\"\\",
  };
  for (const std::string& text : texts) {
    std::string fault;
    EXPECT_FALSE(ReadAnswerEvent(text, &fault).has_value()) << text;
    EXPECT_FALSE(fault.empty()) << text;
  }
}

TEST(AnswerEvent, BracketsInsideEachOtherHaveABound) {
  const auto nested = [](size_t lists) {
    return "{\"a\":" + std::string(lists, '[') + std::string(lists, ']') + "}";
  };
  std::string fault;
  EXPECT_TRUE(ReadAnswerEvent(nested(kMaxEventDepth - 1), &fault).has_value());
  EXPECT_FALSE(ReadAnswerEvent(nested(kMaxEventDepth), &fault).has_value());
  EXPECT_THAT(fault, HasSubstr(std::to_string(kMaxEventDepth)));
}

TEST(AnswerEvent, PartsThatAreSeldomWantedAreFound) {
  EXPECT_EQ(ErrorMessageOf(R"({"error":{"message":"full"}})"), "full");
  EXPECT_EQ(ErrorMessageOf(R"({"error":"full"})"), "full");
  EXPECT_EQ(ErrorMessageOf(R"({"object":"error","message":"full"})"), "full");
  EXPECT_EQ(ErrorMessageOf(R"({"detail":"full"})"), "full");
  EXPECT_EQ(ErrorMessageOf("<html>"), "");
  EXPECT_EQ(TimingOf(R"({"choices":[],"timing":{"queue_ms":1.5}})"), R"({"queue_ms":1.5})");
  EXPECT_TRUE(MustRead(R"({"choices":[],"timing":{"queue_ms":1.5}})").has_timing);
  EXPECT_FALSE(MustRead(R"({"timing":null})").has_timing);
  EXPECT_EQ(ContentTextOf(R"({"choices":[{"text":"a"},{"delta":{"reasoning":"b","content":"c"}}]})"), "abc");
  EXPECT_EQ(ContentTextOf(R"({"choices":[{"delta":{"reasoning_content":"b","reasoning":"b"}}]})"), "b");
}

// ---- drawn events beside a parsed document ------------------------------------------------------

bool IsText(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() && object[key] != "";
}

bool HasParts(const Json& value) {
  if (value.is_string()) return value != "";
  if (!value.is_array()) return false;
  bool found = false;
  for (const Json& part : value) {
    if (part.is_string() && part != "") found = true;
    for (const char* key : {"text", "thinking"}) {
      if (part.is_object() && part.contains(key) && HasParts(part[key])) found = true;
    }
  }
  return found;
}

// The definition of a content event, on the document.
bool HasContentByDocument(const Json& event) {
  bool found = false;
  if (!event.contains("choices") || !event["choices"].is_array()) return false;
  for (const Json& choice : event["choices"]) {
    if (!choice.is_object()) continue;
    if (choice.contains("text") && HasParts(choice["text"])) found = true;
    if (choice.contains("delta") && choice["delta"].is_object()) {
      const Json& delta = choice["delta"];
      for (const char* key : {"content", "reasoning", "reasoning_content", "refusal"}) {
        if (delta.contains(key) && HasParts(delta[key])) found = true;
      }
      if (delta.contains("function_call") && IsText(delta["function_call"], "arguments")) found = true;
      if (delta.contains("tool_calls") && delta["tool_calls"].is_array()) {
        for (const Json& call : delta["tool_calls"]) {
          if (call.is_object() && call.contains("function") && IsText(call["function"], "arguments"))
            found = true;
        }
      }
    }
    for (const Json* holder : {&choice, choice.contains("delta") ? &choice["delta"] : nullptr}) {
      if (holder == nullptr || !holder->is_object() || !holder->contains("token_ids")) continue;
      const Json& ids = (*holder)["token_ids"];
      if (ids.is_array() &&
          std::any_of(ids.begin(), ids.end(), [](const Json& id) { return id.is_number(); })) {
        found = true;
      }
    }
  }
  return found;
}

Json Draw(std::mt19937_64* random, int depth) {
  static const std::vector<std::string> kKeys = {
      "choices",   "delta",         "text",   "content",       "reasoning", "tool_calls",   "function",
      "arguments", "token_ids",     "usage",  "error",         "message",   "thinking",     "logprobs",
      "tokens",    "finish_reason", "object", "k\"\\\n\u00e9", "",          "function_call"};
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  const size_t kind = depth == 0 ? below(6) : below(10);
  switch (kind) {
    case 0:
      return nullptr;
    case 1:
      return below(2) == 0;
    case 2:
      return static_cast<int64_t>((*random)());
    case 3:
      return static_cast<double>(below(1000)) / 7;
    case 4:
      return "";
    case 5:
      return std::array{"a", "\"\\/\b\f\n\r\t\u0001", "\u00e9\U0001f600", "error"}[below(4)];
    case 6:
    case 7: {
      Json list = Json::array();
      for (size_t i = below(4); i > 0; --i) list.push_back(Draw(random, depth - 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (size_t i = below(6); i > 0; --i) object[kKeys[below(kKeys.size())]] = Draw(random, depth - 1);
      return object;
    }
  }
}

// Biased towards what matters: choices that are objects, with the keys that hold content.
Json DrawEvent(std::mt19937_64* random) {
  static const std::vector<std::string> kDeltaKeys = {"content", "reasoning", "tool_calls", "function_call",
                                                      "refusal", "token_ids", "other"};
  const auto one_in = [&](uint64_t n) { return (*random)() % n == 0; };
  Json event = Json::object();
  event["id"] = "x";
  event["choices"] = Json::array();
  for (uint64_t i = (*random)() % 3; i > 0; --i) {
    Json choice = Draw(random, 4);
    if (!choice.is_object() && !one_in(8)) choice = Json::object();
    if (choice.is_object() && one_in(4)) choice["text"] = Draw(random, 2);
    if (choice.is_object() && one_in(4)) choice["token_ids"] = Draw(random, 1);
    if (choice.is_object() && one_in(2)) {
      choice["delta"] = {{kDeltaKeys[(*random)() % kDeltaKeys.size()], Draw(random, 3)}};
    }
    if (choice.is_object() && one_in(4)) {
      choice["delta"] = {{"tool_calls", {{{"function", {{"arguments", Draw(random, 1)}}}}}}};
    }
    event["choices"].push_back(choice);
  }
  if (one_in(4)) event["error"] = Draw(random, 1);
  if (one_in(8)) event["choices"] = Draw(random, 4);
  return event;
}

TEST(AnswerEvent, DrawnEventsAreWhatTheirDocumentsSay) {
  std::mt19937_64 random(TestSeed());
  int64_t with_content = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Json document = DrawEvent(&random);
    const std::string text = document.dump(random() % 2 == 0 ? -1 : 1, ' ', random() % 2 == 0);
    const AnswerEvent event = MustRead(text);
    ASSERT_EQ(event.has_content, HasContentByDocument(document)) << text;
    ASSERT_EQ(event.has_choices, document["choices"].is_array() && !document["choices"].empty()) << text;
    ASSERT_EQ(event.is_error, document.contains("error") && !document["error"].is_null()) << text;
    with_content += event.has_content ? 1 : 0;
  }
  EXPECT_GT(with_content, 1000);
  EXPECT_LT(with_content, 18'000);
}

// With one byte changed a text is JSON for this scanner if and only if it is for a full parser; but for lone
// halves of surrogate pairs, which only the scanner takes, and numbers that no double holds.
TEST(AnswerEvent, WhatIsJsonIsWhatAFullParserSays) {
  std::mt19937_64 random(TestSeed());
  int64_t faults = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = DrawEvent(&random).dump(-1, ' ', random() % 2 == 0);
    static constexpr std::string_view kBytes = "{}[]\",:\\ 0123456789.eE+-tfnu\x01\xc3";
    text[random() % text.size()] = kBytes[random() % kBytes.size()];
    const Json parsed = Json::parse(ReplaceInvalidUtf8(text), nullptr, false);
    std::string fault;
    const bool is_read = ReadAnswerEvent(text, &fault).has_value();
    const bool may_differ =
        text.find("\\u") != std::string::npos || text.find_first_of("eE") != std::string::npos;
    if (may_differ && is_read && parsed.is_discarded()) continue;
    ASSERT_EQ(is_read, parsed.is_object()) << text << ": " << fault;
    faults += is_read ? 0 : 1;
  }
  EXPECT_GT(faults, 1000);
}

}  // namespace
}  // namespace tramontane::load
