// The forward pass against an independent implementation: tiny models of tests/golden/ and what transformers
// computed with them (make_model_goldens.py).
//
// Tolerances. The models are made sensitive: a relative change of the residual stream grows by up to 30
// through peaked attention and reaches logits of size 15, so a rounding of relative size u may move a
// log-probability by 450 u.
//   f32 (u = 6e-8): 4 layers of 8 roundings add up like sqrt(32) of them: 450 * 6e-8 * 5.7 = 1.5e-4.
//   Measured: 2e-5. bf16 (u = 2e-3) for keys and values, or for the inputs of Linear: 2 roundings a layer,
//   averaged over 16 elements of a head: 450 * 2e-3 * sqrt(8) / 4 = 0.6. Measured: 0.16; the limit is twice
//   that.
// A token is compared where the reference's lead exceeds twice the limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "kernels/backends/cpu_backend.h"
#include "kernels/core/check.h"
#include "models/decoder.h"
#include "models/model.h"
#include "tests/reference/linear.h"
#include "tests/reference/sampling.h"
#include "tests/support/counting_backend.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using nlohmann::json;

constexpr double kF32Tolerance = 1.5e-4;
constexpr double kBf16Tolerance = 0.32;

// Its two large matrices are no file: they follow from a formula.
constexpr const char* kLargeVocabulary = "large_vocabulary";
constexpr const char* kModels[] = {"window16",
                                   "layer_types",
                                   "layer_types_native",
                                   "head_dim",
                                   "tied",
                                   "llama",
                                   "llama3_scaling",
                                   "yarn",
                                   "ministral3",
                                   "mistral3",
                                   "ministral3_native",
                                   "mixtral",
                                   "mixtral_native",
                                   kLargeVocabulary,
                                   "layer_types_gguf",
                                   "llama_gguf",
                                   "llama3_scaling_gguf",
                                   "ministral3_gguf",
                                   "mixtral_gguf"};

json Golden(const std::string& name) {
  std::ifstream file(std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/" + name + "/golden.json");
  return json::parse(file);
}

int32_t Best(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct Loaded {
  BackendPtr backend;
  std::unique_ptr<Model> model;
};

// As make_model_goldens.py has it: an element's number, hashed, its top byte spread over (-scale, scale).
std::vector<float> ByFormula(int64_t rows, int64_t columns, uint32_t matrix, float scale) {
  const auto count = static_cast<uint32_t>(rows * columns);
  std::vector<float> values(count);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t bits = (i + matrix * count) * 2654435761u;
    bits ^= bits >> 16;
    bits *= 2246822519u;
    values[i] = (static_cast<float>(bits >> 24) * 2 - 255) / 256 * scale;
  }
  return values;
}

// The committed files, and the second of its weight files.
void MakeLargeVocabulary(const std::string& committed, const TempFolder& folder) {
  for (const auto& file : std::filesystem::directory_iterator(committed))
    std::filesystem::copy(file.path(), folder.path());
  constexpr int64_t kVocab = 131072, kHidden = 32;
  SafetensorsWriter writer;
  writer.Add("model.embed_tokens.weight", {kVocab, kHidden}, ByFormula(kVocab, kHidden, 0, 2.0f),
             DType::kBf16);
  writer.Add("lm_head.weight", {kVocab, kHidden}, ByFormula(kVocab, kHidden, 1, 1.0f), DType::kBf16);
  folder.Write("model-00002-of-00002.safetensors", writer.File());
}

std::string FolderOf(const std::string& name) {
  const std::string committed = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/" + name;
  if (name != kLargeVocabulary) return committed;
  static const TempFolder folder;
  static const bool made = [&] {
    MakeLargeVocabulary(committed, folder);
    return true;
  }();
  TM_CHECK(made, "a folder");
  return folder.path();
}

Loaded Load(const std::string& name, const std::string& variant, DType kv_dtype, int32_t page_size = 8) {
  Loaded loaded;
  auto backend = MakeCpuBackend({.threads = 2, .variant = variant});
  EXPECT_TRUE(backend.ok()) << backend.status();
  loaded.backend = std::move(backend).value();
  LoadOptions options;
  options.kv.dtype = kv_dtype;
  options.kv.page_size = page_size;
  auto model = LoadFolder(FolderOf(name), *loaded.backend, options);
  EXPECT_TRUE(model.ok()) << model.status();
  loaded.model = std::move(model).value();
  EXPECT_TRUE(loaded.model->config().warnings.empty()) << loaded.model->config().warnings[0];
  return loaded;
}

struct Case {
  std::string model;
  std::string variant;
  DType kv_dtype;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << "_" << c.variant << "_kv_" << DTypeName(c.kv_dtype);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* model : kModels) {
    for (const std::string& variant : TestedCpuVariants()) {
      for (const DType kv_dtype : {DType::kF32, DType::kBf16}) cases.push_back({model, variant, kv_dtype});
    }
  }
  return cases;
}

