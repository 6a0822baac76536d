// The whole engine over the CUDA backend, on the emulator or in bench/gpu_check on a GPU, against the CPU
// backend: logits of given tokens, and what requests get while pages leave windows, sequences are preempted
// and streams cancelled.
//
// Tolerance. Both read the same bf16 weights and keep bf16 keys; what differs is that activations are rounded
// to bf16, a relative error of u = 2^-9 each, uniform and independent. A layer rounds some 14 times on the
// way of an element: two norms, qkv, the rotated query, the weights P, attention's output, gate, up, their
// product, and twice the residual stream, of which those inside a branch reach it through a sum over the
// branch that passes them on as they are, up to attention, where a score's error moves the weights (factor 2
// for the models here, whose queries and keys are 1.5 wide; more where scalings make scores larger). So the
// final hidden state is off by a relative 2 sqrt(14 layers + 2) u / sqrt(3), and a logit, a sum over it with
// random signs, by as much of the spread of logits. Tens of thousands of logits stay within 5 of such
// deviations.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/request/sampling_history.h"
#include "engine/transfer/kv_transfer.h"
#include "kernels/backends/cpu_backend.h"
#include "models/decoder.h"
#include "models/memory_plan.h"
#include "tests/reference/sampling.h"
#include "tests/support/block_weights_backend.h"
#include "tests/support/counting_backend.h"
#include "tests/support/cuda_device.h"
#include "tests/support/drawn_model.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_reference.h"

namespace tramontane {
namespace {

using Logits = std::vector<std::vector<float>>;  // [tokens][vocab]

// f32 sums over the same weights, in blocks too, and no rounding of inputs.
BackendPtr MakeExactCpu() {
  for (const std::string& name : CpuVariants()) {
    if (RoundsInputs(name)) continue;
    return MakeCpuBackend({.threads = 2, .variant = name, .linear = LinearMode::kExact}).value();
  }
  return nullptr;
}

struct Loaded {
  BackendPtr backend;
  std::unique_ptr<BlockWeightsBackend> in_blocks;  // where the weights are to stand so
  std::unique_ptr<Model> model;

  Loaded(BackendPtr made, const std::string& folder, int32_t page_size, DType weights = DType::kBf16,
         DType kv_dtype = DType::kBf16)
      : backend(std::move(made)) {
    if (weights != DType::kBf16) in_blocks = std::make_unique<BlockWeightsBackend>(*backend, weights);
    Backend& into = in_blocks != nullptr ? *in_blocks : *backend;
    LoadOptions options;
    options.kv.page_size = page_size;
    options.kv.dtype = kv_dtype;
    auto loaded = LoadFolder(folder, into, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
  }
};

// A window of 16 in two layers of three, a group of 4 query heads, bf16 weights.
TinyModel WindowedModel(int32_t experts = 0, int32_t experts_per_token = 2) {
  TinyModel model;
  model.experts = experts;
  model.experts_per_token = experts_per_token;
  model.hidden = 64;
  model.layers = 3;
  model.heads = 4;
  model.kv_heads = 1;
  model.head_dim = 32;
  model.intermediate = 96;
  model.window = {16, 0, 16};
  model.Randomise(5);
  for (auto& [name, tensor] : model.tensors) tensor.dtype = DType::kBf16;
  return model;
}

// In Mistral's own files.
DrawnModel NativeModel(TinyModel model) {
  DrawnModel native;
  native.model = std::move(model);
  native.page_size = 8;
  return native;
}

// Pages of one token too, in two groups of layers.
constexpr ModelDriver::Options kRoom = {.pool_pages = 1024};

double Spread(const Logits& logits) {
  double sum = 0, squares = 0, count = 0;
  for (const std::vector<float>& row : logits) {
    for (const float logit : row) {
      sum += logit;
      squares += double{logit} * logit;
      ++count;
    }
  }
  return std::sqrt(squares / count - sum / count * (sum / count));
}

// See the head of this file.
double Tolerance(int32_t layers, double spread) {
  return 5.0 * 2 * std::sqrt(14.0 * layers + 2) * 0x1p-9 / std::sqrt(3.0) * spread;
}

int32_t Best(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}
// By how much the best leads.
double Margin(std::vector<float> logits) {
  std::nth_element(logits.begin(), logits.begin() + 1, logits.end(), std::greater<>());
  return double{logits[0]} - logits[1];
}

struct Comparison {
  double worst = 0;
  int tokens = 0, clear = 0;  // of those, whose best leads by more than twice the tolerance

  void Add(const Logits& got, const Logits& want, double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t t = 0; t < want.size(); ++t) {
      ++tokens;
      for (size_t v = 0; v < want[t].size(); ++v) {
        worst = std::max(worst, std::abs(double{got[t][v]} - want[t][v]));
        ASSERT_NEAR(got[t][v], want[t][v], tolerance) << "token " << t << " logit " << v;
      }
      if (Margin(want[t]) <= 2 * tolerance) continue;
      ++clear;
      EXPECT_EQ(Best(got[t]), Best(want[t])) << "token " << t;
    }
  }
};

// ---- logits of given tokens ---------------------------------------------------------------------

// Two sequences of random tokens on both backends at once, every logit of every step being compared.
class TeacherForcing {
 public:
  // score_growth: how much larger attention's scores are than in the models that the tolerance was made for.
  TeacherForcing(const Loaded& cuda, const Loaded& cpu, double score_growth)
      : score_growth_(score_growth),
        layers_(cpu.model->config().layers),
        vocab_(std::min(96u, static_cast<uint32_t>(cpu.model->config().vocab_size))),
        on_cuda_(*cuda.model, *cuda.backend, kRoom),
        on_cpu_(*cpu.model, *cpu.backend, kRoom) {
    for (const int sequence : {kFirst, kSecond}) {
      EXPECT_EQ(on_cuda_.AddSequence(), sequence);
      EXPECT_EQ(on_cpu_.AddSequence(), sequence);
    }
  }

  // So many tokens more of the first sequence and of the second; of none it is not in the step.
  void Step(int first, int second) {
    std::vector<ModelDriver::Row> rows;
    if (first > 0) rows.push_back({kFirst, Some(first)});
    if (second > 0) rows.push_back({kSecond, Some(second)});
    const Logits want = on_cpu_.Step(rows);
    if (tolerance_ == 0) tolerance_ = score_growth_ * Tolerance(layers_, Spread(want));
    all_.Add(on_cuda_.Step(rows), want, tolerance_);
  }

  int64_t LengthOfFirst() const { return on_cuda_.Length(kFirst); }

  void Report() const {
    std::cout << "worst difference " << all_.worst << " of " << tolerance_ << " allowed; " << all_.clear
              << " of " << all_.tokens << " tokens are clear\n";
    EXPECT_GT(all_.clear, static_cast<int>(all_.tokens / (4 * score_growth_)));
  }

 private:
  static constexpr int kFirst = 0, kSecond = 1;

  std::vector<int32_t> Some(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random_() % vocab_));
    return tokens;
  }

  const double score_growth_;
  const int32_t layers_;
  const uint32_t vocab_;
  ModelDriver on_cuda_, on_cpu_;
  std::mt19937 random_{7};
  Comparison all_;
  double tolerance_ = 0;  // of the first step's spread
};

// Chunks of every kind: whole prompts, many rows (large products), few rows, single tokens, two sequences at
// once; 60 positions roll the window of 16 far over pages of 8. Keys are not split: they are one tile.
// Over weights in blocks CUDA rounds each number once to bf16, where the CPU has its f32: as if the vector
// that a matrix is multiplied with were rounded once more, five times in a layer, which the tolerance has
// room for.
void CompareTeacherForcedLogits(const Loaded& cuda, const Loaded& cpu, double score_growth) {
  TeacherForcing both(cuda, cpu, score_growth);
  both.Step(21, 0);
  both.Step(0, 7);
  for (int64_t i = 0; i < ScaledCount(1, 0); ++i) {  // more of both kinds, where there is time
    both.Step(19, 5);
    both.Step(0, 33);
  }
  for (int64_t i = 0; i < ScaledCount(8, 2); ++i) both.Step(1, 1);
  both.Step(12, 0);
  both.Report();
}

void CompareTeacherForcedLogits(const DrawnModel& model, DType weights = DType::kBf16,
                                BackendPtr cuda_backend = MakeCudaTestBackend()) {
  const TempFolder folder;
  model.Write(folder);
  const Loaded cuda(std::move(cuda_backend), folder.path(), model.page_size, weights);
  const Loaded cpu(MakeExactCpu(), folder.path(), model.page_size, weights);
  CompareTeacherForcedLogits(cuda, cpu, model.score_growth);
}

TEST(CudaModel, TeacherForcedLogitsAgreeWithTheCpu) {
  CompareTeacherForcedLogits(NativeModel(WindowedModel()));
}

