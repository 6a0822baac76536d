#include "models/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/gguf/gguf_types.h"

namespace tramontane {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in the file");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kLeastVersion = 2, kMostVersion = 3;
constexpr int64_t kDefaultAlignment = 32;
// The least that one of each takes in a file.
constexpr int64_t kLeastKeyBytes = 8 + 4 + 1;
constexpr int64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr int64_t kLeastStringBytes = 8;
constexpr int64_t kLeastArrayBytes = 4 + 8;

std::string QuotedName(std::string_view name) { return "\"" + Excerpt(name) + "\""; }

// Names stand in messages and in JSON.
bool IsPlainName(std::string_view name) {
  constexpr char kFirstPrintable = 0x20, kDelete = 0x7f;
  return IsUtf8(name) && std::none_of(name.begin(), name.end(),
                                      [](char c) { return (c >= 0 && c < kFirstPrintable) || c == kDelete; });
}

class GgufParser {
 public:
  GgufParser(std::string_view bytes, const std::string& file)
      : file_(file),
        file_bytes_(static_cast<int64_t>(bytes.size())),
        header_(bytes.substr(0, static_cast<size_t>(kMaxGgufHeaderBytes))) {}

  StatusOr<GgufContents> Parse();

 private:
  Status ReadVersion(uint32_t* version);
  Status ReadKeys(int64_t count, GgufMetadata::Values* values);
  Status ReadValue(const std::string& what, GgufValue* value);
  Status ReadArray(const std::string& what, int depth, GgufValue* value);
  Status SkipElements(const std::string& what, int depth, const GgufValue& array);
  Status ReadKind(const char* of, const std::string& what, GgufKind* kind);
  Status ReadTensors(int64_t count, TensorMap* tensors);
  Status ReadTensor(const std::string& what, TensorInfo* tensor);
  Status ReadShape(const std::string& what, TensorInfo* tensor);
  Status PlaceTensors(int64_t alignment, TensorMap* tensors) const;

  // What stands next; `what` names it where the file ends first.
  template <typename T>
  Status ReadNumber(const std::string& what, T* number);
  // The same without a name: false where the file ends first.
  template <typename T>
  bool Next(T* number);
  Status ReadString(const std::string& what, std::string_view* text);
  Status ReadName(const std::string& what, std::string* name);
  // A count of things that take at least `least_bytes` each; `of` and `what` name them, joined only where
  // something is wrong: a header has room for ten million nested arrays.
  Status ReadCount(const char* of, const std::string& what, int64_t most, int64_t least_bytes,
                   int64_t* count);

