#include "models/quantized/coded_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "kernels/core/block_types.h"
#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Where in a word of AWQ's the number stands that is this one in its order.
constexpr uint8_t kPlaceInAwqWord[] = {0, 4, 1, 5, 2, 6, 3, 7};

int64_t Quotient(int64_t count, int64_t size) { return (count + size - 1) / size; }

float ScaleValue(const std::byte* data, DType type) {
  if (type == DType::kF32) {
    float value = 0.0f;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, data, sizeof(bits));
  return type == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

const char* NameOfCodes(WeightCoding coding) {
  switch (coding) {
    case WeightCoding::kPackQuantized:
      return "weight_packed";
    case WeightCoding::kAwq:
    case WeightCoding::kGptq:
      return "qweight";
    case WeightCoding::kIntQuantized:
    case WeightCoding::kFloatQuantized:
    case WeightCoding::kFp8:
    case WeightCoding::kMistralFp8:
      break;
  }
  return "weight";
}

constexpr char kPlainScale[] = "weight_scale";

const char* NameOfScales(WeightCoding coding) {
  switch (coding) {
    case WeightCoding::kAwq:
    case WeightCoding::kGptq:
      return "scales";
    case WeightCoding::kFp8:
      return "weight_scale_inv";
    case WeightCoding::kMistralFp8:
      return "qscale_weight";
    case WeightCoding::kPackQuantized:
    case WeightCoding::kIntQuantized:
    case WeightCoding::kFloatQuantized:
      break;
  }
  return kPlainScale;
}

bool IsTransposed(WeightCoding coding) {
  return coding == WeightCoding::kAwq || coding == WeightCoding::kGptq;
}

// What the numbers of a form are; none: of integers in words.
const char* PlainTypeOf(WeightCoding coding) {
  if (coding == WeightCoding::kPackQuantized || IsTransposed(coding)) return nullptr;
  return coding == WeightCoding::kIntQuantized ? "I8" : "F8_E4M3";
}

// Shapes that are meant by [rows, columns]: a vector or a single number may leave out what is 1.
std::vector<std::vector<int64_t>> ShapesOf(int64_t rows, int64_t columns) {
  std::vector<std::vector<int64_t>> shapes = {{rows, columns}};
  if (columns == 1) shapes.push_back({rows});
  if (rows == 1 && columns == 1) shapes.push_back({});
  return shapes;
}

}  // namespace

uint32_t CodeArray::Word(int64_t row, int64_t column) const {
  const int64_t at = row / rows_of_word * row_stride + column / columns_of_word * column_stride;
  uint32_t word = 0;
  std::memcpy(&word, data + at * word_bytes, static_cast<size_t>(word_bytes));
  return word;
}

uint32_t CodeArray::At(int64_t row, int64_t column) const {
  int64_t place = row % rows_of_word + column % columns_of_word;  // one of them is 0
  if (interleaved) place = kPlaceInAwqWord[place];
  return (Word(row, column) >> (place * bits) & ((1u << bits) - 1)) ^ flip;
}

// One matrix looked for under one scheme.
class CodedMatrixFinder {
 public:
  CodedMatrixFinder(const CodedMatrix::Arrays& all, const CodingScheme& scheme, const std::string& name,
                    int64_t rows, int64_t columns)
      : all_(all),
        scheme_(scheme),
        stem_(name.substr(0, name.rfind('.') + 1)),
        rows_(rows),
        columns_(columns) {
    found_.rows_ = rows;
    found_.columns_ = columns;
    found_.zero_offset_ = scheme.zero_offset;
  }

  // Whether the array of its numbers is there.
  bool IsThere() const {
    const auto codes = all_.find(stem_ + NameOfCodes(scheme_.coding));
    if (codes == all_.end()) return false;
    return PlainTypeOf(scheme_.coding) == nullptr ||
           codes->second.tensor->dtype_name == PlainTypeOf(scheme_.coding);
  }

  StatusOr<CodedMatrix> Find() {
    TM_RETURN_IF_ERROR(FindCodes());
    TM_RETURN_IF_ERROR(FindScales());
    TM_RETURN_IF_ERROR(FindZeroPoints());
    TM_RETURN_IF_ERROR(ChooseFormat());
    TM_RETURN_IF_ERROR(CheckShape());
    TM_RETURN_IF_ERROR(FindColumnOrder());
    TakeUnused();
    return std::move(found_);
  }

