// UTF-8 as Python divides it.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

using namespace std::string_view_literals;

TEST(Utf8Test, EveryCodePointIsOneValidUnitAndEverySurrogateIsNot) {
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    std::string text;
    AppendUtf8(code_point, &text);
    const Utf8Unit unit = NextUtf8(text);
    const bool is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
    ASSERT_EQ(unit.kind == Utf8Kind::kValid, !is_surrogate) << code_point;
    ASSERT_EQ(unit.bytes, is_surrogate ? 1u : text.size()) << code_point;
    for (size_t bytes = 1; !is_surrogate && bytes < text.size(); ++bytes) {
      ASSERT_EQ(NextUtf8(std::string_view(text).substr(0, bytes)).kind, Utf8Kind::kTruncated) << code_point;
    }
  }
}

TEST(Utf8Test, ReplacesInvalidBytesAsPythonDoes) {
  struct Case {
    std::string_view bytes;
    const char* text;  // bytes.decode("utf-8", errors="replace") in CPython 3.11
  };
  const Case cases[] = {
      {"", ""},
      {"\xff"sv, "\uFFFD"},
      {"\xe2\x96"sv, "\uFFFD"},
      {"\xe2\x96"
       "a"sv,
       "\uFFFDa"},
      {"\xf0\x9f\x99"sv, "\uFFFD"},
      {"\xf0\x9f\x99\xe2\x96\x81"sv, "\uFFFD\u2581"},
      {"\xed\xa0\x80"sv, "\uFFFD\uFFFD\uFFFD"},
      {"\xc0\x80"sv, "\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80"sv, "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xf0\x80\x80\x80"sv, "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xe0\x80"sv, "\uFFFD\uFFFD"},
      {"a\x80"
       "b\xc3"sv,
       "a\uFFFDb\uFFFD"},
      {"\xf5\x80"sv, "\uFFFD\uFFFD"},
      {"\xe2\x28\xa1"sv, "\uFFFD(\uFFFD"},
      {"\xf0\x9f\x28\x99"sv, "\uFFFD(\uFFFD"},
      {"\xed\x9f\xbf\xee\x80\x80"sv, "\uD7FF\uE000"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ReplaceInvalidUtf8(c.bytes), c.text) << ::testing::PrintToString(c.bytes);
    EXPECT_EQ(FirstInvalidUtf8(ReplaceInvalidUtf8(c.bytes)), std::nullopt);
  }
}

TEST(Utf8Test, TheFirstInvalidByteIsFoundAtEveryOffset) {
  // Longer than the stride in which plain ASCII is skipped.
  for (size_t offset = 0; offset < 40; ++offset) {
    std::string text(48, 'a');
    text[offset] = '\x80';
    EXPECT_EQ(FirstInvalidUtf8(text), offset);
  }
  EXPECT_EQ(FirstInvalidUtf8("caf\u00E9 \xe2\x96"), 6u);
  EXPECT_EQ(FirstInvalidUtf8(std::string(64, 'a') + "\u4F60"), std::nullopt);
}

TEST(Utf8Test, AnExcerptEndsBetweenCodePoints) {
  EXPECT_EQ(Excerpt("short"), "short");
  EXPECT_EQ(Excerpt(std::string(80, 'a')), std::string(80, 'a'));
  EXPECT_EQ(Excerpt(std::string(79, 'a') + "\u00E9z"), std::string(79, 'a') + "...");
}

TEST(Utf8Test, TruncatedCharactersAtTheEndAreCounted) {
  EXPECT_EQ(TruncatedUtf8Bytes("ab"), 0u);
  EXPECT_EQ(TruncatedUtf8Bytes("é"), 0u);
  EXPECT_EQ(TruncatedUtf8Bytes("\xc3"), 1u);
  EXPECT_EQ(TruncatedUtf8Bytes("a\xe5\x8c"), 2u);
  EXPECT_EQ(TruncatedUtf8Bytes("\xf0\x9f\xa6"), 3u);
  EXPECT_EQ(TruncatedUtf8Bytes("\x8c"), 0u);
  EXPECT_EQ(TruncatedUtf8Bytes(""), 0u);
}

}  // namespace
}  // namespace tramontane
