// Quantised pages on CUDA: appended rows have the bytes that the CPU gives them. On the emulator in every
// build, on a GPU in bench/gpu_check. What attention reads of them is cuda_by_row_test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/backends/cpu_backend.h"
#include "kernels/core/kv_quantize.h"
#include "tests/support/cuda_device.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

struct AppendCase {
  KvFormat format;
  RotaryStyle style = RotaryStyle::kHalfSplit;
  int32_t query_heads = 1;
  bool turned = true;
  std::vector<uint16_t> qkv;      // [tokens, (query_heads + 2 kv_heads) * head_dim]
  std::vector<float> cos_sin;     // [tokens, head_dim]
  std::vector<float> fp8_scales;  // [2, kv_heads]; none: 1
  std::vector<int64_t> slots;     // [tokens]
};

constexpr int32_t kPages = 9;
constexpr int32_t kLayers = 2;

// The pool after an append to the second layer of its pages, which held 0xee before. Activations: of the
// backend; left: the bf16 rows of qkv as they are then.
std::vector<std::byte> Appended(const BackendPtr& backend, const AppendCase& c,
                                std::vector<uint16_t>* left = nullptr) {
  const auto tokens = static_cast<int64_t>(c.slots.size());
  std::vector<void*> memory;
  const auto upload = [&](const auto& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
    memory.push_back(backend->Allocate(bytes));
    EXPECT_EQ(backend->Upload(memory.back(), values.data(), bytes), OpCode::kOk);
    EXPECT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
    return memory.back();
  };
  std::vector<float> widened;
  for (const uint16_t bits : c.qkv) widened.push_back(Bf16ToFloat(bits));
  const DType activation = backend->info().activation_dtype;
  void* const rows = activation == DType::kF32 ? upload(widened) : upload(c.qkv);
  std::vector<std::byte> pool(static_cast<size_t>(kPages * c.format.PageBytes(kLayers)), std::byte{0xee});

  RopeAppendParams params;
  params.qkv =
      MakeTensor(rows, activation, tokens, static_cast<int64_t>(c.qkv.size()) / std::max<int64_t>(tokens, 1));
  if (c.turned) params.cos_sin = static_cast<float*>(upload(c.cos_sin));
  params.style = c.style;
  params.query_heads = c.query_heads;
  params.kv = KvLayerView(c.format, static_cast<std::byte*>(upload(pool)), c.format.PageBytes(kLayers),
                          c.format.LayerBytes());
  if (!c.fp8_scales.empty()) {
    params.kv.scale = KvScaleView::OfFp8(static_cast<float*>(upload(c.fp8_scales)), c.format.kv_heads);
  }
  params.slots = static_cast<int64_t*>(upload(c.slots));
  EXPECT_EQ(backend->RopeAppend(params), OpCode::kOk) << backend->last_error();
  EXPECT_EQ(backend->Download(pool.data(), params.kv.pool, static_cast<int64_t>(pool.size())), OpCode::kOk);
  if (left != nullptr) {
    left->resize(c.qkv.size());
    EXPECT_EQ(backend->Download(left->data(), rows, static_cast<int64_t>(left->size() * 2)), OpCode::kOk);
  }
  EXPECT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
  for (void* allocated : memory) backend->Free(allocated);
  return pool;
}

// Rows of every size: ordinary ones, all zero, so small that the least scale holds, so large that the scale
// or the number overflows, with NaN and infinities.
uint16_t DrawElement(std::mt19937& random, int kind) {
  std::normal_distribution<float> normal;
  const float x = normal(random);
  if (kind == 1) return 0;
  if (kind == 2) return FloatToBf16(x * 1e-6f);
  if (kind == 3) return FloatToBf16(x * 1e8f);
  if (kind == 4 && random() % 16 == 0) return random() % 2 == 0 ? 0x7fc0 : 0xff80;
  return FloatToBf16(kind == 5 ? std::round(x * 4) / 8 : x);  // ties
}

