#include "models/quantized/gguf_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "models/gguf/gguf_types.h"
#include "models/quantized/encode_blocks.h"
#include "models/quantized/gguf_model_keys.h"
#include "models/tensor_values.h"

namespace tramontane {
namespace {

// A tensor of the model, whole or a slice of its rows, and where it stands in a tensor of the file.
struct Piece {
  TensorSpec from;
  StoredWeight stored;
  int64_t begin = 0;  // row in the file's tensor

  int64_t rows() const { return from.slice.end - from.slice.begin; }
  int64_t columns() const { return std::max<int64_t>(1, from.columns); }
};

// A tensor of the file: a piece, or the experts of a layer one after another.
struct OutTensor {
  TensorSpec to;
  bool packed = true;  // a matrix, no norm and no router
  bool rotary = false;
  Format format = DType::kF32;
  std::vector<Piece> pieces = {};
};

class GgufModelWriter {
 public:
  GgufModelWriter(const OpenedModel& model, const std::string& out, const GgufModelOptions& options,
                  const std::function<void(int64_t, int64_t)>& progress)
      : model_(model), out_(out), options_(options), progress_(progress) {}

  StatusOr<QuantizeResult> Run() {
    TM_RETURN_IF_ERROR(CheckModel());
    TM_RETURN_IF_ERROR(ListTensors());
    TM_RETURN_IF_ERROR(ChooseFormats());
    TM_ASSIGN_OR_RETURN(GgufModelKeys keys,
                        MakeGgufModelKeys(model_.config, options_.tokenizer, model_.folder.path));
    AddFileKeys(keys.keys);
    const Status written = WriteAll(keys);
    if (!written.ok()) {
      std::error_code ignored;
      std::filesystem::remove(out_, ignored);
      return written;
    }
    result_.bytes_after = file_.tensor_bytes();
    return result_;
  }

 private:
  Status CheckModel() const {
    TM_RETURN_IF_ERROR(CheckNotQuantised(model_));
    std::error_code error;
    if (std::filesystem::exists(out_, error) || error)
      return InvalidArgument(out_ + ": is there; it is left as it is");
    return {};
  }

  // The model's weights beside the same weights as a GGUF file would have them: one after the other, the two
  // lists have the same parts.
  Status ListTensors() {
    ModelConfig config = model_.config;
    config.layout = FolderLayout::kGguf;
    const std::vector<WeightSpec> weights = ListWeights(config);
    TM_CHECK(weights.size() == model_.weights.size(), "one list is longer");
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < weights.size(); ++i) {
      const WeightSpec& weight = model_.weights[i];
      for (size_t k = 0; k < weight.parts.size(); ++k) {
        const TensorSpec& to = weights[i].parts[k];
        const auto [entry, added] = index.emplace(to.name, tensors_.size());
        // Of query, key and value all but the last.
        const bool rotary = weight.key.role == WeightRole::kQkv && k < 2;
        if (added) tensors_.push_back({.to = to, .packed = weight.packed, .rotary = rotary});
        TM_ASSIGN_OR_RETURN(StoredWeight stored, model_.weight_files->Find(weight.parts[k]));
        tensors_[entry->second].pieces.push_back({weight.parts[k], std::move(stored), to.slice.begin});
      }
    }
    for (OutTensor& tensor : tensors_) {
      std::sort(tensor.pieces.begin(), tensor.pieces.end(),
                [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    }
    for (const auto& [name, found] : model_.weight_files->all())
      result_.bytes_before += found.tensor->end - found.tensor->begin;
    return {};
  }

  Status ChooseFormats() {
    for (OutTensor& tensor : tensors_) {
      const auto pieces = static_cast<int64_t>(tensor.pieces.size());
      if (!tensor.packed) {
        result_.kept += pieces;
        continue;
      }
      const bool whole_blocks = tensor.to.columns % Format(options_.type).block_size() == 0;
      if (!whole_blocks || IsKept(tensor)) {
        result_.kept += pieces;
        tensor.format = CommonFormat(tensor);
        continue;
      }
      result_.quantised += pieces;
      tensor.format = options_.type;
    }
    if (result_.quantised != 0) return {};
    return InvalidArgument(model_.folder.path + ": every matrix is kept; there is nothing to do");
  }

  // Experts are one tensor: all stay, or none.
  bool IsKept(const OutTensor& tensor) const {
    return std::any_of(tensor.pieces.begin(), tensor.pieces.end(),
                       [&](const Piece& piece) { return FitsAny(options_.keep, piece.from.name); });
  }

  static Format CommonFormat(const OutTensor& tensor) {
    const Format& first = tensor.pieces[0].stored.format();
    const bool same = std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                                  [&](const Piece& piece) { return piece.stored.format() == first; });
    return same ? first : DType::kF32;
  }

  void AddFileKeys(GgufKeys& keys) const {
    // As ggml numbers files by what most of their matrices are, and the version of its blocks.
    constexpr int64_t kMostlyQ4_0 = 2, kMostlyQ8_0 = 7, kVersionOfBlocks = 2;
    if (!options_.name.empty()) keys.SetString("general.name", options_.name);
    keys.SetUint32("general.file_type", options_.type == DType::kQ8_0 ? kMostlyQ8_0 : kMostlyQ4_0);
    keys.SetUint32("general.quantization_version", kVersionOfBlocks);
  }

