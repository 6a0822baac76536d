// The CUDA backend over the emulated runtime: what it is beyond its kernels. Weights in one packed form for
// both ways of a linear layer, work lists made once a step, and steps that can be recorded: replayed over
// changed buffers they give what the step itself would give, which no step does that looks at device memory
// from the host.
#include "kernels/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/decode_weight.h"
#include "kernels/cuda/emulator/command_queue.h"
#include "kernels/cuda/emulator/emulated_runtime.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/sampling.h"
#include "tests/kernels/cuda_linear_case.h"
#include "tests/reference/attention.h"
#include "tests/support/paged_kv_fixture.h"
#include "tests/support/random_blocks.h"

namespace tramontane {
namespace {

using cuda::MakeCudaBackend;
using emulator::EmulatedRuntime;

constexpr double kUnit = 0x1p-8;  // twice the relative error of one rounding to bf16

// With its runtime in sight.
struct Device : CudaTestDevice {
  Device() : Device(new EmulatedRuntime) {}
  explicit Device(EmulatedRuntime* made, const CudaBackendOptions& options = {})
      : CudaTestDevice(MakeCudaBackend(std::unique_ptr<cuda::Runtime>(made), options)), runtime(made) {}

  EmulatedRuntime* const runtime;
};

StepMaxima SmallMaxima() {
  return {.tokens = 48,
          .sequences = 8,
          .logit_rows = 48,
          .hidden = 256,
          .query_heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .vocab = 64,
          .context = 256};
}

// ---- linear layers ------------------------------------------------------------------------------

struct LinearCase {
  const char* name;
  int32_t rows;
  int64_t in;
  int64_t part_rows;  // of each of two parts
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype = DType::kBf16;
  DType weight_dtype = DType::kBf16;
};

class CudaLinear : public testing::TestWithParam<LinearCase> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaLinear,
    testing::Values(LinearCase{"FewRows", 5, 96, 20, Prologue::kRmsNorm, Epilogue::kNone},
                    LinearCase{"FewRowsResidual", 16, 96, 20, Prologue::kNone, Epilogue::kAddResidual},
                    LinearCase{"FewRowsSwiGlu", 3, 96, 24, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                    LinearCase{"FewRowsOfAnOddWidth", 3, 72, 24, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                    LinearCase{"ManyRows", 17, 96, 20, Prologue::kRmsNorm, Epilogue::kNone},
                    LinearCase{"ManyRowsPlain", 33, 96, 20, Prologue::kNone, Epilogue::kNone},
                    LinearCase{"ManyRowsResidual", 48, 96, 20, Prologue::kNone, Epilogue::kAddResidual},
                    LinearCase{"ManyRowsSwiGlu", 48, 96, 24, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                    LinearCase{"ManyRowsSwiGluOfAnOddWidth", 20, 72, 40, Prologue::kNone, Epilogue::kSwiGlu},
                    LinearCase{"FewLogits", 2, 96, 33, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32},
                    LinearCase{"ManyLogits", 40, 96, 33, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32},
                    LinearCase{"WeightsInF32", 20, 96, 16, Prologue::kNone, Epilogue::kNone, DType::kBf16,
                               DType::kF32},
                    LinearCase{"WeightsInF16", 20, 96, 16, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16,
                               DType::kF16}),
    [](const auto& info) { return info.param.name; });

// Source memory of the case's dtype with exactly the values of `bits`, and a little added to f32 values that
// rounding to bf16 must drop.
std::vector<std::byte> WeightMemory(DType dtype, const std::vector<uint16_t>& bits) {
  std::vector<std::byte> memory(static_cast<size_t>(Format(dtype).Bytes(static_cast<int64_t>(bits.size()))));
  for (size_t i = 0; i < bits.size(); ++i) {
    const float value = Bf16ToFloat(bits[i]);
    if (dtype == DType::kF32) {
      const float nudged = value * (1.0f + 0x1p-12f);
      std::memcpy(memory.data() + 4 * i, &nudged, 4);
    } else {
      const uint16_t element = dtype == DType::kF16 ? FloatToF16(value) : bits[i];
      std::memcpy(memory.data() + 2 * i, &element, 2);
    }
  }
  return memory;
}

// once_packed: called when the weight is where it will be, and planned for.
void ExpectAsDefined(Device& device, const LinearCase& c, const std::function<void()>& once_packed = [] {}) {
  Backend& backend = *device.backend;
  ASSERT_EQ(backend.Reserve(SmallMaxima()), OpCode::kOk) << backend.last_error();
  const bool swiglu = c.epilogue == Epilogue::kSwiGlu;
  const int64_t out_features = 2 * c.part_rows;

  // Values that f16 holds exactly: bf16 of moderate size.
  const std::vector<uint16_t> weight_bits = RandomBf16(out_features * c.in, 1, 0.1f);
  const std::vector<std::byte> source_memory = WeightMemory(c.weight_dtype, weight_bits);
  const WeightRows parts[] = {{source_memory.data(), c.weight_dtype, c.part_rows, c.in},
                              {source_memory.data() + Format(c.weight_dtype).Bytes(c.part_rows * c.in),
                               c.weight_dtype, c.part_rows, c.in}};
  WeightHandle weight;
  ASSERT_EQ(
      backend.PackLinear({parts, 2, c.in, swiglu ? LinearLayout::kGateUp : LinearLayout::kStacked}, &weight),
      OpCode::kOk)
      << backend.last_error();
  once_packed();

  std::vector<float> values;
  for (const uint16_t bits : weight_bits) values.push_back(Bf16ToFloat(bits));
  ExpectLinearAgrees(device, {c.rows, c.in, c.part_rows, c.prologue, c.epilogue, c.out_dtype}, weight,
                     values);
}

TEST_P(CudaLinear, AgreesWithItsDefinition) {
  Device device;
  ExpectAsDefined(device, GetParam());
  EXPECT_STREQ(device.backend->remarks(), "");
}

// The library says so at load, or only when the very number of rows comes. Few rows it is never asked for.
TEST_P(CudaLinear, AgreesWhereTheLibraryHasNoKernel) {
  const LinearCase c = GetParam();
  Device no_kernels;
  no_kernels.runtime->RefuseMatmuls([](const cuda::MatmulShape&, int32_t) { return true; });
  ExpectAsDefined(no_kernels, c);
  EXPECT_THAT(no_kernels.backend->remarks(), testing::HasSubstr("no one kernel multiplies 17 to 24 rows of " +
                                                                std::to_string(c.in) + " by"));
  Device not_for_these;
  int64_t refused = 0;
  ExpectAsDefined(not_for_these, c, [&] {
    not_for_these.runtime->RefuseMatmuls([&](const cuda::MatmulShape&, int32_t rows) {
      refused += rows == c.rows ? 1 : 0;
      return rows == c.rows;
    });
  });
  EXPECT_EQ(refused > 0, c.rows > cuda::kSmallLinearRows);
  EXPECT_EQ(not_for_these.runtime->matmuls(), 0);
  EXPECT_STREQ(not_for_these.backend->remarks(), "") << "nobody knew at load";
}

// A product of `rows` rows of [in] by a weight [out, in] on this device, which has room for a few more
// numbers in each row of x.
LinearParams ProductOn(Device& device, int32_t rows, int64_t in, int64_t out) {
  constexpr int64_t kMoreNumbers = 16;
  EXPECT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk);
  const std::vector<uint16_t> bits = RandomBf16(out * in, 1, 0.1f);
  const WeightRows part = {bits.data(), DType::kBf16, out, in};
  LinearParams params;
  EXPECT_EQ(device.backend->PackLinear({&part, 1, in, LinearLayout::kStacked}, &params.weight), OpCode::kOk);
  const auto numbers = [rows](int64_t columns) { return static_cast<size_t>(rows * columns); };
  params.x = MakeTensor(device.Allocate<uint16_t>(numbers(in + kMoreNumbers)), DType::kBf16, rows, in);
  params.out = MakeTensor(device.Allocate<uint16_t>(numbers(out)), DType::kBf16, rows, out);
  params.rows = rows;
  return params;
}

// A step never finds that a product has no kernel: what can be packed can be multiplied without the library.
TEST(CudaLinearTest, EveryWidthThatIsPackedIsMultipliedWithoutTheLibrary) {
  for (int64_t in = 1; in <= 128; ++in) {
    Device device;
    device.runtime->RefuseMatmuls([](const cuda::MatmulShape&, int32_t) { return true; });
    if (in % 8 != 0) {
      const std::vector<uint16_t> bits(static_cast<size_t>(16 * in));
      const WeightRows part = {bits.data(), DType::kBf16, 16, in};
      WeightHandle weight;
      EXPECT_EQ(device.backend->PackLinear({&part, 1, in, LinearLayout::kStacked}, &weight),
                OpCode::kUnsupported);
      continue;
    }
    for (const int32_t rows : {1, 16, 17, 40}) {
      EXPECT_EQ(device.backend->Linear(ProductOn(device, rows, in, 24)), OpCode::kOk)
          << device.backend->last_error();
      EXPECT_EQ(device.backend->WaitFence(device.backend->RecordFence()), OpCode::kOk);
    }
    EXPECT_EQ(device.runtime->matmuls(), 0);
  }
}

// Of a table, of a head, and of gates beside ups, there is one kind of product; experts have none.
TEST(CudaWeights, ArePlannedForWhatTheyMayBeAskedFor) {
  const std::vector<uint16_t> bits = RandomBf16(64 * 64, 1, 0.1f);
  const WeightRows parts[] = {{bits.data(), DType::kBf16, 32, 64}, {bits.data(), DType::kBf16, 32, 64}};
  struct Row {
    LinearSource source;
    std::set<cuda::MatmulOut> outs;
  };
  using cuda::MatmulOut;
  const Row rows[] = {
      {{parts, 2, 64, LinearLayout::kStacked}, {MatmulOut::kBf16, MatmulOut::kBf16Add, MatmulOut::kF32}},
      {{parts, 2, 64, LinearLayout::kGateUp}, {MatmulOut::kBf16}},
      {{parts, 1, 64, LinearLayout::kStacked, nullptr, WeightUse::kTable}, {MatmulOut::kF32}},
      {{parts, 1, 64, LinearLayout::kStacked, nullptr, WeightUse::kHead}, {MatmulOut::kF32}},
      {{parts, 2, 64, LinearLayout::kGateUp, nullptr, WeightUse::kExpert}, {}},
  };
  for (const Row& row : rows) {
    Device device;
    std::set<MatmulOut> planned;
    device.runtime->RefuseMatmuls([&](const cuda::MatmulShape& shape, int32_t) {
      planned.insert(shape.out);
      return false;
    });
    ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk);
    WeightHandle weight;
    ASSERT_EQ(device.backend->PackLinear(row.source, &weight), OpCode::kOk) << device.backend->last_error();
    EXPECT_EQ(planned, row.outs);
  }
}

// ---- products of fp8 by fp8: what they are is cuda_fp8_test's, here what is queued

// Two parts of 32 rows of 128, in fp8 with a scale a row, by 20 rows.
struct Fp8Case {
  static constexpr int32_t kRows = 20;
  static constexpr int64_t kIn = 128, kPartRows = 32;

  // The scales of the parts stand in other types, and in pairs of rows.
  Format first = Format::InGroups(DType::kFp8E4M3, 6, DType::kBf16);
  Format second = Format::InGroups(DType::kFp8E4M3, 6, DType::kF32, /*zero_points=*/false,
                                   /*rows_of_scale=*/2);
  std::vector<std::byte> first_blocks = OfOneScale(first, 1), second_blocks = OfOneScale(second, 2);

  static std::vector<std::byte> OfOneScale(const Format& format, uint32_t seed) {
    std::vector<std::byte> blocks = RandomBlocks(format, kPartRows, kIn, seed);
    for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(format.block_bytes))
      std::memmove(&blocks[at], blocks.data(), static_cast<size_t>(format.scale_bytes()));
    return blocks;
  }
  std::array<WeightRows, 2> Parts() const {
    return {WeightRows{.data = first_blocks.data(),
                       .format = first,
                       .rows = kPartRows,
                       .row_stride = kIn,
                       .scale_of_row = 1},
            WeightRows{.data = second_blocks.data(),
                       .format = second,
                       .rows = kPartRows,
                       .row_stride = kIn,
                       .scale_of_row = 1}};
  }
  // Over these numbers; the weight is packed once.
  LinearParams On(Device& device, Epilogue epilogue, Prologue prologue = Prologue::kRmsNorm) const {
    EXPECT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk);
    const bool swiglu = epilogue == Epilogue::kSwiGlu;
    const std::array<WeightRows, 2> parts = Parts();
    LinearParams params;
    EXPECT_EQ(
        device.backend->PackLinear(
            {parts.data(), 2, kIn, swiglu ? LinearLayout::kGateUp : LinearLayout::kStacked}, &params.weight),
        OpCode::kOk)
        << device.backend->last_error();
    const int64_t width = swiglu ? kPartRows : 2 * kPartRows;
    params.x = MakeTensor(device.Upload(RandomBf16(kRows * kIn, 5)), DType::kBf16, kRows, kIn);
    params.rows = kRows;
    params.prologue = prologue;
    params.norm_weight = device.Upload(std::vector<float>(kIn, 1.0f));
    params.norm_epsilon = 1e-5f;
    params.epilogue = epilogue;
    params.out = MakeTensor(device.Upload(RandomBf16(kRows * width, 6)), DType::kBf16, kRows, width);
    return params;
  }
  static std::vector<uint16_t> Out(Device& device, const LinearParams& params) {
    return device.Read(static_cast<const uint16_t*>(params.out.data),
                       static_cast<size_t>(params.out.rows * params.out.columns));
  }
};

