// Dialect: whose clients a route is for, where they are told that they get no answer. A constant of the
// dialect's own folder (openai/dialect.h), which its routes name; everything else asks the route. Any thread.
#pragma once

#include <string>

#include "server/api/shared/api_error.h"
#include "server/http/http.h"

namespace tramontane {

struct Dialect {
  // An error's body, as JSON. `request`: what was asked; of one that the transport has refused, its header
  // and its ids.
  std::string (*error_body)(const ApiError& error, const HttpRequest& request);
};

// The whole answer, with Retry-After where it can help, and x-should-retry: false where clients that go by
// the status would try again in vain.
HttpResponse ErrorResponse(const Dialect& dialect, const ApiError& error, const HttpRequest& request);

}  // namespace tramontane
