// The matrix products of a Mistral 7B layer and its head, by the number of rows.
#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "bench/gpu/random_weights.h"
#include "bench/gpu/tables.h"
#include "kernels/core/status.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/pointwise.h"
#include "server/setup/cuda_loader.h"
#include "tests/support/random_blocks.h"

namespace tramontane::gpu {
namespace {

struct Product {
  const char* name;
  int32_t in, out;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype;
};

// As the backend calls it: with more rows the norm is a kernel of its own.
cuda::SmallLinearParams ParamsOf(const Product& product, int32_t rows) {
  cuda::SmallLinearParams p{};
  p.rows = rows;
  p.in_features = product.in;
  p.out_features = product.out;
  p.x_stride = product.in;
  p.out_stride = product.epilogue == Epilogue::kSwiGlu ? product.out / 2 : product.out;
  p.epsilon = 1e-5f;
  p.prologue = rows <= cuda::kFusedNormRows ? product.prologue : Prologue::kNone;
  p.epilogue = product.epilogue;
  p.out_dtype = product.out_dtype;
  return p;
}

// GGUF's blocks, and groups of 128: AWQ's and GPTQ's have zero points.
constexpr Format kBlockFormats[] = {
    DType::kQ8_0, DType::kQ4_0,
    DType::kQ4_1, DType::kQ5_0,
    DType::kQ5_1, DType::kQ4K,
    DType::kQ5K,  DType::kQ6K,
    DType::kInt4, Format::InGroups(DType::kInt4, 7, DType::kF16, /*zero_points=*/true),
    DType::kInt8, DType::kFp8E4M3};

// Up to sixteen rows by a weight in blocks, as the backend calls it.
int LaunchOverBlocks(const Format& format, const Product& product, int32_t rows, const void* weight,
                     const void* x, void* out, cudaStream_t stream) {
  cuda::SmallLinearParams p = ParamsOf(product, rows);
  p.prologue = Prologue::kNone;
  p.weight = weight;
  p.weight_format = format;
  p.x = x;
  p.out = out;
  return cuda::LaunchSmallLinear(p, stream);
}

}  // namespace

Table SmallLinearTable(Device& device, const Progress& progress) {
  Table table;
  table.name = "Linear layers, few rows";
  table.note =
      "Our own kernel, with norm, residual or SwiGLU fused as in a step. The bound is the weight, read "
      "once, at the rate of memory; the weights rotate, so none is found in the cache.";
  const Product products[] = {
      {"qkv", 4096, 6144, Prologue::kRmsNorm, Epilogue::kNone, DType::kBf16},
      {"attention out", 4096, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16},
      {"gate and up", 4096, 28672, Prologue::kRmsNorm, Epilogue::kSwiGlu, DType::kBf16},
      {"down", 14336, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16},
      {"head", 4096, 32000, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32}};
  for (const Product& product : products) {
    const int64_t weight_bytes = int64_t{product.in} * product.out * 2;
    const int copies = device.CopiesBeyondCache(weight_bytes);
    auto* weights = static_cast<std::byte*>(device.AllocateRandom(copies * weight_bytes, 0.02f));
    for (const int32_t rows : {1, 2, 4, 8, 16}) {
      cuda::SmallLinearParams p = ParamsOf(product, rows);
      p.x = device.AllocateRandom(int64_t{rows} * product.in * 2);
      p.norm_weight = device.Upload(std::vector<float>(static_cast<size_t>(product.in), 1.0f));
      p.out = device.Allocate(int64_t{rows} * product.out * 4);
      const double seconds = device.MedianSeconds(copies, [&](int i, cudaStream_t stream) {
        p.weight = weights + i * weight_bytes;
        return cuda::LaunchSmallLinear(p, stream);
      });
      const std::string name = std::string(product.name) + ", " + std::to_string(rows);
      const Bound bound = MemoryBound(static_cast<double>(weight_bytes), device.memory_bytes_per_second());
      AddRow(table, {name, seconds, bound}, progress);
      if (p.prologue != Prologue::kRmsNorm) continue;
      cuda::RmsNormKernelParams norm{};
      norm.x = p.x;
      norm.weight = p.norm_weight;
      norm.y = device.Allocate(int64_t{rows} * product.in * 2);
      norm.x_stride = product.in;
      norm.rows = rows;
      norm.width = product.in;
      norm.epsilon = p.epsilon;
      p.prologue = Prologue::kNone;
      p.x = norm.y;
      const double apart = device.MedianSeconds(copies, [&](int i, cudaStream_t stream) {
        p.weight = weights + i * weight_bytes;
        const int error = cuda::LaunchRmsNorm(norm, stream);
        return error != 0 ? error : cuda::LaunchSmallLinear(p, stream);
      });
      AddRow(table, {name + ", norm apart", apart, bound}, progress);
    }
    device.FreeAll();
  }
  return table;
}

namespace {

constexpr int32_t kManyRows[] = {17, 24, 32, 48, 64, 96, 128, 256, 512, 2048};
constexpr int32_t kMostRows = 2048;

// Median seconds of a product: recordings of one over each weight are replayed, several before each wait.
double SecondsOfProduct(Backend& backend, std::span<const WeightHandle> weights, LinearParams params) {
  constexpr int kReplays = 8, kRounds = 9;
  const auto queue = [&] {
    for (const WeightHandle weight : weights) {
      params.weight = weight;
      TM_CHECK(backend.Linear(params) == OpCode::kOk, "%s", backend.last_error());
    }
  };
  const auto wait = [&] {
    TM_CHECK(backend.WaitFence(backend.RecordFence()) == OpCode::kOk, "%s", backend.last_error());
  };
  queue();  // a kernel is loaded when it first runs
  wait();
  RecordingHandle recording;
  TM_CHECK(backend.BeginRecording() == OpCode::kOk, "%s", backend.last_error());
  queue();
  TM_CHECK(backend.EndRecording(&recording) == OpCode::kOk, "%s", backend.last_error());
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kReplays; ++i) {
      TM_CHECK(backend.Replay(recording) == OpCode::kOk, "%s", backend.last_error());
    }
    wait();
    seconds.push_back(SecondsSince(begin) / (kReplays * static_cast<double>(weights.size())));
  }
  backend.FreeRecording(recording);
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  return seconds[kRounds / 2];
}