Device* AskedForFp8(EmulatedRuntime* runtime) { return new Device(runtime, {.fp8_products = 1}); }

// Launches that a recording of this call has; run once it gives `out`.
int64_t LaunchesOf(Device& device, const LinearParams& params, std::vector<uint16_t>* out = nullptr) {
  Backend& backend = *device.backend;
  RecordingHandle recording;
  EXPECT_EQ(backend.BeginRecording(), OpCode::kOk);
  EXPECT_EQ(backend.Linear(params), OpCode::kOk) << backend.last_error();
  EXPECT_EQ(backend.EndRecording(&recording), OpCode::kOk);
  EXPECT_EQ(backend.Replay(recording), OpCode::kOk);
  if (out != nullptr) *out = Fp8Case::Out(device, params);
  backend.FreeRecording(recording);
  int64_t launches = 0;
  const std::string said = backend.remarks();
  const char* const at = std::strstr(said.c_str(), "1 recordings of ");
  EXPECT_NE(at, nullptr) << said;
  if (at != nullptr) launches = std::atoll(at + std::strlen("1 recordings of "));
  return launches;
}

// Rows are rounded with the norm or alone; then one product for both parts; SwiGLU is behind it.
TEST(CudaFp8Products, AreOneLaunchBehindThatOfTheRows) {
  const Fp8Case c;
  struct Row {
    Epilogue epilogue;
    Prologue prologue;
    int64_t launches;
  };
  for (const Row& row :
       {Row{Epilogue::kNone, Prologue::kRmsNorm, 2}, Row{Epilogue::kAddResidual, Prologue::kNone, 2},
        Row{Epilogue::kSwiGlu, Prologue::kRmsNorm, 3}}) {
    const std::unique_ptr<Device> device(AskedForFp8(new EmulatedRuntime));
    const LinearParams params = c.On(*device, row.epilogue, row.prologue);
    std::vector<uint16_t> replayed;
    EXPECT_EQ(LaunchesOf(*device, params, &replayed), row.launches);
    EXPECT_EQ(device->runtime->fp8_matmuls(), 1);
    EXPECT_EQ(device->runtime->matmuls(), 1);
    EXPECT_THAT(device->backend->remarks(),
                testing::StartsWith("1 of 1 weights in fp8 are multiplied with rows in fp8\n"));
    // The step is the replayed one.
    const std::unique_ptr<Device> at_once(AskedForFp8(new EmulatedRuntime));
    const LinearParams same = c.On(*at_once, row.epilogue, row.prologue);
    ASSERT_EQ(at_once->backend->Linear(same), OpCode::kOk);
    EXPECT_EQ(Fp8Case::Out(*at_once, same), replayed);
  }
}

// The bits of a backend that was not asked, which are its own products' where the library has none for these
// rows, says so at load, or the device has none at all.
TEST(CudaFp8Products, ThatThereAreNotAreThoseOfDecodedWeights) {
  const Fp8Case c;
  for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kAddResidual, Epilogue::kSwiGlu}) {
    Device exact;
    const LinearParams exact_params = c.On(exact, epilogue);
    std::vector<uint16_t> want, got;
    const int64_t exact_launches = LaunchesOf(exact, exact_params, &want);

    const auto refuses_all = [](const cuda::MatmulShape& shape, int32_t) {
      return shape.in == cuda::MatmulIn::kFp8;
    };
    auto* at_load = new EmulatedRuntime;
    at_load->RefuseMatmuls(refuses_all);
    const std::unique_ptr<Device> no_kernels(AskedForFp8(at_load));
    EXPECT_EQ(LaunchesOf(*no_kernels, c.On(*no_kernels, epilogue), &got), 2)
        << "a norm, and tiles with all of the rest";
    EXPECT_EQ(got, want);
    EXPECT_THAT(no_kernels->backend->remarks(),
                testing::HasSubstr("no kernel multiplies 17 to 24 rows of 128 by 64 weights, both in fp8: "
                                   "these stay in bf16, and the weights are decoded\n"));

    const std::unique_ptr<Device> not_for_these(AskedForFp8(new EmulatedRuntime));
    const LinearParams params = c.On(*not_for_these, epilogue);
    not_for_these->runtime->RefuseMatmuls([](const cuda::MatmulShape& shape, int32_t rows) {
      return shape.in == cuda::MatmulIn::kFp8 && rows == Fp8Case::kRows;
    });
    EXPECT_EQ(LaunchesOf(*not_for_these, params, &got), 3) << "nobody knew before the rows were rounded";
    EXPECT_EQ(got, want);

    auto* older = new EmulatedRuntime;
    older->set_no_fp8_products("the device has compute capability 8.9, it takes 9.0");
    const std::unique_ptr<Device> none(AskedForFp8(older));
    EXPECT_EQ(LaunchesOf(*none, c.On(*none, epilogue), &got), exact_launches);
    EXPECT_EQ(got, want);
    EXPECT_THAT(none->backend->remarks(),
                testing::StartsWith("no products of fp8 by fp8: the device has compute capability 8.9, it "
                                    "takes 9.0; weights in fp8 are decoded\n"));
    const std::array<WeightRows, 2> parts = c.Parts();
    const LinearSource source = {parts.data(), 2, Fp8Case::kIn};
    EXPECT_EQ(none->backend->PackedBytes(source), exact.backend->PackedBytes(source));
    EXPECT_EQ(none->backend->WorkspaceBytes(SmallMaxima()), exact.backend->WorkspaceBytes(SmallMaxima()));
    EXPECT_EQ(no_kernels->runtime->fp8_matmuls() + none->runtime->fp8_matmuls(), 0);
  }
}

// Sixteen rows, and what only some uses of a weight have.
TEST(CudaFp8Products, AreOfMoreThanSixteenRowsOfLayersAlone) {
  const Fp8Case c;
  const std::unique_ptr<Device> device(AskedForFp8(new EmulatedRuntime));
  LinearParams params = c.On(*device, Epilogue::kNone);
  params.rows = 16;
  EXPECT_EQ(device->backend->Linear(params), OpCode::kOk);
  params.rows = 17;
  EXPECT_EQ(device->backend->Linear(params), OpCode::kOk);
  EXPECT_EQ(device->runtime->fp8_matmuls(), 1);
  std::set<cuda::MatmulOut> planned;
  device->runtime->RefuseMatmuls([&](const cuda::MatmulShape& shape, int32_t) {
    if (shape.in == cuda::MatmulIn::kFp8) planned.insert(shape.out);
    return false;
  });
  const std::array<WeightRows, 2> parts = c.Parts();
  for (const WeightUse use : {WeightUse::kTable, WeightUse::kHead, WeightUse::kExpert}) {
    WeightHandle weight;
    ASSERT_EQ(device->backend->PackLinear(
                  {parts.data(), 1, Fp8Case::kIn, LinearLayout::kStacked, nullptr, use}, &weight),
              OpCode::kOk);
  }
  EXPECT_EQ(planned, std::set<cuda::MatmulOut>());
  EXPECT_THAT(device->backend->remarks(),
              testing::StartsWith("1 of 4 weights in fp8 are multiplied with rows in fp8; the others give "
                                  "logits, are experts' or have several scales a row, and are "
                                  "decoded\n"));
  WeightHandle weight;
  ASSERT_EQ(device->backend->PackLinear({parts.data(), 1, Fp8Case::kIn}, &weight), OpCode::kOk);
  EXPECT_EQ(planned, (std::set<cuda::MatmulOut>{cuda::MatmulOut::kBf16, cuda::MatmulOut::kBf16Add}));
}

TEST(CudaFp8Products, AreTimedLikeOthers) {
  const Fp8Case c;
  const std::unique_ptr<Device> device(AskedForFp8(new EmulatedRuntime));
  (void)c.On(*device, Epilogue::kNone);
  device->runtime->SetCandidateTimes({30, 10, 20});
  ASSERT_EQ(device->backend->Tune(), OpCode::kOk) << device->backend->last_error();
  EXPECT_GT(device->runtime->fp8_matmuls(), 0);
  EXPECT_THAT(device->backend->Tuning(), testing::HasSubstr("emulated 128 64 fp8>bf16+ 17 24 b\n"));
}

// ---- weights that are decoded a slice at a time: their numbers are cuda_blocks_test's, here what is queued

// As the weights of a 7B and a 70B, a head and small ones are cut.
TEST(CudaSlices, AreOfAtMostTwoShapesAndCoverTheWeight) {
  using cuda::kDecodedSliceBytes;
  using cuda::SlicesOf;
  struct Row {
    int64_t out, in, rows, last, count;
  };
  for (const Row& row : {Row{28672, 4096, 7168, 7168, 4},
                         {6144, 4096, 6144, 6144, 1},
                         {4096, 4096, 4096, 4096, 1},
                         {4096, 14336, 2048, 2048, 2},
                         {32000, 4096, 8192, 7424, 4},
                         {8192, 28672, 1024, 1024, 8},
                         {40, 256, 40, 40, 1},
                         {12290, 4096, 6400, 5890, 2},
                         {1, 64, 1, 1, 1},
                         {300, 1 << 17, 256, 44, 2},
                         {100, 1 << 20, 32, 4, 4}}) {
    const cuda::WeightSlices slices = SlicesOf(row.out, row.in, kDecodedSliceBytes);
    EXPECT_EQ(slices.rows, row.rows) << row.out << " by " << row.in;
    EXPECT_EQ(slices.last_rows, row.last) << row.out << " by " << row.in;
    EXPECT_EQ(slices.count, row.count) << row.out << " by " << row.in;
  }
  EXPECT_EQ(SlicesOf(16, (1 << 21) + 32, kDecodedSliceBytes).count, 0) << "sixteen rows are more";
  for (const int64_t in : {32, 96, 4096, 14336, 100000}) {
    for (const int64_t out : {1, 15, 16, 17, 255, 1000, 5000, 40000}) {
      const cuda::WeightSlices slices = SlicesOf(out, in, kDecodedSliceBytes);
      ASSERT_GE(slices.count, 1);
      EXPECT_EQ((slices.count - 1) * slices.rows + slices.last_rows, out);
      EXPECT_TRUE(slices.last_rows > 0 && slices.last_rows <= slices.rows);
      EXPECT_TRUE(slices.count == 1 || slices.rows % cuda::kUnitRows == 0);
      EXPECT_LE(cuda::DecodedBytes(slices.rows, in),
                cuda::DecodedScratchBytes(out * in, in, kDecodedSliceBytes));
    }
  }
}

// A weight [kOut, kIn] of Q8_0, whose slices are of 32 rows: two of them and one of 8.
struct SliceCase {
  static constexpr int64_t kIn = 96, kOut = 72;
  static constexpr int64_t kSliceBytes = 32 * kIn * 2;

  std::vector<std::byte> blocks = RandomBlocks(DType::kQ8_0, kOut, kIn, 1);
  WeightRows part = {blocks.data(), DType::kQ8_0, kOut, kIn};

  static StepMaxima Maxima() {
    StepMaxima maxima = SmallMaxima();
    maxima.tokens = maxima.logit_rows = 128;
    maxima.quantised_numbers = kOut * kIn;
    return maxima;
  }
  static Device* Make(EmulatedRuntime* runtime = new EmulatedRuntime) {
    return new Device(runtime, {.decoded_slice_bytes = kSliceBytes});
  }
  WeightHandle Pack(Device& device) const {
    WeightHandle weight;
    EXPECT_EQ(device.backend->PackLinear({&part, 1, kIn}, &weight), OpCode::kOk)
        << device.backend->last_error();
    return weight;
  }
  // Of so many rows; the output is added to.
  static LinearParams On(Device& device, WeightHandle weight, int32_t rows) {
    LinearParams params;
    params.x = MakeTensor(device.Upload(RandomBf16(rows * kIn, 5)), DType::kBf16, rows, kIn);
    params.rows = rows;
    params.weight = weight;
    params.epilogue = Epilogue::kAddResidual;
    params.out = MakeTensor(device.Upload(RandomBf16(rows * kOut, 6)), DType::kBf16, rows, kOut);
    return params;
  }
};

// A tile of rows goes along all of K for each output: of few outputs that is slower than slices.
TEST(CudaSlices, AreDecodedForMoreRowsThanTheSmallKernelTakes) {
  const SliceCase c;
  for (const int32_t rows : {1, 16, 17, 64, 65, 128}) {
    const std::unique_ptr<Device> device(SliceCase::Make());
    ASSERT_EQ(device->backend->Reserve(SliceCase::Maxima()), OpCode::kOk);
    const LinearParams params = SliceCase::On(*device, c.Pack(*device), rows);
    EXPECT_EQ(LaunchesOf(*device, params), rows > 16 ? 3 * 2 : 1) << rows;
    EXPECT_EQ(device->runtime->matmuls(), rows > 16 ? 3 : 0) << rows;
  }
}

