// JSON as Python reads and prints it, and the check of tool schemas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "models/tokenizer/json_schema.h"
#include "models/tokenizer/python_json.h"
#include "models/tokenizer/python_regex.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

std::string Reprint(std::string_view text) {
  const StatusOr<JsonValue> value = ParsePythonJson(text);
  if (!value.ok()) return value.status().ToString();
  std::string out;
  AppendPythonJson(*value, &out);
  return out;
}

TEST(PythonJsonTest, PrintsNumbersAsPythonDoes) {
  struct Case {
    const char* text;
    const char* print;  // json.dumps(json.loads(text)) in CPython 3.11
  };
  const Case cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1.50", "1.5"},
      {"1e20", "1e+20"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345678", "123456789012345678"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
      {"123456789012345678901234567890.0", "1.2345678901234568e+29"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"0.1", "0.1"},
      {"123456.789e3", "123456789.0"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"0.00001e-400", "0.0"},
      {"1e400", "Infinity"},
      {"-1000e309", "-Infinity"},
      {"1e99999999999999999999", "Infinity"},
      {"1e-99999999999999999999", "0.0"},
      {"0e999", "0.0"},
      {"NaN", "NaN"},
      {"Infinity", "Infinity"},
      {"-Infinity", "-Infinity"},
  };
  for (const Case& c : cases) EXPECT_EQ(Reprint(c.text), c.print) << c.text;
}

