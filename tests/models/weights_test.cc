// Loading: every way in which weight files can be wrong is one error that names file and tensor; right ones
// load whatever their dtypes, layout and number of files.
#include "models/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/backends/cpu_backend.h"
#include "tests/support/counting_backend.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kWq[] = "layers.1.attention.wq.weight";

class WeightsTest : public testing::Test {
 protected:
  WeightsTest() : backend_(MakeCpuBackend({.threads = 1, .variant = "portable"}).value()) {
    model_.Randomise(1);
  }

  StatusOr<std::unique_ptr<Model>> Load(LoadProgress progress = nullptr) {
    LoadOptions options;
    options.kv.dtype = DType::kF32;
    options.progress = std::move(progress);
    return LoadFolder(folder_.path(), *backend_, options);
  }
  // The error of loading, after the folder was written.
  std::string Error() { return Load().status().message(); }

  // Logits of some fixed tokens.
  std::vector<std::vector<float>> Logits() {
    auto model = Load();
    EXPECT_TRUE(model.ok()) << model.status();
    ModelDriver driver(**model, *backend_, {});
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 40; ++i) tokens.push_back(i * 7 % model_.vocab);
    return driver.Step({{driver.AddSequence(), tokens}});
  }

  TinyModel model_;
  TempFolder folder_;
  BackendPtr backend_;
};

double LargestDifference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(double{a[i][j]} - b[i][j]));
  }
  return largest;
}

// Both round the same sums in another order: 2 layers, logits of size 10, relative roundings of 6e-8 that
// peaked attention makes up to 30 times larger: 10 * 30 * 6e-8 * sqrt(16) < 1e-4.
constexpr double kReorderedTolerance = 1e-4;

// What a backend is told of each matrix, in the order in which they are packed.
class UsesRecorded : public CountingBackend {
 public:
  using CountingBackend::CountingBackend;
  std::vector<WeightUse> uses;

  OpCode PackLinear(const LinearSource& source, WeightHandle* out) override {
    uses.push_back(source.use);
    return CountingBackend::PackLinear(source, out);
  }
};

TEST_F(WeightsTest, ABackendIsToldWhatTakesEachMatrix) {
  for (const bool tied : {false, true}) {
    model_.tied = tied;
    model_.Randomise(2);
    const TempFolder folder;
    model_.WriteMistral(folder);
    UsesRecorded backend(*backend_);
    LoadOptions options;
    options.kv.dtype = DType::kF32;
    const auto model = LoadFolder(folder.path(), backend, options);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto count = [&](WeightUse use) {
      return std::count(backend.uses.begin(), backend.uses.end(), use);
    };
    EXPECT_EQ(count(WeightUse::kTable), 1);
    EXPECT_EQ(count(WeightUse::kHead), tied ? 0 : 1);
    EXPECT_EQ(count(WeightUse::kLinear), 4 * model_.layers);
    EXPECT_EQ(std::ssize(backend.uses), 4 * model_.layers + (tied ? 1 : 2));
  }
}

// The text part of a model for images, under both sets of names, with and without an output matrix.
TEST_F(WeightsTest, TheTextPartIsFoundUnderOlderAndNewerNames) {
  struct Names {
    const char* body;
    const char* head;
  };
  for (const bool tied : {false, true}) {
    model_.tied = tied;
    model_.Randomise(2);
    model_.WriteHuggingFace(folder_);
    const auto plain = Logits();
    json wrapper = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                    {"text_config", model_.HuggingFaceConfig()},
                    {"vision_config", {{"hidden_size", 8}}}};
    wrapper["text_config"].erase("tie_word_embeddings");
    folder_.Write("config.json", wrapper.dump());
    for (const Names& names :
         {Names{"language_model.model.", "language_model."}, Names{"model.language_model.", ""}}) {
      SafetensorsWriter text = model_.HuggingFaceTensors(), whole;
      whole.data() = text.data();
      for (const auto& [name, entry] : text.header().items()) {
        const bool is_head = !name.starts_with("model.");
        whole.header()[is_head ? names.head + name : names.body + name.substr(6)] = entry;
      }
      whole.Add("vision_tower.ln_pre.weight", {2}, {1, 1});
      whole.Add("model.multi_modal_projector.norm.weight", {2}, {1, 1});
      folder_.Write("model.safetensors", whole.File());
      const auto loaded = Load();
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ((*loaded)->config().tied_embeddings, tied);
      EXPECT_THAT((*loaded)->config().warnings, IsEmpty());
      EXPECT_EQ(LargestDifference(Logits(), plain), 0.0) << names.body;
      // A tensor that is in no part of the model's text or images is one to ask about.
      whole.Add(std::string(names.body) + "layers.0.self_attn.q_proj.bias", {2}, {1, 1});
      folder_.Write("model.safetensors", whole.File());
      EXPECT_THAT(Error(), HasSubstr("layers.0.self_attn.q_proj.bias is no part"));
    }
    if (!tied) {
      wrapper["tie_word_embeddings"] = false;
      model_.tensors.erase("output.weight");
      folder_.Write("model.safetensors", model_.HuggingFaceTensors().File());
      folder_.Write("config.json", wrapper.dump());
      EXPECT_THAT(Error(), HasSubstr("is missing")) << "told to be there, it must be";
    }
  }
}

