// Any bytes as a connection's input: requests or a refusal, and the same requests however the bytes are cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"
#include "server/http/parser.h"

namespace tramontane {
namespace {

constexpr HttpLimits kLimits = {.max_header_bytes = 2000, .max_body_bytes = 1000};

// The requests of a connection that reads `step` bytes at a time, up to the first that is refused. (When that
// is found out may depend on how the bytes are cut: a damaged line is refused at once, or with the end of its
// header.)
std::vector<std::string> RequestsOf(std::string_view bytes, size_t step) {
  std::vector<std::string> requests;
  HttpRequestParser parser(kLimits);
  size_t taken = 0, read = 0;
  for (;;) {
    const size_t used = parser.Feed(bytes.substr(taken, read - taken));
    TM_CHECK(used <= read - taken, "took %zu of %zu bytes", used, read - taken);
    taken += used;
    if (parser.failed()) {
      TM_CHECK(parser.refusal().status >= 400 && !parser.refusal().message.empty(),
               "refused without a reason");
      return requests;
    }
    if (parser.done()) {
      TM_CHECK(parser.body_bytes() <= kLimits.max_body_bytes, "a body over the limit");
      const HttpRequest request = parser.Take();
      TM_CHECK(request.path.size() <= std::max<size_t>(1, request.target.size()), "a path that grows");
      requests.push_back(request.method + " " + request.target + " " + request.body);
      for (const auto& [name, value] : request.headers) requests.back() += "\n" + name + ":" + value;
      parser = HttpRequestParser(kLimits);
      continue;
    }
    if (read == bytes.size()) return requests;
    read = std::min(bytes.size(), read + step);
  }
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = tramontane::RequestsOf(bytes, bytes.size() + 1);
  const auto cut = tramontane::RequestsOf(bytes, 1 + data[0] % 32);
  TM_CHECK(whole == cut, "what a request is depends on how it is cut: %zu and %zu", whole.size(), cut.size());
  return 0;
}
