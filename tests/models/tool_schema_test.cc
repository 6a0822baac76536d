// Schemas of tools: what of them no grammar holds is let go, in the smallest part, and told.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/grammar/json_schema_grammar.h"
#include "tests/models/grammar_case.h"

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ToolSchemaTest : public GrammarCase {
 protected:
  // What is told of a tool with these properties.
  static Texts Told(const std::string& properties) {
    const auto grammar = ToolArgumentsGrammar(WithProperties(properties), {});
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return grammar.ok() ? grammar->unenforced : Texts{};
  }
  static std::string WithProperties(const std::string& properties) {
    return R"({"type": "object", "properties": {)" + properties + "}}";
  }
  void Takes(const std::string& properties, const Texts& taken, const Texts& refused) {
    Expect(Kind::kToolArguments, WithProperties(properties), taken, refused);
  }
};

TEST_F(ToolSchemaTest, WhatCannotBeEnforcedIsToldByPathAndKeyword) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("x": {"type": "object", "patternProperties": {"a": {}}})", ".properties.x (patternProperties)"},
      {R"("x": {"type": "array", "uniqueItems": true})", ".properties.x (uniqueItems)"},
      {R"("x": {"items": {"multipleOf": 3}})", ".properties.x.items (multipleOf)"},
      {R"re("x": {"type": "string", "pattern": "a(?<=b)"})re", ".properties.x (pattern)"},
      {R"("x": {"$ref": "https://example.com/x"})", ".properties.x ($ref)"},
      {R"("x": {"unheardOf": 1})", ".properties.x (unheardOf)"},
      {R"("x": {"type": 7})", ".properties.x (type)"},
      {R"("x": {"type": "string", "maxLength": 5000})", ".properties.x (maxLength)"},
      {R"("x": {"type": "string", "maxLength": 4000})", ".properties.x (size)"},
      {R"("x": {"oneOf": [{"type": "integer"}, {"type": "number"}]})", ".properties.x (oneOf)"},
      {R"("x": {"anyOf": [{"type": "null"}, {"not": {}}]})", ".properties.x.anyOf[1] (not)"},
      {R"("x": {"type": "string", "allOf": [{"if": {}}, {"maxLength": 3}]})", ".properties.x.allOf[0] (if)"},
      {R"("x": {"additionalProperties": {"not": {}}})", ".properties.x.additionalProperties (not)"},
      {R"("x": {"prefixItems": [{}, {"not": {}}]})", ".properties.x.prefixItems[1] (not)"},
      {R"("x": false)", ".properties.x (false)"},
      {R"("x": 7)", ".properties.x (not a schema)"},
      {R"("x": {"type": "string", "enum": [1]})", ".properties.x (enum)"},
      {R"("x": {"allOf": [{"type": "null"}, {"type": "integer"}]})", ".properties.x (no value)"},
  };
  for (const auto& [property, told] : cases) EXPECT_THAT(Told(property), ElementsAre(told)) << property;
  EXPECT_THAT(Told(R"("x": {"type": "string", "maxLength": 100, "description": "d"})"), IsEmpty());
}

TEST_F(ToolSchemaTest, ThatPartIsAnyJsonOfItsTypeAndTheOthersAreHeld) {
  const std::string odd =
      R"("x": {"type": ["object", "null"], "properties": {"a": {"type": "string", "maxLength": 9}},
      "patternProperties": {}}, "y": {"type": "integer"})";
  Takes(odd, {R"({"x": {"b": [1]}, "y": 1})", R"({"x": null, "y": 1})", R"({"x": {"a": true}})"},
        {R"({"x": 1, "y": 1})", R"({"x": {}, "y": "1"})", R"({"x": {}, "z": 1})"});
  Takes(R"("x": {"not": {}}, "y": {"type": "integer"})", {R"({"x": [true], "y": 1})"}, {R"({"y": null})"});
  Takes(R"("x": {"type": "string", "allOf": [{"if": {}}, {"maxLength": 3}]})", {R"({"x": "abc"})"},
        {R"({"x": "abcd"})", R"({"x": 1})"});
}

TEST_F(ToolSchemaTest, APartIsToldOnceAndNothingOfWhatLiesInARelaxedOne) {
  EXPECT_THAT(Told(R"("x": {"$ref": "#/$defs/d"}, "y": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"not": {}})"),
              ElementsAre(".properties.x.$ref (not)"));
  EXPECT_THAT(Told(R"("x": {"properties": {"a": {"not": {}}, "b": {"not": {}}}, "minProperties": 2})"),
              ElementsAre(".properties.x (minProperties)"));
  EXPECT_THAT(Told(R"("x": {"type": "string", "allOf": [{"anyOf": [{"not": 1}], "oneOf": [{"minLength": 1},
                             {"minLength": 2}]}]})"),
              ElementsAre(".properties.x.allOf[0] (oneOf)"));
  std::string many;
  for (int i = 0; i < 1030; ++i) many += std::string(i > 0 ? "," : "") + R"({"not": 1})";
  const Texts told = Told(R"("x": {"prefixItems": [)" + many + "]}");
  ASSERT_EQ(told.size(), 1025u);
  EXPECT_EQ(told.back(), " (and 6 more)");
}

