// Bodies that a client has compressed. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/base/held_bytes.h"
#include "server/http/refusal.h"

namespace tramontane {

// How long the text of a gzip member is by its last bytes. Gunzip makes no more of it than that.
int64_t GunzippedBytes(std::string_view bytes);

// Decompresses one gzip member (RFC 1952) to at most `max_bytes`; `held` grows with the text, before it.
// Returns what is wrong, if something is: 400 for bytes that are no gzip, 413 for too many, 503 where `held`
// may not grow.
std::optional<HttpRefusal> Gunzip(std::string_view bytes, int64_t max_bytes, HeldBytes& held,
                                  std::string* text);

}  // namespace tramontane
