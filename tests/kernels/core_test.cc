// Status, StatusOr and the 16-bit float conversions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/core/block_types.h"
#include "kernels/core/dtype.h"
#include "kernels/core/format.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/core/nearest_name.h"
#include "kernels/core/status.h"

namespace tramontane {
namespace {

TEST(StatusTest, PrintsCodeAndMessage) {
  EXPECT_EQ(InvalidArgument("top_p is 2, the limit is 1").ToString(),
            "INVALID_ARGUMENT: top_p is 2, the limit is 1");
  EXPECT_TRUE(Status::Ok().ok());
}

// A file's names come into messages.
TEST(StatusTest, WhatIsPrintedIsOneLineWithoutControlCharacters) {
  EXPECT_EQ(InvalidArgument(std::string("a\0b\x1b[31m\n\x7f\t\xc3\xa9", 13)).ToString(),
            "INVALID_ARGUMENT: a\\x00b\\x1b[31m\\n\\x7f\\x09\xc3\xa9");
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

TEST(FormatTest, GroupsSayTheirSizeTheirScalesAndTheirZeroPoints) {
  EXPECT_EQ(Format(DType::kInt4), Format::InGroups(DType::kInt4, 7, DType::kF16));
  EXPECT_EQ(Format(DType::kFp8E4M3), Format::InGroups(DType::kFp8E4M3, 7, DType::kF32));
  EXPECT_NE(Format(DType::kInt4), Format::InGroups(DType::kInt4, 7, DType::kBf16));
  EXPECT_NE(Format(DType::kInt4), Format::InGroups(DType::kInt4, 7, DType::kF16, /*zero_points=*/true));
  struct Row {
    Format format;
    int64_t bytes_of_512;
    const char* name;
  };
  const Row rows[] = {
      {DType::kInt4, 4 * 66, "int4 in groups of 128 with f16 scales"},
      {Format::InGroups(DType::kInt4, 5, DType::kBf16, true), 16 * 19,
       "int4 in groups of 32 with bf16 scales and zero points"},
      {Format::InGroups(DType::kInt4, 8, DType::kF32), 2 * 132, "int4 in groups of 256 with f32 scales"},
      {Format::InGroups(DType::kInt8, 6, DType::kF16, true), 8 * 67,
       "int8 in groups of 64 with f16 scales and zero points"},
      {DType::kFp8E4M3, 4 * 132, "fp8_e4m3 in groups of 128 with f32 scales"},
      {Format::InGroups(DType::kFp8E4M3, 8, DType::kBf16), 2 * 258,
       "fp8_e4m3 in groups of 256 with bf16 scales"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(row.format.Bytes(512), row.bytes_of_512);
    EXPECT_EQ(FormatName(row.format), row.name);
    EXPECT_FALSE(row.format.plain());
    EXPECT_TRUE(row.format.in_groups());
  }
  EXPECT_FALSE(Format(DType::kQ6K).in_groups());
}

TEST(FormatTest, KeysAndValuesHaveTheirScalesApart) {
  const Format int8 = Format::WithScalesApart(DType::kInt8, 5);
  EXPECT_EQ(int8.Bytes(128) + int8.CompanionBytes(128), 136);
  EXPECT_EQ(FormatName(int8), "int8 in groups of 32 with f16 scales");
  const Format int4 = Format::WithScalesApart(DType::kInt4, 5);
  EXPECT_EQ(int4.Bytes(128) + int4.CompanionBytes(128), 72);
  const Format narrow = Format::WithScalesApart(DType::kInt4, 3, DType::kF32);
  EXPECT_EQ(narrow.Bytes(8), 4);
  EXPECT_EQ(narrow.CompanionBytes(16), 8);
  EXPECT_EQ(Format::BareFp8().Bytes(128), 128);
  EXPECT_EQ(Format::BareFp8().CompanionBytes(128), 0);
  EXPECT_EQ(FormatName(Format::BareFp8()), "fp8_e4m3");
  for (const Format& format : {int8, int4, narrow, Format::BareFp8()}) {
    EXPECT_FALSE(format.well_formed()) << "no weight is stored so";
  }
}

TEST(FormatTest, ZeroPointsOfFourBitsTakeFourBitsWhenPacked) {
  const Format zeros = Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true);
  EXPECT_EQ(zeros.Bytes(64), 2 * 19) << "a byte, as readers of files hand them on";
  EXPECT_EQ(zeros.PackedBytes(64, 16), 2 * (16 * 18 + 8));
  EXPECT_EQ(zeros.PackedCodesAt(16), 40);
  const Format from_1 = Format::InGroups(DType::kInt4, 5, DType::kF16, true, 1, /*least_zero_point=*/1);
  EXPECT_TRUE(from_1.well_formed());
  EXPECT_NE(from_1, zeros);
  EXPECT_EQ(from_1.PackedBytes(64, 16), zeros.PackedBytes(64, 16));
  EXPECT_EQ(Format::InGroups(DType::kInt8, 5, DType::kF16, true).PackedBytes(64, 16), 2 * 16 * 35);
  EXPECT_FALSE(Format::InGroups(DType::kInt4, 5, DType::kF16, true, 1, 2).well_formed());
  EXPECT_FALSE(Format::InGroups(DType::kInt4, 5, DType::kF16, false, 1, 1).well_formed());
  EXPECT_FALSE(Format::InGroups(DType::kInt8, 5, DType::kF16, true, 1, 1).well_formed());
}

TEST(FormatTest, RowsThatShareScalesHoldThemOnceWhenPacked) {
  const Format pairs = Format::InGroups(DType::kFp8E4M3, 7, DType::kF32, false, /*rows_of_scale=*/2);
  EXPECT_TRUE(pairs.well_formed());
  EXPECT_EQ(pairs.Bytes(512), 4 * 132) << "each row says its own";
  EXPECT_EQ(pairs.PackedBytes(512, 2), 2 * 4 * 130);
  EXPECT_EQ(FormatName(pairs), "fp8_e4m3 in groups of 128 with f32 scales of two rows");
  EXPECT_EQ(Format(DType::kFp8E4M3).PackedBytes(512, 6), 6 * 4 * 132);
  EXPECT_EQ(Format(DType::kQ6K).PackedBytes(512, 2), 2 * Format(DType::kQ6K).Bytes(512));
  EXPECT_FALSE(Format::InGroups(DType::kInt4, 7, DType::kF32, false, 2).well_formed());
  EXPECT_FALSE(Format::InGroups(DType::kFp8E4M3, 7, DType::kBf16, false, 2).well_formed());
}

// ---- fp8 ----------------------------------------------------------------------------------------

TEST(DTypeTest, Fp8HasTheValuesOfItsDefinition) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = Fp8E4M3ToFloat(static_cast<uint8_t>(bits));
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    const double magnitude =
        exponent == 0 ? mantissa * std::pow(2.0, -9) : (8 + mantissa) * std::pow(2.0, exponent - 10);
    EXPECT_EQ(value, bits < 128 ? magnitude : -magnitude) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
  }
  EXPECT_EQ(Fp8E4M3ToFloat(0x38), 1.0f);
  EXPECT_EQ(Fp8E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(Fp8E4M3ToFloat(0x81), -0x1p-9f);
}

// The nearest of all codes, the even one of two; those of NaN are no candidates.
TEST(DTypeTest, Fp8RoundsToTheNearestCodeAndSaturates) {
  const auto nearest = [](double value) {
    int best = 0;
    for (int code = 1; code < 0x7f; ++code) {
      const double distance = std::abs(Fp8E4M3ToFloat(static_cast<uint8_t>(code)) - value);
      const double best_distance = std::abs(Fp8E4M3ToFloat(static_cast<uint8_t>(best)) - value);
      if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
    }
    return best;
  };
  std::vector<float> values = {0.0f, 447.9f, 448.0f, 464.0f, 1e30f, 0x1p-10f, 0x1.8p-10f, 0x1p-149f};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = Fp8E4M3ToFloat(static_cast<uint8_t>(code));
    const float high = Fp8E4M3ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    for (const float value : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, high)}) {
      values.push_back(value);
    }
  }
  for (const float value : values) {
    EXPECT_EQ(FloatToFp8E4M3(value), nearest(value)) << value;
    EXPECT_EQ(FloatToFp8E4M3(-value), 0x80 | nearest(value)) << value;
  }
  EXPECT_EQ(FloatToFp8E4M3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_TRUE(std::isnan(Fp8E4M3ToFloat(FloatToFp8E4M3(std::numeric_limits<float>::quiet_NaN()))));
}

