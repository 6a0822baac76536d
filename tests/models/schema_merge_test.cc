// Keywords of JSON Schema beside each other, and references.

#include <gtest/gtest.h>

#include <string>

#include "tests/models/grammar_case.h"

namespace tramontane {
namespace {

class SchemasTogether : public GrammarCase {
 protected:
  void Valid(const std::string& schema, const Texts& taken, const Texts& refused) {
    Expect(Kind::kJsonSchema, schema, taken, refused);
  }
  std::string Refused(const std::string& schema) { return Refusal(Kind::kJsonSchema, schema); }
};

// ---- beside $ref, anyOf, oneOf and allOf --------------------------------------------------------

TEST_F(SchemasTogether, WhatStandsBesideAReferenceHoldsToo) {
  Valid(R"({"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string", "minLength": 1}}})",
        {R"("a")", R"("ab")"}, {R"("")", R"("abc")", "1"});
  Valid(R"({"type": "object", "$ref": "#/$defs/o", "$defs": {"o": {"properties": {"a": {"type": "null"}}}}})",
        {"{}", R"({"a": null})"}, {R"({"b": null})", "null"});
}

TEST_F(SchemasTogether, WhatStandsBesideAnyOfHoldsForEachOfIt) {
  Valid(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": false})",
        {R"({"a": 1})", R"({"b": 1})", R"({"a": 1, "b": 2})"}, {"{}", R"({"a": null})"});
  Valid(R"({"type": "string", "anyOf": [{"const": "a"}, {"const": 1}, {"pattern": "^b+$"}], "maxLength": 2})",
        {R"("a")", R"("bb")"}, {"1", R"("bbb")"});
  Valid(R"({"type": ["string", "null"], "anyOf": [{"type": "string"}, {"type": "integer"}], "maxLength": 1})",
        {R"("a")"}, {"null", "1", R"("ab")"});
}

TEST_F(SchemasTogether, AllOfHoldsAltogether) {
  Valid(R"({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}],
            "$defs": {"base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})",
        {R"({"a": 1, "b": null})"}, {R"({"a": 1})", R"({"b": null})", R"({"a": 1, "b": 2})"});
  Valid(
      R"({"allOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "z$"}], "maxLength": 3})",
      {R"("az")", R"("abz")"}, {R"("a")", R"("abcz")", R"("za")"});
  Valid(R"({"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "maximum": 3}, {"minimum": 2}]})",
        {"2", "3"}, {"1", "4", "2.5"});
  Valid(
      R"({"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"minLength": 2}}}], "required": ["a"]})",
      {R"({"a": "xy"})"}, {R"({"a": "x"})", R"({"a": 1})"});
  Valid(
      R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}], "type": "object"})",
      {"{}", R"({"a": 1})"}, {R"({"b": 1})"});
  Valid(R"({"allOf": [{"enum": [1, 2, "a"]}, {"enum": ["a", 2.0]}]})", {"2", R"("a")"}, {"1"});
  Valid(
      R"({"type": "array", "allOf": [{"items": {"type": "integer"}}, {"items": {"minimum": 5}, "maxItems": 2}]})",
      {"[]", "[5, 6]"}, {"[4]", "[5, 6, 7]", "[\"a\"]"});
  Valid(R"({"allOf": [{}, {}]})", {"1", "{}"}, {""});
}

TEST_F(SchemasTogether, OneOfMayBeToldApartByWhatStandsBesideIt) {
  Valid(R"({"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"],
            "oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["x"]},
                      {"properties": {"kind": {"const": "b"}}}]})",
        {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"}, {R"({"kind": "a"})", R"({"kind": "c"})"});
  EXPECT_NE(
      Refused(R"({"type": "integer", "oneOf": [{"minimum": 1}, {"maximum": 9}]})").find("entries 0 and 1"),
      std::string::npos);
}

TEST_F(SchemasTogether, ARecursiveSchemaMayBeExtended) {
  const std::string schema =
      R"({"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/named"}]}}, "required": ["next"]},
                    "named": {"allOf": [{"$ref": "#/$defs/node"}, {"properties": {"name": {"type": "string"}}, "required": ["name"]}]}},
          "$ref": "#/$defs/named"})";
  Valid(schema, {R"({"next": null, "name": "a"})", R"({"next": {"next": null, "name": "b"}, "name": "a"})"},
        {R"({"next": null})", R"({"next": {"next": null}, "name": "a"})"});
}

