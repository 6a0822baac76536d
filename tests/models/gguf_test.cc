#include "models/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "models/gguf/gguf_types.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFile[] = "x.gguf";

// A value of every kind, and tensors "a" [2, 3] of f32 and "b" [4] of f16.
GgufWriter SmallFile() {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("n", 7);
  writer.AddKey("least", GgufKind::kInt8, GgufWriter::Bytes(int8_t{-128}));
  writer.AddKey("huge", GgufKind::kUint64, GgufWriter::Bytes(~uint64_t{0}));
  writer.AddFloat("epsilon", 0.5f);
  writer.AddKey("precise", GgufKind::kFloat64, GgufWriter::Bytes(0.1));
  writer.AddBool("yes", true);
  writer.AddStrings("tokens", {"a", "", "\xff"});
  writer.AddArray<float>("scores", GgufKind::kFloat32, {1.5f, -2.0f});
  writer.AddArray<int32_t>("types", GgufKind::kInt32, {1, -3});
  writer.AddArray<uint8_t>("pattern", GgufKind::kBool, {1, 0, 1});
  writer.AddTensor("a", {3, 2}, {1, 2, 3, 4, 5, 6});
  writer.AddTensor("b", {4}, kGgufF16, std::string(8, '\1'));
  return writer;
}

std::string Error(const std::string& bytes) { return ParseGguf(bytes, kFile).status().message(); }
std::string Error(const GgufWriter& writer) { return Error(writer.File()); }

TEST(Gguf, ReadsKeysOfEveryKind) {
  const std::string file = SmallFile().File();
  const auto contents = ParseGguf(file, kFile);
  ASSERT_TRUE(contents.ok()) << contents.status();
  const GgufMetadata& keys = contents->metadata;
  EXPECT_EQ(contents->version, 3u);
  EXPECT_EQ(keys.values().size(), 11u);
  EXPECT_EQ(keys.String("general.architecture").value(), "llama");
  EXPECT_EQ(keys.Int("n", 0, 10).value(), 7);
  EXPECT_EQ(keys.Int("least", -128, 0).value(), -128);
  EXPECT_EQ(keys.Number("epsilon").value(), 0.5);
  EXPECT_EQ(keys.Number("precise").value(), 0.1);
  EXPECT_TRUE(keys.Bool("yes").value());
  EXPECT_THAT(keys.Strings("tokens").value(), ElementsAre("a", "", "\xff"));
  EXPECT_THAT(keys.Floats("scores").value(), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(keys.Ints("types", -3, 1).value(), ElementsAre(1, -3));
  EXPECT_THAT(keys.Bools("pattern").value(), ElementsAre(true, false, true));
  EXPECT_EQ(keys.IntOr("absent", 0, 9, 5).value(), 5);
  EXPECT_EQ(keys.IntOr("n", 0, 9, 5).value(), 7);
  EXPECT_FALSE(keys.Has("absent"));
}

TEST(Gguf, ReadsTensorsRowsFirst) {
  GgufWriter writer = SmallFile();
  writer.AddTensor("q", {64, 5, 3}, kGgufQ8_0, std::string(2 * 34 * 15, 'q'));
  const std::string file = writer.File();
  const auto contents = ParseGguf(file, kFile);
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->tensors.size(), 3u);
  const TensorInfo& a = contents->tensors.at("a");
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.dtype_name, "F32");
  EXPECT_EQ(a.format, Format(DType::kF32));
  EXPECT_EQ(a.begin % 32, 0);
  EXPECT_EQ(file.substr(a.begin, a.end - a.begin), writer.tensors[0].data);
  const TensorInfo& q = contents->tensors.at("q");
  EXPECT_EQ(q.dtype_name, "Q8_0");
  EXPECT_THAT(q.shape, ElementsAre(3, 5, 64));
  EXPECT_EQ(file.substr(q.begin, q.end - q.begin), writer.tensors[2].data);
}

