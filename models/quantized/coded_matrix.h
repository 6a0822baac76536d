// CodedMatrix: a matrix that a file holds as small numbers, scales and perhaps zero points in arrays of their
// own. Gives its rows as blocks in groups (kernels/core/block_types.h), whatever the order in the file.
//
// clang-format off
//   form              numbers                             scales                    zero points
//   pack-quantized    weight_packed [out, in / 8] words   weight_scale              weight_zero_point, words along out
//   int-quantized     weight [out, in] i8                 weight_scale              weight_zero_point i8
//   float-quantized   weight [out, in] fp8                weight_scale
//   AWQ               qweight [in, out / 8] words         scales [groups, out]      qzeros [groups, out / 8] words
//   GPTQ              qweight [in / 8, out] words         scales [groups, out]      qzeros [groups, out / 8] words
//   fp8               weight [out, in] fp8                weight_scale_inv, or weight_scale
//   Mistral's fp8     weight [out, in] fp8                qscale_weight
// clang-format on
//
// Words have 32 bits, with the first number lowest; AWQ's hold numbers 0, 2, 4, 6, 1, 3, 5, 7. Of 8 bits
// there are four in a word. A value is scale times (number - zero point), in every one of them.
//
// g_idx [in] of GPTQ, and weight_g_idx of compressed-tensors, say which group each column is of. Where they
// are not in order (desc_act, actorder) a row is given with its columns sorted by group, those of a group as
// they stood: kernels know groups of neighbours alone. column_order() says what stands where.
//
// Loading thread. Borrows the files. Always: the arrays have the shapes and types that their form says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/format.h"
#include "kernels/core/status.h"
#include "models/files/tensor_file.h"
#include "models/quantized/quantization.h"

namespace tramontane {

// Small numbers of `bits` each, several of them in a word along one of the two dimensions.
struct CodeArray {
  const std::byte* data = nullptr;  // null: there are none
  int32_t bits = 8;
  int32_t word_bytes = 1;
  int32_t rows_of_word = 1;     // numbers in a word that are of rows below each other
  int32_t columns_of_word = 1;  // or side by side in a row
  int64_t row_stride = 0;       // in words, from those of a row to those of the next
  int64_t column_stride = 0;
  bool interleaved = false;  // numbers stand in AWQ's order
  uint32_t flip = 0;         // bits that are turned over: 0x80 makes i8 unsigned

  uint32_t Word(int64_t row, int64_t column) const;  // which holds that number
  uint32_t At(int64_t row, int64_t column) const;
};

class CodedMatrix {
 public:
  using Arrays = std::map<std::string, FoundTensor>;

  // The matrix [rows, columns] that a plain file would hold as the tensor `name`. None: it is plain, or not
  // there. Arrays that are missing, do not fit or are not implemented are errors that name file and tensor.
  static StatusOr<std::optional<CodedMatrix>> Find(const Arrays& arrays, const Quantization& quantization,
                                                   const std::string& name, int64_t rows, int64_t columns);

  const Format& format() const { return format_; }
  // [columns] the column of the file that stands in each place of a row as it is read; null: all in order.
  const int32_t* column_order() const { return column_order_.empty() ? nullptr : column_order_.data(); }
  // Whether the numbers of a row all share a scale.
  bool has_scale_of_row() const { return scale_columns_ >= columns_; }
  // Every array that belongs to it, those without effect too.
  const std::vector<std::pair<std::string, FoundTensor>>& arrays() const { return arrays_; }
  int64_t bytes() const;  // of all of them

  // Rows [begin, begin + count), each of whole blocks, in column_order(). Numbers that are not finite are an
  // error.
  Status Read(int64_t begin, int64_t count, std::byte* blocks) const;
  // The same in f32, [count, columns], columns as in the file.
  Status ReadValues(int64_t begin, int64_t count, float* values) const;
  // Rows before `end` will not be read again.
  void Release(int64_t end) const;

 private:
  friend class CodedMatrixFinder;
  CodedMatrix() = default;

  Status PutScale(int64_t row, int64_t column, std::byte* block) const;
  void PutCodesOfRows(int64_t begin, int64_t count, std::byte* blocks) const;
  void PutCodesOfColumns(int64_t begin, int64_t count, std::byte* blocks) const;
  void PutCodesInOrder(int64_t begin, int64_t count, std::byte* blocks) const;
  Status CheckCodes(int64_t begin, int64_t count) const;
  // Where the numbers from `column` on of a row stand.
  std::byte* CodesAt(int64_t row, int64_t column, std::byte* blocks) const;
  bool by_rows() const { return codes_.column_stride == 1 && codes_.rows_of_word == 1; }

  std::vector<std::pair<std::string, FoundTensor>> arrays_;  // numbers, scales, then the rest
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  Format format_ = DType::kInt8;
  CodeArray codes_;
  FoundTensor scales_;
  int64_t scale_rows_ = 1;  // rows that share one
  int64_t scale_columns_ = 1;
  int64_t scale_row_stride_ = 0;  // scales
  int64_t scale_column_stride_ = 0;
  CodeArray zeros_;  // data is null where there are none
  int32_t zero_offset_ = 0;
  std::vector<int32_t> column_order_;  // empty: in order
};

}  // namespace tramontane
