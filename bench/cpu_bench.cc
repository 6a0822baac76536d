// cpu_bench: how near the CPU backend comes to its bounds, as ratios measured in one run.
//
//   cpu_bench [--variant NAME] [--threads N] [--dtype bf16|f16|f32] [--rounds N] [--formats | --models]
//
// Decode (1 row) reads every weight once: its bound is the memory's read bandwidth. Prefill multiplies: its
// bound is a BLAS's sgemm on the same shapes. Both bounds are measured in turns with what is compared with
// them, best of all turns each, because a shared machine is not the same from minute to minute.
//
// Three tables: Linear at 1 row, Linear at 16 to 512 rows, and whole models (embedding, attention and logits
// included) with Breeze's weights and with random ones in the shape of a 135M model.
//
// --formats: instead, Linear over weights in each type of blocks and in groups (kernels/core/format.h), in 8
// bits and exactly, beside the same weight in bf16: 1 row against a plain read of its bytes, more rows
// against bf16.
//
// --models: the third table alone. "sleeps" are the times a thread of the process gave up its core in a
// token.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/sgemm.h"
#include "bench/turns.h"
#include "kernels/backends/cpu_backend.h"
#include "kernels/core/check.h"
#include "kernels/cpu/thread_pool.h"
#include "models/model.h"
#include "tests/support/load_folder.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

struct Options {
  CpuBackendOptions backend = {.threads = 0, .variant = "", .linear = LinearMode::kInt8};
  DType dtype = DType::kBf16;
  int rounds = 7;
  bool formats = false;
  bool models = false;
};

struct Shape {
  const char* name;
  int64_t out_features;
  int64_t in_features;
  Epilogue epilogue;
};

// A model's Linears: one layer's, how many layers, and the head.
struct ModelShape {
  const char* name;
  std::vector<Shape> layer;
  int32_t layers;
  Shape head;
};

const ModelShape kBreeze = {"breeze",
                            {{"qkv", 384, 256, Epilogue::kNone},
                             {"attention out", 256, 256, Epilogue::kAddResidual},
                             {"gate-up", 1408, 256, Epilogue::kSwiGlu},
                             {"down", 256, 704, Epilogue::kAddResidual}},
                            6,
                            {"head", 2048, 256, Epilogue::kNone}};
const ModelShape k135M = {"135M",
                          {{"qkv", 960, 576, Epilogue::kNone},
                           {"attention out", 576, 576, Epilogue::kAddResidual},
                           {"gate-up", 3072, 576, Epilogue::kSwiGlu},
                           {"down", 576, 1536, Epilogue::kAddResidual}},
                          30,
                          {"head", 49152, 576, Epilogue::kNone}};

// Weights that no cache holds.
constexpr Shape kLong = {"long", 4096, 4096, Epilogue::kNone};
constexpr int64_t kBeyondCaches = int64_t{1} << 30;
constexpr int32_t kMaxRows = 512;

// Steps of one sequence through a model on the CPU backend, whose device memory is the host's.
class OneSequence {
 public:
  OneSequence(Model& model, Backend& backend) : model_(model), backend_(backend) {
    const Status status = model.Reserve(kMaxRows, 1, 1);
    TM_CHECK(status.ok(), "%s", status.ToString().c_str());
    const int64_t pages = PagesFor(kMaxRows + 1, PageSize());
    const auto groups = static_cast<int64_t>(model.kv_layout().groups.size());
    pool_ = static_cast<std::byte*>(backend.Allocate(groups * pages * model.kv_layout().page_bytes()));
    TM_CHECK(pool_ != nullptr, "no memory");
    logits_.resize(static_cast<size_t>(model.config().vocab_size));
    page_indices_.resize(static_cast<size_t>(groups * pages));
    std::iota(page_indices_.begin(), page_indices_.end(), 0);
  }
  ~OneSequence() { backend_.Free(pool_); }
  OneSequence(const OneSequence&) = delete;
  OneSequence& operator=(const OneSequence&) = delete;