TEST(Gguf, GettersNameTheKeyTheValueAndWhatItMustBe) {
  const std::string file = SmallFile().File();
  const auto contents = ParseGguf(file, kFile);
  ASSERT_TRUE(contents.ok()) << contents.status();
  const GgufMetadata& keys = contents->metadata;
  const struct {
    Status status;
    const char* key;
    const char* is;
    const char* wanted;
  } cases[] = {
      {keys.String("n").status(), "\"n\"", "is 7", "a string"},
      {keys.Bool("n").status(), "\"n\"", "is 7", "a bool"},
      {keys.Int("n", 8, 9).status(), "\"n\"", "is 7", "from 8 to 9"},
      {keys.Int("n", 0, 6).status(), "\"n\"", "is 7", "from 0 to 6"},
      {keys.Int("huge", 0, INT64_MAX).status(), "\"huge\"", "is 18446744073709551615", "from 0"},
      {keys.Int("epsilon", 0, 9).status(), "\"epsilon\"", "is 0.5", "whole number"},
      {keys.Int("yes", 0, 9).status(), "\"yes\"", "is true", "whole number"},
      {keys.Number("n").status(), "\"n\"", "is 7", "float"},
      {keys.Strings("n").status(), "\"n\"", "is 7", "array of strings"},
      {keys.Strings("scores").status(), "\"scores\"", "2 times float32", "array of strings"},
      {keys.Floats("types").status(), "\"types\"", "2 times int32", "array of floats"},
      {keys.Bools("types").status(), "\"types\"", "2 times int32", "array of bools"},
      {keys.Ints("tokens", 0, 1).status(), "\"tokens\"", "3 times string", "array of integers"},
      {keys.Ints("types", -2, 1).status(), "\"types\"", "-3 at index 1", "from -2 to 1"},
      {keys.String("absent").status(), "\"absent\"", "missing", ""},
  };
  for (const auto& [status, key, is, wanted] : cases) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), AllOf(HasSubstr(kFile), HasSubstr(key), HasSubstr(is), HasSubstr(wanted)));
  }
  EXPECT_EQ(keys.String("absent").status().code(), StatusCode::kNotFound);
}

TEST(Gguf, FloatsThatAreNotFiniteAreRefused) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    GgufWriter writer;
    writer.AddFloat("epsilon", value);
    writer.AddArray<float>("scores", GgufKind::kFloat32, {1.0f, value});
    writer.AddKey("wide", GgufKind::kArray,
                  GgufWriter::ArrayBytes(GgufKind::kFloat64, 1, GgufWriter::Bytes(1e300)));
    const std::string file = writer.File();
    const auto contents = ParseGguf(file, kFile);
    ASSERT_TRUE(contents.ok()) << contents.status();
    EXPECT_THAT(contents->metadata.Number("epsilon").status().message(),
                AllOf(HasSubstr("\"epsilon\""), HasSubstr("finite")));
    EXPECT_THAT(contents->metadata.Floats("scores").status().message(), HasSubstr("index 1"));
    EXPECT_THAT(contents->metadata.Floats("wide").status().message(), HasSubstr("1e+300")) << "as a float";
  }
}

TEST(Gguf, VersionsTwoAndThreeAreRead) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = SmallFile();
    writer.version = version;
    EXPECT_EQ(Error(writer), "");
  }
}

TEST(Gguf, AFileWithoutTensorsOrKeysIsWellFormed) { EXPECT_EQ(Error(GgufWriter()), ""); }

TEST(Gguf, ArraysOfArraysAreReadUpToTheLimit) {
  GgufWriter writer;
  const std::string inner = GgufWriter::ArrayBytes(GgufKind::kInt8, 2, "\1\2");
  writer.AddKey("nested", GgufKind::kArray, GgufWriter::ArrayBytes(GgufKind::kArray, 2, inner + inner));
  writer.AddUint32("after", 5);
  const std::string file = writer.File();
  const auto contents = ParseGguf(file, kFile);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->metadata.Int("after", 0, 9).value(), 5);
  EXPECT_EQ(contents->metadata.values().at("nested").bytes, inner + inner);

  for (const int depth : {kMaxGgufNesting, kMaxGgufNesting + 1, 100'000}) {
    std::string array;
    for (int i = 1; i < depth; ++i) array += GgufWriter::ArrayBytes(GgufKind::kArray, 1, "");
    GgufWriter deep;
    deep.AddKey("deep", GgufKind::kArray, array + GgufWriter::ArrayBytes(GgufKind::kUint8, 0, ""));
    const std::string error = Error(deep);
    EXPECT_EQ(error.empty(), depth <= kMaxGgufNesting) << depth << ": " << error;
    if (error.empty()) continue;
    EXPECT_THAT(error, AllOf(HasSubstr("\"deep\""), HasSubstr("nested"), HasSubstr("4")));
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string file = SmallFile().File();
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    const std::string error = Error(file.substr(0, bytes));
    EXPECT_THAT(error, HasSubstr(kFile)) << bytes << " bytes";
    if (bytes >= 4) {
      EXPECT_THAT(error, AllOf(HasSubstr("truncated"), HasSubstr("past the end of the file"))) << bytes;
    }
  }
}