 private:
  // An array of the matrix; that it is missing or of another type or shape is an error.
  StatusOr<FoundTensor> Take(const std::string& suffix, std::initializer_list<const char*> types,
                             const std::vector<std::vector<int64_t>>& shapes) {
    const std::string name = stem_ + suffix;
    const auto entry = all_.find(name);
    if (entry == all_.end()) {
      return NotFound(where_ + ": tensor " + name + " is missing, without which " + stem_ +
                      NameOfCodes(scheme_.coding) + " says nothing");
    }
    const FoundTensor& array = entry->second;
    const std::string what = array.file->path() + ": tensor " + name;
    if (std::find(types.begin(), types.end(), array.tensor->dtype_name) == types.end()) {
      std::string known;
      for (const char* type : types) known += std::string(known.empty() ? "" : ", ") + type;
      return Unimplemented(what + " has dtype " + array.tensor->dtype_name + "; it must be " + known);
    }
    if (std::find(shapes.begin(), shapes.end(), array.tensor->shape) == shapes.end()) {
      return InvalidArgument(what + " has shape " + ShapeText(array.tensor->shape) +
                             "; by the config it must be " + ShapeText(shapes[0]));
    }
    found_.arrays_.emplace_back(name, array);
    return array;
  }
  const FoundTensor* Optional(const std::string& suffix) const {
    const auto entry = all_.find(stem_ + suffix);
    return entry == all_.end() ? nullptr : &entry->second;
  }

  int32_t per_word() const { return 32 / scheme_.bits; }
  // Rows that share a scale of array `name`. Of Mistral's only the array says whether each has its own.
  int64_t RowsOfScale(const std::string& name) const {
    if (scheme_.coding == WeightCoding::kMistralFp8) {
      const FoundTensor* array = Optional(name);
      if (array != nullptr && !array->tensor->shape.empty() && array->tensor->shape[0] > 1) return 1;
    }
    return scheme_.scale_rows == 0 ? rows_ : scheme_.scale_rows;
  }
  // Scales of a row.
  int64_t scales_across() const {
    return scheme_.scale_columns == 0 ? 1 : Quotient(columns_, scheme_.scale_columns);
  }

  Status FindCodes() {
    const char* name = NameOfCodes(scheme_.coding);
    const auto entry = all_.find(stem_ + name);
    where_ = (entry == all_.end() ? all_.begin() : entry)->second.file->path();
    CodeArray& codes = found_.codes_;
    codes.bits = scheme_.bits;
    std::vector<int64_t> shape = {rows_, columns_};
    if (const char* type = PlainTypeOf(scheme_.coding)) {
      TM_ASSIGN_OR_RETURN(const FoundTensor array, Take(name, {type}, {shape}));
      codes = {.data = array.data(), .row_stride = columns_, .column_stride = 1};
      if (scheme_.coding == WeightCoding::kIntQuantized) codes.flip = 0x80;
      return {};
    }
    codes.word_bytes = 4;
    if (scheme_.coding == WeightCoding::kPackQuantized) {
      shape[1] = Quotient(columns_, per_word());
      codes.columns_of_word = per_word();
      codes.row_stride = shape[1];
      codes.column_stride = 1;
    } else if (scheme_.coding == WeightCoding::kAwq) {
      shape = {columns_, Quotient(rows_, per_word())};
      codes.rows_of_word = per_word();
      codes.row_stride = 1;
      codes.column_stride = shape[1];
      codes.interleaved = true;
    } else {
      shape = {Quotient(columns_, per_word()), rows_};
      codes.columns_of_word = per_word();
      codes.row_stride = 1;
      codes.column_stride = rows_;
    }
    TM_ASSIGN_OR_RETURN(const FoundTensor array, Take(name, {"I32"}, {shape}));
    codes.data = array.data();
    return {};
  }

  Status FindScales() {
    const bool transposed = IsTransposed(scheme_.coding);
    std::string name = NameOfScales(scheme_.coding);
    // The first releases in fp8 have it under the name of others.
    if (scheme_.coding == WeightCoding::kFp8 && Optional(name) == nullptr && Optional(kPlainScale) != nullptr)
      name = kPlainScale;
    const int64_t rows = RowsOfScale(name), down = Quotient(rows_, rows), across = scales_across();
    TM_ASSIGN_OR_RETURN(found_.scales_, Take(name, {"F16", "BF16", "F32"},
                                             transposed ? ShapesOf(across, down) : ShapesOf(down, across)));
    found_.scale_rows_ = rows;
    found_.scale_columns_ = scheme_.scale_columns == 0 ? columns_ : scheme_.scale_columns;
    found_.scale_row_stride_ = transposed ? 1 : across;
    found_.scale_column_stride_ = transposed ? down : 1;
    return {};
  }

