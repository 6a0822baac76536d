// /openapi.json: the HTTP interface as an OpenAPI 3.1 document, printed from the tables that check requests.
// Pure functions, any thread; the endpoint: gateway.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/openai/request_shapes.h"
#include "server/api/shared/endpoint.h"
#include "server/api/shared/shape.h"

namespace tramontane {

// One row of the document.
struct Operation {
  std::string method;  // "post"
  std::string path;    // "/v1/models/{model}"
  std::string summary;
  Shape RequestShapes::* request = nullptr;       // of the JSON body; null: none
  const Shape& (*response)() = nullptr;           // of the JSON of a 200; null: see content_type
  std::string content_type = "application/json";  // of a 200; "": it has no body
  bool streams = false;                           // a 200 may also be server-sent events
};

// All but those under /debug.
const std::vector<Operation>& Operations();

std::string OpenApiJson(const std::string& version, const RequestShapes& shapes);

void AnswerOpenApi(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
