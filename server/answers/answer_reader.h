// AnswerReader: what an answer says, read from its Deltas as it comes: thoughts, text, and the calls that
// Mistral models write after [TOOL_CALLS]. Doors print its events, each in its dialect; sessions keep what
// they make.
//
// One of each choice, one thread at a time. No exceptions leave it. Memory is constant in what is read, but
// for arguments that must be held (listed_calls.h).
//
// What counts as a call, up to format v7: listed_calls.h. From v11 on, where the server marks each of these:
// a function's name, perhaps an id, which is not used, and arguments that are an object (nothing: {}, where
// the model goes on behind it, or ends). Objects are JSON of at most kMaxJsonDepth brackets inside each
// other.
//
// A call begins when its name is known, and its arguments are told as they come. So it may be cut: by the end
// of the answer, or since what follows is no call. What was told of it stands; what remains is told to
// nobody.
//
// Call syntax is never text. That is what follows a [TOOL_CALLS] up to the next one, if it begins as a call,
// whether it becomes one or not: with a bracket, with one of the marks of its parts, or as a name with
// nothing behind it. Behind a whole call or a list, brackets and commas are syntax, too. All else is text:
// what stands before, what the model says behind its calls, and words that it says behind [TOOL_CALLS]
// instead of calling.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/answers/json_prefix.h"
#include "server/answers/listed_calls.h"
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
  std::string name;   // as of IsFunctionName
};
// Of the call that began last, one of each Delta at most: joined, one JSON object as the model wrote it. What
// was told so far is always whole characters and the beginning of such an object, with its bracket.
struct CallArguments {
  std::string bytes;
};
// It is whole, or was cut.
struct CallEnds {
  bool is_whole = true;
};
using AnswerEvent = std::variant<AnswerThought, AnswerText, CallBegins, CallArguments, CallEnds>;
using AnswerEvents = std::vector<AnswerEvent>;

// Always: the events are the same wherever the answer is cut into Deltas, with bytes that are cut elsewhere.
// (The thoughts of a Delta come before its text.) Each call that begins ends, before the next one begins.
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

  size_t whole_calls() const { return whole_calls_; }  // so far, that were told
  bool is_within_call() const;                         // an end would cut one. Before Finish.
  size_t held_bytes() const { return held_.size() + arguments_.size() + list_.held_bytes(); }

 private:
  enum class State {
    kText,
    kOpening,  // of a list: behind [TOOL_CALLS]
    kList,     // in it, or in a call that stands alone
    kName,     // where calls are marked: this and the next three
    kCallId,
    kBeforeArguments,
    kArguments,
    kClosed,   // behind a call or a list
    kDropped,  // what remains of a call that is none
  };

  void Take(std::string_view text);
  void Step(char c);
  void StepInSpace(char c);
  void StepInList(char c);
  void OnMark(v1::MarkKind kind);
  void LeaveCall(End end);
  void Drop();
  void TellText(std::string_view text);

  void BeginCall(std::string_view name);
  void TellArguments();
  void EndCall(bool is_whole);

  const Options options_;
  AnswerEvents events_;  // of the Delta being read
  State state_ = State::kText;
  std::string held_;  // what may be text or syntax
  ListedCalls list_;
  JsonPrefix json_;  // the arguments of a marked call
  size_t begun_calls_ = 0;
  size_t whole_calls_ = 0;
  bool is_in_call_ = false;
  bool is_told_ = false;   // the call
  std::string arguments_;  // of it, that were not told
};

// Nine letters and digits, always the same for the same seed.
std::string NineCharacterId(std::string_view seed);

}  // namespace tramontane