class GoldenModel : public testing::TestWithParam<Case> {};

// Teacher-forced: each step is given the reference's token, so one difference does not become many.
TEST_P(GoldenModel, GivesTheTokensAndLogprobsOfTransformers) {
  const auto& [name, variant, kv_dtype] = GetParam();
  const bool exact = kv_dtype == DType::kF32 && !RoundsInputs(variant);
  const double tolerance = exact ? kF32Tolerance : kBf16Tolerance;
  const Loaded loaded = Load(name, variant, kv_dtype);
  ModelDriver driver(*loaded.model, *loaded.backend, {});
  double worst = 0.0;
  int compared_tokens = 0, tokens = 0;
  const auto compare = [&](double got, double want, const std::string& what) {
    worst = std::max(worst, std::abs(got - want));
    EXPECT_NEAR(got, want, tolerance) << what;
  };

  const json golden = Golden(name);
  for (const json& run : golden["runs"]) {
    const auto prompt = run["prompt"].get<std::vector<int32_t>>();
    const auto continuation = run["tokens"].get<std::vector<int32_t>>();
    const int sequence = driver.AddSequence();
    std::vector<std::vector<float>> logits = driver.Step({{sequence, prompt}});
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      compare(reference::LogSoftmax(logits[i])[prompt[i + 1]], run["prompt_logprobs"][i],
              "prompt token " + std::to_string(i + 1));
    }
    for (size_t step = 0; step < continuation.size(); ++step) {
      const std::vector<double> logprobs = reference::LogSoftmax(logits.back());
      const double margin = run["margins"][step];
      ++tokens;
      if (margin > 2 * tolerance) {
        ++compared_tokens;
        EXPECT_EQ(Best(logits.back()), continuation[step]) << "step " << step << ", margin " << margin;
      }
      for (const json& top : run["top"][step]) {
        compare(logprobs[top[0].get<int32_t>()], top[1],
                "step " + std::to_string(step) + " token " + top[0].dump());
      }
      logits = driver.Step({{sequence, {continuation[step]}}});
    }
    driver.EndSequence(sequence);
  }
  EXPECT_GE(tokens, 32);
  if (exact) {
    EXPECT_EQ(compared_tokens, tokens) << "every golden token leads by more than twice the tolerance";
  }
  EXPECT_EQ(driver.free_pages(), 256) << "every page came back";
  RecordProperty("worst", std::to_string(worst));
  std::cout << GetParam() << ": worst difference " << worst << ", tokens compared " << compared_tokens
            << " of " << tokens << "\n";
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, testing::ValuesIn(Cases()),
                         [](const auto& info) { return testing::PrintToString(info.param); });

// An off-by-one window would not pass for rounding: the reference itself, one key wider, moves by far more.
TEST(GoldenFiles, TolerancesAreFarBelowAWindowThatIsOneKeyTooWide) {
  int windowed = 0;
  for (const char* name : kModels) {
    const json effect = Golden(name)["one_wider_window_changes_a_logit_by"];
    if (effect.is_null()) continue;
    ++windowed;
    EXPECT_GT(effect.get<double>(), 5 * kBf16Tolerance) << name;
  }
  EXPECT_EQ(windowed, 5);
}