// On a device of 132 multiprocessors, where one sequence alone never fills it: a layer without a
// window splits keys as finely as it may, of one row beyond 256 and of many rows beyond 640. Three chunks of
// a prompt, its end beside a second sequence, then single tokens.
void CompareLogitsOverSplitKeys(DrawnModel model, BackendPtr cuda_backend) {
  constexpr int kChunk = 256, kEnd = 12;
  ASSERT_GE(kRoom.max_tokens, kChunk);
  model.model.context = 1024;
  // Among hundreds of keys a few rows have larger scores than any of the 60 that the tolerance was made for:
  // one logit of 51,000 is off by 6.2 deviations, whether keys are split or not. A part that is left out
  // exceeds twice as much in every step.
  model.score_growth *= 2;
  const TempFolder folder;
  model.Write(folder);
  const Loaded cuda(std::move(cuda_backend), folder.path(), model.page_size);
  const Loaded cpu(MakeExactCpu(), folder.path(), model.page_size);
  TeacherForcing both(cuda, cpu, model.score_growth);
  // Parts that a step joins, where somebody counts them.
  const auto expect_parts = [&](int first, int second, bool some) {
    const std::optional<int64_t> before = PartsJoined();
    both.Step(first, second);
    if (!before) return;
    EXPECT_EQ(*PartsJoined() > *before, some) << both.LengthOfFirst() << " keys";
  };
  expect_parts(kChunk, 0, /*some=*/false);
  expect_parts(kChunk, 0, /*some=*/false);
  expect_parts(kChunk, 0, /*some=*/true);
  expect_parts(kEnd, 5, /*some=*/true);
  for (int i = 0; i < 2; ++i) expect_parts(1, 1, /*some=*/true);
  EXPECT_GE(both.LengthOfFirst(), 770);
  both.Report();
}

// Few keys: nothing is split, and most blocks are idle.
TEST(CudaModel, TeacherForcedLogitsAgreeWithTheCpuOnALargeDevice) {
  CompareTeacherForcedLogits(NativeModel(WindowedModel()), DType::kBf16, MakeLargeCudaTestBackend());
}

TEST(CudaModel, TeacherForcedLogitsAgreeWithTheCpuWhereKeysAreSplit) {
  CompareLogitsOverSplitKeys(NativeModel(WindowedModel()), MakeLargeCudaTestBackend());
}

// Heads and pages that the kernels of sm_90a serve; the window of 16 is one page, which pages of 16 cross.
DrawnModel HopperModel(int32_t head_dim) {
  TinyModel model = WindowedModel();
  model.kv_heads = 2;
  model.head_dim = head_dim;
  model.Randomise(5);
  for (auto& [name, tensor] : model.tensors) tensor.dtype = DType::kBf16;
  DrawnModel native = NativeModel(std::move(model));
  native.page_size = 16;
  return native;
}

class CudaHopperModel : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, CudaHopperModel, testing::Values(64, 128),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(CudaHopperModel, TeacherForcedLogitsAgreeWithTheCpu) {
  const std::optional<int64_t> boxes = BoxesCopied();
  CompareTeacherForcedLogits(HopperModel(GetParam()), DType::kBf16, MakeHopperCudaTestBackend());
  if (boxes) {
    EXPECT_GT(*BoxesCopied(), *boxes) << "other kernels ran";
  }
}

// As many multiprocessors as an H200 has, for few keys: nothing is split, and most blocks are idle.
TEST(CudaHopperLargeModel, TeacherForcedLogitsAgreeWithTheCpu) {
  CompareTeacherForcedLogits(HopperModel(64), DType::kBf16, MakeHopperCudaTestBackend(132));
}

TEST(CudaHopperLargeModel, TeacherForcedLogitsAgreeWithTheCpuWhereKeysAreSplit) {
  CompareLogitsOverSplitKeys(HopperModel(64), MakeHopperCudaTestBackend(132));
}

// Every token has every expert, by shares of its own: a choice between two that score alike would be another
// one after a rounding, and rightly so; which experts are chosen is cuda_moe_test's.
TEST(CudaModel, TeacherForcedLogitsAgreeWithTheCpuOverAMixtureOfExperts) {
  CompareTeacherForcedLogits(NativeModel(WindowedModel(/*experts=*/3, /*experts_per_token=*/3)));
}

// Numbers that bf16 holds: nothing is rounded but what is over plain weights.
TEST(CudaModel, TeacherForcedLogitsOverWeightsInQ8_0AgreeWithTheCpu) {
  CompareTeacherForcedLogits(NativeModel(WindowedModel()), DType::kQ8_0);
}

// Blocks of 256: rows of that width at least.
TEST(CudaModel, TeacherForcedLogitsOverWeightsInQ4KAgreeWithTheCpu) {
  TinyModel model = WindowedModel();
  model.hidden = model.intermediate = 256;
  model.heads = 8;
  model.Randomise(5);
  for (auto& [name, tensor] : model.tensors) tensor.dtype = DType::kBf16;
  CompareTeacherForcedLogits(NativeModel(std::move(model)), DType::kQ4K);
}

// Files as users have them, in each form of quantised weights.
std::string QuantizedFolder(const std::string& form) {
  return std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/quantized/" + form;
}

class CudaQuantizedModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Forms, CudaQuantizedModel,
                         testing::Values("ct_int4", "ct_int4_zero_points", "ct_int8_packed", "ct_int8",
                                         "ct_fp8_channel", "ct_fp8_tensor", "awq", "gptq_int4", "gptq_int8",
                                         "gptq_v2_channel", "gptq_desc_act", "gptq_int8_desc_act",
                                         "gptq_desc_act_experts", "ct_actorder", "ct_actorder_tied",
                                         "fp8_blocks", "mistral_fp8"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaQuantizedModel, TeacherForcedLogitsAgreeWithTheCpu) {
  const std::string folder = QuantizedFolder(GetParam());
  const Loaded cuda(MakeCudaTestBackend(), folder, /*page_size=*/8);
  const Loaded cpu(MakeExactCpu(), folder, /*page_size=*/8);
  CompareTeacherForcedLogits(cuda, cpu, /*score_growth=*/1.0);
}

// ---- products of fp8 by fp8 ---------------------------------------------------------------------

// Logits of two sequences in chunks of many rows, of few, and of both at once.
Logits LogitsInChunks(const Loaded& loaded) {
  std::mt19937 random(7);
  const auto vocab = static_cast<uint32_t>(loaded.model->config().vocab_size);
  ModelDriver driver(*loaded.model, *loaded.backend, kRoom);
  const int first = driver.AddSequence(), second = driver.AddSequence();
  Logits all;
  const auto step = [&](int of_first, int of_second) {
    std::vector<ModelDriver::Row> rows;
    for (const auto& [sequence, count] : {std::pair(first, of_first), std::pair(second, of_second)}) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % vocab));
      if (count > 0) rows.push_back({sequence, std::move(tokens)});
    }
    for (std::vector<float>& row : driver.Step(rows)) all.push_back(std::move(row));
  };
  step(21, 0);
  step(0, 7);
  step(19, 5);
  step(0, 33);
  step(1, 1);
  return all;
}

// Root of the mean square.
double Deviation(const Logits& got, const Logits& want) {
  double squares = 0, count = 0;
  for (size_t t = 0; t < want.size(); ++t) {
    for (size_t v = 0; v < want[t].size(); ++v, ++count) {
      const double difference = double{got[t][v]} - want[t][v];
      squares += difference * difference;
    }
  }
  return std::sqrt(squares / count);
}

// Models in fp8 with a scale for each matrix, row or block; the last is of three layers.
class CudaFp8Model : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = QuantizedFolder(GetParam());
    if (GetParam() != std::string("drawn")) return;
    const auto form = std::find_if(WeightForms().begin(), WeightForms().end(),
                                   [](const WeightForm& candidate) { return candidate.fp8; });
    ASSERT_NE(form, WeightForms().end());
    TinyModel model = WindowedModel();
    for (auto& [name, tensor] : model.tensors) tensor.dtype = form->plain;
    path_ = WriteInForm(NativeModel(std::move(model)), *form, /*seed=*/5, folder_);
  }
  Loaded On(BackendPtr backend) const { return {std::move(backend), path_, /*page_size=*/8}; }

  const TempFolder folder_;
  std::string path_;
};
INSTANTIATE_TEST_SUITE_P(Forms, CudaFp8Model,
                         testing::Values("ct_fp8_channel", "ct_fp8_tensor", "mistral_fp8", "fp8_blocks",
                                         "drawn"),
                         [](const auto& info) { return std::string(info.param); });

// As at the head of this file, where a rounding to e4m3 takes the place of one to bf16: an error of up to
// 2^-4, of four numbers in a layer (the normalised rows of qkv and of gate and up, attention's output,
// SwiGLU's product). The mean of squares is held to one such deviation, since errors are not the largest
// throughout a binade; and each logit to five. That rows were rounded at all shows in more than rows in bf16
// are off.
TEST_P(CudaFp8Model, LogitsOfRowsInFp8AgreeWithTheCpuAsFarAsTheirMantissaGoes) {
  BackendPtr backend = MakeFp8CudaTestBackend(Fp8Library::kHasProducts);
  if (backend == nullptr) GTEST_SKIP() << "the device has no products of fp8 by fp8 with a scale a row";
  const Loaded cpu = On(MakeExactCpu()), in_fp8 = On(std::move(backend));
  const Logits want = LogitsInChunks(cpu), got = LogitsInChunks(in_fp8);
  const double allowed =
      2 * std::sqrt(4.0 * cpu.model->config().layers) * 0x1p-4 / std::sqrt(3.0) * Spread(want);
  const Logits exact = LogitsInChunks(On(MakeCudaTestBackend()));
  std::cout << "deviation " << Deviation(got, want) << " of " << allowed << " allowed, in bf16 "
            << Deviation(exact, want) << "\n"
            << in_fp8.backend->remarks();
  // Of down's rows two blocks of 128 have each a scale.
  const std::string said = in_fp8.backend->remarks();
  const std::string rows_in_fp8 = GetParam() == std::string("fp8_blocks") ? "3 of 4 weights"
                                  : GetParam() == std::string("drawn")    ? "12 of 12 weights"
                                                                          : "4 of 4 weights";
  EXPECT_EQ(said.substr(0, rows_in_fp8.size()), rows_in_fp8) << said;
  EXPECT_LT(Deviation(got, want), allowed);
  EXPECT_GT(Deviation(got, want), 2 * Deviation(exact, want)) << "no row was rounded";
  for (size_t t = 0; t < want.size(); ++t) {
    for (size_t v = 0; v < want[t].size(); ++v) ASSERT_NEAR(got[t][v], want[t][v], 5 * allowed);
  }
}

