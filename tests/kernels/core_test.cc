// Status, StatusOr and the 16-bit float conversions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/core/dtype.h"
#include "kernels/core/format.h"
#include "kernels/core/nearest_name.h"
#include "kernels/core/status.h"

namespace tramontane {
namespace {

TEST(StatusTest, PrintsCodeAndMessage) {
  EXPECT_EQ(InvalidArgument("top_p is 2, the limit is 1").ToString(),
            "INVALID_ARGUMENT: top_p is 2, the limit is 1");
  EXPECT_TRUE(Status::Ok().ok());
}

TEST(StatusTest, TheFieldIsApartFromTheSentenceUntilTheyArePrinted) {
  const Status label = InvalidArgument("is 2, the limit is 1").WithField("top_p");
  EXPECT_EQ(label.field(), "top_p");
  EXPECT_EQ(label.sentence(), "is 2, the limit is 1");
  EXPECT_EQ(label.message(), "top_p: is 2, the limit is 1");
  EXPECT_EQ(label.ToString(), "INVALID_ARGUMENT: top_p: is 2, the limit is 1");
  const Status subject = InvalidArgument("is 2, the limit is 1").WithField("top_p", FieldForm::kSubject);
  EXPECT_EQ(subject.message(), "top_p is 2, the limit is 1");
  const Status unnamed = InvalidArgument("there is no top").WithField("top_p", FieldForm::kUnnamed);
  EXPECT_EQ(unnamed.message(), "there is no top");
  EXPECT_EQ(InvalidArgument("too much").message(), "too much");
}

TEST(StatusTest, FieldsNest) {
  EXPECT_EQ(InvalidArgument("is empty").WithField("messages[2]").InField("chat").message(),
            "chat.messages[2]: is empty");
  EXPECT_EQ(InvalidArgument("is empty").InField("chat").message(), "chat: is empty");
  EXPECT_EQ(FieldPath("tools", "[0]"), "tools[0]");
  EXPECT_EQ(FieldPath("json_schema", ".type"), "json_schema.type");
  EXPECT_EQ(FieldPath("", "chat"), "chat");
  EXPECT_EQ(FieldElement("tools", 3), "tools[3]");
}

TEST(StatusTest, AFieldLiesInItselfAndInWhatIsAroundIt) {
  EXPECT_TRUE(LiesInField("chat.tools[1].name", "chat.tools[1]"));
  EXPECT_TRUE(LiesInField("chat.tools[1]", "chat.tools"));
  EXPECT_TRUE(LiesInField("chat", "chat"));
  EXPECT_FALSE(LiesInField("chat.tools[10]", "chat.tools[1]"));
  EXPECT_FALSE(LiesInField("chats", "chat"));
  EXPECT_FALSE(LiesInField("chat", "chat.tools"));
}

TEST(StatusTest, StatusOrReturnsItsErrorThroughTheMacro) {
  auto fails = []() -> StatusOr<int> { return NotFound("no such model"); };
  auto caller = [&]() -> StatusOr<int> {
    TM_ASSIGN_OR_RETURN(const int value, fails());
    return value + 1;
  };
  EXPECT_EQ(caller().status().code(), StatusCode::kNotFound);
}

TEST(DTypeTest, EveryHalfRoundTripsThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = F16ToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
      continue;
    }
    ASSERT_EQ(FloatToF16(value), half);
  }
}

TEST(DTypeTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);              // tie, even below
  EXPECT_EQ(RoundToBf16(1.0f + 0x3p-8f), 1.0f + 0x1p-6f);    // tie, even above
  EXPECT_EQ(RoundToBf16(1.0f + 0x1.2p-8f), 1.0f + 0x1p-7f);  // above the tie
  EXPECT_TRUE(std::isnan(RoundToBf16(std::numeric_limits<float>::quiet_NaN())));
}

// ---- NearestName --------------------------------------------------------------------------------

TEST(NearestNameTest, IsTheOneWithTheFewestEdits) {
  EXPECT_EQ(NearestName("temprature", {"top_p", "temperature", "tools"}), "temperature");
  EXPECT_EQ(NearestName("ab", {"ax", "ay"}), "ax");  // the first of equals
  EXPECT_EQ(NearestName("a", {}), "");
}

TEST(NearestNameTest, EditsAreLettersPutInLeftOutOrExchanged) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", "abc"), 0u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("ab", "ba"), 2u);
}

TEST(FormatTest, CountsBecomeBytesBlockByBlock) {
  EXPECT_EQ(Format(DType::kF32).Bytes(3), 12);
  EXPECT_EQ(Format(DType::kBf16).Bytes(3), 6);
  EXPECT_EQ(Format(DType::kF16).Bytes(0), 0);
  EXPECT_EQ(Format(DType::kF16).CompanionBytes(100), 0);
  EXPECT_TRUE(Format(DType::kF16).plain());
  EXPECT_EQ(FormatName(DType::kF16), "f16");

  const Format four_bits(DType::kF16, /*log2_of_block=*/5, /*bytes=*/16, /*bytes_apart=*/2);
  EXPECT_FALSE(four_bits.plain());
  EXPECT_EQ(four_bits.Bytes(64), 32);
  EXPECT_EQ(four_bits.Bytes(65), 48) << "the last block is whole";
  EXPECT_EQ(four_bits.CompanionBytes(65), 6);
  EXPECT_EQ(FormatName(four_bits), "f16 in blocks of 32");
  EXPECT_NE(four_bits, Format(DType::kF16));
}

}  // namespace
}  // namespace tramontane