// ---- mistakes -----------------------------------------------------------------------------------

// What a reader of configs could get wrong, each on a model where it matters; or a list of weights, or an op.
struct Mistake {
  const char* name;
  const char* model;
  void (*make)(ModelConfig& config);
  void (*make_of_weights)(std::vector<WeightSpec>& weights) = nullptr;
  std::unique_ptr<CountingBackend> (*make_of_ops)(Backend& backend) = nullptr;
};
std::ostream& operator<<(std::ostream& out, const Mistake& m) { return out << m.name; }

void WiderWindow(ModelConfig& config) {
  for (int32_t& window : config.window) window += window == 0 ? 0 : 1;
}
void NoWindow(ModelConfig& config) { std::fill(config.window.begin(), config.window.end(), 0); }
void OtherTheta(ModelConfig& config) { config.rope_theta *= 10; }
void OtherPairs(ModelConfig& config) {
  config.rotary_style =
      config.rotary_style == RotaryStyle::kHalfSplit ? RotaryStyle::kInterleaved : RotaryStyle::kHalfSplit;
}
void NoScaling(ModelConfig& config) { config.rope_scaling = {}; }
void NoMagnitude(ModelConfig& config) { config.rope_scaling.magnitude = 1.0; }
void DefaultMagnitude(ModelConfig& config) {
  config.rope_scaling.magnitude = YarnMagnitude(config.rope_scaling.factor, 1.0, 0.0);
}
void Truncated(ModelConfig& config) { config.rope_scaling.truncate = true; }
void NoQueryScaling(ModelConfig& config) { config.query_scaling = {}; }

void NothingOfConfig(ModelConfig&) {}
void OneExpert(ModelConfig& config) { config.experts_per_token = 1; }
void ThreeExperts(ModelConfig& config) { config.experts_per_token = 3; }

// Experts 0 and 1 of a layer under each other's number.
void ExpertsSwapped(std::vector<WeightSpec>& weights) {
  for (WeightSpec& spec : weights) {
    if (spec.key.layer == 1 && (spec.key.expert == 0 || spec.key.expert == 1)) spec.key.expert ^= 1;
  }
}
void GateAndUpSwapped(std::vector<WeightSpec>& weights) {
  for (WeightSpec& spec : weights) {
    if (spec.key.role == WeightRole::kGateUp) std::swap(spec.parts[0], spec.parts[1]);
  }
}

// Shares by the softmax over all experts, those of the chosen not made to sum to one.
class SharesOfAll final : public CountingBackend {
 public:
  using CountingBackend::CountingBackend;

  OpCode Moe(const MoeParams& params) override {
    const int64_t hidden = params.x.columns;
    reference::Matrix x(params.rows, hidden), router(params.experts, hidden);
    for (int64_t row = 0; row < params.rows; ++row) {
      const float* from = static_cast<const float*>(params.x.data) + row * params.x.row_stride;
      std::copy_n(from, hidden, x.data.begin() + row * hidden);
    }
    std::copy_n(params.router, params.experts * hidden, router.data.begin());
    const reference::Matrix scores = reference::MultiplyTransposed(
        reference::RmsNorm(x, {params.norm_weight, params.norm_weight + hidden}, params.norm_epsilon),
        router);
    const OpCode code = CountingBackend::Moe(params);
    for (int64_t row = 0; row < params.rows; ++row) {
      const double part = PartOfChosen(scores, row, params.experts_per_token);
      float* out = static_cast<float*>(params.out.data) + row * params.out.row_stride;
      for (int64_t k = 0; k < hidden; ++k) {
        const double before = x.At(row, k);
        out[k] = static_cast<float>(before + part * (out[k] - before));
      }
    }
    return code;
  }

 private:
  // What the softmax over all gives to the chosen.
  static double PartOfChosen(const reference::Matrix& scores, int64_t row, int32_t count) {
    std::vector<double> weights;
    for (int64_t expert = 0; expert < scores.columns; ++expert) {
      weights.push_back(std::exp(scores.At(row, expert)));
    }
    std::sort(weights.rbegin(), weights.rend());
    return std::accumulate(weights.begin(), weights.begin() + count, 0.0) /
           std::accumulate(weights.begin(), weights.end(), 0.0);
  }
};
std::unique_ptr<CountingBackend> MakeSharesOfAll(Backend& backend) {
  return std::make_unique<SharesOfAll>(backend);
}