// ---- rows of keys and values ----------------------------------------------------------------------

struct QuantizedRow {
  std::vector<std::byte> numbers, scales;
  std::vector<float> read;
};

QuantizedRow Quantize(const Format& format, const std::vector<float>& row) {
  const auto count = static_cast<int32_t>(row.size());
  QuantizedRow result;
  result.numbers.resize(static_cast<size_t>(format.Bytes(count)));
  result.scales.resize(static_cast<size_t>(format.CompanionBytes(count)));
  result.read.resize(row.size());
  QuantizeKvRow(format, row.data(), count, result.numbers.data(), result.scales.data());
  DequantizeKvRow(format, result.numbers.data(), result.scales.data(), count, result.read.data());
  return result;
}

float ScaleOfGroup(const Format& format, const QuantizedRow& row, size_t group) {
  const std::byte* from = row.scales.data() + group * static_cast<size_t>(format.companion_bytes);
  if (format.scale == DType::kF32) {
    float scale;
    std::memcpy(&scale, from, sizeof scale);
    return scale;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return F16ToFloat(bits);
}

TEST(KvQuantizeTest, NumbersAndScalesAreThoseOfTheDefinition) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::kInt8, DType::kInt4}) {
    for (const DType scales : {DType::kF16, DType::kF32}) {
      for (const int32_t group_log2 : {3, 5, 7}) {
        const Format format = Format::WithScalesApart(type, group_log2, scales);
        const size_t group = size_t{1} << group_log2;
        const float most = type == DType::kInt4 ? 7.0f : 127.0f;
        std::vector<float> row(256);
        for (float& x : row) x = normal(random) * std::exp2(static_cast<float>(random() % 24) - 16.0f);
        for (size_t i = 0; i < group; ++i) row[i] = 0.0f;  // a group of nothing has the least scale
        const QuantizedRow result = Quantize(format, row);
        for (size_t i = 0; i < row.size(); ++i) {
          const size_t of_group = i >> group_log2, begin = of_group << group_log2;
          float largest = 0;
          for (size_t k = begin; k < begin + group; ++k) largest = std::max(largest, std::abs(row[k]));
          float scale = std::max(largest / most, 1e-5f);
          if (scales == DType::kF16) scale = F16ToFloat(FloatToF16(scale));
          ASSERT_EQ(ScaleOfGroup(format, result, of_group), scale) << FormatName(format) << " " << i;
          const float q = std::clamp(std::nearbyint(row[i] / scale), -most, most);
          ASSERT_EQ(result.read[i], q * scale) << FormatName(format) << " " << i;
        }
      }
    }
  }
}