// Of many, which fill the device, a tile decodes the weight once, as it must be, and writes it nowhere.
TEST(CudaSlices, OfManyOutputsAreDecodedForMoreRowsThanATileHas) {
  constexpr int64_t kIn = 32, kOut = cuda::kTiledOutputs;
  for (const int64_t outputs : {kOut, kOut - 16}) {
    const std::vector<std::byte> blocks = RandomBlocks(DType::kQ8_0, outputs, kIn, 1);
    const WeightRows part = {blocks.data(), DType::kQ8_0, outputs, kIn};
    for (const int32_t rows : {17, 64, 65}) {
      Device device(new EmulatedRuntime, {.decoded_slice_bytes = kOut * kIn * 2});
      StepMaxima maxima = SliceCase::Maxima();
      maxima.quantised_numbers = outputs * kIn;
      ASSERT_EQ(device.backend->Reserve(maxima), OpCode::kOk);
      LinearParams params;
      ASSERT_EQ(device.backend->PackLinear({&part, 1, kIn}, &params.weight), OpCode::kOk);
      params.x = MakeTensor(device.Upload(RandomBf16(rows * kIn, 5)), DType::kBf16, rows, kIn);
      params.rows = rows;
      params.out = MakeTensor(device.Allocate<uint16_t>(static_cast<size_t>(rows * outputs)), DType::kBf16,
                              rows, outputs);
      EXPECT_EQ(LaunchesOf(device, params), rows > 64 || outputs < kOut ? 2 : 1) << outputs << " of " << rows;
    }
  }
}

// Gate and up are interleaved in a slice as in the weight, so that SwiGLU comes once, behind all of them.
TEST(CudaSlices, OfGateAndUpAreFollowedByOneSwiGlu) {
  const SliceCase c;
  const std::unique_ptr<Device> device(SliceCase::Make());
  ASSERT_EQ(device->backend->Reserve(SliceCase::Maxima()), OpCode::kOk);
  const WeightRows parts[] = {c.part, c.part};
  LinearParams params;
  ASSERT_EQ(device->backend->PackLinear({parts, 2, SliceCase::kIn, LinearLayout::kGateUp}, &params.weight),
            OpCode::kOk);
  const WeightHandle weight = params.weight;
  params = SliceCase::On(*device, weight, 65);
  params.epilogue = Epilogue::kSwiGlu;
  EXPECT_EQ(LaunchesOf(*device, params), 5 * 2 + 1);
}

// The product of each slice alone, of its first rows or its last, so that what was added before is not added
// once more.
TEST(CudaSlices, ThatTheLibraryHasNoProductOfGoByTiles) {
  SliceCase c;
  // Scales that are powers of two, so that a number is the same in tiles, which do not round it, and decoded.
  const uint16_t scale = FloatToF16(0.125f);
  for (size_t at = 0; at < c.blocks.size(); at += 34) std::memcpy(&c.blocks[at], &scale, sizeof(scale));
  const std::vector<float> values = DecodedBlocks(DType::kQ8_0, c.blocks);
  const CudaLinearCase linear = {70, SliceCase::kIn, SliceCase::kOut / 2, Prologue::kNone,
                                 Epilogue::kAddResidual};
  for (const int64_t refused : {int64_t{32}, int64_t{8}, int64_t{0}}) {
    for (const bool at_load : {true, false}) {
      const std::unique_ptr<Device> device(SliceCase::Make());
      const auto refuse = [&] {
        device->runtime->RefuseMatmuls([refused](const cuda::MatmulShape& shape, int32_t) {
          return refused == 0 || shape.out_features == refused;
        });
      };
      if (at_load) refuse();
      ASSERT_EQ(device->backend->Reserve(SliceCase::Maxima()), OpCode::kOk);
      const WeightHandle weight = c.Pack(*device);
      if (!at_load) refuse();
      ExpectLinearAgrees(*device, linear, weight, values);
      EXPECT_EQ(device->runtime->matmuls(), refused == 32 ? 1 : refused == 8 ? 2 : 0);
      if (!at_load || refused == 8) continue;
      EXPECT_THAT(
          device->backend->remarks(),
          testing::HasSubstr("no one kernel multiplies 65 to 72 rows of 96 by 32 weights: each number of "
                             "rows is given its own, or a kernel of ours\n"));
    }
  }
}

TEST(CudaSlices, ArePlannedForTheRowsAndTheUsesThatAreDecoded) {
  const SliceCase c;
  using cuda::MatmulOut;
  struct Row {
    WeightUse use;
    LinearLayout layout;
    std::set<MatmulOut> outs;
  };
  for (const Row& row : {Row{WeightUse::kLinear,
                             LinearLayout::kStacked,
                             {MatmulOut::kBf16, MatmulOut::kBf16Add, MatmulOut::kF32}},
                         Row{WeightUse::kLinear, LinearLayout::kGateUp, {MatmulOut::kBf16}},
                         Row{WeightUse::kTable, LinearLayout::kStacked, {MatmulOut::kF32}},
                         Row{WeightUse::kHead, LinearLayout::kStacked, {MatmulOut::kF32}},
                         Row{WeightUse::kExpert, LinearLayout::kGateUp, {}}}) {
    const std::unique_ptr<Device> device(SliceCase::Make());
    std::set<MatmulOut> planned;
    std::set<int64_t> widths;
    int32_t fewest = INT32_MAX;
    device->runtime->RefuseMatmuls([&](const cuda::MatmulShape& shape, int32_t) {
      planned.insert(shape.out);
      widths.insert(shape.out_features);
      fewest = std::min(fewest, shape.min_rows);
      return false;
    });
    const WeightRows parts[] = {c.part, c.part};
    WeightHandle weight;
    ASSERT_EQ(device->backend->PackLinear({parts, row.layout == LinearLayout::kGateUp ? 2 : 1, SliceCase::kIn,
                                           row.layout, nullptr, row.use},
                                          &weight),
              OpCode::kOk);
    ASSERT_EQ(device->backend->Reserve(SliceCase::Maxima()), OpCode::kOk);
    EXPECT_EQ(planned, row.outs);
    if (row.outs.empty()) continue;
    EXPECT_EQ(fewest, 17);
    EXPECT_EQ(widths,
              row.layout == LinearLayout::kGateUp ? (std::set<int64_t>{32, 16}) : (std::set<int64_t>{32, 8}));
  }
}

// Over the scratch, where such a weight stands in a step.
TEST(CudaSlices, AreTimedLikeOthers) {
  const SliceCase c;
  const std::unique_ptr<Device> device(SliceCase::Make());
  StepMaxima maxima = SliceCase::Maxima();
  maxima.tokens = maxima.logit_rows = 66;  // one family
  ASSERT_EQ(device->backend->Reserve(maxima), OpCode::kOk);
  (void)c.Pack(*device);
  device->runtime->SetCandidateTimes({30, 10, 20});
  ASSERT_EQ(device->backend->Tune(), OpCode::kOk) << device->backend->last_error();
  EXPECT_THAT(device->backend->Tuning(), testing::HasSubstr("emulated 96 32 bf16+ 65 72 b\n"));
  EXPECT_THAT(device->backend->Tuning(), testing::HasSubstr("emulated 96 8 bf16+ 65 72 b\n"));
}

// No weight that is quantised, or no step of so many rows: no scratch.
TEST(CudaSlices, TakeAScratchWhereAnyAreDecoded) {
  const std::unique_ptr<Device> device(SliceCase::Make());
  const Backend& backend = *device->backend;
  StepMaxima maxima = SliceCase::Maxima();
  const int64_t with = backend.WorkspaceBytes(maxima);
  maxima.quantised_numbers = 0;
  const int64_t without = backend.WorkspaceBytes(maxima);
  EXPECT_EQ(with - without, SliceCase::kSliceBytes) << "a multiple of 256";
  for (const int64_t numbers : {0, 1 << 20}) {
    StepMaxima few = SmallMaxima();
    few.tokens = few.logit_rows = 16;
    few.quantised_numbers = 0;
    const int64_t without_any = backend.WorkspaceBytes(few);
    few.quantised_numbers = numbers;
    EXPECT_EQ(backend.WorkspaceBytes(few), without_any) << "no step has 17 rows";
  }
  // A weight of fewer numbers takes no more than it has, its rows filled up to sixteens.
  const std::unique_ptr<Device> plain(new Device);
  maxima.quantised_numbers = 40 * 96;
  EXPECT_EQ(plain->backend->WorkspaceBytes(maxima) - without, (2 * (40 * 96 + 15 * 256) + 255) / 256 * 256);
  maxima.quantised_numbers = int64_t{1} << 40;
  EXPECT_EQ(plain->backend->WorkspaceBytes(maxima) - without, cuda::kDecodedSliceBytes);
}

TEST(CudaSlices, GoByTilesWhereNoScratchWasReserved) {
  const SliceCase c;
  const std::unique_ptr<Device> device(SliceCase::Make());
  StepMaxima maxima = SliceCase::Maxima();
  maxima.quantised_numbers = 0;
  ASSERT_EQ(device->backend->Reserve(maxima), OpCode::kOk);
  EXPECT_EQ(LaunchesOf(*device, SliceCase::On(*device, c.Pack(*device), 70)), 1);
  EXPECT_EQ(device->runtime->matmuls(), 0);
}

// Where no product of fp8 is made, their weights are decoded like others of many rows.
TEST(CudaSlices, OfFp8InRowsAreDecodedWhereTheLibraryHasNoProductOfFp8) {
  const Fp8Case c;
  auto* runtime = new EmulatedRuntime;
  runtime->RefuseMatmuls(
      [](const cuda::MatmulShape& shape, int32_t) { return shape.in == cuda::MatmulIn::kFp8; });
  Device device(runtime, {.fp8_products = 1, .least_decoded_rows = 17, .decoded_slice_bytes = 48 * 128 * 2});
  StepMaxima maxima = SmallMaxima();
  maxima.quantised_numbers = 2 * Fp8Case::kPartRows * Fp8Case::kIn;
  LinearParams params = c.On(device, Epilogue::kNone);
  ASSERT_EQ(device.backend->Reserve(maxima), OpCode::kOk);
  std::vector<uint16_t> got;
  EXPECT_EQ(LaunchesOf(device, params, &got), 1 + 2 * 2) << "a norm, and slices of 32 rows";
  EXPECT_EQ(device.runtime->matmuls(), 2);
  // The same weight in units, decoded too.
  Device in_units(new EmulatedRuntime, {.least_decoded_rows = 17, .decoded_slice_bytes = 48 * 128 * 2});
  params = c.On(in_units, Epilogue::kNone);
  ASSERT_EQ(in_units.backend->Reserve(maxima), OpCode::kOk);
  std::vector<uint16_t> want;
  LaunchesOf(in_units, params, &want);
  EXPECT_EQ(in_units.runtime->matmuls(), 2);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(Bf16ToFloat(got[i]), Bf16ToFloat(want[i]), 2 * kUnit * std::fabs(Bf16ToFloat(want[i])) + 1e-3)
        << "sums in another order";
  }
}

// What a kernel would read in pieces of 16 bytes must lie so.
TEST(CudaLinearDeathTest, RowsAtNoPiecesAreCaught) {
  Device device;
  LinearParams params = ProductOn(device, 2, 64, 32);
  params.x.row_stride = 72;
  EXPECT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
  params.x.row_stride = 68;
  EXPECT_DEATH((void)device.backend->Linear(params),
               "has rows 68 elements apart, which are no pieces of 16 bytes");
}

// And what it would write so.
TEST(CudaLinearDeathTest, OutputsOfSwiGluAtNoPiecesAreCaught) {
  constexpr int32_t kRows = 20, kWidth = 64, kHalf = 32;
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  const std::vector<uint16_t> memory = RandomBf16(2 * kHalf * kWidth, 1);
  const WeightRows parts[] = {{memory.data(), DType::kBf16, kHalf, kWidth},
                              {memory.data() + kHalf * kWidth, DType::kBf16, kHalf, kWidth}};
  LinearParams params;
  ASSERT_EQ(device.backend->PackLinear({parts, 2, kWidth, LinearLayout::kGateUp}, &params.weight),
            OpCode::kOk);
  params.x = MakeTensor(device.Allocate<uint16_t>(kRows * kWidth), DType::kBf16, kRows, kWidth);
  params.out = MakeTensor(device.Allocate<uint16_t>(kRows * (kHalf + 8)), DType::kBf16, kRows, kHalf);
  params.rows = kRows;
  params.epilogue = Epilogue::kSwiGlu;
  params.out.row_stride = kHalf + 8;
  EXPECT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
  params.out.row_stride = kHalf + 4;
  EXPECT_DEATH((void)device.backend->Linear(params),
               "out at .* has rows 36 elements apart, which are no pieces");
}

// Of whatever kind: cuBLASLt is promised where they begin. Rows may be any number of outputs apart.
TEST(CudaLinearDeathTest, OutputsThatBeginAtNoPieceAreCaught) {
  for (const auto& [epilogue, dtype] : {std::pair{Epilogue::kNone, DType::kBf16},
                                        {Epilogue::kAddResidual, DType::kBf16},
                                        {Epilogue::kNone, DType::kF32}}) {
    Device device;
    LinearParams params = ProductOn(device, 20, 64, 33);
    auto* const memory = device.Allocate<std::byte>(20 * 33 * 4 + 16);
    params.epilogue = epilogue;
    params.out = MakeTensor(memory + 16, dtype, 20, 33);
    EXPECT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
    params.out.data = memory + 8;
    EXPECT_DEATH((void)device.backend->Linear(params), "out at .*, which is no multiple of 16 bytes");
  }
}

