// What grammars take and refuse, text by text. The vocabulary is the 256 bytes, so that any text can be asked
// about; how longer tokens are cut into grammars is grammar_property_test.cc's.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/constraint_compiler.h"
#include "models/grammar/ebnf_repetitions.h"
#include "models/grammar/json_schema_grammar.h"
#include "models/tokenizer/load.h"
#include "tests/models/grammar_case.h"
#include "tests/support/piece_tokenizer.h"

namespace tramontane {
namespace {

class GrammarTest : public GrammarCase {};

// ---- regular expressions ------------------------------------------------------------------------

class RegexGrammar : public GrammarTest {
 protected:
  void Matches(const std::string& pattern, const Texts& taken, const Texts& refused) {
    Expect(Kind::kRegex, pattern, taken, refused);
  }
};

TEST_F(RegexGrammar, MatchesTheTextAsAWhole) {
  Matches("abc", {"abc"}, {"", "ab", "abcd", "xabc"});
  Matches("^abc$", {"abc"}, {"abcd"});
  Matches("a|bc|", {"a", "bc", ""}, {"b", "abc"});
}

TEST_F(RegexGrammar, ClassesAndTheirComplements) {
  Matches("[a-c0\\-]", {"a", "c", "0", "-"}, {"d", "1", ""});
  Matches("[^a-c]", {"d", "\n", "é", "\"", "𝄞"}, {"a", ""});
  Matches("[\\d_]", {"7", "_"}, {"a"});
  Matches("[^\\d]", {"a"}, {"7"});
  Matches(".", {"a", "é", "\t"}, {"\n", "\r", "ab"});
  Matches("\\w\\W\\s\\S\\D", {"a- x-"}, {"--  -", "a-x x"});
  Matches("[a\\]b-]", {"]", "-", "a"}, {"\\"});
  Matches("[\\b]", {"\b"}, {"b"});
}

TEST_F(RegexGrammar, TextIsUtf8) {
  const std::vector<std::string> broken = {
      "\xC0\x80",         "\xE0\x80\x80",     "\xE0\x9F\xBF",     "\xED\xA0\x80",
      "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\x80"};
  const Texts sound = {"\x7F",         "\xC2\x80",     "\xDF\xBF",         "\xE0\xA0\x80",    "\xED\x9F\xBF",
                       "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"};
  for (const char* pattern : {".", "[^a]", "[^x\"]", "[\\u0041-\\uffff]|[^\\u0041-\\uffff]"}) {
    Matches(pattern, sound, broken);
  }
  Texts in_quotes, broken_in_quotes;
  for (const std::string& text : sound) in_quotes.push_back('"' + text + '"');
  for (const std::string& text : broken) broken_in_quotes.push_back('"' + text + '"');
  for (const char* schema : {R"({"type": "string"})", R"({"type": "string", "maxLength": 2})"}) {
    Expect(Kind::kJsonSchema, schema, in_quotes, broken_in_quotes);
  }
}

// Python's \d takes digits of all scripts, ECMAScript's \W takes é: the grammar writes what both take.
TEST_F(RegexGrammar, WhatReadersDisagreeAboutIsNotWritten) {
  Matches("\\d", {"5"}, {"٣"});
  Matches("\\w", {"n"}, {"ñ"});
  Matches("\\W", {"-"}, {"ñ"});
  Matches("[^\\w]", {"-"}, {"ñ"});
  Matches("\\S", {"n", "ñ"}, {" ", "\xC2\xA0"});
}

TEST_F(RegexGrammar, Repetitions) {
  Matches("a*", {"", "a", "aaaa"}, {"b"});
  Matches("a+?b??", {"a", "ab", "aab"}, {"", "abb"});
  Matches("(ab){2}", {"abab"}, {"ab", "ababab"});
  Matches("a{2,}", {"aa", "aaaaa"}, {"a"});
  Matches("a{2,4}", {"aa", "aaaa"}, {"a", "aaaaa"});
  Matches("a{0}b", {"b"}, {"ab"});
  Matches("x{a}", {"x{a}"}, {"x"});
}

// The library's own optional takes "y" here.
TEST_F(RegexGrammar, AnOptionalGroupIsThereAsAWholeOrNot) {
  Matches("(xy*)?Z", {"Z", "xZ", "xyyZ"}, {"yZ", "yyZ"});
  Matches("a(x[0-9]{1,3})?Z", {"aZ", "ax123Z"}, {"a1Z", "a123Z"});
  Matches("(a|bc?)?d", {"d", "ad", "bd", "bcd"}, {"cd"});
}

// The library's own merging of states takes any number of word characters here.
TEST_F(RegexGrammar, AlternativesThatBeginAlikeStayApart) {
  Matches("\\w{0,4}|\\w|\\dx", {"", "a", "aaaa", "1x", "1aa"}, {"aaaaa", "aaaaaaa", "1xx!"});
  Matches("ab?|a|c", {"a", "ab", "c"}, {"abb", "b", "cb"});
  Matches("a*|a|b", {"", "aaa", "b"}, {"ba", "ab"});
}

TEST_F(RegexGrammar, CountsBeyondWhatTheLibraryUnrolls) {
  for (const int count : {99, 100, 101, 200, 250}) {
    const std::string n = std::to_string(count);
    Matches("a{" + n + "}", {std::string(count, 'a')},
            {std::string(count - 1, 'a'), std::string(count + 1, 'a')});
    Matches("(ab?){0," + n + "}", {"", "ab", std::string(count, 'a')}, {std::string(count + 1, 'a'), "b"});
    Matches("a{" + n + ",}", {std::string(count, 'a'), std::string(count + 150, 'a')},
            {std::string(count - 1, 'a')});
  }
}

TEST_F(RegexGrammar, Escapes) {
  Matches("\\n\\t\\x41\\u00e9\\.\\{", {"\n\tAé.{"}, {"ntA"});
  Matches("\\/\\-\\\"", {"/-\""}, {"/-"});
}

TEST_F(RegexGrammar, GroupsOfEveryKindThatIsSupported) {
  Matches("(a)(?:b)(?P<name>c)(?<other>d)", {"abcd"}, {"abc"});
  Matches("((a|b)c){2}", {"acbc"}, {"acb"});
}

TEST_F(RegexGrammar, WhatIsNotSupportedIsNamedAndPlaced) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a(?=b)", "at byte 2: lookahead, (?=, is not supported"},
      {"a(?!b)", "at byte 2: lookahead, (?!, is not supported"},
      {"(?<=a)b", "at byte 1: lookbehind, (?<=, is not supported"},
      {"(?i)a", "at byte 1: a group of the kind (?i) is not supported"},
      {"(a)\\1", "at byte 3: a backreference, \\1, is not supported"},
      {"a\\b", "at byte 1: a word boundary, \\b, is not supported"},
      {"\\p{L}", "at byte 0: a Unicode property, \\p, is not supported"},
      {"a^b", "at byte 1: an anchor (^) anywhere but at the edge of the pattern is not supported"},
      {"a$b", "at byte 2: $ in front of more text is not supported"},
      {"(^a)", "at byte 1: an anchor (^) anywhere but at the edge of the pattern is not supported"},
      {"a++", "at byte 2: a possessive repetition is not supported"},
      {"\\Q", "at byte 0: the escape \\Q is not supported"},
      {"[[:alpha:]]", "at byte 1: a named class, [:, is not supported"},
      {"\\ud800", "at byte 0: half of a surrogate pair is not supported"},
  };
  for (const auto& [pattern, refusal] : cases) EXPECT_EQ(Refusal(Kind::kRegex, pattern), refusal);
}

TEST_F(RegexGrammar, WhatIsNoExpressionIsRefused) {
  for (const char* pattern : {"(a", "a)", "[a", "*a", "a**", "a|*", "\\", "[b-a]", "\\x4", "a{3,2}",
                              "[\\d-z]", "(?<n", "[^\\s\\S]"}) {
    EXPECT_NE(Refusal(Kind::kRegex, pattern), "") << pattern;
  }
}

TEST_F(RegexGrammar, BoundsAreNamed) {
  std::string options;
  for (int i = 0; i < 8000; ++i) options += "a?";
  EXPECT_EQ(Refusal(Kind::kRegex, options), "has more than 256 elements side by side that may be empty");
  EXPECT_EQ(Refusal(Kind::kRegex, "((a?b*){30}c?){30}"),
            "has more than 256 elements side by side that may be empty");
  Matches("(a?b){300}", {std::string(300, 'b')}, {std::string(299, 'b')});
  Matches("a{0,1000}b", {"b", "aab"}, {"a"});
  std::string words = "end";
  for (int i = 0; i < 400; ++i) words += "|word" + std::to_string(i) + "s?";
  Matches(words, {"word7", "word399s"}, {"word", "words"});
  EXPECT_EQ(Refusal(Kind::kRegex, "a{4097}"), "at byte 1: a repetition of more than 4096");
  EXPECT_NE(Refusal(Kind::kRegex, "((a{1000}){1000}){1000}").find("at most 262144"), std::string::npos);
  EXPECT_NE(Refusal(Kind::kRegex, std::string(70, '(') + "a" + std::string(70, ')')).find("more than 64"),
            std::string::npos);
  EXPECT_NE(Refusal(Kind::kRegex, std::string(70'000, 'a')).find("70000 bytes"), std::string::npos);
}

// ---- JSON Schema --------------------------------------------------------------------------------

class JsonSchemaGrammarTest : public GrammarTest {
 protected:
  void Valid(const std::string& schema, const Texts& taken, const Texts& refused) {
    Expect(Kind::kJsonSchema, schema, taken, refused);
  }
  std::string Refused(const std::string& schema) { return Refusal(Kind::kJsonSchema, schema); }
};

TEST_F(JsonSchemaGrammarTest, Types) {
  Valid(R"({"type": "null"})", {"null"}, {"0", ""});
  Valid(R"({"type": "boolean"})", {"true", "false"}, {"True"});
  Valid(R"({"type": "integer"})", {"0", "-12", "7"}, {"01", "1.0", "-0x", "1e3", "+1"});
  Valid(R"({"type": "number"})", {"0", "-1.5", "2e+3", "1.25E-9"}, {".5", "1.", "01", "NaN"});
  Valid(R"({"type": ["string", "null"]})", {"null", "\"\""}, {"0"});
  Valid(R"({"type": ["integer", "number"]})", {"1", "1.5"}, {"\"1\""});
  Valid("true", {"1", "[]", "{\"a\": [true]}"}, {"", "tru"});
  Valid("{}", {"null"}, {"nul"});
}

TEST_F(JsonSchemaGrammarTest, StringsAreJsonStrings) {
  Valid(R"({"type": "string"})", {R"("")", R"("aé𝄞")", R"("\n\"\\\u00e9")"},
        {"\"\n\"", R"("\x")", R"("\ud800")", "\"\xED\xA0\x80\"", "\"a", R"("\u12")"});
}

TEST_F(JsonSchemaGrammarTest, LengthsCountCharacters) {
  Valid(R"({"type": "string", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("é𝄞\n")"},
        {R"("a")", R"("abcd")", "\"a\tb\"", R"("\n")"});
  Valid(R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"});
}

TEST_F(JsonSchemaGrammarTest, PatternsAreSearchedForUnlessAnchored) {
  Valid(R"({"type": "string", "pattern": "b+"})", {R"("abc")", R"("b")", R"("\nb\"")"}, {R"("ac")"});
  Valid(R"({"type": "string", "pattern": "^a.c$"})", {R"("abc")", R"("a\"c")"}, {R"("xabc")", "\"a\"c\""});
  Valid(R"({"type": "string", "pattern": "^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")", R"("bx")"});
}

TEST_F(JsonSchemaGrammarTest, Formats) {
  Valid(R"({"type": "string", "format": "date"})", {R"("2024-02-28")"},
        {R"("2024-02-30")", R"("2024-13-01")"});
  Valid(R"({"type": "string", "format": "date-time"})", {R"("2024-12-31T23:59:59.5Z")"},
        {R"("2024-12-31")", R"("2024-12-31T23:59:5911Z")"});
  Valid(R"({"type": "string", "format": "uuid"})", {R"("00000000-1111-2222-3333-444444444444")"}, {R"("0")"});
  Valid(R"({"type": "string", "format": "ipv4"})", {R"("192.168.0.1")"}, {R"("256.0.0.1")", R"("1.2.3")"});
  Valid(R"({"type": "string", "format": "email"})", {R"("a.b@c.de")"}, {R"("a@b@c.de")"});
  Valid(R"({"type": "string", "format": "uri"})", {R"("https://a.b/c")"}, {R"("a b")"});
}

TEST_F(JsonSchemaGrammarTest, WholeNumbersWithinBounds) {
  Valid(R"({"type": "integer", "minimum": 1, "maximum": 120})", {"1", "9", "10", "99", "100", "120"},
        {"0", "121", "200", "-1", "01"});
  Valid(R"({"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5})", {"-4", "0", "4"},
        {"-5", "5"});
  Valid(R"({"type": "integer", "minimum": 1.5})", {"2", "1000"}, {"1", "0", "-3"});
  Valid(R"({"type": "integer", "maximum": -3})", {"-3", "-4", "-10"}, {"-2", "0", "3"});
  Valid(R"({"type": "integer", "minimum": 0, "exclusiveMaximum": 2.5})", {"0", "2"}, {"3"});
  Valid(R"({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 4})", {"3", "4"}, {"2"});
  Valid(R"({"type": "integer", "minimum": -5, "exclusiveMaximum": -2.5})", {"-3", "-5"}, {"-2"});
  Valid(R"({"type": "integer", "exclusiveMinimum": -2.5, "maximum": 0})", {"-2", "0"}, {"-3"});
}

TEST_F(JsonSchemaGrammarTest, NumbersWithinBounds) {
  Valid(R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "0.5", "1", "1.0", "0.0"},
        {"1.1", "-0.5", "2", "1.01", "-0", ".5"});
  Valid(R"({"type": "number", "exclusiveMinimum": 0})", {"0.000001", "3"}, {"0", "0.0", "-1"});
  Valid(R"({"type": "number", "minimum": -2.5, "exclusiveMaximum": 0.25})",
        {"-2.5", "-2.49", "0.2", "0.249", "-1"}, {"-2.51", "0.25", "0.250", "0.3", "-3"});
  Valid(R"({"type": "number", "minimum": 1.25, "maximum": 1.3})", {"1.25", "1.3", "1.26"},
        {"1.2", "1.31", "1"});
  Valid(R"({"type": "number", "maximum": -1.5})", {"-1.5", "-2", "-1.51"}, {"-1.49", "-1", "0", "1.5"});
}

TEST_F(JsonSchemaGrammarTest, ConstantsAndEnumerations) {
  Valid(R"({"enum": ["a\"b", 3, null, [1, 2], {"k": "v"}]})",
        {R"("a\"b")", "3", "null", "[1, 2]", R"({"k": "v"})"}, {R"("a")", "4"});
  Valid(R"({"const": "x"})", {R"("x")"}, {"x"});
  Valid(R"({"type": "integer", "enum": [1, "1", 2.5]})", {"1"}, {R"("1")", "2.5"});
}