// Of the products here. quantised_numbers: 0 for no scratch to decode in.
StepMaxima MaximaOfManyRows(int64_t quantised_numbers) {
  return {.tokens = kMostRows,
          .sequences = 1,
          .logit_rows = 1,
          .hidden = 14336,
          .query_heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 32000,
          .context = kMostRows,
          .quantised_numbers = quantised_numbers};
}

// A product on a backend: as many copies of its weight as no cache holds, and up to kMostRows of x and of
// outputs.
class ManyRowsProduct {
 public:
  // weight_bytes: of a copy; 0: what the backend packs. feed: of `format`; null: what the source says.
  ManyRowsProduct(Device& device, Backend& backend, const Product& product, const Format& format,
                  RowFeed* feed, int64_t weight_bytes)
      : backend_(backend), product_(product) {
    const bool gate_up = product.epilogue == Epilogue::kSwiGlu;
    const WeightRows half = {
        .format = format, .rows = product.out / (gate_up ? 2 : 1), .row_stride = product.in};
    const WeightRows parts[] = {half, half};
    const LinearSource source = {.parts = parts,
                                 .part_count = gate_up ? 2 : 1,
                                 .in_features = product.in,
                                 .layout = gate_up ? LinearLayout::kGateUp : LinearLayout::kStacked,
                                 .feed = feed};
    weight_bytes_ = weight_bytes == 0 ? backend.PackedBytes(source) : weight_bytes;
    weights_.resize(static_cast<size_t>(device.CopiesBeyondCache(weight_bytes_)));
    for (WeightHandle& handle : weights_) {
      TM_CHECK(backend.PackLinear(source, &handle) == OpCode::kOk, "%s", backend.last_error());
    }
    width_ = gate_up ? product.out / 2 : product.out;
    x_ = backend.Allocate(int64_t{kMostRows} * product.in * 2);
    out_ = backend.Allocate(int64_t{kMostRows} * width_ * 2);
    const std::vector<uint16_t> numbers = RandomBf16(int64_t{kMostRows} * product.in, 1.0f, 29);
    backend.Upload(x_, numbers.data(), static_cast<int64_t>(numbers.size() * 2));
  }
  ~ManyRowsProduct() {
    for (const WeightHandle handle : weights_) backend_.FreeWeight(handle);
    backend_.Free(x_);
    backend_.Free(out_);
  }
  ManyRowsProduct(const ManyRowsProduct&) = delete;
  ManyRowsProduct& operator=(const ManyRowsProduct&) = delete;

  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t weight_numbers() const { return int64_t{product_.in} * product_.out; }
  double Seconds(int32_t rows) const {
    LinearParams params;
    params.x = MakeTensor(x_, DType::kBf16, rows, product_.in);
    params.rows = rows;
    params.epilogue = product_.epilogue;
    params.out = MakeTensor(out_, DType::kBf16, rows, width_);
    return SecondsOfProduct(backend_, weights_, params);
  }

