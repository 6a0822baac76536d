// The table of endpoints: which method and path is answered by whom, and on which thread. Any thread;
// constant.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/openai/dialect.h"
#include "server/api/shared/dialect.h"
#include "server/api/shared/gateway_context.h"

namespace tramontane {

// Where an endpoint runs. What a probe asks for must not wait behind the JSON of others.
enum class AnsweredOn {
  kIoThread,       // at once: it reads no body, waits for nothing and takes no time
  kHandlerThread,  // its body is decoded and parsed
};

// How a path may be spelled.
enum class Spelling {
  // With or without one "/v1" in front; doubled slashes and one at the end are overlooked, as base URLs make
  // them.
  kApi,
  kExact,
};

// Which HTTP doors have an endpoint.
enum class OnDoors {
  kPublic,
  kBoth,
  kAdmin,  // and there only where GatewayOptions::trace is; a key for it has `admin`
};

struct Route {
  enum class What {
    kGenerates,  // or scores: it is counted as a request (RequestCounts)
    kOther,
  };

  std::string_view method;
  std::string_view path;  // without "/v1"; a "*" stands for a name, the rest where it is last: "/models/*"
  Endpoint endpoint;
  What what = What::kOther;
  Spelling spelling = Spelling::kApi;
  AnsweredOn thread = AnsweredOn::kHandlerThread;
  OnDoors doors = OnDoors::kPublic;
  bool is_open = false;               // without a key, where others need one
  const Dialect* dialect = &kOpenAi;  // in which all errors are said behind its path
};

const std::vector<Route>& Routes();

// Counts for all of them, of which the label is "/v1/models" for a path that may be spelled so.
std::shared_ptr<HttpCounts> NewHttpCounts(const std::vector<Route>& routes = Routes());

// What is found for a request. Always: a path with a percent-escaped letter or digit is nobody's, so that
// rules about paths, in a proxy before this server, see every path as it is routed.
struct RouteMatch {
  const Route* route = nullptr;       // null: no such path, or not with this method
  std::string methods;                // that the path has, "GET, POST"; "": no such path
  std::string_view path;              // of the endpoint, whatever its methods; "": no such path
  const Dialect* dialect = &kOpenAi;  // of the path, whatever its methods
};
enum class Door { kPublic, kAdmin, kAdminWithoutDebug };
RouteMatch FindRoute(std::string_view method, std::string_view path, Door door = Door::kPublic,
                     const std::vector<Route>& routes = Routes());

}  // namespace tramontane
