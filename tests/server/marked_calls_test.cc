#include "server/answers/marked_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/grammar/constraint_compiler.h"
#include "tests/models/tekken_test_file.h"

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

  RpcError Constrain(const v1::Chat& chat, ConstraintParams* constraint) const {
    return ConstrainMarkedCalls(model_, MistralAnswerSyntax(*tokenizer_, tokenizer_->version().value()), chat,
                                {}, constraint);
  }

  // `output`, with control tokens where their names stand, and then the end.
  bool Takes(const v1::Chat& chat, std::string_view output) const {
    ConstraintParams constraint;
    const RpcError error = Constrain(chat, &constraint);
    EXPECT_TRUE(error.ok()) << error.message();
    EXPECT_TRUE(constraint.forced_prefix.empty());
    const auto matcher = constraint.grammar->NewMatcher(TextStart::kOfMessage);
    std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
    while (!output.empty()) {
      const size_t end = output.find(']');
      const auto control = output[0] == '[' && end != std::string_view::npos
                               ? tokenizer_->ControlId(output.substr(0, end + 1))
                               : std::nullopt;
      const int32_t token = control ? *control : kTestSpecialTokens + static_cast<uint8_t>(output[0]);
      matcher->FillMask(mask);
      const bool allowed = MaskAllows(mask, token);
      EXPECT_EQ(matcher->Accept(token), allowed) << output;
      if (!allowed) return false;
      output.remove_prefix(control ? end + 1 : 1);
    }
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

TEST_P(MarkedCalls, AFaultOfASchemaIsThatOfItsTool) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(1)->set_parameters_json(R"({"properties": {"x": {"not": {}}}})");
  ConstraintParams constraint;
  const RpcError error = Constrain(chat, &constraint);
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.field, "chat.tools[1].parameters");
  EXPECT_THAT(error.message(), HasSubstr(".properties.x"));
}

TEST_P(MarkedCalls, AllSchemasTogetherHaveOneLimit) {
  v1::Chat chat = TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED);
  const auto half = static_cast<size_t>(constraints_->limits().max_bytes) / 2;
  for (v1::Tool& tool : *chat.mutable_tools()) {
    tool.set_parameters_json("{" + std::string(half, ' ') + "}");
  }
  ConstraintParams constraint;
  const RpcError error = Constrain(chat, &constraint);
  EXPECT_EQ(error.field, "chat.tools[1].parameters");
  EXPECT_THAT(error.message(), HasSubstr("enforced at once"));
}

TEST_P(MarkedCalls, AServerWithoutStructuredOutputSaysSo) {
  model_.constraints = nullptr;
  ConstraintParams constraint;
  EXPECT_EQ(Constrain(TwoTools(v1::TOOL_CHOICE_MODE_REQUIRED), &constraint).reason, "NO_STRUCTURED_OUTPUT");
}

INSTANTIATE_TEST_SUITE_P(Formats, MarkedCalls, ::testing::Values("v11", "v13", "v15"));

}  // namespace
}  // namespace tramontane