  // Tokens at [position, position + count), and the logits of the last. May be repeated.
  void Step(int32_t position, int32_t count) {
    const KvLayout& layout = model_.kv_layout();
    const int64_t pages = PagesFor(kMaxRows + 1, PageSize());
    const std::vector<int32_t> token_ids(static_cast<size_t>(count), 100);
    std::vector<int32_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), position);
    const int32_t qo_indptr[] = {0, count};
    const int32_t zero = 0;
    const int32_t kv_end = position + count;
    std::vector<std::vector<int64_t>> slots(layout.groups.size());
    std::vector<PageTableView> tables(layout.groups.size());
    for (size_t group = 0; group < tables.size(); ++group) {
      const int64_t first_page = static_cast<int64_t>(group) * pages;
      for (const int32_t at : positions) {
        slots[group].push_back(SlotOf(first_page + PageOf(at, 0, PageSize()), at, PageSize()));
      }
      tables[group] = {.page_indices = page_indices_.data() + first_page,
                       .first_entry = &zero,
                       .kv_base = &zero,
                       .kv_end = &kv_end,
                       .slots = slots[group].data()};
    }
    const ForwardBatch batch = {.tokens = count,
                                .sequences = 1,
                                .token_ids = token_ids.data(),
                                .positions = positions.data(),
                                .qo_indptr = qo_indptr,
                                .groups = tables.data()};
    const int32_t last_row = count - 1;
    const Tensor logits = MakeTensor(logits_.data(), DType::kF32, 1, static_cast<int64_t>(logits_.size()));
    TM_CHECK(model_.Forward(batch, pool_) == OpCode::kOk, "%s", backend_.last_error());
    TM_CHECK(model_.Logits(&last_row, 1, logits) == OpCode::kOk, "%s", backend_.last_error());
  }

 private:
  int32_t PageSize() const { return model_.kv_layout().format.page_size; }

  Model& model_;
  Backend& backend_;
  std::byte* pool_;
  std::vector<int32_t> page_indices_;  // [groups, pages]
  std::vector<float> logits_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        backend_(std::move(MakeCpuBackend(options.backend)).value()),
        pool_(backend_->info().threads) {
    TM_CHECK(backend_->Reserve({.tokens = kMaxRows, .hidden = 4096}) == OpCode::kOk, "%s",
             backend_->last_error());
    x_ = Random(int64_t{kMaxRows} * 4096);
    norm_weight_ = Random(4096);
    out_.resize(size_t{kMaxRows} * 49152);
    SgemmSetThreads(backend_->info().threads);
  }

  void Run() {
    PrintMachine();
    if (options_.formats) return RunFormats();
    if (!options_.models) RunLinears();
    std::printf("\nWhole models: tokens/s, of tokens/s if nothing but the bound took time.\n");
    RunModel(kBreeze, "models/breeze/weights");
    const TempFolder folder;
    Write135M(folder);
    RunModel(k135M, folder.path());
  }

 private:
  void RunLinears() {
    std::printf("\nLinear, 1 row: GB/s of weights, of GB/s that the same threads read from memory.\n");
    DecodeLong();
    for (const ModelShape* model : {&kBreeze, &k135M}) DecodeModel(*model);
    std::printf("\nLinear, more rows: GFLOP/s, of GFLOP/s of sgemm.\n");
    std::printf("  %-8s %-14s %6s %6s %5s %9s %9s %7s\n", "model", "linear", "n", "k", "rows", "ours",
                "sgemm", "ratio");
    Prefill("-", kLong);
    for (const ModelShape* model : {&kBreeze, &k135M}) {
      for (const Shape& shape : model->layer) Prefill(model->name, shape);
    }
  }

  struct Weight {
    Shape shape;
    WeightHandle handle;
    int64_t bytes;
  };

  static std::vector<float> Random(int64_t count) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform(random);
    return values;
  }

  void PrintMachine() const {
    std::string line, model = "unknown processor";
    std::ifstream cpuinfo("/proc/cpuinfo");
    while (std::getline(cpuinfo, line)) {
      if (line.rfind("model name", 0) == 0) model = line.substr(line.find(':') + 2);
    }
    const BackendInfo& info = backend_->info();
    std::printf("machine: %s, %d usable cores\nvariant: %s, weights %s, threads %d\nsgemm: %s\n",
                model.c_str(), UsableCores(), info.variant, DTypeName(options_.dtype), info.threads,
                SgemmName()[0] == '\0' ? "absent" : SgemmName());
  }

  Weight Pack(const Shape& shape) {
    const std::vector<float> floats = Random(shape.out_features * shape.in_features);
    std::vector<uint16_t> halves;  // the same as bf16 or f16
    if (options_.dtype != DType::kF32) {
      for (const float value : floats) {
        halves.push_back(options_.dtype == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value));
      }
    }
    const auto* data =
        options_.dtype == DType::kF32 ? static_cast<const void*>(floats.data()) : halves.data();
    const bool gate_up = shape.epilogue == Epilogue::kSwiGlu;
    const int64_t part_rows = gate_up ? shape.out_features / 2 : shape.out_features;
    const int64_t part_bytes = Format(options_.dtype).Bytes(part_rows * shape.in_features);
    const WeightRows parts[] = {
        {.data = data, .format = options_.dtype, .rows = part_rows, .row_stride = shape.in_features},
        {.data = static_cast<const std::byte*>(data) + part_bytes,
         .format = options_.dtype,
         .rows = part_rows,
         .row_stride = shape.in_features}};
    const LinearSource source = {.parts = parts,
                                 .part_count = gate_up ? 2 : 1,
                                 .in_features = shape.in_features,
                                 .layout = gate_up ? LinearLayout::kGateUp : LinearLayout::kStacked};
    Weight weight = {.shape = shape, .handle = {}, .bytes = backend_->PackedBytes(source)};
    TM_CHECK(backend_->PackLinear(source, &weight.handle) == OpCode::kOk, "%s", backend_->last_error());
    return weight;
  }

  void Multiply(const Weight& weight, int32_t rows) {
    const Shape& shape = weight.shape;
    const int64_t columns = shape.epilogue == Epilogue::kSwiGlu ? shape.out_features / 2 : shape.out_features;
    const LinearParams params = {
        .x = MakeTensor(x_.data(), DType::kF32, kMaxRows, shape.in_features),
        .rows = rows,
        .prologue = shape.epilogue == Epilogue::kAddResidual ? Prologue::kNone : Prologue::kRmsNorm,
        .norm_weight = norm_weight_.data(),
        .norm_epsilon = 1e-5f,
        .weight = weight.handle,
        .epilogue = shape.epilogue,
        .out = MakeTensor(out_.data(), DType::kF32, kMaxRows, columns),
    };
    TM_CHECK(backend_->Linear(params) == OpCode::kOk, "%s", backend_->last_error());
  }

  void PrintDecode(const char* name, const std::vector<Weight>& weights) {
    int64_t bytes = 0;
    for (const Weight& weight : weights) bytes += weight.bytes;
    const std::vector<double> seconds = AgainstReading(bytes, [&] {
      for (const Weight& weight : weights) Multiply(weight, 1);
    });
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    std::printf("  %-8s %8.1f MB %7.2f of %7.2f GB/s: %3.0f %%\n", name, gigabytes * 1e3,
                gigabytes / seconds[0], gigabytes / seconds[1], 100.0 * seconds[1] / seconds[0]);
  }

  // Best seconds of `body`, and of reading `bytes` from memory.
  std::vector<double> AgainstReading(int64_t bytes, const std::function<void()>& body) {
    auto* memory = static_cast<std::byte*>(backend_->Allocate(bytes));
    TM_CHECK(memory != nullptr, "no memory");
    std::memset(memory, 1, static_cast<size_t>(bytes));
    const std::vector<double> seconds =
        BestSeconds(options_.rounds, {body, [&] { ReadMemory(pool_, memory, bytes); }});
    backend_->Free(memory);
    return seconds;
  }

  void DecodeLong() {
    std::vector<Weight> weights;
    for (int64_t bytes = 0; bytes < kBeyondCaches; bytes += weights.back().bytes)
      weights.push_back(Pack(kLong));
    PrintDecode(kLong.name, weights);
    for (const Weight& weight : weights) backend_->FreeWeight(weight.handle);
  }

  // The same matrix, so often that no cache holds it.
  static std::vector<WeightHandle> PackOften(Backend& backend, const Format& format, int64_t* bytes) {
    constexpr int64_t kAllBytes = int64_t{256} << 20;
    const int64_t count = kLong.out_features * kLong.in_features;
    const std::vector<std::byte> rows = format.plain()
                                            ? std::vector<std::byte>(static_cast<size_t>(format.Bytes(count)))
                                            : RandomBlocks(format, kLong.out_features, kLong.in_features, 1);
    const WeightRows part = {rows.data(), format, kLong.out_features, kLong.in_features};
    const LinearSource source = {&part, 1, kLong.in_features, LinearLayout::kStacked};
    std::vector<WeightHandle> handles;
    for (*bytes = 0; *bytes < kAllBytes; *bytes += backend.PackedBytes(source)) {
      TM_CHECK(backend.PackLinear(source, &handles.emplace_back()) == OpCode::kOk, "%s",
               backend.last_error());
    }
    return handles;
  }

  void MultiplyOn(Backend& backend, WeightHandle weight, int32_t rows) {
    const LinearParams params = {.x = MakeTensor(x_.data(), DType::kF32, kMaxRows, kLong.in_features),
                                 .rows = rows,
                                 .prologue = Prologue::kRmsNorm,
                                 .norm_weight = norm_weight_.data(),
                                 .norm_epsilon = 1e-5f,
                                 .weight = weight,
                                 .out = MakeTensor(out_.data(), DType::kF32, kMaxRows, kLong.out_features)};
    TM_CHECK(backend.Linear(params) == OpCode::kOk, "%s", backend.last_error());
  }

  // One 4096 x 4096 weight's time as a share of what bounds it, all columns of a line in turns.
  void RunFormats() {
    CpuBackendOptions exact_options = options_.backend;
    exact_options.linear = LinearMode::kExact;
    const BackendPtr exact = std::move(MakeCpuBackend(exact_options)).value();
    TM_CHECK(exact->Reserve({.tokens = kMaxRows, .hidden = 4096}) == OpCode::kOk, "%s", exact->last_error());
    int64_t bf16_bytes = 0;
    const std::vector<WeightHandle> bf16 = PackOften(*backend_, DType::kBf16, &bf16_bytes);
    std::printf(
        "\nLinear %s %lld x %lld in blocks. 1 row: GB/s of GB/s that the same threads read; its speed "
        "over\nbf16's, in 8 bits and exactly. More rows: GFLOP/s in 8 bits, over bf16's.\n",
        kLong.name, static_cast<long long>(kLong.out_features), static_cast<long long>(kLong.in_features));
    std::printf("  %-18s %5s %7s %7s %6s %7s %7s", "format", "bits", "GB/s", "read", "share", "x bf16",
                "exact");
    constexpr int32_t kRows[] = {2, 8, 32, kMaxRows};
    for (const int32_t rows : kRows) std::printf(" %8d rows", rows);
    std::printf("\n");
    std::vector<Format> formats(std::begin(kBlockTypes), std::end(kBlockTypes));
    formats.insert(formats.end(), {DType::kInt4, Format::InGroups(DType::kInt4, 7, DType::kF16, true),
                                   DType::kInt8, DType::kFp8E4M3});
    for (const Format& format : formats) {
      int64_t bytes = 0, exact_bytes = 0;
      const std::vector<WeightHandle> weights = PackOften(*backend_, format, &bytes);
      const std::vector<WeightHandle> exactly = PackOften(*exact, format, &exact_bytes);
      auto* memory = static_cast<std::byte*>(backend_->Allocate(bytes));
      TM_CHECK(memory != nullptr, "no memory");
      std::memset(memory, 1, static_cast<size_t>(bytes));
      const std::vector<double> one_row =
          BestSeconds(options_.rounds, {[&] {
                                          for (const WeightHandle weight : weights)
                                            MultiplyOn(*backend_, weight, 1);
                                        },
                                        [&] { ReadMemory(pool_, memory, bytes); },
                                        [&] {
                                          for (const WeightHandle weight : bf16)
                                            MultiplyOn(*backend_, weight, 1);
                                        },
                                        [&] {
                                          for (const WeightHandle weight : exactly)
                                            MultiplyOn(*exact, weight, 1);
                                        }});
      backend_->Free(memory);
      const double matrices = static_cast<double>(weights.size());
      const double bf16_seconds = one_row[2] / static_cast<double>(bf16.size());
      const double gigabytes = static_cast<double>(bytes) * 1e-9;
      std::printf("  %-18s %5.2f %7.2f %7.2f %4.0f %% %7.2f %7.2f", BlockFormatId(format).c_str(),
                  8.0 * static_cast<double>(format.block_bytes) / static_cast<double>(format.block_size()),
                  gigabytes / one_row[0], gigabytes / one_row[1], 100.0 * one_row[1] / one_row[0],
                  bf16_seconds / (one_row[0] / matrices), bf16_seconds / (one_row[3] / matrices));
      for (const int32_t rows : kRows) {
        const std::vector<double> seconds =
            BestSeconds(options_.rounds, {[&] { MultiplyOn(*backend_, weights[0], rows); },
                                          [&] { MultiplyOn(*backend_, bf16[0], rows); }});
        const double gigaflop = 2e-9 * rows * static_cast<double>(kLong.out_features * kLong.in_features);
        std::printf(" %5.0f x %4.2f", gigaflop / seconds[0], seconds[1] / seconds[0]);
      }
      std::printf("\n");
      std::fflush(stdout);
      for (const WeightHandle weight : weights) backend_->FreeWeight(weight);
      for (const WeightHandle weight : exactly) exact->FreeWeight(weight);
    }
    for (const WeightHandle weight : bf16) backend_->FreeWeight(weight);
  }

  void DecodeModel(const ModelShape& model) {
    std::vector<Weight> weights;
    for (int32_t layer = 0; layer < model.layers; ++layer) {
      for (const Shape& shape : model.layer) weights.push_back(Pack(shape));
    }
    weights.push_back(Pack(model.head));
    PrintDecode(model.name, weights);
    for (const Weight& weight : weights) backend_->FreeWeight(weight.handle);
  }

  void Prefill(const char* model, const Shape& shape) {
    const Weight weight = Pack(shape);
    const std::vector<float> w = Random(shape.out_features * shape.in_features);
    for (const int32_t rows : {16, 64, kMaxRows}) {
      std::vector<std::function<void()>> bodies = {[&] { Multiply(weight, rows); }};
      if (HasSgemm())
        bodies.emplace_back([&] { Sgemm(SgemmOf(shape, rows), x_.data(), w.data(), out_.data()); });
      const std::vector<double> seconds = BestSeconds(options_.rounds, bodies);
      const double gigaflop = 2e-9 * rows * static_cast<double>(shape.out_features * shape.in_features);
      std::printf("  %-8s %-14s %6lld %6lld %5d %9.1f", model, shape.name,
                  static_cast<long long>(shape.out_features), static_cast<long long>(shape.in_features), rows,
                  gigaflop / seconds[0]);
      if (HasSgemm()) {
        std::printf(" %9.1f %6.0f %%\n", gigaflop / seconds[1], 100.0 * seconds[1] / seconds[0]);
      } else {
        std::printf(" %9s\n", "absent");
      }
    }
    backend_->FreeWeight(weight.handle);
  }

  static bool HasSgemm() { return SgemmName()[0] != '\0'; }
  static SgemmShape SgemmOf(const Shape& shape, int32_t rows) {
    return {.m = rows,
            .n = static_cast<int32_t>(shape.out_features),
            .k = static_cast<int32_t>(shape.in_features)};
  }

  static int64_t Bf16Bytes(const Shape& shape) { return 2 * shape.out_features * shape.in_features; }

  // Weights are bf16, as models are released.
  static void Write135M(const TempFolder& folder) {
    TinyModel model;
    model.vocab = 49152;
    model.hidden = 576;
    model.layers = 30;
    model.heads = 9;
    model.kv_heads = 3;
    model.head_dim = 64;
    model.intermediate = 1536;
    model.context = 2048;
    model.tied = true;
    model.Randomise(1);
    for (auto& [name, tensor] : model.tensors) tensor.dtype = DType::kBf16;
    model.WriteMistral(folder);
  }

  // Many calls in a row: their mean seconds, and how often a thread of this process gave up its core in one.
  struct InARow {
    double seconds = 0.0;
    double sleeps = 0.0;
  };
  static InARow RunInARow(const std::function<void()>& body) {
    constexpr int kCalls = 100;
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const double seconds = Seconds([&] {
      for (int i = 0; i < kCalls; ++i) body();
    });
    getrusage(RUSAGE_SELF, &after);
    return {seconds / kCalls, static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) / kCalls};
  }

  // One sequence: a prompt of kMaxRows tokens in one step, and the token after it.
  void RunModel(const ModelShape& shape, const std::string& folder) {
    auto model = LoadFolder(folder, *backend_, {.kv = {}});
    if (!model.ok()) {
      std::printf("  %-8s %s\n", shape.name, model.status().ToString().c_str());
      return;
    }
    OneSequence sequence(**model, *backend_);
    const auto prefill = [&] { sequence.Step(0, kMaxRows); };
    const auto decode = [&] { sequence.Step(kMaxRows, 1); };
    prefill();

    int64_t bytes = Bf16Bytes(shape.head);
    for (const Shape& linear : shape.layer) bytes += shape.layers * Bf16Bytes(linear);
    const std::vector<double> decoded = AgainstReading(bytes, decode);
    const InARow in_a_row = RunInARow(decode);
    std::printf(
        "  %-8s decode  %9.1f of %9.1f tokens/s: %3.0f %%; 100 in a row %.1f tokens/s, %.1f sleeps each\n",
        shape.name, 1.0 / decoded[0], 1.0 / decoded[1], 100.0 * decoded[1] / decoded[0],
        1.0 / in_a_row.seconds, in_a_row.sleeps);
    if (!HasSgemm()) {
      std::printf("  %-8s prefill %9.1f tokens/s, sgemm absent\n", shape.name,
                  kMaxRows / BestSeconds(options_.rounds, {prefill})[0]);
      return;
    }
    const std::vector<float> w = Random(3072 * 1536);
    const std::vector<double> prefilled = BestSeconds(
        options_.rounds, {prefill, [&] {
                            for (int32_t layer = 0; layer < shape.layers; ++layer) {
                              for (const Shape& linear : shape.layer)
                                Sgemm(SgemmOf(linear, kMaxRows), x_.data(), w.data(), out_.data());
                            }
                          }});
    std::printf("  %-8s prefill %9.1f of %9.1f tokens/s: %3.0f %%\n", shape.name, kMaxRows / prefilled[0],
                kMaxRows / prefilled[1], 100.0 * prefilled[1] / prefilled[0]);
  }

  Options options_;
  BackendPtr backend_;
  ThreadPool pool_;  // reads memory with as many threads
  std::vector<float> x_, norm_weight_, out_;
};

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--formats" || flag == "--models") {
      (flag == "--formats" ? options.formats : options.models) = true;
      --i;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[i + 1];
    if (flag == "--variant") {
      options.backend.variant = value;
    } else if (flag == "--threads") {
      options.backend.threads = std::atoi(value.c_str());
    } else if (flag == "--rounds") {
      options.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--dtype" && (value == "bf16" || value == "f16" || value == "f32")) {
      options.dtype = value == "bf16" ? DType::kBf16 : value == "f16" ? DType::kF16 : DType::kF32;
    } else {
      return false;
    }
  }
  return true;
}

// OpenBLAS takes its kernels by processor, or by this variable when it is loaded: start again with the
// variant's.
void ChooseSgemmCore(const std::string& variant, char** argv) {
  constexpr const char* kCore = "OPENBLAS_CORETYPE";
  if (std::getenv(kCore) != nullptr) return;
  const bool avx512 = variant.rfind("avx512", 0) == 0 || variant == "amx_bf16";
  setenv(kCore, avx512 ? "SkylakeX" : variant == "avx2" ? "Haswell" : "Nehalem", 1);
  execv("/proc/self/exe", argv);
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::Options options;
  if (!tramontane::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: cpu_bench [--variant NAME] [--threads N] [--dtype bf16|f16|f32] [--rounds N] "
                 "[--formats | --models]\n");
    return 2;
  }
  const auto backend = tramontane::MakeCpuBackend(options.backend);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return 2;
  }
  tramontane::ChooseSgemmCore((*backend)->info().variant, argv);
  tramontane::Bench(options).Run();
  return 0;
}
