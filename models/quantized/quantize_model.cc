#include "models/quantized/quantize_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "kernels/core/check.h"
#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/json_file.h"
#include "models/quantized/hugging_face_keys.h"
#include "models/tensor_values.h"

namespace tramontane {
namespace {

using nlohmann::json;

float AsStored(float value, DType type) {
  if (type == DType::kBf16) return RoundToBf16(value);
  if (type == DType::kF16) return F16ToFloat(FloatToF16(value));
  return value;
}

void AppendNumber(float value, DType type, std::string& out) {
  if (type == DType::kF32) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return;
  }
  const uint16_t bits = type == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
  out.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
}

// A file of safetensors of which all shapes are known before the first byte is written.
class TensorWriter {
 public:
  void Plan(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
            int64_t bytes) {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {planned_, planned_ + bytes}}};
    planned_ += bytes;
  }

  Status Begin(const std::string& path) {
    path_ = path;
    // Programs that read the file ask for this.
    header_["__metadata__"] = {{"format", "pt"}};
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    file_.open(path, std::ios::binary | std::ios::trunc);
    std::string length;
    for (int i = 0; i < 8; ++i) length += static_cast<char>(uint64_t{header.size()} >> (8 * i));
    return Append(length + header);
  }
  // The tensors' bytes, in the order of the plan.
  Status Append(std::string_view bytes) {
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file_ ? Status::Ok() : FailedPrecondition(path_ + ": cannot be written");
  }
  Status End() {
    file_.close();
    return file_ ? Status::Ok() : FailedPrecondition(path_ + ": cannot be written");
  }
  int64_t planned() const { return planned_; }

 private:
  json header_ = json::object();
  int64_t planned_ = 0;
  std::string path_;
  std::ofstream file_;
};

// A tensor of the model as it is written.
struct TensorToWrite {
  std::string name;
  FoundTensor found;
  std::vector<int64_t> shape;
  std::string dtype_name;  // where it is kept
  int64_t first_row = 0;   // in the file's tensor, whose numbers are rows side by side
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rotary_head = 0;  // rows of a head whose pairs stand side by side and are to stand apart; 0: none
  bool chosen = false;      // it is quantised

  bool whole() const { return rotary_head == 0 && dtype_name == found.tensor->dtype_name; }
  // The row of the file's tensor that stands in this one.
  int64_t SourceRow(int64_t row) const {
    if (rotary_head == 0) return first_row + row;
    const int64_t half = rotary_head / 2, in_head = row % rotary_head;
    return first_row + row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
  }
  int64_t SourceBytes(int64_t row) const { return found.tensor->format->Bytes(row * columns); }
  // Of it in the file.
  int64_t begin() const { return columns == 0 ? 0 : SourceBytes(first_row); }
  int64_t end() const {
    return columns == 0 ? found.tensor->end - found.tensor->begin : SourceBytes(first_row + rows);
  }
};

// What numbers in blocks become where they are kept, and their scales where they are not.
DType PlainType(const Format& format) { return format.plain() ? format.dtype : DType::kF16; }

class Quantizer {
 public:
  Quantizer(const OpenedModel& model, const std::string& out, const QuantizeOptions& options,
            const std::function<void(int64_t, int64_t)>& progress)
      : model_(model), out_(out), options_(options), progress_(progress) {}

  StatusOr<QuantizeResult> Run() {
    TM_RETURN_IF_ERROR(CheckModel());
    TM_RETURN_IF_ERROR(ListTensors());
    TM_RETURN_IF_ERROR(ChooseTensors());
    TM_ASSIGN_OR_RETURN(const json config, MakeConfig());
    TM_RETURN_IF_ERROR(MakeFolder());
    Status written = WriteAll(config);
    if (!written.ok()) {
      std::error_code ignored;
      for (const std::string& file : written_) std::filesystem::remove(file, ignored);
      if (made_folder_) std::filesystem::remove(out_, ignored);
      return written;
    }
    result_.bytes_after = writer_.planned();
    return result_;
  }

 private:
  bool is_gguf() const { return model_.config.layout == FolderLayout::kGguf; }

