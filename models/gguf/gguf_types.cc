#include "models/gguf/gguf_types.h"

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr GgufType Unread(uint32_t number, const char* name) { return {number, name, std::nullopt}; }

constexpr GgufType kGgufTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {30, "BF16", DType::kBf16},
    {8, "Q8_0", DType::kQ8_0},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {12, "Q4_K", DType::kQ4K},
    {13, "Q5_K", DType::kQ5K},
    {14, "Q6_K", DType::kQ6K},
    // Withdrawn ones with the rest: 4, 5, 31 to 33 and 36 to 38.
    Unread(4, "Q4_2"),
    Unread(5, "Q4_3"),
    Unread(9, "Q8_1"),
    Unread(10, "Q2_K"),
    Unread(11, "Q3_K"),
    Unread(15, "Q8_K"),
    Unread(16, "IQ2_XXS"),
    Unread(17, "IQ2_XS"),
    Unread(18, "IQ3_XXS"),
    Unread(19, "IQ1_S"),
    Unread(20, "IQ4_NL"),
    Unread(21, "IQ3_S"),
    Unread(22, "IQ2_S"),
    Unread(23, "IQ4_XS"),
    Unread(24, "I8"),
    Unread(25, "I16"),
    Unread(26, "I32"),
    Unread(27, "I64"),
    Unread(28, "F64"),
    Unread(29, "IQ1_M"),
    Unread(31, "Q4_0_4_4"),
    Unread(32, "Q4_0_4_8"),
    Unread(33, "Q4_0_8_8"),
    Unread(34, "TQ1_0"),
    Unread(35, "TQ2_0"),
    Unread(36, "IQ4_NL_4_4"),
    Unread(37, "IQ4_NL_4_8"),
    Unread(38, "IQ4_NL_8_8"),
    Unread(39, "MXFP4"),
    Unread(40, "NVFP4"),
    Unread(41, "Q1_0"),
};

}  // namespace

const GgufType* FindGgufType(uint32_t number) {
  for (const GgufType& type : kGgufTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

uint32_t GgufTypeNumber(const Format& format) {
  for (const GgufType& type : kGgufTypes) {
    if (type.format == format) return type.number;
  }
  TM_CHECK(false, "GGUF has no type for %s", DTypeName(format.dtype));
}

std::string ReadableGgufTypes() {
  std::string names;
  for (const GgufType& type : kGgufTypes) {
    if (type.format) names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  return names;
}

}  // namespace tramontane