TEST(Gguf, WhatIsNoGgufIsSaidToBeNone) {
  for (const std::string bytes :
       {"", "GG", "GGUX\3\0\0\0", "<!DOCTYPE html><html>", "\x80\0\0\0\0\0\0\0{}"}) {
    EXPECT_THAT(Error(bytes), AllOf(HasSubstr("not a GGUF"), HasSubstr("magic")));
  }
}

TEST(Gguf, OtherVersionsAndByteOrdersAreRefused) {
  const std::pair<uint32_t, const char*> cases[] = {{0, "version 0"},
                                                    {1, "version 1"},
                                                    {4, "version 4"},
                                                    {~0u, "version 4294967295"},
                                                    {3u << 24, "big-endian"}};
  for (const auto& [version, named] : cases) {
    GgufWriter writer = SmallFile();
    writer.version = version;
    EXPECT_THAT(Error(writer), AllOf(HasSubstr("version"), HasSubstr(named)));
  }
}

TEST(Gguf, CountsBeyondTheFileOrTheLimitAreRefused) {
  GgufWriter tensors = SmallFile();
  tensors.tensor_count = 1000;
  EXPECT_THAT(Error(tensors),
              AllOf(HasSubstr("count of tensors, 1000,"), HasSubstr("past the end of the file")));
  tensors.tensor_count = ~uint64_t{0};
  EXPECT_THAT(Error(tensors),
              AllOf(HasSubstr("count of tensors is 18446744073709551615"), HasSubstr("131072")));
  GgufWriter keys = SmallFile();
  keys.key_count = 1000;
  EXPECT_THAT(Error(keys), AllOf(HasSubstr("count of keys, 1000,"), HasSubstr("past the end of the file")));
  keys.key_count = uint64_t{1} << 63;
  EXPECT_THAT(Error(keys), AllOf(HasSubstr("count of keys is 9223372036854775808"), HasSubstr("65536")));
}

TEST(Gguf, LengthsAndArraysBeyondTheFileAreRefused) {
  const std::string most = GgufWriter::Bytes(~uint64_t{0});
  const struct {
    GgufKind kind;
    std::string bytes;
    std::vector<const char*> named;
  } cases[] = {
      {GgufKind::kString, most, {"length 18446744073709551615", "past the end of the file"}},
      {GgufKind::kString, GgufWriter::Bytes(uint64_t{99999}), {"length 99999", "past the end of the file"}},
      {GgufKind::kArray, GgufWriter::Bytes(uint32_t{4}) + most, {"count", "18446744073709551615", "4194304"}},
      {GgufKind::kArray, GgufWriter::ArrayBytes(GgufKind::kUint64, 4'000'000, ""), {"count", "past the end"}},
      {GgufKind::kArray,
       GgufWriter::ArrayBytes(GgufKind::kString, 1, most),
       {"string 0", "length", "past the end"}},
      {GgufKind::kArray,
       GgufWriter::ArrayBytes(GgufKind::kArray, 1, GgufWriter::ArrayBytes(GgufKind::kInt8, 99999, "")),
       {"nested", "count", "past the end"}},
      {GgufKind::kArray, GgufWriter::ArrayBytes(static_cast<GgufKind>(13), 0, ""), {"type 13"}},
      {static_cast<GgufKind>(13), "", {"type 13"}},
      {static_cast<GgufKind>(~0u), "", {"type 4294967295"}},
      {GgufKind::kBool, "\2", {"bool"}},
      {GgufKind::kArray, GgufWriter::ArrayBytes(GgufKind::kBool, 2, "\1\2"), {"bool"}},
  };
  for (const auto& [kind, bytes, named] : cases) {
    GgufWriter writer;
    writer.AddKey("bad", kind, bytes);
    const std::string error = Error(writer.Header());
    EXPECT_THAT(error, HasSubstr("\"bad\""));
    for (const char* word : named) EXPECT_THAT(error, HasSubstr(word));
  }
}