TEST_F(WeightsTest, TheSameWeightsInBothLayoutsGiveTheSameLogits) {
  const TinyModel even;
  TinyModel odd;  // no size is a multiple of a vector register
  odd.vocab = 37;
  odd.hidden = 21;
  odd.heads = 3;
  odd.kv_heads = 1;
  odd.head_dim = 6;
  odd.intermediate = 29;
  for (const TinyModel& shape : {even, odd}) {
    model_ = shape;
    model_.window = {0, 12};
    model_.Randomise(1);
    model_.WriteMistral(folder_);
    const auto interleaved = Logits();
    std::filesystem::remove(folder_.PathOf("params.json"));

    model_.WriteHuggingFace(folder_);
    EXPECT_EQ(Load().value()->config().rotary_style, RotaryStyle::kHalfSplit);
    EXPECT_THAT(Load().value()->config().window, ElementsAre(0, 12));
    EXPECT_LT(LargestDifference(interleaved, Logits()), kReorderedTolerance);
    std::filesystem::remove(folder_.PathOf("config.json"));
  }
}

TEST_F(WeightsTest, RowOrderOfTheOtherLayoutWouldShow) {
  model_.WriteMistral(folder_);
  const auto right = Logits();
  // Half-split rows under Mistral's names: what loading with the wrong convention computes.
  TinyModel swapped = model_;
  for (auto& [name, tensor] : swapped.tensors) {
    if (!name.ends_with("wq.weight") && !name.ends_with("wk.weight")) continue;
    const TinyTensor before = tensor;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const int64_t head = row / model_.head_dim, r = row % model_.head_dim;
      const int64_t from = head * model_.head_dim + (r % 2) * (model_.head_dim / 2) + r / 2;
      std::copy_n(before.values.begin() + from * tensor.shape[1], tensor.shape[1],
                  tensor.values.begin() + row * tensor.shape[1]);
    }
  }
  swapped.WriteMistral(folder_);
  EXPECT_GT(LargestDifference(right, Logits()), 0.1);
}

TEST_F(WeightsTest, MixedDTypesWithinOnePackedMatrixAreWidenedExactly) {
  for (auto& [name, tensor] : model_.tensors) {
    for (float& value : tensor.values) value = RoundToBf16(value);
  }
  model_.WriteMistral(folder_);
  const auto all_f32 = Logits();
  for (auto& [name, tensor] : model_.tensors) {
    if (name.ends_with("wk.weight") || name.ends_with("w3.weight") || name.ends_with("norm.weight")) {
      tensor.dtype = DType::kBf16;
    }
  }
  model_.WriteMistral(folder_);
  const auto mixed = Logits();
  EXPECT_EQ(LargestDifference(all_f32, mixed), 0.0) << "bf16 parts beside f32 parts hold the same numbers";
}

TEST_F(WeightsTest, TiedEmbeddingsAreTheOutputMatrix) {
  model_.tied = true;
  model_.Randomise(2);
  model_.WriteMistral(folder_);
  const auto tied = Logits();
  TinyModel apart = model_;
  apart.tied = false;
  apart.tensors["output.weight"] = apart.tensors["tok_embeddings.weight"];
  apart.WriteMistral(folder_);
  EXPECT_EQ(LargestDifference(tied, Logits()), 0.0);
}

