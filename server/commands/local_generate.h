// One request without a server: through the same core as behind both doors, in this process.
// Main thread; returns when the request has ended.
#pragma once

#include <functional>
#include <string>

#include "kernels/core/status.h"
#include "server/setup/config.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// `on_event` is called on this thread; false from it cancels the request. `config` says the model, its files
// and its chat format; model "" is the embedded one.
Status GenerateLocally(ServeConfig config, const v1::GenerateRequest& request,
                       const std::function<bool(const v1::GenerateResponse&)>& on_event);

}  // namespace tramontane