  Status WriteAll(const GgufModelKeys& keys) {
    const std::vector<float>& divisors = keys.rotary_divisors;
    const std::string_view divisor_bytes(reinterpret_cast<const char*>(divisors.data()),
                                         divisors.size() * sizeof(float));
    if (!divisors.empty()) {
      file_.Plan("rope_freqs.weight", {static_cast<int64_t>(divisors.size())}, GgufTypeNumber(DType::kF32),
                 static_cast<int64_t>(divisor_bytes.size()));
    }
    for (const OutTensor& tensor : tensors_) Plan(tensor);
    TM_RETURN_IF_ERROR(file_.Begin(out_, keys.keys));
    if (!divisors.empty()) {
      TM_RETURN_IF_ERROR(file_.Append(divisor_bytes));
      TM_RETURN_IF_ERROR(file_.EndTensor());
    }
    for (const OutTensor& tensor : tensors_) {
      for (const Piece& piece : tensor.pieces) TM_RETURN_IF_ERROR(WritePiece(tensor, piece));
      TM_RETURN_IF_ERROR(file_.EndTensor());
    }
    return file_.End();
  }

  void Plan(const OutTensor& tensor) {
    const TensorSpec& to = tensor.to;
    std::vector<int64_t> shape = {to.rows};
    if (to.columns != 0) shape.push_back(to.columns);
    if (to.matrices != 0) shape = {to.matrices, to.rows / to.matrices, to.columns};
    const int64_t elements = to.rows * std::max<int64_t>(1, to.columns);
    file_.Plan(to.name, shape, GgufTypeNumber(tensor.format), tensor.format.Bytes(elements));
  }

  // A few rows at a time; of rotated ones a head, within which they change their places.
  Status WritePiece(const OutTensor& tensor, const Piece& piece) {
    constexpr int64_t kNumbers = 1 << 16;
    const bool reorder = tensor.rotary && model_.config.rotary_style == RotaryStyle::kHalfSplit;
    const int64_t head = model_.config.head_dim;
    const int64_t step = reorder ? head : std::max<int64_t>(1, kNumbers / piece.columns());
    const FoundTensor& found = piece.stored.plain;
    for (int64_t first = 0; first < piece.rows(); first += step) {
      const int64_t count = std::min(step, piece.rows() - first);
      std::string bytes;
      for (int64_t i = 0; i < count; ++i) {
        // Pair i of a head is its rows i and half + i; here they stand side by side.
        const int64_t from = reorder ? i / 2 + i % 2 * (head / 2) : i;
        if (!AppendRow(piece, piece.from.slice.begin + first + from, tensor.format, bytes)) {
          return DataLoss(found.file->path() + ": tensor " + piece.from.name +
                          " holds values that are not finite (NaN or infinity), or too large for a scale");
        }
      }
      TM_RETURN_IF_ERROR(file_.Append(bytes));
      const int64_t begin = piece.stored.BytesBefore(piece.from.slice.begin + first, piece.from);
      const int64_t end = piece.stored.BytesBefore(piece.from.slice.begin + first + count, piece.from);
      found.file->Release(found.tensor->begin + begin, found.tensor->begin + end);
      done_bytes_ += end - begin;
      if (progress_) progress_(done_bytes_, result_.bytes_before);
    }
    // What the kernel has mapped once more, around a place that was read later.
    const TensorSpec& from = piece.from;
    found.file->Release(found.tensor->begin + piece.stored.BytesBefore(from.slice.begin, from),
                        found.tensor->begin + piece.stored.BytesBefore(from.slice.end, from));
    return {};
  }

  // Whether its numbers have a place in blocks.
  bool AppendRow(const Piece& piece, int64_t row, const Format& to, std::string& bytes) {
    const Format& from = piece.stored.format();
    const std::byte* data = piece.stored.plain.data() + piece.stored.BytesBefore(row, piece.from);
    const auto at = bytes.size();
    bytes.resize(at + static_cast<size_t>(to.Bytes(piece.columns())));
    auto* out = reinterpret_cast<std::byte*>(bytes.data() + at);
    if (from == to) {
      std::copy_n(data, static_cast<size_t>(to.Bytes(piece.columns())), out);
      return true;
    }
    numbers_.resize(static_cast<size_t>(piece.columns()));
    DecodeValues(from, data, piece.columns(), numbers_.data());
    if (!to.plain()) return EncodeBlocks(to.dtype, numbers_, out);
    TM_CHECK(to == Format(DType::kF32), "plain numbers are only ever widened to f32");
    std::copy_n(reinterpret_cast<const std::byte*>(numbers_.data()), numbers_.size() * sizeof(float), out);
    return true;
  }

  const OpenedModel& model_;
  const std::string out_;
  const GgufModelOptions& options_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::vector<OutTensor> tensors_;
  std::vector<float> numbers_;  // of a row
  GgufOutput file_;
  int64_t done_bytes_ = 0;
  QuantizeResult result_;
};

}  // namespace

StatusOr<QuantizeResult> WriteGgufModel(const OpenedModel& model, const std::string& out,
                                        const GgufModelOptions& options,
                                        const std::function<void(int64_t, int64_t)>& progress) {
  TM_CHECK(options.type == DType::kQ8_0 || options.type == DType::kQ4_0, "Q8_0 or Q4_0");
  return GgufModelWriter(model, out, options, progress).Run();
}

}  // namespace tramontane
