// Bodies that a client has compressed. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/gateway/api_error.h"

namespace tramontane {

// Decompresses one gzip member (RFC 1952) to at most `max_bytes`. Returns what is wrong, if something is: 400
// for bytes that are no gzip, 413 for too many.
std::optional<ApiError> Gunzip(std::string_view bytes, int64_t max_bytes, std::string* text);

}  // namespace tramontane