// The rules of the first are gone, so the second finds its own.
TEST_F(ToolSchemaTest, NothingIsLeftOfWhatWasTakenBack) {
  const std::string part = R"({"properties": {"a": {"type": "string", "maxLength": 7}})";
  const std::string properties = "\"x\": " + part + R"(, "minProperties": 5}, "y": )" + part + "}";
  EXPECT_THAT(Told(properties), ElementsAre(".properties.x (minProperties)"));
  Takes(properties, {R"({"x": [1], "y": {"a": "b"}})"}, {R"({"x": 1, "y": {"a": "eight..."}})"});
  const std::string recursive =
      R"("x": {"$ref": "#/$defs/d"}, "y": {"type": "integer"}}, "$defs": {"d": {"type": "object", "properties":
         {"a": {"$ref": "#/$defs/d"}, "b": {"type": "array", "items": {"$ref": "#/$defs/d"}}}, "minProperties": 9})";
  EXPECT_THAT(Told(recursive), ElementsAre(".properties.x.$ref (minProperties)"));
  Takes(recursive, {R"({"x": {"c": 1}, "y": 1})"}, {R"({"x": {}, "y": "1"})"});
}

// By counts, so that the answer is the same on any machine.
TEST_F(ToolSchemaTest, WhatWouldTakeLongToCompileIsLetGo) {
  const auto pattern = [](const std::string& text) {
    return Told(R"("x": {"type": "string", "pattern": ")" + text + "\"}");
  };
  for (const char* quick : {"^[a-z]{1,100}-[0-9]{1,50}$", "^([a-z0-9]{1,100}-){1,10}$", "^[a-z0-9]{1,3000}$",
                            "foo.*bar", "^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+$", "^[0-9]{4}-[0-9]{2}$"}) {
    EXPECT_THAT(pattern(quick), IsEmpty()) << quick;
  }
  for (const char* slow : {"^([a-z]{0,100}x){1,9}$", "^[a-z]{0,50}[a-z]{0,50}$", "foo.{0,100}bar"}) {
    EXPECT_THAT(pattern(slow), ElementsAre(".properties.x (pattern)")) << slow;
  }
  const auto list = [](const std::string& type) {
    return R"({"type": "array", "maxItems": 1200, "items": {"type": ")" + type + "\"}}";
  };
  EXPECT_THAT(Told("\"x\": " + list("integer")), IsEmpty());
  EXPECT_THAT(Told("\"x\": " + list("integer") + ", \"y\": " + list("null")),
              ElementsAre(".properties.y (size)"));
}

TEST_F(ToolSchemaTest, ArgumentsAreAnObject) {
  const auto told = [](const std::string& schema) { return ToolArgumentsGrammar(schema, {})->unenforced; };
  const auto refusal = [](const std::string& schema) {
    return ToolArgumentsGrammar(schema, {}).status().message();
  };
  Expect(Kind::kToolArguments, R"({"type": ["null", "object"]})", {"{}"}, {"null"});
  Expect(Kind::kToolArguments, R"({"not": {}})", {R"({"a": 1})"}, {"1"});
  EXPECT_THAT(told(R"({"not": {}})"), ElementsAre(" (not)"));
  EXPECT_THAT(told(R"({"type": 7})"), IsEmpty());
  EXPECT_EQ(refusal(R"({"type": "string"})"), ".type: is not \"object\", which arguments of a tool are");
  EXPECT_EQ(refusal("[]"), "the schema: is not an object");
  EXPECT_EQ(refusal("{").find("is not JSON"), 0u);
  const std::string large = R"({"description": ")" + std::string(70'000, 'd') + "\"}";
  EXPECT_THAT(told(large), ElementsAre(" (size)"));
  Expect(Kind::kToolArguments, large, {R"({"a": 1})"}, {"1"});
}

TEST_F(ToolSchemaTest, AListOfCallsIsRelaxedWithinIt) {
  const std::string list = R"({"type": "array", "minItems": 1, "items": {"type": "object", "required": ["a"],
      "properties": {"a": {"type": "string", "contentSchema": {}}}, "additionalProperties": false}})";
  EXPECT_THAT((*compiler_->Translate({Kind::kToolCalls, list, {}}))->unenforced,
              ElementsAre(".items.properties.a (contentSchema)"));
  Expect(Kind::kToolCalls, list, {R"([{"a": "x"}])"}, {"[]", R"([{"a": 1}])"});
}

}  // namespace
}  // namespace tramontane