// Twenty outputs of bf16 are 40 bytes: what follows them goes by our own kernel, however many rows there are.
TEST(CudaLinearTest, ASegmentBehindOutputsThatAreNoPiecesGoesPastTheLibrary) {
  constexpr int64_t kIn = 64, kPartRows = 20;
  std::vector<int32_t> order(kIn);
  std::iota(order.rbegin(), order.rend(), 0);
  for (const auto& [first_rows, products] : {std::pair<int64_t, int64_t>{20, 1}, {24, 2}}) {
    Device device;
    ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
    const std::vector<uint16_t> bits = RandomBf16((first_rows + kPartRows) * kIn, 1, 0.1f);
    const WeightRows parts[] = {{bits.data(), DType::kBf16, first_rows, kIn},
                                {bits.data() + first_rows * kIn, DType::kBf16, kPartRows, kIn, order.data()}};
    LinearParams params;
    ASSERT_EQ(device.backend->PackLinear({parts, 2, kIn, LinearLayout::kStacked}, &params.weight),
              OpCode::kOk);
    const int64_t out = first_rows + kPartRows;
    params.rows = 20;
    params.x = MakeTensor(device.Allocate<uint16_t>(static_cast<size_t>(20 * kIn)), DType::kBf16, 20, kIn);
    params.out = MakeTensor(device.Allocate<uint16_t>(static_cast<size_t>(20 * out)), DType::kBf16, 20, out);
    EXPECT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
    device.Wait();
    EXPECT_EQ(device.runtime->matmuls(), products) << first_rows;
  }
}

TEST(CudaEmbedDeathTest, OutputsAtNoPiecesAreCaught) {
  constexpr int32_t kRows = 2, kWidth = 64, kVocab = 16;
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  const std::vector<uint16_t> memory = RandomBf16(kVocab * kWidth, 1);
  const WeightRows part = {memory.data(), DType::kBf16, kVocab, kWidth};
  EmbedParams params;
  ASSERT_EQ(device.backend->PackLinear({&part, 1, kWidth, LinearLayout::kStacked, nullptr, WeightUse::kTable},
                                       &params.table),
            OpCode::kOk);
  params.token_ids = device.Upload(std::vector<int32_t>{3, 7});
  params.tokens = kRows;
  params.out = MakeTensor(device.Allocate<uint16_t>(kRows * (kWidth + 8)), DType::kBf16, kRows, kWidth);
  params.out.row_stride = kWidth + 8;
  EXPECT_EQ(device.backend->Embed(params), OpCode::kOk) << device.backend->last_error();
  params.out.row_stride = kWidth + 4;
  EXPECT_DEATH((void)device.backend->Embed(params),
               "out at .* has rows 68 elements apart, which are no pieces");
}

TEST(CudaMoeDeathTest, RowsAtNoPiecesAreCaught) {
  constexpr int32_t kRows = 2, kWidth = 64;
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  const Tensor rows =
      MakeTensor(device.Allocate<uint16_t>(kRows * (kWidth + 8)), DType::kBf16, kRows, kWidth);
  MoeParams params = {.x = rows, .out = rows};
  EXPECT_EQ(device.backend->Moe(params), OpCode::kOk) << "no rows yet";
  params.x.row_stride = kWidth + 4;
  EXPECT_DEATH((void)device.backend->Moe(params), "x at .* has rows 68 elements apart, which are no pieces");
  params.x = rows;
  params.out.row_stride = kWidth + 4;
  EXPECT_DEATH((void)device.backend->Moe(params),
               "out at .* has rows 68 elements apart, which are no pieces");
}

TEST(CudaWeights, ThatCannotBePackedAreRefusedWithTheReason) {
  Device device;
  WeightHandle weight;
  const std::vector<float> memory(64 * 64);
  const WeightRows odd[] = {{memory.data(), DType::kF32, 12, 64}, {memory.data(), DType::kF32, 12, 64}};
  EXPECT_EQ(device.backend->PackLinear({odd, 2, 64, LinearLayout::kGateUp}, &weight), OpCode::kUnsupported);
  EXPECT_STREQ(device.backend->last_error(), "12 gate rows; the CUDA backend takes multiples of 8");
  EXPECT_EQ(device.backend->PackLinear({odd, 1, 36, LinearLayout::kStacked}, &weight), OpCode::kUnsupported);
  EXPECT_STREQ(device.backend->last_error(), "36 input features; the CUDA backend takes multiples of 8");
  EXPECT_EQ(weight.impl, nullptr);
}

TEST(CudaReserve, RefusesHeadsThatAttentionDoesNotHave) {
  Device device;
  StepMaxima maxima = SmallMaxima();
  maxima.head_dim = 48;
  EXPECT_EQ(device.backend->Reserve(maxima), OpCode::kUnsupported);
}

// ---- attention ----------------------------------------------------------------------------------

// One layer's attention of a step of two sequences, in buffers that all its steps share.
class PagedAttention {
 public:
  static constexpr int32_t kHeads = 4, kKvHeads = 2, kMostSequences = 9, kMostTokens = 256;

  struct Batch {
    std::vector<PagedSpan> spans;
    std::vector<int32_t> queries;
    int64_t shared = 0;  // up to there all list the pages of the first
  };
  enum class Written {
    kByUpload,
    kBehindTheBackend
  };  // the latter as a kernel would: no call of the backend tells

  explicit PagedAttention(Device& device, int32_t head_dim = 32, int32_t page_size = 16,
                          DType pages = DType::kBf16)
      : device_(device),
        head_dim_(head_dim),
        page_size_(page_size),
        pages_(pages),
        width_(kHeads * head_dim),
        page_indices_(device.Allocate<int32_t>(4096)),
        first_entry_(device.Allocate<int32_t>(kMostSequences)),
        kv_base_(device.Allocate<int32_t>(kMostSequences)),
        kv_end_(device.Allocate<int32_t>(kMostSequences)),
        qo_indptr_(device.Allocate<int32_t>(kMostSequences + 1)),
        query_(device.Allocate<uint16_t>(kMostTokens * static_cast<size_t>(width_))),
        out_(device.Allocate<uint16_t>(kMostTokens * static_cast<size_t>(width_))) {}

  void Set(const Batch& batch, Written written = Written::kByUpload) {
    Fill(batch);
    pool_ = device_.Allocate<std::byte>(static_cast<size_t>(kv_->pool_bytes()));
    Put(written);
  }

  // Another batch of the same lengths where the last one lies.
  void Rewrite(const Batch& batch) {
    Fill(batch);
    Put(Written::kByUpload);
  }

  AttentionParams Params(int32_t window) const {
    AttentionParams params;
    params.query = MakeTensor(query_, DType::kBf16, kv_->tokens(), width_);
    params.out = MakeTensor(out_, DType::kBf16, kv_->tokens(), width_);
    params.kv = view_;
    params.table = {.page_indices = page_indices_,
                    .first_entry = first_entry_,
                    .kv_base = kv_base_,
                    .kv_end = kv_end_,
                    .listed_pages = kv_->held_pages()};
    params.qo_indptr = qo_indptr_;
    params.batch = kv_->batch();
    params.query_heads = kHeads;
    params.window = window;
    params.scale = kScale;
    return params;
  }
  void Queue(const AttentionParams& params) {
    ASSERT_EQ(device_.backend->Attention(params), OpCode::kOk) << device_.backend->last_error();
  }
  void Queue(int32_t window) { Queue(Params(window)); }

  std::vector<uint16_t> Out() { return device_.Read(out_, queries_.size()); }
  // The output becomes NaN.
  void Forget() { device_.Write(out_, std::vector<uint16_t>(queries_.size(), 0x7FFF)); }

  // What was queued last gave. Tolerance: weights P and the output are rounded once each, and values are of
  // size 1: 4 units of 1. Quantised keys and values are rounded once more: 2.
  void ExpectAsDefined(int32_t window) {
    const double tolerance = (pages_ == DType::kBf16 ? 4 : 6) * kUnit;
    const std::vector<uint16_t> got = device_.Read(out_, queries_.size());
    size_t at = 0;
    for (int32_t b = 0; b < kv_->batch(); ++b) {
      const int64_t from = spans_[static_cast<size_t>(b)].kv_base;
      reference::AttentionProblem problem;
      problem.query_heads = kHeads;
      problem.kv_heads = kKvHeads;
      problem.head_dim = head_dim_;
      problem.window = window;
      problem.scale = kScale;
      problem.query_begin = kv_->QueryBegin(b);
      problem.key_begin = from;
      problem.keys = kv_->All(KvHalf::kKey, b, from);
      problem.values = kv_->All(KvHalf::kValue, b, from);
      for (int64_t i = 0; i < int64_t{kv_->QueryCount(b)} * width_; ++i) {
        problem.query.push_back(Bf16ToFloat(queries_[at + static_cast<size_t>(i)]));
      }
      for (const double want : reference::Attention(problem)) {
        ASSERT_NEAR(Bf16ToFloat(got[at]), want, tolerance) << "sequence " << b << " element " << at;
        ++at;
      }
    }
  }

 private:
  static constexpr float kScale = 0.2f;

  void Fill(const Batch& batch) {
    kv_ = std::make_unique<PagedKvFixture>(
        PagedKvShape{.dtype = pages_, .kv_heads = kKvHeads, .head_dim = head_dim_, .page_size = page_size_},
        batch.spans);
    kv_->FillRandom(5);
    for (int32_t b = 1; b < kv_->batch(); ++b) kv_->ShareUpTo(batch.shared, b, 0);
    kv_->SetQueries(batch.queries);
    spans_ = batch.spans;
    queries_ = RandomBf16(kv_->tokens() * width_, 9, 1.0f);
  }

  void Put(Written written) {
    const PageTableView table = kv_->Table();
    const auto sequences = spans_.size();
    view_ = kv_->View(pool_);
    Write(written, pool_, kv_->pool(), static_cast<size_t>(kv_->pool_bytes()));
    Write(written, page_indices_, table.page_indices, static_cast<size_t>(kv_->listed_pages()));
    Write(written, first_entry_, table.first_entry, sequences);
    Write(written, kv_base_, table.kv_base, sequences);
    Write(written, kv_end_, table.kv_end, sequences);
    Write(written, qo_indptr_, kv_->qo_indptr(), sequences + 1);
    Write(written, query_, queries_.data(), queries_.size());
  }

  template <typename T>
  void Write(Written written, T* to, const T* from, size_t count) {
    if (written == Written::kByUpload) return device_.Write(to, std::vector<T>(from, from + count));
    std::copy_n(from, count, to);  // the emulated device's memory is the host's; nothing is queued
  }

  Device& device_;
  const int32_t head_dim_, page_size_;
  const DType pages_;
  const int32_t width_;
  std::unique_ptr<PagedKvFixture> kv_;
  std::vector<PagedSpan> spans_;
  KvLayerView view_;
  std::byte* pool_ = nullptr;
  std::vector<uint16_t> queries_;
  int32_t *page_indices_, *first_entry_, *kv_base_, *kv_end_, *qo_indptr_;
  uint16_t *query_, *out_;
};

const PagedAttention::Batch kLongBatch = {{{0, 35}, {16, 90}}, {20, 3}};
const PagedAttention::Batch kOtherBatch = {{{0, 70}, {0, 4}}, {20, 3}};  // as many tokens, of other sequences

// The work lists of a step are made once for each (table, window), shared by its layers, and kept in a ring:
// more windows than the ring holds, in the order of layers that come back to them, and then other lengths in
// the same buffers.
TEST(CudaAttention, LayersOfManyWindowsShareAStepAndTheNextStepHasListsOfItsOwn) {
  const std::vector<int32_t> windows = {50, 3, 5, 7, 9, 11, 13, 17, 19, 40};
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device);
  for (const PagedAttention::Batch& batch : {kLongBatch, kOtherBatch}) {
    attention.Set(batch);
    for (size_t layer = 0; layer < 2 * windows.size(); ++layer) {
      const int32_t window = windows[layer % windows.size()];
      SCOPED_TRACE("layer " + std::to_string(layer) + " window " + std::to_string(window));
      attention.Queue(window);
      attention.ExpectAsDefined(window);
    }
  }
}

StepMaxima QuantisedMaxima(int64_t pages, int32_t head_dim = 32) {
  StepMaxima maxima = SmallMaxima();
  maxima.head_dim = head_dim;
  maxima.quantised_pages = pages;
  maxima.page_size = 16;
  return maxima;
}

