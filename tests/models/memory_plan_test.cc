// The plan against what loading and reserving really take, counted by a backend that forwards to the CPU's.
#include "models/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/backends/cpu_backend.h"
#include "models/model.h"
#include "tests/support/counting_backend.h"
#include "tests/support/load_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest() : backend_(MakeCpuBackend({.threads = 1, .variant = ""}).value()) {
    model_.window = {0, 12};
    model_.Randomise(1);
  }

  StatusOr<MemoryPlan> Plan(const TempFolder& folder, int64_t memory_bytes = 64 * kMiB) {
    const auto model = OpenModel(folder.path(), {});
    EXPECT_TRUE(model.ok()) << model.status();
    return PlanMemory(*model, *backend_, limits_, memory_bytes);
  }

  TinyModel model_;
  BackendPtr backend_;
  PlanLimits limits_ = {.max_tokens = 64, .max_sequences = 8, .max_logit_rows = 8, .max_step_tokens = 64};
};

// Multi-head latent attention: of a token and layer one row of ckv and kpe for all heads, whose value is its
// first lanes. (No architecture that has it is loaded; its pages are planned, as they are attended over.)
TEST_F(MemoryPlanTest, ALatentPageIsOneRowATokenAndLayer) {
  constexpr int32_t kCkv = 512, kKpe = 64, kPageSize = 16;
  const TempFolder folder;
  model_.WriteMistral(folder);
  StatusOr<OpenedModel> model = OpenModel(folder.path(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  constexpr int32_t kLayers = 4;
  for (const auto& [dtype, row_bytes] : {std::pair(DType::kBf16, 1152), std::pair(DType::kF32, 2304)}) {
    const KvFormat format = {.element = Format(dtype),
                             .kv_heads = 1,
                             .head_dim = kCkv + kKpe,
                             .page_size = kPageSize,
                             .latent_value_dim = kCkv};
    model->kv_layout = MakeKvLayout(std::vector<int32_t>(kLayers, 0), format);
    const auto plan = PlanMemory(*model, *backend_, limits_, 64 * kMiB);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t page_bytes = int64_t{kLayers} * kPageSize * row_bytes;
    EXPECT_EQ(plan->page_bytes, page_bytes) << "no values beside it";
    EXPECT_EQ(plan->kv_budget_bytes, 64 * kMiB - plan->weight_bytes - plan->workspace_bytes);
    EXPECT_EQ(plan->pool_pages, plan->kv_budget_bytes / page_bytes);
    EXPECT_EQ(plan->pool_tokens, std::min<int64_t>(model_.context, plan->pool_pages * kPageSize));
    EXPECT_EQ(plan->sequences_at_context, plan->pool_pages / (model_.context / kPageSize));
    const auto least = PlanMemory(*model, *backend_, limits_, plan->weight_bytes + plan->workspace_bytes);
    EXPECT_THAT(least.status().message(), HasSubstr("layer groups " + std::to_string(page_bytes)));
  }
}

TEST_F(MemoryPlanTest, EqualsWhatLoadingAndReservingTake) {
  for (const int32_t experts : {0, 3, 8}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const bool tied = experts == 3;
      model_.experts = experts;
      model_.tied = tied;
      model_.Randomise(1);
      for (auto& [name, tensor] : model_.tensors) tensor.dtype = dtype;
      model_.tensors["layers.0.attention.wq.weight"].dtype = DType::kF16;  // one matrix of mixed dtypes
      const TempFolder folder;
      model_.WriteMistral(folder);
      const auto plan = Plan(folder);
      ASSERT_TRUE(plan.ok()) << plan.status();

      CountingBackend counting(*backend_);
      auto model = LoadFolder(folder.path(), counting, {});
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ(plan->weight_bytes, counting.packed + counting.allocated);
      EXPECT_TRUE(plan->weights_present);
      counting.allocated = 0;
      ASSERT_TRUE((*model)->Reserve(limits_.max_tokens, limits_.max_sequences, limits_.max_logit_rows).ok());
      const int64_t logits =
          int64_t{limits_.max_logit_rows} * model_.vocab * 4;  // whoever calls Logits holds them
      EXPECT_EQ(plan->workspace_bytes, counting.reserved + counting.allocated + logits);

      int64_t parameters = 0;
      for (const auto& [name, tensor] : model_.tensors)
        parameters += static_cast<int64_t>(tensor.values.size());
      EXPECT_EQ(plan->weight_count, parameters);
    }
  }
}

TEST_F(MemoryPlanTest, WorksWithoutWeightsByTheConfigsWord) {
  for (auto& [name, tensor] : model_.tensors) tensor.dtype = DType::kBf16;
  const TempFolder with, without;
  model_.WriteHuggingFace(with);
  without.Write("config.json", model_.HuggingFaceConfig().dump());
  const auto expected = Plan(with), plan = Plan(without);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->weights_present);
  EXPECT_EQ(plan->weight_bytes, expected->weight_bytes);
  EXPECT_EQ(plan->weight_count, expected->weight_count);

  nlohmann::json f32 = model_.HuggingFaceConfig();
  f32["torch_dtype"] = "float32";
  without.Write("config.json", f32.dump());
  EXPECT_GT(Plan(without)->weight_bytes, plan->weight_bytes);
}