  Status FindZeroPoints() {
    const WeightCoding coding = scheme_.coding;
    const int64_t across = scales_across();
    CodeArray& zeros = found_.zeros_;
    if (coding == WeightCoding::kIntQuantized || coding == WeightCoding::kPackQuantized) {
      // Some write zero points that are all in the middle.
      if (scheme_.symmetric && Optional("weight_zero_point") == nullptr) return {};
      if (scheme_.scale_rows != 1) {
        return Unimplemented(where_ + ": tensor " + stem_ +
                             "weight_zero_point for more than one row is not implemented");
      }
      const bool packed = coding == WeightCoding::kPackQuantized;
      const int32_t together = packed ? per_word() : 1;
      TM_ASSIGN_OR_RETURN(const FoundTensor array, Take("weight_zero_point", {packed ? "I32" : "I8"},
                                                        ShapesOf(Quotient(rows_, together), across)));
      zeros = {.data = array.data(),
               .bits = scheme_.bits,
               .word_bytes = packed ? 4 : 1,
               .rows_of_word = together,
               .row_stride = across,
               .column_stride = 1,
               .flip = packed ? 0u : 0x80u};
    } else if (IsTransposed(coding)) {
      if (scheme_.symmetric && Optional("qzeros") == nullptr) return {};
      const int64_t words = Quotient(rows_, per_word());
      TM_ASSIGN_OR_RETURN(const FoundTensor array, Take("qzeros", {"I32"}, {{across, words}}));
      zeros = {.data = array.data(),
               .bits = scheme_.bits,
               .word_bytes = 4,
               .rows_of_word = per_word(),
               .row_stride = 1,
               .column_stride = words,
               .interleaved = coding == WeightCoding::kAwq};
    }
    return {};
  }

