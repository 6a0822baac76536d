#include "tests/kv_vectors/vector_file.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/dtype.h"
#include "models/files/read_file.h"
#include "models/json_file.h"

namespace tramontane::kv_vectors {

using nlohmann::json;

namespace {

constexpr const char* kFormat = "tramontane-kv-vectors";
constexpr int64_t kVersion = 1;
constexpr size_t kMaxDimensions = 8;
constexpr double kMaxWhole = 0x1p53;  // beyond it doubles skip whole numbers

// A type's name, bytes and range of whole numbers.
struct TypeFacts {
  const char* name;
  ElementType type;
  int64_t bytes;
  double least;
  double most;
};

// In the order of ElementType.
constexpr std::array<TypeFacts, 7> kTypes = {{
    {"f32", ElementType::kF32, 4, -kMaxWhole, kMaxWhole},
    {"f16", ElementType::kF16, 2, -65504, 65504},
    {"i8", ElementType::kI8, 1, -128, 127},
    {"u8", ElementType::kU8, 1, 0, 255},
    {"i16", ElementType::kI16, 2, -32768, 32767},
    {"i32", ElementType::kI32, 4, -2147483648.0, 2147483647.0},
    {"i64", ElementType::kI64, 8, -kMaxWhole, kMaxWhole},
}};

bool IsFloating(ElementType type) { return type == ElementType::kF32 || type == ElementType::kF16; }

// RFC 4648 with padding.
StatusOr<std::string> DecodeBase64(const std::string& text) {
  const auto digit_of = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  if (text.size() % 4 != 0) {
    return InvalidArgument("has " + std::to_string(text.size()) + " characters, no multiple of 4");
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t bits = 0;
    int padding = 0;
    for (size_t i = 0; i < 4; ++i) {
      const char c = text[at + i];
      const bool may_pad = c == '=' && at + 4 == text.size() && i >= 2;
      const int digit = may_pad ? 0 : digit_of(c);
      if (digit < 0 || (padding > 0 && !may_pad)) {
        return InvalidArgument("has no base64 digit at character " + std::to_string(at + i));
      }
      padding += may_pad ? 1 : 0;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    const uint32_t unused = padding == 0 ? 0 : padding == 1 ? 0xffu : 0xffffu;
    if ((bits & unused) != 0) return InvalidArgument("has bits behind its last byte");
    for (int i = 0; i < 3 - padding; ++i) bytes.push_back(static_cast<char>(bits >> (16 - 8 * i) & 0xff));
  }
  return bytes;
}

template <typename T>
T LoadAs(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

double NumberAt(ElementType type, const char* bytes) {
  switch (type) {
    case ElementType::kF32:
      return LoadAs<float>(bytes);
    case ElementType::kF16:
      return F16ToFloat(LoadAs<uint16_t>(bytes));
    case ElementType::kI8:
      return LoadAs<int8_t>(bytes);
    case ElementType::kU8:
      return LoadAs<uint8_t>(bytes);
    case ElementType::kI16:
      return LoadAs<int16_t>(bytes);
    case ElementType::kI32:
      return LoadAs<int32_t>(bytes);
    case ElementType::kI64:
      return static_cast<double>(LoadAs<int64_t>(bytes));
  }
  return 0;
}

Status WrongField(const std::string& field, const json& value, const std::string& wanted) {
  return InvalidArgument("is " + JsonText(value) + ", not " + wanted).WithField(field, FieldForm::kSubject);
}

StatusOr<const TypeFacts*> TypeOf(const json& tensor) {
  const auto found = tensor.find("dtype");
  if (found == tensor.end()) return InvalidArgument("has no dtype");
  for (const TypeFacts& facts : kTypes) {
    if (*found == facts.name) return &facts;
  }
  return WrongField("dtype", *found, "f32, f16, i8, u8, i16, i32 or i64");
}

StatusOr<std::vector<int64_t>> ShapeOf(const json& tensor) {
  const auto found = tensor.find("shape");
  if (found == tensor.end() || !found->is_array()) return InvalidArgument("has no list shape");
  if (found->size() > kMaxDimensions) {
    return WrongField("shape", *found, "at most " + std::to_string(kMaxDimensions) + " dimensions");
  }
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const json& size : *found) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > static_cast<uint64_t>(kMaxTensorElements)) {
      return WrongField("shape", *found, "sizes of 0 to " + std::to_string(kMaxTensorElements));
    }
    shape.push_back(size.get<int64_t>());
    elements *= shape.back();
    if (elements > kMaxTensorElements) {
      return WrongField("shape", *found, "at most " + std::to_string(kMaxTensorElements) + " elements");
    }
  }
  return shape;
}

Status ReadBase64(const TypeFacts& facts, const json& value, VectorTensor* tensor) {
  if (!value.is_string()) return WrongField("b64", value, "a string");
  StatusOr<std::string> bytes = DecodeBase64(value.get_ref<const std::string&>());
  if (!bytes.ok()) return Status(bytes.status()).InField("b64");
  if (static_cast<int64_t>(bytes->size()) != tensor->size() * facts.bytes) {
    return InvalidArgument("has " + std::to_string(bytes->size()) + " bytes; the shape takes " +
                           std::to_string(tensor->size() * facts.bytes))
        .WithField("b64", FieldForm::kSubject);
  }
  for (size_t i = 0; i < tensor->values.size(); ++i) {
    tensor->values[i] = NumberAt(facts.type, bytes->data() + i * static_cast<size_t>(facts.bytes));
    if (!IsFloating(facts.type) && std::abs(tensor->values[i]) > kMaxWhole) {
      return InvalidArgument("is beyond 2^53").WithField(FieldElement("b64", i), FieldForm::kSubject);
    }
  }
  return Status::Ok();
}

Status ReadData(const TypeFacts& facts, const json& value, VectorTensor* tensor) {
  if (!value.is_array() || value.size() != tensor->values.size()) {
    return InvalidArgument("has " + std::to_string(value.size()) + " elements; the shape takes " +
                           std::to_string(tensor->size()))
        .WithField("data", FieldForm::kSubject);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const double number = value[i].is_number_integer() ? value[i].get<double>() : 2 * kMaxWhole;
    if (number < facts.least || number > facts.most) {
      return WrongField(FieldElement("data", i), value[i], std::string("a whole number of ") + facts.name);
    }
    tensor->values[i] = number;
  }
  return Status::Ok();
}

Status ReadFill(const TypeFacts& facts, const json& value, VectorTensor* tensor) {
  const bool fits = value.is_number() && (IsFloating(facts.type) || value.is_number_integer()) &&
                    value.get<double>() >= facts.least && value.get<double>() <= facts.most;
  if (!fits) return WrongField("fill", value, std::string("a number of ") + facts.name);
  std::fill(tensor->values.begin(), tensor->values.end(), value.get<double>());
  return Status::Ok();
}

}  // namespace

