#include "bench/load/json_text.h"

namespace tramontane::load {

nlohmann::json JsonOf(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace tramontane::load