TEST_F(JsonSchemaGrammarTest, ObjectsHaveTheirPropertiesInOrder) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}},)";
  Valid(schema + R"("required": ["a", "c"]})",
        {R"({"a": 1, "c": null})", R"({"a":1,"b":true,"c":null})", "{ \"a\" : 1\n, \"c\":\tnull }"},
        {R"({"a": 1})", R"({"c": null, "a": 1})", R"({"a": 1, "c": null, "d": 2})", R"({"a": 1, "c": null,})",
         "{}"});
  Valid(schema + R"("required": ["b"]})",
        {R"({"b": true})", R"({"a": 1, "b": true})", R"({"b": true, "c": null})"},
        {R"({"a": 1})", R"({"a": 1 "b": true})", R"({, "b": true})"});
  Valid(schema + R"("required": []})",
        {"{}", "{ }", R"({"a": 1})", R"({"c": null})", R"({"b": true, "c": null})", R"({"a": 1, "c": null})"},
        {R"({"a": 1, "a": 1})", R"({"b": true, "a": 1})"});
}

TEST_F(JsonSchemaGrammarTest, OtherPropertiesAreNoneOfThoseNamed) {
  const std::string schema =
      R"({"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "null"}})";
  Valid(schema, {"{}", R"({"ab": 1})", R"({"ab": 1, "a": null, "abc": null, "": null})", R"({"b": null})"},
        {R"({"ab": null})", R"({"ab": 1, "ab": null})", R"({"\u0061b": null})", R"({"a": 1})"});
  Valid(
      R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2})",
      {R"({"a": 1})", R"({"\n": 1, "b": 2})"}, {"{}", R"({"a": 1, "b": 2, "c": 3})", R"({"a": null})"});
  Valid(R"({"type": "object", "propertyNames": {"enum": ["x", "y"]}})", {"{}", R"({"x": 1, "y": []})"},
        {R"({"z": 1})"});
  Valid(R"({"type": "object"})", {"{}", R"({"any": {"thing": 1}})"}, {"[]"});
  Valid(R"({"type": "object", "required": ["k"]})", {R"({"k": 1})"}, {"{}", R"({"j": 1})"});
}