TEST_P(CudaFp8Model, LogitsAreThoseOfDecodedWeightsWhereTheLibraryHasNoSuchProducts) {
  BackendPtr backend = MakeFp8CudaTestBackend(Fp8Library::kRefuses);
  if (backend == nullptr) GTEST_SKIP() << "a library that has them, or a device without";
  EXPECT_EQ(LogitsInChunks(On(std::move(backend))), LogitsInChunks(On(MakeCudaTestBackend())));
}

// Types mixed as llama.cpp mixes them: Q4_0 with values in Q6_K, and a tied embedding in Q6_K.
std::string GgufOfMixedTypes() {
  constexpr int64_t kHidden = 256, kInner = 512, kKeys = 128, kVocab = 48;
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.vocab_size", kVocab);
  writer.AddUint32("llama.context_length", 256);
  writer.AddUint32("llama.embedding_length", kHidden);
  writer.AddUint32("llama.block_count", 2);
  writer.AddUint32("llama.feed_forward_length", kInner);
  writer.AddUint32("llama.attention.head_count", 4);
  writer.AddUint32("llama.attention.head_count_kv", 2);
  writer.AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.AddFloat("llama.rope.freq_base", 10000.0f);
  uint32_t seed = 0;
  const auto add = [&](const std::string& name, DType type, int64_t columns, int64_t rows) {
    const std::vector<std::byte> blocks = RandomBlocks(type, rows, columns, ++seed);
    writer.AddTensor(name, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                     type == DType::kQ4_0 ? kGgufQ4_0 : kGgufQ6K,
                     {reinterpret_cast<const char*>(blocks.data()), blocks.size()});
  };
  // Numbers in blocks are about one in size; small norms keep scores from growing with the width.
  const auto add_norm = [&](const std::string& name, float size) {
    writer.AddTensor(name, {kHidden}, std::vector<float>(kHidden, size));
  };
  add("token_embd.weight", DType::kQ6K, kHidden, kVocab);
  add_norm("output_norm.weight", 0.1f);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    add_norm(layer + "attn_norm.weight", 0.02f);
    add_norm(layer + "ffn_norm.weight", 0.02f);
    add(layer + "attn_q.weight", DType::kQ4_0, kHidden, kHidden);
    add(layer + "attn_k.weight", DType::kQ4_0, kHidden, kKeys);
    add(layer + "attn_v.weight", DType::kQ6K, kHidden, kKeys);
    add(layer + "attn_output.weight", DType::kQ4_0, kHidden, kHidden);
    add(layer + "ffn_gate.weight", DType::kQ4_0, kHidden, kInner);
    add(layer + "ffn_up.weight", DType::kQ4_0, kHidden, kInner);
    add(layer + "ffn_down.weight", DType::kQ6K, kInner, kHidden);
  }
  return writer.File();
}

TEST(CudaModel, TeacherForcedLogitsOverAGgufFileAgreeWithTheCpu) {
  const TempFolder folder;
  folder.Write("x.gguf", GgufOfMixedTypes());
  const Loaded cuda(MakeCudaTestBackend(), folder.PathOf("x.gguf"), /*page_size=*/8);
  const Loaded cpu(MakeExactCpu(), folder.PathOf("x.gguf"), /*page_size=*/8);
  CompareTeacherForcedLogits(cuda, cpu, /*score_growth=*/1.0);
}

// Steps of as many rows as weights are decoded for, with what that takes.
TEST(CudaModel, TheWorkspaceOfQuantisedWeightsIsPlannedToTheByte) {
  const TempFolder folder;
  folder.Write("x.gguf", GgufOfMixedTypes());
  const PlanLimits limits = {
      .max_tokens = 200, .max_sequences = 2, .max_logit_rows = 2, .max_step_tokens = 200};
  const BackendPtr backend = MakeCudaTestBackend();
  CountingBackend counting(*backend);
  OpenedModel opened = OpenModel(folder.PathOf("x.gguf"), {}).value();
  const auto plan = PlanMemory(opened, *backend, limits, int64_t{256} << 20);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t vocab = opened.config.vocab_size;
  const KvFormat format = opened.kv_layout.format;
  const StepMaxima without = MaximaOf(opened.config, format, limits, /*quantised_numbers=*/0);
  // The largest: gate and up, [1024, 256]; a slice has room for all of it. in_features are 512 at most.
  const StepMaxima maxima = MaximaOf(opened.config, format, limits, 1024 * 256);
  EXPECT_EQ(backend->WorkspaceBytes(maxima) - backend->WorkspaceBytes(without), 2 * (1024 * 256 + 15 * 512));
  const auto model = LoadModel(std::move(opened), counting, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  counting.allocated = 0;
  ASSERT_TRUE((*model)->Reserve(limits.max_tokens, limits.max_sequences, limits.max_logit_rows).ok());
  EXPECT_EQ(counting.reserved, backend->WorkspaceBytes(maxima));
  EXPECT_EQ(plan->workspace_bytes,
            counting.reserved + counting.allocated + limits.max_logit_rows * vocab * 4);
}

// Of one kind after the other, from wherever the seed begins.
DrawnModel DrawWindowedModel(uint32_t seed, uint32_t number, const WeightForm* form = nullptr) {
  // In some draws a few scores are far larger than in the model that was looked at, and P moves more: twice
  // as much is allowed. A wrong window, pair of halves or scaling is off by the spread itself, five times
  // that.
  constexpr double kMoreThanLookedAt = 2.0;
  TinyModel sizes = WindowedModel(/*experts=*/3, /*experts_per_token=*/3);
  sizes.context = 64;
  if (form != nullptr) FitWidths(*form, &sizes);
  DrawnModel drawn = DrawModel(seed + number, seed, std::move(sizes));
  drawn.score_growth *= kMoreThanLookedAt;
  drawn.name = "TRAMONTANE_TEST_SEED=" + std::to_string(seed) + ": " + drawn.name;
  if (form != nullptr) {
    // Numbers that bf16 does not hold are rounded once: five of 19 roundings in a layer, not of 14.
    drawn.score_growth *= std::sqrt(19.0 / 14.0);
    drawn.name += std::string(", ") + form->name;
    return drawn;
  }
  for (auto& [name, tensor] : drawn.model.tensors) tensor.dtype = DType::kBf16;
  return drawn;
}

TEST(CudaModel, TeacherForcedLogitsAgreeWithTheCpuWhateverTheArchitecture) {
  const uint32_t seed = TestSeed();
  for (uint32_t number = 0; number < ScaledCount(3); ++number) {
    const DrawnModel drawn = DrawWindowedModel(seed, number);
    SCOPED_TRACE(drawn.name);
    std::cout << drawn.name << "\n";
    CompareTeacherForcedLogits(drawn);
  }
}

// A file of each form after the other, from wherever the seed begins.
TEST(CudaModel, TeacherForcedLogitsAgreeWithTheCpuWhateverTheFormOfTheWeights) {
  const uint32_t seed = TestSeed();
  for (uint32_t number = 0; number < ScaledCount(3); ++number) {
    const WeightForm& form = WeightForms()[(seed + number) % WeightForms().size()];
    const DrawnModel drawn = DrawWindowedModel(seed, number, &form);
    SCOPED_TRACE(drawn.name);
    std::cout << drawn.name << "\n";
    const TempFolder folder;
    const std::string path = WriteInForm(drawn, form, seed, folder);
    const Loaded cuda(MakeCudaTestBackend(), path, drawn.page_size);
    const Loaded cpu(MakeExactCpu(), path, drawn.page_size);
    CompareTeacherForcedLogits(cuda, cpu, drawn.score_growth);
  }
}

// ---- the engine ---------------------------------------------------------------------------------

// After bias, presence and frequency penalty.
std::vector<float> Adjusted(std::vector<float> logits, const Request& request,
                            const SamplingHistory& history) {
  for (const LogitAdjust& adjust : history.adjusts()) {
    float& logit = logits[static_cast<size_t>(adjust.token)];
    logit += adjust.bias - request.sampling.frequency_penalty * static_cast<float>(adjust.output_count);
    if (adjust.output_count > 0) logit -= request.sampling.presence_penalty;
  }
  return logits;
}

// What a greedy request was given, against the CPU fed with the same tokens. A logprob is a logit minus a
// mean of logits, so it is off by at most twice as much.
void CompareWithTheCpu(Loaded& cpu, ModelDriver& on_cpu, const Request& request, const ChoiceReading& reading,
                       double score_growth, double* tolerance, Comparison* all) {
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), reading.ids.begin(), reading.ids.end());
  const int sequence = on_cpu.AddSequence();
  Logits want = on_cpu.Step({{sequence, tokens}});
  on_cpu.EndSequence(sequence);
  if (*tolerance == 0) *tolerance = score_growth * Tolerance(cpu.model->config().layers, Spread(want));
  ASSERT_EQ(reading.logprobs.size(), reading.ids.size());
  SamplingHistory history(request, {});
  for (size_t i = 0; i < reading.ids.size(); ++i) {
    const std::vector<float>& logits = want[request.prompt.size() - 1 + i];
    const std::vector<double> logprobs = reference::LogSoftmax(logits);
    const auto compare = [&](int32_t token, float logprob) {
      const double difference = std::abs(logprob - logprobs[static_cast<size_t>(token)]);
      all->worst = std::max(all->worst, difference);
      ASSERT_LE(difference, 2 * *tolerance) << "output " << i << " token " << token;
    };
    compare(reading.ids[i], reading.logprobs[i].logprob);
    for (const TokenLogprob& top : reading.logprobs[i].top) compare(top.token, top.logprob);
    ++all->tokens;
    const std::vector<float> adjusted = Adjusted(logits, request, history);
    history.Append(reading.ids[i]);
    if (Margin(adjusted) <= 2 * *tolerance) continue;
    ++all->clear;
    EXPECT_EQ(reading.ids[i], Best(adjusted)) << "output " << i;
  }
}

