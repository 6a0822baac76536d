// JSON that others wrote: traces, mixes, a body's keys, answers to plain questions. Pure function; any
// thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace tramontane::load {

// Discarded (is_discarded, and of no other kind) where `text` is no JSON. A zero byte is none, which the
// parser would take for the end of the text, whatever came behind it.
nlohmann::json JsonOf(std::string_view text);

}  // namespace tramontane::load