TEST_F(JsonSchemaGrammarTest, Arrays) {
  Valid(R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1]", "[ 1 , 2 ]"},
        {"[1,]", "[null]", "[,]"});
  Valid(R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
        {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"});
  Valid(R"({"type": "array", "items": {"type": "integer"}, "maxItems": 1})", {"[]", "[1]"}, {"[1,2]"});
  Valid(R"({"type": "array", "items": {"type": "integer"}, "maxItems": 0})", {"[]"}, {"[1]"});
  Valid(R"({"type": "array", "items": false})", {"[]", "[ ]"}, {"[1]"});
  Valid(
      R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 1})",
      {"[1]", "[1, null]", "[1, null, true]"}, {"[]", "[null]", "[1, true]"});
  Valid(R"({"prefixItems": [{"type": "integer"}], "minItems": 2, "maxItems": 3})",
        {R"([1, "a"])", "[1, 2, {}]"}, {"[1]", "[1, 2, 3, 4]", R"(["a", 1])"});
  Valid(R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 2})", {"[1, null]"},
        {"[1]", "[1, null, 2]"});
  Valid(R"({"type": "array"})", {"[]", "[1, \"a\", {}]"}, {"{}"});
}

TEST_F(JsonSchemaGrammarTest, WhiteSpaceIsFreeWithinABound) {
  const std::string most(16, ' ');
  Valid("{\"type\": \"array\", \"items\": {\"type\": \"null\"}}",
        {"[null]", "[\n\tnull\n]", "[" + most + "null" + most + "]"},
        {"[" + most + " null]", "[null" + most + " ]"});
  Valid("true", {"{" + most + "}"}, {"{" + most + " }"});
}

