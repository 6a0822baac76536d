#include "server/answers/answer_constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/grammar/constraint_compiler.h"
#include "tests/models/tekken_test_file.h"
#include "tests/support/random_constraints.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

// A token for each byte. A fixture, so that a build without the library says what it did not test.
class MarkedCalls : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = SmallTekken(TekkenJson({}, GetParam()));
    constraints_ =
        ConstraintCompiler::Create(*tokenizer_, tokenizer_->vocab_size(), {tokenizer_->eos_id()}, {});
    if (constraints_ == nullptr) {
      GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
    }
    model_.names = {"m"};
    model_.config.vocab_size = tokenizer_->vocab_size();
    model_.config.eos_ids = {tokenizer_->eos_id()};
    model_.tokenizer = tokenizer_.get();
    model_.constraints = constraints_.get();
  }

  static v1::Chat TwoTools(v1::ToolChoiceMode mode, const std::string& name = "") {
    v1::Chat chat;
    v1::Tool* weather = chat.add_tools();
    weather->set_name("weather");
    weather->set_parameters_json(
        R"({"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"],
            "additionalProperties": false})");
    v1::Tool* ping = chat.add_tools();
    ping->set_name("ping");
    ping->set_parameters_json(R"({"properties": {}, "additionalProperties": false})");
    chat.mutable_tool_choice()->set_mode(mode);
    chat.mutable_tool_choice()->set_name(name);
    return chat;
  }

  // What of the tools' schemas the answer is not held to.
  std::vector<std::string> LetGo(const v1::Chat& chat) const {
    ConstraintParams constraint;
    Unenforced unenforced;
    const RpcError error = Constrain(chat, &constraint, nullptr, &unenforced);
    EXPECT_TRUE(error.ok()) << error.message();
    return unenforced.Parts();
  }

  RpcError Constrain(const v1::Chat& chat, ConstraintParams* constraint,
                     std::shared_ptr<const Grammar> text = {}, Unenforced* unenforced = nullptr) const {
    Unenforced dropped;
    constraint->grammar = std::move(text);
    return ConstrainCalls(model_, MistralAnswerSyntax(*tokenizer_, tokenizer_->version().value()), chat,
                          constraint, unenforced == nullptr ? &dropped : unenforced);
  }

  // `output`, with control tokens where their names stand, and then the end. `text`: the format of an answer.
  bool Takes(const v1::Chat& chat, std::string_view output, std::shared_ptr<const Grammar> text = {}) const {
    ConstraintParams constraint;
    const RpcError error = Constrain(chat, &constraint, std::move(text));
    EXPECT_TRUE(error.ok()) << error.message();
    EXPECT_TRUE(constraint.forced_prefix.empty());
    const auto matcher = constraint.grammar->NewMatcher(TextStart::kOfMessage);
    std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
    const auto prepare = [&matcher] {
      if (!matcher->IsUnprepared()) return;
      const Status status = matcher->Prepare({});
      EXPECT_TRUE(status.ok()) << status;
    };
    while (!output.empty()) {
      const size_t end = output.find(']');
      const auto control = output[0] == '[' && end != std::string_view::npos
                               ? tokenizer_->ControlId(output.substr(0, end + 1))
                               : std::nullopt;
      const int32_t token = control ? *control : kTestSpecialTokens + static_cast<uint8_t>(output[0]);
      prepare();
      matcher->FillMask(mask);
      const bool allowed = MaskAllows(mask, token);
      EXPECT_EQ(matcher->Accept(token), allowed) << output;
      if (!allowed) return false;
      output.remove_prefix(control ? end + 1 : 1);
    }
    prepare();
    matcher->FillMask(mask);
    return MaskAllows(mask, tokenizer_->eos_id());
  }

  std::unique_ptr<const TekkenTokenizer> tokenizer_;
  std::unique_ptr<ConstraintCompiler> constraints_;
  ServedModel model_;
};

constexpr char kWeather[] = R"([TOOL_CALLS]weather[ARGS]{"city": "Oslo"})";

