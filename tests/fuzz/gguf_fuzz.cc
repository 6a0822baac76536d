// Any bytes as a GGUF file: an error, or keys and tensors that lie inside the file and that every getter
// reads.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/check.h"
#include "models/gguf/gguf_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tramontane::GgufKind;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto contents = tramontane::ParseGguf(bytes, "fuzz");
  if (!contents.ok()) return 0;
  const auto is_inside = [&](std::string_view part) {
    return part.empty() || (part.data() >= bytes.data() && part.data() + part.size() <= bytes.data() + size);
  };
  int64_t reached = 0;
  for (const auto& [name, tensor] : contents->tensors) {
    TM_CHECK(0 <= tensor.begin && tensor.begin < tensor.end && tensor.end <= static_cast<int64_t>(size),
             "tensor %s leaves the file", name.c_str());
    reached += tensor.end - tensor.begin;
  }
  TM_CHECK(reached <= static_cast<int64_t>(size), "tensors overlap");
  const tramontane::GgufMetadata& metadata = contents->metadata;
  for (const auto& [key, value] : metadata.values()) {
    TM_CHECK(is_inside(value.bytes), "key %s leaves the file", key.c_str());
    TM_CHECK(!tramontane::GgufMetadata::Text(value).empty(), "key %s has no text", key.c_str());
    if (const auto strings = metadata.Strings(key); strings.ok()) {
      for (const std::string_view string : *strings) {
        TM_CHECK(is_inside(string), "a string of %s leaves the file", key.c_str());
      }
    }
    const bool is_array = value.kind == GgufKind::kArray;
    const bool read = metadata.Ints(key, INT64_MIN, INT64_MAX).ok() || metadata.Floats(key).ok() ||
                      metadata.Bools(key).ok() || metadata.Strings(key).ok();
    TM_CHECK(is_array || !read, "key %s is read as an array", key.c_str());
    const int as = (metadata.String(key).ok() ? 1 : 0) + (metadata.Bool(key).ok() ? 1 : 0) +
                   (metadata.Int(key, INT64_MIN, INT64_MAX).ok() ? 1 : 0) +
                   (metadata.Number(key).ok() ? 1 : 0);
    TM_CHECK(as <= (is_array ? 0 : 1), "key %s is of several kinds", key.c_str());
  }
  return 0;
}
