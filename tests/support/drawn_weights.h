// The weights of a drawn model in one of the forms that files have: plain types, GGUF's blocks, integers in
// groups, fp8. For storms, which draw the form too.
//
// One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/support/drawn_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {

struct WeightForm {
  const char* name;                // "q4_0", "gguf of every type in blocks", "int4 in groups of 32"
  DType plain = DType::kF32;       // of the files that the model is first written to
  std::vector<DType> blocks = {};  // of a GGUF file: each matrix has one of them
  int32_t bits = 0;                // 4 or 8: integers in groups of 32, of compressed-tensors
  bool fp8 = false;                // a scale for each row, in Mistral's own files for each matrix
};

// Every form, once.
std::span<const WeightForm> WeightForms();

// Makes every row of the model's matrices whole blocks of the form.
void FitWidths(const WeightForm& form, TinyModel* sizes);

// What is to be opened: `folder` or a file in it. REQUIRES: sizes that fit. Matrices of a GGUF file are drawn
// anew, by the seed.
std::string WriteInForm(const DrawnModel& drawn, const WeightForm& form, uint32_t seed,
                        const TempFolder& folder);

}  // namespace tramontane