class GoldenMistake : public testing::TestWithParam<Mistake> {};

// The largest difference of a prompt's log-probabilities, with f32 keys and values.
double WorstOfPrompts(const Mistake& mistake, bool make) {
  auto backend = MakeCpuBackend({.threads = 2, .variant = "portable"}).value();
  const std::string folder = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/" + mistake.model;
  OpenedModel opened = OpenModel(folder, {.dtype = DType::kF32, .page_size = 8}).value();
  std::unique_ptr<CountingBackend> mistaken;
  if (make) {
    mistake.make(opened.config);
    opened.kv_layout = MakeKvLayout(opened.config.window, opened.kv_layout.format);
    if (mistake.make_of_weights != nullptr) mistake.make_of_weights(opened.weights);
    if (mistake.make_of_ops != nullptr) mistaken = mistake.make_of_ops(*backend);
  }
  Backend& used = mistaken == nullptr ? *backend : *mistaken;
  const auto model = LoadModel(std::move(opened), used, nullptr).value();
  ModelDriver driver(*model, used, {});
  double worst = 0.0;
  const json golden = Golden(mistake.model);
  for (const json& run : golden["runs"]) {
    const auto prompt = run["prompt"].get<std::vector<int32_t>>();
    const auto logits = driver.Step({{driver.AddSequence(), prompt}});
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      const double wanted = run["prompt_logprobs"][i];
      worst = std::max(worst, std::abs(reference::LogSoftmax(logits[i])[prompt[i + 1]] - wanted));
    }
  }
  return worst;
}

TEST_P(GoldenMistake, IsFarBeyondTheTolerance) {
  EXPECT_LE(WorstOfPrompts(GetParam(), /*make=*/false), kF32Tolerance);
  const double worst = WorstOfPrompts(GetParam(), /*make=*/true);
  EXPECT_GT(worst, 1000 * kF32Tolerance);
  std::cout << GetParam() << " in " << GetParam().model << " moves a log-probability by " << worst << "\n";
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenMistake,
    testing::Values(Mistake{"WiderWindow", "layer_types", WiderWindow},
                    Mistake{"NoWindow", "layer_types_native", NoWindow},
                    Mistake{"OtherTheta", "mistral3", OtherTheta},
                    Mistake{"OtherPairs", "head_dim", OtherPairs},
                    Mistake{"OtherPairsOfNativeFiles", "ministral3_native", OtherPairs},
                    Mistake{"NoBands", "llama3_scaling", NoScaling}, Mistake{"NoYarn", "yarn", NoScaling},
                    Mistake{"NoMagnitude", "yarn", NoMagnitude}, Mistake{"TruncatedBand", "yarn", Truncated},
                    Mistake{"NoYarnBesideImages", "ministral3", NoScaling},
                    Mistake{"DefaultMagnitude", "ministral3", DefaultMagnitude},
                    Mistake{"NoQueryScaling", "ministral3", NoQueryScaling},
                    Mistake{"OneExpert", "mixtral", OneExpert},
                    Mistake{"ThreeExperts", "mixtral_native", ThreeExperts},
                    Mistake{"ExpertsSwapped", "mixtral", NothingOfConfig, ExpertsSwapped},
                    Mistake{"GateAndUpSwapped", "mixtral_native", NothingOfConfig, GateAndUpSwapped},
                    Mistake{"WiderWindowOfAGguf", "layer_types_gguf", WiderWindow},
                    Mistake{"OtherPairsOfAGguf", "llama_gguf", OtherPairs},
                    Mistake{"NoDivisors", "llama3_scaling_gguf", NoScaling},
                    Mistake{"NoQueryScalingOfAGguf", "ministral3_gguf", NoQueryScaling},
                    Mistake{"ExpertsOfAStackSwapped", "mixtral_gguf", NothingOfConfig, ExpertsSwapped},
                    Mistake{"SharesOfAll", "mixtral", NothingOfConfig, nullptr, MakeSharesOfAll}),
    [](const auto& info) { return info.param.name; });