// So are those of which pages are decoded: of two windows both are kept, of ten none is found again.
TEST(CudaAttention, LayersOfManyWindowsShareAStepOverDecodedPages) {
  for (const std::vector<int32_t>& windows :
       {std::vector<int32_t>{50, 3}, {50, 3, 5, 7, 9, 11, 13, 17, 19, 40}}) {
    Device device;
    ASSERT_EQ(device.backend->Reserve(QuantisedMaxima(10)), OpCode::kOk) << device.backend->last_error();
    PagedAttention attention(device, 32, 16, DType::kInt8);
    for (const PagedAttention::Batch& batch : {kLongBatch, kOtherBatch}) {
      attention.Set(batch);
      ASSERT_TRUE(cuda::DecodesPages(attention.Params(0), cuda::DecodedRoomFor(QuantisedMaxima(10))));
      for (size_t layer = 0; layer < 2 * windows.size(); ++layer) {
        const int32_t window = windows[layer % windows.size()];
        SCOPED_TRACE("layer " + std::to_string(layer) + " window " + std::to_string(window));
        attention.Queue(window);
        attention.ExpectAsDefined(window);
      }
    }
  }
}

TEST(CudaAttention, TheRotaryTableBeginsAStepWithListsOfItsOwn) {
  constexpr int32_t kWindow = 50;
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  const int32_t* positions = device.Upload(std::vector<int32_t>{34});
  const double* frequency = device.Upload(std::vector<double>(16, 0.1));
  float* cos_sin = device.Allocate<float>(32);
  PagedAttention attention(device);
  attention.Set(kLongBatch);
  attention.Queue(kWindow);
  attention.ExpectAsDefined(kWindow);
  attention.Set(kOtherBatch, PagedAttention::Written::kBehindTheBackend);
  ASSERT_EQ(device.backend->RopeTable({positions, 1, frequency, 16, cos_sin}), OpCode::kOk);
  attention.Queue(kWindow);
  attention.ExpectAsDefined(kWindow);
}

// A recorded step makes its lists where those of any step lie.
TEST(CudaAttention, AReplayedStepLeavesNoListsToTheCallsAfterIt) {
  constexpr int32_t kWindow = 50;
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  PagedAttention recorded(device), after(device);
  recorded.Set(kOtherBatch);
  after.Set(kLongBatch);
  ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
  recorded.Queue(kWindow);
  RecordingHandle recording;
  ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
  after.Queue(kWindow);
  after.ExpectAsDefined(kWindow);
  ASSERT_EQ(device.backend->Replay(recording), OpCode::kOk);
  recorded.ExpectAsDefined(kWindow);
  after.Queue(kWindow);
  after.ExpectAsDefined(kWindow);
  device.backend->FreeRecording(recording);
}

TEST(CudaRecording, WhatRecordingsTakeIsSaid) {
  Device device;
  ASSERT_EQ(device.backend->Reserve(SmallMaxima()), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device);
  attention.Set(kOtherBatch);
  attention.Queue(50);
  EXPECT_STREQ(device.backend->remarks(), "");
  RecordingHandle recordings[2];
  for (RecordingHandle& recording : recordings) {
    ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
    attention.Queue(50);
    ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
  }
  const int64_t taken = device.runtime->properties().memory_bytes - device.runtime->FreeBytes();
  const int64_t commands = taken / emulator::EmulatedRuntime::kBytesOfRecordedCommand;
  ASSERT_GE(commands, 2 * 2) << "a list and a kernel each";
  EXPECT_THAT(device.backend->remarks(),
              testing::MatchesRegex("2 recordings of [0-9]+ launches take " + std::to_string(taken) +
                                    " bytes of device memory\n"));
  for (const RecordingHandle recording : recordings) device.backend->FreeRecording(recording);
}

// Boxes that the TMA unit copied for one call.
int64_t BoxesOf(Device& device, PagedAttention& attention, int32_t window) {
  emulator::TotalStats() = {};
  attention.Queue(window);
  EXPECT_EQ(device.runtime->Synchronize(), 0);
  return emulator::TotalStats().boxes;
}

const PagedAttention::Batch kDecodeBatch = {{{0, 600}, {0, 90}}, {1, 1}};  // the first in parts

StepMaxima HopperMaxima() {
  StepMaxima maxima = SmallMaxima();
  maxima.head_dim = 64;
  return maxima;
}

TEST(CudaAttention, AHopperDeviceGoesByItsOwnKernelsWhereTheyServeThePages) {
  for (const bool hopper : {true, false}) {
    for (const auto& [page_size, prefill, decode] :
         {std::tuple{16, true, true}, {128, true, false}, {4, false, false}}) {
      SCOPED_TRACE("pages of " + std::to_string(page_size) + (hopper ? " on Hopper" : " before it"));
      Device device;
      device.runtime->set_hopper(hopper);
      ASSERT_EQ(device.backend->Reserve(HopperMaxima()), OpCode::kOk) << device.backend->last_error();
      PagedAttention attention(device, 64, page_size);
      for (const int32_t window : {0, 40}) {
        const PagedSpan rolled = {window == 0 ? 0 : 128, 190};
        attention.Set({{{0, 135}, rolled}, {20, 3}});
        EXPECT_EQ(BoxesOf(device, attention, window) > 0, hopper && prefill);
        attention.ExpectAsDefined(window);
        attention.Set({{{0, 65}, rolled}, {1, 1}});
        EXPECT_EQ(BoxesOf(device, attention, window) > 0, hopper && decode);
        attention.ExpectAsDefined(window);
      }
    }
  }
}

cuda::DeviceProperties DeviceOf(int64_t shared_kib) {
  cuda::DeviceProperties device;
  device.multiprocessors = 100;
  device.shared_bytes = shared_kib * 1024;
  device.shared_bytes_reserved = 1024;
  return device;
}

// In groups of 4 query heads.
AttentionParams CallOf(int64_t tokens, int32_t batch, int32_t head_dim, int32_t page_size) {
  const KvFormat format = {
      .element = DType::kBf16, .kv_heads = 8, .head_dim = head_dim, .page_size = page_size};
  AttentionParams call;
  call.query_heads = 32;
  call.query = MakeTensor(nullptr, DType::kBf16, tokens, int64_t{call.query_heads} * head_dim);
  call.kv = KvLayerView(format, nullptr, format.PageBytes(1));
  call.batch = batch;
  return call;
}

// Rows of a tile that a call of so many tokens is planned in, before Hopper or by mma.sync on it.
int32_t PlannedRows(int64_t tokens, int32_t batch, int32_t head_dim = 64, int32_t page_size = 16,
                    bool hopper = false) {
  cuda::DeviceProperties device = DeviceOf(228);
  device.hopper = hopper;
  const AttentionParams call = CallOf(tokens, batch, head_dim, page_size);
  const cuda::AttentionKernels kernels = cuda::ChooseAttention(call, device);
  EXPECT_EQ(kernels == cuda::AttentionKernels::kHopperPrefill, hopper && page_size == 16);
  const cuda::AttentionTiling tiling = cuda::TileAttention(call, kernels, device);
  EXPECT_EQ(tiling.target_blocks, tiling.tile_rows == 16                        ? 300
                                  : kernels == cuda::AttentionKernels::kMmaSync ? 200
                                                                                : 100);
  return tiling.tile_rows;
}

// Two blocks for each of 100 multiprocessors, 8 of them for the kv heads of a tile: 25 full tiles of 32
// tokens, beside one of each sequence that may not be full.
TEST(CudaAttentionChoiceTest, WideTilesAreForCallsThatFillTheDeviceWithFullOnes) {
  EXPECT_EQ(PlannedRows(26 * 32, 1), 128);
  EXPECT_EQ(PlannedRows(26 * 32 - 1, 1), 64);
  EXPECT_EQ(PlannedRows(50 * 32, 25), 128);
  EXPECT_EQ(PlannedRows(50 * 32, 26), 64) << "24 may be all that are full";
  EXPECT_EQ(PlannedRows(60 * 32, 31), 64) << "more may be ragged than are full";
  EXPECT_EQ(PlannedRows(4096, 1024), 16) << "a decode";
  for (const int32_t head_dim : {32, 96, 128}) EXPECT_EQ(PlannedRows(4096, 1, head_dim), 64) << head_dim;
  EXPECT_EQ(PlannedRows(4096, 1, 64, 4, /*hopper=*/true), 128) << "pages that no box serves";
  EXPECT_EQ(PlannedRows(100, 1, 64, 16, /*hopper=*/true), cuda::kHopperPrefillRows);
}

// Multiprocessors of sm_80, sm_89 and sm_90 have 164, 100 and 228 KiB; registers leave room for three blocks
// of 16 rows, for two of more.
TEST(CudaAttentionChoiceTest, SplitsAimForTheBlocksThatSharedMemoryHasRoomFor) {
  using cuda::AttentionKernels;
  struct Row {
    AttentionKernels kernels;
    int64_t tokens;  // of one sequence
    int32_t head_dim;
    int32_t tile_rows;
    std::array<int32_t, 3> blocks;  // of a multiprocessor
  };
  const Row rows[] = {{AttentionKernels::kMmaSync, 1, 32, 16, {3, 3, 3}},
                      {AttentionKernels::kMmaSync, 1, 64, 16, {3, 2, 3}},
                      {AttentionKernels::kMmaSync, 1, 96, 16, {3, 1, 3}},
                      {AttentionKernels::kMmaSync, 1, 128, 16, {2, 1, 3}},
                      {AttentionKernels::kMmaSync, 100, 128, 64, {2, 1, 2}},
                      {AttentionKernels::kMmaSync, 4096, 64, 128, {2, 2, 2}},
                      {AttentionKernels::kByRow, 1, 96, 16, {2, 1, 3}},
                      {AttentionKernels::kByRow, 1, 128, 16, {2, 1, 3}},
                      {AttentionKernels::kLatent, 1, 64, 16, {3, 3, 3}},
                      {AttentionKernels::kLatent, 1, 576, 16, {1, 1, 2}}};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.blocks.size(); ++i) {
      const int64_t kib[] = {164, 100, 228};
      const AttentionParams call = CallOf(row.tokens, 1, row.head_dim, 16);
      const cuda::DeviceProperties device = DeviceOf(kib[i]);
      const cuda::AttentionTiling tiling = cuda::TileAttention(call, row.kernels, device);
      SCOPED_TRACE("heads of " + std::to_string(row.head_dim) + ", " + std::to_string(kib[i]) + " KiB");
      EXPECT_EQ(tiling.tile_rows, row.tile_rows);
      EXPECT_EQ(tiling.target_blocks, row.blocks[i] * device.multiprocessors);
      EXPECT_LE(tiling.target_blocks, cuda::MostTargetBlocks(device, row.tile_rows));
    }
  }
}

// Of a block of attention, in heads of 64 by mma.sync: its rows, and two tiles of keys and of values.
int64_t SharedBytesOfTile(int32_t rows) { return (rows + 4 * cuda::kKeyTile) * int64_t{64} * 2; }

// Of 512 rows two tiles of 128 are full however they fall to two sequences: with two kv heads as many blocks
// as two multiprocessors take at once. The second sequence has more than its share of the keys, and is in
// parts.
TEST(CudaAttention, AStepThatFillsTheDeviceWithWideTilesGoesByThem) {
  Device device;
  device.runtime->set_multiprocessors(2);
  StepMaxima maxima = SmallMaxima();
  maxima.head_dim = 64;
  maxima.tokens = PagedAttention::kMostTokens;
  maxima.context = 1000;
  ASSERT_EQ(device.backend->Reserve(maxima), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device, 64);
  for (const auto& [tokens, rows] : {std::pair{200, cuda::kWideTileRows}, {199, cuda::kLargeTileRows}}) {
    SCOPED_TRACE(tokens);
    attention.Set({{{0, 200}, {0, 1000}}, {tokens, 56}});
    emulator::TotalStats() = {};
    attention.Queue(0);
    EXPECT_EQ(device.runtime->Synchronize(), 0);
    EXPECT_EQ(emulator::TotalStats().shared_bytes, SharedBytesOfTile(rows));
    attention.ExpectAsDefined(0);
  }
}

// Parts are counted to the last one, and the count begins again at each replay. The kernel that has written
// them joins them: behind the lists one launch is all.
TEST(CudaAttention, ARecordedStepOfPartsIsReplayed) {
  const PagedAttention::Batch prefill = {kDecodeBatch.spans, {20, 9}};
  for (const bool hopper : {false, true}) {
    for (const auto& [batch, launches] : {std::pair{kDecodeBatch, 3}, {prefill, 2}}) {
      SCOPED_TRACE(std::to_string(batch.queries[0]) + " queries" + (hopper ? " on Hopper" : ""));
      Device device;
      device.runtime->set_hopper(hopper);
      ASSERT_EQ(device.backend->Reserve(HopperMaxima()), OpCode::kOk) << device.backend->last_error();
      PagedAttention attention(device, 64);
      attention.Set(batch);
      const int64_t free_before = device.runtime->FreeBytes();
      ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
      attention.Queue(0);
      RecordingHandle recording;
      ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
      EXPECT_EQ(free_before - device.runtime->FreeBytes(),
                launches * emulator::EmulatedRuntime::kBytesOfRecordedCommand);
      for (int i = 0; i < 3; ++i) {
        attention.Forget();
        ASSERT_EQ(device.backend->Replay(recording), OpCode::kOk);
        attention.ExpectAsDefined(0);
      }
      device.backend->FreeRecording(recording);
    }
  }
}

