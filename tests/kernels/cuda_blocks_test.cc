// Weights in blocks in the CUDA backend: every number that a type can hold is the f32 of DecodeBlocks, in
// products of types that ScalesSums as it is, else rounded once to bf16, and linear layers over them agree
// with their definition in double precision; on the emulator in every build, on a GPU in bench/gpu_check.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/core/block_types.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/linear_tile.h"
#include "tests/kernels/cuda_linear_case.h"
#include "tests/support/cuda_device.h"
#include "tests/support/random_blocks.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

// One that has reserved for the steps of these tests.
struct Device : CudaTestDevice {
  // Without a scratch for what is decoded many rows go by tiles, too.
  Device() : Device(MakeCudaTestBackend(), 80, 0) {}
  explicit Device(BackendPtr made, int32_t rows = 80, int64_t decoded_numbers = int64_t{1} << 18)
      : CudaTestDevice(std::move(made)) {
    rounds_before_adding = ProductsAreRoundedBeforeTheyAreAdded();
    const StepMaxima maxima = {.tokens = rows,
                               .sequences = 1,
                               .logit_rows = rows,
                               .hidden = 1024,
                               .query_heads = 1,
                               .kv_heads = 1,
                               .head_dim = 32,
                               .vocab = 8,
                               .context = 8,
                               .quantised_numbers = decoded_numbers};
    EXPECT_EQ(backend->Reserve(maxima), OpCode::kOk) << backend->last_error();
  }
};

// A matrix in blocks, and its values on the device.
struct BlockMatrix {
  Format type;
  int64_t rows, columns;
  std::vector<std::byte> blocks;
  std::vector<uint16_t> bits;       // bf16, in the order of inputs
  std::vector<float> values;        // in products, in that order
  std::vector<int32_t> order = {};  // of columns as they stand; none: that of inputs

  BlockMatrix(const Format& of, int64_t r, int64_t c, std::vector<std::byte> stored)
      : type(of), rows(r), columns(c), blocks(std::move(stored)) {
    const std::vector<float> decoded = DecodedBlocks(type, blocks);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t k = 0; k < columns; ++k) {
        const float value = decoded[static_cast<size_t>(row * Stride(of, c) + k)];
        bits.push_back(FloatToBf16(value));
        values.push_back(cuda::ScalesSums(type.dtype) ? value : Bf16ToFloat(bits.back()));
      }
    }
  }
  BlockMatrix(const Format& of, int64_t r, int64_t c, uint32_t seed)
      : BlockMatrix(of, r, c, RandomBlocks(of, r, Stride(of, c), seed)) {}

  // From one row to the next: the last group may be filled up.
  static int64_t Stride(const Format& format, int64_t columns) {
    return format.Blocks(columns) * format.block_size();
  }
  WeightRows Rows() const {
    return {blocks.data(), type, rows, Stride(type, columns), order.empty() ? nullptr : order.data()};
  }
  void Reorder(uint32_t seed) {
    order.resize(static_cast<size_t>(columns));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    const std::vector<uint16_t> bits_before = bits;
    const std::vector<float> values_before = values;
    for (size_t i = 0; i < bits.size(); ++i) {
      const size_t k = i % order.size(), to = i - k + static_cast<size_t>(order[k]);
      bits[to] = bits_before[i];
      values[to] = values_before[i];
    }
  }
};

WeightHandle Pack(Device& device, const std::vector<WeightRows>& parts, int64_t columns,
                  LinearLayout layout = LinearLayout::kStacked) {
  WeightHandle weight;
  EXPECT_EQ(device.backend->PackLinear({parts.data(), static_cast<int32_t>(parts.size()), columns, layout},
                                       &weight),
            OpCode::kOk)
      << device.backend->last_error();
  return weight;
}

std::string NameOf(const testing::TestParamInfo<Format>& info) { return BlockFormatId(info.param); }

// So many blocks of a row, of more than one group the last filled up.
int64_t InFeatures(const Format& format, int64_t blocks) {
  return blocks * format.block_size() -
         (format.in_groups() && blocks > 1 && format.block_size() > 32 ? 32 : 0);
}