void Report(const Comparison& all, double tolerance) {
  std::cout << "worst difference of a logprob " << all.worst << " of " << 2 * tolerance << " allowed; "
            << all.clear << " of " << all.tokens << " tokens are clear\n";
}

struct Manner {
  const char* name;
  int32_t steps_in_flight;
  bool recorded;  // decode steps are replayed
};
constexpr Manner kManners[] = {{"OneStepInFlight", 1, false}, {"TwoRecorded", 2, true}};

// One time with each manner, and another one with the next pair of seeds.
MovesRun MovesOf(const Manner& manner, uint32_t seed) {
  return (seed / 2 + static_cast<uint32_t>(manner.steps_in_flight)) % 2 == 0 ? MovesRun::kLate
                                                                             : MovesRun::kEarly;
}

class CudaEngine : public testing::TestWithParam<Manner> {};
INSTANTIATE_TEST_SUITE_P(Manners, CudaEngine, testing::ValuesIn(kManners),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudaEngine, GivesWhatTheCpuGivesWhileWindowsRollAndSequencesArePreempted) {
  const DrawnModel drawn = DrawWindowedModel(TestSeed(), static_cast<uint32_t>(GetParam().steps_in_flight));
  SCOPED_TRACE(drawn.name);
  const TempFolder folder;
  drawn.Write(folder);
  const KvLayout layout = OpenModel(folder.path(), {.page_size = drawn.page_size})->kv_layout;
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/1);
  options.limits.max_step_tokens = 24;  // more than 16 rows: large products too
  options.limits.page_size = drawn.page_size;
  options.limits.pool_pages =  // of the longest sequence, and a fifth of another one
      layout.PagesForSequence(options.limits.context, LeastChunk(layout, options.limits.max_step_tokens)) *
      6 / 5;
  options.limits.steps_in_flight = GetParam().steps_in_flight;
  options.recorded = GetParam().recorded;
  BackendEngine test(MakeCudaTestBackend(), folder.path(), options);

  // The first two grow together, to where the pool cannot hold both: whatever was drawn, one is preempted.
  constexpr int64_t kTokensOfTheFirst = 50;
  const int64_t outputs = ScaledCount(22, 12);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all_readers;
  for (int32_t i = 0; i < 10; ++i) {
    const int64_t prompt = 1 + 4 * i;
    Request request = MakeRequest("r" + std::to_string(i), prompt,
                                  i < 2 ? kTokensOfTheFirst - prompt : outputs, static_cast<uint32_t>(i));
    request.output.logprobs = 3;
    if (i % 3 > 0) {  // what the slots have of others, or of the step before, would show
      request.sampling.presence_penalty = 1.5f;
      request.sampling.frequency_penalty = i % 3 == 1 ? 2.0f : 0.0f;
      request.sampling.logit_bias = {{5, 3.0f}, {6, -3.0f}};
    }
    requests.push_back(request);
    readers.push_back(test.Submit(request));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all_readers.push_back(readers.back().get());
  }
  for (int step = 0; step < 12; ++step) test.Step();
  readers[2]->stream().Cancel();
  readers[7]->stream().Cancel();
  test.RunToEnd(all_readers);
  test.Step();  // a step may have run ahead
  EXPECT_GT(test.engine().Load().preemptions, 0);
  EXPECT_EQ(test.engine().Load().held_pages, 0) << "every page came back";

  Loaded cpu(MakeExactCpu(), folder.path(), drawn.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  Comparison all;
  double tolerance = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].id);
    const ChoiceReading& reading = readers[i]->choice();
    const bool cancelled = reading.end().reason == FinishReason::kCancelled;
    EXPECT_EQ(cancelled, i == 2 || i == 7);
    EXPECT_TRUE(cancelled || std::ssize(reading.ids) == *requests[i].stopping.max_tokens);
    CompareWithTheCpu(cpu, on_cpu, requests[i], reading, drawn.score_growth, &tolerance, &all);
  }
  Report(all, tolerance);
  EXPECT_GT(all.clear, static_cast<int>(all.tokens / (4 * drawn.score_growth)));
}

// Texts that a pool for one of them takes from each other, asked for again in a drawn order: what they find
// has gone to the host, or to a disk behind it, by copies that ran beside the steps of the device.
TEST_P(CudaEngine, GivesWhatTheCpuGivesWherePagesGoToATierAndComeBack) {
  const uint32_t seed = TestSeed();
  const DrawnModel drawn = DrawWindowedModel(seed, static_cast<uint32_t>(GetParam().steps_in_flight));
  const bool has_disk = (seed + static_cast<uint32_t>(GetParam().steps_in_flight)) % 2 == 0;
  const MovesRun moves = MovesOf(GetParam(), seed);
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed) + ": " + drawn.name +
               (has_disk ? ", a disk" : ", the host alone") +
               (moves == MovesRun::kLate ? ", late moves" : ", early moves"));
  const TempFolder folder, disk;
  drawn.Write(folder);
  const KvLayout layout = OpenModel(folder.path(), {.page_size = drawn.page_size})->kv_layout;
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/1);
  options.limits.max_step_tokens = 24;
  options.limits.page_size = drawn.page_size;
  options.limits.pool_pages =
      layout.PagesForSequence(options.limits.context, LeastChunk(layout, options.limits.max_step_tokens)) *
      6 / 5;
  const BackendEngine::Options without_tier = options;
  options.limits.steps_in_flight = GetParam().steps_in_flight;
  options.recorded = GetParam().recorded;
  // The host holds what one text needs, and its neighbour's end.
  options.tier = {.host_pages = has_disk ? options.limits.pool_pages : 1000,
                  .disk_pages = has_disk ? 1000 : 0,
                  .folder = disk.path()};
  BackendEngine test(MakeCudaTestBackend(moves), folder.path(), options);
  BackendEngine forgets(MakeExactCpu(), folder.path(), without_tier);

  constexpr int64_t kPrompt = 44, kOutputs = 6;
  std::vector<uint32_t> texts = {0, 1, 2, 3};
  std::mt19937 random(seed);
  Loaded cpu(MakeExactCpu(), folder.path(), drawn.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  Comparison all;
  double tolerance = 0;
  int64_t most_on_host = 0, most_on_disk = 0, found = 0, found_without_tier = 0;
  for (int round = 0; round < 2; ++round) {
    for (size_t first = 0; first < texts.size();
         first += 2) {  // two at a time, of which one may be preempted
      std::vector<Request> requests;
      std::vector<std::unique_ptr<StreamReader>> readers;
      for (const uint32_t text : {texts[first], texts[first + 1]}) {
        requests.push_back(MakeRequest("r" + std::to_string(text), kPrompt, kOutputs, text));
        requests.back().output.logprobs = 3;
        readers.push_back(test.Submit(requests.back()));
        ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
        const auto control = forgets.Submit(requests.back());
        forgets.RunToEnd({control.get()});
        found_without_tier += control->choice().end().usage.cached_tokens;
      }
      test.RunToEnd({readers[0].get(), readers[1].get()});
      for (int64_t before = -1; before != test.engine().Load().disk_kv_bytes;) {  // what it writes behind
        before = test.engine().Load().disk_kv_bytes;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        test.Step();
      }
      const EngineLoad load = test.engine().Load();
      EXPECT_EQ(load.free_pages + load.cached_pages, load.total_pages);
      most_on_host = std::max(most_on_host, load.host_kv_bytes);
      most_on_disk = std::max(most_on_disk, load.disk_kv_bytes);
      for (size_t i = 0; i < readers.size(); ++i) {
        SCOPED_TRACE(requests[i].id + " in round " + std::to_string(round));
        const ChoiceReading& reading = readers[i]->choice();
        EXPECT_EQ(reading.ids.size(), static_cast<size_t>(kOutputs));
        found += reading.end().usage.cached_tokens;
        CompareWithTheCpu(cpu, on_cpu, requests[i], reading, drawn.score_growth, &tolerance, &all);
      }
    }
    std::shuffle(texts.begin(), texts.end(), random);
  }
  Report(all, tolerance);
  EXPECT_GT(most_on_host, 0);
  EXPECT_EQ(most_on_disk > 0, has_disk);
  EXPECT_GT(found, found_without_tier);
}

