// What loading takes beyond what the plan says, as the kernel counts this process: the largest resident set,
// pages of the mapped files included. The model is a file of zeros that takes no room on the disk.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "kernels/backends/cpu_backend.h"
#include "models/decoder.h"
#include "models/memory_plan.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"
#include "tests/support/weight_file.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxOverPlan = int64_t{64} << 20;

// A line of /proc/self/status in bytes.
std::optional<int64_t> StatusBytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kilobytes = 0;
    if (words >> name >> kilobytes && name == key + ":") return kilobytes << 10;
  }
  return std::nullopt;
}

// The largest resident set counts from now on.
bool ForgetLargestResidentSet() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && StatusBytes("VmHWM") && StatusBytes("VmRSS");
}

// The output matrix, packed last, takes more than the bound, and so does a layer's gate-up where it is
// widened.
TinyModel LargeMatrices() {
  TinyModel model;
  model.layers = 1;
  model.hidden = 1024;
  model.head_dim = 64;
  model.heads = 16;
  model.kv_heads = 4;
  model.intermediate = 24 << 10;
  model.vocab = 40 << 10;
  return model;
}

struct FileOfZeros {
  DType dtype = DType::kBf16;
  DType of_up = DType::kBf16;  // of the parts that are packed together with the gates
  size_t misaligned = 0;       // bytes
};

// The tensors that a config asks for.
void WriteZeros(const TempFolder& folder, const FileOfZeros& kind) {
  const auto asked = OpenModel(folder.path(), {});
  ASSERT_TRUE(asked.ok()) << asked.status();
  const WeightFileHeader header = HeaderOfAll(
      asked->weights,
      [&kind](const std::string& name) {
        return name.find("up_proj") != std::string::npos ? kind.of_up : kind.dtype;
      },
      kind.misaligned);
  folder.Write("model.safetensors", header.bytes);
  std::filesystem::resize_file(folder.PathOf("model.safetensors"),
                               header.bytes.size() + static_cast<size_t>(header.data_bytes));
}

class LoadingMemory : public testing::TestWithParam<FileOfZeros> {};

TEST_P(LoadingMemory, StaysNearThePlan) {
  if (kSanitized) GTEST_SKIP() << "not measured: under a sanitizer memory is the sanitizer's too";
  const TempFolder folder;
  folder.Write("config.json", LargeMatrices().HuggingFaceConfig().dump());
  WriteZeros(folder, GetParam());
  const BackendPtr backend = MakeCpuBackend({.threads = 2, .variant = "portable"}).value();
  auto opened = OpenModel(folder.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  const PlanLimits limits = {
      .max_tokens = 16, .max_sequences = 1, .max_logit_rows = 1, .max_step_tokens = 16};
  const auto plan = PlanMemory(*opened, *backend, limits, int64_t{1} << 40);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->weight_bytes, 4 * kMaxOverPlan);

  if (!ForgetLargestResidentSet())
    GTEST_SKIP() << "not measured: this system does not count resident sets anew";
  const int64_t before = *StatusBytes("VmHWM");
  const auto model = LoadModel(std::move(*opened), *backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const int64_t taken = *StatusBytes("VmHWM") - before;
  EXPECT_GE(taken, plan->weight_bytes / 2) << "the weights were not seen: nothing was measured";
  EXPECT_LE(taken - plan->weight_bytes, kMaxOverPlan);
  RecordProperty("over_the_plan", std::to_string(taken - plan->weight_bytes));
}

INSTANTIATE_TEST_SUITE_P(, LoadingMemory,
                         testing::Values(FileOfZeros{}, FileOfZeros{.misaligned = 1},
                                         FileOfZeros{.of_up = DType::kF16}),
                         [](const auto& info) {
                           const FileOfZeros& kind = info.param;
                           if (kind.misaligned != 0) return "Misaligned";
                           return kind.of_up == kind.dtype ? "AsTheyAre" : "Widened";
                         });

}  // namespace
}  // namespace tramontane
