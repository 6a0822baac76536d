// The Gateway of a build without Boost: Start says so.
#include <utility>

#include "server/api/gateway.h"

namespace tramontane {

struct Gateway::Impl {
  std::string address;
};

StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options, InferenceClient&,
                                                  const std::vector<Route>&) {
  return Status(
      StatusCode::kUnimplemented,
      "http_address: cannot listen on " + options.address +
          ": built without Boost 1.81 or later, so there is no HTTP; http_address \"off\" serves gRPC only");
}

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gateway::~Gateway() = default;
const std::string& Gateway::address() const { return impl_->address; }
void Gateway::Leave() {}
bool Gateway::Drain(int64_t) { return true; }
void Gateway::Stop() {}

}  // namespace tramontane
