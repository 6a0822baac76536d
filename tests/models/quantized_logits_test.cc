// A model in each form of quantised weights computes, bit for bit, what the same model does whose matrices
// are f32 and hold the same numbers, where its columns stand in another order but for the order of sums; and
// takes the memory that was planned.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/core/block_types.h"
#include "models/memory_plan.h"
#include "tests/support/counting_backend.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using nlohmann::json;

const char* const kForms[] = {"ct_int4",
                              "ct_int4_zero_points",
                              "ct_int8_packed",
                              "ct_int8",
                              "ct_fp8_channel",
                              "ct_fp8_tensor",
                              "awq",
                              "gptq_int4",
                              "gptq_int8",
                              "gptq_v2_channel",
                              "fp8_blocks",
                              "mistral_fp8",
                              "gptq_desc_act",
                              "gptq_int8_desc_act",
                              "gptq_desc_act_experts",
                              "ct_actorder",
                              "ct_actorder_tied"};

std::string FolderOfForm(const std::string& form) {
  return std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/quantized/" + form;
}

// Its config without a word of quantisation, and every matrix in f32.
void WriteInF32(const std::string& form, const TempFolder& folder) {
  const OpenedModel opened = OpenModel(FolderOfForm(form), {}).value();
  std::ifstream file(FolderOfForm(form) + "/" + opened.folder.config_file);
  json config = json::parse(file);
  config.erase("quantization_config");
  config.erase("quantization");
  folder.Write(opened.folder.config_file, config.dump());
  SafetensorsWriter writer;
  for (const WeightSpec& weight : opened.weights) {
    for (const TensorSpec& part : weight.parts) {
      const StoredWeight stored = opened.weight_files->Find(part).value();
      if (!stored.coded) {
        const FoundTensor& plain = stored.plain;
        writer.AddRaw(part.name, plain.tensor->dtype_name, plain.tensor->shape,
                      {reinterpret_cast<const char*>(plain.data()), static_cast<size_t>(stored.bytes())});
        continue;
      }
      std::vector<float> values(static_cast<size_t>(part.elements()));
      ASSERT_TRUE(stored.coded->ReadValues(0, part.rows, values.data()).ok());
      writer.Add(part.name, {part.rows, part.columns}, values);
    }
  }
  folder.Write(opened.folder.weight_files[0], writer.File());
}

std::vector<std::vector<float>> LogitsOf(const std::string& folder, Backend& backend) {
  LoadOptions options;
  options.kv.dtype = DType::kF32;
  int64_t done = 0, total = 0;
  options.progress = [&](int64_t done_bytes, int64_t total_bytes) {
    done = done_bytes;
    total = total_bytes;
  };
  auto model = LoadFolder(folder, backend, options);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  EXPECT_EQ(done, total);
  EXPECT_GT(total, 0);
  ModelDriver driver(**model, backend, {});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 24; ++i) tokens.push_back(i * 7 % 48);
  const int sequence = driver.AddSequence();
  auto logits = driver.Step({{sequence, tokens}});
  logits.push_back(driver.Step({{sequence, {5}}})[0]);
  return logits;
}

bool IsReordered(const std::string& form) { return form.find("act") != std::string::npos; }

// Sums over columns that stand in an order of their own. One of K products is off by K roundoffs of its
// terms' sizes, K is at most 160, and a logit is a sum of 64 terms of about one behind six other such sums.
void ExpectSumsInAnotherOrder(const std::vector<std::vector<float>>& logits,
                              const std::vector<std::vector<float>>& expected) {
  constexpr float kTolerance = 7 * 160 * 0x1p-24f * 64;
  for (size_t t = 0; t < expected.size(); ++t) {
    ASSERT_EQ(logits[t].size(), expected[t].size());
    for (size_t v = 0; v < expected[t].size(); ++v) {
      ASSERT_NEAR(logits[t][v], expected[t][v], kTolerance) << "token " << t << " logit " << v;
    }
  }
}

class QuantizedLogits : public testing::TestWithParam<const char*> {};

TEST_P(QuantizedLogits, AreThoseOfTheSameNumbersInF32) {
  const TempFolder f32;
  WriteInF32(GetParam(), f32);
  for (const std::string& variant : TestedCpuVariants()) {
    SCOPED_TRACE(variant);
    BackendPtr backend =
        MakeCpuBackend({.threads = 2, .variant = variant, .linear = LinearMode::kExact}).value();
    const auto expected = LogitsOf(f32.path(), *backend);
    const auto logits = LogitsOf(FolderOfForm(GetParam()), *backend);
    ASSERT_EQ(logits.size(), 25u);
    if (IsReordered(GetParam())) {
      ExpectSumsInAnotherOrder(logits, expected);
    } else {
      EXPECT_EQ(logits, expected);
    }
    float largest = 0.0f;
    for (const float logit : expected.back()) largest = std::max(largest, std::abs(logit));
    EXPECT_GT(largest, 1.0f) << "logits that say nothing";
  }
}

TEST_P(QuantizedLogits, TakeTheMemoryThatWasPlanned) {
  BackendPtr backend = CpuBackendWith(1);
  CountingBackend counting(*backend);
  const OpenedModel opened = OpenModel(FolderOfForm(GetParam()), {}).value();
  const PlanLimits limits = {
      .max_tokens = 64, .max_sequences = 8, .max_logit_rows = 8, .max_step_tokens = 64};
  const auto plan = PlanMemory(opened, *backend, limits, int64_t{64} << 20);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto model = LoadFolder(FolderOfForm(GetParam()), counting, {});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(plan->weight_bytes, counting.packed + counting.allocated);
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedLogits, testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tramontane
