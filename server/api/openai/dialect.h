// How OpenAI's clients read errors. Pure; any thread.
#pragma once

#include <string>

#include "server/api/shared/dialect.h"

namespace tramontane {

// {"error": {"message", "type", "param", "code"}}, all four keys always there.
std::string ErrorJson(const ApiError& error);

inline constexpr Dialect kOpenAi = {
    .error_body = [](const ApiError& error, const HttpRequest&) { return ErrorJson(error); }};

}  // namespace tramontane