TEST_F(JsonSchemaGrammarTest, AlternativesAndReferences) {
  Valid(R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", {"1", "null"}, {"true"});
  Valid(R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"1", R"("a")"}, {"null"});
  Valid(R"({"allOf": [{"type": "integer"}], "description": "one"})", {"1"}, {"null"});
  Valid(R"({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}})", {"null"}, {"1"});
  const std::string tree =
      R"({"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["next"]}}, "$ref": "#/$defs/node"})";
  Valid(tree, {R"({"next": null})", R"({"next": {"next": {"next": null}}})"}, {R"({"next": {}})"});
  const std::string tagged =
      R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                    {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}]})";
  Valid(tagged, {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"}, {R"({"kind": "a"})", R"({"kind": "c"})"});
}

TEST_F(JsonSchemaGrammarTest, WhatIsNotSupportedIsNamedByItsPath) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"properties": {"a": {"not": {}}}})", ".properties.a.not: is not supported"},
      {R"({"type": "array", "uniqueItems": true})", ".uniqueItems: is not supported"},
      {R"({"type": "integer", "multipleOf": 3})", ".multipleOf: is not supported"},
      {R"({"patternProperties": {"a": {}}})", ".patternProperties: is not supported"},
      {R"({"allOf": []})", ".allOf: is not an array of at least one entry"},
      {R"re({"type": "string", "pattern": "a(?=b)"})re",
       ".pattern: at byte 2: lookahead, (?=, is not supported"},
      {R"({"$ref": "#/$defs/x"})", ".$ref: leads nowhere inside this schema: #/$defs/x"},
      {R"({"$ref": "https://example.com/x"})",
       ".$ref: leads nowhere inside this schema: https://example.com/x"},
      {R"({"typ": "integer"})", ".typ: is no keyword that is known here"},
      {R"({"type": "text"})", ".type: is not the name of a type: \"text\""},
      {R"({"type": "array", "items": [{}]})", ".items: is not supported as an array; prefixItems is"},
      {R"({"enum": []})", ".enum: is not an array of at least one entry"},
      {R"({"type": "string", "enum": [1]})", ".enum: has no value of the schema's type"},
      {R"({"properties": {"a": false}})", ".properties.a: false allows no value at all"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", ".minimum: leaves no number between the bounds"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", ".maxLength: is less than minLength"},
      {R"({"type": "string", "maxLength": 5000})", ".maxLength: is 5000; at most 4096 is supported"},
      {R"({"type": "object", "minProperties": 2})", ".minProperties: above 1 is not supported"},
      {"[1]", "the schema: is not a schema (an object or a boolean)"},
  };
  for (const auto& [schema, refusal] : cases) EXPECT_EQ(Refused(schema), refusal);
  EXPECT_NE(Refused("{").find("is not JSON"), std::string::npos);
  EXPECT_NE(Refused(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})").find("entries 0 and 1"),
            std::string::npos);
  EXPECT_NE(Refused(R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})").find("leads back to itself"),
            std::string::npos);
}