class CudaBlocks : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaBlocks, testing::ValuesIn(BlockFormats()), NameOf);

// Over 256 times 16 rows each byte of a block, in each of the 16 rows of a unit, takes every value: every
// number and every scale of 6 or 8 bits at every place. Of the f16 scales those that are not finite are no
// weights.
// So are NaN of fp8.
std::vector<std::byte> EveryByteAtEveryPlace(const Format& format) {
  const DType type = format.dtype;
  std::vector<std::byte> blocks;
  for (int row = 0; row < 256 * cuda::kUnitRows; ++row) {
    for (int j = 0; j < format.block_bytes; ++j) {
      blocks.push_back(static_cast<std::byte>(row / cuda::kUnitRows + row % cuda::kUnitRows * 11 + j * 37));
    }
    std::byte* block = blocks.data() + row * format.block_bytes;
    if (format.in_groups()) {
      PutScale(format, 0.3f / static_cast<float>(1 + row % 7), block);
      if (format.zero_points != 0 && type == DType::kInt4) {  // all there are
        block[format.scale_bytes()] = static_cast<std::byte>(format.least_zero + row / cuda::kUnitRows % 16);
      }
      for (int j = format.codes_at(); j < format.block_bytes && type == DType::kFp8E4M3; ++j) {
        if ((block[j] & std::byte{0x7f}) == std::byte{0x7f}) block[j] ^= std::byte{1};
      }
      continue;
    }
    const int scale = type == DType::kQ6K ? 208 : 0;
    const int halves =
        type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4K || type == DType::kQ5K;
    for (int at = scale; at < scale + 2 + 2 * halves; at += 2) {
      if ((block[at + 1] & std::byte{0x7c}) == std::byte{0x7c}) block[at + 1] ^= std::byte{0x40};
    }
  }
  if (format.scale_rows == 2) ShareScales(format, format.block_size(), blocks);
  return blocks;
}

TEST_P(CudaBlocks, EveryNumberIsItsF32RoundedOnce) {
  const Format type = GetParam();
  UseThreadOrder(ThreadOrder::kForward);
  const int64_t columns = type.block_size(), rows = 256 * cuda::kUnitRows;
  const BlockMatrix table(type, rows, columns, EveryByteAtEveryPlace(type));
  Device device;
  const WeightHandle packed = Pack(device, {table.Rows()}, columns);
  // All rows, or as many of them as the tests are scaled to, evenly.
  const int64_t count = ScaledCount(rows);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(i * rows / count));
  auto* out = device.Upload(std::vector<uint16_t>(static_cast<size_t>(count * columns), 0x7fff));
  ASSERT_EQ(device.backend->Embed({device.Upload(ids), static_cast<int32_t>(count), packed,
                                   MakeTensor(out, DType::kBf16, count, columns)}),
            OpCode::kOk);
  const std::vector<uint16_t> got = device.Read(out, static_cast<size_t>(count * columns));
  for (int64_t i = 0; i < count * columns; ++i) {
    const int64_t row = ids[static_cast<size_t>(i / columns)], number = i % columns;
    ASSERT_EQ(got[static_cast<size_t>(i)], table.bits[static_cast<size_t>(row * columns + number)])
        << "row " << row << " number " << number;
  }
}

TEST_P(CudaBlocks, RowsOfATableAreGatheredFromSeveralUnits) {
  const int64_t columns = InFeatures(GetParam(), 3);
  const BlockMatrix table(GetParam(), 38, columns, 3);
  const std::vector<int32_t> ids = {37, 0, 15, 16, 37, 24};
  for (const ThreadOrder order : ThreadOrders()) {
    UseThreadOrder(order);
    Device device;
    const WeightHandle packed = Pack(device, {table.Rows()}, columns);
    auto* out = device.Upload(std::vector<uint16_t>(ids.size() * static_cast<size_t>(columns)));
    ASSERT_EQ(
        device.backend->Embed({device.Upload(ids), 6, packed, MakeTensor(out, DType::kBf16, 6, columns)}),
        OpCode::kOk);
    const std::vector<uint16_t> got = device.Read(out, ids.size() * static_cast<size_t>(columns));
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / static_cast<size_t>(columns), k = i % static_cast<size_t>(columns);
      ASSERT_EQ(got[i], table.bits[static_cast<size_t>(ids[row] * columns) + k]) << "token " << row;
    }
  }
}

