// What a GGUF file says of its model: keys with typed values, read where they lie in the file.
//
// Any thread; a value of views into the bytes that were parsed, and no longer alive than these.
// Always: every value lies inside the file and is well-formed: strings and arrays end before the file does,
// bools are 0 or 1, no key stands twice. What a value means, and whether it is in range, is for who reads it.
//
// Getters are by name and kind. A key that is absent is NotFound; a value of another kind, out of range or
// not finite is InvalidArgument. Both name the file, the key, the value and what was wanted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

// Numbers as in the file.
enum class GgufKind : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
inline constexpr uint32_t kGgufKinds = 13;

const char* GgufKindName(GgufKind kind);  // "uint32"
// Bytes of one value; 0 for strings and arrays, which say their own.
int64_t GgufKindBytes(GgufKind kind);

struct GgufValue {
  GgufKind kind = GgufKind::kUint8;
  GgufKind element = GgufKind::kUint8;  // of an array
  int64_t count = 0;                    // elements of an array
  // Little-endian, at any address: a scalar; a string's text; an array's elements one after another, each
  // string with its length (8 bytes) before it.
  std::string_view bytes;
};

class GgufMetadata {
 public:
  using Values = std::map<std::string, GgufValue, std::less<>>;

  GgufMetadata() = default;
  // `file` names the source in messages.
  GgufMetadata(std::string file, Values values) : file_(std::move(file)), values_(std::move(values)) {}

  const std::string& file() const { return file_; }
  const Values& values() const { return values_; }
  bool Has(std::string_view key) const { return values_.find(key) != values_.end(); }

  StatusOr<std::string_view> String(std::string_view key) const;
  StatusOr<bool> Bool(std::string_view key) const;
  // An integer of any width, in [least, most].
  StatusOr<int64_t> Int(std::string_view key, int64_t least, int64_t most) const;
  // A float of either width, finite.
  StatusOr<double> Number(std::string_view key) const;

  // The same where the key may be absent.
  StatusOr<std::string_view> StringOr(std::string_view key, std::string_view fallback) const;
  StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  StatusOr<int64_t> IntOr(std::string_view key, int64_t least, int64_t most, int64_t fallback) const;
  StatusOr<double> NumberOr(std::string_view key, double fallback) const;

  // Arrays, of any length up to kMaxGgufElements. Strings are views into the file, 16 bytes each.
  StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  StatusOr<std::vector<bool>> Bools(std::string_view key) const;
  // Integers of any width, each in [least, most].
  StatusOr<std::vector<int64_t>> Ints(std::string_view key, int64_t least, int64_t most) const;
  // Floats of either width, finite; doubles are rounded.
  StatusOr<std::vector<float>> Floats(std::string_view key) const;

  // A value as it may stand in a message: 7, "text" (shortened), an array of 3 strings.
  static std::string Text(const GgufValue& value);

 private:
  StatusOr<const GgufValue*> Find(std::string_view key) const;
  StatusOr<const GgufValue*> FindArray(std::string_view key, const char* of) const;
  Status Wrong(std::string_view key, const std::string& is, const std::string& wanted) const;

  std::string file_;
  Values values_;
};

}  // namespace tramontane
