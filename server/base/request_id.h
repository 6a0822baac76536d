// The names of requests, the same behind either door: what one may be, and what those are called that nobody
// named. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tramontane {

inline constexpr size_t kMaxRequestIdBytes = 128;

// "" when `id` can name a request (it travels in headers, metadata and logs): 1 to 128 printable ASCII
// characters, no space. Else what is wrong.
std::string RequestIdFault(std::string_view id);

// Unlike those of other processes, and unlike each other: "req-9d41c7e25f0b3a86".
std::string DrawRequestId();

}  // namespace tramontane