// What a decode of eight sequences whose rows fill a tile reads, recorded while they share `tiles` of 64
// keys; replayed, and replayed over page tables of their own.
void CountSharing(bool hopper, int64_t tiles, int64_t* shared, int64_t* alone) {
  constexpr int32_t kSequences = 8;
  Device device;
  device.runtime->set_hopper(hopper);
  ASSERT_EQ(device.backend->Reserve(HopperMaxima()), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device, 64, 64);
  const PagedAttention::Batch batch = {std::vector<PagedSpan>(kSequences, {0, tiles * 64 + 20}),
                                       std::vector<int32_t>(kSequences, 1), tiles * 64};
  attention.Set(batch);
  ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
  attention.Queue(0);
  RecordingHandle recording;
  ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
  const auto replay = [&] {
    attention.Forget();
    EXPECT_EQ(device.runtime->Synchronize(), 0);
    emulator::TotalStats() = {};
    EXPECT_EQ(device.backend->Replay(recording), OpCode::kOk);
    EXPECT_EQ(device.runtime->Synchronize(), 0);
    const int64_t bytes = emulator::TotalStats().global_read_bytes;
    attention.ExpectAsDefined(0);
    return bytes;
  };
  *shared = replay();
  EXPECT_EQ(replay(), *shared);
  attention.Rewrite({batch.spans, batch.queries});
  *alone = replay();
  device.backend->FreeRecording(recording);
}

// A tile of keys is 32 KiB here, and seven of eight walks over 37 tiles are the 8 MiB that must be saved.
TEST(CudaAttention, ARecordedDecodeReadsOnceWhatItsSequencesShareByThen) {
  constexpr double kTileBytes = 64 * 4 * 64 * PagedAttention::kKvHeads;
  for (const bool hopper : {false, true}) {
    SCOPED_TRACE(hopper ? "on Hopper" : "before it");
    int64_t shared = 0, alone = 0;
    CountSharing(hopper, 37, &shared, &alone);
    // Lists and parts are little beside it.
    EXPECT_NEAR(static_cast<double>(alone - shared), 7 * 37 * kTileBytes, 0.03 * 7 * 37 * kTileBytes);
    CountSharing(hopper, 36, &shared, &alone);
    EXPECT_NEAR(static_cast<double>(alone), static_cast<double>(shared), 0.03 * 7 * 36 * kTileBytes);
  }
}

// ---- plain sequences in front of others that see sinks or have a mask

// What a call took.
struct Taken {
  int64_t commands = 0;  // lists and kernels
  emulator::LaunchStats stats;
  std::vector<uint16_t> out;
};

std::vector<int64_t> Counted(const Taken& taken) {
  const emulator::LaunchStats& stats = taken.stats;
  return {taken.commands,     stats.global_read_bytes, stats.global_written_bytes, stats.barriers,
          stats.matrix_loads, stats.bank_conflicts,    stats.joined_parts,         stats.boxes};
}

// Its lists are made for it: writing begins a step.
Taken Take(Device& device, PagedAttention& attention, const AttentionParams& params) {
  attention.Forget();
  const auto& queue = *static_cast<const emulator::CommandQueue*>(device.runtime->stream());
  const int64_t before = queue.queued();
  emulator::TotalStats() = {};
  attention.Queue(params);
  Taken taken;
  taken.commands = queue.queued() - before;
  EXPECT_EQ(device.runtime->Synchronize(), 0);
  taken.stats = emulator::TotalStats();
  taken.out = attention.Out();
  return taken;
}

// A batch whose last sequence sees four sinks in front of its newest 20 keys, or has a mask of all of them.
struct MixedCase {
  const char* name;
  PagedAttention::Batch batch;
  bool masked;
};

AttentionParams WithOthers(Device& device, const MixedCase& c, AttentionParams params) {
  const std::vector<int32_t>& queries = c.batch.queries;
  const int32_t tokens = std::accumulate(queries.begin(), queries.end(), 0);
  params.plain = {.sequences = params.batch - 1, .tokens = tokens - queries.back()};
  const auto end = static_cast<int32_t>(c.batch.spans.back().kv_end);
  if (c.masked) {
    std::vector<int32_t> indptr(queries.size() + 1);
    indptr.back() = (queries.back() * end + 7) / 8;
    params.mask.bits = device.Upload(std::vector<uint8_t>(static_cast<size_t>(indptr.back()), 0xff));
    params.mask.indptr = device.Upload(indptr);
    return params;
  }
  std::vector<int32_t> len(static_cast<size_t>(tokens)), left(len), position(len);
  for (int32_t i = 0; i < queries.back(); ++i) {
    const auto token = static_cast<size_t>(params.plain.tokens + i);
    len[token] = 4;
    left[token] = end - queries.back() + i - 19;
    position[token] = 23;
  }
  params.sinks = {.len = device.Upload(len),
                  .left = device.Upload(left),
                  .query_position = device.Upload(position),
                  .query = params.query};
  return params;
}

// A device with room for the sequences of a mixed case, which are there.
struct MixedDevice : Device {
  MixedDevice(bool hopper, const MixedCase& c) {
    runtime->set_hopper(hopper);
    StepMaxima maxima = HopperMaxima();
    maxima.sequences = PagedAttention::kMostSequences;
    EXPECT_EQ(backend->Reserve(maxima), OpCode::kOk) << backend->last_error();
    attention.Set(c.batch);
  }
  PagedAttention attention{*this, 64, 64};
};

// The plain ones by the kernels and in the shares that they have alone, to the last bit; the last one as it
// is attended alone. Of a call that does not say which are plain all go by row.
void ExpectEachAsAlone(bool hopper, const MixedCase& c) {
  MixedDevice device(hopper, c);
  PagedAttention& attention = device.attention;
  const AttentionParams call = WithOthers(device, c, attention.Params(0));
  const Taken mixed = Take(device, attention, call);

  AttentionParams plain = attention.Params(0);
  plain.batch = call.plain.sequences;
  plain.query.rows = call.plain.tokens;
  const Taken plain_alone = Take(device, attention, plain);
  AttentionParams other = call;
  other.plain = {};
  other.batch = 1;
  other.query.rows = c.batch.queries.back();
  other.table.first_entry += call.plain.sequences;
  other.table.kv_base += call.plain.sequences;
  other.table.kv_end += call.plain.sequences;
  other.qo_indptr += call.plain.sequences;
  if (c.masked) other.mask.indptr += call.plain.sequences;
  const Taken other_alone = Take(device, attention, other);

  std::vector<int64_t> sum = Counted(plain_alone);
  const std::vector<int64_t> more = Counted(other_alone);
  std::transform(sum.begin(), sum.end(), more.begin(), sum.begin(), std::plus<>());
  EXPECT_THAT(Counted(mixed), testing::ElementsAreArray(sum));
  const bool may_share = plain.batch > 1 && plain.query.rows == plain.batch;
  EXPECT_EQ(plain_alone.commands, may_share ? 3 : 2) << "lists and one kernel";
  EXPECT_EQ(other_alone.commands, 2);
  EXPECT_EQ(plain_alone.stats.boxes > 0, hopper);
  EXPECT_EQ(other_alone.stats.boxes, 0);
  const auto first_of_last = static_cast<size_t>(call.plain.tokens) * static_cast<size_t>(call.query.columns);
  for (size_t i = 0; i < mixed.out.size(); ++i) {
    ASSERT_EQ(mixed.out[i], (i < first_of_last ? plain_alone : other_alone).out[i]) << "element " << i;
  }

  AttentionParams unsaid = call;
  unsaid.plain = {};
  const Taken by_row = Take(device, attention, unsaid);
  EXPECT_EQ(by_row.commands, 2);
  EXPECT_EQ(by_row.stats.boxes, 0);
  if (c.batch.shared > 0) {
    EXPECT_GT(by_row.stats.global_read_bytes, 3 * mixed.stats.global_read_bytes);
  }
}