AppendCase DrawAppend(std::mt19937& random) {
  const auto draw = [&random](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  AppendCase c;
  c.format.head_dim = std::array{16, 32, 64, 96, 128}[static_cast<size_t>(draw(0, 4))];
  c.format.kv_heads = draw(1, 5);
  c.format.page_size = std::array{1, 2, 16}[static_cast<size_t>(draw(0, 2))];
  c.format.order = draw(0, 1) == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  c.query_heads = c.format.kv_heads * draw(1, 2);
  c.style = draw(0, 1) == 0 ? RotaryStyle::kHalfSplit : RotaryStyle::kInterleaved;
  c.turned = draw(0, 3) > 0;
  int32_t group_log2 = draw(kMinKvGroupLog2, kMaxKvGroupLog2);
  while (c.format.head_dim % (1 << group_log2) != 0) --group_log2;
  const int32_t type = draw(0, 2);
  if (type == 0) {
    c.format.element = Format::BareFp8();
    for (int32_t i = 0; draw(0, 1) == 0 && i < 2 * c.format.kv_heads; ++i) {
      c.fp8_scales.push_back(0.01f * static_cast<float>(1 + draw(0, 99)));
    }
    if (c.fp8_scales.size() != static_cast<size_t>(2 * c.format.kv_heads)) c.fp8_scales.clear();
  } else {
    c.format.element = Format::WithScalesApart(type == 1 ? DType::kInt8 : DType::kInt4, group_log2);
  }
  std::vector<int64_t> slots(static_cast<size_t>(kPages * c.format.page_size));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(std::min<size_t>(slots.size(), static_cast<size_t>(draw(1, 7))));
  if (draw(0, 1) == 0) slots[0] = -1;  // padding
  c.slots = slots;
  const int32_t heads = c.query_heads + 2 * c.format.kv_heads;
  for (size_t vector = 0; vector < slots.size() * static_cast<size_t>(heads); ++vector) {
    const int kind = draw(0, 7);
    for (int32_t d = 0; d < c.format.head_dim; ++d) c.qkv.push_back(DrawElement(random, kind));
  }
  for (size_t i = 0; i < slots.size() * static_cast<size_t>(c.format.head_dim / 2); ++i) {
    const double angle = std::uniform_real_distribution<double>(0, 50)(random);
    c.cos_sin.push_back(static_cast<float>(std::cos(angle)));
    c.cos_sin.push_back(static_cast<float>(std::sin(angle)));
  }
  return c;
}

class CudaQuantisedTest : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaQuantisedTest, testing::ValuesIn(ThreadOrders()),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

TEST_P(CudaQuantisedTest, ARowHasTheBytesThatTheCpuGivesIt) {
  std::mt19937 random(TestSeed());
  const BackendPtr cuda = MakeCudaTestBackend();
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  for (int64_t round = ScaledCount(150, 20); round > 0; --round) {
    const AppendCase c = DrawAppend(random);
    SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << TestSeed() << " round " << round << " "
                                    << FormatName(c.format.element) << " head_dim " << c.format.head_dim
                                    << " heads " << c.format.kv_heads << " page " << c.format.page_size);
    const std::vector<std::byte> got = Appended(cuda, c), want = Appended(cpu, c);
    ASSERT_EQ(got.size(), want.size());
    const auto differs = std::mismatch(got.begin(), got.end(), want.begin());
    ASSERT_TRUE(differs.first == got.end())
        << "byte " << differs.first - got.begin() << " is " << static_cast<int>(*differs.first) << ", not "
        << static_cast<int>(*differs.second);
  }
}

// Queries are turned where they lie, whatever pages hold; keys and values stay.
TEST_P(CudaQuantisedTest, QueriesTurnAsBesidePagesOfBf16) {
  std::mt19937 random(TestSeed());
  const BackendPtr cuda = MakeCudaTestBackend();
  int64_t turned = 0;
  for (int64_t round = ScaledCount(30, 10); round > 0; --round) {
    AppendCase c = DrawAppend(random);
    SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << TestSeed() << " round " << round);
    std::vector<uint16_t> got, want;
    Appended(cuda, c, &got);
    c.format.element = DType::kBf16;
    c.fp8_scales.clear();
    Appended(cuda, c, &want);
    ASSERT_EQ(got, want);
    turned += got != c.qkv ? 1 : 0;
  }
  EXPECT_GT(turned, 0);
}

