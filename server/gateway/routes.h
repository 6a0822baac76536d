// The table of endpoints: which method and path is answered by whom. Any thread; constant.
#pragma once

#include <string_view>
#include <vector>

#include "server/gateway/gateway.h"

namespace tramontane {

struct Route {
  std::string_view method;
  std::string_view path;  // as HttpRequest::path; a last "*" stands for the rest: "/models/*"
  Endpoint endpoint;
};

const std::vector<Route>& Routes();

}  // namespace tramontane