 private:
  Backend& backend_;
  const Product product_;
  int64_t weight_bytes_ = 0;
  std::vector<WeightHandle> weights_;
  int32_t width_ = 0;
  void* x_ = nullptr;
  void* out_ = nullptr;
};

}  // namespace

Table LargeLinearTable(Device& device, const std::string& library, const Format& weight,
                       const Progress& progress) {
  const bool fp8 = weight.dtype == DType::kFp8E4M3;
  Table table;
  table.name = fp8 ? "Linear layers, many rows, fp8 by fp8" : "Linear layers, many rows";
  table.note =
      "By cuBLASLt, as the backend calls it: a plan for a family of row counts, which is narrower the fewer "
      "the rows. The bound is the weight, read once, at the rate of memory, or the products at the device's "
      "peak. By the clock of the host over recordings.";
  if (fp8) table.note += " Rows are rounded to fp8 in a launch before each; the peak is twice that of bf16.";
  auto opened = OpenCudaBackend(library, {.fp8_products = fp8 ? 1 : 0});
  if (!opened.ok()) {
    table.note = "Not measured: " + opened.status().ToString();
    return table;
  }
  const BackendPtr backend(
      new RandomWeights(*std::move(opened), 0.02f, weight,
                        [&device](const FillNormalParams& params) { device.FillNormal(params); }));
  TM_CHECK(backend->Reserve(MaximaOfManyRows(0)) == OpCode::kOk, "%s", backend->last_error());
  const Product products[] = {
      {"qkv", 4096, 6144, Prologue::kNone, Epilogue::kNone, DType::kBf16},
      {"attention out", 4096, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16},
      {"gate and up", 4096, 28672, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16},
      {"down", 14336, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16}};
  for (const Product& product : products) {
    const int64_t numbers = int64_t{product.in} * product.out, bytes = (fp8 ? 1 : 2) * numbers;
    const ManyRowsProduct of(device, *backend, product, DType::kBf16, nullptr, bytes);
    for (const int32_t rows : kManyRows) {
      const Bound memory = MemoryBound(static_cast<double>(bytes), device.memory_bytes_per_second());
      const Bound compute =
          ArithmeticBound(2.0 * rows * static_cast<double>(numbers), (fp8 ? 2 : 1) * device.peak_flops());
      AddRow(table,
             {std::string(product.name) + ", " + std::to_string(rows), of.Seconds(rows),
              Slower(memory, compute)},
             progress);
    }
  }
  if (fp8) {
    std::string said = backend->remarks();
    std::ranges::replace(said, '\n', ' ');
    table.note += " The backend says: " + said;
  }
  return table;
}

namespace {

// Some rows in blocks over and over, whichever are asked for.
class RepeatedRows final : public RowFeed {
 public:
  RepeatedRows(const Format& format, int64_t in_features)
      : row_bytes_(format.Bytes(in_features)), rows_(RandomBlocks(format, kRows, in_features, 31)) {}

  const void* Rows(int32_t, int64_t, int64_t count) override {
    while (std::ssize(rows_) < count * row_bytes_) {
      const std::vector<std::byte> some = rows_;
      rows_.insert(rows_.end(), some.begin(), some.end());
    }
    return rows_.data();
  }

 private:
  static constexpr int64_t kRows = 64;