// ---- chunked = whole ----------------------------------------------------------------------------

// Bit for bit, for every variant: how a prompt is cut, what page size it has, which pages it gets and who
// shares its steps must not show in its logits.
TEST(GoldenModelBits, DoNotDependOnChunksPagesOrNeighbours) {
  for (const char* name : {"window16", "layer_types", "head_dim", "ministral3", "mixtral"}) {
    const json golden = Golden(name);
    const json& run = golden["runs"].back();
    auto tokens = run["prompt"].get<std::vector<int32_t>>();
    const auto continuation = run["tokens"].get<std::vector<int32_t>>();
    tokens.insert(tokens.end(), continuation.begin(), continuation.end());
    for (const std::string& variant : TestedCpuVariants()) {
      const Loaded alone = Load(name, variant, DType::kBf16, 16);
      ModelDriver whole(*alone.model, *alone.backend, {});
      const auto expected = whole.Step({{whole.AddSequence(), tokens}});

      for (uint64_t seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE(std::string(name) + " " + variant + " seed " + std::to_string(seed));
        std::mt19937_64 random(seed);
        const int32_t page_size = std::array{1, 4, 8, 16, 32}[random() % 5];
        const Loaded crowd = Load(name, variant, DType::kBf16, page_size);
        ModelDriver driver(*crowd.model, *crowd.backend, {.pool_pages = 2048, .seed = seed});
        const int ours = driver.AddSequence();
        const int neighbours[] = {driver.AddSequence(), driver.AddSequence()};
        size_t done = 0;
        while (done < tokens.size()) {
          const size_t chunk =
              std::min<size_t>(1 + random() % (seed % 2 == 0 ? 3 : 40), tokens.size() - done);
          std::vector<ModelDriver::Row> rows;
          size_t ours_begin = 0;
          if (random() % 2 == 0) {
            rows.push_back({neighbours[0], std::vector<int32_t>(1 + random() % 5, 7)});
            ours_begin = rows[0].tokens.size();
          }
          rows.push_back({ours,
                          {tokens.begin() + static_cast<int64_t>(done),
                           tokens.begin() + static_cast<int64_t>(done + chunk)}});
          if (random() % 2 == 0) rows.push_back({neighbours[1], std::vector<int32_t>(1 + random() % 30, 9)});
          const auto logits = driver.Step(rows);
          for (size_t i = 0; i < chunk; ++i) {
            ASSERT_EQ(std::memcmp(logits[ours_begin + i].data(), expected[done + i].data(),
                                  expected[0].size() * sizeof(float)),
                      0)
                << "token " << done + i;
          }
          done += chunk;
        }
      }
    }
  }
}

// ---- rolling ------------------------------------------------------------------------------------

TEST(GoldenModelPages, StopGrowingAtTheWindowWhileFullLayersGrow) {
  const Loaded loaded = Load("layer_types", CpuVariants().front(), DType::kBf16, 4);
  const KvLayout& layout = loaded.model->kv_layout();
  ASSERT_EQ(layout.groups.size(), 4u);
  ModelDriver driver(*loaded.model, *loaded.backend, {.pool_pages = 512});
  const int sequence = driver.AddSequence();
  std::mt19937_64 random(3);
  for (int i = 0; i < 600; ++i) {
    const auto logits = driver.Step({{sequence, {static_cast<int32_t>(3 + random() % 280)}}});
    ASSERT_TRUE(std::isfinite(logits[0][0])) << "a page that was given back was read at token " << i;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      // Window 12, page 4, one token a step: ceil((12 - 1 + 1) / 4) + 1 = 4.
      const int64_t most = layout.groups[g].window == 0 ? PagesFor(i + 1, 4) : 4;
      ASSERT_LE(driver.PagesHeld(sequence, static_cast<int32_t>(g)), most)
          << "group " << g << " after token " << i;
    }
  }
}

}  // namespace
}  // namespace tramontane
