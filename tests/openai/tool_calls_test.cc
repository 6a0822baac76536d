#include "server/api/shared/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tramontane {
namespace {

using testing::MatchesRegex;

TEST(ToolCallIds, ForeignOnesBecomeNineCharactersAndOursStay) {
  EXPECT_EQ(MistralCallId("Ab3456789"), "Ab3456789");
  for (const char* foreign :
       {"", "call_abcdefghijklmnop", "Ab345678", "Ab34567890", "Ab345678\n", "Ab34-6789"}) {
    EXPECT_THAT(MistralCallId(foreign), MatchesRegex("[a-zA-Z0-9]{9}")) << foreign;
    EXPECT_EQ(MistralCallId(foreign), MistralCallId(foreign));
  }
  EXPECT_NE(MistralCallId("call_1"), MistralCallId("call_2"));
}

}  // namespace
}  // namespace tramontane
