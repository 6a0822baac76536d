// JSON as Python's json module reads and prints it (json.loads, json.dumps(ensure_ascii=False)): models were
// trained on tool definitions and calls in exactly that print, so models/chat must give it byte for byte.
//
// Any thread. Plain values; nothing throws.
//
// Where Python differs from most: NaN and Infinity are numbers; integers keep all their digits; 1e20 prints
// as 1e+20 and 1.50 as 1.5; of equal keys the last value wins, at the first one's place; half of a surrogate
// pair is kept (here as the three bytes of its number, which then are not UTF-8).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

struct JsonMember;

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;  // of an integer, the nearest double
  std::string text;   // kString: the string; kNumber: its print
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;  // distinct keys, in order
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Arrays and objects inside each other; Python itself gives up near 1000.
inline constexpr int kMaxPythonJsonDepth = 512;
// Digits of an integer, Python's own limit.
inline constexpr size_t kMaxJsonIntegerDigits = 4300;

// INVALID_ARGUMENT: `text` is not JSON, at which byte. RESOURCE_EXHAUSTED: it is, but beyond a limit above.
// REQUIRES: UTF-8.
StatusOr<JsonValue> ParsePythonJson(std::string_view text);

// Appends what json.dumps(value, ensure_ascii=False) prints.
void AppendPythonJson(const JsonValue& value, std::string* out);
// repr(float): the shortest digits that give `value` back, with an exponent outside 1e-4 <= |value| < 1e16;
// NaN and Infinity as JSON has them.
std::string PythonFloat(double value);
void AppendPythonJsonString(std::string_view text, std::string* out);

}  // namespace tramontane
