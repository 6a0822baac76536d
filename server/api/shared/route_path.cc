#include "server/api/shared/route_path.h"

#include <algorithm>

namespace tramontane {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte that "%XX" at `at` stands for; -1: no escape begins there.
int EscapedByte(std::string_view text, size_t at) {
  if (text[at] != '%' || at + 2 >= text.size()) return -1;
  const int high = HexDigit(text[at + 1]), low = HexDigit(text[at + 2]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// What is not "%" and two hexadecimal digits stays as it is.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int byte = EscapedByte(text, i);
    decoded.push_back(byte < 0 ? text[i] : static_cast<char>(byte));
    if (byte >= 0) i += 2;
  }
  return decoded;
}

}  // namespace

bool EscapesALetter(std::string_view path) {
  for (size_t i = 0; i < path.size(); ++i) {
    const int byte = EscapedByte(path, i);
    if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9')) {
      return true;
    }
  }
  return false;
}

std::string ApiPath(std::string_view path) {
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain.push_back(c);
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  if (plain.starts_with("/v1/")) plain.erase(0, 3);
  return plain;
}

std::string WildcardOf(std::string_view route_path, std::string_view path) {
  const size_t star = route_path.find('*');
  const std::string api = ApiPath(path);
  if (api.size() < route_path.size()) return "";  // its slashes were one too many
  return PercentDecoded(std::string_view(api).substr(star, api.size() - (route_path.size() - 1)));
}

std::string QueryValueOf(std::string_view target, std::string_view name) {
  target = target.substr(0, target.find('#'));
  size_t begin = target.find('?');
  while (begin != std::string_view::npos) {
    const size_t end = target.find('&', ++begin);
    const std::string_view pair = target.substr(begin, end == std::string_view::npos ? end : end - begin);
    const size_t equals = std::min(pair.find('='), pair.size());
    if (PercentDecoded(pair.substr(0, equals)) == name) {
      std::string value(pair.substr(std::min(equals + 1, pair.size())));
      std::replace(value.begin(), value.end(), '+', ' ');
      return PercentDecoded(value);
    }
    begin = end;
  }
  return "";
}

}  // namespace tramontane