  uint64_t Left() const { return header_.size() - at_; }
  std::string_view Take(uint64_t bytes) {
    const std::string_view taken = header_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  // `what` needs more than is left.
  Status PastTheEnd(const std::string& what) const;

  const std::string& file_;
  const int64_t file_bytes_;
  const std::string_view header_;  // as much of the file as a header may be long
  size_t at_ = 0;
};

StatusOr<GgufContents> GgufParser::Parse() {
  GgufContents contents;
  TM_RETURN_IF_ERROR(ReadVersion(&contents.version));
  int64_t tensors = 0, keys = 0;
  TM_RETURN_IF_ERROR(ReadCount("", "tensors", kMaxGgufTensors, kLeastTensorBytes, &tensors));
  TM_RETURN_IF_ERROR(ReadCount("", "keys", kMaxGgufKeys, kLeastKeyBytes, &keys));
  GgufMetadata::Values values;
  TM_RETURN_IF_ERROR(ReadKeys(keys, &values));
  contents.metadata = GgufMetadata(file_, std::move(values));
  TM_RETURN_IF_ERROR(ReadTensors(tensors, &contents.tensors));
  TM_ASSIGN_OR_RETURN(const int64_t alignment,
                      contents.metadata.IntOr("general.alignment", 1, kMaxGgufAlignment, kDefaultAlignment));
  if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return InvalidArgument(file_ + ": key \"general.alignment\" is " + std::to_string(alignment) +
                           "; tensors can be aligned to powers of two alone");
  }
  TM_RETURN_IF_ERROR(PlaceTensors(alignment, &contents.tensors));
  return contents;
}

Status GgufParser::PastTheEnd(const std::string& what) const {
  const std::string from = " from byte " + std::to_string(at_) + " on";
  if (static_cast<int64_t>(header_.size()) < file_bytes_) {
    return ResourceExhausted(file_ + ": " + what + " reaches past the first " +
                             std::to_string(kMaxGgufHeaderBytes) + " bytes" + from +
                             "; that is the limit of a header's length");
  }
  return DataLoss(file_ + ": " + what + " reaches past the end of the file (" + std::to_string(file_bytes_) +
                  " bytes)" + from + ": is it truncated?");
}

template <typename T>
Status GgufParser::ReadNumber(const std::string& what, T* number) {
  if (!Next(number)) return PastTheEnd(what);
  return {};
}

template <typename T>
bool GgufParser::Next(T* number) {
  if (Left() < sizeof(T)) return false;
  std::memcpy(number, Take(sizeof(T)).data(), sizeof(T));
  return true;
}

Status GgufParser::ReadString(const std::string& what, std::string_view* text) {
  uint64_t length = 0;
  TM_RETURN_IF_ERROR(ReadNumber(what, &length));
  if (length > Left()) return PastTheEnd(what + " of length " + std::to_string(length));
  *text = Take(length);
  return {};
}

Status GgufParser::ReadName(const std::string& what, std::string* name) {
  std::string_view text;
  TM_RETURN_IF_ERROR(ReadString("the name of " + what, &text));
  if (text.size() > static_cast<size_t>(kMaxGgufNameBytes)) {
    return InvalidArgument(file_ + ": the name of " + what + " has a length of " +
                           std::to_string(text.size()) + " bytes; the limit is " +
                           std::to_string(kMaxGgufNameBytes));
  }
  if (!IsPlainName(text)) {
    return InvalidArgument(file_ + ": the name of " + what + " is not UTF-8 without control characters");
  }
  *name = text;
  return {};
}

Status GgufParser::ReadCount(const char* of, const std::string& what, int64_t most, int64_t least_bytes,
                             int64_t* count) {
  uint64_t claimed = 0;
  const auto name = [&] { return "the count of " + (of + what); };
  if (!Next(&claimed)) return PastTheEnd(name());
  const uint64_t room = Left() / static_cast<uint64_t>(least_bytes);
  if (claimed > static_cast<uint64_t>(most)) {
    return InvalidArgument(file_ + ": " + name() + " is " + std::to_string(claimed) + "; the limit is " +
                           std::to_string(most));
  }
  if (claimed > room) return PastTheEnd(name() + ", " + std::to_string(claimed) + ",");
  *count = static_cast<int64_t>(claimed);
  return {};
}

Status GgufParser::ReadVersion(uint32_t* version) {
  if (header_.substr(0, kMagic.size()) != kMagic) {
    std::string begin;
    for (const char byte : header_.substr(0, kMagic.size())) {
      char text[8];
      std::snprintf(text, sizeof(text), " %02x", static_cast<unsigned char>(byte));
      begin += text;
    }
    return InvalidArgument(file_ + ": not a GGUF file: its magic is" + begin +
                           ", not 47 47 55 46 (\"GGUF\")");
  }
  at_ = kMagic.size();
  TM_RETURN_IF_ERROR(ReadNumber("the version", version));
  if (*version >= kLeastVersion && *version <= kMostVersion) return {};
  const uint32_t swapped = __builtin_bswap32(*version);
  if (swapped >= 1 && swapped <= kMostVersion) {
    return Unimplemented(file_ + ": version " + std::to_string(swapped) +
                         " in big-endian byte order; only little-endian files are read");
  }
  return Unimplemented(file_ + ": version " + std::to_string(*version) +
                       " is not read; versions 2 and 3 are");
}

// ---- keys

Status GgufParser::ReadKeys(int64_t count, GgufMetadata::Values* values) {
  for (int64_t i = 0; i < count; ++i) {
    std::string key;
    TM_RETURN_IF_ERROR(ReadName("key " + std::to_string(i + 1) + " of " + std::to_string(count), &key));
    const std::string what = "key " + QuotedName(key);
    GgufValue value;
    TM_RETURN_IF_ERROR(ReadValue(what, &value));
    if (!values->emplace(std::move(key), value).second) {
      return InvalidArgument(file_ + ": " + what + " stands twice: a duplicate");
    }
  }
  return {};
}

Status GgufParser::ReadKind(const char* of, const std::string& what, GgufKind* kind) {
  uint32_t number = 0;
  if (!Next(&number)) return PastTheEnd("the type of " + (of + what));
  if (number >= kGgufKinds) {
    return InvalidArgument(file_ + ": " + of + what + " has a value of type " + std::to_string(number) +
                           ", which is not known; the last is " + std::to_string(kGgufKinds - 1));
  }
  *kind = static_cast<GgufKind>(number);
  return {};
}

bool AreBools(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0 || byte == 1; });
}