TEST_P(MarkedCalls, RequiredIsOneCallOrSeveralOfAnyTool) {
  const v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_TRUE(Takes(chat, kWeather));
  EXPECT_TRUE(Takes(chat, "[TOOL_CALLS]ping[ARGS]{}"));
  EXPECT_TRUE(Takes(chat, std::string(kWeather) + "[TOOL_CALLS]ping[ARGS]{}" + kWeather));
  EXPECT_FALSE(Takes(chat, "")) << "no call";
  EXPECT_FALSE(Takes(chat, "Hello"));
  EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]pong[ARGS]{}"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"city": "Oslo"})")) << "another tool's arguments";
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]weather[ARGS]{"city": )"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]weather[ARGS]{"city": [TOOL_CALLS])"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS][])")) << "no object, though its schema says no type";
}

// An object, and what the schema says besides.
TEST_P(MarkedCalls, ASchemaMayBeginWithAReferenceOrAlternatives) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(0)->set_parameters_json(
      R"({"$id": "https://a.b/c", "$ref": "#/$defs/P", "$defs": {"P": {"properties": {"city": {"const": "Oslo"}}, "required": ["city"]}}})");
  chat.mutable_tools(1)->set_parameters_json(
      R"({"anyOf": [{"properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"type": "string"}]})");
  EXPECT_TRUE(Takes(chat, kWeather));
  EXPECT_TRUE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"n": 1})"));
  EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]weather[ARGS]{}"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]"n")"));
}

TEST_P(MarkedCalls, WithoutParallelCallsItIsOne) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.set_parallel_tool_calls(false);
  EXPECT_TRUE(Takes(chat, kWeather));
  EXPECT_FALSE(Takes(chat, std::string(kWeather) + kWeather));
}

TEST_P(MarkedCalls, NamedIsOneOfThatTool) {
  const v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_NAMED, "ping");
  EXPECT_TRUE(Takes(chat, "[TOOL_CALLS]ping[ARGS]{}"));
  EXPECT_FALSE(Takes(chat, kWeather));
  EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[ARGS]{}"));
}

TEST_P(MarkedCalls, AToolThatSaysNothingOfParametersIsCalledWithNone) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_NAMED, "ping");
  for (const char* parameters : {"", "{}", "null", R"({"type": "object", "properties": {}})"}) {
    chat.mutable_tools(1)->set_parameters_json(parameters);
    EXPECT_TRUE(Takes(chat, "[TOOL_CALLS]ping[ARGS]{}")) << parameters;
    EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"a": 1})")) << parameters;
  }
  chat.mutable_tools(1)->set_parameters_json(R"({"type": "object"})");
  EXPECT_TRUE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"a": 1})")) << "any, as JSON Schema has it";
}

TEST_P(MarkedCalls, AFaultOfAStrictSchemaIsThatOfItsTool) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  chat.mutable_tools(1)->set_parameters_json(R"({"properties": {"x": {"$ref": "#/nowhere"}}})");
  chat.mutable_tools(1)->set_strict(true);
  ConstraintParams constraint;
  const RpcError error = Constrain(chat, &constraint);
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.field, "chat.tools[1].parameters");
  EXPECT_THAT(error.message(), HasSubstr(".properties.x"));
}

TEST_P(MarkedCalls, WhatCannotBeHeldToIsToldAndTheRestIsHeld) {
  for (const auto mode : {v1::TOOL_CHOICE_MODE_AUTO, v1::TOOL_CHOICE_MODE_REQUIRED}) {
    v1::Chat chat = TwoTools(mode);
    chat.mutable_tools(1)->set_parameters_json(R"({"properties": {"x": {"$ref": "#/nowhere"}}})");
    const std::vector<std::string> let_go = LetGo(chat);
    ASSERT_EQ(let_go.size(), 1u);
    EXPECT_THAT(let_go[0], HasSubstr("chat.tools[1].parameters"));
    EXPECT_THAT(let_go[0], HasSubstr(".properties.x"));
    EXPECT_TRUE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"x": [2]})"));
    EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]ping[ARGS][]")) << "an object it stays";
    EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]weather[ARGS]{}"));
  }
}

TEST_P(MarkedCalls, ArgumentsAreAnObjectWhateverTheirTypeIs) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(1)->set_parameters_json(R"({"type": "string"})");
  const std::vector<std::string> let_go = LetGo(chat);
  ASSERT_EQ(let_go.size(), 1u);
  EXPECT_EQ(let_go[0], "chat.tools[1].parameters (type)");
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]"x")"));
  EXPECT_TRUE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"x": 1})"));
}