// By the kernels of sm_90a: prompts of one row and of many, in chunks, then decode while windows roll.
TEST_P(CudaEngine, GivesWhatTheCpuGivesOnAHopperDevice) {
  const DrawnModel model = HopperModel(/*head_dim=*/64);
  const TempFolder folder;
  model.Write(folder);
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/64);
  options.limits.page_size = model.page_size;
  options.limits.max_step_tokens = 24;
  options.limits.steps_in_flight = GetParam().steps_in_flight;
  options.recorded = GetParam().recorded;
  BackendEngine test(MakeHopperCudaTestBackend(), folder.path(), options);
  const std::optional<int64_t> boxes = BoxesCopied();
  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all_readers;
  for (const int64_t prompt : {1, 20, 43}) {
    requests.push_back(MakeRequest("r" + std::to_string(prompt), prompt, ScaledCount(12, 6)));
    requests.back().output.logprobs = 3;
    readers.push_back(test.Submit(requests.back()));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all_readers.push_back(readers.back().get());
  }
  test.RunToEnd(all_readers);
  if (boxes) {
    EXPECT_GT(*BoxesCopied(), *boxes) << "other kernels ran";
  }

  Loaded cpu(MakeExactCpu(), folder.path(), model.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  Comparison all;
  double tolerance = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].id);
    CompareWithTheCpu(cpu, on_cpu, requests[i], readers[i]->choice(), model.score_growth, &tolerance, &all);
  }
  Report(all, tolerance);
  EXPECT_EQ(all.tokens, 3 * ScaledCount(12, 6));
  EXPECT_GT(all.clear, static_cast<int>(all.tokens / (4 * model.score_growth)));
}

// An older sequence sees sinks; alone it takes no kernel of sm_90a, and the younger one beside it does, step
// for step.
TEST_P(CudaEngine, ARowThatSeesSinksKeepsNobodyFromHoppersKernels) {
  const DrawnModel model = HopperModel(/*head_dim=*/64);
  const TempFolder folder;
  model.Write(folder);
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/64);
  options.limits.page_size = model.page_size;
  options.limits.steps_in_flight = GetParam().steps_in_flight;
  options.recorded = GetParam().recorded;
  BackendEngine test(MakeHopperCudaTestBackend(), folder.path(), options);
  if (!BoxesCopied()) GTEST_SKIP() << "nobody counts what kernels do on this device";
  Request with_sinks = MakeRequest("sinks", 20, 14, 7);
  with_sinks.context_policy = {.type = ContextPolicyType::kSinks, .n_ctx = 16, .n_keep = 2};
  Request plain = MakeRequest("plain", 17, 4, 8);
  plain.output.logprobs = 3;
  // Boxes of a step: what is in flight is done when the one behind it is collected.
  const auto boxes_of_steps = [&](int steps) {
    const int64_t before = *BoxesCopied();
    for (int step = 0; step < steps; ++step) EXPECT_TRUE(test.Step());
    return *BoxesCopied() - before;
  };
  const auto sinks_reader = test.Submit(with_sinks);
  ASSERT_TRUE(sinks_reader->refused().ok()) << sinks_reader->refused();
  boxes_of_steps(3);
  EXPECT_EQ(boxes_of_steps(2), 0) << "it sees sinks";
  const auto plain_reader = test.Submit(plain);
  ASSERT_TRUE(plain_reader->refused().ok()) << plain_reader->refused();
  while (plain_reader->updates() == 0) {
    ASSERT_TRUE(test.Step());
    plain_reader->Poll();
  }
  EXPECT_FALSE(sinks_reader->done());
  EXPECT_GT(boxes_of_steps(1), 0) << "a decode of both";
  test.RunToEnd({sinks_reader.get(), plain_reader.get()});

  Loaded cpu(MakeExactCpu(), folder.path(), model.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  Comparison all;
  double tolerance = 0;
  CompareWithTheCpu(cpu, on_cpu, plain, plain_reader->choice(), model.score_growth, &tolerance, &all);
  EXPECT_EQ(all.tokens, 4);
}

KvPages CopyOf(const KvPages& pages, const KvLayout& layout) {
  KvPages copy;
  copy.tokens = pages.tokens;
  copy.Resize(pages.groups.size(), static_cast<int64_t>(pages.blocks()));
  const auto bytes = static_cast<size_t>(layout.page_bytes());
  for (size_t group = 0; group < pages.groups.size(); ++group) {
    for (size_t block = 0; block < pages.blocks(); ++block) {
      const KvPages::Image& image = pages.groups[group][block];
      if (image == nullptr) continue;
      copy.groups[group][block] = std::make_unique<std::byte[]>(bytes);
      std::copy_n(image.get(), bytes, copy.groups[group][block].get());
    }
  }
  return copy;
}

void RunTransfer(BackendEngine& test, const std::shared_ptr<KvTransfer>& transfer) {
  ASSERT_TRUE(test.engine().StartTransfer(transfer).ok());
  while (!transfer->done()) test.Step();
  ASSERT_TRUE(transfer->status().ok()) << transfer->status();
}

// Pages that the CPU has made, brought to the device, give what the CPU gives, and come back as they were;
// while a sequence decodes beside it.
TEST_P(CudaEngine, GoesOnFromPagesOfTheCpu) {
  const DrawnModel drawn = DrawWindowedModel(TestSeed(), 3);
  SCOPED_TRACE(drawn.name);
  const TempFolder folder;
  drawn.Write(folder);
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/400);
  options.limits.page_size = drawn.page_size;
  BackendEngine cpu_engine(MakeExactCpu(), folder.path(), options);
  Request request = MakeRequest("r", 50, 3);
  const auto asked = cpu_engine.Submit(request);
  cpu_engine.RunToEnd({asked.get()});
  // What comes after it computes a token at least.
  const CachedText text = {.tokens = {request.prompt.begin(), request.prompt.end() - 1}};
  const auto made = std::make_shared<KvTransfer>(text);
  RunTransfer(cpu_engine, made);
  const int64_t whole = 49 / drawn.page_size * drawn.page_size;
  ASSERT_EQ(made->tokens(), whole);

  options.limits.steps_in_flight = GetParam().steps_in_flight;
  options.recorded = GetParam().recorded;
  BackendEngine test(MakeCudaTestBackend(), folder.path(), options);
  const auto beside = test.Submit(MakeRequest("beside", 9, 20, 1));
  for (int step = 0; step < 4; ++step) test.Step();
  RunTransfer(test, std::make_shared<KvTransfer>(text, CopyOf(made->pages(), test.layout())));
  const auto read = std::make_shared<KvTransfer>(text);
  RunTransfer(test, read);
  ASSERT_EQ(read->tokens(), whole);
  for (size_t group = 0; group < read->pages().groups.size(); ++group) {
    for (size_t block = 0; block < read->pages().groups[group].size(); ++block) {
      const KvPages::Image& image = read->pages().groups[group][block];
      if (image == nullptr) continue;
      const KvPages::Image& was = made->pages().groups[group][block];
      ASSERT_NE(was, nullptr);
      EXPECT_TRUE(std::equal(image.get(), image.get() + test.layout().page_bytes(), was.get()))
          << "group " << group << " block " << block;
    }
  }
  request.output.logprobs = 3;
  request.stopping.max_tokens = 8;
  const auto goes_on = test.Submit(request);
  test.RunToEnd({beside.get(), goes_on.get()});
  EXPECT_EQ(goes_on->choice().end().usage.cached_tokens, whole);
  Loaded cpu(MakeExactCpu(), folder.path(), drawn.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  Comparison all;
  double tolerance = 0;
  CompareWithTheCpu(cpu, on_cpu, request, goes_on->choice(), drawn.score_growth, &tolerance, &all);
  Report(all, tolerance);
}

BackendEngine::Options RollingOptions(const Manner& manner) {
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/48);
  options.limits.steps_in_flight = manner.steps_in_flight;
  options.recorded = manner.recorded;
  return options;
}

// What a request without an end was given, against the CPU's engine under the same policy: it scores the
// whole text as a prompt, since what a row sees follows from its position. Logits of the file's head;
// `growth` as there.
void CompareUnderAPolicy(const std::string& folder, const BackendEngine::Options& options,
                         const Request& request, const ChoiceReading& reading, double growth,
                         Comparison* all) {
  ASSERT_EQ(reading.logprobs.size(), reading.ids.size());
  Loaded model(MakeExactCpu(), folder, options.limits.page_size);
  ModelDriver driver(*model.model, *model.backend, kRoom);
  const double tolerance = growth * Tolerance(model.model->config().layers,
                                              Spread(driver.Step({{driver.AddSequence(), request.prompt}})));

  Request scored = request;
  scored.prompt.insert(scored.prompt.end(), reading.ids.begin(), reading.ids.end());
  scored.stopping.max_tokens = 1;
  scored.output.prompt_logprobs = 3;
  BackendEngine::Options of_cpu = options;
  of_cpu.limits.steps_in_flight = 1;
  of_cpu.recorded = false;
  BackendEngine cpu(MakeExactCpu(), folder, of_cpu);
  auto reader = cpu.Submit(scored);
  ASSERT_TRUE(reader->refused().ok()) << reader->refused();
  cpu.RunToEnd({reader.get()});
  const std::vector<TokenInfo>& want = reader->started().at(0).prompt_logprobs;
  ASSERT_EQ(want.size(), scored.prompt.size() - 1);  // of the second token on

  for (size_t i = 0; i < reading.ids.size(); ++i) {
    const TokenInfo& expected = want[request.prompt.size() - 1 + i];
    const double difference = std::abs(double{reading.logprobs[i].logprob} - expected.logprob);
    all->worst = std::max(all->worst, difference);
    ASSERT_LE(difference, 2 * tolerance) << "output " << i;
    ++all->tokens;
    if (expected.top[0].logprob - expected.top[1].logprob <= 2 * tolerance) continue;
    ++all->clear;
    EXPECT_EQ(reading.ids[i], expected.top[0].token) << "output " << i;
  }
  Report(*all, tolerance);
}