TEST_F(WeightsTest, ShardsWithAndWithoutAnIndexLoadTheSame) {
  model_.WriteHuggingFace(folder_);
  const auto whole = Logits();
  std::filesystem::remove(folder_.PathOf("model.safetensors"));

  SafetensorsWriter shards[2];
  json weight_map = json::object();
  int i = 0;
  SafetensorsWriter all = model_.HuggingFaceTensors();
  for (const auto& [name, entry] : all.header().items()) {
    const int shard = i++ % 2;
    const auto [begin, end] = entry["data_offsets"].get<std::pair<size_t, size_t>>();
    shards[shard].AddRaw(name, entry["dtype"], entry["shape"], all.data().substr(begin, end - begin));
    weight_map[name] = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
  }
  folder_.Write("model-00001-of-00002.safetensors", shards[0].File());
  folder_.Write("model-00002-of-00002.safetensors", shards[1].File());
  EXPECT_EQ(LargestDifference(whole, Logits()), 0.0);
  folder_.Write("model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  EXPECT_EQ(LargestDifference(whole, Logits()), 0.0);

  weight_map["lm_head.weight"] = weight_map["lm_head.weight"] == "model-00001-of-00002.safetensors"
                                     ? "model-00002-of-00002.safetensors"
                                     : "model-00001-of-00002.safetensors";
  folder_.Write("model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  EXPECT_THAT(Error(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("index")));

  std::filesystem::remove(folder_.PathOf("model.safetensors.index.json"));
  folder_.Write("model-00003-of-00002.safetensors", shards[0].File());
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("model-00001-of-00002"), HasSubstr("model-00003-of-00002"), HasSubstr("also")));

  folder_.Write("model.safetensors.index.json",
                json{{"weight_map", {{"x", "model-00009-of-00002.safetensors"}}}}.dump());
  EXPECT_THAT(Error(), HasSubstr("model-00009-of-00002.safetensors"));
}

TEST_F(WeightsTest, EveryMissingTensorIsNamedWithItsFile) {
  const TinyModel complete = model_;
  for (const auto& [name, tensor] : complete.tensors) {
    model_ = complete;
    model_.tensors.erase(name);
    model_.WriteMistral(folder_);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("consolidated.safetensors"), HasSubstr("missing")));
  }
}

TEST_F(WeightsTest, EveryMisshapenTensorIsNamedWithBothShapes) {
  const TinyModel complete = model_;
  for (const auto& [name, tensor] : complete.tensors) {
    model_ = complete;
    TinyTensor& wrong = model_.tensors[name];
    wrong.shape[0] += 1;
    wrong.values.resize(wrong.values.size() + (wrong.shape.size() == 2 ? wrong.shape[1] : 1));
    model_.WriteMistral(folder_);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("consolidated.safetensors"),
                               HasSubstr(ShapeText(wrong.shape)), HasSubstr(ShapeText(tensor.shape))));
  }
  model_ = complete;
  std::swap(model_.tensors[kWq].shape[0], model_.tensors[kWq].shape[1]);
  model_.tensors[kWq].shape.push_back(1);
  model_.WriteMistral(folder_);
  EXPECT_THAT(Error(), HasSubstr(kWq));
}

TEST_F(WeightsTest, DTypesThatWeightsCannotHaveAreNamed) {
  for (const char* dtype : {"F8_E4M3", "I8"}) {
    SafetensorsWriter writer = model_.MistralTensors();
    json& header = writer.header();
    // The last tensor by place, so that the file stays without holes.
    const std::string last = "tok_embeddings.weight";
    ASSERT_EQ(header[last]["data_offsets"][1], writer.data().size());
    const size_t begin = header[last]["data_offsets"][0];
    header[last]["dtype"] = dtype;
    header[last]["data_offsets"][1] = begin + model_.tensors[last].values.size();
    writer.data().resize(begin + model_.tensors[last].values.size());
    folder_.Write("params.json", model_.MistralParams().dump());
    folder_.Write("consolidated.safetensors", writer.File());
    EXPECT_THAT(Error(), AllOf(HasSubstr(last), HasSubstr(dtype), HasSubstr("BF16")));
  }
}

