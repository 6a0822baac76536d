// Embed on the CPU backend: rows of a packed table come back as they were in the file.
#include <gtest/gtest.h>

#include <random>

#include "kernels/backend.h"
#include "tests/support/cpu_variants.h"

namespace tramontane {
namespace {

class EmbedTest : public CpuVariantTest {};
TM_INSTANTIATE_FOR_CPU_VARIANTS(EmbedTest);

TEST_P(EmbedTest, RowsOfEveryDTypeComeBackExactly) {
  const BackendPtr backend = MakeBackend(GetParam(), 2, {.tokens = 8});
  constexpr int64_t kVocab = 131, kHidden = 77;  // beyond and beside every panel
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> singles(kVocab * kHidden);
    std::vector<uint16_t> halves(kVocab * kHidden);
    for (size_t i = 0; i < singles.size(); ++i) {
      const float x = normal(random);
      halves[i] = dtype == DType::kF16 ? FloatToF16(x) : FloatToBf16(x);
      singles[i] = dtype == DType::kF32   ? x
                   : dtype == DType::kF16 ? F16ToFloat(halves[i])
                                          : Bf16ToFloat(halves[i]);
    }
    const void* data = dtype == DType::kF32 ? static_cast<const void*>(singles.data()) : halves.data();
    const WeightRows rows = {data, dtype, kVocab, kHidden};
    WeightHandle table;
    ASSERT_EQ(backend->PackLinear({&rows, 1, kHidden, LinearLayout::kStacked}, &table), OpCode::kOk);

    const std::vector<int32_t> ids = {0, 130, 5, 5, 64, 15, 16};
    constexpr int64_t kStride = kHidden + 5;
    std::vector<float> out(ids.size() * kStride, -7.0f);
    EmbedParams params;
    params.token_ids = ids.data();
    params.tokens = static_cast<int32_t>(ids.size());
    params.table = table;
    params.out = {out.data(), DType::kF32, params.tokens, kHidden, kStride};
    ASSERT_EQ(backend->Embed(params), OpCode::kOk);
    for (size_t token = 0; token < ids.size(); ++token) {
      for (size_t c = 0; c < kHidden; ++c) {
        ASSERT_EQ(out[token * kStride + c], singles[static_cast<size_t>(ids[token]) * kHidden + c]);
      }
      EXPECT_EQ(out[token * kStride + kHidden], -7.0f);
    }
    backend->FreeWeight(table);
  }
}

TEST_P(EmbedTest, NoTokensIsNoWork) {
  const BackendPtr backend = MakeBackend(GetParam(), 2, {.tokens = 8});
  const std::vector<float> matrix(4, 1.0f);
  const WeightRows rows = {matrix.data(), DType::kF32, 2, 2};
  EmbedParams params;
  ASSERT_EQ(backend->PackLinear({&rows, 1, 2, LinearLayout::kStacked}, &params.table), OpCode::kOk);
  params.out = MakeTensor(nullptr, DType::kF32, 0, 2);
  EXPECT_EQ(backend->Embed(params), OpCode::kOk);
}

}  // namespace
}  // namespace tramontane