// Pages of any format, sinks listed in front of some: the CPU's numbers, bit for bit.
TEST_P(CudaQuantisedTest, GatheredRowsAreTheCpus) {
  std::mt19937 random(TestSeed() + 1);
  const BackendPtr backends[] = {MakeCudaTestBackend(),
                                 MakeCpuBackend({.threads = 1, .variant = ""}).value()};
  const Format elements[] = {DType::kF32,
                             DType::kBf16,
                             DType::kF16,
                             Format::BareFp8(),
                             Format::WithScalesApart(DType::kInt8, 2),
                             Format::WithScalesApart(DType::kInt4, 1, DType::kF32)};
  for (const Format& element : elements) {
    for (const DType out : {DType::kF32, DType::kBf16, DType::kF16}) {
      SCOPED_TRACE(testing::Message() << FormatName(element) << " as " << DTypeName(out));
      constexpr int32_t kRepeat = 2, kTokens = 7;
      const KvFormat format = {.element = element, .kv_heads = 2, .head_dim = 12, .page_size = 2};
      const int64_t columns = int64_t{format.kv_heads} * kRepeat * format.head_dim;
      std::vector<std::byte> pool(static_cast<size_t>(kPages * format.PageBytes(1)));
      for (std::byte& byte : pool) byte = static_cast<std::byte>(random() % 0x70);  // no NaN, no infinity
      std::vector<std::byte> gathered[2];
      for (size_t i = 0; i < 2; ++i) {
        Backend& backend = *backends[i];
        std::vector<void*> memory;
        const auto upload = [&](const auto& values) {
          const auto bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
          memory.push_back(backend.Allocate(bytes));
          EXPECT_EQ(backend.Upload(memory.back(), values.data(), bytes), OpCode::kOk);
          EXPECT_EQ(backend.WaitFence(backend.RecordFence()), OpCode::kOk);
          return memory.back();
        };
        const auto ints = [&](const std::vector<int32_t>& values) {
          return static_cast<int32_t*>(upload(values));
        };
        const auto row_bytes = static_cast<size_t>(Format(out).Bytes(columns));
        gathered[i].assign(2 * kTokens * row_bytes, std::byte{0xee});
        auto* rows = static_cast<std::byte*>(upload(gathered[i]));
        GatherKvParams params;
        params.kv = KvLayerView(format, static_cast<std::byte*>(upload(pool)), format.PageBytes(1));
        // Two sequences: 3 tokens from 6 on in a ring, and 4 from 0 on.
        params.table = {.page_indices = ints({8, 3, 1, 0, 7}),
                        .first_entry = ints({1, 3}),
                        .page_mask = ints({1, -1}),
                        .kv_base = ints({6, 0}),
                        .kv_end = ints({9, 4})};
        params.out_indptr = ints({0, 3, kTokens});
        params.batch = 2;
        params.repeat = kRepeat;
        params.key = MakeTensor(rows, out, kTokens, columns);
        params.value = MakeTensor(rows + kTokens * row_bytes, out, kTokens, columns);
        ASSERT_EQ(backend.GatherKv(params), OpCode::kOk) << backend.last_error();
        EXPECT_EQ(backend.Download(gathered[i].data(), rows, static_cast<int64_t>(gathered[i].size())),
                  OpCode::kOk);
        EXPECT_EQ(backend.WaitFence(backend.RecordFence()), OpCode::kOk);
        for (void* allocated : memory) backend.Free(allocated);
      }
      ASSERT_TRUE(gathered[0] == gathered[1]);
    }
  }
}

// One altered number alters bytes, so the comparison above sees what it should.
TEST_P(CudaQuantisedTest, AnotherRowHasOtherBytes) {
  std::mt19937 random(3);
  const BackendPtr cuda = MakeCudaTestBackend();
  AppendCase c;
  do {
    c = DrawAppend(random);
  } while (c.slots[0] < 0);
  const std::vector<std::byte> before = Appended(cuda, c);
  for (size_t d = 0; d < static_cast<size_t>(c.format.head_dim); ++d) {
    c.qkv[static_cast<size_t>(c.query_heads * c.format.head_dim) + d] = FloatToBf16(static_cast<float>(d));
  }
  EXPECT_NE(Appended(cuda, c), before);
}

TEST(CudaQuantisedPagesTest, WhatHasNoKernelIsRefusedByName) {
  const BackendPtr cuda = MakeCudaTestBackend();
  const auto refusal = [&](const Format& element, int32_t head_dim) {
    RopeAppendParams params;
    params.qkv = MakeTensor(nullptr, DType::kBf16, 0, 0);
    params.kv = KvLayerView({.element = element, .kv_heads = 1, .head_dim = head_dim, .page_size = 2});
    EXPECT_EQ(cuda->RopeAppend(params), OpCode::kUnsupported);
    return std::string(cuda->last_error());
  };
  const std::string has =
      "; the CUDA backend has bf16, fp8, and int8 and int4 in groups of 8 to 128 that divide heads of a "
      "multiple of 16";
  EXPECT_EQ(refusal(DType::kF32, 32), "pages of f32 with heads of 32" + has);
  EXPECT_EQ(refusal(Format::BareFp8(), 24), "pages of fp8_e4m3 with heads of 24" + has);
  EXPECT_THAT(refusal(Format::WithScalesApart(DType::kInt8, 2), 32), testing::HasSubstr("groups of 4"));
}

}  // namespace
}  // namespace tramontane
