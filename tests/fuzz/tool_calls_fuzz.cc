// What a model may write after [TOOL_CALLS]: any text, cut anywhere, gives the same calls; each is sound,
// none is half.
//
// The first byte says how long the pieces are, the second where the calls begin. Read a second time, as
// formats that mark their calls have it, each byte of 1, 2 or 3 is no text but a mark: a call, its id, its
// arguments.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "server/answers/answer_reader.h"

namespace tramontane {
namespace {

// All of an answer, spelled: its text, then its calls.
class Spelled {
 public:
  void Add(const AnswerEvents& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* text = std::get_if<AnswerText>(&event)) shown_ += text->bytes;
      if (const auto* call = std::get_if<CallBegins>(&event)) {
        TM_CHECK(call->id.size() == 9, "an id of %zu bytes", call->id.size());
        calls_ += "\n" + call->name;
      }
      const auto* piece = std::get_if<CallArguments>(&event);
      if (piece == nullptr) continue;
      const auto arguments = nlohmann::json::parse(piece->bytes, nullptr, /*allow_exceptions=*/false);
      TM_CHECK(arguments.is_object(), "arguments that are no object: %s", piece->bytes.c_str());
      calls_ += piece->bytes;
    }
  }
  std::string Of(std::string_view text) const {
    TM_CHECK(shown_.size() <= text.size(), "%zu bytes of text from %zu", shown_.size(), text.size());
    return shown_ + calls_;
  }

 private:
  std::string shown_, calls_;
};

std::string Parse(std::string_view text, size_t calls_at, size_t piece_bytes) {
  AnswerReader reader({.id_seed = "fuzz"});
  Spelled spelled;
  bool told = false;
  for (size_t at = 0; at < text.size() || !told;) {
    const size_t end = std::min(text.size(), at + piece_bytes);
    v1::Delta delta;
    delta.set_text(std::string(text.substr(at, end - at)));
    if (!told && calls_at <= end) delta.set_tool_calls_at(static_cast<int32_t>(calls_at - at));
    told = told || delta.has_tool_calls_at();
    spelled.Add(reader.Read(delta));
    at = end;
  }
  spelled.Add(reader.Finish(AnswerReader::End::kCutOff));
  return spelled.Of(text);
}

std::string ParseMarked(std::string_view text, size_t piece_bytes) {
  AnswerReader reader({.id_seed = "fuzz"});
  Spelled spelled;
  for (size_t at = 0; at < text.size(); at += piece_bytes) {
    v1::Delta delta;
    for (const char c : text.substr(at, piece_bytes)) {
      if (c < 1 || c > 3) {
        delta.mutable_text()->push_back(c);
        continue;
      }
      v1::Mark* mark = delta.add_marks();
      mark->set_kind(static_cast<v1::MarkKind>(c));
      mark->set_at(static_cast<int32_t>(delta.text().size()));
    }
    spelled.Add(reader.Read(delta));
  }
  spelled.Add(reader.Finish(AnswerReader::End::kOfTheModel));
  return spelled.Of(text);
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t calls_at = std::min<size_t>(data[1], text.size());
  const std::string whole = tramontane::Parse(text, calls_at, text.size() + 1);
  const size_t piece_bytes = 1 + data[0] % 16;
  TM_CHECK(whole == tramontane::Parse(text, calls_at, piece_bytes), "pieces give another answer");
  TM_CHECK(tramontane::ParseMarked(text, text.size() + 1) == tramontane::ParseMarked(text, piece_bytes),
           "pieces give other marked calls");
  return 0;
}
