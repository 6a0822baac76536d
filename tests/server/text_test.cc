#include "server/base/text.h"

#include <gtest/gtest.h>

namespace tramontane {
namespace {

TEST(Text, OnlyAsciiLettersHaveALowerCase) {
  EXPECT_EQ(LowerCase("Content-TYPE_09[`{@Z"), "content-type_09[`{@z");
  EXPECT_EQ(LowerCase("\xC3\x84"), "\xC3\x84") << "bytes beyond ASCII stay";
  EXPECT_EQ(LowerCase(""), "");
}

TEST(Text, WhatEndsALineOrMovesACursorIsPrintedAsAnEscape) {
  EXPECT_EQ(PrintableText("a\nb\r\t\x1b[31m\x7f"), "a\\nb\\r\\t\\u001b[31m\\u007f");
  EXPECT_EQ(PrintableText(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(PrintableText("\xC2\x9B"
                          "31m"),
            "\\u009b31m")
      << "C1's own way to begin a sequence";
  EXPECT_EQ(PrintableText("\xE2\x80\xA8\xE2\x80\xAE\xEF\xBB\xBF"), "\\u2028\\u202e\\ufeff");
  EXPECT_EQ(PrintableText("\xFF"
                          "a\xE2\x82"),
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD")
      << "no UTF-8";
  EXPECT_EQ(PrintableText("\xC3\xA9 \xF0\x9F\x98\x80 \"q\" \\"), "\xC3\xA9 \xF0\x9F\x98\x80 \"q\" \\")
      << "what can be read stays";
  EXPECT_EQ(QuotedText("a\"b\\\n"), "\"a\\\"b\\\\\\n\"");
  EXPECT_EQ(QuotedText(""), "\"\"");
}

}  // namespace
}  // namespace tramontane
