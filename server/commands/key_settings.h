// The keys and certificates that settings name, opened, for commands that serve. Main thread.
#pragma once

#include <memory>

#include "kernels/core/status.h"
#include "server/access/doorkeeper.h"
#include "server/access/tls_files.h"
#include "server/setup/config.h"
#include "server/setup/reload_watch.h"

namespace tramontane {

// The doorkeeper, the certificates, and what keeps them as they are in their files.
struct KeptDoors {
  std::shared_ptr<const Doorkeeper> doorkeeper;
  std::shared_ptr<const TlsFiles> tls;  // null: no TLS
  std::unique_ptr<ReloadWatch> watch;   // null: there is no file
};

// INVALID_ARGUMENT names the setting. Logs warnings of the files, and of a door that is open to a network.
StatusOr<KeptDoors> OpenDoors(const ServeConfig& config);

}  // namespace tramontane
