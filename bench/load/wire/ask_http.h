// One plain question over HTTP, blocking. Any thread.
#pragma once

#include "bench/load/connect.h"
#include "bench/load/wire/wire_target.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// Of an answer's body; a longer one is an error.
inline constexpr size_t kMaxPlainAnswerBytes = 16 * 1024 * 1024;

// The deadline is the target's timeout_s. UNAVAILABLE: there was no connection, or no TLS on it; ABORTED: it
// broke, what came is not HTTP, or not all of it came in time. Both say how.
StatusOr<PlainAnswer> AskHttp(const WireTarget& target, const PlainQuestion& question);

}  // namespace tramontane::load
