#include "models/safetensors.h"

#include <algorithm>
#include <utility>

#include "models/json_file.h"

namespace tramontane {
namespace {

using nlohmann::json;

// A dtype of the file format: what weights can be read from, or only how many bytes an element has.
struct FileDType {
  constexpr FileDType(const char* text, DType dtype)
      : name(text), bytes(Format(dtype).Bytes(1)), format(dtype) {}
  constexpr FileDType(const char* text, int64_t element_bytes) : name(text), bytes(element_bytes) {}

  const char* name;
  int64_t bytes;  // of one element
  std::optional<Format> format;
};
constexpr FileDType kFileDTypes[] = {
    {"F32", DType::kF32}, {"BF16", DType::kBf16},
    {"F16", DType::kF16}, {"F64", 8},
    {"I64", 8},           {"I32", 4},
    {"I16", 2},           {"I8", 1},
    {"U64", 8},           {"U32", 4},
    {"U16", 2},           {"U8", 1},
    {"BOOL", 1},          {"F8_E4M3", 1},
    {"F8_E5M2", 1},       {"F8_E8M0", 1},
    {"C64", 8},
};

// A list of whole numbers from 0 on, at most `most` of them.
bool ReadSizes(const json& list, size_t most, std::vector<int64_t>& out) {
  if (!list.is_array() || list.size() > most) return false;
  for (const json& value : list) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
    out.push_back(value.get<int64_t>());
  }
  return true;
}

// Bytes of a tensor of that shape, or none when the product leaves int64.
std::optional<int64_t> TensorBytes(const std::vector<int64_t>& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

StatusOr<TensorInfo> ReadTensor(const json& entry, int64_t data_begin, int64_t data_bytes,
                                const std::string& where) {
  constexpr size_t kMaxDimensions = 8;
  if (!entry.is_object()) return InvalidArgument(where + ": its header entry is not an object");
  TensorInfo tensor;

  const json dtype = entry.value("dtype", json());
  const auto* known = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                   [&](const FileDType& candidate) { return dtype == candidate.name; });
  if (known == std::end(kFileDTypes))
    return InvalidArgument(where + ": dtype " + JsonText(dtype) + " is not known");
  tensor.dtype_name = known->name;
  tensor.format = known->format;

  const json shape = entry.value("shape", json());
  if (!ReadSizes(shape, kMaxDimensions, tensor.shape)) {
    return InvalidArgument(where + ": shape " + JsonText(shape) + " is not a list of at most 8 sizes");
  }
  const json offsets = entry.value("data_offsets", json());
  std::vector<int64_t> range;
  if (!ReadSizes(offsets, 2, range) || range.size() != 2 || range[0] > range[1]) {
    return InvalidArgument(where + ": data_offsets " + JsonText(offsets) + " is not a range of bytes");
  }
  if (range[1] > data_bytes) {
    return DataLoss(where + ": its bytes end at " + std::to_string(range[1]) + " but the file holds " +
                    std::to_string(data_bytes) + " bytes of tensors: is it truncated?");
  }
  const std::optional<int64_t> bytes = TensorBytes(tensor.shape, known->bytes);
  if (bytes != range[1] - range[0]) {
    return InvalidArgument(where + ": " + ShapeText(tensor.shape) + " of " + known->name +
                           " does not fill its " + std::to_string(range[1] - range[0]) + " bytes");
  }
  tensor.begin = data_begin + range[0];
  tensor.end = data_begin + range[1];
  return tensor;
}

// Tensors must follow each other without overlap or gap, up to the end of the file.
Status CheckCoverage(const TensorMap& tensors, int64_t data_begin, int64_t file_bytes,
                     const std::string& file) {
  std::vector<const TensorMap::value_type*> by_place;
  for (const auto& tensor : tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t reached = data_begin;
  std::string last = "the header";
  for (const auto* tensor : by_place) {
    const std::string name = JsonText(tensor->first);
    if (tensor->second.begin < reached)
      return InvalidArgument(file + ": tensor " + name + " overlaps " + last);
    if (tensor->second.begin > reached) {
      return InvalidArgument(file + ": bytes between " + last + " and tensor " + name +
                             " belong to no tensor");
    }
    reached = tensor->second.end;
    last = "tensor " + name;
  }
  if (reached != file_bytes) {
    return InvalidArgument(file + ": " + std::to_string(file_bytes - reached) + " bytes after " + last +
                           " belong to no tensor");
  }
  return Status::Ok();
}

}  // namespace

StatusOr<TensorMap> ParseSafetensors(std::string_view bytes, const std::string& file) {
  constexpr int64_t kLengthBytes = 8;
  const auto file_bytes = static_cast<int64_t>(bytes.size());
  if (file_bytes < kLengthBytes) {
    return DataLoss(file + ": " + std::to_string(file_bytes) + " bytes, too short for a safetensors file");
  }
  uint64_t header_bytes = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(bytes[i]);
  if (header_bytes > uint64_t{kMaxSafetensorsHeaderBytes}) {
    return InvalidArgument(file + ": header of " + std::to_string(header_bytes) + " bytes, the limit is " +
                           std::to_string(kMaxSafetensorsHeaderBytes) + ": is this a safetensors file?");
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_begin > file_bytes) {
    return DataLoss(file + ": the header alone needs " + std::to_string(data_begin) +
                    " bytes, the file has " + std::to_string(file_bytes) + ": is it truncated?");
  }
  TM_ASSIGN_OR_RETURN(const json header, ParseJsonObject(bytes.substr(kLengthBytes, header_bytes), file));

  TensorMap tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    TM_ASSIGN_OR_RETURN(tensors[name], ReadTensor(entry, data_begin, file_bytes - data_begin,
                                                  file + ": tensor " + JsonText(name)));
  }
  TM_RETURN_IF_ERROR(CheckCoverage(tensors, data_begin, file_bytes, file));
  return tensors;
}

StatusOr<TensorFile> OpenSafetensors(const std::string& path) {
  TM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  TM_ASSIGN_OR_RETURN(TensorMap tensors, ParseSafetensors(file.bytes(), path));
  return TensorFile(std::move(file), std::move(tensors));
}

}  // namespace tramontane