Status GgufParser::ReadValue(const std::string& what, GgufValue* value) {
  TM_RETURN_IF_ERROR(ReadKind("", what, &value->kind));
  if (value->kind == GgufKind::kString) return ReadString("the string of " + what, &value->bytes);
  if (value->kind == GgufKind::kArray) return ReadArray(what, 1, value);
  const auto bytes = static_cast<uint64_t>(GgufKindBytes(value->kind));
  if (bytes > Left()) return PastTheEnd("the value of " + what);
  value->bytes = Take(bytes);
  if (value->kind == GgufKind::kBool && !AreBools(value->bytes)) {
    return InvalidArgument(file_ + ": " + what + " is a bool of neither 0 nor 1");
  }
  return {};
}

Status GgufParser::ReadArray(const std::string& what, int depth, GgufValue* value) {
  if (depth > kMaxGgufNesting) {
    return InvalidArgument(file_ + ": " + what + " has arrays nested deeper than " +
                           std::to_string(kMaxGgufNesting) + " levels, the limit");
  }
  TM_RETURN_IF_ERROR(ReadKind("the array of ", what, &value->element));
  const int64_t least_bytes = value->element == GgufKind::kString  ? kLeastStringBytes
                              : value->element == GgufKind::kArray ? kLeastArrayBytes
                                                                   : GgufKindBytes(value->element);
  const char* const where = depth > 1 ? "elements nested in " : "elements of ";
  TM_RETURN_IF_ERROR(ReadCount(where, what, kMaxGgufElements, least_bytes, &value->count));
  const size_t begin = at_;
  TM_RETURN_IF_ERROR(SkipElements(what, depth, *value));
  value->bytes = header_.substr(begin, at_ - begin);
  return {};
}

Status GgufParser::SkipElements(const std::string& what, int depth, const GgufValue& array) {
  if (array.element == GgufKind::kArray) {
    for (int64_t i = 0; i < array.count; ++i) {
      GgufValue inner;
      TM_RETURN_IF_ERROR(ReadArray(what, depth + 1, &inner));
    }
  } else if (array.element == GgufKind::kString) {
    // A vocabulary has hundreds of thousands: no text is made for each.
    for (int64_t i = 0; i < array.count; ++i) {
      uint64_t length = 0;
      const auto string = [&] { return "string " + std::to_string(i) + " of " + what; };
      if (Left() < sizeof(length)) return PastTheEnd(string());
      std::memcpy(&length, Take(sizeof(length)).data(), sizeof(length));
      if (length > Left()) return PastTheEnd(string() + " of length " + std::to_string(length));
      Take(length);
    }
  } else {
    // ReadCount has seen that they are there.
    const std::string_view elements = Take(static_cast<uint64_t>(array.count * GgufKindBytes(array.element)));
    if (array.element == GgufKind::kBool && !AreBools(elements)) {
      return InvalidArgument(file_ + ": " + what + " holds a bool of neither 0 nor 1");
    }
  }
  return {};
}

// ---- tensors

Status GgufParser::ReadTensors(int64_t count, TensorMap* tensors) {
  for (int64_t i = 0; i < count; ++i) {
    std::string name;
    TM_RETURN_IF_ERROR(ReadName("tensor " + std::to_string(i + 1) + " of " + std::to_string(count), &name));
    const std::string what = "tensor " + QuotedName(name);
    TensorInfo tensor;
    TM_RETURN_IF_ERROR(ReadTensor(what, &tensor));
    if (!tensors->emplace(std::move(name), std::move(tensor)).second) {
      return InvalidArgument(file_ + ": " + what + " stands twice: a duplicate");
    }
  }
  return {};
}

// REQUIRES: a power of two.
int64_t AlignUp(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) & -alignment; }

