// JSON at the edge: limits before values are built, and output that is always UTF-8.
#include "server/api/shared/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "kernels/core/utf8.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(JsonLimits, DepthIsAllowedToTheLimitAndRefusedBeyondIt) {
  EXPECT_TRUE(ParseJson(Nested(64)).ok());
  const auto too_deep = ParseJson(Nested(65));
  ASSERT_FALSE(too_deep.ok());
  EXPECT_THAT(too_deep.status().message(), HasSubstr("more than 64 brackets inside each other, at byte 64"));
}

// The parser takes it for the end of the text.
TEST(JsonLimits, AZeroByteIsNoEnd) {
  for (const std::string_view text :
       {std::string_view("{\"a\":1}\0junk", 12), std::string_view("{\"a\":1}\0", 8),
        std::string_view("\0{}", 3), std::string_view("[\"\0\"]", 5)}) {
    EXPECT_THAT(ParseJson(text).status().message(), HasSubstr("a zero byte")) << text;
  }
  EXPECT_EQ(ParseJson(std::string_view("{\"a\":1}\0junk", 12)).status().message(),
            "not JSON at byte 8: a zero byte");
  EXPECT_TRUE(ParseJson(R"("\u0000")").ok());
}

TEST(JsonLimits, AMillionOpenBracketsDoNotOverflowTheStack) {
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).ok());
  std::string objects;
  for (int i = 0; i < 300'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(ParseJson(objects).ok());
}

TEST(JsonLimits, ValuesAndKeysAreCountedBeforeTheyAreBuilt) {
  JsonLimits limits;
  limits.max_values = 4;
  EXPECT_TRUE(ParseJson("[1,2,3]", limits).ok());  // three, and the array
  EXPECT_THAT(ParseJson("[1,2,3,4]", limits).status().message(), HasSubstr("more than 4 values"));
  limits = {};
  limits.max_containers = 3;
  EXPECT_TRUE(ParseJson("[{},[]]", limits).ok());
  EXPECT_THAT(ParseJson("[{},[],[]]", limits).status().message(),
              HasSubstr("more than 3 arrays and objects"));
  limits = {};
  limits.max_object_keys = 2;
  EXPECT_TRUE(ParseJson(R"([{"a":1,"b":2},{"c":1,"d":2}])", limits).ok());
  EXPECT_THAT(ParseJson(R"({"a":1,"b":2,"c":3})", limits).status().message(),
              HasSubstr("more than 2 keys in one object"));
  limits = {};
  limits.max_total_keys = 3;
  EXPECT_THAT(ParseJson(R"([{"a":1,"b":2},{"c":1,"d":2}])", limits).status().message(),
              HasSubstr("more than 3 keys"));
}

TEST(JsonLimits, PunctuationInStringsDoesNotCount) {
  JsonLimits limits;
  limits.max_depth = 1;
  limits.max_values = 2;
  limits.max_object_keys = 1;
  EXPECT_TRUE(ParseJson(R"(["[[{{,,::\"\\"])", limits).ok());
}

TEST(Json, WhatIsNotJsonIsRefusedWithItsByte) {
  EXPECT_THAT(ParseJson("{\"a\": }").status().message(), HasSubstr("not JSON at byte 7"));
  for (const char* text : {"", "{", "[1,]", "nul", "\"open", "{} {}", "\xEF\xBB\xBF", "[1e999]",
                           "\"\\ud800\"", "\"\xff\"", "\"\xc0\xaf\"", "{'a':1}", "NaN"}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
}

TEST(Json, KeysKeepTheirOrder) {
  EXPECT_EQ(PrintJson(*ParseJson(R"({"z":1,"a":[true,null,1.5,"\u00e9"],"m":{}})")),
            "{\"z\":1,\"a\":[true,null,1.5,\"é\"],\"m\":{}}");
}

TEST(JsonString, EscapesWhatJsonNeeds) {
  EXPECT_EQ(JsonString("a\"b\\c\n\r\t\x01\x7f/é北"), "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f/é北\"");
  EXPECT_EQ(JsonString(std::string_view("\0", 1)), "\"\\u0000\"");
  EXPECT_EQ(JsonString(""), "\"\"");
}

TEST(JsonString, ClientsThatEndLinesAsUnicodeDoesSeeOneLine) {
  EXPECT_EQ(JsonString("a\u0085b\u2028c\u2029d\u2027"), "\"a\\u0085b\\u2028c\\u2029d\u2027\"");
}

TEST(JsonString, InvalidUnitsBecomeOneReplacementEach) {
  EXPECT_EQ(JsonString("a\xff"
                       "b"),
            "\"a\xEF\xBF\xBD"
            "b\"");
  EXPECT_EQ(JsonString("\xe5\x8c"), "\"\xEF\xBF\xBD\"");  // cut short
  EXPECT_EQ(JsonString("\xe5\x8c"
                       "a"),
            "\"\xEF\xBF\xBD"
            "a\"");
  EXPECT_EQ(JsonString("\xed\xa0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a surrogate
  EXPECT_EQ(JsonString("\xf4\x90\x80\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

// nlohmann's parser refuses what is not UTF-8, so that it reads our strings shows that they are.
TEST(JsonString, AnyBytesGiveAStringThatAParserReads) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) {
      c = static_cast<char>(random() % 4 == 0 ? random() % 128 : 0x80 + random() % 128);
    }
    const auto parsed = ParseJson(JsonString(bytes));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    if (IsUtf8(bytes)) {
      ASSERT_EQ(parsed->get<std::string>(), bytes);
    }
  }
}

TEST(JsonNumbers, LogprobsAreShortAndNeverInfinite) {
  const auto print = [](float value) {
    std::string text;
    AppendJsonLogprob(value, &text);
    return text;
  };
  EXPECT_EQ(print(-0.5f), "-0.5");
  EXPECT_EQ(print(0.0f), "0");
  EXPECT_EQ(print(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(print(std::nanf("")), "-9999.0");
  EXPECT_EQ(std::stof(print(-1.0f / 3.0f)), -1.0f / 3.0f);
}

}  // namespace
}  // namespace tramontane
