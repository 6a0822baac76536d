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

class Quantizer {
 public:
  Quantizer(const OpenedModel& model, const std::string& out, const QuantizeOptions& options,
            const std::function<void(int64_t, int64_t)>& progress)
      : model_(model), out_(out), options_(options), progress_(progress) {}

  StatusOr<QuantizeResult> Run() {
    TM_RETURN_IF_ERROR(CheckModel());
    TM_RETURN_IF_ERROR(ChooseTensors());
    TM_RETURN_IF_ERROR(MakeFolder());
    Status written = WriteAll();
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
  Status CheckModel() const {
    TM_RETURN_IF_ERROR(CheckNotQuantised(model_));
    if (model_.config.layout != FolderLayout::kGguf) return {};
    return Unimplemented(model_.folder.path + ": a GGUF file has no config to write beside safetensors");
  }

  // The matrices that are quantised: of the model, not kept, and whole groups.
  Status ChooseTensors() {
    for (const WeightSpec& weight : model_.weights) {
      for (const TensorSpec& part : weight.parts) {
        TM_ASSIGN_OR_RETURN(const StoredWeight stored, model_.weight_files->Find(part));
        if (!weight.packed || FitsAny(options_.keep, part.name)) continue;
        if (part.columns % options_.group != 0) {
          return InvalidArgument(stored.file().path() + ": tensor " + part.name + " has rows of " +
                                 std::to_string(part.columns) + " numbers, which are no whole groups of " +
                                 std::to_string(options_.group) + ": take a smaller group, or keep it");
        }
        chosen_.insert(part.name);
      }
    }
    if (chosen_.empty())
      return InvalidArgument(model_.folder.path + ": every matrix is kept; there is nothing to do");
    for (const auto& [name, found] : model_.weight_files->all())
      result_.bytes_before += found.tensor->end - found.tensor->begin;
    result_.quantised = static_cast<int64_t>(chosen_.size());
    result_.kept = static_cast<int64_t>(model_.weight_files->all().size()) - result_.quantised;
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

  Status WriteAll() {
    TM_RETURN_IF_ERROR(CopySmallFiles());
    TM_RETURN_IF_ERROR(WriteConfig());
    return WriteTensors();
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
    for (const auto& [name, found] : model_.weight_files->all()) {
      if (chosen_.count(name) != 0 || found.tensor->shape.size() < 2 || !name.ends_with(".weight")) continue;
      modules.push_back(name.substr(0, name.rfind('.')));
    }
    return modules;
  }

  Status WriteConfig() {
    const std::string name = model_.folder.config_file;
    const std::string path = model_.folder.PathOf(name);
    TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
    TM_ASSIGN_OR_RETURN(json config, ParseJsonObject(text, path));
    json targets = {"Linear"};
    for (const WeightSpec& weight : model_.weights) {
      if (weight.key.role == WeightRole::kEmbedding && chosen_.count(weight.parts[0].name) != 0)
        targets.push_back("Embedding");
    }
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
    return WriteFile(name, config.dump(2) + "\n");
  }

  // In the order of their names, whatever the files of the model are.
  Status WriteTensors() {
    for (const auto& [name, found] : model_.weight_files->all()) {
      const TensorInfo& tensor = *found.tensor;
      if (chosen_.count(name) == 0) {
        writer_.Plan(name, tensor.dtype_name, tensor.shape, tensor.end - tensor.begin);
        continue;
      }
      const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
      const int64_t words = columns * options_.bits / 32, groups = columns / options_.group;
      const std::string stem = name.substr(0, name.rfind('.') + 1);
      const Format scale = *tensor.format;
      writer_.Plan(stem + "weight_packed", "I32", {rows, words}, rows * words * 4);
      writer_.Plan(stem + "weight_scale", tensor.dtype_name, {rows, groups}, scale.Bytes(rows * groups));
      writer_.Plan(stem + "weight_shape", "I64", {2}, 16);
    }
    const bool native = model_.config.layout == FolderLayout::kMistral;
    const std::string path = out_ + (native ? "/consolidated.safetensors" : "/model.safetensors");
    written_.push_back(path);
    TM_RETURN_IF_ERROR(writer_.Begin(path));
    for (const auto& [name, found] : model_.weight_files->all()) {
      TM_RETURN_IF_ERROR(chosen_.count(name) == 0 ? Copy(found) : Quantize(name, found));
      done_bytes_ += found.tensor->end - found.tensor->begin;
      if (progress_) progress_(done_bytes_, result_.bytes_before);
    }
    return writer_.End();
  }

  Status Copy(const FoundTensor& found) {
    constexpr int64_t kPiece = int64_t{1} << 22;
    const TensorInfo& tensor = *found.tensor;
    const char* data = reinterpret_cast<const char*>(found.data());
    const int64_t bytes = tensor.end - tensor.begin;
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t piece = std::min(kPiece, bytes - at);
      TM_RETURN_IF_ERROR(writer_.Append({data + at, static_cast<size_t>(piece)}));
      found.file->Release(tensor.begin + at, tensor.begin + at + piece);
    }
    return {};
  }

  // Rows are whole groups, so that the groups of a matrix follow each other from its first number to its
  // last.
  Status Quantize(const std::string& name, const FoundTensor& found) {
    const DType type = found.tensor->format->dtype;
    const auto group = static_cast<size_t>(options_.group);
    std::string scales;
    Status status;
    ReadValues(*found.file, *found.tensor, [&](std::span<const float> values) {
      if (!status.ok()) return;
      std::string packed;
      for (; !values.empty() && status.ok(); values = values.subspan(group)) {
        const std::span<const float> numbers = values.first(group);
        if (!std::all_of(numbers.begin(), numbers.end(), [](float value) { return std::isfinite(value); })) {
          status = DataLoss(found.file->path() + ": tensor " + name +
                            " holds values that are not finite (NaN or infinity)");
          return;
        }
        const QuantizedGroup rounded = QuantizeGroup(numbers, options_.bits, type);
        AppendNumber(rounded.scale, type, scales);
        AppendCodes(rounded.integers, packed);
      }
      status = writer_.Append(packed);
    });
    TM_RETURN_IF_ERROR(status);
    TM_RETURN_IF_ERROR(writer_.Append(scales));
    const int64_t shape[2] = {found.tensor->shape[0], found.tensor->shape[1]};
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
  std::set<std::string> chosen_;      // tensors that are quantised
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