TEST_F(WeightsTest, TensorsWithAValueThatIsNotFiniteAreNamed) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const char* name : {kWq, "tok_embeddings.weight", "norm.weight"}) {
      for (const float value : {infinity, -infinity, std::nanf("")}) {
        TinyModel broken = model_;
        broken.tensors.at(name).dtype = dtype;
        broken.tensors.at(name).values.back() = value;
        broken.WriteMistral(folder_);
        EXPECT_THAT(Error(), AllOf(HasSubstr(folder_.path()), HasSubstr(name), HasSubstr("not finite")));
      }
    }
  }
}

// Large tensors are looked at by several threads; each has its part.
TEST_F(WeightsTest, AValueThatIsNotFiniteIsFoundAnywhereInALargeTensor) {
  model_.vocab = 131072;
  model_.Randomise(5);
  TinyTensor& table = model_.tensors.at("tok_embeddings.weight");
  table.dtype = DType::kBf16;
  for (size_t eighth = 0; eighth <= 8; ++eighth) {
    float& value = table.values[(table.values.size() - 1) * eighth / 8];
    const float sound = std::exchange(value, std::nanf(""));
    model_.WriteMistral(folder_);
    EXPECT_THAT(Error(), AllOf(HasSubstr("tok_embeddings.weight"), HasSubstr("not finite"))) << eighth;
    value = sound;
  }
}

TEST_F(WeightsTest, TruncatedFilesAreNamed) {
  model_.WriteMistral(folder_);
  const std::string file = model_.MistralTensors().File();
  for (const size_t bytes : {size_t{0}, size_t{7}, size_t{100}, file.size() / 2, file.size() - 1}) {
    folder_.Write("consolidated.safetensors", file.substr(0, bytes));
    EXPECT_THAT(Error(), HasSubstr("consolidated.safetensors")) << bytes;
  }
}

TEST_F(WeightsTest, UnusedTensorsWarnAndRotaryFrequenciesAreSilent) {
  model_.tensors["vision_encoder.weight"] = {{2}, {1, 2}};
  model_.tensors["layers.2.attention_norm.weight"] = {{2}, {1, 2}};
  model_.tensors["rope.freqs"] = {{2}, {1, 2}};
  model_.tensors["layers.0.attention.inner_attention.rope.inv_freq"] = {{2}, {1, 2}};
  model_.WriteMistral(folder_);
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->config().warnings,
              ElementsAre(HasSubstr("layers.2.attention_norm.weight"), HasSubstr("vision_encoder.weight")));
}

TEST_F(WeightsTest, UnusedTensorsInsideALayerAreRefused) {
  for (const char* name : {"layers.0.attention.wq.bias", "layers.1.attention.q_norm.weight",
                           "layers.1.feed_forward.w1.qscale_weight", "layers.0.feed_forward.gate.weight"}) {
    TinyModel extra = model_;
    extra.tensors[name] = {{2}, {1, 2}};
    extra.WriteMistral(folder_);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("consolidated.safetensors")));
  }
}

// Adding zeros changes nothing, which is seen by their values.
TEST_F(WeightsTest, BiasesOfZerosAreLeftOutWithAWarning) {
  model_.WriteMistral(folder_);
  const auto plain = Logits();
  const std::vector<std::string> names = {"layers.0.attention.wq.bias", "layers.1.feed_forward.w2.bias",
                                          "output.bias"};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    TinyModel extra = model_;
    for (const std::string& name : names) extra.tensors[name] = {{3}, {0.0f, -0.0f, 0.0f}, dtype};
    extra.WriteMistral(folder_);
    const auto loaded = Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT((*loaded)->config().warnings,
                ElementsAre(AllOf(HasSubstr(names[0] + " and 2 more are left out"), HasSubstr("zeros"))));
    EXPECT_EQ(Logits(), plain);
    extra.tensors[names[1]].values[2] = dtype == DType::kF32 ? 1e-30f : 1e-4f;
    extra.WriteMistral(folder_);
    EXPECT_THAT(Error(), AllOf(HasSubstr(names[1]), HasSubstr("would change the computation")));
  }
  // Of every type of the format.
  SafetensorsWriter file = model_.MistralTensors();
  file.AddRaw("layers.0.attention.wk.bias", "F64", {2}, std::string(16, '\0'));
  folder_.Write("consolidated.safetensors", file.File());
  EXPECT_TRUE(Load().ok()) << Load().status();
}