TEST_P(MarkedCalls, TheSmallestPartIsLetGoAndToldWithItsKeyword) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  chat.mutable_tools(1)->set_parameters_json(
      R"({"properties": {"x": {"type": "object", "patternProperties": {"a": {}}}, "n": {"type": "integer"}}})");
  ConstraintParams constraint;
  const std::vector<std::string> let_go = LetGo(chat);
  EXPECT_THAT(let_go, ::testing::ElementsAre("chat.tools[1].parameters.properties.x (patternProperties)"));
  EXPECT_TRUE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"x": {"b": 1}, "n": 2})"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"x": 1})"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]ping[ARGS]{"n": "2"})"));
  chat.mutable_tools(1)->set_strict(true);
  EXPECT_THAT(Constrain(chat, &constraint).message(),
              HasSubstr("chat.tools[1].parameters: .properties.x (patternProperties)"));
}

TEST_P(MarkedCalls, AllSchemasTogetherHaveOneLimit) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  const auto most = static_cast<size_t>(constraints_->limits().max_bytes);
  chat.mutable_tools(0)->set_parameters_json("{" + std::string(15 * most, ' ') + "}");
  chat.mutable_tools(1)->set_parameters_json("{" + std::string(most, ' ') + "}");
  chat.mutable_tools(1)->set_strict(true);
  ConstraintParams constraint;
  const RpcError error = Constrain(chat, &constraint);
  EXPECT_EQ(error.field, "chat.tools[1].parameters");
  EXPECT_THAT(error.message(), HasSubstr("enforced at once"));
  chat.mutable_tools(1)->set_strict(false);
  Unenforced unenforced;
  EXPECT_TRUE(Constrain(chat, &constraint, nullptr, &unenforced).ok());
  EXPECT_EQ(unenforced.Parts().size(), 1u);
}

TEST_P(MarkedCalls, WhatIsNotHeldToIsToldInAKibibyteAndCounted) {
  Unenforced unenforced;
  for (int i = 0; i < 100; ++i) unenforced.Add("chat.tools[1].parameters.properties.x (patternProperties)");
  const std::vector<std::string> parts = unenforced.Parts();
  ASSERT_EQ(parts.size(), 1024 / parts[0].size() + 1);
  EXPECT_EQ(parts.back(), "and " + std::to_string(101 - parts.size()) + " more");
}

TEST_P(MarkedCalls, UnderAutoTheModelMaySpeakAndThenItsCallsAreHeld) {
  const v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  EXPECT_TRUE(Takes(chat, ""));
  EXPECT_TRUE(Takes(chat, "Hello"));
  EXPECT_TRUE(Takes(chat, std::string("Let me see.") + kWeather + "[TOOL_CALLS]ping[ARGS]{}"));
  EXPECT_TRUE(Takes(chat, "a[ARGS]b")) << "no call";
  EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]pong[ARGS]{}"));
  EXPECT_FALSE(Takes(chat, R"([TOOL_CALLS]weather[ARGS]{"city": "Rome"})"));
  EXPECT_FALSE(Takes(chat, std::string(kWeather) + "So")) << "behind a call only another";
  EXPECT_FALSE(Takes(chat, "[TOOL_CALLS]ping[ARGS]"));
}

TEST_P(MarkedCalls, OneCallAtATimeIsOneUnderAuto) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  chat.set_parallel_tool_calls(false);
  EXPECT_TRUE(Takes(chat, std::string("Hm. ") + kWeather));
  EXPECT_FALSE(Takes(chat, std::string(kWeather) + kWeather));
}

TEST_P(MarkedCalls, ToolsThatAreNotAllowedAreNotCalled) {
  for (const auto mode : {v1::TOOL_CHOICE_MODE_AUTO, v1::TOOL_CHOICE_MODE_REQUIRED}) {
    v1::Chat chat = TwoTools(mode);
    chat.mutable_tool_choice()->add_allowed("ping");
    EXPECT_TRUE(Takes(chat, "[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[ARGS]{}"));
    EXPECT_FALSE(Takes(chat, kWeather));
  }
}

