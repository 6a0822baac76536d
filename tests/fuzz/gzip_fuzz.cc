// Any bytes as a compressed body: text within the limit or a fault.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "server/http/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMaxBytes = 100'000;
  constexpr int64_t kMaxHeldBytes = 70'000;
  tramontane::ByteBudget budget(kMaxHeldBytes);
  tramontane::HeldBytes held(budget);
  std::string text;
  const auto fault =
      tramontane::Gunzip(std::string_view(reinterpret_cast<const char*>(data), size), kMaxBytes, held, &text);
  const auto bytes = static_cast<int64_t>(text.size());
  TM_CHECK(bytes <= kMaxBytes && bytes <= held.bytes() && held.bytes() <= kMaxHeldBytes, "%zu bytes of text",
           text.size());
  TM_CHECK(fault || bytes == held.bytes(), "%zu bytes of text, %zu held", text.size(),
           static_cast<size_t>(held.bytes()));
  return 0;
}