// Both say what "next" is, and each by itself again.
TEST_F(SchemasTogether, TwoRecursiveSchemasMayHoldTogether) {
  Valid(
      R"({"$defs": {"a": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}, "x": {"type": "integer"}}},
                    "b": {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"next": {"$ref": "#/$defs/b"}}, "required": ["x"]}]}},
          "$ref": "#/$defs/b"})",
      {R"({"x": 1})", R"({"next": {"x": 2}, "x": 1})", R"({"next": {"next": {"x": 3}, "x": 2}, "x": 1})"},
      {"{}", R"({"next": {}, "x": 1})", R"({"next": {"next": {}, "x": 2}, "x": 1})"});
}

TEST_F(SchemasTogether, SchemasThatHoldTogetherAreBounded) {
  std::string schema = R"({"$ref": "#/$defs/d0", "$defs": {"d18": {"type": "null"})";
  for (int i = 0; i < 18; ++i) {
    const std::string next = R"({"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}";
    schema += ", \"d" + std::to_string(i) + R"(": {"allOf": [)" + next + "," + next + "]}";
  }
  EXPECT_NE(Refused(schema + "}}").find("more than 200000 values"), std::string::npos);
}

TEST_F(SchemasTogether, WhatCannotHoldTogetherIsRefused) {
  EXPECT_EQ(Refused(R"({"type": "string", "anyOf": [{"type": "integer"}]})"),
            "the schema: allows no value at all");
  EXPECT_EQ(Refused(R"({"properties": {"a": {"allOf": [{"type": "null"}, {"const": 1}]}}})"),
            ".properties.a: allows no value at all");
  EXPECT_EQ(Refused(R"({"allOf": [{"not": {}}, {}]})"), ".allOf[0].not: is not supported");
  EXPECT_NE(Refused(R"({"type": "object", "allOf": [{"$ref": "#"}]})").find("leads back to itself: #"),
            std::string::npos);
  std::string many = R"({"allOf": [)";
  for (int i = 0; i < 8; ++i) {
    many += (i > 0 ? "," : "") + std::string(R"({"anyOf": [{"maxLength": )") + std::to_string(i) +
            R"(}, {"maximum": )" + std::to_string(i) + "}]}";
  }
  EXPECT_NE(Refused(many + "]}").find("more than 128 alternatives"), std::string::npos);
}

// ---- values -------------------------------------------------------------------------------------

TEST_F(SchemasTogether, ValuesThatDoNotHoldAreLeftOut) {
  Valid(R"({"enum": ["a", "ab", "abc", 3], "minLength": 2})", {R"("ab")", R"("abc")", "3"}, {R"("a")"});
  Valid(R"({"type": "string", "enum": ["a1", "b", "a2"], "pattern": "^a"})", {R"("a1")", R"("a2")"},
        {R"("b")"});
  Valid(R"({"enum": [1, 5, 9], "minimum": 2, "exclusiveMaximum": 9})", {"5"}, {"1", "9"});
  Valid(R"({"enum": ["a@b.de", "none", "2024-02-29"], "format": "email"})", {R"("a@b.de")"}, {R"("none")"});
  Valid(R"({"const": "2024-02-29", "format": "date"})", {R"("2024-02-29")"}, {R"("2024-02-28")"});
  Valid(R"({"const": 1, "enum": [1, 2]})", {"1"}, {"2"});
  Valid(
      R"({"enum": [{"a": 1}, {"a": "x"}, {}], "properties": {"a": {"type": "integer"}}, "required": ["a"]})",
      {R"({"a": 1})"}, {R"({"a": "x"})", "{}"});
  Valid(R"({"enum": [[1], [1, 2], ["a"]], "items": {"type": "integer"}, "maxItems": 1})", {"[1]"},
        {"[1, 2]", R"(["a"])"});
  EXPECT_EQ(Refused(R"({"enum": ["a"], "minLength": 2})"), ".enum: has no value that the schema allows");
  EXPECT_EQ(Refused(R"({"enum": ["a"], "pattern": "("})"), ".pattern: at byte 0: a ( without its )");
}

TEST_F(SchemasTogether, AWholeNumberIsAnIntegerHoweverItIsWritten) {
  Valid(R"({"type": "integer", "enum": [1.0, 2.5, 3]})", {"1", "3"}, {"1.0", "2.5"});
  Valid(R"({"type": "integer", "const": 1e3})", {"1000"}, {"1e3"});
  Valid(R"({"type": ["integer", "null"], "enum": [1.0, null]})", {"1.0", "null"}, {"2"});
  Valid(R"({"enum": [1.0]})", {"1.0"}, {"2"});
}

TEST_F(SchemasTogether, TheStricterOfTwoBoundsHolds) {
  Valid(R"({"type": "integer", "minimum": 1, "exclusiveMinimum": 1})", {"2"}, {"1"});
  Valid(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": 1})", {"3"}, {"2"});
  Valid(R"({"type": "integer", "maximum": 3, "exclusiveMaximum": 9, "minimum": 0})", {"3"}, {"4"});
}

TEST_F(SchemasTogether, NamesOfPropertiesMayBeAlternatives) {
  Valid(
      R"({"type": "object", "propertyNames": {"anyOf": [{"const": "a"}, {"pattern": "^b+$"}], "maxLength": 2}})",
      {"{}", R"({"a": 1, "bb": 2})"}, {R"({"c": 1})", R"({"bbb": 1})"});
  EXPECT_EQ(Refused(R"({"type": "object", "propertyNames": {"type": "integer"}})"),
            ".propertyNames: is not a schema of strings");
}

// ---- references ---------------------------------------------------------------------------------

TEST_F(SchemasTogether, ReferencesMayBePercentEncoded) {
  Valid(R"({"$ref": "#/definitions/Box%3Cstring%3E", "definitions": {"Box<string>": {"type": "null"}}})",
        {"null"}, {"1"});
  Valid(R"({"$ref": "#/$defs/a%7E1b", "$defs": {"a/b": {"type": "null"}}})", {"null"}, {"1"});
  Valid(R"({"$ref": "#/$defs/m~0n", "$defs": {"m~n": {"type": "null"}}})", {"null"}, {"1"});
  Valid(R"({"$ref": "#/$defs/m~01", "$defs": {"m~1": {"type": "null"}}})", {"null"}, {"1"});
  Valid(R"({"$ref": "#/%24defs/na%C3%AFve%20%25", "$defs": {"naïve %": {"type": "null"}}})", {"null"}, {"1"});
  Valid(R"({"$ref": "#/$defs/50%", "$defs": {"50%": {"type": "null"}}})", {"null"}, {"1"});
  Valid(R"({"$ref": "#/$defs/a%3Cb", "$defs": {"a%3Cb": {"type": "null"}}})", {"null"}, {"1"});
  Valid(R"({"$ref": "#/$defs/", "$defs": {"": {"type": "null"}}})", {"null"}, {"1"});
}

TEST_F(SchemasTogether, ReferencesMayNameTheSchemaByItsId) {
  const std::string schema = R"("$id": "https://a.b/c", "$defs": {"d": {"type": "null"}}})";
  Valid(R"({"$ref": "https://a.b/c#/$defs/d", )" + schema, {"null"}, {"1"});
  EXPECT_EQ(Refused(R"({"$ref": "https://a.b/cd#/$defs/d", )" + schema),
            ".$ref: leads nowhere inside this schema: https://a.b/cd#/$defs/d");
}

// A name is no keyword, whatever it is.
TEST_F(SchemasTogether, PropertiesMayHaveTheNamesOfKeywords) {
  Valid(
      R"({"type": "object", "properties": {"$ref": {"type": "null"}, "properties": {"type": "object", "properties": {"default": {"$ref": "#/$defs/enum"}}},
            "$id": {"type": "integer"}}, "$defs": {"enum": {"const": 1}}, "required": ["$ref"]})",
      {R"({"$ref": null, "properties": {"default": 1}, "$id": 3})"},
      {"{}", R"({"$ref": null, "properties": {"default": 2}})"});
}

TEST_F(SchemasTogether, AnchorsAreRefusedByName) {
  EXPECT_EQ(Refused(R"({"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}})"),
            ".$ref: leads nowhere inside this schema: #a");
  EXPECT_EQ(Refused(R"({"$anchor": "a", "type": "null"})"), ".$anchor: is not supported");
}

}  // namespace
}  // namespace tramontane