// How much farther logits are apart over pages of that type. Two rows whose elements differ by u of their
// size get codes a step s apart with the chance u / s, so by sqrt(u s) of it on the average instead of u:
// with s of 1/64 of a number's size (int8: max / 127), 1/8 (fp8) and 1/3 (int4: max / 7), that is 3, 8 and 13
// u, in two of the 14 roundings of a layer.
double GrowthOf(DType kv_dtype) {
  const double steps_of_u = kv_dtype == DType::kInt8 ? 3 : kv_dtype == DType::kFp8E4M3 ? 8 : 13;
  return std::sqrt((12 + 2 * steps_of_u * steps_of_u) / 14);
}

// What a choice was given, against a decoder in double precision that does to its cache what the policy says
// and rounds keys and values as pages do, and nothing else.
void CompareWithTheReference(const TinyModel& model, const Request& request, const ChoiceReading& reading,
                             DType kv_dtype, Comparison* all) {
  ASSERT_EQ(reading.logprobs.size(), reading.ids.size());
  std::vector<int32_t> text = request.prompt;
  text.insert(text.end(), reading.ids.begin(), reading.ids.end());
  const reference::ContextRule rule = ReferenceRuleOf(request.context_policy.value_or(ContextPolicy()));
  Logits want;
  for (const std::vector<double>& row : LogitsAlong(
           reference::Mistral(ReferenceWeightsOf(model), rule, ReferenceRoundingOf(kv_dtype)), text)) {
    want.emplace_back(row.begin(), row.end());
  }
  const double growth = kv_dtype == DType::kBf16 ? 1.0 : GrowthOf(kv_dtype);
  const double tolerance = growth * Tolerance(model.layers, Spread(want));
  for (size_t i = 0; i < reading.ids.size(); ++i) {
    const std::vector<float>& logits = want[request.prompt.size() - 1 + i];
    const std::vector<double> logprobs = reference::LogSoftmax(logits);
    const auto compare = [&](int32_t token, float logprob) {
      const double difference = std::abs(logprob - logprobs[static_cast<size_t>(token)]);
      all->worst = std::max(all->worst, difference);
      ASSERT_LE(difference, 2 * tolerance) << "output " << i << " token " << token;
    };
    compare(reading.ids[i], reading.logprobs[i].logprob);
    for (const TokenLogprob& top : reading.logprobs[i].top) compare(top.token, top.logprob);
    ++all->tokens;
    if (Margin(logits) <= 2 * tolerance) continue;
    ++all->clear;
    EXPECT_EQ(reading.logprobs[i].top.at(0).token, Best(logits)) << "output " << i;
    if (request.sampling.temperature == 0) {
      EXPECT_EQ(reading.ids[i], Best(logits)) << "output " << i;
    }
  }
  Report(*all, tolerance);
}

// Sinks inside windows of 16 and behind them, prompts in chunks that cross what leaves, single tokens, and
// the same prompt behind a hit.
TEST_P(CudaEngine, GivesWhatTheReferenceGivesUnderEachPolicy) {
  const TinyModel model = WindowedModel();
  const TempFolder folder;
  model.WriteMistral(folder);
  const std::tuple<ContextPolicy, int64_t, DType> cases[] = {
      {{.type = ContextPolicyType::kSinks, .n_ctx = 24, .n_keep = 4}, 9, DType::kBf16},
      {{.type = ContextPolicyType::kSinks, .n_ctx = 20, .n_keep = 7}, 43, DType::kInt8},
      {{.type = ContextPolicyType::kShift, .n_ctx = 24, .n_keep = 4, .n_discard = 1}, 20, DType::kBf16},
      {{.type = ContextPolicyType::kShift, .n_ctx = 22, .n_keep = 5, .n_discard = 17}, 43, DType::kBf16},
      {{.type = ContextPolicyType::kShift, .n_ctx = 24, .n_keep = 5, .n_discard = 9}, 43, DType::kInt8},
      {{.type = ContextPolicyType::kReevaluate, .n_ctx = 24, .n_keep = 4, .n_discard = 10}, 43, DType::kBf16},
      {{.type = ContextPolicyType::kReevaluate, .n_ctx = 20, .n_keep = 5, .n_discard = 3},
       9,
       DType::kFp8E4M3}};
  Comparison all;
  for (const auto& [policy, prompt, dtype] : cases) {
    SCOPED_TRACE(ContextPolicyText(policy) + " over pages of " + DTypeName(dtype));
    BackendEngine::Options options = RollingOptions(GetParam());
    options.kv_dtype = dtype;
    BackendEngine test(MakeCudaTestBackend(), folder.path(), options);
    Request request = MakeRequest("r", prompt, ScaledCount(24, 18));
    request.output.logprobs = 3;
    request.context_policy = policy;
    for (const bool behind_a_hit : {false, true}) {
      if (behind_a_hit && dtype == DType::kInt8) continue;  // it takes its time
      auto reader = test.Submit(request);
      ASSERT_TRUE(reader->refused().ok()) << reader->refused();
      test.RunToEnd({reader.get()});
      const ChoiceReading& reading = reader->choice();
      EXPECT_GT(reading.end().usage.discarded_tokens, 0);
      EXPECT_EQ(reading.end().usage.cached_tokens > 0, behind_a_hit);
      CompareWithTheReference(model, request, reading, dtype, &all);
    }
  }
  EXPECT_GT(all.clear, all.tokens / 4);
}

// What a seed draws for a storm of policies, but for the requests.
struct PolicyStormDraw {
  std::mt19937 random;  // of the requests
  DType kv_dtype = DType::kBf16;
  KvOrder kv_order = KvOrder::kHnd;
  int32_t page_size = 0;
  int64_t tier = 0;  // 1: the host; 2: a small one and a disk
};

constexpr DType kDeviceKvDTypes[] = {DType::kFp8E4M3, DType::kInt4, DType::kBf16, DType::kInt8};

PolicyStormDraw DrawPolicyStorm(uint32_t seed) {
  constexpr int32_t kPageSizes[] = {1, 4, 8, 16};
  PolicyStormDraw drawn = {.random = std::mt19937(seed)};
  const auto one_of = [&drawn](int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(drawn.random);
  };
  drawn.kv_dtype = kDeviceKvDTypes[seed % std::size(kDeviceKvDTypes)];
  drawn.kv_order = one_of(2) == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  drawn.page_size = kPageSizes[one_of(std::ssize(kPageSizes))];
  drawn.tier = one_of(3);
  return drawn;
}

// Another draw for each manner.
uint32_t SeedFor(const Manner& manner, uint32_t seed) {
  return seed + static_cast<uint32_t>(manner.steps_in_flight);
}

constexpr uint32_t kPolicySeeds[] = {5, 23};

class CudaPolicyStorm : public testing::TestWithParam<std::tuple<Manner, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Manners, CudaPolicyStorm,
                         testing::Combine(testing::ValuesIn(kManners),
                                          testing::ValuesIn(TestSeeds(kPolicySeeds))),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + SeedName(std::get<1>(info.param));
                         });

TEST(CudaPolicyStormSeeds, DrawEveryKindOfPage) {
  std::set<DType> kv_dtypes;
  std::set<KvOrder> orders;
  std::set<int32_t> page_sizes;
  std::set<int64_t> tiers;
  for (const uint32_t seed : kPolicySeeds) {
    for (const Manner& manner : kManners) {
      const PolicyStormDraw drawn = DrawPolicyStorm(SeedFor(manner, seed));
      kv_dtypes.insert(drawn.kv_dtype);
      orders.insert(drawn.kv_order);
      page_sizes.insert(drawn.page_size);
      tiers.insert(drawn.tier);
    }
  }
  EXPECT_EQ(kv_dtypes.size(), std::size(kDeviceKvDTypes));
  EXPECT_EQ(orders.size(), 2u);
  EXPECT_EQ(page_sizes, (std::set<int32_t>{1, 4, 8, 16}));
  EXPECT_EQ(tiers.size(), 3u);
}