  Status CheckModel() const { return CheckNotQuantised(model_); }

  Status ListTensors() {
    if (is_gguf()) {
      ModelConfig config = model_.config;
      config.layout = FolderLayout::kHuggingFace;
      const std::vector<WeightSpec> weights = ListWeights(config);
      TM_CHECK(weights.size() == model_.weights.size(), "one list is longer");
      for (size_t i = 0; i < weights.size(); ++i) {
        for (size_t k = 0; k < weights[i].parts.size(); ++k)
          TM_RETURN_IF_ERROR(AddOfGguf(model_.weights[i], k, weights[i].parts[k].name));
      }
    } else {
      for (const auto& [name, found] : model_.weight_files->all()) {
        tensors_.push_back({.name = name,
                            .found = found,
                            .shape = found.tensor->shape,
                            .dtype_name = found.tensor->dtype_name});
      }
    }
    // Whatever the files of the model are.
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorToWrite& a, const TensorToWrite& b) { return a.name < b.name; });
    for (const auto& [name, found] : model_.weight_files->all())
      result_.bytes_before += found.tensor->end - found.tensor->begin;
    return {};
  }

  Status AddOfGguf(const WeightSpec& weight, size_t part, const std::string& name) {
    const TensorSpec& from = weight.parts[part];
    TM_ASSIGN_OR_RETURN(const StoredWeight stored, model_.weight_files->Find(from));
    const int64_t rows = from.slice.end - from.slice.begin;
    // Of query, key and value all but the last.
    const bool rotary = weight.key.role == WeightRole::kQkv && part < 2;
    TensorToWrite tensor = {.name = name,
                            .found = stored.plain,
                            .shape = {rows},
                            .dtype_name = SafetensorsName(PlainType(stored.format())),
                            .first_row = from.slice.begin,
                            .rows = rows,
                            .columns = std::max<int64_t>(1, from.columns),
                            .rotary_head = rotary ? int64_t{model_.config.head_dim} : 0};
    if (from.columns != 0) tensor.shape.push_back(from.columns);
    tensors_.push_back(std::move(tensor));
    return {};
  }

  static const char* SafetensorsName(DType plain) {
    return plain == DType::kF32 ? "F32" : plain == DType::kF16 ? "F16" : "BF16";
  }

  // The matrices that are quantised: of the model, not kept, and whole groups.
  Status ChooseTensors() {
    std::set<std::string> chosen;
    ModelConfig config = model_.config;
    if (is_gguf()) config.layout = FolderLayout::kHuggingFace;
    const std::vector<WeightSpec> as_written = ListWeights(config);
    for (size_t i = 0; i < model_.weights.size(); ++i) {
      const WeightSpec& weight = model_.weights[i];
      for (size_t k = 0; k < weight.parts.size(); ++k) {
        const TensorSpec& part = weight.parts[k];
        TM_ASSIGN_OR_RETURN(const StoredWeight stored, model_.weight_files->Find(part));
        if (!weight.packed || FitsAny(options_.keep, part.name)) continue;
        if (part.columns % options_.group != 0) {
          return InvalidArgument(stored.file().path() + ": tensor " + part.name + " has rows of " +
                                 std::to_string(part.columns) + " numbers, which are no whole groups of " +
                                 std::to_string(options_.group) + ": take a smaller group, or keep it");
        }
        chosen.insert(as_written[i].parts[k].name);
        if (weight.key.role == WeightRole::kEmbedding) embedding_is_chosen_ = true;
      }
    }
    if (chosen.empty())
      return InvalidArgument(model_.folder.path + ": every matrix is kept; there is nothing to do");
    for (TensorToWrite& tensor : tensors_) {
      if (chosen.count(tensor.name) == 0) continue;
      tensor.chosen = true;
      tensor.rows = tensor.shape[0];
      tensor.columns = tensor.shape[1];
    }
    result_.quantised = static_cast<int64_t>(chosen.size());
    result_.kept = static_cast<int64_t>(tensors_.size()) - result_.quantised;
    return {};
  }

  Status MakeFolder() {
    std::error_code error;
    made_folder_ = std::filesystem::create_directories(out_, error);
    if (error) return FailedPrecondition(out_ + ": cannot be made: " + error.message());
    if (!std::filesystem::is_empty(out_, error) || error) {
      return InvalidArgument(out_ + ": is there and not empty; it is left as it is");
    }
    return {};
  }

  Status WriteAll(const json& config) {
    TM_RETURN_IF_ERROR(is_gguf() ? WriteGivenFiles() : CopySmallFiles());
    TM_RETURN_IF_ERROR(
        WriteFile(is_gguf() ? "config.json" : model_.folder.config_file, config.dump(2) + "\n"));
    return WriteTensors();
  }

  Status WriteGivenFiles() {
    for (const NamedBytes& file : options_.files) TM_RETURN_IF_ERROR(WriteFile(file.name, file.bytes));
    return {};
  }

  // Tokenizer, template, defaults: what stands beside config and weights.
  Status CopySmallFiles() {
    constexpr int64_t kMaxBytes = int64_t{1} << 30;
    for (const std::string& name : model_.file_names) {
      const bool config = name == "config.json" || name == "params.json";
      const bool small = name.ends_with(".json") || name.ends_with(".jinja") || name.ends_with(".txt") ||
                         name.find("tokenizer.model") != std::string::npos;
      if (config || !small || name.ends_with(".index.json")) continue;
      TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(model_.folder.PathOf(name), kMaxBytes));
      TM_RETURN_IF_ERROR(WriteFile(name, bytes));
    }
    return {};
  }

  Status WriteFile(const std::string& name, std::string_view bytes) {
    const std::string path = out_ + "/" + name;
    written_.push_back(path);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    return file ? Status::Ok() : FailedPrecondition(path + ": cannot be written");
  }

  json Scheme() const {
    return {{"num_bits", options_.bits},    {"type", "int"},   {"symmetric", true}, {"strategy", "group"},
            {"group_size", options_.group}, {"dynamic", false}};
  }

  // Modules of matrices that are not quantised; of an embedding nobody expects anything else.
  std::vector<std::string> PlainModules() const {
    std::vector<std::string> modules;
    for (const TensorToWrite& tensor : tensors_) {
      if (tensor.chosen || tensor.shape.size() < 2 || !tensor.name.ends_with(".weight")) continue;
      modules.push_back(tensor.name.substr(0, tensor.name.rfind('.')));
    }
    return modules;
  }

  StatusOr<json> MakeConfig() const {
    json config;
    if (is_gguf()) {
      TM_ASSIGN_OR_RETURN(config, MakeHuggingFaceConfig(model_.config, PlainType(model_.config.weight_dtype),
                                                        model_.folder.path));
    } else {
      const std::string path = model_.folder.PathOf(model_.folder.config_file);
      TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
      TM_ASSIGN_OR_RETURN(config, ParseJsonObject(text, path));
    }
    json targets = {"Linear"};
    if (embedding_is_chosen_) targets.push_back("Embedding");
    config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                     {"format", "pack-quantized"},
                                     {"quantization_status", "compressed"},
                                     {"config_groups",
                                      {{"group_0",
                                        {{"targets", targets},
                                         {"weights", Scheme()},
                                         {"input_activations", nullptr},
                                         {"output_activations", nullptr}}}}},
                                     {"ignore", PlainModules()}};
    return config;
  }

  Status WriteTensors() {
    for (const TensorToWrite& tensor : tensors_) Plan(tensor);
    const bool native = model_.config.layout == FolderLayout::kMistral;
    const std::string path = out_ + (native ? "/consolidated.safetensors" : "/model.safetensors");
    written_.push_back(path);
    TM_RETURN_IF_ERROR(writer_.Begin(path));
    for (const TensorToWrite& tensor : tensors_) {
      TM_RETURN_IF_ERROR(tensor.chosen ? Quantize(tensor) : tensor.whole() ? Copy(tensor) : CopyRows(tensor));
      done_bytes_ += tensor.end() - tensor.begin();
      if (progress_) progress_(done_bytes_, result_.bytes_before);
    }
    return writer_.End();
  }

  void Plan(const TensorToWrite& tensor) {
    if (!tensor.chosen) {
      const int64_t bytes =
          tensor.whole()
              ? tensor.end() - tensor.begin()
              : Format(PlainType(*tensor.found.tensor->format)).Bytes(tensor.rows * tensor.columns);
      writer_.Plan(tensor.name, tensor.dtype_name, tensor.shape, bytes);
      return;
    }
    const int64_t words = tensor.columns * options_.bits / 32, groups = tensor.columns / options_.group;
    const std::string stem = tensor.name.substr(0, tensor.name.rfind('.') + 1);
    const Format scale = PlainType(*tensor.found.tensor->format);
    writer_.Plan(stem + "weight_packed", "I32", {tensor.rows, words}, tensor.rows * words * 4);
    writer_.Plan(stem + "weight_scale", tensor.dtype_name, {tensor.rows, groups},
                 scale.Bytes(tensor.rows * groups));
    writer_.Plan(stem + "weight_shape", "I64", {2}, 16);
  }

  Status Copy(const TensorToWrite& tensor) {
    constexpr int64_t kPiece = int64_t{1} << 22;
    const char* data = reinterpret_cast<const char*>(tensor.found.data());
    for (int64_t at = tensor.begin(); at < tensor.end(); at += kPiece) {
      const int64_t piece = std::min(kPiece, tensor.end() - at);
      TM_RETURN_IF_ERROR(writer_.Append({data + at, static_cast<size_t>(piece)}));
      const int64_t begin = tensor.found.tensor->begin + at;
      tensor.found.file->Release(begin, begin + piece);
    }
    ReleaseAll(tensor);
    return {};
  }

  // Hands over the tensor's rows in the order in which they are written, one by one. A few at a time are
  // brought in and given back to the kernel.
  Status ForEachRow(const TensorToWrite& tensor, const std::function<Status(std::span<const float>)>& take) {
    constexpr int64_t kNumbers = 1 << 16;
    const TensorInfo& info = *tensor.found.tensor;
    // Rows of a head change their places within it.
    const int64_t step =
        tensor.rotary_head != 0 ? tensor.rotary_head : std::max<int64_t>(1, kNumbers / tensor.columns);
    std::vector<float> values(static_cast<size_t>(tensor.columns));
    TensorInfo part = info;
    for (int64_t first = 0; first < tensor.rows; first += step) {
      const int64_t end = std::min(first + step, tensor.rows);
      part.begin = info.begin + tensor.SourceBytes(tensor.first_row + first);
      part.end = info.begin + tensor.SourceBytes(tensor.first_row + end);
      tensor.found.file->ReadAhead(part);
      for (int64_t row = first; row < end; ++row) {
        DecodeValues(*info.format, tensor.found.data() + tensor.SourceBytes(tensor.SourceRow(row)),
                     tensor.columns, values.data());
        if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
          return DataLoss(tensor.found.file->path() + ": tensor " + tensor.name +
                          " holds values that are not finite (NaN or infinity)");
        }
        TM_RETURN_IF_ERROR(take(values));
      }
      tensor.found.file->Release(part.begin, part.end);
    }
    ReleaseAll(tensor);
    return {};
  }

  // What the kernel has mapped once more, around places that were read later.
  static void ReleaseAll(const TensorToWrite& tensor) {
    const int64_t begin = tensor.found.tensor->begin;
    tensor.found.file->Release(begin + tensor.begin(), begin + tensor.end());
  }

  // Numbers that stand in blocks, or rows that change their places.
  Status CopyRows(const TensorToWrite& tensor) {
    const DType type = PlainType(*tensor.found.tensor->format);
    return ForEachRow(tensor, [&](std::span<const float> values) {
      std::string row;
      for (const float value : values) {
        if (!std::isfinite(AsStored(value, type))) {
          return DataLoss(tensor.found.file->path() + ": tensor " + tensor.name + " holds " +
                          std::to_string(value) + ", which is too large for f16");
        }
        AppendNumber(value, type, row);
      }
      return writer_.Append(row);
    });
  }

  Status Quantize(const TensorToWrite& tensor) {
    const DType type = PlainType(*tensor.found.tensor->format);
    const auto group = static_cast<size_t>(options_.group);
    std::string scales;
    TM_RETURN_IF_ERROR(ForEachRow(tensor, [&](std::span<const float> values) {
      std::string packed;
      for (; !values.empty(); values = values.subspan(group)) {
        const QuantizedGroup rounded = QuantizeGroup(values.first(group), options_.bits, type);
        AppendNumber(rounded.scale, type, scales);
        AppendCodes(rounded.integers, packed);
      }
      return writer_.Append(packed);
    }));
    TM_RETURN_IF_ERROR(writer_.Append(scales));
    const int64_t shape[2] = {tensor.rows, tensor.columns};
    return writer_.Append({reinterpret_cast<const char*>(shape), sizeof(shape)});
  }

  // Unsigned, the first number lowest in its byte, and so in its word.
  void AppendCodes(const std::vector<int8_t>& integers, std::string& packed) const {
    const int middle = 1 << (options_.bits - 1);
    for (size_t i = 0; i < integers.size(); i += options_.bits == 4 ? 2 : 1) {
      int byte = integers[i] + middle;
      if (options_.bits == 4) byte |= (integers[i + 1] + middle) << 4;
      packed += static_cast<char>(byte);
    }
  }

  const OpenedModel& model_;
  const std::string out_;
  const QuantizeOptions& options_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::vector<TensorToWrite> tensors_;  // in the order of their names
  bool embedding_is_chosen_ = false;
  std::vector<std::string> written_;  // files
  bool made_folder_ = false;
  TensorWriter writer_;
  int64_t done_bytes_ = 0;
  QuantizeResult result_;
};

}  // namespace

