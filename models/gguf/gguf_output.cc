#include "models/gguf/gguf_output.h"

#include <limits>
#include <type_traits>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int64_t kAlignment = 32;

template <typename T>
void AppendNumber(T number, std::string& out) {
  static_assert(std::is_arithmetic_v<T>);
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void AppendText(std::string_view text, std::string& out) {
  AppendNumber(uint64_t{text.size()}, out);
  out += text;
}

template <typename T, typename List>
std::string BytesOf(const List& numbers) {
  std::string bytes;
  for (const auto number : numbers) AppendNumber(static_cast<T>(number), bytes);
  return bytes;
}

int64_t Filler(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

}  // namespace

void GgufKeys::SetString(const std::string& key, std::string_view text) {
  values_[key] = {GgufKind::kString, {}, 0, std::string(text)};
}
void GgufKeys::SetBool(const std::string& key, bool value) {
  values_[key] = {GgufKind::kBool, {}, 0, std::string(1, value ? '\1' : '\0')};
}
void GgufKeys::SetUint32(const std::string& key, int64_t value) {
  TM_CHECK(value >= 0 && value <= std::numeric_limits<uint32_t>::max(), "%s is no uint32", key.c_str());
  values_[key] = {GgufKind::kUint32, {}, 0, BytesOf<uint32_t>(std::vector<int64_t>{value})};
}
void GgufKeys::SetFloat(const std::string& key, double value) {
  values_[key] = {GgufKind::kFloat32, {}, 0, BytesOf<float>(std::vector<double>{value})};
}
void GgufKeys::SetStrings(const std::string& key, const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) AppendText(text, bytes);
  values_[key] = {GgufKind::kArray, GgufKind::kString, static_cast<int64_t>(texts.size()), std::move(bytes)};
}
void GgufKeys::SetBools(const std::string& key, const std::vector<bool>& values) {
  values_[key] = {GgufKind::kArray, GgufKind::kBool, static_cast<int64_t>(values.size()),
                  BytesOf<uint8_t>(values)};
}
void GgufKeys::SetInts(const std::string& key, const std::vector<int32_t>& values) {
  values_[key] = {GgufKind::kArray, GgufKind::kInt32, static_cast<int64_t>(values.size()),
                  BytesOf<int32_t>(values)};
}
void GgufKeys::SetFloats(const std::string& key, const std::vector<float>& values) {
  values_[key] = {GgufKind::kArray, GgufKind::kFloat32, static_cast<int64_t>(values.size()),
                  BytesOf<float>(values)};
}
void GgufKeys::Copy(const std::string& key, const GgufValue& value) {
  values_[key] = {value.kind, value.element, value.count, std::string(value.bytes)};
}
void GgufKeys::Add(const GgufKeys& other) {
  for (const auto& [key, value] : other.values_) values_[key] = value;
}

GgufMetadata GgufKeys::Metadata(const std::string& file) const {
  GgufMetadata::Values views;
  for (const auto& [key, value] : values_) views[key] = {value.kind, value.element, value.count, value.bytes};
  return {file, std::move(views)};
}

std::string GgufKeys::Bytes() const {
  std::string bytes;
  for (const auto& [key, value] : values_) {
    AppendText(key, bytes);
    AppendNumber(static_cast<uint32_t>(value.kind), bytes);
    if (value.kind == GgufKind::kArray) {
      AppendNumber(static_cast<uint32_t>(value.element), bytes);
      AppendNumber(static_cast<uint64_t>(value.count), bytes);
    }
    if (value.kind == GgufKind::kString) AppendNumber(uint64_t{value.bytes.size()}, bytes);
    bytes += value.bytes;
  }
  return bytes;
}

void GgufOutput::Plan(const std::string& name, const std::vector<int64_t>& shape, uint32_t type,
                      int64_t bytes) {
  tensors_.push_back({name, shape, type, bytes});
  tensor_bytes_ += bytes;
}

Status GgufOutput::Begin(const std::string& path, const GgufKeys& keys) {
  path_ = path;
  std::string header = "GGUF";
  AppendNumber(uint32_t{3}, header);
  AppendNumber(uint64_t{tensors_.size()}, header);
  AppendNumber(uint64_t{keys.size()}, header);
  header += keys.Bytes();
  int64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    AppendText(tensor.name, header);
    AppendNumber(static_cast<uint32_t>(tensor.shape.size()), header);
    for (size_t i = tensor.shape.size(); i > 0; --i)
      AppendNumber(static_cast<uint64_t>(tensor.shape[i - 1]), header);
    AppendNumber(tensor.type, header);
    AppendNumber(static_cast<uint64_t>(offset), header);
    offset += tensor.bytes + Filler(tensor.bytes);
  }
  header.append(static_cast<size_t>(Filler(static_cast<int64_t>(header.size()))), '\0');
  file_.open(path, std::ios::binary | std::ios::trunc);
  file_.write(header.data(), static_cast<std::streamsize>(header.size()));
  return file_ ? Status::Ok() : FailedPrecondition(path_ + ": cannot be written");
}

Status GgufOutput::Append(std::string_view bytes) {
  begun_ += static_cast<int64_t>(bytes.size());
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file_ ? Status::Ok() : FailedPrecondition(path_ + ": cannot be written");
}

Status GgufOutput::EndTensor() {
  TM_CHECK(done_ < tensors_.size() && begun_ == tensors_[done_].bytes, "tensor %zu has not its bytes", done_);
  begun_ = 0;
  const std::string filler(static_cast<size_t>(Filler(tensors_[done_].bytes)), '\0');
  ++done_;
  file_.write(filler.data(), static_cast<std::streamsize>(filler.size()));
  return file_ ? Status::Ok() : FailedPrecondition(path_ + ": cannot be written");
}

Status GgufOutput::End() {
  TM_CHECK(done_ == tensors_.size(), "%zu tensors of %zu", done_, tensors_.size());
  file_.close();
  return file_ ? Status::Ok() : FailedPrecondition(path_ + ": cannot be written");
}

}  // namespace tramontane
