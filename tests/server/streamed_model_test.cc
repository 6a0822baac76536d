// tramontane quantize, and inspect --tensors, stream a model tensor by tensor: what they have in memory at
// once does not grow with the number of tensors, pages of the mapped file included. The models are files of
// zeros that take no room on the disk.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/opened_model.h"
#include "tests/server/program.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"
#include "tests/support/weight_file.h"

namespace tramontane {
namespace {

// The largest of f32 takes 4 MB, a layer 24 MB.
TinyModel ModelOf(int32_t layers) {
  TinyModel model;
  model.layers = layers;
  model.hidden = model.intermediate = 1024;
  model.heads = 16;
  model.kv_heads = 8;
  model.head_dim = 64;
  return model;
}

// Bytes of its tensors.
int64_t WriteZeros(const TempFolder& folder, int32_t layers) {
  folder.Write("config.json", ModelOf(layers).HuggingFaceConfig().dump());
  const auto asked = OpenModel(folder.path(), {});
  TM_CHECK(asked.ok(), "%s", asked.status().ToString().c_str());
  const WeightFileHeader header = HeaderOfAll(asked->weights, [](const std::string&) { return DType::kF32; });
  folder.Write("model.safetensors", header.bytes);
  std::filesystem::resize_file(folder.PathOf("model.safetensors"),
                               header.bytes.size() + static_cast<size_t>(header.data_bytes));
  return header.data_bytes;
}

struct Pass {
  const char* name;
  std::string command;
  std::vector<std::string> options;
};

class StreamedModel : public testing::TestWithParam<Pass> {
 protected:
  // The most memory of going through that model.
  static int64_t BytesToStream(const TempFolder& model) {
    const TempFolder out;
    std::vector<std::string> arguments = {GetParam().command, model.path()};
    if (arguments[0] == "quantize") arguments.push_back(out.PathOf("out.gguf"));
    arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
    Program program(arguments);
    EXPECT_EQ(program.Wait(), 0) << program.err();
    return program.most_resident_bytes();
  }
};

TEST_P(StreamedModel, TakesNoMoreMemoryWhereItIsLarger) {
  if (kSanitized) GTEST_SKIP() << "not measured: under a sanitizer memory is the sanitizer's too";
  constexpr int64_t kFewTensors = int64_t{16} << 20;  // four of the largest
  const TempFolder small, large;
  const int64_t more = -WriteZeros(small, 1) + WriteZeros(large, 11);
  ASSERT_GT(more, 12 * kFewTensors);
  const int64_t of_small = BytesToStream(small), of_large = BytesToStream(large);
  EXPECT_LT(of_large - of_small, kFewTensors);
  EXPECT_LT(of_large, 8 * kFewTensors) << "with the program itself";
  RecordProperty("more_for_ten_layers", std::to_string(of_large - of_small));
  RecordProperty("of_the_larger", std::to_string(of_large));
}

INSTANTIATE_TEST_SUITE_P(, StreamedModel,
                         testing::Values(Pass{"Int8", "quantize", {"--type", "int8"}},
                                         Pass{"Int4", "quantize", {"--type", "int4"}},
                                         Pass{"GgufQ8_0", "quantize", {"--format", "gguf:Q8_0"}},
                                         Pass{"GgufQ4_0", "quantize", {"--format", "gguf:Q4_0"}},
                                         Pass{"InspectTensors", "inspect", {"--tensors"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tramontane