TEST_P(MarkedCalls, WithAFormatAnAnswerIsThatOrCalls) {
  const v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  const auto format = constraints_->Compile({ConstraintSpec::Kind::kChoice, "", {"[1]", "[2]"}});
  ASSERT_TRUE(format.ok());
  EXPECT_TRUE(Takes(chat, "[2]", *format));
  EXPECT_TRUE(Takes(chat, std::string(kWeather) + kWeather, *format));
  EXPECT_FALSE(Takes(chat, "", *format));
  EXPECT_FALSE(Takes(chat, std::string("[2]") + kWeather, *format));
  EXPECT_FALSE(Takes(chat, "[3]", *format));
}

TEST_P(MarkedCalls, AServerWithoutStructuredOutputSaysSo) {
  model_.constraints = nullptr;
  ConstraintParams constraint;
  EXPECT_EQ(Constrain(TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED), &constraint).reason, "NO_STRUCTURED_OUTPUT");
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  Unenforced unenforced;
  EXPECT_TRUE(Constrain(chat, &constraint, nullptr, &unenforced).ok());
  EXPECT_EQ(constraint.grammar, nullptr) << "calls are what the model makes of them";
  const auto text = constraints_->Compile({ConstraintSpec::Kind::kChoice, "", {"a"}});
  EXPECT_TRUE(Constrain(chat, &constraint, *text).ok());
  EXPECT_EQ(constraint.grammar, *text) << "and the format is what it was";
  EXPECT_EQ(unenforced.Parts(), std::vector<std::string>{"chat.tools"});
  chat.mutable_tools(1)->set_strict(true);
  EXPECT_EQ(Constrain(chat, &constraint).field, "chat.tools[1].strict");
}

INSTANTIATE_TEST_SUITE_P(Formats, MarkedCalls, ::testing::Values("v11", "v13", "v15"));

// ---- lists of calls -----------------------------------------------------------------------------------

class ListedCalls : public MarkedCalls {};

constexpr char kWeatherListed[] = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
constexpr char kPingListed[] = R"({"name": "ping", "arguments": {}})";

std::string List(const std::string& calls) { return "[TOOL_CALLS][" + calls + "]"; }

TEST_P(ListedCalls, AListIsHeldLikeMarkedCalls) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  const std::string both = List(std::string(kWeatherListed) + ", " + kPingListed);
  EXPECT_TRUE(Takes(chat, "[x] Hello"));
  EXPECT_TRUE(Takes(chat, "Hm." + both));
  EXPECT_FALSE(Takes(chat, List(R"({"name": "pong", "arguments": {}})")));
  EXPECT_FALSE(Takes(chat, List(R"({"name": "weather", "arguments": {}})")));
  EXPECT_FALSE(Takes(chat, both + "So"));
  EXPECT_FALSE(Takes(chat, both + "[TOOL_CALLS]"));
  chat.set_parallel_tool_calls(false);
  EXPECT_TRUE(Takes(chat, "Hm." + List(kPingListed)));
  EXPECT_FALSE(Takes(chat, both));
  chat.mutable_tool_choice()->add_allowed("ping");
  EXPECT_FALSE(Takes(chat, List(kWeatherListed)));
  chat.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_TRUE(Takes(chat, List(kPingListed)));
  EXPECT_FALSE(Takes(chat, "Hm." + List(kPingListed)));
}

TEST_P(ListedCalls, OfAListTheSchemaAtFaultAloneIsLeftOut) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(1)->set_parameters_json(R"({"properties": {"x": {"$ref": "#/nowhere"}}})");
  ConstraintParams constraint;
  const std::vector<std::string> let_go = LetGo(chat);
  ASSERT_EQ(let_go.size(), 1u);
  EXPECT_THAT(let_go[0], HasSubstr("chat.tools[1].parameters"));
  EXPECT_TRUE(Takes(chat, List(R"({"name": "ping", "arguments": {"x": 1}})")));
  EXPECT_FALSE(Takes(chat, List(R"({"name": "weather", "arguments": {}})")));
  chat.mutable_tools(1)->set_strict(true);
  EXPECT_EQ(Constrain(chat, &constraint).field, "chat.tools[1].parameters");
}