// But for scales that rows share.
TEST_P(CudaBlocks, TakeTheBytesThatTheyHaveInAFile) {
  const Device device;
  const int64_t columns = 4 * 256;
  const WeightRows rows = {nullptr, GetParam(), 160, columns};
  const int64_t bytes = GetParam().PackedBytes(columns, 160);
  EXPECT_EQ(device.backend->PackedBytes({&rows, 1, columns}), (bytes + 255) / 256 * 256);
}

// ---- linear layers

struct Case {
  int32_t rows;
  int64_t blocks;  // along K
  int64_t part_rows;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype = DType::kBf16;
};

// Rows that the small kernel takes, with and without the norm in it, those that one tile does, and those for
// which the weight is decoded; outputs that end within sixteen, K of one block and of an odd number of them.
const Case kCases[] = {{1, 1, 24, Prologue::kNone, Epilogue::kNone},
                       {1, 5, 20, Prologue::kRmsNorm, Epilogue::kNone},
                       {3, 2, 20, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32},
                       {8, 3, 16, Prologue::kNone, Epilogue::kSwiGlu},
                       {16, 2, 20, Prologue::kNone, Epilogue::kAddResidual},
                       {17, 1, 20, Prologue::kNone, Epilogue::kAddResidual},
                       {30, 3, 40, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                       {64, 1, 20, Prologue::kNone, Epilogue::kAddResidual},
                       {65, 3, 24, Prologue::kNone, Epilogue::kAddResidual},
                       {66, 1, 40, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                       {70, 2, 12, Prologue::kNone, Epilogue::kNone, DType::kF32}};

CudaLinearCase WithInputs(const Case& c, int64_t in) {
  return {c.rows, in, c.part_rows, c.prologue, c.epilogue, c.out_dtype};
}

TEST_P(CudaBlocks, LinearLayersAgreeWithTheirDefinition) {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  // A warp has more units than it loads at once.
  const int64_t block = GetParam().block_size();
  const int64_t units = GetParam().in_groups() ? std::max<int64_t>(57 * 32 / block, 9) : block == 32 ? 57 : 9;
  cases.push_back({2, units, 8, Prologue::kNone, Epilogue::kNone});
  for (const Case& c : cases) {
    const int64_t in = InFeatures(GetParam(), c.blocks);
    const BlockMatrix first(GetParam(), c.part_rows, in, 1), second(GetParam(), c.part_rows, in, 2);
    std::vector<float> values = first.values;
    values.insert(values.end(), second.values.begin(), second.values.end());
    for (const ThreadOrder order : ThreadOrders()) {
      UseThreadOrder(order);
      Device device;
      const WeightHandle weight =
          Pack(device, {first.Rows(), second.Rows()}, in,
               c.epilogue == Epilogue::kSwiGlu ? LinearLayout::kGateUp : LinearLayout::kStacked);
      ExpectLinearAgrees(device, WithInputs(c, in), weight, values);
    }
  }
}

// Rows of x that are 1 at one number each, by every value at every place: what comes out is the number as the
// product has it. Of types that scale sums that is the f32, whatever bf16 can hold.
TEST_P(CudaBlocks, EveryNumberMeetsARowAsItIs) {
  const Format type = GetParam();
  UseThreadOrder(ThreadOrder::kForward);
  const int64_t columns = type.block_size(), all_rows = 256 * cuda::kUnitRows;
  const int64_t outputs = ScaledCount(all_rows) / cuda::kUnitRows * cuda::kUnitRows;
  BlockMatrix matrix(type, all_rows, columns, EveryByteAtEveryPlace(type));
  matrix.rows = outputs;
  for (const int32_t rows : {16, 64}) {
    Device device;
    Backend& backend = *device.backend;
    const WeightHandle weight = Pack(device, {matrix.Rows()}, columns);
    std::vector<uint16_t> ones(static_cast<size_t>(rows * columns));
    float* out = device.Upload(std::vector<float>(static_cast<size_t>(rows * outputs)));
    uint16_t* x = device.Upload(ones);
    for (int64_t first = 0; first < columns; first += rows) {
      std::fill(ones.begin(), ones.end(), uint16_t{0});
      for (int64_t r = 0; r < rows && first + r < columns; ++r)
        ones[static_cast<size_t>(r * columns + first + r)] = 0x3f80;
      device.Write(x, ones);
      LinearParams params;
      params.x = MakeTensor(x, DType::kBf16, rows, columns);
      params.rows = rows;
      params.weight = weight;
      params.out = MakeTensor(out, DType::kF32, rows, outputs);
      ASSERT_EQ(backend.Linear(params), OpCode::kOk) << backend.last_error();
      const std::vector<float> got = device.Read(out, static_cast<size_t>(rows * outputs));
      for (int64_t r = 0; r < rows && first + r < columns; ++r) {
        for (int64_t n = 0; n < outputs; ++n) {
          ASSERT_EQ(got[static_cast<size_t>(r * outputs + n)],
                    matrix.values[static_cast<size_t>(n * columns + first + r)])
              << rows << " rows: output " << n << " number " << first + r;
        }
      }
    }
  }
}

// NaN of fp8 in one row of a weight, of either sign, makes that output NaN for every row, a row of zeros as
// well, and no other.
TEST(CudaFp8Groups, ANumberThatIsNoneMakesItsOutputNone) {
  const Format type = DType::kFp8E4M3;
  const int64_t in = 256, outputs = 32;
  for (const std::byte nan : {std::byte{0x7f}, std::byte{0xff}}) {
    for (const int32_t rows : {1, 16, 64}) {
      UseThreadOrder(ThreadOrder::kForward);
      std::vector<std::byte> blocks = RandomBlocks(type, outputs, in, 1);
      for (int64_t i = 0; i < outputs * in / type.block_size(); ++i) {
        for (int64_t at = i * type.block_bytes + type.codes_at(); at < (i + 1) * type.block_bytes; ++at) {
          std::byte& code = blocks[static_cast<size_t>(at)];
          if ((code & std::byte{0x7f}) == std::byte{0x7f}) code = std::byte{0};
        }
      }
      constexpr int64_t kRow = 13, kNumber = 200;
      const int64_t block = kRow * in / type.block_size() + kNumber / type.block_size();
      blocks[static_cast<size_t>(block * type.block_bytes + type.codes_at() + kNumber % type.block_size())] =
          nan;
      Device device;
      const BlockMatrix matrix(type, outputs, in, blocks);
      LinearParams params;
      params.x = MakeTensor(device.Upload(std::vector<uint16_t>(static_cast<size_t>(rows * in))),
                            DType::kBf16, rows, in);
      params.rows = rows;
      params.weight = Pack(device, {matrix.Rows()}, in);
      float* out = device.Upload(std::vector<float>(static_cast<size_t>(rows * outputs), 1.0f));
      params.out = MakeTensor(out, DType::kF32, rows, outputs);
      ASSERT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
      const std::vector<float> got = device.Read(out, static_cast<size_t>(rows * outputs));
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::isnan(got[i]), i % outputs == kRow) << rows << " rows: " << i;
      }
    }
  }
}

