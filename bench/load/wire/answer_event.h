// What one event of a completions or chat stream says: the load tool's definition of a content event.
// Pure function; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tramontane::load {

// Brackets inside each other in one event; more are a fault.
inline constexpr size_t kMaxEventDepth = 128;

struct AnswerEvent {
  bool is_error = false;                     // a top-level `error` that is not null, or `"object": "error"`
  bool has_choices = false;                  // `choices` has an element
  bool has_content = false;                  // text, reasoning, tool arguments or token ids, in any choice
  bool finishes = false;                     // a finish reason, in any choice
  bool fails = false;                        // one that tells of no answer: "error", "abort"
  bool has_timing = false;                   // a top-level `timing` that is an object
  int32_t ids = 0;                           // output token ids in it
  int32_t logprobs = 0;                      // tokens that its log probabilities are of
  std::optional<int32_t> prompt_tokens;      // of `usage`
  std::optional<int32_t> completion_tokens;  // of `usage`
};

// `data` of an event, in one pass that builds nothing. Nothing where it is no JSON object: then `fault` says
// why, with the beginning of `data` as it is: for people only through ServerText. Strings are not checked to
// be UTF-8, since an event stream replaces what is not, and halves of surrogate pairs are let through, since
// servers written in JavaScript cut texts there.
std::optional<AnswerEvent> ReadAnswerEvent(std::string_view data, std::string* fault);

// The seldom wanted parts of an event, by a full parser; empty where it has no such thing.
std::string ErrorMessageOf(std::string_view data);  // of an error event, or of an error's whole body
std::string TimingOf(std::string_view data);        // the `timing` object as JSON
std::string ContentTextOf(std::string_view data);   // what would be tokenized to count the output

}  // namespace tramontane::load