bool FitsPattern(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  // What stands after a star begins somewhere behind what stood before it.
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t at = star; at <= text.size(); ++at) {
    if (FitsPattern(rest, text.substr(at))) return true;
  }
  return false;
}

bool FitsAny(const std::vector<std::string>& patterns, std::string_view text) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return FitsPattern(pattern, text); });
}

Status CheckNotQuantised(const OpenedModel& model) {
  TM_RETURN_IF_ERROR(model.weight_files.status());
  if (model.config.quantization.schemes.empty()) return {};
  return InvalidArgument(model.folder.path +
                         ": is quantised already; quantise the model that it was made of");
}

QuantizedGroup QuantizeGroup(std::span<const float> values, int32_t bits, DType scale_type) {
  const auto top = static_cast<float>((1 << (bits - 1)) - 1), bottom = -top - 1;
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  // What the largest number becomes: with few bits a smaller scale may cut it off and serve the others.
  std::vector<float> becomes = {top};
  if (bits == 4) becomes = {7.0f, 7.25f, 7.5f, 7.75f, 8.0f, 8.5f};
  QuantizedGroup best;
  double least = INFINITY;
  for (const float most : becomes) {
    QuantizedGroup group;
    group.scale = AsStored(largest / most, scale_type);
    // Of numbers that are all zero, or too small for the type: any scale does.
    if (group.scale == 0.0f || !std::isfinite(group.scale)) group.scale = 1.0f;
    double error = 0.0;
    for (const float value : values) {
      const float number = std::clamp(std::rint(value / group.scale), bottom, top);
      group.integers.push_back(static_cast<int8_t>(number));
      const double off = double{value} - double{number} * group.scale;
      error += off * off;
    }
    if (error < least) {
      least = error;
      best = std::move(group);
    }
  }
  return best;
}

StatusOr<QuantizeResult> QuantizeModel(const OpenedModel& model, const std::string& out,
                                       const QuantizeOptions& options,
                                       const std::function<void(int64_t, int64_t)>& progress) {
  TM_CHECK(options.bits == 4 || options.bits == 8, "4 or 8 bits");
  return Quantizer(model, out, options, progress).Run();
}

}  // namespace tramontane