// ---- weights that are decoded a slice at a time

// So many bytes of bf16 that a slice has two units of this width.
int64_t SliceBytes(int64_t in) { return 2 * cuda::kUnitRows * in * 2; }

// The rows of x are those of the identity, so that each output is a number of the weight: that which its
// definition rounds to bf16. K of several spans, the last of which ends within one.
TEST_P(CudaBlocks, ADecodedWeightHasTheNumbersOfItsDefinition) {
  UseThreadOrder(ThreadOrder::kRandom);
  const int64_t block = GetParam().block_size(), out_features = 40;
  for (const int64_t in : {InFeatures(GetParam(), 3), block == 32 ? 11 * block : 2 * block}) {
    const BlockMatrix matrix(GetParam(), out_features, in, 4);
    std::vector<uint16_t> identity(static_cast<size_t>(in * in));
    for (int64_t i = 0; i < in; ++i) identity[static_cast<size_t>(i * in + i)] = FloatToBf16(1.0f);
    Device device(MakeDecodingCudaTestBackend(/*least_rows=*/17, SliceBytes(in)), static_cast<int32_t>(in));
    float* out = device.Upload(std::vector<float>(static_cast<size_t>(in * out_features), std::nanf("")));
    LinearParams params;
    params.x = MakeTensor(device.Upload(identity), DType::kBf16, in, in);
    params.rows = static_cast<int32_t>(in);
    params.weight = Pack(device, {matrix.Rows()}, in);
    params.out = MakeTensor(out, DType::kF32, in, out_features);
    ASSERT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
    const std::vector<float> got = device.Read(out, static_cast<size_t>(in * out_features));
    for (int64_t i = 0; i < in * out_features; ++i) {
      const int64_t k = i / out_features, row = i % out_features;
      ASSERT_EQ(got[static_cast<size_t>(i)], Bf16ToFloat(matrix.bits[static_cast<size_t>(row * in + k)]))
          << in << " columns: row " << row << " number " << k;
    }
  }
}

