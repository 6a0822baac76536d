// What a model may write after [TOOL_CALLS]: any text, cut anywhere, gives the same calls; each is sound,
// none is half.
//
// The first byte says how long the pieces are, the second where the calls begin.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "server/openai/tool_calls.h"

namespace tramontane {
namespace {

// All of an answer, spelled: its text, then its calls.
std::string Parse(std::string_view text, size_t calls_at, size_t piece_bytes) {
  ToolCallParser parser("fuzz");
  std::string shown, calls;
  const auto add = [&](const ToolCallParser::Output& output) {
    shown += output.text;
    for (const ParsedToolCall& call : output.calls) {
      TM_CHECK(call.id.size() == 9, "an id of %zu bytes", call.id.size());
      const auto arguments = nlohmann::json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
      TM_CHECK(arguments.is_object(), "arguments that are no object: %s", call.arguments.c_str());
      calls += "\n" + call.name + call.arguments;
    }
  };
  bool told = false;
  for (size_t at = 0; at < text.size() || !told;) {
    const size_t end = std::min(text.size(), at + piece_bytes);
    std::optional<int32_t> boundary;
    if (!told && calls_at <= end) boundary = static_cast<int32_t>(calls_at - at);
    told = told || boundary.has_value();
    add(parser.Append(text.substr(at, end - at), boundary));
    at = end;
  }
  add(parser.Finish());
  TM_CHECK(shown.size() <= text.size(), "%zu bytes of text from %zu", shown.size(), text.size());
  return shown + calls;
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t calls_at = std::min<size_t>(data[1], text.size());
  const std::string whole = tramontane::Parse(text, calls_at, text.size() + 1);
  TM_CHECK(whole == tramontane::Parse(text, calls_at, 1 + data[0] % 16), "pieces give another answer");
  return 0;
}
