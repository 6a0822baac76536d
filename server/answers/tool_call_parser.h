// Tool calls: what Mistral models write after [TOOL_CALLS], taken apart as it comes.
//
// One thread at a time. No exceptions leave it.
//
// What counts as a call, up to format v7: an object in a list, or alone, with a function's `name` and
// `arguments` that are an object (or a string that holds one; absent: {}), perhaps with an `id` or `type`,
// which are not used: models repeat ids. From v11 on, where the server marks each of these: a function's
// name, perhaps an id, which is not used either, and arguments that are an object (nothing: {}, where the
// model goes on behind it, or ends). Everything else is text and stays text.
//
// A call is shown when it is whole and sound, never before: a half call could not be taken back from a client
// that was sent its beginning. So a model that writes broken JSON, or is cut off in the middle of a call,
// gives the calls before it and then the rest as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

struct ParsedToolCall {
  std::string id;         // nine letters and digits
  std::string name;       // 1 to 64 letters, digits, underscores and dashes
  std::string arguments;  // one JSON object, as the model wrote it
};

// The text and the calls of one choice.
// Always: text + calls + the punctuation around sound calls = what was appended, wherever it was cut into
// pieces. The text may lag, by what may yet become a call.
class ToolCallParser {
 public:
  struct Output {
    std::string text;
    std::vector<ParsedToolCall> calls;
  };

  // The ids of the calls are made of `id_seed`, which no other choice of any request shares. Calls beyond
  // `max_calls` are dropped.
  explicit ToolCallParser(std::string id_seed, size_t max_calls = std::numeric_limits<size_t>::max());

  // The next text of the choice; `tool_calls_at` as in Delta.
  Output Append(std::string_view text, std::optional<int32_t> tool_calls_at);
  // The same, with the marks of formats that have them.
  Output Append(const v1::Delta& delta);
  enum class End { kOfTheModel, kCutOff };
  // The choice has ended.
  Output Finish(End end);

  size_t calls() const { return calls_; }  // shown so far
  // A call has begun that would not be whole. Before Finish.
  bool IsCutBy(End end) const;

 private:
  enum class State {
    kAnswer,  // before [TOOL_CALLS]
    kOpening,
    kBeforeCall,  // in a list, behind '[' or ','
    kCall,        // in an object
    kAfterCall,   // in a list
    kName,        // where calls are marked: this and the next two
    kCallId,
    kBeforeArguments,
    kClosed,
    kBroken,
  };

  void OnMark(v1::MarkKind kind, Output* output);
  void Step(char c, Output* output);
  void StepInHead(Output* output);
  void StepInCall(char c, Output* output);
  std::optional<ParsedToolCall> CallRead() const;
  void EndCall(ParsedToolCall call, Output* output);
  // What was read of a call that is none is text.
  void Break(Output* output);

  const std::string id_seed_;
  const size_t max_calls_;
  State state_ = State::kAnswer;
  size_t calls_ = 0;
  std::string unclaimed_;  // what was read since the last call: text, should it be broken
  std::string name_;       // of the marked call being read; "": the call is an object with a name in it
  // Of the object being read:
  size_t call_begin_ = 0;  // in unclaimed_
  int64_t depth_ = 0;      // of braces and brackets
  bool in_list_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

// Nine letters and digits, always the same for the same seed.
std::string NineCharacterId(std::string_view seed);

}  // namespace tramontane