// Requests under policies and without one, of one choice and of several, that take a tiny pool from each
// other, whose pages are of a drawn type, size and layout, with a tier behind it or none; some are cancelled,
// some asked again. What each was given is what the slow model gives of its text alone.
TEST_P(CudaPolicyStorm, GivesWhatTheReferenceGives) {
  const auto& [manner, given_seed] = GetParam();
  const uint32_t seed = SeedFor(manner, given_seed);
  PolicyStormDraw drawn = DrawPolicyStorm(seed);
  const auto number = [&drawn](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(drawn.random);
  };
  const TinyModel model = WindowedModel();  // windows of 16 and none
  const TempFolder folder, disk;
  model.WriteMistral(folder);
  BackendEngine::Options options = RollingOptions(manner);
  options.kv_dtype = drawn.kv_dtype;
  options.kv_order = drawn.kv_order;
  options.limits.page_size = drawn.page_size;
  const int64_t tier = drawn.tier;
  SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << given_seed << ", "
                                  << DTypeName(options.kv_dtype) << ", "
                                  << (options.kv_order == KvOrder::kHnd ? "hnd" : "nhd") << " pages of "
                                  << options.limits.page_size << ", tier " << tier);

  // The first two have no policy, are not cancelled, and grow together to where the pool cannot hold both.
  std::vector<Request> requests;
  for (int64_t i = 0; i < ScaledCount(10, 8); ++i) {
    const bool is_long = i < 2;
    const int64_t prompt = number(1, is_long ? 4 : 43), outputs = is_long ? 60 - prompt : number(10, 18);
    Request request = MakeRequest("r" + std::to_string(i), prompt, outputs, seed + i % 7);
    ContextPolicy policy;
    policy.type = static_cast<ContextPolicyType>((seed + i) % int64_t{kContextPolicyTypes});
    policy.n_ctx = number(12, 24);
    policy.n_keep = number(0, 6);
    const bool discards =
        policy.type == ContextPolicyType::kShift || policy.type == ContextPolicyType::kReevaluate;
    policy.n_discard = discards ? number(1, policy.n_ctx - policy.n_keep) : 0;
    request.context_policy = is_long || policy.type == ContextPolicyType::kNone ? ContextPolicy() : policy;
    if (i > 6) request.prompt = requests[static_cast<size_t>(number(0, 6))].prompt;
    request.choices = !is_long && i % 3 == 1 ? 3 : 1;
    request.sampling.temperature = request.choices > 1 ? 0.9f : 0.0f;
    request.sampling.seed = seed;
    request.output.logprobs = 3;
    requests.push_back(request);
  }
  const KvLayout layout = OpenModel(folder.path(), {.page_size = options.limits.page_size})->kv_layout;
  const int64_t ahead = LeastChunk(layout, options.limits.max_step_tokens);
  options.limits.pool_pages =  // of the longest sequence, and a little more
      layout.PagesForSequence(options.limits.context, ahead) * 21 / 20;
  for (const Request& request : requests) {
    const ContextPolicy policy = ContextPolicyOf(request, options.limits);
    if (policy.type == ContextPolicyType::kNone || policy.type == ContextPolicyType::kReevaluate) continue;
    options.limits.pool_pages = std::max(options.limits.pool_pages, PagesUnderPolicy(layout, policy, ahead));
  }
  if (tier > 0) options.tier = {.host_pages = tier == 1 ? 200 : 6, .disk_pages = tier == 1 ? 0 : 200};
  options.tier.folder = disk.path();
  BackendEngine test(MakeCudaTestBackend(MovesOf(manner, given_seed)), folder.path(), options);

  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all_readers;
  const auto step = [&] {
    test.Step();
    const EngineLoad load = test.engine().Load();
    ASSERT_EQ(load.free_pages + load.held_pages + load.cached_pages, load.total_pages);
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    readers.push_back(test.Submit(requests[i]));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all_readers.push_back(readers.back().get());
    for (int64_t steps = number(0, 2); steps > 0; --steps) step();
    if (i % 4 == 3) readers[static_cast<size_t>(number(2, static_cast<int64_t>(i)))]->stream().Cancel();
  }
  while (!test.engine().idle()) {
    step();
    std::this_thread::yield();
  }
  test.RunToEnd(all_readers);
  test.Step();  // a step may have run ahead
  EXPECT_GT(test.engine().Load().preemptions, 0);
  EXPECT_EQ(test.engine().Load().held_pages, 0);

  Comparison all;
  int whole = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t c = 0; c < requests[i].choices; ++c) {
      SCOPED_TRACE(requests[i].id + " choice " + std::to_string(c) + " under " +
                   ContextPolicyText(*requests[i].context_policy));
      const ChoiceReading& reading = readers[i]->choice(c);
      if (reading.end().reason == FinishReason::kLength) {
        ++whole;
        EXPECT_EQ(std::ssize(reading.ids), *requests[i].stopping.max_tokens);
      } else {
        EXPECT_EQ(reading.end().reason, FinishReason::kCancelled);
      }
      CompareWithTheReference(model, requests[i], reading, options.kv_dtype, &all);
    }
  }
  EXPECT_GT(whole, 6);
  const double growth = options.kv_dtype == DType::kBf16 ? 1.0 : GrowthOf(options.kv_dtype);
  EXPECT_GT(all.clear, static_cast<int>(all.tokens / (4 * growth)));
}

// Both keep keys and values so: what requests get in chunks and alone, with and without sinks.
// Branches of a prompt beside other rows, of which one sees sinks.
TEST_P(CudaEngine, ScoresCandidatesAsTheCpuDoesBesideRowsOfOtherKinds) {
  const TempFolder folder;
  WindowedModel().WriteMistral(folder);
  BackendEngine::Options options = RollingOptions(GetParam());
  options.limits.pool_pages = 400;
  BackendEngine test(MakeCudaTestBackend(), folder.path(), options);
  Request request = MakeRequest("scored", 21, 0);
  for (const int64_t tokens : {5, 1, 11}) {
    request.candidates.push_back(MakeRequest("c", tokens, 0, static_cast<uint32_t>(100 + tokens)).prompt);
  }
  Request with_sinks = MakeRequest("sinks", 43, 4, 7);
  with_sinks.output.logprobs = 3;
  with_sinks.context_policy = {.type = ContextPolicyType::kSinks, .n_ctx = 20, .n_keep = 7};
  Request plain = MakeRequest("plain", 17, 4, 8);
  plain.output.logprobs = 3;
  const auto sinks_reader = test.Submit(with_sinks);
  const auto reader = test.Submit(request);
  const auto plain_reader = test.Submit(plain);
  for (const auto* each : {&sinks_reader, &reader, &plain_reader}) {
    ASSERT_TRUE((*each)->refused().ok()) << (*each)->refused();
  }
  test.RunToEnd({sinks_reader.get(), reader.get(), plain_reader.get()});

  Comparison all;
  CompareUnderAPolicy(folder.path(), options, with_sinks, sinks_reader->choice(), 1.0, &all);
  Loaded cpu(MakeExactCpu(), folder.path(), options.limits.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  double tolerance = 0;
  CompareWithTheCpu(cpu, on_cpu, plain, plain_reader->choice(), 1.0, &tolerance, &all);
  const std::vector<TokenInfo>& scores = reader->started().at(0).prompt_logprobs;
  ASSERT_EQ(scores.size(), 17u);
  auto score = scores.begin();
  for (const std::vector<int32_t>& candidate : request.candidates) {
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), candidate.begin(), candidate.end());
    const int sequence = on_cpu.AddSequence();
    const Logits want = on_cpu.Step({{sequence, tokens}});
    on_cpu.EndSequence(sequence);
    for (size_t i = 0; i < candidate.size(); ++i, ++score) {
      EXPECT_EQ(score->token, candidate[i]);
      const double expected =
          reference::LogSoftmax(want[request.prompt.size() + i - 1])[static_cast<size_t>(candidate[i])];
      EXPECT_NEAR(score->logprob, expected, 2 * tolerance) << "token " << i << " of " << candidate.size();
    }
  }
}

TEST_P(CudaEngine, GivesWhatTheCpuGivesOverQuantisedPages) {
  const TempFolder folder;
  WindowedModel().WriteMistral(folder);
  Comparison all;
  for (const DType dtype : {DType::kInt8, DType::kInt4, DType::kFp8E4M3}) {
    SCOPED_TRACE(DTypeName(dtype));
    BackendEngine::Options options = RollingOptions(GetParam());
    options.kv_dtype = dtype;
    BackendEngine test(MakeCudaTestBackend(), folder.path(), options);
    std::vector<Request> requests = {MakeRequest("plain", 21, ScaledCount(24, 10), 1),
                                     MakeRequest("endless", 30, ScaledCount(24, 10), 2)};
    requests[1].context_policy =
        ContextPolicy{.type = ContextPolicyType::kShift, .n_ctx = 24, .n_keep = 4, .n_discard = 3};
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> both;
    for (Request& request : requests) {
      request.output.logprobs = 3;
      readers.push_back(test.Submit(request));
      ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
      both.push_back(readers.back().get());
    }
    test.RunToEnd(both);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_FALSE(readers[i]->choice().ids.empty());
      CompareUnderAPolicy(folder.path(), options, requests[i], readers[i]->choice(), GrowthOf(dtype), &all);
    }
  }
  EXPECT_GT(all.clear, all.tokens / 8);  // hardly one of int4, whose codes lie far apart
}