TEST(Gguf, AHeaderBeyondItsLimitIsRefusedHoweverLongTheFileIs) {
  GgufWriter writer;
  writer.AddKey("long", GgufKind::kString, GgufWriter::Bytes(uint64_t{kMaxGgufHeaderBytes}));
  const std::string file = writer.Header() + std::string(kMaxGgufHeaderBytes + 100, ' ');
  EXPECT_THAT(Error(file), AllOf(HasSubstr("\"long\""), HasSubstr("length 134217728"), HasSubstr("limit")));
}

TEST(Gguf, NamesAreUtf8OfALimitedLength) {
  GgufWriter broken;
  broken.AddUint32("a\xff", 1);
  EXPECT_THAT(Error(broken), AllOf(HasSubstr("key 1 of 1"), HasSubstr("UTF-8")));
  GgufWriter control;
  control.AddTensor("a\nb", {1}, {1.0f});
  EXPECT_THAT(Error(control), AllOf(HasSubstr("tensor 1 of 1"), HasSubstr("control")));
  GgufWriter long_name;
  long_name.AddUint32(std::string(kMaxGgufNameBytes + 1, 'k'), 1);
  EXPECT_THAT(Error(long_name), AllOf(HasSubstr("length of 65536"), HasSubstr("65535")));
}

TEST(Gguf, KeysAndTensorsThatStandTwiceAreRefused) {
  GgufWriter key = SmallFile();
  key.AddUint32("n", 8);
  EXPECT_THAT(Error(key), AllOf(HasSubstr("key \"n\""), HasSubstr("twice")));
  GgufWriter tensor = SmallFile();
  tensor.AddTensor("a", {1}, {1.0f});
  EXPECT_THAT(Error(tensor), AllOf(HasSubstr("tensor \"a\""), HasSubstr("twice")));
}

TEST(Gguf, TypesThatAreNotReadAreRefusedByName) {
  const std::pair<uint32_t, const char*> cases[] = {{16, "type IQ2_XXS"}, {10, "type Q2_K"},
                                                    {26, "type I32"},     {34, "type TQ1_0"},
                                                    {4, "type Q4_2"},     {999, "type 999"}};
  for (const auto& [type, named] : cases) {
    GgufWriter writer = SmallFile();
    writer.tensors[1].type = type;
    EXPECT_THAT(Error(writer), AllOf(HasSubstr("\"b\""), HasSubstr(named)));
  }
  EXPECT_EQ(ReadableGgufTypes(), "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K");
}

TEST(Gguf, DimensionsThatAreNoneOverflowOrCutABlockAreRefused) {
  const uint64_t two_to_32 = uint64_t{1} << 32;
  const struct {
    std::vector<uint64_t> dimensions;
    uint32_t type;
    const char* named;
  } cases[] = {
      {{}, kGgufF32, "has 0 dimensions"},
      {{1, 1, 1, 1, 1}, kGgufF32, "has 5 dimensions"},
      {{0}, kGgufF32, "dimension 0 of tensor \"b\" is 0"},
      {{3, 0}, kGgufF32, "dimension 1 of tensor \"b\" is 0"},
      {{~uint64_t{0}}, kGgufF32, "is 18446744073709551615"},
      {{two_to_32, two_to_32}, kGgufF32, "dimensions [4294967296, 4294967296]"},
      {{two_to_32, two_to_32 / 4}, kGgufF32, "overflow"},
      {{two_to_32, two_to_32, two_to_32, two_to_32}, kGgufF32, "overflow"},
      {{33}, kGgufQ8_0, "33, which is not whole blocks of 32 of type Q8_0"},
      {{16, 2}, kGgufQ8_0, "dimension of 16, which is not whole blocks"},
      {{128}, 12, "not whole blocks of 256 of type Q4_K"},
  };
  for (const auto& [dimensions, type, named] : cases) {
    GgufWriter writer = SmallFile();
    writer.tensors[1].dimensions = dimensions;
    writer.tensors[1].type = type;
    EXPECT_THAT(Error(writer), AllOf(HasSubstr("\"b\""), HasSubstr(named)));
  }
}