// Two, three and five slices, the last of a unit, of two, and of rows that end within one.
TEST_P(CudaBlocks, LinearLayersInSlicesAgreeWithTheirDefinition) {
  for (const Case& c : {Case{17, 1, 24, Prologue::kNone, Epilogue::kAddResidual},
                        {20, 3, 34, Prologue::kRmsNorm, Epilogue::kNone},
                        {33, 1, 72, Prologue::kNone, Epilogue::kSwiGlu},
                        {80, 2, 42, Prologue::kNone, Epilogue::kNone, DType::kF32}}) {
    const int64_t in = InFeatures(GetParam(), c.blocks);
    const BlockMatrix first(GetParam(), c.part_rows, in, 1), second(GetParam(), c.part_rows, in, 2);
    std::vector<float> values;
    for (const BlockMatrix* part : {&first, &second}) {
      for (const uint16_t bits : part->bits) values.push_back(Bf16ToFloat(bits));  // as they are decoded
    }
    for (const ThreadOrder order : ThreadOrders()) {
      UseThreadOrder(order);
      Device device(MakeDecodingCudaTestBackend(/*least_rows=*/17, SliceBytes(in)));
      const WeightHandle weight =
          Pack(device, {first.Rows(), second.Rows()}, in,
               c.epilogue == Epilogue::kSwiGlu ? LinearLayout::kGateUp : LinearLayout::kStacked);
      ExpectLinearAgrees(device, WithInputs(c, in), weight, values);
    }
  }
}

// ---- columns in an order of their own

class CudaColumnOrder : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaColumnOrder,
                         testing::Values(Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true),
                                         Format::InGroups(DType::kInt8, 7, DType::kF16),
                                         Format(DType::kBf16)),
                         [](const auto& info) { return std::string(DTypeName(info.param.dtype)); });

BlockMatrix RandomMatrix(const Format& format, int64_t rows, int64_t columns, uint32_t seed) {
  if (!format.plain()) return BlockMatrix(format, rows, columns, seed);
  BlockMatrix matrix(DType::kQ8_0, 0, columns, seed);
  matrix.type = format;
  matrix.rows = rows;
  matrix.bits = RandomBf16(rows * columns, seed);
  for (const uint16_t bits : matrix.bits) matrix.values.push_back(Bf16ToFloat(bits));
  matrix.blocks.resize(matrix.bits.size() * 2);
  std::memcpy(matrix.blocks.data(), matrix.bits.data(), matrix.blocks.size());
  return matrix;
}

// The orders of both parts: one, two, and of one part alone.
TEST_P(CudaColumnOrder, LinearLayersAgreeWithTheirDefinition) {
  const int64_t in = 256;
  for (const Case& c : kCases) {
    for (const int parts_in_order : {0, 1, 2}) {
      const bool swiglu = c.epilogue == Epilogue::kSwiGlu;
      BlockMatrix first = RandomMatrix(GetParam(), c.part_rows, in, 1);
      BlockMatrix second = RandomMatrix(GetParam(), c.part_rows, in, 2);
      first.Reorder(3);
      if (parts_in_order != 1) second.Reorder(parts_in_order == 0 ? 3 : 4);
      std::vector<float> values = first.values;
      values.insert(values.end(), second.values.begin(), second.values.end());
      for (const ThreadOrder order : ThreadOrders()) {
        UseThreadOrder(order);
        Device device;
        const WeightHandle weight = Pack(device, {first.Rows(), second.Rows()}, in,
                                         swiglu ? LinearLayout::kGateUp : LinearLayout::kStacked);
        ExpectLinearAgrees(device, WithInputs(c, in), weight, values);
      }
    }
  }
}

