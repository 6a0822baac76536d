// The keys that settings name, opened, for commands that serve. Main thread.
#pragma once

#include <memory>

#include "kernels/core/status.h"
#include "server/access/doorkeeper.h"
#include "server/setup/config.h"
#include "server/setup/reload_watch.h"

namespace tramontane {

// The doorkeeper, and what keeps its keys as they are in their file.
struct KeptDoors {
  std::shared_ptr<const Doorkeeper> doorkeeper;
  std::unique_ptr<ReloadWatch> watch;  // null: there is no file
};

// INVALID_ARGUMENT names the setting. Logs warnings of the file, and of a door that is open to a network.
StatusOr<KeptDoors> OpenDoors(const ServeConfig& config);

}  // namespace tramontane
