// Vector files: cases of KV-cache operations with their inputs and expected outputs, as JSON.
//
//   {"format": "tramontane-kv-vectors", "version": 1, "cases": [{"kind", "name", "attrs", "in", "out"}, ...]}
//
// A file is read whole and bounded; what is wrong with a case is told when it is run, by field. One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane::kv_vectors {

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 24;  // 8 bytes of memory each

enum class ElementType { kF32, kF16, kI8, kU8, kI16, kI32, kI64 };
const char* ElementTypeName(ElementType type);  // "f32"

// A tensor as numbers: every type of the format fits a double, i64 within 2^53.
struct VectorTensor {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;  // row-major; empty: a scalar
  std::vector<double> values;  // stored numbers, times `scale` where the tensor has one

  int64_t size() const { return static_cast<int64_t>(values.size()); }
};

// "[3,1,7]": where an element stands in a shape.
std::string IndexText(const std::vector<int64_t>& shape, int64_t element);

// A tensor of the format. INVALID_ARGUMENT names what is wrong, the value and what is allowed.
StatusOr<VectorTensor> ReadTensor(const nlohmann::json& value);

// The case that is being run. Reads keep the first fault and give something harmless after it: a kind reads
// all it needs and asks status() once.
class CaseReader {
 public:
  CaseReader(const nlohmann::json& attrs, const nlohmann::json& in) : attrs_(attrs), in_(in) {}

  int64_t Int(const char* attr, int64_t least, int64_t most);
  double Number(const char* attr);
  double Positive(const char* attr);  // a number above 0
  bool Bool(const char* attr);
  // The index of the text in `allowed`.
  size_t OneOf(const char* attr, std::initializer_list<const char*> allowed);
  bool Has(const char* attr) const { return attrs_.contains(attr); }
  bool HasIn(const std::string& name) const { return in_.contains(name); }

  // Of such a shape, where -1 is any size.
  VectorTensor In(const std::string& name, const std::vector<int64_t>& shape);
  // The same of whole numbers: from `least` on that fit 32 bits, of up to 53 bits, of 0 to 255. After a fault
  // there may be fewer.
  std::vector<int32_t> Ints(const std::string& name, const std::vector<int64_t>& shape, int32_t least = 0);
  std::vector<int64_t> Longs(const std::string& name, const std::vector<int64_t>& shape);
  std::vector<uint8_t> Bytes(const std::string& name, const std::vector<int64_t>& shape);

  const Status& status() const { return status_; }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  const nlohmann::json* Attr(const char* name);
  std::vector<int64_t> Whole(const std::string& name, const std::vector<int64_t>& shape, int64_t least,
                             int64_t most);

  const nlohmann::json& attrs_;
  const nlohmann::json& in_;
  Status status_;
};

struct VectorCase {
  std::string kind;
  std::string name;
  nlohmann::json body;  // the whole case
};

// INVALID_ARGUMENT or the reader's error names the file: not JSON, another format or version, a case without
// kind or name.
StatusOr<std::vector<VectorCase>> ReadVectorFile(const std::string& path);

}  // namespace tramontane::kv_vectors
