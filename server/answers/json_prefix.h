// JsonPrefix: whether bytes are the beginning of a JSON text in UTF-8, told a byte at a time.
//
// One thread at a time. Constant memory, but for a bit for each open bracket, of which there are at most
// kMaxJsonDepth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tramontane {

constexpr size_t kMaxJsonDepth = 1000;

// White space between the parts of a JSON text.
constexpr std::string_view kJsonBlanks = " \t\r\n";
inline bool IsJsonBlank(char c) { return kJsonBlanks.find(c) != std::string_view::npos; }

// `text` without the white space around it.
std::string_view TrimmedJson(std::string_view text);

class JsonPrefix {
 public:
  // False: no JSON text begins with what was taken and this byte, which changes nothing.
  bool Take(char c);

  size_t depth() const { return objects_.size(); }  // brackets that are open
  // A value has ended; in no bracket it was the whole text, behind which only white space comes.
  bool is_behind_value() const { return state_ == State::kBehindValue; }
  bool expects_key() const { return state_ == State::kKeyOrEnd || state_ == State::kKey; }
  bool is_in_string() const {
    return state_ == State::kString || state_ == State::kEscape || state_ == State::kUnicode;
  }

 private:
  enum class State : uint8_t {
    kValue,
    kElementOrEnd,
    kKeyOrEnd,
    kKey,
    kColon,
    kBehindValue,
    kString,
    kEscape,   // behind '\'
    kUnicode,  // behind '\u'
    kLiteral,
    kNumber,
  };
  enum class Number : uint8_t { kMinus, kZero, kWhole, kPoint, kFraction, kE, kSign, kExponent };

  bool TakeBetween(char c);
  bool BeginValue(char c);
  bool Open(bool is_object, State state);
  bool Close();
  bool TakeInString(char c);
  bool TakeEscape(char c);
  bool TakeUnicode(char c);
  bool TakeInNumber(char c);

  State state_ = State::kValue;
  std::vector<bool> objects_;  // of each open bracket, whether it is an object's
  std::string_view literal_;   // what is to come of it
  Number number_ = Number::kMinus;
  // Of the string being read:
  bool is_key_ = false;
  bool needs_low_ = false;      // a high surrogate was escaped
  uint8_t digits_ = 0;          // of an escape, so far
  uint16_t unit_ = 0;           // their value
  uint8_t more_bytes_ = 0;      // of a character
  uint8_t low_ = 0, high_ = 0;  // the range of the next one
};

// `text` is one JSON object.
bool IsJsonObject(std::string_view text);

}  // namespace tramontane
