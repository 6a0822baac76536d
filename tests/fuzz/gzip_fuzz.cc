// Any bytes as a compressed body: text within the limit or a fault.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "server/gateway/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMaxBytes = 100'000;
  std::string text;
  const auto fault =
      tramontane::Gunzip(std::string_view(reinterpret_cast<const char*>(data), size), kMaxBytes, &text);
  const bool fits = static_cast<int64_t>(text.size()) <= kMaxBytes;
  TM_CHECK(fault || fits, "%zu bytes of text", text.size());
  return 0;
}