TEST(PythonJsonTest, PrintsStringsWithoutEscapingWhatNeedsNone) {
  EXPECT_EQ(Reprint(R"("\u00e9\/ \ud83d\ude00")"), "\"é/ 😀\"");
  EXPECT_EQ(Reprint(R"("\"\\\b\f\n\r\t\u0001\u001F\u007f")"),
            "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
  EXPECT_EQ(Reprint("\"\\ud800\""), "\"\xED\xA0\x80\"") << "half a pair is kept, and is not UTF-8";
  EXPECT_EQ(Reprint(R"("\ud83dx\ude00")"), "\"\xED\xA0\xBDx\xED\xB8\x80\"");
}

TEST(PythonJsonTest, SpacesFollowCommasAndColonsAndKeysKeepTheirOrder) {
  EXPECT_EQ(Reprint(" {\"b\":[1,{ },[ ]],\n\"a\":null,\"c\":true,\"d\":false} "),
            R"({"b": [1, {}, []], "a": null, "c": true, "d": false})");
  EXPECT_EQ(Reprint(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})") << "the last value, at the first place";
}

TEST(PythonJsonTest, RefusesWhatPythonRefuses) {
  for (const char* text :
       {"",     " ",       "01",        "1.",          ".5",     "1.e5",    "+1",
        "-",    "--1",     "tru",       "nul",         "[1,]",   "[1 2]",   "[",
        "{",    "{\"a\"}", "{\"a\":}",  "{\"a\":1,}",  "{a:1}",  "{'a':1}", "\"",
        "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\n\"", "1 2",     "\xEF\xBB\xBF{}",
        "-NaN", "nan",     "]"}) {
    EXPECT_EQ(ParsePythonJson(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParsePythonJson("[1, x]").status().message(), "not JSON at byte 4: a value is missing");
}

TEST(PythonJsonTest, DepthAndDigitsHaveLimits) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(Reprint(nested(kMaxPythonJsonDepth)), nested(kMaxPythonJsonDepth));
  EXPECT_EQ(ParsePythonJson(nested(kMaxPythonJsonDepth + 1)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ParsePythonJson(std::string(5'000'000, '[')).status().code(), StatusCode::kResourceExhausted);
  const std::string digits(kMaxJsonIntegerDigits, '7');
  EXPECT_EQ(Reprint("-" + digits), "-" + digits);
  EXPECT_EQ(ParsePythonJson(digits + "7").status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Reprint(digits + "7.0"), "Infinity") << "the limit is for integers";
}

// Each as re.compile() of CPython 3.11 has it.
TEST(PythonRegexTest, CompilesWhatPythonCompiles) {
  // clang-format off
  constexpr const char* kPatterns[] = {
      "", "^\\d{4}-\\d{2}$", "a|b|", "[]a]", "[^]]", "[a-z\\d-]", "[\\b]", "a{", "a{,}", "a{2}", "{",
      "{a}", "a{1,3}?b*+c??", "(a)(?P<n>b)\\1(?P=n)", "(?:^)*", "(?i)a", "(?i)(?m)a", "(?s-i:a)",
      "(?#note)a", "(?=a)*", "(?<=ab|cd)e", "(?<=(?:ab){2})", "(a)?(?(1)b|c)", "(?(1)a)(b)",
      "\\x41\\u00e9\\U0001F600", "\\0\\012\\377", "(?>a+)b", "\\-\\é", "é{2}", "[é-ü]", "(?x)( # )\n)"};
  // clang-format on
  for (const char* pattern : kPatterns) {
    EXPECT_TRUE(IsPythonRegex(pattern)) << pattern;
  }
}

TEST(PythonRegexTest, RefusesWhatPythonRefuses) {
  // clang-format off
  constexpr const char* kPatterns[] = {
      "[", "[]", "[^]", "(", ")", "a)", "(a", "*", "a|*", "(*a)", "^*", "\\b+", "a**", "a{2}{3}",
      "a{2,1}", "a{4294967295}", "\\", "\\p{L}", "\\k", "[\\A]", "[\\8]", "[z-a]", "[a-\\d]", "[\\d-z]",
      "\\1", "(\\1)", "\\400", "\\8", "\\x4", "\\u12", "\\U00110000", "(?<n>a)", "(?P<1>a)",
      "(?P<n>a)(?P<n>b)", "(?P=n)", "(?Pn)", "(?", "(?z)", "a(?i)", "(a(?i))", "(?i-i:a)", "(?-:a)",
      "(?au)a", "(?<=a*)", "(?<=a|bc)", "(?#", "(?(2)a)(b)", "(?(0)a)", "(?(n)a)", "(a)(?(1)b|c|d)",
      "[ü-é]", "\\N", "\\N{}"};
  // clang-format on
  for (const char* pattern : kPatterns) {
    EXPECT_FALSE(IsPythonRegex(pattern)) << pattern;
  }
  EXPECT_FALSE(IsPythonRegex(std::string(100'000, '('))) << "nesting has a limit";
}

Status SchemaStatus(std::string_view schema) { return CheckJsonSchema(ParsePythonJson(schema).value()); }

TEST(JsonSchemaTest, SoundSchemasPass) {
  for (const char* schema :
       {"{}", "true",
        R"({"type":"object","properties":{"a":{"type":["string","null"]},"b":true},"required":["a"]})",
        R"({"items":[{},false],"minItems":2.0,"maxLength":99999999999999999999999})",
        R"({"anyOf":[{}],"not":{"const":1},"enum":[],"examples":[1],"default":{"type":5}})",
        R"({"dependencies":{"a":["b"],"c":{"minimum":-1.5}},"patternProperties":{"^x":{}}})",
        R"({"multipleOf":0.01,"x-unknown":{"type":5},"$ref":"#/definitions/a","definitions":{"a":{}}})"}) {
    EXPECT_TRUE(SchemaStatus(schema).ok()) << schema << " " << SchemaStatus(schema);
  }
}

TEST(JsonSchemaTest, AFaultIsNamedByItsPlace) {
  struct Case {
    const char* schema;
    const char* message;
  };
  const Case cases[] = {
      {R"({"type":"strin"})", ".type is not a type's name"},
      {R"({"type":[]})", ".type is not"},
      {R"({"type":["string","string"]})", ".type is not"},
      {R"({"properties":{"city":{"type":5}}})", ".properties.city.type is not"},
      {R"({"properties":{"city":1}})", ".properties.city is not a schema"},
      {R"({"properties":[]})", ".properties is not an object of schemas"},
      {R"({"anyOf":[{},{"items":[]}]})", ".anyOf[1].items is not a schema or an array"},
      {R"({"allOf":[]})", ".allOf is not an array of at least one"},
      {R"({"allOf":{}})", ".allOf is not an array of at least one"},
      {R"({"required":["a","a"]})", ".required is not an array of distinct strings"},
      {R"({"required":"a"})", ".required is not"},
      {R"({"minLength":-1})", ".minLength is not an integer from 0"},
      {R"({"minLength":1.5})", ".minLength is not"},
      {R"({"minLength":true})", ".minLength is not"},
      {R"({"minLength":Infinity})", ".minLength is not"},
      {R"({"multipleOf":0})", ".multipleOf is not a number above 0"},
      {R"({"uniqueItems":1})", ".uniqueItems is not a boolean"},
      {R"({"description":1})", ".description is not a string"},
      {R"({"pattern":"["})", ".pattern is not a regular expression"},
      {R"({"pattern":1})", ".pattern is not a regular expression"},
      {R"({"patternProperties":{"a**":{}}})", ".patternProperties is not an object of schemas by regular"},
      {R"({"patternProperties":[]})", ".patternProperties is not"},
      {R"({"enum":{}})", ".enum is not an array"},
      {R"({"maximum":"1"})", ".maximum is not a number"},
      {R"({"dependencies":{"a":["b","b"]}})", ".dependencies.a is not"},
      {R"({"not":1})", ".not is not a schema"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(SchemaStatus(c.schema).code(), StatusCode::kInvalidArgument) << c.schema;
    EXPECT_THAT(SchemaStatus(c.schema).message(), HasSubstr(c.message)) << c.schema;
  }
}

}  // namespace
}  // namespace tramontane