TEST_F(JsonSchemaGrammarTest, ARefusalHasThePlaceInTheSchemaForItsField) {
  const auto refused = [](const std::string& schema) { return JsonSchemaGrammar(schema, {}).status(); };
  const Status inside = refused(R"({"properties": {"a": {"items": {"not": {}}}}})");
  EXPECT_EQ(inside.field(), ".properties.a.items.not");
  EXPECT_EQ(inside.sentence(), "is not supported");
  EXPECT_EQ(refused("[1]").field(), "") << "the schema as a whole";
}

TEST_F(JsonSchemaGrammarTest, ARefusalIsTextWhateverTheKey) {
  const std::string refusal = Refused(R"({"properties": {"\ud800": {"not": {}}}})");
  EXPECT_EQ(FirstInvalidUtf8(refusal), std::nullopt) << refusal;
  EXPECT_NE(refusal.find("half of a surrogate pair is no text"), std::string::npos) << refusal;
}

TEST_F(JsonSchemaGrammarTest, WordsForPeopleSayNothingAboutTheText) {
  Valid(
      R"({"$schema": "x", "$id": "y", "title": "t", "description": "d", "default": 3, "examples": [1], "type": "null",
            "deprecated": true, "x-mine": {"not": 1}, "uniqueItems": false})",
      {"null"}, {"3"});
}

TEST_F(JsonSchemaGrammarTest, DepthAndSizeAreBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 70; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  EXPECT_NE(Refused(deep).find("more than 64 schemas inside each other"), std::string::npos);
  std::string wide = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 40; ++i) {
    wide += (i > 0 ? "," : "") + std::string("\"p") + std::to_string(i) +
            R"(": {"type": "string", "maxLength": )" + std::to_string(900 + i) + "}";
  }
  EXPECT_NE(Refused(wide + "}}").find("more than 16384 symbols"), std::string::npos);
}

// ---- the other kinds ----------------------------------------------------------------------------

TEST_F(GrammarTest, JsonObjectIsAnyObject) {
  Expect(Kind::kJsonObject, "", {"{}", R"({"a": [1, {"b": null}]})"},
         {"[]", "1", "{", R"({"a"})", "{\"a\": 1}}"});
}

TEST_F(GrammarTest, ACallersGrammarIsTakenAsItIs) {
  Expect(Kind::kGrammar, "root ::= \"a\" rest # comment\nrest ::= [0-9]{2} | (\"b\")+\n",
         {"a12", "ab", "abbb"}, {"a", "a1", "a123"});
  Expect(Kind::kGrammar, "root ::= \"(\" root \")\" | \"\"", {"", "()", "(())"}, {"(", ")("});
}

TEST_F(GrammarTest, MoreThanEbnfIsRefusedByName) {
  const auto refused = [this](const std::string& grammar) { return Refusal(Kind::kGrammar, grammar); };
  EXPECT_NE(refused("root ::= Token(3)").find("the macro Token"), std::string::npos);
  EXPECT_NE(refused("root ::= TagDispatch((\"a\", b))").find("the macro TagDispatch"), std::string::npos);
  EXPECT_NE(refused("root ::= \"a\" (= \"b\")").find("lookahead"), std::string::npos);
  EXPECT_NE(refused("root[max_tokens=3] ::= \"a\"").find("attributes"), std::string::npos);
  EXPECT_NE(refused("root ::= \"a\"{5000}").find("more than 4096"), std::string::npos);
  EXPECT_NE(refused("root ::= ((\"a\"{1000}){1000}){1000}").find("more than 16384"), std::string::npos);
  EXPECT_NE(refused("root ::= " + std::string(70, '(') + "\"a\"" + std::string(70, ')')).find("more than 64"),
            std::string::npos);
  for (const char* grammar : {"", "start ::= \"a\"", "root ::= missing", "root ::= \"a", "root ::= (\"a\"",
                              "root = \"a\"", "root ::= [a", "root ::= \"\\q\"", "%"}) {
    EXPECT_NE(refused(grammar), "") << grammar;
  }
}

