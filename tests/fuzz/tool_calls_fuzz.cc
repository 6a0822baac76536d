// What a model may write after [TOOL_CALLS]: any text, cut anywhere, gives the same events. A call that
// begins ends; what was told of it begins a JSON object in whole characters, and is one where it is whole.
//
// The first byte says how long the pieces are, the second where the calls begin. Read a second time, as
// formats that mark their calls have it, each byte of 1, 2 or 3 is no text but a mark: a call, its id, its
// arguments.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "server/answers/answer_reader.h"
#include "tests/support/json_beginning.h"

namespace tramontane {
namespace {

// All of an answer, spelled in its order, with bytes joined that were cut.
class Spelled {
 public:
  void Add(const AnswerEvents& events) {
    for (const AnswerEvent& event : events) {
      if (const auto* text = std::get_if<AnswerText>(&event)) AddText(text->bytes);
      if (const auto* call = std::get_if<CallBegins>(&event)) Begin(*call);
      if (const auto* piece = std::get_if<CallArguments>(&event)) AddArguments(piece->bytes);
      if (const auto* end = std::get_if<CallEnds>(&event)) End(end->is_whole);
    }
  }
  std::string Of(std::string_view text) const {
    TM_CHECK(!in_call_, "a call without an end: %s", shown_.c_str());
    TM_CHECK(text_bytes_ <= text.size(), "%zu bytes of text from %zu", text_bytes_, text.size());
    return shown_;
  }

 private:
  void AddText(const std::string& text) {
    TM_CHECK(!in_call_ && !text.empty(), "text in a call: %s", text.c_str());
    text_bytes_ += text.size();
    shown_ += text;
  }
  void Begin(const CallBegins& call) {
    TM_CHECK(!in_call_ && call.id.size() == 9 && IsFunctionName(call.name), "a call of %s",
             call.name.c_str());
    in_call_ = true;
    arguments_.clear();
    shown_ += "\n(" + std::to_string(call.number) + call.name;
  }
  void AddArguments(const std::string& bytes) {
    TM_CHECK(in_call_ && !bytes.empty(), "arguments of no call: %s", bytes.c_str());
    TM_CHECK((bytes[0] & 0xC0) != 0x80, "a character that is cut: %s", bytes.c_str());
    arguments_ += bytes;
    TM_CHECK(arguments_[0] == '{', "a begin without a bracket: %s", arguments_.c_str());
  }
  void End(bool is_whole) {
    TM_CHECK(in_call_, "an end of no call: %s", shown_.c_str());
    in_call_ = false;
    const bool is_right = is_whole ? IsJson(arguments_) : arguments_.empty() || BeginsJson(arguments_);
    TM_CHECK(is_right, "arguments that are no object: %s", arguments_.c_str());
    shown_ += arguments_ + (is_whole ? ")" : "|");
  }

  std::string shown_, arguments_;
  size_t text_bytes_ = 0;
  bool in_call_ = false;
};

std::string Read(std::string_view text, size_t calls_at, size_t piece_bytes) {
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

std::string ReadMarked(std::string_view text, size_t piece_bytes) {
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
  const std::string whole = tramontane::Read(text, calls_at, text.size() + 1);
  const size_t piece_bytes = 1 + data[0] % 16;
  TM_CHECK(whole == tramontane::Read(text, calls_at, piece_bytes), "pieces give another answer");
  TM_CHECK(tramontane::ReadMarked(text, text.size() + 1) == tramontane::ReadMarked(text, piece_bytes),
           "pieces give other marked calls");
  return 0;
}
