#include "server/base/text.h"

#include <gtest/gtest.h>

namespace tramontane {
namespace {

TEST(Text, OnlyAsciiLettersHaveALowerCase) {
  EXPECT_EQ(LowerCase("Content-TYPE_09[`{@Z"), "content-type_09[`{@z");
  EXPECT_EQ(LowerCase("\xC3\x84"), "\xC3\x84") << "bytes beyond ASCII stay";
  EXPECT_EQ(LowerCase(""), "");
}

}  // namespace
}  // namespace tramontane
