// Any text as a chat template over a few values, within small bounds: an error that says why, or UTF-8 of
// bounded size, the same at every render; and cut at control tokens, what was typed is still text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/chat/control_text.h"
#include "models/jinja/jinja_template.h"
#include "tests/support/byte_tokenizer.h"

namespace tramontane {
namespace {

constexpr char kValues[] =
    R"({"messages": [{"role": "system", "content": "S\n"}, {"role": "user", "content": " <|user|> 'é' \"😀\" "},)"
    R"({"role": "assistant", "content": null, "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": [1, 2.5, true]}}}]}],)"
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}], "n": 3, "x": [[1, 2], "b", null]})";

const JinjaLimits kLimits = {.max_depth = 60,
                             .max_steps = 100'000,
                             .max_value_bytes = 1 << 20,
                             .max_memory_bytes = 16 << 20,
                             .max_output_bytes = 1 << 20};

const Tokenizer& Bytes() {
  static const ByteTokenizer tokenizer({"<|user|>", "<|end|>", "<s>"}, "<s>");
  return tokenizer;
}

void CheckTemplate(std::string_view text) {
  const auto parsed = JinjaTemplate::Parse(text, kLimits);
  if (!parsed.ok()) {
    TM_CHECK(!parsed.status().message().empty(), "refused without a word");
    return;
  }
  const JsonValue values = *ParsePythonJson(kValues);
  const std::tm now{};
  const StatusOr<std::string> output = (*parsed)->Render(values, now);
  const StatusOr<std::string> again = (*parsed)->Render(values, now);
  TM_CHECK(output.status() == again.status(), "%s", again.status().message().c_str());
  if (!output.ok()) {
    TM_CHECK(output.status().code() == StatusCode::kInvalidArgument, "%s", output.status().message().c_str());
    return;
  }
  TM_CHECK(*output == *again, "two renders differ");
  TM_CHECK(IsUtf8(*output), "the output is not UTF-8");
  TM_CHECK(output->size() <= static_cast<size_t>(kLimits.max_output_bytes), "%zu bytes", output->size());
}

// Typed text between a template's own: no control id, and every byte as it was.
void CheckTyped(std::string_view typed) {
  static const ControlSpellings spellings(Bytes());
  if (!IsUtf8(typed)) return;
  JsonValue value;
  value.kind = JsonValue::Kind::kString;
  value.text = typed;
  const StatusOr<ControlText> control = ControlText::For(spellings, "<", value);
  if (!control.ok()) return;
  const StatusOr<std::vector<int32_t>> ids = control->Encode(Bytes(), "<" + control->Break(typed) + "|>");
  TM_CHECK(ids.ok(), "%s", ids.status().message().c_str());
  std::string bytes;
  for (const int32_t id : *ids) {
    TM_CHECK(!Bytes().IsControl(id), "a control id was typed");
    bytes += static_cast<char>(id);
  }
  TM_CHECK(bytes == "<" + std::string(typed) + "|>", "typed text came out changed");
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  tramontane::CheckTemplate(input);
  tramontane::CheckTyped(input);
  return 0;
}
