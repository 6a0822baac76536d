// moe_bench: what a mixture of experts in Mixtral's shape reads and how fast, always beside the weights of
// the experts that its rows chose, which is the least a step can read.
//
//   moe_bench [--variant NAME] [--threads N] [--layers N] [--rounds N]
//
// Three tables: bytes that the CUDA kernels read with 1, 8 and 32 rows, counted by the emulator on an eighth
// of Mixtral's widths; the CPU backend's op with as many rows on Mixtral's widths, in GB/s of the chosen
// experts' weights, of GB/s of a plain read; and decode of one sequence through N layers (1 unless asked:
// a layer takes 2.9 GB) and the logits' matrix, attention over a context left out.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "kernels/backends/cpu_backend.h"
#include "kernels/core/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_runtime.h"
#include "kernels/cuda/emulator/emulator.h"
#include "tests/kernels/moe_case.h"
#include "tests/reference/moe.h"

namespace tramontane {
namespace {

constexpr int32_t kExperts = 8, kPerToken = 2, kHidden = 4096, kIntermediate = 14336;
constexpr int32_t kQkv = 6144, kVocab = 32000;
constexpr int32_t kRows[] = {1, 8, 32};
constexpr int32_t kMostRows = 32;

struct Options {
  CpuBackendOptions backend;
  int layers = 1;
  int rounds = 5;
};

// Experts that some row chose.
int64_t Distinct(const reference::MoeLayer& layer, const std::vector<float>& x) {
  const int64_t hidden = layer.router.columns;
  reference::Matrix rows(static_cast<int64_t>(x.size()) / hidden, hidden);
  std::copy(x.begin(), x.end(), rows.data.begin());
  const reference::Matrix scores =
      reference::MoeScores(layer, reference::RmsNorm(rows, layer.norm, layer.norm_epsilon));
  std::set<int32_t> experts;
  for (int64_t row = 0; row < scores.rows; ++row) {
    const auto begin = scores.data.begin() + row * scores.columns;
    const auto chosen = reference::ChooseExperts({begin, begin + scores.columns}, layer.experts_per_token);
    experts.insert(chosen.experts.begin(), chosen.experts.end());
  }
  return static_cast<int64_t>(experts.size());
}

int64_t ExpertBytes(int64_t hidden, int64_t intermediate) { return 3 * hidden * intermediate * 2; }

// ---- bytes, on the emulator -----------------------------------------------------------------------

void PrintBytes() {
  const MoeShape shape = {.experts = kExperts,
                          .experts_per_token = kPerToken,
                          .hidden = kHidden / 8,
                          .intermediate = kIntermediate / 8,
                          .dtype = DType::kBf16};
  MoeCase of(shape, 1);
  const BackendPtr backend = cuda::MakeCudaBackend(std::make_unique<emulator::EmulatedRuntime>());
  TM_CHECK(backend->Reserve(of.Maxima(kMostRows)) == OpCode::kOk, "%s", backend->last_error());
  PackedMoe packed(of, of.layer(), *backend);
  std::printf(
      "Bytes that the CUDA kernels read of hidden %d, intermediate %d, of the chosen experts' weights:\n",
      shape.hidden, shape.intermediate);
  for (const int32_t rows : kRows) {
    const std::vector<float> x = of.RandomRows(rows, static_cast<uint32_t>(rows));
    emulator::TotalStats() = {};
    packed.Run(x, Epilogue::kAddResidual);
    const double read = static_cast<double>(emulator::TotalStats().global_read_bytes) * 1e-6;
    const int64_t distinct = Distinct(of.layer(), x);
    const double bound = static_cast<double>(distinct * ExpertBytes(shape.hidden, shape.intermediate)) * 1e-6;
    std::printf("  %2d rows, %lld experts: %7.2f of %7.2f MB: %.2f\n", rows, static_cast<long long>(distinct),
                read, bound, read / bound);
  }
}

// ---- time, on the CPU -----------------------------------------------------------------------------

std::vector<float> RandomFloats(int64_t count, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

struct Layer {
  WeightHandle qkv, out;
  std::vector<WeightHandle> gate_up, down;
  reference::MoeLayer routing;  // the router's weights, and no experts
  std::vector<float> router;
};

class CpuMoeBench {
 public:
  explicit CpuMoeBench(const Options& options)
      : options_(options),
        backend_(std::move(MakeCpuBackend(options.backend)).value()),
        pool_(backend_->info().threads),
        x_(RandomFloats(int64_t{kMostRows} * kHidden, 3, 1.0f)),
        norm_(kHidden, 1.0f),
        qkv_(int64_t{kMostRows} * kQkv),
        hidden_(x_),
        logits_(kVocab) {
    const StepMaxima maxima = {.tokens = kMostRows,
                               .logit_rows = 1,
                               .hidden = kHidden,
                               .experts = kExperts,
                               .experts_per_token = kPerToken,
                               .expert_intermediate = kIntermediate};
    TM_CHECK(backend_->Reserve(maxima) == OpCode::kOk, "%s", backend_->last_error());
    for (const float value : RandomFloats(int64_t{kIntermediate} * kHidden, 1, 0.02f)) {
      block_.push_back(FloatToBf16(value));
    }
    for (int layer = 0; layer < options.layers; ++layer) layers_.push_back(MakeLayer(layer));
    head_ = Pack(1, kVocab, kHidden);
    block_ = {};
    memory_.resize(static_cast<size_t>(kExperts) * ExpertBytes(kHidden, kIntermediate), std::byte{1});
  }

  void Run() {
    const BackendInfo& info = backend_->info();
    std::printf("\nvariant %s, %d threads; GB/s of the chosen experts' weights, of GB/s of a plain read:\n",
                info.variant, info.threads);
    for (const int32_t rows : kRows) {
      const std::vector<float> x(x_.begin(), x_.begin() + int64_t{rows} * kHidden);
      const int64_t distinct = Distinct(layers_[0].routing, x);
      Print(std::to_string(rows) + " rows, " + std::to_string(distinct) + " experts",
            distinct * ExpertBytes(kHidden, kIntermediate), [&] { Mixture(layers_[0], rows); });
    }
    const int64_t layer_bytes =
        kPerToken * ExpertBytes(kHidden, kIntermediate) + 2 * int64_t{kHidden} * (kQkv + kHidden);
    std::printf("\nDecode, %zu layers and the logits, the same:\n", layers_.size());
    Print("1 row", static_cast<int64_t>(layers_.size()) * layer_bytes + 2 * int64_t{kVocab} * kHidden,
          [this] { Decode(); });
  }

 private:
  // A weight of `parts` equal parts, each [rows, columns], all from one block of random numbers.
  WeightHandle Pack(int32_t parts, int64_t rows, int64_t columns) {
    std::vector<uint16_t> larger;  // the logits' matrix is longer than the block
    if (rows * columns > static_cast<int64_t>(block_.size())) {
      while (static_cast<int64_t>(larger.size()) < rows * columns) {
        larger.insert(larger.end(), block_.begin(), block_.end());
      }
    }
    const WeightRows part = {larger.empty() ? block_.data() : larger.data(), DType::kBf16, rows, columns};
    const WeightRows all[] = {part, part};
    const LinearSource source = {all, parts, columns,
                                 parts == 2 ? LinearLayout::kGateUp : LinearLayout::kStacked};
    WeightHandle weight;
    TM_CHECK(backend_->PackLinear(source, &weight) == OpCode::kOk, "%s", backend_->last_error());
    return weight;
  }

  Layer MakeLayer(int seed) {
    Layer layer;
    layer.qkv = Pack(1, kQkv, kHidden);
    layer.out = Pack(1, kHidden, kHidden);
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      layer.gate_up.push_back(Pack(2, kIntermediate, kHidden));
      layer.down.push_back(Pack(1, kHidden, kIntermediate));
    }
    layer.router = RandomFloats(int64_t{kExperts} * kHidden, static_cast<uint32_t>(seed + 7), 0.02f);
    layer.routing.norm.assign(kHidden, 1.0);
    layer.routing.norm_epsilon = 1e-5;
    layer.routing.router = reference::Matrix(kExperts, kHidden);
    std::copy(layer.router.begin(), layer.router.end(), layer.routing.router.data.begin());
    layer.routing.experts_per_token = kPerToken;
    return layer;
  }

  void Mixture(const Layer& layer, int32_t rows) {
    Check(backend_->Moe({.x = MakeTensor(x_.data(), DType::kF32, kMostRows, kHidden),
                         .rows = rows,
                         .norm_weight = norm_.data(),
                         .norm_epsilon = 1e-5f,
                         .router = layer.router.data(),
                         .experts = kExperts,
                         .experts_per_token = kPerToken,
                         .gate_up = layer.gate_up.data(),
                         .down = layer.down.data(),
                         .out = MakeTensor(hidden_.data(), DType::kF32, kMostRows, kHidden)}));
  }

  void Product(std::vector<float>& x, int64_t in, WeightHandle weight, std::vector<float>& out,
               int64_t columns) {
    Check(backend_->Linear({.x = MakeTensor(x.data(), DType::kF32, 1, in),
                            .rows = 1,
                            .prologue = Prologue::kRmsNorm,
                            .norm_weight = norm_.data(),
                            .norm_epsilon = 1e-5f,
                            .weight = weight,
                            .out = MakeTensor(out.data(), DType::kF32, 1, columns)}));
  }

  void Decode() {
    for (const Layer& layer : layers_) {
      Product(x_, kHidden, layer.qkv, qkv_, kQkv);
      Product(qkv_, kHidden, layer.out, hidden_, kHidden);
      Mixture(layer, 1);
    }
    Product(hidden_, kHidden, head_, logits_, kVocab);
  }

  static void Check(OpCode code) { TM_CHECK(code == OpCode::kOk, "an op failed"); }

  // The plain read goes over as much memory as all experts of a layer, as often as `bytes` asks for.
  void Print(const std::string& what, int64_t bytes, const std::function<void()>& body) {
    const auto size = static_cast<int64_t>(memory_.size());
    const std::vector<double> seconds =
        BestSeconds(options_.rounds, {body, [&] {
                                        for (int64_t done = 0; done < bytes; done += size) {
                                          ReadMemory(pool_, memory_.data(), std::min(size, bytes - done));
                                        }
                                      }});
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    std::printf("  %-20s %6.2f GB %7.2f of %7.2f GB/s: %3.0f %%\n", what.c_str(), gigabytes,
                gigabytes / seconds[0], gigabytes / seconds[1], 100.0 * seconds[1] / seconds[0]);
  }

  const Options options_;
  BackendPtr backend_;
  ThreadPool pool_;
  std::vector<float> x_, norm_, qkv_, hidden_, logits_;
  std::vector<uint16_t> block_;
  std::vector<Layer> layers_;
  WeightHandle head_;
  std::vector<std::byte> memory_;
};

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return false;
    if (flag == "--variant") {
      options.backend.variant = argv[i + 1];
    } else if (flag == "--threads") {
      options.backend.threads = std::atoi(argv[i + 1]);
    } else if (flag == "--layers") {
      options.layers = std::max(1, std::atoi(argv[i + 1]));
    } else if (flag == "--rounds") {
      options.rounds = std::max(1, std::atoi(argv[i + 1]));
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::Options options;
  if (!tramontane::Parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: moe_bench [--variant NAME] [--threads N] [--layers N] [--rounds N]\n");
    return 2;
  }
  const auto backend = tramontane::MakeCpuBackend(options.backend);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return 2;
  }
  tramontane::PrintBytes();
  tramontane::CpuMoeBench(options).Run();
  return 0;
}