// They would round what is computed to eight bits, which is never done.
TEST_F(WeightsTest, ScalesOfActivationsAndOfKeysAndValuesAreLeftOutWithAWarning) {
  model_.WriteHuggingFace(folder_);
  const auto plain = Logits();
  const std::vector<std::string> scales = {
      "self_attn.k_scale",      "self_attn.v_scale",        "self_attn.q_scale",
      "self_attn.attn.k_scale", "self_attn.k_proj.k_scale", "self_attn.k_proj.output_scale",
      "self_attn.kv_scale",     "self_attn.v_zero_point",   "self_attn.o_proj.input_scale"};
  SafetensorsWriter file = model_.HuggingFaceTensors();
  for (const std::string& scale : scales) file.Add("model.layers.1." + scale, {}, {0.5f});
  folder_.Write("model.safetensors", file.File());
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->config().warnings,
              ElementsAre(AllOf(HasSubstr("model.layers.1.self_attn."),
                                HasSubstr("and " + std::to_string(scales.size() - 1) + " more are left out"),
                                HasSubstr("queries, keys and values are not used"))));
  EXPECT_EQ(Logits(), plain);
  // As many as there are channels are of something else.
  file.Add("model.layers.0.self_attn.q_scale", {8}, std::vector<float>(8, 0.5f));
  folder_.Write("model.safetensors", file.File());
  EXPECT_THAT(Error(), AllOf(HasSubstr("layers.0.self_attn.q_scale"), HasSubstr("would change")));

  const TempFolder native;
  TinyModel extra = model_;
  for (const char* part : {"q", "k", "v"})
    extra.tensors[std::string("layers.0.attention.") + part + "_fake_quantizer.qscale_act"] = {{}, {0.5f}};
  extra.WriteMistral(native);
  const auto opened = OpenModel(native.path(), {});
  ASSERT_TRUE(opened.ok() && opened->weight_files.ok()) << opened->weight_files.status();
  EXPECT_THAT(opened->config.warnings, ElementsAre(HasSubstr("k_fake_quantizer.qscale_act and 2 more")));
}

TEST_F(WeightsTest, WeightsOfAFormThatTheConfigDoesNotNameAreRefusedByWhatStandsBesideThem) {
  constexpr char kName[] = "model.layers.0.self_attn.q_proj.";
  const auto error = [&](const std::string& dtype, const char* scale) {
    SafetensorsWriter file = model_.HuggingFaceTensors();
    nlohmann::json& weight = file.header()[std::string(kName) + "weight"];
    const size_t begin = weight["data_offsets"][0];
    file.header()["filler"] = {
        {"dtype", "U8"}, {"shape", {1024 * 4 - 512}}, {"data_offsets", {begin + 512, begin + 4096}}};
    weight = {{"dtype", dtype}, {"shape", {32, 16}}, {"data_offsets", {begin, begin + 512}}};
    file.Add(std::string(kName) + scale, {}, {0.5f});
    folder_.Write("model.safetensors", file.File());
    return Error();
  };
  model_.WriteHuggingFace(folder_);
  EXPECT_THAT(error("U8", "weight_scale_2"),
              AllOf(HasSubstr(kName), HasSubstr("NVFP4"), HasSubstr("ModelOpt")));
  EXPECT_THAT(error("F8_E4M3", "weight_scale"),
              AllOf(HasSubstr("dtype F8_E4M3"), HasSubstr("config does not say"), HasSubstr("weight_scale")));
}

TEST_F(WeightsTest, UnusedTensorsBesideOnesThatAreUsedAreRefused) {
  for (const char* name : {"output.bias", "norm.bias", "tok_embeddings.scale"}) {
    TinyModel extra = model_;
    extra.tensors[name] = {{2}, {1, 2}};
    extra.WriteMistral(folder_);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("would change the computation")));
  }
}

TEST_F(WeightsTest, WhatIsWrongWithTheTensorsIsKnownFromTheHeaders) {
  TinyModel extra = model_;
  extra.tensors["layers.0.attention.wq.bias"] = {{2}, {1, 2}};
  extra.WriteMistral(folder_);
  const auto opened = OpenModel(folder_.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->weight_files.status().message(), HasSubstr("layers.0.attention.wq.bias"));

  const TempFolder other;
  model_.tensors["vision_encoder.weight"] = {{2}, {1, 2}};
  model_.WriteMistral(other);
  const auto warned = OpenModel(other.path(), {});
  ASSERT_TRUE(warned.ok() && warned->weight_files.ok()) << warned.status();
  EXPECT_THAT(warned->config.warnings, ElementsAre(HasSubstr("vision_encoder.weight")));
}

