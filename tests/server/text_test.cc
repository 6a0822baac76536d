#include "server/base/text.h"

#include <gtest/gtest.h>

namespace tramontane {
namespace {

TEST(Text, OnlyAsciiLettersHaveALowerCase) {
  EXPECT_EQ(LowerCase("Content-TYPE_09[`{@Z"), "content-type_09[`{@z");
  EXPECT_EQ(LowerCase("\xC3\x84"), "\xC3\x84") << "bytes beyond ASCII stay";
  EXPECT_EQ(LowerCase(""), "");
}

TEST(Text, AnEntryIsNamedByItsList) {
  EXPECT_EQ(Indexed("messages", 0), "messages[0]");
  EXPECT_EQ(Indexed("prompt[1]", size_t{12}), "prompt[1][12]");
}

}  // namespace
}  // namespace tramontane