// A table: its rows come out in the order of inputs, and logits are made of it.
TEST_P(CudaColumnOrder, RowsOfATableAreInTheOrderOfInputs) {
  const int64_t in = 256;
  BlockMatrix table = RandomMatrix(GetParam(), 38, in, 5);
  table.Reorder(6);
  const std::vector<int32_t> ids = {37, 0, 15, 16, 37, 24};
  for (const ThreadOrder order : ThreadOrders()) {
    UseThreadOrder(order);
    Device device;
    const WeightRows part = table.Rows();
    WeightHandle packed;
    ASSERT_EQ(device.backend->PackLinear(
                  {.parts = &part, .part_count = 1, .in_features = in, .use = WeightUse::kTable}, &packed),
              OpCode::kOk)
        << device.backend->last_error();
    auto* out = device.Upload(std::vector<uint16_t>(ids.size() * size_t{in}, 0x7fff));
    ASSERT_EQ(device.backend->Embed({device.Upload(ids), 6, packed, MakeTensor(out, DType::kBf16, 6, in)}),
              OpCode::kOk);
    const std::vector<uint16_t> got = device.Read(out, ids.size() * size_t{in});
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], table.bits[static_cast<size_t>(ids[i / in] * in) + i % in]) << "token " << i / in;
    }
  }
}

TEST_P(CudaColumnOrder, TakesFourBytesForEachColumn) {
  const Device device;
  BlockMatrix matrix = RandomMatrix(GetParam(), 32, 256, 1);
  const WeightRows rows = matrix.Rows();
  matrix.Reorder(3);
  const WeightRows reordered = matrix.Rows();
  EXPECT_EQ(device.backend->PackedBytes({&reordered, 1, 256}),
            device.backend->PackedBytes({&rows, 1, 256}) + 4 * 256);
}

TEST(CudaColumnOrderRefusal, NamesAnOrderThatIsNone) {
  Device device;
  BlockMatrix matrix(DType::kInt4, 16, 128, 1);
  matrix.Reorder(3);
  matrix.order[5] = matrix.order[4];
  const WeightRows part = matrix.Rows();
  WeightHandle weight;
  EXPECT_EQ(device.backend->PackLinear({&part, 1, 128}, &weight), OpCode::kUnsupported);
  EXPECT_STREQ(device.backend->last_error(), "part 0 has columns in an order that is no permutation of 128");
}

// As in files of mixed types, where values take more bits than queries and keys; and beside a plain part.
TEST(CudaMixedBlocks, PartsOfSeveralFormatsStandInOneWeight) {
  UseThreadOrder(ThreadOrder::kForward);
  const int64_t in = 256;
  const BlockMatrix first(DType::kQ4K, 20, in, 1), second(DType::kQ6K, 12, in, 2);
  const std::vector<uint16_t> plain = RandomBf16(8 * in, 4);
  std::vector<float> values = first.values;
  values.insert(values.end(), second.values.begin(), second.values.end());
  for (const uint16_t number : plain) values.push_back(Bf16ToFloat(number));
  const std::vector<WeightRows> parts = {first.Rows(), second.Rows(), {plain.data(), DType::kBf16, 8, in}};
  for (const Case& c : {Case{1, 1, 20, Prologue::kRmsNorm, Epilogue::kNone},
                        Case{2, 1, 20, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32},
                        Case{9, 1, 20, Prologue::kNone, Epilogue::kAddResidual},
                        Case{40, 1, 20, Prologue::kRmsNorm, Epilogue::kNone},
                        Case{40, 1, 20, Prologue::kNone, Epilogue::kAddResidual},
                        Case{65, 1, 20, Prologue::kRmsNorm, Epilogue::kNone},
                        Case{70, 1, 20, Prologue::kNone, Epilogue::kAddResidual}}) {
    Device device;
    ExpectLinearAgrees(device, WithInputs(c, in), Pack(device, parts, in), values);
  }
}

