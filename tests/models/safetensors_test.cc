#include "models/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Tensors "a" [2, 3] f32 and "b" [4] bf16.
SafetensorsWriter TwoTensors() {
  SafetensorsWriter writer;
  writer.Add("a", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.Add("b", {4}, {0.5f, 1, 2, 4}, DType::kBf16);
  return writer;
}

Status Error(const std::string& file) { return ParseSafetensors(file, "x.safetensors").status(); }

TEST(Safetensors, ReadsNamesShapesTypesAndRanges) {
  SafetensorsWriter writer = TwoTensors();
  writer.header()["__metadata__"] = {{"format", "pt"}};
  const std::string file = writer.File();
  const auto tensors = ParseSafetensors(file, "x.safetensors");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  const TensorInfo& a = tensors->at("a");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.format, Format(DType::kF32));
  EXPECT_EQ(file.substr(a.begin, a.end - a.begin), writer.data().substr(0, 24));
  EXPECT_EQ(tensors->at("b").format, Format(DType::kBf16));
  EXPECT_EQ(tensors->at("b").end, static_cast<int64_t>(file.size()));
}

TEST(Safetensors, AcceptsNoTensorsScalarsAndEmptyTensors) {
  EXPECT_TRUE(ParseSafetensors(SafetensorsWriter().File(), "x").ok());
  SafetensorsWriter writer;
  writer.Add("empty", {0, 5}, {});
  writer.Add("scalar", {}, {1});
  const auto tensors = ParseSafetensors(writer.File(), "x");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->at("scalar").end - tensors->at("scalar").begin, 4);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file = TwoTensors().File();
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_THAT(Error(file.substr(0, bytes)).message(), HasSubstr("x.safetensors")) << bytes << " bytes";
  }
}

TEST(Safetensors, BytesAfterTheLastTensorAreAnError) {
  EXPECT_THAT(Error(TwoTensors().File() + "!").message(),
              AllOf(HasSubstr("1 bytes after"), HasSubstr("\"b\"")));
}

TEST(Safetensors, GapsAndOverlapsNameTheTensor) {
  SafetensorsWriter overlap = TwoTensors();
  overlap.header()["b"]["data_offsets"] = {20, 28};
  overlap.data().resize(28);
  EXPECT_THAT(Error(overlap.File()).message(),
              AllOf(HasSubstr("\"b\""), HasSubstr("overlaps"), HasSubstr("\"a\"")));

  SafetensorsWriter same = TwoTensors();
  same.header()["c"] = same.header()["b"];
  EXPECT_THAT(Error(same.File()).message(),
              AllOf(HasSubstr("\"c\""), HasSubstr("overlaps"), HasSubstr("\"b\"")));

  SafetensorsWriter gap = TwoTensors();
  gap.header()["b"]["data_offsets"] = {28, 36};
  gap.data().resize(36);
  EXPECT_THAT(Error(gap.File()).message(), AllOf(HasSubstr("\"b\""), HasSubstr("belong to no tensor")));
}

TEST(Safetensors, ANameThatStandsTwiceIsAnError) {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(Error(SafetensorsWriter::FileOf("{\"a\":" + entry + ",\"a\":" + entry + "}", "1234")).message(),
              AllOf(HasSubstr("\"a\""), HasSubstr("twice")));
}

TEST(Safetensors, WrongEntriesNameTheTensorAndTheValue) {
  const struct {
    const char* key;
    const char* value;
    const char* named;
  } cases[] = {
      {"dtype", "\"F33\"", "F33"},
      {"dtype", "7", "7"},
      {"dtype", "null", "null"},
      {"shape", "[2, 4]", "[2, 4]"},
      {"shape", "[-2, -3]", "[-2,-3]"},
      {"shape", "[1.5]", "1.5"},
      {"shape", "6", "shape"},
      {"shape", "[4294967296, 4294967296, 4294967296]", "does not fill"},
      {"shape", "[9223372036854775807, 2]", "does not fill"},
      {"shape", "[1,1,1,1,1,1,1,2,3]", "at most 8"},
      {"data_offsets", "[0]", "[0]"},
      {"data_offsets", "[0, 24, 24]", "data_offsets"},
      {"data_offsets", "[24, 0]", "[24,0]"},
      {"data_offsets", "[-24, 0]", "-24"},
      {"data_offsets", "[0, 1000000]", "truncated"},
      {"data_offsets", "[0, 18446744073709551615]", "data_offsets"},
      {"data_offsets", "[0, 23]", "does not fill"},
      {"data_offsets", "{}", "data_offsets"},
  };
  for (const auto& [key, value, named] : cases) {
    SafetensorsWriter writer = TwoTensors();
    writer.header()["a"][key] = json::parse(value);
    EXPECT_THAT(Error(writer.File()).message(), AllOf(HasSubstr("\"a\""), HasSubstr(named)))
        << key << " = " << value;
  }
  SafetensorsWriter writer = TwoTensors();
  writer.header()["a"] = "not an object";
  EXPECT_THAT(Error(writer.File()).message(), HasSubstr("\"a\""));
  writer.header()["a"] = json::object();
  EXPECT_THAT(Error(writer.File()).message(), HasSubstr("\"a\""));
}

TEST(Safetensors, HeadersThatAreNotOneJsonObjectAreErrors) {
  for (const char* header : {"", "[]", "null", "{", "{}{}", "{\"a\xff\": 1}"}) {
    EXPECT_THAT(Error(SafetensorsWriter::FileOf(header, "")).message(), HasSubstr("x.safetensors")) << header;
  }
}

// Many minutes where the parser goes through all of them again after each.
TEST(Safetensors, AHeaderMayHaveVeryManyTensors) {
  constexpr int kTensors = 100'000;
  std::string header;
  for (int i = 0; i < kTensors; ++i) {
    header += (i == 0 ? "{\"t" : ",\"t") + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  const auto tensors = ParseSafetensors(SafetensorsWriter::FileOf(header + "}", ""), "x");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), size_t{kTensors});
}

TEST(Safetensors, AnAbsurdHeaderLengthIsRefusedBeforeItIsRead) {
  EXPECT_THAT(Error(std::string(8, '\xff') + "{}").message(), HasSubstr("18446744073709551615"));
  EXPECT_THAT(Error("<!DOCTYPE html>").message(), HasSubstr("is this a safetensors file?"));
}

TEST(SafetensorsFile, MapsTheBytesOfItsTensors) {
  const TempFolder folder;
  folder.Write("x.safetensors", TwoTensors().File());
  auto opened = OpenSafetensors(folder.PathOf("x.safetensors"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TensorFile file = std::move(opened).value();
  const TensorInfo& a = file.tensors().at("a");
  float values[6];
  std::memcpy(values, file.Data(a), sizeof(values));
  EXPECT_EQ(values[5], 6.0f);
  file.Release(a.begin, a.end);
  std::memcpy(values, file.Data(a), sizeof(values));
  EXPECT_EQ(values[0], 1.0f) << "released bytes can be read again";
}

TEST(SafetensorsFile, MissingEmptyAndIrregularFilesAreNamed) {
  const TempFolder folder;
  folder.Write("empty.safetensors", "");
  for (const char* name : {"missing.safetensors", "empty.safetensors", "."}) {
    EXPECT_THAT(OpenSafetensors(folder.PathOf(name)).status().message(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace tramontane