TEST(KvQuantizeTest, EvenNumbersStandLowInTwosComplementAndTiesGoToEven) {
  // The largest is 7, so the scale is 1.
  const std::vector<float> row = {7.0f, -7.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f};
  const QuantizedRow four = Quantize(Format::WithScalesApart(DType::kInt4, 3), row);
  EXPECT_EQ(four.numbers,
            (std::vector<std::byte>{std::byte{0x97}, std::byte{0x20}, std::byte{0x02}, std::byte{0xee}}));
  EXPECT_EQ(four.read, (std::vector<float>{7, -7, 0, 2, 2, 0, -2, -2}));
  std::vector<float> wide = row;
  wide[0] = 127.0f;
  const QuantizedRow eight = Quantize(Format::WithScalesApart(DType::kInt8, 3), wide);
  EXPECT_EQ(eight.numbers[0], std::byte{127});
  EXPECT_EQ(eight.numbers[1], std::byte{0xf9});
  EXPECT_EQ(eight.read, (std::vector<float>{127, -7, 0, 2, 2, 0, -2, -2}));
}

TEST(KvQuantizeTest, WhatHasNoScaleReadsBackAsNotANumberAndLeavesOtherGroupsAlone) {
  for (const DType type : {DType::kInt8, DType::kInt4}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
      std::vector<float> row(16, 1.0f);
      row[3] = bad;
      const QuantizedRow result = Quantize(Format::WithScalesApart(type, 3), row);
      for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(result.read[i])) << bad << " " << i;
      for (size_t i = 8; i < 16; ++i) EXPECT_NEAR(result.read[i], 1.0f, 1e-3f);
    }
  }
}

