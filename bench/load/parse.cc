#include "bench/load/parse.h"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "bench/load/record.h"

namespace tramontane::load {
namespace {

template <typename Number>
bool ReadWhole(std::string_view text, Number* value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end && !text.empty();
}

std::string InRange(std::string_view kind, const NumberRange& range) {
  return std::string(kind) + " from " + NumberText(range.least) + " to " + NumberText(range.most);
}

}  // namespace

Status BadValue(std::string_view flag, std::string_view text, std::string_view what) {
  constexpr size_t kShown = 200;
  return InvalidArgument(std::string(flag) + " is \"" + VisibleText(text.substr(0, kShown)) +
                         "\"; it must be " + std::string(what));
}

StatusOr<double> ParseNumber(std::string_view flag, std::string_view text, const NumberRange& range) {
  double value = 0;
  if (!ReadWhole(text, &value) || !std::isfinite(value) || value < range.least || value > range.most) {
    return BadValue(flag, text, InRange("a number", range));
  }
  return value;
}

StatusOr<int64_t> ParseWhole(std::string_view flag, std::string_view text, const NumberRange& range) {
  int64_t value = 0;
  const bool whole = ReadWhole(text, &value);
  if (!whole || static_cast<double>(value) < range.least || static_cast<double>(value) > range.most) {
    return BadValue(flag, text, InRange("a whole number", range));
  }
  return value;
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0;;) {
    const size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

std::string NumberText(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, end};
}

bool IsNestedTooDeep(std::string_view json) {
  constexpr int kMostNested = 32;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostNested) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

StatusOr<std::string> ReadWhole(const std::string& path, size_t most_bytes) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::fifo &&
      type != std::filesystem::file_type::not_found) {
    return NotFound("is no file").WithField(path);
  }
  const Status too_long =
      InvalidArgument("holds more than " + std::to_string(most_bytes) + " bytes").WithField(path);
  const bool is_regular = type == std::filesystem::file_type::regular;
  const uintmax_t size = is_regular ? std::filesystem::file_size(path, error) : 0;
  if (is_regular && !error && size > most_bytes) return too_long;
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("cannot be opened").WithField(path);
  std::string text;
  std::array<char, 65536> piece;
  while (file.read(piece.data(), piece.size()) || file.gcount() > 0) {
    text.append(piece.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > most_bytes) return too_long;
  }
  if (file.bad()) return NotFound("cannot be read").WithField(path);
  return text;
}

}  // namespace tramontane::load