  // What scales are kept as: f32 whose lower halves are empty, as scales that are powers of two have them,
  // are bf16. A block of 128x128 has its scale once for each of its rows, or every second one, where it is
  // f32: 1.6 % either way.
  DType KeptScaleType() const {
    const DType stored = found_.scales_.tensor->format->dtype;
    if (stored != DType::kF32) return stored;
    const int64_t count = (found_.scales_.tensor->end - found_.scales_.tensor->begin) / 4;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, found_.scales_.data() + i * 4, sizeof(bits));
      if ((bits & 0xffffu) != 0) return DType::kF32;
    }
    return DType::kBf16;
  }

  // The largest group that no border of scales cuts.
  Status ChooseFormat() {
    const char* type = PlainTypeOf(scheme_.coding);
    const DType numbers = type != nullptr && std::strcmp(type, "F8_E4M3") == 0 ? DType::kFp8E4M3
                          : scheme_.bits == 4                                  ? DType::kInt4
                                                                               : DType::kInt8;
    const int64_t shared = found_.scale_columns_;
    for (int32_t log2 = 8; log2 >= 5; --log2) {
      const int64_t group = int64_t{1} << log2;
      if (shared % group != 0 || columns_ % group != 0) continue;
      const DType scale = KeptScaleType();
      const bool in_pairs =
          numbers == DType::kFp8E4M3 && scale == DType::kF32 && rows_ % 2 == 0 && found_.scale_rows_ % 2 == 0;
      const bool zero_points = found_.zeros_.data != nullptr;
      found_.format_ = Format::InGroups(numbers, log2, scale, zero_points, in_pairs ? 2 : 1,
                                        zero_points && numbers == DType::kInt4 ? found_.zero_offset_ : 0);
      return {};
    }
    return Unimplemented(where_ + ": tensor " + stem_ + NameOfCodes(scheme_.coding) + " has rows of " +
                         std::to_string(columns_) + " numbers, of which " + std::to_string(shared) +
                         " share a scale; both must be multiples of 32");
  }

  // What compressed-tensors writes beside words, whose rows may be filled up.
  Status CheckShape() {
    if (scheme_.coding != WeightCoding::kPackQuantized || Optional("weight_shape") == nullptr) return {};
    TM_ASSIGN_OR_RETURN(const FoundTensor array, Take("weight_shape", {"I64", "I32"}, {{2}}));
    int64_t shape[2] = {};
    for (int i = 0; i < 2; ++i) {
      int32_t narrow = 0;
      if (array.tensor->dtype_name == "I64") {
        std::memcpy(&shape[i], array.data() + i * 8, 8);
      } else {
        std::memcpy(&narrow, array.data() + i * 4, 4);
        shape[i] = narrow;
      }
    }
    if (shape[0] == rows_ && shape[1] == columns_) return {};
    return InvalidArgument(where_ + ": tensor " + stem_ + "weight_shape says " +
                           ShapeText({shape[0], shape[1]}) + "; by the config it must be " +
                           ShapeText({rows_, columns_}));
  }

  // Which group each column is of. Columns in order need no array.
  Status FindColumnOrder() {
    const std::string suffix = scheme_.coding == WeightCoding::kGptq ? "g_idx" : "weight_g_idx";
    if (!scheme_.has_column_groups) return {};
    if (!scheme_.needs_column_groups && Optional(suffix) == nullptr) return {};
    TM_ASSIGN_OR_RETURN(const FoundTensor array, Take(suffix, {"I32"}, {{columns_}}));
    const std::string what = array.file->path() + ": tensor " + stem_ + suffix;
    const int64_t groups = scales_across(), size = found_.scale_columns_;
    // As compressed-tensors fills it where nobody has put columns into groups.
    const std::byte* const first = array.data();
    const bool is_unset =
        std::all_of(first, first + columns_ * 4, [](std::byte byte) { return byte == std::byte{0xff}; });
    if (is_unset && scheme_.coding == WeightCoding::kPackQuantized) return {};
    std::vector<int64_t> counts(static_cast<size_t>(groups));
    std::vector<int32_t> order(static_cast<size_t>(columns_));
    bool in_order = true;
    for (int64_t k = 0; k < columns_; ++k) {
      int32_t group = 0;
      std::memcpy(&group, array.data() + k * 4, sizeof(group));
      if (group < 0 || group >= groups) {
        return InvalidArgument(what + " puts column " + std::to_string(k) + " into group " +
                               std::to_string(group) + "; the limit is " + std::to_string(groups - 1));
      }
      const int64_t place = group * size + counts[static_cast<size_t>(group)]++;
      // A group that is too large is refused below.
      if (place < columns_) order[static_cast<size_t>(place)] = static_cast<int32_t>(k);
      in_order &= place == k;
    }
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t count = counts[static_cast<size_t>(group)],
                    want = std::min(size, columns_ - group * size);
      if (count == want) continue;
      return Unimplemented(what + " puts " + std::to_string(count) + " columns into group " +
                           std::to_string(group) + "; the limit is the " + std::to_string(want) +
                           " of a group");
    }
    if (!in_order) found_.column_order_ = std::move(order);
    return {};
  }

  // How activations would be rounded.
  void TakeUnused() {
    for (const char* suffix : {"input_scale", "input_zero_point", "activation_scale", "qscale_act"}) {
      if (const FoundTensor* array = Optional(suffix)) found_.arrays_.emplace_back(stem_ + suffix, *array);
    }
  }

  const CodedMatrix::Arrays& all_;
  const CodingScheme& scheme_;
  const std::string stem_;  // "layers.0.mlp.up_proj."
  const int64_t rows_;
  const int64_t columns_;
  std::string where_;  // the file of its numbers
  CodedMatrix found_;
};

namespace {

// How a module that is quantised stands in the files, by the config.
StatusOr<const CodingScheme*> SchemeOf(const Quantization& quantization, const std::string& module) {
  const ModuleNames names = NamesOfModule(module);
  TM_ASSIGN_OR_RETURN(const bool kept, MatchesAny(quantization.kept, names));
  if (kept) return InvalidArgument(module + " is quantised, though the config says that it is not");
  std::vector<const ModulePattern*> targets;
  std::vector<const CodingScheme*> schemes;  // of each target
  for (const CodingScheme& scheme : quantization.schemes) {
    if (scheme.targets.empty()) return &scheme;  // of forms that know no targets
    for (const ModulePattern& target : scheme.targets) {
      targets.push_back(&target);
      schemes.push_back(&scheme);
    }
  }
  TM_ASSIGN_OR_RETURN(const int64_t best, BestMatch(targets, names));
  if (best >= 0) return schemes[static_cast<size_t>(best)];
  return InvalidArgument(module + " is quantised, though it is no target of the config's groups");
}

}  // namespace

