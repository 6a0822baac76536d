#include "server/api/shared/unenforced_header.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace tramontane {
namespace {

constexpr char kHeader[] = "x-tramontane-unenforced";
constexpr size_t kMostBytes = 1024;
constexpr size_t kCountBytes = 32;  // ", and 12 more"
constexpr std::string_view kAnd = "and ";

// "chat.tools[1].parameters.properties.x (pattern)", of which the field is what stands in front of the blank.
std::string NameOf(const std::string& part, const FieldNames& names) {
  const size_t end = part.rfind(" (");
  std::string name = names.NameOf(part.substr(0, end));
  if (end != std::string::npos) name += part.substr(end);
  for (char& c : name) {  // keys of the caller's are in it
    if (c < ' ' || c > '~' || c == ',') c = '?';
  }
  return name;
}

}  // namespace

HttpHeaders UnenforcedHeaders(const google::protobuf::RepeatedPtrField<std::string>& parts,
                              const FieldNames& names) {
  if (parts.empty()) return {};
  std::string text;
  int64_t more = 0;
  for (const std::string& part : parts) {
    const bool is_count = part.starts_with(kAnd);
    const std::string name = NameOf(part, names);
    if (more > 0 || is_count || text.size() + name.size() > kMostBytes - kCountBytes) {
      more += is_count ? std::max<int64_t>(0, std::atoll(part.c_str() + kAnd.size())) : 1;
    } else {
      text += (text.empty() ? "" : ", ") + name;
    }
  }
  if (more > 0) text += (text.empty() ? "" : ", ") + std::string(kAnd) + std::to_string(more) + " more";
  return {{kHeader, std::move(text)}};
}

}  // namespace tramontane