TEST(KvQuantizeTest, Fp8IsTakenOfTheNumberOverItsScale) {
  const std::vector<float> row = {0.0f, -0.0f, 1.0f, -896.0f, 2000.0f, 0.3f};
  std::vector<std::byte> numbers(row.size());
  std::vector<float> read(row.size());
  RoundKvRowToFp8(row.data(), 6, 2.0f, numbers.data());
  WidenKvRowOfFp8(numbers.data(), 6, 2.0f, read.data());
  EXPECT_EQ(numbers[1], std::byte{0x80}) << "the sign of zero is kept";
  EXPECT_EQ(read, (std::vector<float>{0.0f, -0.0f, 1.0f, -896.0f, 896.0f, 0.3125f}));
}

// ---- block types --------------------------------------------------------------------------------

// A block of bytes 11, 48, 85, ... with 0.3333 and -1.7 where its halves stand, and what PyPI's `gguf` makes
// of it.
struct DecodedBlock {
  DType type;
  std::vector<size_t> halves;
  float at[3];  // numbers 0, 17 and 31 of 32; 0, 45 and 200 of 256
  double sum;
};

TEST(BlockTypesTest, ABlockIsWhatTheReferenceMakesOfIt) {
  const DecodedBlock rows[] = {
      {DType::kQ8_0, {0}, {0x1.c539p+4f, -0x1.1feep+4f, -0x1.ffep+3f}, -0x1.d538p+5},
      {DType::kQ4_0, {0}, {-0x1.ffep-1f, -0x1.554p-2f, 0.0f}, -0x1.bfe4p+2},
      {DType::kQ4_1, {0, 2}, {0x1.a638p+1f, 0x1.264p+1f, 0x1.264p+1f}, 0x1.b3d9p+4},
      {DType::kQ5_0, {0}, {0x1.7fe8p+1f, 0.0f, 0x1.554p-2f}, 0x1.3fecp+2},
      {DType::kQ5_1, {0, 2}, {0x1.286cp+2f, -0x1.16p-5f, -0x1.16p-5f}, 0x1.c78b4p+6},
      {DType::kQ4K, {0, 2}, {0x1.90b2ap+7f, 0x1.666ep+5f, 0x1.3790cp+6f}, 0x1.08f249p+15},
      {DType::kQ5K, {0, 2}, {0x1.6da45p+8f, 0x1.d112p+5f, 0x1.3790cp+6f}, 0x1.a9c83bp+15},
      {DType::kQ6K, {208}, {-0x1.dce23p+8f, 0x1.87e78p+7f, 0x1.6ae95p+8f}, 0x1.803d5p+10},
  };
  for (const DecodedBlock& row : rows) {
    SCOPED_TRACE(DTypeName(row.type));
    const Format format = row.type;
    std::vector<std::byte> block(static_cast<size_t>(format.block_bytes));
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(37 * i + 11);
    for (size_t i = 0; i < row.halves.size(); ++i) {
      const uint16_t half = FloatToF16(i == 0 ? 0.3333f : -1.7f);
      std::memcpy(block.data() + row.halves[i], &half, sizeof(half));
    }
    std::vector<float> got(static_cast<size_t>(format.block_size()));
    DecodeBlocks(row.type, block.data(), format.block_size(), got.data());
    const bool small = got.size() == 32;
    EXPECT_EQ(got[0], row.at[0]);
    EXPECT_EQ(got[small ? 17 : 45], row.at[1]);
    EXPECT_EQ(got[small ? 31 : 200], row.at[2]);
    EXPECT_EQ(std::accumulate(got.begin(), got.end(), 0.0), row.sum);
  }
}