StatusOr<std::optional<CodedMatrix>> CodedMatrix::Find(const Arrays& arrays, const Quantization& quantization,
                                                       const std::string& name, int64_t rows,
                                                       int64_t columns) {
  if (!name.ends_with(".weight") || columns == 0) return std::optional<CodedMatrix>();
  const bool is_there =
      std::any_of(quantization.schemes.begin(), quantization.schemes.end(), [&](const CodingScheme& scheme) {
        return CodedMatrixFinder(arrays, scheme, name, rows, columns).IsThere();
      });
  if (!is_there) return std::optional<CodedMatrix>();
  const std::string module = name.substr(0, name.rfind('.'));
  const auto with_file = [&](const Status& status) {
    return Status(status).WithField(arrays.begin()->second.file->path());
  };
  StatusOr<const CodingScheme*> scheme = SchemeOf(quantization, module);
  if (!scheme.ok()) return with_file(scheme.status());
  CodedMatrixFinder finder(arrays, **scheme, name, rows, columns);
  TM_ASSIGN_OR_RETURN(CodedMatrix found, finder.Find());
  return std::optional<CodedMatrix>(std::move(found));
}

int64_t CodedMatrix::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, array] : arrays_) bytes += array.tensor->end - array.tensor->begin;
  return bytes;
}

Status CodedMatrix::PutScale(int64_t row, int64_t column, std::byte* block) const {
  const int64_t across = column / scale_columns_;
  const int64_t index = row / scale_rows_ * scale_row_stride_ + across * scale_column_stride_;
  const Format& stored = *scales_.tensor->format;
  const std::byte* scale = scales_.data() + stored.Bytes(index);
  // Of an f32 that is a bf16, the upper half.
  const int64_t dropped = stored.block_bytes - format_.scale_bytes();
  std::memcpy(block, scale + dropped, static_cast<size_t>(format_.scale_bytes()));
  if (!std::isfinite(ScaleValue(scale, stored.dtype))) {
    return DataLoss(scales_.file->path() + ": tensor " + arrays_[1].first +
                    " holds values that are not finite (NaN or infinity)");
  }
  if (zeros_.data == nullptr) return {};
  const uint32_t zero = zeros_.At(row, across) + static_cast<uint32_t>(zero_offset_);
  if (zero > 255) {
    return Unimplemented(scales_.file->path() + ": tensor " + arrays_[2].first + " has a zero point of " +
                         std::to_string(zero) + "; the limit is 255");
  }
  block[format_.scale_bytes()] = static_cast<std::byte>(zero);
  return {};
}

std::byte* CodedMatrix::CodesAt(int64_t row, int64_t column, std::byte* blocks) const {
  const int64_t in_block = column & (format_.block_size() - 1);
  return blocks + format_.Bytes(row * columns_) + format_.Bytes(column - in_block) + format_.codes_at() +
         in_block * codes_.bits / 8;
}

// Numbers of a row side by side, as blocks have them.
void CodedMatrix::PutCodesOfRows(int64_t begin, int64_t count, std::byte* blocks) const {
  const int64_t group = format_.block_size();
  const int64_t bytes = group * codes_.bits / 8;
  for (int64_t row = 0; row < count; ++row) {
    const std::byte* from = codes_.data + (begin + row) * codes_.row_stride * codes_.word_bytes;
    for (int64_t column = 0; column < columns_; column += group) {
      std::byte* to = CodesAt(row, column, blocks);
      std::memcpy(to, from + column * codes_.bits / 8, static_cast<size_t>(bytes));
      if (codes_.flip == 0) continue;
      for (int64_t i = 0; i < bytes; ++i) to[i] ^= static_cast<std::byte>(codes_.flip);
    }
  }
}

// Numbers of a column side by side: word by word, into the rows that it is of.
void CodedMatrix::PutCodesOfColumns(int64_t begin, int64_t count, std::byte* blocks) const {
  for (int64_t column = 0; column < columns_; column += codes_.columns_of_word) {
    if (codes_.rows_of_word == 1) {
      for (int64_t row = 0; row < count; ++row) {
        const uint32_t word = codes_.Word(begin + row, column);
        std::memcpy(CodesAt(row, column, blocks), &word, sizeof(word));
      }
      continue;
    }
    const int shift = static_cast<int>(column % 2) * codes_.bits;  // of 4 bits
    for (int64_t row = 0; row < count; ++row) {
      std::byte* to = CodesAt(row, column, blocks);
      *to |= static_cast<std::byte>(codes_.At(begin + row, column) << shift);
    }
  }
}

