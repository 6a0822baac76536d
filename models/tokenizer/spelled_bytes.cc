#include "models/tokenizer/spelled_bytes.h"

#include <cstdint>
#include <cstdio>

#include "kernels/core/utf8.h"

namespace tramontane {

std::string WithSpelledBytes(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8(bytes);
    for (size_t i = 0; i < unit.bytes; ++i) {
      if (unit.kind == Utf8Kind::kValid) {
        text += bytes[i];
      } else {
        char spelled[8];
        std::snprintf(spelled, sizeof(spelled), "<0x%02X>", static_cast<uint8_t>(bytes[i]));
        text += spelled;
      }
    }
    bytes.remove_prefix(unit.bytes);
  }
  return text;
}

}  // namespace tramontane