TEST_F(GrammarTest, ChoicesAreTheTextsThemselves) {
  auto grammar = compiler_->Compile({Kind::kChoice, "", {"yes", "no (really)", "né", "yes!"}});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const char* text : {"yes", "yes!", "no (really)", "né"}) EXPECT_TRUE(Takes(**grammar, text)) << text;
  for (const char* text : {"", "ye", "no", "yes!!"}) EXPECT_FALSE(Takes(**grammar, text)) << text;
  EXPECT_FALSE(compiler_->Compile({Kind::kChoice, "", {}}).ok());
  EXPECT_FALSE(compiler_->Compile({Kind::kChoice, "", {"a", ""}}).ok());
  EXPECT_FALSE(compiler_->Compile({Kind::kChoice, "", Texts(1025, "a")}).ok());
}

// ---- matchers -----------------------------------------------------------------------------------

TEST_F(GrammarTest, AfterTheEndThereIsOnlyTheEnd) {
  const auto grammar = Compile(Kind::kRegex, "a");
  const auto matcher = grammar->NewMatcher(TextStart::kWithinMessage);
  std::vector<uint32_t> mask(MaskWords(ByteTokenizer::kVocab));
  EXPECT_FALSE(matcher->Accept('b'));
  EXPECT_TRUE(matcher->Accept('a')) << "what was refused changed nothing";
  for (int i = 0; i < 3; ++i) {
    matcher->FillMask(mask);
    for (int32_t t = 0; t < ByteTokenizer::kVocab; ++t)
      EXPECT_EQ(MaskAllows(mask, t), t == ByteTokenizer::kEos);
    EXPECT_FALSE(matcher->Accept('a'));
    EXPECT_TRUE(matcher->Accept(ByteTokenizer::kEos));
  }
  EXPECT_FALSE(matcher->Accept(-1));
  EXPECT_FALSE(matcher->Accept(ByteTokenizer::kVocab));
}

// The pieces that start with a space stand for the word behind it, once, at the start of a message only.
TEST_F(GrammarTest, TheSpaceInFrontOfAMessageIsNoPartOfIt) {
  const PieceTokenizer pieces({"</s>", " ", " {", "{", "}", " }", "a", " a"});
  const auto compiler = ConstraintCompiler::Create(pieces, 8, {0}, {});
  const auto grammar = compiler->Compile({Kind::kRegex, "\\{a? ?a\\}", {}});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto allowed = [](GrammarMatcher& matcher) {
    std::vector<uint32_t> mask(1);
    matcher.FillMask(mask);
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < 8; ++t) {
      if (MaskAllows(mask, t)) tokens.push_back(t);
    }
    return tokens;
  };
  const auto at_start = (*grammar)->NewMatcher(TextStart::kOfMessage);
  EXPECT_EQ(allowed(*at_start), (std::vector<int32_t>{1, 2, 3})) << "a space alone, \" {\" and \"{\"";
  EXPECT_TRUE(at_start->Accept(2));
  EXPECT_EQ(allowed(*at_start), (std::vector<int32_t>{1, 6, 7}));
  const auto after_space = (*grammar)->NewMatcher(TextStart::kOfMessage);
  EXPECT_TRUE(after_space->Accept(1));
  EXPECT_EQ(allowed(*after_space), (std::vector<int32_t>{3})) << "only the first space is dropped";
  const auto within = (*grammar)->NewMatcher(TextStart::kWithinMessage);
  EXPECT_EQ(allowed(*within), (std::vector<int32_t>{3}));
}

// Where all spaces in front are dropped the message has still not started after one alone; a second one has
// no end.
TEST_F(GrammarTest, OneSpaceAloneMayStandInFrontOfAMessageAndNoSecondOne) {
  const PieceTokenizer pieces({"</s>", " ", " {", "{"}, LeadingSpace::kAllDropped);
  const auto compiler = ConstraintCompiler::Create(pieces, 4, {0}, {});
  const auto grammar = compiler->Compile({Kind::kRegex, "\\{", {}});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto matcher = (*grammar)->NewMatcher(TextStart::kOfMessage);
  std::vector<uint32_t> mask(1);
  matcher->FillMask(mask);
  EXPECT_EQ(mask[0], 0b1110u);
  EXPECT_TRUE(matcher->Accept(1));
  matcher->FillMask(mask);
  EXPECT_EQ(mask[0], 0b1100u) << "\" {\" still stands for \"{\", and another space alone may not come";
  EXPECT_FALSE(matcher->Accept(1));
  EXPECT_TRUE(matcher->Accept(2));
  matcher->FillMask(mask);
  EXPECT_EQ(mask[0], 0b0001u);
}