TEST(Gguf, OffsetsThatAreNotAlignedOverlapOrLeaveTheFileAreRefused) {
  GgufWriter unaligned = SmallFile();
  unaligned.tensors[1].offset = 33;
  EXPECT_THAT(Error(unaligned),
              AllOf(HasSubstr("\"b\""), HasSubstr("offset 33"), HasSubstr("not aligned to 32")));

  GgufWriter overlap = SmallFile();
  overlap.tensors[1].offset = 0;
  EXPECT_THAT(Error(overlap), AllOf(HasSubstr("offset 0"), HasSubstr("overlaps"), HasSubstr("\"a\"")));

  for (const uint64_t offset : {uint64_t{64}, uint64_t{1} << 40, ~uint64_t{31}}) {
    GgufWriter outside = SmallFile();
    const size_t right = outside.File().size();
    outside.tensors[1].offset = offset;
    outside.tensors[1].data.clear();
    std::string file = outside.File();
    file.resize(right);
    EXPECT_THAT(Error(file), AllOf(HasSubstr("\"b\""), HasSubstr("offset " + std::to_string(offset)),
                                   HasSubstr("past the end of the file")));
  }
}

TEST(Gguf, AlignmentIsAPowerOfTwo) {
  GgufWriter wide = SmallFile();
  wide.alignment = 128;
  wide.tensors[1].offset = 128;
  wide.AddUint32("general.alignment", 128);
  const std::string file = wide.File();
  const auto contents = ParseGguf(file, kFile);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->tensors.at("b").begin % 128, 0);
  EXPECT_EQ(file.substr(contents->tensors.at("b").begin, 8), wide.tensors[1].data);

  for (const uint32_t alignment : {0u, 24u, 1u << 21}) {
    GgufWriter writer = SmallFile();
    writer.AddUint32("general.alignment", alignment);
    EXPECT_THAT(Error(writer), AllOf(HasSubstr("general.alignment"), HasSubstr(std::to_string(alignment))));
  }
  GgufWriter mistyped = SmallFile();
  mistyped.AddString("general.alignment", "32");
  EXPECT_THAT(Error(mistyped), AllOf(HasSubstr("general.alignment"), HasSubstr("whole number")));
}

TEST(Gguf, AnyByteMayBeAnyOther) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string file = SmallFile().File();
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string broken = file;
    for (uint32_t i = 0; i <= random() % 3; ++i)
      broken[random() % broken.size()] = static_cast<char>(random());
    const auto contents = ParseGguf(broken, kFile);
    refused += contents.ok() ? 0 : 1;
    if (!contents.ok()) {
      ASSERT_THAT(contents.status().message(), HasSubstr(kFile));
      continue;
    }
    for (const auto& [name, tensor] : contents->tensors) {
      ASSERT_TRUE(0 < tensor.begin && tensor.end <= static_cast<int64_t>(broken.size())) << name;
    }
  }
  EXPECT_GT(refused, 1000);
}

// ---- files

