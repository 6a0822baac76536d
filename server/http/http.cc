#include "server/http/http.h"

namespace tramontane {

const std::string* HttpRequest::Header(std::string_view name) const {
  for (const auto& [field, value] : headers) {
    if (field == name) return &value;
  }
  return nullptr;
}

}  // namespace tramontane