const char* ElementTypeName(ElementType type) { return kTypes[static_cast<size_t>(type)].name; }

std::string IndexText(const std::vector<int64_t>& shape, int64_t element) {
  std::string text;
  for (size_t d = shape.size(); d-- > 0;) {
    text = std::to_string(element % shape[d]) + (text.empty() ? "" : ",") + text;
    element /= shape[d];
  }
  return "[" + text + "]";
}

StatusOr<VectorTensor> ReadTensor(const json& value) {
  if (!value.is_object()) return InvalidArgument("is " + JsonText(value) + ", not a tensor");
  TM_ASSIGN_OR_RETURN(const TypeFacts* facts, TypeOf(value));
  VectorTensor tensor;
  tensor.type = facts->type;
  TM_ASSIGN_OR_RETURN(tensor.shape, ShapeOf(value));
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  tensor.values.resize(static_cast<size_t>(elements));

  double scale = 1;
  const json* stored = nullptr;
  Status (*read)(const TypeFacts&, const json&, VectorTensor*) = nullptr;
  for (const auto& [key, part] : value.items()) {
    if (key == "dtype" || key == "shape") continue;
    if (key == "scale") {
      if (!part.is_number() || !std::isfinite(part.get<double>()) || part.get<double>() == 0) {
        return WrongField("scale", part, "a finite number other than 0");
      }
      scale = part.get<double>();
      continue;
    }
    const auto reader = key == "b64"    ? ReadBase64
                        : key == "data" ? ReadData
                        : key == "fill" ? ReadFill
                                        : nullptr;
    if (reader == nullptr) {
      return InvalidArgument("is no key of a tensor").WithField(key, FieldForm::kSubject);
    }
    if (stored != nullptr) return InvalidArgument("has more than one of b64, data and fill");
    stored = &part;
    read = reader;
  }
  if (stored == nullptr) return InvalidArgument("has none of b64, data and fill");
  TM_RETURN_IF_ERROR(read(*facts, *stored, &tensor));
  for (double& number : tensor.values) number *= scale;
  return tensor;
}

const json* CaseReader::Attr(const char* name) {
  const auto found = attrs_.find(name);
  if (found != attrs_.end()) return &*found;
  Fail(InvalidArgument("is missing").WithField(FieldPath("attrs", name), FieldForm::kSubject));
  return nullptr;
}

int64_t CaseReader::Int(const char* attr, int64_t least, int64_t most) {
  const json* value = Attr(attr);
  if (value == nullptr) return least;
  // An unsigned number beyond int64 is negative as one.
  if (value->is_number_integer() && value->get<int64_t>() >= least && value->get<int64_t>() <= most &&
      (!value->is_number_unsigned() || value->get<int64_t>() >= 0)) {
    return value->get<int64_t>();
  }
  Fail(WrongField(FieldPath("attrs", attr), *value,
                  "a whole number of " + std::to_string(least) + " to " + std::to_string(most)));
  return least;
}