// A repetition of what is regular is one pattern, with rules that do not lead back to themselves; others are
// the library's. The texts are the same.
TEST_F(GrammarTest, RepetitionsInAGrammarAreWhatTheyRepeat) {
  const auto expect = [this](const std::string& grammar, const Texts& taken, const Texts& refused) {
    Expect(Kind::kGrammar, grammar, taken, refused);
  };
  expect("root ::= [a-c^-]{2,3} \"!\" # {9,9}", {"a-!", "^b-!"}, {"a!", "abca!", "d-!"});
  expect(R"(root ::= "{" ( [^"\\\n] | "\\" ["\\] ){2,4} "}")", {R"({ab})", R"({\"x\\y})", "{é€😀}"},
         {"{a}", R"({a"})", R"({a\})", "{abcde}", "{a\n}", "{\xC0\xAF}"});
  expect(
      "root ::= (word \" \" | \"-\"){2,5}\nword ::= letter{1,3}\nletter ::= [\\x61-\\x63\\u00E9\\U0001F600]",
      {"ab --", "é 😀 -"}, {"ab ", "abca -", "d --"});
  expect("root ::= \"\" [ab]{2} \"\\\"\\\\\\n\"{2,2} | ([xy] {1,2} \"/\"){2}", {"ab\"\\\n\"\\\n", "xy/x/"},
         {"ab", "xyx/x/"});
  expect("root ::= nest{2,3}\nnest ::= \"(\" nest{0,2} \")\"", {"()()", "(())(()())"},
         {"()", "()()()()", "(()()())()"});
  expect("root ::= [a-z]{3,} [0-9]{0,1}", {"abc", "abcd1"}, {"ab", "ab1"});
}

TEST_F(GrammarTest, ARepetitionIsNeverLargerThanItsBoundAllows) {
  std::string doubled = "root ::= a0{2,3}\n";
  for (int i = 0; i < 40; ++i) {
    doubled +=
        "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + " a" + std::to_string(i + 1) + "\n";
  }
  EXPECT_EQ(WithRegularRepetitions(doubled + "a40 ::= [a-z]", {}), doubled + "a40 ::= [a-z]");
  std::string chained = "root ::= a0{2,3}\n";
  for (int i = 0; i < 3000; ++i) chained += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + "\n";
  EXPECT_EQ(WithRegularRepetitions(chained + "a3000 ::= [a-z]", {}), chained + "a3000 ::= [a-z]");
  for (const char* not_understood : {"root ::= [\\d]{2,3}", "root ::= \"\\q\"{2,3}", "root ::= [b-a]{2,3}",
                                     "root ::= [\\uD800]{2,3}", "root ::= nobody{2,3}"}) {
    EXPECT_EQ(WithRegularRepetitions(not_understood, {}), not_understood);
  }
}

// ---- tokens of many bytes -----------------------------------------------------------------------

// Judged by the bytes alone: a token may come where all of its bytes may, one after the other.
TEST_F(GrammarTest, ATokenMayComeExactlyWhereItsBytesMay) {
  Texts pieces = {"</s>", "a",  "b",     "x",   " ",   "\"",   "\\",     "}",   ",",   "\xC3", "\xA9", "é",
                  "é\"",  "éé", "ab\"}", "\"}", "\",", "a\"x", "{\"p\"", ":\"", "{\"", "p\":", "\n"};
  for (const int length : {2, 3, 5, 11, 12, 13, 14, 20, 40}) {
    const std::string run(static_cast<size_t>(length), 'a');
    for (const char* end : {"", "b", "\"", "\"}", "\"x", "é", "\xC3"}) pieces.push_back(run + end);
  }
  const PieceTokenizer tokenizer(pieces);
  const auto compiler = ConstraintCompiler::Create(tokenizer, tokenizer.vocab_size(), {0}, {});
  const ConstraintSpec specs[] = {
      {Kind::kJsonSchema,
       R"({"properties": {"p": {"type": "string", "maxLength": 30}}, "required": ["p"]})",
       {}},
      {Kind::kJsonSchema,
       R"({"properties": {"p": {"type": "string", "minLength": 14, "maxLength": 200}}})",
       {}},
      {Kind::kRegex, "a{0,25}b?", {}},
      {Kind::kRegex, "(a|é){3,40}(ab)*\"?", {}},
      {Kind::kRegex, "[^b]{0,18}|a{20}b", {}},
      {Kind::kRegex, "a{1,5}[^a]{0,30}", {}},
      {Kind::kRegex, "(a{1,3}b|ax)*", {}},
      {Kind::kGrammar, "root ::= word (\"x\" word)* \"\\\"\"?\nword ::= [ab]{1,15}", {}},
  };
  std::mt19937 random(1);
  for (const ConstraintSpec& spec : specs) {
    const auto by_piece = compiler->Compile(spec);
    const auto by_byte = compiler_->Compile(spec);
    ASSERT_TRUE(by_piece.ok() && by_byte.ok()) << spec.text;
    const auto may_come = [&](const std::string& text) {
      const auto matcher = (*by_byte)->NewMatcher(TextStart::kWithinMessage);
      return std::all_of(text.begin(), text.end(),
                         [&](char c) { return matcher->Accept(static_cast<unsigned char>(c)); });
    };
    const auto matcher = (*by_piece)->NewMatcher(TextStart::kWithinMessage);
    std::vector<uint32_t> mask(MaskWords(tokenizer.vocab_size()));
    std::string text;
    for (int step = 0; step < 14; ++step) {
      matcher->FillMask(mask);
      std::vector<int32_t> allowed;
      for (int32_t t = 1; t < tokenizer.vocab_size(); ++t) {
        const std::string& piece = pieces[static_cast<size_t>(t)];
        ASSERT_EQ(MaskAllows(mask, t), may_come(text + piece)) << spec.text << "\n"
                                                               << text << " and then " << piece;
        if (MaskAllows(mask, t)) allowed.push_back(t);
      }
      if (allowed.empty()) break;
      const int32_t token = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher->Accept(token));
      text += pieces[static_cast<size_t>(token)];
    }
  }
}