// Leaves begin as the offset from the data's begin, and end as that of its end.
Status GgufParser::ReadTensor(const std::string& what, TensorInfo* tensor) {
  TM_RETURN_IF_ERROR(ReadShape(what, tensor));
  uint32_t number = 0;
  TM_RETURN_IF_ERROR(ReadNumber("the type of " + what, &number));
  const GgufType* type = FindGgufType(number);
  if (type == nullptr) {
    return InvalidArgument(file_ + ": " + what + " has type " + std::to_string(number) +
                           ", which is not known");
  }
  if (!type->format) {
    return Unimplemented(file_ + ": " + what + " has type " + type->name + ", which is not supported; " +
                         ReadableGgufTypes() + " are");
  }
  tensor->dtype_name = type->name;
  tensor->format = type->format;
  const int64_t block = type->format->block_size();
  const int64_t columns = tensor->shape.back();
  if (columns % block != 0) {
    return InvalidArgument(file_ + ": " + what + " has a first dimension of " + std::to_string(columns) +
                           ", which is not whole blocks of " + std::to_string(block) + " of type " +
                           type->name);
  }
  int64_t bytes = columns / block;
  bool overflow = __builtin_mul_overflow(bytes, int64_t{type->format->block_bytes}, &bytes);
  for (size_t i = 0; i + 1 < tensor->shape.size(); ++i) {
    overflow |= __builtin_mul_overflow(bytes, tensor->shape[i], &bytes);
  }
  if (overflow) {
    return InvalidArgument(file_ + ": " + what + " has dimensions " + ShapeText(tensor->shape) +
                           " whose product overflows");
  }
  uint64_t offset = 0;
  TM_RETURN_IF_ERROR(ReadNumber("the offset of " + what, &offset));
  if (offset > static_cast<uint64_t>(file_bytes_) || bytes > file_bytes_ - static_cast<int64_t>(offset)) {
    return DataLoss(file_ + ": " + what + " of " + std::to_string(bytes) + " bytes at offset " +
                    std::to_string(offset) + " reaches past the end of the file (" +
                    std::to_string(file_bytes_) + " bytes): is it truncated?");
  }
  tensor->begin = static_cast<int64_t>(offset);
  tensor->end = tensor->begin + bytes;
  return {};
}

Status GgufParser::ReadShape(const std::string& what, TensorInfo* tensor) {
  uint32_t dimensions = 0;
  TM_RETURN_IF_ERROR(ReadNumber("the dimensions of " + what, &dimensions));
  if (dimensions < 1 || dimensions > static_cast<uint32_t>(kMaxGgufDimensions)) {
    return InvalidArgument(file_ + ": " + what + " has " + std::to_string(dimensions) +
                           " dimensions; the limits are 1 to " + std::to_string(kMaxGgufDimensions));
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    uint64_t size = 0;
    TM_RETURN_IF_ERROR(ReadNumber("dimension " + std::to_string(i) + " of " + what, &size));
    if (size < 1 || size > uint64_t{INT64_MAX}) {
      return InvalidArgument(file_ + ": dimension " + std::to_string(i) + " of " + what + " is " +
                             std::to_string(size) + "; the limits are 1 to " + std::to_string(INT64_MAX));
    }
    tensor->shape.push_back(static_cast<int64_t>(size));
  }
  std::reverse(tensor->shape.begin(), tensor->shape.end());
  return {};
}

// From offsets to places in the file. Gaps between tensors are nobody's business.
Status GgufParser::PlaceTensors(int64_t alignment, TensorMap* tensors) const {
  const int64_t data_begin = AlignUp(static_cast<int64_t>(at_), alignment);
  std::vector<TensorMap::value_type*> by_place;
  for (auto& entry : *tensors) {
    TensorInfo& tensor = entry.second;
    const std::string what = file_ + ": tensor " + QuotedName(entry.first);
    if (tensor.begin % alignment != 0) {
      return InvalidArgument(what + " has offset " + std::to_string(tensor.begin) +
                             ", which is not aligned to " + std::to_string(alignment));
    }
    if (tensor.end > file_bytes_ - data_begin) {
      return DataLoss(what + " of " + std::to_string(tensor.end - tensor.begin) + " bytes at offset " +
                      std::to_string(tensor.begin) + ", from byte " + std::to_string(data_begin) +
                      " on, reaches past the end of the file (" + std::to_string(file_bytes_) +
                      " bytes): is it truncated?");
    }
    tensor.begin += data_begin;
    tensor.end += data_begin;
    by_place.push_back(&entry);
  }
  std::sort(by_place.begin(), by_place.end(),
            [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const auto& [name, tensor] = *by_place[i];
    const auto& [last_name, last] = *by_place[i - 1];
    if (tensor.begin < last.end) {
      return InvalidArgument(file_ + ": tensor " + QuotedName(name) + " at offset " +
                             std::to_string(tensor.begin - data_begin) + " overlaps tensor " +
                             QuotedName(last_name));
    }
  }
  return {};
}

}  // namespace

StatusOr<GgufContents> ParseGguf(std::string_view bytes, const std::string& file) {
  return GgufParser(bytes, file).Parse();
}

StatusOr<GgufFile> OpenGguf(const std::string& path) {
  TM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  TM_ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(file.bytes(), path));
  return GgufFile{.metadata = std::move(contents.metadata),
                  .file = TensorFile(std::move(file), std::move(contents.tensors))};
}

}  // namespace tramontane