// Schemas that are too large together: the largest gives way, but for one that is strict.
TEST_P(ListedCalls, OfAListThatIsTooLongTheLargestSchemaIsLeftOut) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  std::string names;
  for (int i = 0; i < 4000; ++i)
    names += (i == 0 ? "" : ", ") + std::string("\"value_number_") + std::to_string(i) + '"';
  chat.mutable_tools(1)->set_parameters_json(R"({"properties": {"x": {"enum": [)" + names + "]}}}");
  ConstraintParams constraint;
  const std::vector<std::string> let_go = LetGo(chat);
  ASSERT_EQ(let_go.size(), 1u);
  EXPECT_THAT(let_go[0], HasSubstr("chat.tools[1].parameters"));
  EXPECT_FALSE(Takes(chat, List(R"({"name": "weather", "arguments": {}})")));
  chat.mutable_tools(1)->set_strict(true);
  EXPECT_EQ(Constrain(chat, &constraint).field, "chat.tools[1].parameters");
}

TEST_P(ListedCalls, OfManyThatAreTooLongAllAreLeftOutAtOnce) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  for (int i = 0; i < 500; ++i) {
    v1::Tool& tool = *chat.add_tools();
    tool.set_name("tool_" + std::to_string(i));
    std::string names;
    for (int k = 0; k < 50; ++k) names += (k == 0 ? "\"v" : ", \"v") + std::to_string(i * 100 + k) + '"';
    tool.set_parameters_json(R"({"properties": {"x": {"enum": [)" + names + "]}}}");
  }
  const std::vector<std::string> let_go = LetGo(chat);
  ASSERT_FALSE(let_go.empty());
  EXPECT_THAT(let_go.back(), HasSubstr(" more"));
  EXPECT_TRUE(Takes(chat, List(R"({"name": "tool_7", "arguments": {"x": 1}})")));
  EXPECT_FALSE(Takes(chat, List(R"({"name": "tool_x", "arguments": {}})")));
}

TEST_P(ListedCalls, ArgumentsAreAnObjectWhateverTheirTypeIs) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(1)->set_parameters_json(R"({"type": "string"})");
  ConstraintParams constraint;
  const std::vector<std::string> let_go = LetGo(chat);
  ASSERT_EQ(let_go.size(), 1u);
  EXPECT_EQ(let_go[0], "chat.tools[1].parameters (type)");
  EXPECT_FALSE(Takes(chat, List(R"({"name": "ping", "arguments": "x"})")));
  EXPECT_TRUE(Takes(chat, List(R"({"name": "ping", "arguments": {"x": 1}})")));
  chat.mutable_tools(1)->set_parameters_json(R"({"type": ["object", "null"]})");
  EXPECT_FALSE(Takes(chat, List(R"({"name": "ping", "arguments": null})")));
  chat.mutable_tools(1)->set_parameters_json(R"({"type": "string"})");
  chat.mutable_tools(1)->set_strict(true);
  EXPECT_EQ(Constrain(chat, &constraint).field, "chat.tools[1].parameters");
}

// What is kept is told again, and of the tool that it is of in this chat.
TEST_P(ListedCalls, WhatIsLetGoIsToldEachTime) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_AUTO);
  chat.mutable_tools(1)->set_parameters_json(R"({"properties": {"x": {"not": {}}}})");
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::string> let_go = LetGo(chat);
    EXPECT_THAT(let_go, ::testing::ElementsAre("chat.tools[1].parameters.properties.x (not)"));
  }
  chat.mutable_tools(0)->Swap(chat.mutable_tools(1));
  const std::vector<std::string> let_go = LetGo(chat);
  EXPECT_THAT(let_go, ::testing::ElementsAre("chat.tools[0].parameters.properties.x (not)"));
}

INSTANTIATE_TEST_SUITE_P(Formats, ListedCalls, ::testing::Values("v3", "v7"));

// ---- any tools, any model -----------------------------------------------------------------------------

using nlohmann::json;

// Says anything, but seldom ends or calls; where a mask holds it, any of what is allowed.
class CallsOfAnyModel : public MarkedCalls {
 protected:
  int Draw(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }

