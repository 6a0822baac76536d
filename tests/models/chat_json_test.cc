// JSON as Python reads and prints it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

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

}  // namespace
}  // namespace tramontane