TEST(GgufFile, MapsKeysAndTensors) {
  const TempFolder folder;
  folder.Write("m.gguf", SmallFile().File());
  auto opened = OpenGguf(folder.PathOf("m.gguf"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile file = std::move(opened).value();
  EXPECT_EQ(file.metadata.String("general.architecture").value(), "llama") << "after the file has moved";
  float values[6];
  std::memcpy(values, file.file.Data(file.file.tensors().at("a")), sizeof(values));
  EXPECT_EQ(values[5], 6.0f);
}

GgufWriter Part(int number, int count, const std::string& tensor) {
  GgufWriter writer;
  writer.AddKey("split.no", GgufKind::kUint16, GgufWriter::Bytes(static_cast<uint16_t>(number - 1)));
  writer.AddKey("split.count", GgufKind::kUint16, GgufWriter::Bytes(static_cast<uint16_t>(count)));
  writer.AddKey("split.tensors.count", GgufKind::kInt32, GgufWriter::Bytes(int32_t{2}));
  if (!tensor.empty()) writer.AddTensor(tensor, {1}, {1.0f});
  return writer;
}

class GgufParts : public testing::Test {
 protected:
  GgufParts() {
    Write(1, Part(1, 3, ""));
    Write(2, Part(2, 3, "a"));
    Write(3, Part(3, 3, "b"));
  }
  static std::string Name(int number) { return "m-0000" + std::to_string(number) + "-of-00003.gguf"; }
  void Write(int number, const GgufWriter& writer) { folder_.Write(Name(number), writer.File()); }
  std::string ErrorOf(int first) const {
    return OpenGgufParts(folder_.PathOf(Name(first))).status().message();
  }

  TempFolder folder_;
};

TEST_F(GgufParts, AllAreOpened) {
  const auto parts = OpenGgufParts(folder_.PathOf(Name(1)));
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 3u);
  EXPECT_EQ((*parts)[2].file.tensors().count("b"), 1u);
}

TEST_F(GgufParts, OneThatIsMissingIsNamed) {
  std::filesystem::remove(folder_.PathOf(Name(2)));
  EXPECT_THAT(ErrorOf(1), AllOf(HasSubstr(Name(2)), HasSubstr("missing")));
}

TEST_F(GgufParts, OnlyTheFirstStandsForAll) {
  EXPECT_THAT(ErrorOf(2), AllOf(HasSubstr(Name(2)), HasSubstr("-00001-of-00003.gguf")));
}

TEST_F(GgufParts, NumbersInFilesAreThoseOfTheirNames) {
  Write(2, Part(3, 3, "a"));
  EXPECT_THAT(ErrorOf(1), AllOf(HasSubstr(Name(2)), HasSubstr("split.no is 2")));
  Write(2, Part(2, 4, "a"));
  EXPECT_THAT(ErrorOf(1), AllOf(HasSubstr(Name(2)), HasSubstr("split.count is 4")));
  Write(2, SmallFile());
  EXPECT_THAT(ErrorOf(1), AllOf(HasSubstr(Name(2)), HasSubstr("split.no"), HasSubstr("missing")));
}

TEST_F(GgufParts, TensorsAreCountedAndStandOnce) {
  Write(3, Part(3, 3, "a"));
  EXPECT_THAT(ErrorOf(1), AllOf(HasSubstr(Name(3)), HasSubstr("tensor a"), HasSubstr(Name(2))));
  Write(3, Part(3, 3, ""));
  EXPECT_THAT(ErrorOf(1), AllOf(HasSubstr("split.tensors.count is 2"), HasSubstr("1 tensors")));
}

TEST_F(GgufParts, APartUnderAnotherNameCannotFindTheOthers) {
  folder_.Write("other.gguf", Part(1, 3, "a").File());
  EXPECT_THAT(OpenGgufParts(folder_.PathOf("other.gguf")).status().message(), HasSubstr("split.count is 3"));
}

TEST(GgufPartNames, ComeFromTheFirst) {
  EXPECT_THAT(GgufPartNames("a/m.gguf"), ElementsAre("a/m.gguf"));
  EXPECT_THAT(GgufPartNames("a/m-00001-of-00002.gguf"),
              ElementsAre("a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"));
  EXPECT_TRUE(GgufPartNames("m-00002-of-00002.gguf").empty());
  EXPECT_THAT(GgufPartNames("m-00003-of-00002.gguf"), ElementsAre("m-00003-of-00002.gguf"));
  EXPECT_THAT(GgufPartNames("m-0000x-of-00002.gguf"), ElementsAre("m-0000x-of-00002.gguf"));
}

}  // namespace
}  // namespace tramontane
