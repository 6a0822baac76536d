// RequestTimeout: how long a client waits for its answer, as the header `grpc-timeout` says it behind either
// door: up to eight digits and a unit, "1500m" or "30S". Pure functions; any thread. Source of the form:
// gRPC's protocol over HTTP/2, "Requests".
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "server/http/http.h"

namespace tramontane {

inline constexpr char kTimeoutHeader[] = "grpc-timeout";

// Nothing where the text is not of that form.
std::optional<std::chrono::nanoseconds> ParseTimeout(std::string_view text);

// Of a request that passed the stages, where it has one.
std::optional<std::chrono::nanoseconds> TimeoutOf(const HttpRequest& request);

}  // namespace tramontane
