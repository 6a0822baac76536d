#include "models/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(WindowText, SaysManyLayersInFewWords) {
  EXPECT_EQ(WindowText({0, 0}), "none");
  EXPECT_EQ(WindowText({256, 256, 256}), "256 on all 3 layers");
  EXPECT_EQ(WindowText({0, 64, 64, 64, 0, 64, 64, 64}), "none on 2 layers (0, 4), 64 on 6 layers (1-3, 5-7)");
  std::vector<int32_t> many;
  for (int i = 0; i < 10; ++i) many.insert(many.end(), {0, 8});
  EXPECT_EQ(WindowText(many), "none on 10 layers (0, 2, 4, 6, ...), 8 on 10 layers (1, 3, 5, 7, ...)");
}

TEST(DescribeModel, NamesEveryDimensionTheTokenizerAndTheFiles) {
  const TempFolder folder;
  TinyModel model;
  model.window = {0, 12};
  model.Randomise(1);
  model.WriteHuggingFace(folder);
  folder.Write("tokenizer.model.v3", "");
  const auto model_in_folder = OpenModel(folder.path(), {});
  ASSERT_TRUE(model_in_folder.ok()) << model_in_folder.status();
  const std::string text = DescribeModel(*model_in_folder);
  for (const char* part :
       {"MinistralForCausalLM, Hugging Face layout", "2, hidden 32, feed-forward 48",
        "4 of 8, 2 for keys and values", "none on 1 layers (0), 12 on 1 layers (1)",
        "512 tokens, rope theta 10000", "96, bos 1, eos 2", "tokenizer.model.v3 (SentencePiece)",
        "model.safetensors", "config.json (params.json is not there)"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(DescribeModel, CountsExperts) {
  const TempFolder folder;
  TinyModel model;
  model.experts = 8;
  model.Randomise(1);
  model.WriteMistral(folder);
  const auto opened = OpenModel(folder.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(DescribeModel(*opened),
              AllOf(HasSubstr("MixtralForCausalLM, Mistral's own layout"),
                    HasSubstr("2, hidden 32, feed-forward 8 experts of 48, 2 for each token")));
}

TEST(DescribeModel, SaysWhatIsAbsentAndRepeatsWarnings) {
  const TempFolder folder;
  nlohmann::json params = TinyModel().MistralParams();
  params["favourite_colour"] = "blue";
  folder.Write("params.json", params.dump());
  folder.Write("consolidated.00.pth", "");
  folder.Write("tekken.json", "");
  const auto model = OpenModel(folder.path(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string text = DescribeModel(*model);
  EXPECT_THAT(text, AllOf(HasSubstr("Mistral's own layout"), HasSubstr("consolidated.00.pth cannot be read"),
                          HasSubstr("tekken.json (tekken)"), HasSubstr("favourite_colour")));
}

TEST(DescribeModel, SaysHowItsRotaryEmbeddingIsStretchedAndWhatIsLeftOut) {
  const auto model = OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/ministral3", {});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string text = DescribeModel(*model);
  for (const char* part : {"Ministral3ForCausalLM, Hugging Face layout",
                           "refused: of Mistral3ForConditionalGeneration the text part is served",
                           "theta 1e+06, YaRN of 16 times 16, magnitude 1",
                           "queries times 1 + 0.4 ln(1 + position / 16)", "BF16 108,992 bytes"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto mixed = OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/llama3_scaling", {});
  EXPECT_THAT(DescribeModel(*mixed), HasSubstr("llama3 bands of 8 times 64, magnitude 1"));
  const auto two_formats = OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/yarn", {});
  EXPECT_THAT(DescribeModel(*two_formats), testing::ContainsRegex("BF16 [0-9,]+ bytes, F32 [0-9,]+ bytes"));
}

TEST(DescribePlan, SaysWhereTheMemoryGoesGroupByGroup) {
  const KvLayout layout = MakeKvLayout({0, 64, 64, 64}, {DType::kBf16, 2, 8, 16});
  MemoryPlan plan;
  plan.weight_count = 1234567;
  plan.weight_bytes = 2469134;
  plan.workspace_bytes = 1000;
  plan.page_bytes = layout.page_bytes();
  plan.pool_pages = 4321;
  plan.pool_tokens = 32768;
  plan.sequences_at_context = 7;
  const std::string text = DescribePlan(layout, plan, 123456789);
  // 2 halves of 2 heads of 8 bf16: 64 bytes a token and layer, one layer a page.
  for (const char* part :
       {"1,234,567", "123,456,789 bytes", "2,469,134 bytes (by the config's dtype)",
        "4,321 of 1,024 bytes: 16 tokens, 1 layers, bf16", "64 bytes per token: layers 0, window none",
        "64 bytes per token: layers 3, window 64", "one sequence of 32,768 tokens, or 7 "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("recorded steps")));
  plan.recording_bytes = 98304;
  plan.recorded_steps = 3;
  plan.unrecorded_steps = 2;
  EXPECT_THAT(DescribePlan(layout, plan, 123456789),
              testing::ContainsRegex("recorded steps +some 98,304 bytes for 3 of 5 forward passes"));
}

}  // namespace
}  // namespace tramontane