TEST_F(WeightsTest, ManyUnusedTensorsAreCounted) {
  for (int i = 0; i < 20; ++i) model_.tensors["extra." + std::to_string(i)] = {{1}, {1}};
  model_.WriteMistral(folder_);
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->config().warnings.size(), 9u);
  EXPECT_THAT((*loaded)->config().warnings.back(), HasSubstr("12 more"));
}

TEST_F(WeightsTest, PickledWeightsAreRefusedByName) {
  folder_.Write("params.json", model_.MistralParams().dump());
  EXPECT_THAT(Error(), AllOf(HasSubstr(folder_.path()), HasSubstr("consolidated*.safetensors")));
  folder_.Write("consolidated.00.pth", "x");
  EXPECT_THAT(Error(), AllOf(HasSubstr("consolidated.00.pth"), HasSubstr("only safetensors")));

  const TempFolder other;
  other.Write("config.json", model_.HuggingFaceConfig().dump());
  other.Write("pytorch_model.bin", "x");
  EXPECT_THAT(LoadFolder(other.path(), *backend_, {}).status().message(), HasSubstr("pytorch_model.bin"));
}

TEST_F(WeightsTest, ProgressGrowsToTheTotal) {
  model_.WriteMistral(folder_);
  int64_t last = 0, total = 0;
  int calls = 0;
  ASSERT_TRUE(Load([&](int64_t done, int64_t of) {
                EXPECT_GT(done, last);
                last = done;
                total = of;
                ++calls;
              }).ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(static_cast<size_t>(total), model_.MistralTensors().data().size());
  EXPECT_GE(calls, 10);
}

TEST_F(WeightsTest, MisalignedTensorsLoadTheSame) {
  model_.WriteMistral(folder_);
  const auto aligned = Logits();
  SafetensorsWriter writer = model_.MistralTensors();
  for (int pad = 1; pad < 4; ++pad) {
    folder_.Write("consolidated.safetensors",
                  SafetensorsWriter::FileOf(writer.header().dump() + std::string(pad, ' '), writer.data()));
    EXPECT_EQ(LargestDifference(aligned, Logits()), 0.0) << pad;
  }
}

TEST_F(WeightsTest, APackThatFailsIsOneErrorAndGivesEverythingBack) {
  model_.WriteMistral(folder_);
  for (const int32_t pack : {0, 1, 5, 9}) {  // the embedding, two in the layers, the output matrix
    CountingBackend counting(*backend_);
    counting.refused_pack = pack;
    const auto loaded = LoadFolder(folder_.path(), counting, {});
    EXPECT_EQ(loaded.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(loaded.status().message(),
                AllOf(HasSubstr("consolidated.safetensors: tensor "), HasSubstr("refused by the test")));
    EXPECT_EQ(counting.live_weights, 0);
    EXPECT_EQ(counting.live_allocations, 0);
  }
}

TEST_F(WeightsTest, AModelGivesEverythingBackAtItsEnd) {
  for (const bool tied : {false, true}) {
    model_.tied = tied;
    model_.Randomise(1);
    model_.WriteMistral(folder_);
    CountingBackend counting(*backend_);
    {
      auto loaded = LoadFolder(folder_.path(), counting, {});
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      ASSERT_TRUE((*loaded)->Reserve(8, 2, 2).ok());
      EXPECT_EQ(counting.live_weights, 4 * model_.layers + (tied ? 1 : 2));
    }
    EXPECT_EQ(counting.live_weights, 0);
    EXPECT_EQ(counting.live_allocations, 0);
  }
}

TEST_F(WeightsTest, AForwardPassIsSixOpsALayer) {
  model_.WriteMistral(folder_);
  CountingBackend counting(*backend_);
  auto loaded = LoadFolder(folder_.path(), counting, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelDriver driver(**loaded, counting, {});
  driver.Step({{driver.AddSequence(), {1, 2, 3}}});
  EXPECT_EQ(counting.embeds, 1);
  EXPECT_EQ(counting.rope_tables, 1);
  EXPECT_EQ(counting.linears, 4 * model_.layers + 1) << "and the logits";
  EXPECT_EQ(counting.rope_appends, model_.layers);
  EXPECT_EQ(counting.attentions, model_.layers);
}

// Attention and feed-forward each end by adding to the residual stream, and nothing else writes to it.
TEST_F(WeightsTest, EachBlockAddsToTheResidualStreamOnce) {
  model_.WriteMistral(folder_);
  CountingBackend counting(*backend_);
  auto loaded = LoadFolder(folder_.path(), counting, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelDriver driver(**loaded, counting, {});
  driver.Step({{driver.AddSequence(), {1, 2, 3}}});
  std::string expected = "et";
  for (int32_t layer = 0; layer < model_.layers; ++layer)
    expected +=
        "lra+"
        "l+";
  EXPECT_EQ(counting.ops, expected + "l") << "and the logits";
}

TEST_F(WeightsTest, AMixtureOfExpertsAddsToTheResidualStreamOnce) {
  model_.experts = 4;
  model_.Randomise(1);
  model_.WriteMistral(folder_);
  CountingBackend counting(*backend_);
  {
    auto loaded = LoadFolder(folder_.path(), counting, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(counting.live_weights, model_.layers * (2 + 2 * model_.experts) + 2);
    ModelDriver driver(**loaded, counting, {});
    driver.Step({{driver.AddSequence(), {1, 2, 3}}});
    std::string expected = "et";
    for (int32_t layer = 0; layer < model_.layers; ++layer) expected += "lra++";
    EXPECT_EQ(counting.ops, expected + "l") << "and the logits";
    EXPECT_EQ(counting.mixtures, model_.layers);
    EXPECT_EQ(counting.live_rows, 3) << "padding would ask for experts";
  }
  EXPECT_EQ(counting.live_weights, 0);
}

TEST_F(WeightsTest, ExpertsAreTheSameModelByEitherNamesAndAMissingOneIsNamed) {
  model_.experts = 3;
  model_.Randomise(2);
  std::vector<std::vector<std::vector<float>>> logits;
  for (const bool mistral : {true, false}) {
    const TempFolder folder;
    mistral ? model_.WriteMistral(folder) : model_.WriteHuggingFace(folder);
    auto loaded = LoadFolder(folder.path(), *backend_, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->config().architecture, "MixtralForCausalLM");
    ModelDriver driver(**loaded, *backend_, {});
    logits.push_back(driver.Step({{driver.AddSequence(), {5, 6, 7, 8}}}));
  }
  for (size_t i = 0; i < logits[0].size(); ++i) {
    for (size_t t = 0; t < logits[0][i].size(); ++t) EXPECT_NEAR(logits[0][i][t], logits[1][i][t], 1e-4);
  }
  for (const char* name :
       {"layers.1.feed_forward.experts.2.w3.weight", "layers.0.feed_forward.gate.weight"}) {
    TinyModel without = model_;
    without.tensors.erase(name);
    const TempFolder folder;
    without.WriteMistral(folder);
    EXPECT_THAT(LoadFolder(folder.path(), *backend_, {}).status().message(), testing::HasSubstr(name));
  }
  TinyModel more = model_;
  more.tensors["layers.1.feed_forward.experts.3.w1.weight"] =
      more.tensors["layers.1.feed_forward.experts.2.w1.weight"];
  const TempFolder folder;
  more.WriteMistral(folder);
  EXPECT_THAT(
      LoadFolder(folder.path(), *backend_, {}).status().message(),
      testing::HasSubstr("layers.1.feed_forward.experts.3.w1.weight is no part of this architecture"));
}

TEST(TakeSlice, NamesRowsOrColumnsOfTheWhole) {
  std::vector<float> matrix(6 * 4);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i);
  const WeightRows rows = TakeSlice(matrix.data(), DType::kF32, {"w", 6, 4, {0, 2, 5}});
  EXPECT_EQ(rows.rows, 3);
  EXPECT_EQ(rows.row_stride, 4);
  EXPECT_EQ(static_cast<const float*>(rows.data)[0], 8.0f);
  const WeightRows columns = TakeSlice(matrix.data(), DType::kF32, {"w", 6, 4, {1, 1, 3}});
  EXPECT_EQ(columns.rows, 6);
  EXPECT_EQ(columns.row_stride, 4);
  EXPECT_EQ(static_cast<const float*>(columns.data)[0], 1.0f);
}

}  // namespace
}  // namespace tramontane