TEST(BlockTypesTest, BlocksFollowEachOther) {
  const Format format = DType::kQ4_1;
  EXPECT_EQ(FormatName(format), "q4_1");
  EXPECT_FALSE(format.plain());
  std::vector<std::byte> blocks(static_cast<size_t>(format.Bytes(96)));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i % 59);
  std::vector<float> all(96), one(32);
  DecodeBlocks(DType::kQ4_1, blocks.data(), 96, all.data());
  for (int64_t at : {0, 32, 64}) {
    DecodeBlocks(DType::kQ4_1, blocks.data() + format.Bytes(at), 32, one.data());
    EXPECT_EQ(std::vector<float>(all.begin() + at, all.begin() + at + 32), one);
  }
}

// A group by hand: the scale 0.75, which all types of scales hold, a zero point of 3, codes as they come.
TEST(BlockTypesTest, AGroupIsItsScaleItsZeroPointAndItsNumbersInOrder) {
  struct Scale {
    DType type;
    std::vector<uint8_t> bytes;
  };
  const Scale scales[] = {
      {DType::kF16, {0x00, 0x3a}}, {DType::kBf16, {0x40, 0x3f}}, {DType::kF32, {0x00, 0x00, 0x40, 0x3f}}};
  for (const Scale& scale : scales) {
    for (const int32_t group_log2 : {5, 6, 7, 8}) {
      for (const DType type : {DType::kInt4, DType::kInt8, DType::kFp8E4M3}) {
        for (const bool zero_points : {false, true}) {
          if (zero_points && type == DType::kFp8E4M3) continue;
          const Format format = Format::InGroups(type, group_log2, scale.type, zero_points);
          SCOPED_TRACE(FormatName(format));
          std::vector<std::byte> groups;
          std::vector<float> want;
          for (int group = 0; group < 2; ++group) {
            for (const uint8_t byte : scale.bytes) groups.push_back(std::byte{byte});
            if (zero_points) groups.push_back(std::byte{3});
            const int zero = zero_points ? 3 : type == DType::kInt4 ? 8 : 128;
            for (int i = 0; i < 1 << group_log2; ++i) {
              const int code = (37 * i + 11 * group + 5) % (type == DType::kInt4 ? 16 : 127);
              if (type != DType::kInt4) {
                groups.push_back(static_cast<std::byte>(code));
              } else if (i % 2 == 0) {
                groups.push_back(static_cast<std::byte>(code));
              } else {
                groups.back() |= static_cast<std::byte>(code << 4);
              }
              want.push_back(0.75f * (type == DType::kFp8E4M3 ? Fp8E4M3ToFloat(static_cast<uint8_t>(code))
                                                              : static_cast<float>(code - zero)));
            }
          }
          ASSERT_EQ(static_cast<int64_t>(groups.size()), format.Bytes(2 << group_log2));
          std::vector<float> got(want.size());
          DecodeBlocks(format, groups.data(), 2 << group_log2, got.data());
          EXPECT_EQ(got, want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tramontane
