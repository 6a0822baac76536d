// One page of the KV pool, byte by byte, for `inspect --kv --kv-dtype`: written by the CPU backend, as a
// step writes it. Main thread.
#pragma once

#include <string>

#include "kernels/core/status.h"
#include "server/setup/config.h"

namespace tramontane {

// kv_dtype, kv_group, kv_layout and threads of `config`; one layer of two heads of 16 lanes, and `page_size`
// tokens. INVALID_ARGUMENT: a group that does not divide a head.
StatusOr<std::string> ListKvPage(const ServeConfig& config, int32_t page_size);

}  // namespace tramontane