// 8,000 states with a mask of their own are more than a grammar keeps of them.
TEST_F(GrammarTest, MasksThatWereForgottenAreMadeAgain) {
  std::mt19937 random(1);
  ConstraintSpec spec{Kind::kChoice, "", {}};
  while (spec.choices.size() < 1000) {
    std::string& text = spec.choices.emplace_back();
    for (int i = 0; i < 8; ++i) text += static_cast<char>('a' + random() % 26);
  }
  const auto grammar = compiler_->Compile(spec);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const std::string& text : spec.choices) ASSERT_TRUE(Takes(**grammar, text)) << text;
  EXPECT_TRUE(Takes(**grammar, spec.choices[0]));
  EXPECT_FALSE(Takes(**grammar, spec.choices[0].substr(0, 7) + "!"));
}

// By the default limits, of time too: pydantic's max_length over a vocabulary of today.
TEST_F(GrammarTest, LongStringsCompileOverALargeVocabularyWithTheSameAnswerEachTime) {
  Texts pieces = {"</s>", "\"", "{", "}", ":"};
  std::mt19937 random(1);
  while (pieces.size() < 131072) {
    std::string& piece = pieces.emplace_back(1, ' ');
    for (uint32_t n = 1 + random() % 12; n > 0; --n) piece += static_cast<char>('a' + random() % 26);
  }
  const PieceTokenizer tokenizer(std::move(pieces));
  const auto compiler = ConstraintCompiler::Create(tokenizer, tokenizer.vocab_size(), {0}, {});
  for (const std::string length : {"50", "100", "2000"}) {
    const ConstraintSpec specs[] = {
        {Kind::kJsonSchema, R"({"properties": {"p": {"type": "string", "maxLength": )" + length + "}}}", {}},
        {Kind::kRegex, "[^\"]{0," + length + "}", {}},
        {Kind::kGrammar,
         "root ::= \"\\\"\" char{0," + length + "} \"\\\"\"\nchar ::= [^\"\\\\] | \"\\\\\" [nrt]",
         {}}};
    for (const ConstraintSpec& spec : specs) {
      const auto first = compiler->Compile(spec);
      ASSERT_TRUE(first.ok()) << spec.text << ": " << first.status();
      EXPECT_EQ(*compiler->Compile(spec), *first);
    }
  }
}

// ---- what is stopped ----------------------------------------------------------------------------

// Each word may be one x or many, so there are as many texts of x as words; it takes longer with each.
TEST_F(GrammarTest, AMatcherStopsWhereItHasCostEnough) {
  const auto grammar = Compile(Kind::kGrammar, "root ::= (x y)*\nx ::= [a-z]+\ny ::= [a-z]+");
  const auto matcher = grammar->NewMatcher(TextStart::kWithinMessage);
  std::vector<uint32_t> mask(MaskWords(ByteTokenizer::kVocab));
  GrammarWork work;
  matcher->FillMask(mask, work);
  EXPECT_TRUE(MaskAllows(mask, 'a'));
  EXPECT_GT(work.spent_ns, 0);
  GrammarWork none{.most_ns = 0};
  for (int i = 0; i < 1000 && !none.stopped; ++i) matcher->Accept('a', none);
  EXPECT_TRUE(none.stopped);
  matcher->FillMask(mask);
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 0u), static_cast<int64_t>(mask.size()))
      << "nothing any more";
}

TEST_F(GrammarTest, CompilingStopsAndTheSameCompilesLater) {
  int asked = 0;
  const ConstraintSpec spec{Kind::kRegex, "([a-z0-9]{1,100}-){1,10}", {}};
  const auto stopped = compiler_->Compile(spec, [&asked] { return ++asked < 3; });
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled) << stopped.status();
  EXPECT_EQ(compiler_->stats().compiled, 0);
  EXPECT_TRUE(compiler_->Compile(spec).ok());
}

TEST_F(GrammarTest, WhatTakesTooLongToCompileIsRefused) {
  limits_.max_compile_ns = 0;
  const auto compiler =
      ConstraintCompiler::Create(tokenizer_, ByteTokenizer::kVocab, {ByteTokenizer::kEos}, limits_);
  const Status status = compiler->Compile({Kind::kRegex, "([a-z0-9]{1,100}-){1,10}", {}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("max_compile_ms"), std::string::npos) << status;
}

// ---- what is kept -------------------------------------------------------------------------------

TEST_F(GrammarTest, ACompiledGrammarIsKept) {
  const auto first = Compile(Kind::kRegex, "[a-z]{50}");
  EXPECT_EQ(Compile(Kind::kRegex, "[a-z]{50}"), first);
  EXPECT_EQ(compiler_->stats().compiled, 1);
  EXPECT_EQ(compiler_->stats().cached, 1);
  EXPECT_GE(compiler_->stats().cached_bytes, first->memory_bytes());
}

TEST_F(GrammarTest, WhatWasRefusedIsNotKept) {
  Refusal(Kind::kRegex, "(");
  EXPECT_EQ(compiler_->stats().compiled, 0);
  EXPECT_EQ(compiler_->stats().cached, 0);
}

}  // namespace
}  // namespace tramontane