  const int64_t row_bytes_;
  std::vector<std::byte> rows_;
};

constexpr Product kGateAndUp = {"gate and up", 4096, 28672, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16};
constexpr Product kDown = {"down", 14336, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16};

// Many rows by weights in blocks.
struct BlockProduct {
  Product product;
  Format format;
  bool tiles = true;        // and by tiles, whatever the number of rows
  int64_t slice_bytes = 0;  // of what is decoded; 0: the backend's own
};

// "q4_k, 512, decoded", of other products than gate and up their name before, of other slices their size
// behind.
std::string RowNameOf(const BlockProduct& of, int32_t rows, bool decoded) {
  std::string name = of.product.out == kGateAndUp.out ? "" : std::string(of.product.name) + ", ";
  name += FormatName(of.format) + ", " + std::to_string(rows) + (decoded ? ", decoded" : ", tiles");
  if (of.slice_bytes > 0) name += " in slices of " + std::to_string(of.slice_bytes >> 20) + " MiB";
  return name;
}

// Through a backend that decodes as soon as a scratch is there, and goes by tiles where none is reserved.
Status AddManyRows(Device& device, const std::string& library, const BlockProduct& of, Table& table,
                   const Progress& progress) {
  TM_ASSIGN_OR_RETURN(const BackendPtr backend,
                      OpenCudaBackend(library, {.least_decoded_rows = cuda::kSmallLinearRows + 1,
                                                .decoded_slice_bytes = of.slice_bytes}));
  RepeatedRows feed(of.format, of.product.in);
  const ManyRowsProduct product(device, *backend, of.product, of.format, &feed, 0);
  for (const bool decoded : {false, true}) {
    if (!decoded && !of.tiles) continue;
    const StepMaxima maxima = MaximaOfManyRows(decoded ? product.weight_numbers() : 0);
    TM_CHECK(backend->Reserve(maxima) == OpCode::kOk, "%s", backend->last_error());
    for (const int32_t rows : {32, 64, 128, 512, 2048}) {
      const Bound memory =
          MemoryBound(static_cast<double>(product.weight_bytes()), device.memory_bytes_per_second());
      const Bound compute =
          ArithmeticBound(2.0 * rows * static_cast<double>(product.weight_numbers()), device.peak_flops());
      AddRow(table, {RowNameOf(of, rows, decoded), product.Seconds(rows), Slower(memory, compute)}, progress);
    }
  }
  return Status::Ok();
}

}  // namespace

Table BlockLinearTable(Device& device, const std::string& library, const Progress& progress) {
  Table table;
  table.name = "Linear layers, weights in blocks";
  table.note =
      "The gate and up of a Mistral 7B layer, and of some formats the down, without the norm. The bound "
      "is the weight in the bits of its format, read once, at the rate of memory, or the products at the "
      "device's peak. More than 16 rows by the clock of the host over recordings, by either way whatever "
      "the backend would choose: tiles of 64 rows that decode the weight in registers, or the weight "
      "decoded to bf16 a slice at a time and multiplied by cuBLASLt.";
  for (const Format& format : kBlockFormats) {
    const int64_t weight_bytes = cuda::UnitsBytes(format, kGateAndUp.out, kGateAndUp.in);
    const int copies = device.CopiesBeyondCache(weight_bytes);
    auto* weights = static_cast<std::byte*>(device.AllocateRandom(copies * weight_bytes, 0.02f));
    for (const int32_t rows : {1, 8, 16}) {
      const void* x = device.AllocateRandom(int64_t{rows} * kGateAndUp.in * 2);
      void* out = device.Allocate(int64_t{rows} * kGateAndUp.out * 2);
      const double seconds = device.MedianSeconds(copies, [&](int i, cudaStream_t stream) {
        return LaunchOverBlocks(format, kGateAndUp, rows, weights + i * weight_bytes, x, out, stream);
      });
      const Bound memory = MemoryBound(static_cast<double>(weight_bytes), device.memory_bytes_per_second());
      AddRow(table, {FormatName(format) + ", " + std::to_string(rows), seconds, memory}, progress);
    }
    device.FreeAll();
  }
  std::vector<BlockProduct> products;
  for (const Format& format : kBlockFormats) products.push_back({kGateAndUp, format});
  for (const Format& format : {Format(DType::kQ4K), Format(DType::kFp8E4M3)})
    products.push_back({kDown, format});
  for (const int64_t mib : {16, 64, 128}) {
    for (const Product& product : {kGateAndUp, kDown})
      products.push_back({product, DType::kFp8E4M3, /*tiles=*/false, mib << 20});
  }
  for (const BlockProduct& product : products) {
    const Status measured = AddManyRows(device, library, product, table, progress);
    if (measured.ok()) continue;
    table.note += " More than 16 rows were not measured: " + measured.ToString();
    break;
  }
  return table;
}

}  // namespace tramontane::gpu