// Column by column, each from wherever it stands in the file. REQUIRES: words of one row.
void CodedMatrix::PutCodesInOrder(int64_t begin, int64_t count, std::byte* blocks) const {
  const uint32_t mask = (1u << codes_.bits) - 1;
  const int64_t row_bytes = format_.Bytes(columns_), next_row = codes_.row_stride * codes_.word_bytes;
  for (int64_t place = 0; place < columns_; ++place) {
    const int64_t column = column_order_[static_cast<size_t>(place)];
    const std::byte* from = codes_.data + begin * next_row +
                            column / codes_.columns_of_word * codes_.column_stride * codes_.word_bytes;
    const int64_t shift = column % codes_.columns_of_word * codes_.bits;
    const int64_t into = place * codes_.bits % 8;  // of 4 bits, the upper half of a byte
    std::byte* to = CodesAt(0, place, blocks);
    for (int64_t row = 0; row < count; ++row, from += next_row, to += row_bytes) {
      uint32_t word = 0;
      std::memcpy(&word, from, static_cast<size_t>(codes_.word_bytes));
      *to |= static_cast<std::byte>(((word >> shift & mask) ^ codes_.flip) << into);
    }
  }
}

// Of integers every one is a number.
Status CodedMatrix::CheckCodes(int64_t begin, int64_t count) const {
  if (format_.dtype != DType::kFp8E4M3) return {};
  const std::byte* codes = codes_.data + begin * columns_;
  bool broken = false;
  for (int64_t i = 0; i < count * columns_; ++i) broken |= (codes[i] & std::byte{0x7f}) == std::byte{0x7f};
  if (!broken) return {};
  return DataLoss(arrays_[0].second.file->path() + ": tensor " + arrays_[0].first +
                  " holds values that are not finite (NaN or infinity)");
}

Status CodedMatrix::Read(int64_t begin, int64_t count, std::byte* blocks) const {
  TM_CHECK(begin >= 0 && count >= 0 && begin + count <= rows_, "rows that the matrix does not have");
  TM_RETURN_IF_ERROR(CheckCodes(begin, count));
  std::memset(blocks, 0, static_cast<size_t>(format_.Bytes(count * columns_)));
  std::byte* block = blocks;
  for (int64_t row = begin; row < begin + count; ++row) {
    for (int64_t column = 0; column < columns_; column += format_.block_size()) {
      TM_RETURN_IF_ERROR(PutScale(row, column, block));
      block += format_.block_bytes;
    }
  }
  if (!column_order_.empty()) {
    PutCodesInOrder(begin, count, blocks);
  } else if (by_rows()) {
    PutCodesOfRows(begin, count, blocks);
  } else {
    PutCodesOfColumns(begin, count, blocks);
  }
  return {};
}

Status CodedMatrix::ReadValues(int64_t begin, int64_t count, float* values) const {
  const int64_t row_numbers = format_.Blocks(columns_) * format_.block_size();
  std::vector<std::byte> blocks(static_cast<size_t>(format_.Bytes(row_numbers)));
  std::vector<float> row(static_cast<size_t>(row_numbers));
  for (int64_t i = 0; i < count; ++i, values += columns_) {
    TM_RETURN_IF_ERROR(Read(begin + i, 1, blocks.data()));
    DecodeBlocks(format_, blocks.data(), row_numbers, row.data());
    for (int64_t k = 0; k < columns_; ++k)
      values[column_order_.empty() ? k : column_order_[static_cast<size_t>(k)]] = row[static_cast<size_t>(k)];
  }
  return {};
}

void CodedMatrix::Release(int64_t end) const {
  const FoundTensor& codes = arrays_[0].second;
  if (end < rows_) {
    // Columns are read again for the next rows.
    const int64_t bytes = end * codes_.row_stride * codes_.word_bytes;
    if (by_rows()) codes.file->Release(codes.tensor->begin, codes.tensor->begin + bytes);
    return;
  }
  for (const auto& [name, array] : arrays_) array.file->Release(array.tensor->begin, array.tensor->end);
}

}  // namespace tramontane