  json RandomSchema() {
    json schema = {{"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}};
    for (int i = Draw(4); i-- > 0;) {
      const std::string name = "p" + std::to_string(i);
      const json kinds[] = {{{"type", "integer"}},
                            {{"type", "boolean"}},
                            {{"enum", {"red", 7, nullptr}}},
                            {{"type", "string"}, {"maxLength", 3}},
                            {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"maxItems", 2}}};
      schema["properties"][name] = kinds[Draw(5)];
      if (Draw(2) == 0) schema["required"].push_back(name);
    }
    return schema;
  }
  static void ExpectValid(const json& value, const json& schema) {
    ASSERT_TRUE(value.is_object());
    for (const auto& name : schema.value("required", json::array()))
      EXPECT_TRUE(value.contains(name.get<std::string>())) << value;
    for (const auto& [name, property] : value.items()) {
      ASSERT_TRUE(schema["properties"].contains(name)) << value;
      const json& asked = schema["properties"][name];
      const std::string type = asked.value("type", "");
      const json allowed = asked.value("enum", json::array({property}));
      EXPECT_NE(std::find(allowed.begin(), allowed.end(), property), allowed.end()) << property;
      EXPECT_TRUE(type != "integer" || property.is_number()) << property;
      EXPECT_TRUE(type != "boolean" || property.is_boolean()) << property;
      EXPECT_TRUE(type != "string" || property.is_string()) << property;
      EXPECT_TRUE(type != "array" || (property.is_array() && property.size() <= 2)) << property;
    }
  }

  std::map<std::string, json> DrawTools(const std::function<json()>& draw_schema) {
    std::map<std::string, json> schemas;
    for (int i = 1 + Draw(4); i-- > 0;) {
      const std::string name =
          std::string(static_cast<size_t>(1 + Draw(3)), 'a') + (Draw(2) == 0 ? "_b" : "");
      if (!schemas.contains(name)) schemas[name] = draw_schema();
    }
    return schemas;
  }
  static v1::Chat ChatWith(const std::map<std::string, json>& schemas) {
    v1::Chat chat;
    for (const auto& [name, schema] : schemas) {
      v1::Tool* tool = chat.add_tools();
      tool->set_name(name);
      tool->set_parameters_json(schema.dump());
    }
    return chat;
  }
  // (name, arguments) of each call of an answer; none where it went on for too long.
  std::vector<std::pair<std::string, json>> CallsOf(const std::map<std::string, json>& schemas) {
    v1::Chat chat = ChatWith(schemas);
    if (Draw(3) == 0) chat.set_parallel_tool_calls(false);
    ConstraintParams constraint;
    EXPECT_TRUE(Constrain(chat, &constraint).ok());
    const auto matcher = constraint.grammar->NewMatcher(TextStart::kOfMessage);
    std::vector<int32_t> ids;
    if (!Say(*matcher, &ids)) return {};
    const auto said = CallsIn(ids);
    EXPECT_TRUE(!chat.has_parallel_tool_calls() || said.size() <= 1);
    return said;
  }

  std::vector<uint32_t> MaskOf(GrammarMatcher& matcher) const {
    std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
    matcher.FillMask(mask);
    return mask;
  }
  // What is tried on a copy changes nothing, and meets the masks that the same tokens meet anywhere.
  void TryOnCopies(const GrammarMatcher& matcher) {
    const auto before = matcher.Copy(), first = matcher.Copy(), second = matcher.Copy();
    const std::vector<uint32_t> mask = MaskOf(*before);
    for (int step = 0; step < 4 && !first->IsUnprepared(); ++step) {
      const std::vector<uint32_t> next = MaskOf(*first);
      ASSERT_EQ(MaskOf(*second), next);
      int32_t id = Draw(tokenizer_->vocab_size());
      while (!MaskAllows(next, id)) id = (id + 1) % tokenizer_->vocab_size();
      if (id == tokenizer_->eos_id()) break;
      EXPECT_TRUE(first->Accept(id));
      EXPECT_TRUE(second->Accept(id));
    }
    EXPECT_EQ(MaskOf(*before), mask);
    EXPECT_EQ(MaskOf(*matcher.Copy()), mask);
  }

  // False: it went on for too long.
  bool Say(GrammarMatcher& matcher, std::vector<int32_t>* ids) {
    const int32_t vocab = tokenizer_->vocab_size();
    std::vector<uint32_t> mask(MaskWords(vocab));
    while (ids->size() < 4000) {
      EXPECT_TRUE(!matcher.IsUnprepared() || matcher.Prepare({}).ok());
      if (Draw(8) == 0) TryOnCopies(matcher);
      std::vector<int32_t> allowed;
      if (matcher.IsFree()) {
        const int32_t special = Draw(2) == 0 ? tokenizer_->eos_id() : *tokenizer_->ControlId("[TOOL_CALLS]");
        allowed = {Draw(4) == 0 ? special : Draw(vocab)};
      } else {
        matcher.FillMask(mask);
        for (int32_t id = 0; id < vocab; ++id) {
          if (MaskAllows(mask, id)) allowed.push_back(id);
        }
      }
      if (allowed.empty()) {
        ADD_FAILURE() << "a dead end";
        return false;
      }
      const int32_t id = allowed[static_cast<size_t>(Draw(static_cast<int>(allowed.size())))];
      if (id == tokenizer_->eos_id()) return true;
      ids->push_back(id);
      EXPECT_TRUE((matcher.IsFree() && matcher.StayFree(id)) || matcher.Accept(id)) << id;
    }
    return false;
  }

  std::string Text(std::span<const int32_t> ids) const {
    std::string text;
    for (const int32_t id : ids) text += tokenizer_->PieceBytes(id);
    return text;
  }
  // (name, arguments) of each.
  std::vector<std::pair<std::string, json>> CallsIn(const std::vector<int32_t>& ids) const {
    const int32_t mark = *tokenizer_->ControlId("[TOOL_CALLS]"), args = *tokenizer_->ControlId("[ARGS]");
    const bool listed = std::string(GetParam()) == "v7";
    std::vector<std::pair<std::string, json>> calls;
    for (auto begin = std::find(ids.begin(), ids.end(), mark); begin != ids.end();) {
      const auto end = std::find(begin + 1, ids.end(), mark);
      const auto name_end = listed ? begin + 1 : std::find(begin, end, args);
      const json value = json::parse(Text({name_end, end}), nullptr, /*allow_exceptions=*/false);
      EXPECT_FALSE(value.is_discarded()) << Text({begin, end});
      if (listed) {
        for (const json& call : value) calls.emplace_back(call["name"], call["arguments"]);
      } else {
        calls.emplace_back(Text({begin + 1, name_end}), value);
      }
      begin = end;
    }
    return calls;
  }

  std::mt19937 random_{20261127};
};

TEST_P(CallsOfAnyModel, EachCallNamesAToolAndItsArgumentsAreValid) {
  size_t calls = 0;
  for (int round = 0; round < 30; ++round) {
    const auto schemas = DrawTools([&] { return RandomSchema(); });
    const auto said = CallsOf(schemas);
    calls += said.size();
    for (const auto& [name, arguments] : said) {
      ASSERT_TRUE(schemas.contains(name)) << name;
      ExpectValid(arguments, schemas.at(name));
    }
  }
  EXPECT_GT(calls, 10u);
}

// grammar_oracle.py judges them.
TEST_P(CallsOfAnyModel, OfSchemasOfEveryKindAreWrittenForAnOracle) {
  const char* const path = std::getenv("TRAMONTANE_CALL_SAMPLES");
  if (path == nullptr) GTEST_SKIP() << "TRAMONTANE_CALL_SAMPLES, a file for the calls, is not set";
  std::ofstream file(path, std::ios::app);
  for (size_t calls = 0; calls < 100;) {
    const auto schemas = DrawTools([&] {
      json any = json::parse(tramontane::RandomSchema(random_));
      json schema = {{"type", "object"}, {"required", {"any"}}, {"additionalProperties", false}};
      if (any.is_object() && any.contains("$defs"))
        schema["$defs"] = std::exchange(any["$defs"], json::object());
      schema["properties"] = {{"any", std::move(any)}, {"n", {{"type", "integer"}}}};
      return schema;
    });
    if (!LetGo(ChatWith(schemas)).empty()) continue;
    for (const auto& [name, arguments] : CallsOf(schemas)) {
      const auto schema = schemas.find(name);
      ASSERT_NE(schema, schemas.end()) << name;
      file << json{{"schema", schema->second.dump()}, {"text", arguments.dump()}} << '\n';
      ++calls;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CallsOfAnyModel, ::testing::Values("v7", "v11", "v13"));

}  // namespace
}  // namespace tramontane