TEST(CudaAttention, PlainSequencesBesideOthersGoTheWayTheyGoAlone) {
  const PagedSpan long_span = {0, 600}, other = {0, 90};
  std::vector<PagedSpan> sharing(8, {0, 37 * 64 + 20});
  sharing.push_back(other);
  for (const bool masked : {false, true}) {
    const MixedCase cases[] = {
        {"decode, the first in parts", {{long_span, {0, 90}, other}, {1, 1, 1}}, masked},
        {"decode over keys in common", {sharing, std::vector<int32_t>(9, 1), 37 * 64}, masked},
        {"prompts", {{long_span, {0, 90}, other}, {20, 9, 5}}, masked},
        {"a prompt beside one row", {{long_span, other}, {30, 1}}, masked}};
    for (const MixedCase& c : cases) {
      for (const bool hopper : {false, true}) {
        SCOPED_TRACE(std::string(c.name) + (masked ? ", a mask" : ", sinks") + (hopper ? ", on Hopper" : ""));
        ExpectEachAsAlone(hopper, c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// By which kernels a call went.
struct Way {
  int64_t commands = 0;  // lists and kernels
  int64_t shared_bytes = 0;
  bool by_boxes = false;

  bool operator==(const Way&) const = default;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.commands << " commands, " << way.shared_bytes << " bytes" << (way.by_boxes ? ", by boxes" : "");
}

Way WayOf(Device& device, PagedAttention& attention, const AttentionParams& params) {
  const auto& queue = *static_cast<const emulator::CommandQueue*>(device.runtime->stream());
  const int64_t before = queue.queued();
  emulator::TotalStats() = {};
  attention.Queue(params);
  const int64_t commands = queue.queued() - before;
  EXPECT_EQ(device.runtime->Synchronize(), 0);
  return {commands, emulator::TotalStats().shared_bytes, emulator::TotalStats().boxes > 0};
}

const PagedAttention::Batch kPrompts = {{{0, 90}, {0, 70}}, {30, 3}};  // 6 + 5 pages of 16

// A list of pages and one of work a step, of each window; a kernel that decodes and one that attends a layer.
TEST(CudaAttention, QuantisedPagesOfManyRowsAreDecodedOnceALayer) {
  for (const DType pages : {DType::kInt8, DType::kInt4, DType::kFp8E4M3}) {
    for (const bool hopper : {false, true}) {
      SCOPED_TRACE(std::string(DTypeName(pages)) + (hopper ? " on Hopper" : ""));
      Device device;
      device.runtime->set_hopper(hopper);
      ASSERT_EQ(device.backend->Reserve(QuantisedMaxima(11, 64)), OpCode::kOk);
      PagedAttention attention(device, 64, 16, pages);
      attention.Set(kPrompts);
      for (const int32_t window : {0, 40}) {
        attention.Forget();
        for (int layer = 0; layer < 3; ++layer) {
          const Way way = WayOf(device, attention, attention.Params(window));
          EXPECT_EQ(way.commands, layer == 0 ? 4 : 2) << "layer " << layer;
          EXPECT_EQ(way.by_boxes, hopper);
          if (!hopper) {
            EXPECT_EQ(way.shared_bytes, SharedBytesOfTile(64));
          }
        }
        attention.ExpectAsDefined(window);
      }
    }
  }
}

// Two layers of a step whose pages differ, as do those of any two: what is decoded is the layer's own.
TEST(CudaAttention, EachLayersOwnPagesAreDecoded) {
  Device device;
  ASSERT_EQ(device.backend->Reserve(QuantisedMaxima(11)), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device, 32, 16, DType::kInt8);
  attention.Set(kPrompts);
  AttentionParams other = attention.Params(0);
  const int64_t bytes = other.kv.page_bytes * 16;
  auto* const zeros = device.Allocate<std::byte>(static_cast<size_t>(bytes));
  other.kv.scale.scales = zeros + (other.kv.scale.scales - other.kv.pool);
  other.kv.pool = zeros;
  attention.Queue(0);
  attention.ExpectAsDefined(0);
  attention.Queue(other);
  EXPECT_THAT(attention.Out(), testing::Each(testing::AnyOf(0, 0x8000)));
  attention.Queue(0);
  attention.ExpectAsDefined(0);
}

// What is not known to have room, or to have many rows, and what a window alone does not decide.
TEST(CudaAttention, OtherQuantisedPagesAreReadByRow) {
  for (const int64_t pages : {0, 10, 11}) {
    SCOPED_TRACE("room for " + std::to_string(pages) + " pages");
    Device device;
    device.runtime->set_hopper(true);
    ASSERT_EQ(device.backend->Reserve(QuantisedMaxima(pages, 64)), OpCode::kOk);
    PagedAttention attention(device, 64, 16, DType::kInt8);
    attention.Set(kPrompts);
    const bool decodes = pages == 11;
    AttentionParams unknown = attention.Params(0);
    unknown.table.listed_pages = 0;
    const Way by_row = WayOf(device, attention, unknown);
    EXPECT_EQ(by_row.commands, 2);
    EXPECT_FALSE(by_row.by_boxes);
    attention.ExpectAsDefined(0);

    attention.Forget();
    EXPECT_EQ(WayOf(device, attention, attention.Params(0)) == by_row, !decodes);
    attention.ExpectAsDefined(0);

    attention.Set({kPrompts.spans, {8, 8}});  // 16 tokens in groups of 2 are the rows of two tiles
    EXPECT_EQ(WayOf(device, attention, attention.Params(0)), by_row);
    attention.ExpectAsDefined(0);
    attention.Set({kPrompts.spans, {9, 8}});
    EXPECT_EQ(WayOf(device, attention, attention.Params(0)) == by_row, !decodes);
    attention.ExpectAsDefined(0);

    const MixedCase c = {"", kPrompts, true};
    attention.Set(c.batch);
    AttentionParams masked = WithOthers(device, c, attention.Params(0));
    masked.plain = {};
    attention.Forget();
    EXPECT_EQ(WayOf(device, attention, masked), by_row);
  }
}

// The plain ones are decoded, in the room that their pages alone take, and the others go by row.
TEST(CudaAttention, PlainSequencesBesideOthersAreDecodedAlone) {
  const MixedCase c = {"", {{{0, 90}, {0, 70}, {0, 90}}, {30, 1, 3}}, true};
  Device device;
  device.runtime->set_hopper(true);
  ASSERT_EQ(device.backend->Reserve(QuantisedMaxima(11, 64)), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device, 64, 16, DType::kInt4);
  attention.Set(c.batch);
  AttentionParams call = WithOthers(device, c, attention.Params(0));
  call.table.listed_pages = 11;
  attention.Forget();
  const Way way = WayOf(device, attention, call);
  EXPECT_EQ(way.commands, 4 + 2);
  EXPECT_TRUE(way.by_boxes);
}

// Where products have their rows and logits: beyond these, and the lists, the room takes nothing.
TEST(CudaReserve, DecodedPagesLieWhereProductsHaveTheirRows) {
  const Device device;
  const auto bytes = [&](int64_t pages) { return device.backend->WorkspaceBytes(QuantisedMaxima(pages)); };
  constexpr int64_t kPage = 2 * 2 * 16 * 32 * 2;  // keys and values, 2 heads, 16 tokens, 32 dims, bf16
  const auto lists = [](int64_t pages) {
    // Eight of: 2 entries a page, 8 sequences, a count; in pieces of 16 bytes.
    return (8 * (2 * ((pages * 4 + 15) / 16 * 16) + 32 + 16) + 255) / 256 * 256;
  };
  EXPECT_EQ(bytes(4) - bytes(0), lists(4)) << "rows of products are larger";
  EXPECT_EQ(bytes(4096 + 100) - bytes(4096), 100 * kPage + lists(4096 + 100) - lists(4096));
  constexpr int64_t kMost = cuda::kMostDecodedPageBytes / kPage;
  EXPECT_EQ(bytes(kMost) - bytes(kMost - 64), 64 * kPage + lists(kMost) - lists(kMost - 64));
  EXPECT_EQ(bytes(kMost + 64), bytes(kMost));
}

// Two lists a step, two kernels a layer; without others one of each, whatever is said of plain ones.
TEST(CudaAttention, LayersOfAMixedStepShareItsTwoLists) {
  const MixedCase c = {"", {{{0, 90}, {0, 70}, {0, 90}}, {4, 1, 3}}, false};
  Device device;
  ASSERT_EQ(device.backend->Reserve(HopperMaxima()), OpCode::kOk) << device.backend->last_error();
  PagedAttention attention(device, 64);
  attention.Set(c.batch);
  const AttentionParams call = WithOthers(device, c, attention.Params(0));
  AttentionParams none_sees = attention.Params(0);
  none_sees.plain = call.plain;
  const auto& queue = *static_cast<const emulator::CommandQueue*>(device.runtime->stream());
  for (const auto& [params, kernels] : {std::pair{call, 2}, {none_sees, 1}, {attention.Params(0), 1}}) {
    attention.Forget();
    for (int layer = 0; layer < 3; ++layer) {
      const int64_t before = queue.queued();
      attention.Queue(params);
      EXPECT_EQ(queue.queued() - before, layer == 0 ? 2 * kernels : kernels) << "layer " << layer;
    }
  }
}

// Recorded while all sequences are of the other kind; replayed over a batch in which the last one alone is,
// and over the first one again.
TEST(CudaAttention, ARecordedDecodeTellsPlainSequencesFromOthersByThen) {
  std::vector<PagedSpan> spans(8, {0, 37 * 64 + 20});
  spans.push_back({0, 90});
  const MixedCase c = {"", {spans, std::vector<int32_t>(9, 1), 37 * 64}, false};
  std::vector<int32_t> none(10, 0), all(10), in_front(10), last(10, 8);
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = 0; i < in_front.size(); ++i) in_front[i] = std::min(all[i], 8);
  last.back() = 9;
  for (const bool hopper : {false, true}) {
    SCOPED_TRACE(hopper ? "on Hopper" : "before it");
    MixedDevice device(hopper, c);
    PagedAttention& attention = device.attention;
    const AttentionParams call = WithOthers(device, c, attention.Params(0));
    const Taken mixed = Take(device, attention, call);
    AttentionParams unsaid = call;
    unsaid.plain = {};
    const Taken by_row = Take(device, attention, unsaid);

    int32_t *const plain = device.Upload(none), *const others = device.Upload(all);
    AttentionParams recorded = call;
    recorded.plain = {.qo_indptr = plain, .others_qo_indptr = others};
    ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
    attention.Queue(recorded);
    RecordingHandle recording;
    ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
    for (const bool all_others : {false, true, false}) {
      device.Write(plain, all_others ? none : in_front);
      device.Write(others, all_others ? all : last);
      attention.Forget();
      emulator::TotalStats() = {};
      ASSERT_EQ(device.backend->Replay(recording), OpCode::kOk);
      EXPECT_EQ(device.runtime->Synchronize(), 0);
      const emulator::LaunchStats& stats = emulator::TotalStats();
      const Taken& want = all_others ? by_row : mixed;
      EXPECT_EQ(attention.Out(), want.out);
      EXPECT_EQ(stats.boxes, want.stats.boxes);
      EXPECT_EQ(stats.boxes > 0, hopper && !all_others);
      EXPECT_EQ(stats.matrix_loads, want.stats.matrix_loads);
      // Blocks without an item look whether they have one.
      const auto bytes = static_cast<double>(want.stats.global_read_bytes);
      EXPECT_NEAR(static_cast<double>(stats.global_read_bytes), bytes, 0.01 * bytes);
    }
    device.backend->FreeRecording(recording);
  }
}

// ---- recorded steps -----------------------------------------------------------------------------

TEST(CudaRecording, RefusesToWaitOrToTakeMemory) {
  Device device;
  ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
  EXPECT_EQ(device.backend->Allocate(64), nullptr);
  EXPECT_EQ(device.backend->WaitFence(device.backend->RecordFence()), OpCode::kDeviceFault);
  RecordingHandle recording;
  ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
  device.backend->FreeRecording(recording);
  EXPECT_EQ(device.backend->WaitFence(device.backend->RecordFence()), OpCode::kOk);
}

// One decode step of two sequences over one windowed layer: embedding, qkv, rotary append, attention, output.
class SmallStep {
 public:
  static constexpr int32_t kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kVocab = 24, kPageSize = 4;
  static constexpr int32_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
  static constexpr int32_t kPages = 8;

  explicit SmallStep(Device& device) : device_(device), backend_(*device.backend) {
    EXPECT_EQ(backend_.Reserve(SmallMaxima()), OpCode::kOk) << backend_.last_error();
    table_ = Pack(kVocab, kHidden, 11);
    qkv_ = Pack(kQkv, kHidden, 12);
    out_ = Pack(kHidden, kHeads * kHeadDim, 13);
    kv_ = KvLayerView(
        {.element = DType::kBf16, .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = kPageSize});
    kv_.page_bytes = kv_.format.PageBytes(1);
    const std::vector<uint16_t> pool = RandomBf16(kPages * kv_.page_bytes / 2, 14, 1.0f);
    pool_ = device.Upload(pool);
    kv_.pool = reinterpret_cast<std::byte*>(pool_);
    hidden_ = device.Allocate<uint16_t>(2 * kHidden);
    qkv_rows_ = device.Allocate<uint16_t>(2 * kQkv);
    attention_ = device.Allocate<uint16_t>(2 * kHeads * kHeadDim);
    cos_sin_ = device.Allocate<float>(2 * kHeadDim);
    std::vector<double> frequency;
    for (int i = 0; i < kHeadDim / 2; ++i) frequency.push_back(std::pow(1e4, -2.0 * i / kHeadDim));
    frequency_ = device.Upload(frequency);
    token_ids = device.Allocate<int32_t>(2);
    positions_ = device.Allocate<int32_t>(2);
    page_indices_ = device.Allocate<int32_t>(kPages);
    first_entry_ = device.Allocate<int32_t>(2);
    kv_end_ = device.Allocate<int32_t>(2);
    kv_base_ = device.Upload(std::vector<int32_t>{0, 0});
    slots_ = device.Allocate<int64_t>(2);
    qo_indptr_ = device.Upload(std::vector<int32_t>{0, 1, 2});
  }

  // Two sequences, of which `lengths` tokens are in their pages once the step has run.
  void SetBatch(const std::vector<int32_t>& ids, const std::vector<int32_t>& lengths) {
    std::vector<int32_t> first, pages, positions;
    std::vector<int64_t> slots;
    for (int32_t s = 0; s < 2; ++s) {
      const int32_t length = lengths[static_cast<size_t>(s)];
      const auto count = static_cast<int32_t>(PagesFor(length, kPageSize));
      first.push_back(static_cast<int32_t>(pages.size()));
      for (int32_t i = 0; i < count; ++i) pages.push_back((5 * s + 3 * i + 1) % kPages);
      positions.push_back(length - 1);
      slots.push_back(SlotOf(pages.back(), length - 1, kPageSize));
    }
    device_.Write(token_ids, ids);
    device_.Write(positions_, positions);
    device_.Write(page_indices_, pages);
    device_.Write(first_entry_, first);
    device_.Write(kv_end_, lengths);
    device_.Write(slots_, slots);
  }

  void Queue() {
    const Tensor hidden = MakeTensor(hidden_, DType::kBf16, 2, kHidden);
    const Tensor qkv = MakeTensor(qkv_rows_, DType::kBf16, 2, kQkv);
    const Tensor attention = MakeTensor(attention_, DType::kBf16, 2, kHeads * kHeadDim);
    const PageTableView table = {.page_indices = page_indices_,
                                 .first_entry = first_entry_,
                                 .kv_base = kv_base_,
                                 .kv_end = kv_end_,
                                 .slots = slots_};
    Expect(backend_.Embed({.token_ids = token_ids, .tokens = 2, .table = table_, .out = hidden}));
    Expect(backend_.RopeTable({positions_, 2, frequency_, kHeadDim / 2, cos_sin_}));
    Expect(backend_.Linear({.x = hidden, .rows = 2, .weight = qkv_, .out = qkv}));
    Expect(backend_.RopeAppend({qkv, cos_sin_, RotaryStyle::kHalfSplit, kHeads, kv_, slots_}));
    const Tensor query = {qkv.data, qkv.dtype, qkv.rows, kHeads * kHeadDim, qkv.row_stride};
    Expect(backend_.Attention({query, attention, kv_, table, qo_indptr_, 2, kHeads, /*window=*/6, 0.18f}));
    Expect(backend_.Linear(
        {.x = attention, .rows = 2, .weight = out_, .epilogue = Epilogue::kAddResidual, .out = hidden}));
  }

  // The same with the embedding fetched by a host that looks the token ids up itself: the planted fault.
  void QueueReadingOnTheHost() {
    const int32_t first = token_ids[0];
    const int32_t second = token_ids[1];
    Queue();
    const Tensor hidden = MakeTensor(hidden_, DType::kBf16, 2, kHidden);
    const std::vector<int32_t> baked = {first, second};
    host_ids_ = baked;
    Expect(backend_.Upload(token_ids, host_ids_.data(), 8));
    Expect(backend_.Embed({.token_ids = token_ids, .tokens = 2, .table = table_, .out = hidden}));
  }

  std::vector<uint16_t> Hidden() { return device_.Read(hidden_, 2 * kHidden); }

  int32_t* token_ids;

 private:
  WeightHandle Pack(int64_t rows, int64_t columns, uint64_t seed) {
    const std::vector<uint16_t> bits = RandomBf16(rows * columns, seed, 0.2f);
    const WeightRows part = {bits.data(), DType::kBf16, rows, columns};
    WeightHandle weight;
    Expect(backend_.PackLinear({&part, 1, columns, LinearLayout::kStacked}, &weight));
    return weight;
  }
  void Expect(OpCode code) { EXPECT_EQ(code, OpCode::kOk) << backend_.last_error(); }

  Device& device_;
  Backend& backend_;
  WeightHandle table_, qkv_, out_;
  KvLayerView kv_;
  uint16_t *pool_, *hidden_, *qkv_rows_, *attention_;
  float* cos_sin_;
  double* frequency_;
  int32_t *positions_, *page_indices_, *first_entry_, *kv_base_, *kv_end_, *qo_indptr_;
  int64_t* slots_;
  std::vector<int32_t> host_ids_;
};

struct Replayed {
  std::vector<uint16_t> by_replay, by_itself;
};

// A step is recorded over one batch; then over another batch it is replayed, and run as it is.
template <typename Queue>
Replayed ReplayOverAnotherBatch(Queue queue) {
  Replayed result;
  {
    Device device;
    SmallStep step(device);
    step.SetBatch({3, 7}, {5, 9});
    EXPECT_EQ(device.backend->BeginRecording(), OpCode::kOk);
    queue(step);
    RecordingHandle recording;
    EXPECT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
    step.SetBatch({20, 1}, {14, 3});  // the window of 6 has left pages behind in the first
    EXPECT_EQ(device.backend->Replay(recording), OpCode::kOk);
    result.by_replay = step.Hidden();
    device.backend->FreeRecording(recording);
  }
  Device device;
  SmallStep step(device);
  step.SetBatch({20, 1}, {14, 3});
  queue(step);
  result.by_itself = step.Hidden();
  return result;
}

TEST(CudaRecording, ReplayedOverChangedBuffersAStepIsTheStep) {
  const Replayed result = ReplayOverAnotherBatch([](SmallStep& step) { step.Queue(); });
  EXPECT_EQ(result.by_replay, result.by_itself);
}

TEST(CudaRecording, AHostThatReadsDeviceMemoryInsideAStepIsFoundOut) {
  const Replayed result = ReplayOverAnotherBatch([](SmallStep& step) { step.QueueReadingOnTheHost(); });
  EXPECT_NE(result.by_replay, result.by_itself);
}

// Two rows of a vocabulary that is worth several blocks on a large device: what each asks for changes from
// replay to replay, and the blocks count themselves anew.
TEST(CudaRecording, SamplingBySeveralBlocksIsReplayedOverOtherRows) {
  constexpr int64_t kRows = 2, kVocab = 32768;
  StepMaxima maxima = SmallMaxima();
  maxima.logit_rows = kRows;
  maxima.vocab = kVocab;
  struct Sampling {
    explicit Sampling(Device& on) : device(on) {
      params.logits = MakeTensor(device.Allocate<float>(kRows * kVocab), DType::kF32, kRows, kVocab);
      params.rows = rows = device.Allocate<SamplingRow>(kRows);
      params.records = device.Allocate<SampleRecord>(kRows);
      params.top = device.Allocate<TokenLogprob>(kRows * kMaxTopLogprobs);
    }
    void Set(const std::vector<float>& logits, const std::vector<SamplingRow>& asked) {
      device.Write(static_cast<float*>(params.logits.data), logits);
      device.Write(rows, asked);
    }
    std::vector<SampleRecord> Records() { return device.Read(params.records, kRows); }
    Device& device;
    SamplingRow* rows;
    SampleParams params;
  };
  Device large, small;
  large.runtime->set_multiprocessors(132);
  ASSERT_GT(cuda::SampleBlocks(kRows, kVocab, 132), 1);
  ASSERT_EQ(cuda::SampleBlocks(kRows, kVocab, small.runtime->properties().multiprocessors), 1);
  ASSERT_EQ(large.backend->Reserve(maxima), OpCode::kOk) << large.backend->last_error();
  ASSERT_EQ(small.backend->Reserve(maxima), OpCode::kOk) << small.backend->last_error();
  Sampling recorded(large), plain(small);
  ASSERT_EQ(large.backend->BeginRecording(), OpCode::kOk);
  ASSERT_EQ(large.backend->Sample(recorded.params), OpCode::kOk);
  RecordingHandle recording;
  ASSERT_EQ(large.backend->EndRecording(&recording), OpCode::kOk);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  const std::vector<SamplingRow> asked[] = {{{.temperature = 0.0f, .wants_logprob = 0}, {.top_p = 0.5f}},
                                            {{.seed = 5}, {.top_k = 40, .seed = 6, .top_logprobs = 3}},
                                            {{.top_p = 0.8f, .top_k = 9}, {.temperature = 0.0f}}};
  for (const std::vector<SamplingRow>& rows : asked) {
    std::vector<float> logits(kRows * kVocab);
    for (float& logit : logits) logit = normal(random);
    recorded.Set(logits, rows);
    plain.Set(logits, rows);
    ASSERT_EQ(large.backend->Replay(recording), OpCode::kOk);
    ASSERT_EQ(small.backend->Sample(plain.params), OpCode::kOk);
    const std::vector<SampleRecord> replayed = recorded.Records(), expected = plain.Records();
    for (size_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(replayed[r].token, expected[r].token) << r;
      EXPECT_EQ(replayed[r].rank, expected[r].rank) << r;
      EXPECT_EQ(replayed[r].top_count, expected[r].top_count) << r;
      EXPECT_EQ(replayed[r].logprob, expected[r].logprob) << r;
    }
  }
  large.backend->FreeRecording(recording);
}

// Even without a recording: nothing has run when a step is queued.
TEST(CudaQueue, RunsNothingBeforeSomebodyWaits) {
  Device device;
  int32_t* memory = device.Upload(std::vector<int32_t>{1});
  const std::vector<int32_t> two = {2};
  ASSERT_EQ(device.backend->Upload(memory, two.data(), 4), OpCode::kOk);
  const uint64_t first = device.backend->RecordFence();
  const std::vector<int32_t> three = {3};
  ASSERT_EQ(device.backend->Upload(memory, three.data(), 4), OpCode::kOk);
  EXPECT_EQ(*memory, 1);
  ASSERT_EQ(device.backend->WaitFence(first), OpCode::kOk);
  EXPECT_EQ(*memory, 2) << "what stands behind the fence need not run for it";
  device.Wait();
  EXPECT_EQ(*memory, 3);
}

// ---- pages that move beside the steps -----------------------------------------------------------

constexpr int64_t kMovedBytes = 64;
using PageBytes = std::array<std::byte, kMovedBytes>;

PageBytes Filled(int value) {
  PageBytes bytes;
  bytes.fill(static_cast<std::byte>(value));
  return bytes;
}

// A pool of four pages, and images on the host.
struct MovingDevice : Device {
  explicit MovingDevice(EmulatedRuntime::Moves when) {
    runtime->set_moves(when);
    pool = Allocate<std::byte>(4 * kMovedBytes);
    image = static_cast<std::byte*>(backend->AllocateHost(kMovedBytes));
  }
  ~MovingDevice() { backend->FreeHost(image); }

  // Queued as a step's write would be; `bytes` must stay.
  void QueueWrite(int32_t page, const PageBytes& bytes) {
    EXPECT_EQ(backend->Upload(pool + page * kMovedBytes, bytes.data(), kMovedBytes), OpCode::kOk);
  }
  // Queued likewise: one page over another.
  void QueueCopy(int32_t from, int32_t to) {
    const int32_t* pairs = Upload(std::vector<int32_t>{from, to});
    EXPECT_EQ(backend->CopyPages({pool, kMovedBytes, pairs, 1}), OpCode::kOk);
  }
  void Move(PageMove::Way way, int32_t page, uint64_t after = 0) {
    const PageMove move = {.way = way, .page = page, .image = image};
    EXPECT_EQ(backend->MovePages(
                  {.pool = pool, .page_bytes = kMovedBytes, .moves = &move, .count = 1, .after = after}),
              OpCode::kOk);
  }
  void Await() { EXPECT_EQ(backend->AwaitMoves(), OpCode::kOk) << backend->last_error(); }
  PageBytes Image() const {
    PageBytes bytes;
    std::memcpy(bytes.data(), image, kMovedBytes);
    return bytes;
  }
  PageBytes Page(int32_t page) const {
    PageBytes bytes;
    std::memcpy(bytes.data(), pool + page * kMovedBytes, kMovedBytes);
    return bytes;
  }

  std::byte* pool = nullptr;
  std::byte* image = nullptr;
};

class CudaMoves : public testing::TestWithParam<EmulatedRuntime::Moves> {};
INSTANTIATE_TEST_SUITE_P(Times, CudaMoves,
                         testing::Values(EmulatedRuntime::Moves::kLate, EmulatedRuntime::Moves::kEarly),
                         [](const auto& info) {
                           return info.param == EmulatedRuntime::Moves::kLate ? "Late" : "Early";
                         });

TEST_P(CudaMoves, BeginBehindTheStepThatWroteThePageAndEndBeforeTheOneThatWritesItNext) {
  MovingDevice device(GetParam());
  const PageBytes written = Filled(7), next = Filled(9);
  device.QueueWrite(2, written);
  device.Move(PageMove::Way::kOut, 2, /*after=*/device.backend->RecordFence());
  device.Await();
  device.QueueWrite(2, next);
  device.Wait();
  EXPECT_EQ(device.Image(), written);
  EXPECT_EQ(device.Page(2), next);
}

TEST_P(CudaMoves, AreThereForWhatIsQueuedBehindThem) {
  MovingDevice device(GetParam());
  std::memset(device.image, 5, kMovedBytes);
  device.Move(PageMove::Way::kIn, 1);
  device.Await();
  device.QueueCopy(1, 3);
  device.Wait();
  EXPECT_EQ(device.Page(3), Filled(5));
}

// One page leaves the place that another comes to.
TEST_P(CudaMoves, RunInTheirOrder) {
  MovingDevice device(GetParam());
  const PageBytes old = Filled(3);
  device.QueueWrite(0, old);
  auto* second = static_cast<std::byte*>(device.backend->AllocateHost(kMovedBytes));
  std::memset(second, 4, kMovedBytes);
  const PageMove moves[] = {{.way = PageMove::Way::kOut, .page = 0, .image = device.image},
                            {.way = PageMove::Way::kIn, .page = 0, .image = second}};
  EXPECT_EQ(device.backend->MovePages({.pool = device.pool,
                                       .page_bytes = kMovedBytes,
                                       .moves = moves,
                                       .count = 2,
                                       .after = device.backend->RecordFence()}),
            OpCode::kOk);
  device.Await();
  device.Wait();
  EXPECT_EQ(device.Image(), old);
  EXPECT_EQ(device.Page(0), Filled(4));
  device.backend->FreeHost(second);
}

// As in the engine: what was read is from a step before, and another one is in flight.
TEST_P(CudaMoves, AndTheStepInFlightDoNotWaitForEachOther) {
  MovingDevice device(GetParam());
  const PageBytes of_step = Filled(8);
  const uint64_t before = device.backend->RecordFence();
  device.QueueWrite(0, of_step);
  const uint64_t in_flight = device.backend->RecordFence();
  std::memset(device.image, 5, kMovedBytes);
  device.Move(PageMove::Way::kIn, 1, before);
  const bool early = GetParam() == EmulatedRuntime::Moves::kEarly;
  EXPECT_EQ(device.Page(0), Filled(0)) << "the step has run";
  EXPECT_EQ(device.Page(1), Filled(early ? 5 : 0));
  EXPECT_EQ(device.backend->WaitFence(in_flight), OpCode::kOk);
  EXPECT_EQ(device.Page(0), of_step);
  EXPECT_EQ(device.Page(1), Filled(early ? 5 : 0)) << "the host waited for what it did not ask for";
  device.Await();
  device.Wait();
  EXPECT_EQ(device.Page(1), Filled(5));
}

TEST_P(CudaMoves, AreThereForARecordedStepInFrontOfWhichTheyAreAwaited) {
  MovingDevice device(GetParam());
  const int32_t* pairs = device.Upload(std::vector<int32_t>{1, 3});
  ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
  EXPECT_EQ(device.backend->CopyPages({device.pool, kMovedBytes, pairs, 1}), OpCode::kOk);
  RecordingHandle recording;
  ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
  for (const int value : {5, 6}) {
    std::memset(device.image, value, kMovedBytes);
    device.Move(PageMove::Way::kIn, 1, device.backend->RecordFence());
    device.Await();
    EXPECT_EQ(device.backend->Replay(recording), OpCode::kOk);
    device.Wait();
    EXPECT_EQ(device.Page(3), Filled(value));
  }
  device.backend->FreeRecording(recording);
}

TEST_P(CudaMoves, AreNotAwaitedByAStepThatIsRecorded) {
  MovingDevice device(GetParam());
  device.Move(PageMove::Way::kOut, 1);
  ASSERT_EQ(device.backend->BeginRecording(), OpCode::kOk);
  EXPECT_EQ(device.backend->AwaitMoves(), OpCode::kDeviceFault);
  RecordingHandle recording;
  ASSERT_EQ(device.backend->EndRecording(&recording), OpCode::kOk);
  device.backend->FreeRecording(recording);
}

TEST(CudaQueue, RunsEachOpAtOnceWhereEveryOneIsWaitedFor) {
  EXPECT_EQ(Device().backend->info().records_steps, 1);
  setenv("TRAMONTANE_CUDA_SYNC", "1", 1);
  Device device;
  unsetenv("TRAMONTANE_CUDA_SYNC");
  EXPECT_EQ(device.backend->info().records_steps, 0) << "a recorded step is one op";
  int32_t* memory = device.Upload(std::vector<int32_t>{1});
  const int32_t* pairs = device.Upload(std::vector<int32_t>{0, 2});
  ASSERT_EQ(device.backend->Scatter({.pairs = pairs, .count = 1, .out = memory}), OpCode::kOk);
  EXPECT_EQ(*memory, 2);
  int32_t image = 0;
  const PageMove move = {.image = reinterpret_cast<std::byte*>(&image)};
  ASSERT_EQ(device.backend->MovePages({.pool = reinterpret_cast<std::byte*>(memory),
                                       .page_bytes = sizeof(int32_t),
                                       .moves = &move,
                                       .count = 1}),
            OpCode::kOk);
  EXPECT_EQ(image, 2);
}

}  // namespace
}  // namespace tramontane
