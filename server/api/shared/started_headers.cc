#include "server/api/shared/started_headers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace tramontane {
namespace {

constexpr char kUnenforcedHeader[] = "x-tramontane-unenforced";
constexpr size_t kMostBytes = 1024;
constexpr size_t kCountBytes = 32;  // ", and 12 more"
constexpr std::string_view kAnd = "and ";

// "chat.tools[1].parameters.properties.x (pattern)", of which the field is what stands in front of the blank.
std::string NameOf(const std::string& part, const FieldNames& names) {
  const size_t end = part.rfind(" (");
  std::string name = names.NameOf(part.substr(0, end));
  if (end != std::string::npos) name += part.substr(end);
  return HeaderText(name, /*blanks=*/true);
}

std::string UnenforcedText(const v1::Started& started, const FieldNames& names) {
  std::string text;
  int64_t more = 0;
  for (const std::string& part : started.unenforced()) {
    const bool is_count = part.starts_with(kAnd);
    const std::string name = NameOf(part, names);
    if (more > 0 || is_count || text.size() + name.size() > kMostBytes - kCountBytes) {
      more += is_count ? std::max<int64_t>(0, std::atoll(part.c_str() + kAnd.size())) : 1;
    } else {
      text += (text.empty() ? "" : ", ") + name;
    }
  }
  if (more > 0) text += (text.empty() ? "" : ", ") + std::string(kAnd) + std::to_string(more) + " more";
  return text;
}

}  // namespace

std::string HeaderText(std::string_view text, bool blanks) {
  std::string safe(text);
  for (char& c : safe) {
    if (c < ' ' || c > '~' || c == ',' || (c == ' ' && !blanks)) c = '?';
  }
  return safe;
}

void AddStartedHeaders(const v1::Started& started, const FieldNames& names, HttpHeaders* headers) {
  if (!started.unenforced().empty()) {
    headers->emplace_back(kUnenforcedHeader, UnenforcedText(started, names));
  }
  if (started.ignored().empty()) return;
  auto header = std::find_if(headers->begin(), headers->end(),
                             [](const auto& entry) { return entry.first == kIgnoredHeader; });
  if (header == headers->end()) header = headers->insert(header, {kIgnoredHeader, ""});
  for (const std::string& field : started.ignored()) {
    const std::string name = HeaderText(names.NameOf(field), /*blanks=*/false);
    const bool is_told = (", " + header->second + ", ").find(", " + name + ", ") != std::string::npos;
    if (is_told) continue;  // of another prompt
    header->second += (header->second.empty() ? "" : ", ") + name;
  }
}

}  // namespace tramontane
