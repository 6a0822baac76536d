// ApiError: why a request was not answered. A Dialect says it to clients.
// Plain values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "server/call/rpc_error.h"
#include "server/http/refusal.h"

namespace tramontane {

struct ApiError {
  int status = 400;  // of HTTP
  std::string message = {};
  std::string type = "invalid_request_error";  // in OpenAI's words: other dialects go by the status
  std::string param = {};                      // the request's field at fault; "": null
  std::string code = {};                       // for programs; "": null
  int64_t retry_after_ms = 0;                  // above 0: a retry can help after this time
  // No retry helps, and clients who go by the status alone are told so.
  bool retry_is_vain = false;
};

// A fault of the request: 400, with the field named.
ApiError BadRequest(std::string param, std::string message);
// The same, said of the field: "n: is 0; ...".
ApiError FieldFault(const std::string& field, const std::string& text);

// What the transport said.
ApiError ToApiError(const HttpRefusal& refusal);

// What the server said, in OpenAI's words. Paths of the .proto become the names of OpenAI's fields.
ApiError ToApiError(const RpcError& error);

}  // namespace tramontane