TEST(CudaMixedBlocks, GateAndUpOfTwoFormatsMeet) {
  const int64_t in = 256;
  const BlockMatrix gate(DType::kQ4K, 40, in, 1), up(DType::kQ6K, 40, in, 2);
  std::vector<float> values = gate.values;
  values.insert(values.end(), up.values.begin(), up.values.end());
  for (const ThreadOrder order : ThreadOrders()) {
    UseThreadOrder(order);
    for (const int32_t rows : {1, 3, 16, 17, 70}) {
      for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm}) {
        const Case c = {rows, 1, 40, prologue, Epilogue::kSwiGlu};
        Device device;
        ExpectLinearAgrees(device, WithInputs(c, in),
                           Pack(device, {gate.Rows(), up.Rows()}, in, LinearLayout::kGateUp), values);
      }
    }
  }
}

TEST(CudaMixedBlocks, TakeWhatTheirPartsTake) {
  const Device device;
  const WeightRows parts[] = {{nullptr, DType::kQ4K, 32, 256}, {nullptr, DType::kQ6K, 16, 256}};
  EXPECT_EQ(device.backend->PackedBytes({parts, 2, 256}), 32 * 144 + 14 * 256);  // 16 * 210, in 256s
}

TEST(CudaBlocksRefusal, NamesWhatIsWrong) {
  Device device;
  const std::vector<std::byte> memory(64 * 1024);
  WeightHandle weight;
  const WeightRows odd = {memory.data(), DType::kQ4K, 16, 128};
  EXPECT_EQ(device.backend->PackLinear({&odd, 1, 128, LinearLayout::kStacked}, &weight),
            OpCode::kUnsupported);
  EXPECT_STREQ(device.backend->last_error(),
               "part 0 is q4_k in rows of 128, which are no whole blocks of 256");
  EXPECT_EQ(weight.impl, nullptr);
}

TEST(CudaBlocksRecording, AReplayedStepIsTheStep) {
  UseThreadOrder(ThreadOrder::kForward);
  const int64_t in = 256;
  const BlockMatrix matrix(DType::kQ4K, 24, in, 1);
  for (const int32_t rows : {1, 12, 20, 70}) {
    Device device;
    Backend& backend = *device.backend;
    const std::vector<uint16_t> first = RandomBf16(rows * in, 5), second = RandomBf16(rows * in, 6);
    auto *x = device.Upload(first),
         *out = device.Upload(std::vector<uint16_t>(static_cast<size_t>(rows * 24)));
    LinearParams params;
    params.x = MakeTensor(x, DType::kBf16, rows, in);
    params.rows = rows;
    params.weight = Pack(device, {matrix.Rows()}, in);
    params.out = MakeTensor(out, DType::kBf16, rows, 24);
    const auto step = [&](const std::vector<uint16_t>& values) {
      EXPECT_EQ(backend.Upload(x, values.data(), static_cast<int64_t>(values.size() * 2)), OpCode::kOk);
      EXPECT_EQ(backend.Linear(params), OpCode::kOk);
      return device.Read(out, static_cast<size_t>(rows) * 24);
    };
    const std::vector<uint16_t> of_first = step(first), of_second = step(second);
    EXPECT_NE(of_first, of_second);
    ASSERT_EQ(backend.BeginRecording(), OpCode::kOk);
    ASSERT_EQ(backend.Linear(params), OpCode::kOk);
    RecordingHandle recording;
    ASSERT_EQ(backend.EndRecording(&recording), OpCode::kOk);
    ASSERT_EQ(backend.Upload(x, first.data(), static_cast<int64_t>(first.size() * 2)), OpCode::kOk);
    ASSERT_EQ(backend.Replay(recording), OpCode::kOk);
    EXPECT_EQ(device.Read(out, static_cast<size_t>(rows * 24)), of_first);
    backend.FreeRecording(recording);
  }
}

}  // namespace
}  // namespace tramontane
