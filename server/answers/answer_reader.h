// AnswerReader: what an answer says, read from its Deltas: thoughts, text, and the calls that Mistral models
// write after [TOOL_CALLS], taken apart as they come. Doors print its events, each in its dialect; sessions
// keep what they make.
//
// One of each choice, one thread at a time. No exceptions leave it.
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
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

struct AnswerThought {
  std::string bytes;
};
struct AnswerText {
  std::string bytes;
};
struct CallBegins {
  size_t number = 0;  // of the choice's calls, from 0
  std::string id;     // nine letters and digits
  std::string name;   // 1 to 64 letters, digits, underscores and dashes
};
// Of the call that began last: joined, one JSON object, as the model wrote it.
struct CallArguments {
  std::string bytes;
};
struct CallEnds {};
using AnswerEvent = std::variant<AnswerThought, AnswerText, CallBegins, CallArguments, CallEnds>;
using AnswerEvents = std::vector<AnswerEvent>;

// The text and the calls of one choice.
// Always: text + calls + the punctuation around sound calls = what was read, wherever it was cut into
// pieces. The text may lag, by what may yet become a call.
class AnswerReader {
 public:
  struct Options {
    // The ids of the calls are made of it; no other choice of any request shares it.
    std::string id_seed;
    bool one_call = false;  // further ones are dropped
  };
  explicit AnswerReader(Options options) : options_(std::move(options)) {}

  // What the choice says next.
  AnswerEvents Read(const v1::Delta& delta);
  enum class End { kOfTheModel, kCutOff };
  // The choice has ended.
  AnswerEvents Finish(End end);

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

  void Take(std::string_view text);
  void OnMark(v1::MarkKind kind);
  void Step(char c);
  void StepInCall(char c);
  void EndCall(std::string name, std::string arguments);
  void FinishCall(End end);
  // What was read of a call that is none is text.
  void Break();
  void TellText(std::string_view text);

  const Options options_;
  AnswerEvents events_;  // of the Delta being read
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