double CaseReader::Number(const char* attr) {
  const json* value = Attr(attr);
  if (value == nullptr) return 1;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  Fail(WrongField(FieldPath("attrs", attr), *value, "a number"));
  return 1;
}

double CaseReader::Positive(const char* attr) {
  const double number = Number(attr);
  if (number > 0) return number;
  Fail(InvalidArgument("is " + JsonText(*Attr(attr)) + ", not above 0")
           .WithField(FieldPath("attrs", attr), FieldForm::kSubject));
  return 1;
}

bool CaseReader::Bool(const char* attr) {
  const json* value = Attr(attr);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  Fail(WrongField(FieldPath("attrs", attr), *value, "true or false"));
  return false;
}

size_t CaseReader::OneOf(const char* attr, std::initializer_list<const char*> allowed) {
  const json* value = Attr(attr);
  if (value == nullptr) return 0;
  std::string list;
  for (const char* const* name = allowed.begin(); name != allowed.end(); ++name) {
    if (*value == *name) return static_cast<size_t>(name - allowed.begin());
    list += (list.empty() ? "" : ", ") + std::string(*name);
  }
  Fail(WrongField(FieldPath("attrs", attr), *value, "one of " + list));
  return 0;
}

VectorTensor CaseReader::In(const std::string& name, const std::vector<int64_t>& shape) {
  VectorTensor harmless;
  for (const int64_t size : shape) harmless.shape.push_back(size < 0 ? 0 : size);
  const std::string field = FieldPath("in", name);
  const auto found = in_.find(name);
  if (found == in_.end()) {
    Fail(InvalidArgument("is missing").WithField(field, FieldForm::kSubject));
    return harmless;
  }
  StatusOr<VectorTensor> tensor = ReadTensor(*found);
  if (!tensor.ok()) {
    Fail(Status(tensor.status()).InField(field));
    return harmless;
  }
  bool fits = tensor->shape.size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = shape[d] < 0 || shape[d] == tensor->shape[d];
  if (!fits) {
    Fail(WrongField(FieldPath(field, "shape"), json(tensor->shape), json(shape).dump()));
    return harmless;
  }
  return std::move(tensor).value();
}

std::vector<int64_t> CaseReader::Whole(const std::string& name, const std::vector<int64_t>& shape,
                                       int64_t least, int64_t most) {
  const VectorTensor tensor = In(name, shape);
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const double value = tensor.values[i];
    if (!(value >= static_cast<double>(least) && value <= static_cast<double>(most)) ||
        value != std::floor(value)) {
      Fail(InvalidArgument("is " + json(value).dump() + ", not a whole number of " + std::to_string(least) +
                           " to " + std::to_string(most))
               .WithField(FieldElement(FieldPath("in", name), i), FieldForm::kSubject));
      return numbers;
    }
    numbers.push_back(static_cast<int64_t>(value));
  }
  return numbers;
}

std::vector<int32_t> CaseReader::Ints(const std::string& name, const std::vector<int64_t>& shape,
                                      int32_t least) {
  const std::vector<int64_t> numbers = Whole(name, shape, least, std::numeric_limits<int32_t>::max());
  return std::vector<int32_t>(numbers.begin(), numbers.end());
}

std::vector<int64_t> CaseReader::Longs(const std::string& name, const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 53;
  return Whole(name, shape, -kMost, kMost);
}

std::vector<uint8_t> CaseReader::Bytes(const std::string& name, const std::vector<int64_t>& shape) {
  const std::vector<int64_t> numbers = Whole(name, shape, 0, 255);
  return std::vector<uint8_t>(numbers.begin(), numbers.end());
}

StatusOr<std::vector<VectorCase>> ReadVectorFile(const std::string& path) {
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(json file, ParseJsonObject(text, path));
  const auto is = [&file](const char* key, const json& wanted) {
    const auto found = file.find(key);
    return found != file.end() && *found == wanted;
  };
  const auto shown = [&file](const char* key) {
    return file.contains(key) ? JsonText(file[key]) : std::string("missing");
  };
  if (!is("format", kFormat)) {
    return InvalidArgument(path + ": format is " + shown("format") + ", not \"" + kFormat + "\"");
  }
  if (!is("version", kVersion)) {
    return InvalidArgument(path + ": version is " + shown("version") + ", not " + std::to_string(kVersion));
  }
  if (!file.contains("cases") || !file["cases"].is_array()) {
    return InvalidArgument(path + ": has no list of cases");
  }
  std::vector<VectorCase> cases;
  for (size_t i = 0; i < file["cases"].size(); ++i) {
    json& body = file["cases"][i];
    for (const char* key : {"kind", "name"}) {
      if (!body.is_object() || !body.contains(key) || !body[key].is_string()) {
        return InvalidArgument(path + ": " + FieldElement("cases", i) + " has no text " + key);
      }
    }
    cases.push_back({body["kind"].get<std::string>(), body["name"].get<std::string>(), std::move(body)});
  }
  return cases;
}

}  // namespace tramontane::kv_vectors