TEST_F(MemoryPlanTest, EveryByteHasAPlace) {
  const TempFolder folder;
  model_.WriteMistral(folder);
  const auto plan = Plan(folder);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->weight_bytes + plan->workspace_bytes + plan->kv_budget_bytes, 64 * kMiB);
  EXPECT_EQ(plan->page_bytes,
            2 * 2 * 16 * 8 * 2);  // K and V, 2 heads, 16 tokens, 8 dims, bf16; 1 layer a page
  EXPECT_EQ(plan->pool_pages, plan->kv_budget_bytes / plan->page_bytes);
}

TEST_F(MemoryPlanTest, RecordedStepsHaveAPlaceToo) {
  const TempFolder folder;
  model_.WriteMistral(folder);
  const auto without = Plan(folder);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->recording_bytes, 0);
  limits_.recorded_steps = 5;
  const auto plan = Plan(folder);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->recording_bytes, 5 * (int64_t{model_.layers} * 16 + 32) * 16384);
  EXPECT_EQ(plan->kv_budget_bytes, without->kv_budget_bytes - plan->recording_bytes);

  // The bound that nobody gave is a share of the memory, and never in the way of a page.
  const int64_t without_any = plan->weight_bytes + plan->workspace_bytes + 2 * plan->page_bytes;
  ASSERT_TRUE(Plan(folder, without_any).ok());
  EXPECT_EQ(Plan(folder, without_any)->recording_bytes, 0);
  EXPECT_EQ(Plan(folder, without_any)->unrecorded_steps, 5);

  limits_.max_recording_bytes = plan->recording_bytes;
  const int64_t least = without_any + plan->recording_bytes;
  EXPECT_TRUE(Plan(folder, least).ok());
  EXPECT_THAT(Plan(folder, least - 1).status().message(),
              AllOf(HasSubstr("recorded steps " + std::to_string(plan->recording_bytes)),
                    HasSubstr(std::to_string(least))));
}

TEST_F(MemoryPlanTest, CountsSequencesAndTheLongestOneByTheirPages) {
  const TempFolder folder;
  model_.WriteMistral(folder);
  const auto roomy = Plan(folder);
  ASSERT_TRUE(roomy.ok());
  EXPECT_EQ(roomy->pool_tokens, model_.context) << "never more than the model's context";
  // Context 512: 32 pages of the full layer, ceil((12 - 1 + 16) / 16) + 1 = 3 of the other, in chunks of a
  // page.
  EXPECT_EQ(roomy->sequences_at_context, roomy->pool_pages / 35);

  // Exactly 20 pages: 17 of the full layer beside those 3, 272 tokens.
  const int64_t fixed = roomy->weight_bytes + roomy->workspace_bytes;
  const auto tight = Plan(folder, fixed + 20 * roomy->page_bytes);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(tight->pool_pages, 20);
  EXPECT_EQ(tight->pool_tokens, 272);
  EXPECT_EQ(tight->sequences_at_context, 0);
}

TEST_F(MemoryPlanTest, TooLittleMemorySaysWhatIsNeeded) {
  const TempFolder folder;
  model_.WriteMistral(folder);
  const auto plan = Plan(folder);
  const int64_t least = plan->weight_bytes + plan->workspace_bytes + 2 * plan->page_bytes;
  EXPECT_TRUE(Plan(folder, least).ok());
  for (const int64_t memory : {least - 1, int64_t{1000}, int64_t{0}, int64_t{-5}}) {
    const auto refused = Plan(folder, memory);
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr(std::to_string(memory)), HasSubstr(std::to_string(least))));
  }
}

TEST_F(MemoryPlanTest, WrongWeightFilesAreErrorsOfThePlanToo) {
  const TempFolder folder;
  model_.tensors.erase("norm.weight");
  model_.WriteMistral(folder);
  EXPECT_THAT(Plan(folder).status().message(), HasSubstr("norm.weight"));
}

TEST_F(MemoryPlanTest, PickledWeightsAreAnErrorOfThePlanToo) {
  const TempFolder folder;
  folder.Write("config.json", model_.HuggingFaceConfig().dump());
  folder.Write("pytorch_model.bin", "x");
  EXPECT_THAT(Plan(folder).status().message(), HasSubstr("pytorch_model.bin cannot be read"));
}

}  // namespace
}  // namespace tramontane
