// Whether a text is the beginning of a JSON text, found by completing it: another way than the server's own.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tramontane {

// `text` is JSON; a number that is too large for the parser is JSON, too.
inline bool IsJson(const std::string& text) {
  if (nlohmann::json::accept(text)) return true;
  try {
    return !nlohmann::json::parse(text).is_discarded();
  } catch (const nlohmann::json::out_of_range&) {
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// Brackets and quotes alone are looked at, so any wrong completion is refused by the parser.
inline bool BeginsJson(std::string_view text) {
  std::string closing;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[')) {
      closing.insert(closing.begin(), c == '{' ? '}' : ']');
    } else if (!in_string && (c == '}' || c == ']') && !closing.empty()) {
      closing.erase(closing.begin());
    }
  }
  constexpr const char* kRests[] = {"", "0", ":0", "\"a\":0", "rue", "ue", "e", "alse", "lse", "se", "ull",
                                    "ll", "l",
                                    // in a string, in an escape, in the second half of one
                                    "\"", "n\"", "0000\"", "000\"", "00\"", "0\"", "00\\udc00\"",
                                    "0\\udc00\"", "\\udc00\"", "udc00\"", "dc00\"", "c00\""};
  for (const std::string rest : kRests) {
    for (const char* value : {"", ":0"}) {
      if (nlohmann::json::accept(std::string(text) + rest + value + closing)) return true;
    }
  }
  for (const std::string rest : {"", "0", "\"", ":0"}) {
    if (IsJson(std::string(text) + rest + closing)) return true;
  }
  return false;
}

}  // namespace tramontane