// A prompt in chunks, and a longer one that finds it in the cache, over pages that are decoded for the
// chunks: only so do they get to the kernels of sm_90a, which a decode over such pages does not.
TEST_P(CudaEngine, PromptsOverQuantisedPagesGoByTheKernelsOfBf16Pages) {
  const DrawnModel model = HopperModel(/*head_dim=*/64);
  const TempFolder folder;
  model.Write(folder);
  Comparison all;
  for (const DType dtype : {DType::kInt8, DType::kInt4, DType::kFp8E4M3}) {
    SCOPED_TRACE(DTypeName(dtype));
    BackendEngine::Options options = RollingOptions(GetParam());
    options.limits.page_size = model.page_size;
    options.limits.max_step_tokens = 24;
    options.kv_dtype = dtype;
    BackendEngine test(MakeHopperCudaTestBackend(), folder.path(), options);
    for (const bool behind_a_hit : {false, true}) {
      Request request = MakeRequest("r", behind_a_hit ? 55 : 36, ScaledCount(8, 4), 3);
      request.output.logprobs = 3;
      const auto before = BoxesCopied();
      const auto reader = test.Submit(request);
      ASSERT_TRUE(reader->refused().ok()) << reader->refused();
      while (reader->updates() == 0) {
        ASSERT_TRUE(test.Step());
        reader->Poll();
      }
      const auto after_the_prompt = BoxesCopied();
      test.RunToEnd({reader.get()});
      if (before) {
        EXPECT_GT(*after_the_prompt, *before) << "other kernels ran";
        EXPECT_EQ(*BoxesCopied(), *after_the_prompt) << "a decode had its pages decoded";
      }
      EXPECT_EQ(reader->choice().end().usage.cached_tokens, behind_a_hit ? 32 : 0);
      CompareUnderAPolicy(folder.path(), options, request, reader->choice(), GrowthOf(dtype), &all);
    }
  }
  EXPECT_GT(all.clear, all.tokens / 8);  // hardly one of int4, whose codes lie far apart
}

// The room for pages that are decoded is in the plan: of the longest sequence, beside a step of others.
TEST(CudaModel, TheRoomForDecodedPagesIsPlannedToTheByte) {
  const DrawnModel model = HopperModel(/*head_dim=*/64);
  const TempFolder folder;
  model.Write(folder);
  const PlanLimits limits = {
      .max_tokens = 40, .max_sequences = 2, .max_logit_rows = 2, .max_step_tokens = 40};
  const BackendPtr backend = MakeCudaTestBackend();
  int64_t workspace_of_bf16 = 0;
  for (const DType dtype : {DType::kBf16, DType::kInt8, DType::kInt4, DType::kFp8E4M3}) {
    SCOPED_TRACE(DTypeName(dtype));
    CountingBackend counting(*backend);
    OpenedModel opened = OpenModel(folder.path(), {.dtype = dtype, .page_size = 16}).value();
    const StepMaxima maxima = MaximaOf(opened.config, opened.kv_layout.format, limits, 0);
    EXPECT_EQ(maxima.quantised_pages, dtype == DType::kBf16 ? 0 : PagesFor(opened.config.context + 40, 16));
    const auto plan = PlanMemory(opened, *backend, limits, int64_t{256} << 20);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t vocab = opened.config.vocab_size;
    const auto loaded = LoadModel(std::move(opened), counting, nullptr);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    counting.allocated = 0;
    ASSERT_TRUE((*loaded)->Reserve(limits.max_tokens, limits.max_sequences, limits.max_logit_rows).ok());
    EXPECT_EQ(counting.reserved, backend->WorkspaceBytes(maxima));
    EXPECT_EQ(plan->workspace_bytes,
              counting.reserved + counting.allocated + limits.max_logit_rows * vocab * 4);
    if (dtype == DType::kBf16) workspace_of_bf16 = plan->workspace_bytes;
    EXPECT_EQ(plan->workspace_bytes > workspace_of_bf16, dtype != DType::kBf16);
  }
}

// Between two discards a row sees what the CPU is given as a fresh prompt: the tokens that are left.
TEST_P(CudaEngine, ReevaluatesWhatIsLeftAsTheCpuComputesIt) {
  constexpr int64_t kContext = 24, kKeep = 4, kDiscard = 10;
  const TempFolder folder;
  WindowedModel().WriteMistral(folder);
  BackendEngine test(MakeCudaTestBackend(), folder.path(), RollingOptions(GetParam()));
  Request request = MakeRequest("r", 20, 30);
  request.output.logprobs = 3;
  request.context_policy = ContextPolicy{
      .type = ContextPolicyType::kReevaluate, .n_ctx = kContext, .n_keep = kKeep, .n_discard = kDiscard};
  auto reader = test.Submit(request);
  ASSERT_TRUE(reader->refused().ok()) << reader->refused();
  test.RunToEnd({reader.get()});
  const ChoiceReading& reading = reader->choice();
  ASSERT_EQ(reading.ids.size(), 30u);

  Loaded cpu(MakeExactCpu(), folder.path(), RollingOptions(GetParam()).limits.page_size);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, kRoom);
  Comparison all;
  double tolerance = 0;
  std::vector<int32_t> held = request.prompt;
  int64_t discarded = 0;
  for (size_t begin = 0; begin < reading.ids.size();) {
    const auto room = static_cast<size_t>(kContext + 1) - held.size();  // the last one is one too many
    const size_t end = std::min(begin + room, reading.ids.size());
    const auto first = static_cast<std::ptrdiff_t>(begin), last = static_cast<std::ptrdiff_t>(end);
    Request fresh = request;
    fresh.prompt = held;
    ChoiceReading part;
    part.ids.assign(reading.ids.begin() + first, reading.ids.begin() + last);
    part.logprobs.assign(reading.logprobs.begin() + first, reading.logprobs.begin() + last);
    CompareWithTheCpu(cpu, on_cpu, fresh, part, 1.0, &tolerance, &all);
    held.insert(held.end(), part.ids.begin(), part.ids.end());
    if (end < reading.ids.size()) {
      held.erase(held.begin() + kKeep, held.begin() + kKeep + kDiscard);
      discarded += kDiscard;
    }
    begin = end;
  }
  EXPECT_EQ(reading.end().usage.discarded_tokens, discarded);
  EXPECT_EQ(discarded, 3 * kDiscard);
  Report(all, tolerance);
  EXPECT_GT(all.clear, all.tokens / 4);
}

// A request alone has the same batch shapes with one step in flight and with two, recorded or not, and so the
// same bits, whatever of the last token the host has to know: penalties, a token that ends it.
void CompareRecordedStepsInFlight(const TinyModel& model) {
  const TempFolder folder;
  model.WriteMistral(folder);
  const int64_t outputs = ScaledCount(30, 8);
  const auto last = static_cast<size_t>(outputs / 2 + 2);
  Request request = MakeRequest("r", 21, outputs);
  request.sampling.temperature = 0.9f;
  request.sampling.seed = 11;
  request.sampling.top_p = 0.9f;
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.frequency_penalty = 0.3f;
  request.sampling.logit_bias = {{7, 0.5f}, {11, -0.5f}};
  request.output.logprobs = 2;
  request.output.prompt_logprobs = 1;
  std::vector<ChoiceReading> readings;
  for (const int32_t steps : {1, 2}) {
    BackendEngine::Options options;
    options.limits = SmallLimits(/*pool_pages=*/48);
    options.limits.steps_in_flight = steps;
    options.recorded = steps == 2;
    BackendEngine test(MakeCudaTestBackend(), folder.path(), options);
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    ASSERT_TRUE(reader->status().ok()) << reader->status();
    readings.push_back(reader->choice());
    if (steps == 1) request.stopping.stop_token_ids = {readings[0].ids[last]};  // known on the host only
  }
  const auto ends = std::find(readings[0].ids.begin(), readings[0].ids.end(), readings[0].ids[last]);
  const auto kept = static_cast<size_t>(ends - readings[0].ids.begin()) + 1;
  ASSERT_EQ(readings[1].ids.size(), kept);
  for (size_t i = 0; i < kept; ++i) {
    EXPECT_EQ(readings[1].ids[i], readings[0].ids[i]);
    EXPECT_EQ(readings[1].logprobs[i].logprob, readings[0].logprobs[i].logprob) << i;
  }
}

TEST(CudaOverlap, ARequestAloneGivesTheSameBitsWithTwoRecordedStepsInFlight) {
  CompareRecordedStepsInFlight(WindowedModel());
}

// Experts are chosen on the device, anew each time a recorded step is replayed.
TEST(CudaOverlap, SoItDoesOverAMixtureOfExperts) {
  CompareRecordedStepsInFlight(WindowedModel(/*experts=*/8));
}

// The embedded model; a prompt longer than its window of 256, so that pages leave it. A minute without
// optimisation.
TEST(CudaOverlap, GivesWhatTheCpuGivesWithBreeze) {
#ifndef NDEBUG
  GTEST_SKIP() << "the emulator is too slow in builds without NDEBUG";
#endif
  const std::string folder = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights";
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/60);
  options.limits.page_size = 16;
  options.limits.context = 512;
  options.limits.max_step_tokens = 128;
  options.limits.steps_in_flight = 2;
  BackendEngine test(MakeCudaTestBackend(), folder, options);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all_readers;
  for (const int64_t prompt : {250, 9}) {
    Request request = MakeRequest("prompt of " + std::to_string(prompt), prompt, 32, 1);
    for (int32_t& token : request.prompt) token = 300 + token * 20;  // of the vocabulary's words
    request.output.logprobs = 3;
    requests.push_back(request);
    readers.push_back(test.Submit(request));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all_readers.push_back(readers.back().get());
  }
  test.RunToEnd(all_readers);
  Loaded cpu(MakeExactCpu(), folder, 16);
  ModelDriver on_cpu(*cpu.model, *cpu.backend, {.max_tokens = 512});
  Comparison all;
  double tolerance = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(readers[i]->choice().ids.size(), 32u);
    CompareWithTheCpu(cpu, on_cpu, requests[i], readers[i]->choice(), 1.0, &tolerance, &all);
  }
  Report(all, tolerance);
  EXPECT_GT(all.clear, all.tokens / 4);
}

}  // namespace
}  // namespace tramontane
