// One plain question over HTTP, blocking. Any thread.
#pragma once

#include "bench/load/connect.h"
#include "bench/load/wire/wire_target.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// Of an answer's body; a longer one is an error.
inline constexpr size_t kMaxPlainAnswerBytes = 64 * 1024 * 1024;

// The deadline is the target's timeout_s. UNAVAILABLE says what went wrong on the way.
StatusOr<PlainAnswer> AskHttp(const WireTarget& target, const PlainQuestion& question);

}  // namespace tramontane::load
