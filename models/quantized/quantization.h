// Quantization: what a config says of weights that its files hold as small numbers, with scales beside them.
//
// Any thread; a plain value. Always: each scheme is one that CodedMatrix reads; what is not was refused by
// name when the config was read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/quantized/module_pattern.h"

namespace tramontane {

// Which arrays hold a matrix X.weight [out, in], and how.
enum class WeightCoding : int32_t {
  kPackQuantized,   // compressed-tensors: X.weight_packed [out, in / 8], .weight_scale, .weight_zero_point,
                    // and perhaps .weight_g_idx
  kIntQuantized,    // compressed-tensors: X.weight i8, .weight_scale, .weight_zero_point
  kFloatQuantized,  // compressed-tensors: X.weight fp8, .weight_scale
  kAwq,             // X.qweight [in, out / 8], .scales [in / group, out], .qzeros
  kGptq,            // X.qweight [in / 8, out], .scales [in / group, out], .qzeros, .g_idx
  kFp8,             // Hugging Face's: X.weight fp8, .weight_scale_inv (or .weight_scale)
  kMistralFp8,      // X.weight fp8, .qscale_weight: one number, or one for each row
};

// One way in which matrices may stand in the files.
struct CodingScheme {
  WeightCoding coding = WeightCoding::kPackQuantized;
  int32_t bits = 8;
  bool symmetric = true;  // there are no zero points
  // Rows and columns of the matrix that share a scale; 0: all of them.
  int64_t scale_rows = 1;
  int64_t scale_columns = 0;
  int32_t zero_offset = 0;  // what is added to a zero point as it is stored
  // Columns may be of groups in any order, which an array beside the numbers says.
  bool has_column_groups = false;
  bool needs_column_groups = false;         // and it must be there
  std::vector<ModulePattern> targets = {};  // modules that stand so; none: all that are quantised
};

struct Quantization {
  std::vector<CodingScheme> schemes;  // none: all weights are plain
  std::vector<ModulePattern> kept;    // modules whose weights must be plain
  bool has_kv_scales = false;         // each layer brings one scale for keys and one for values in fp8
};

}  // namespace tramontane
