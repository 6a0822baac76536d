// How fast a model's layers are at a few counts of rows: measured once, before the first step, so that
// prefill steps beside decode are not cut to sizes that waste the machine. The thread that makes the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/backend_model_runner.h"
#include "engine/threads/clock.h"
#include "kernels/core/status.h"
#include "models/model.h"

namespace tramontane {

struct RowSpeed {
  int32_t rows = 0;
  int64_t ns = 0;  // of a forward pass of so many rows through all layers
  double rows_per_second() const { return static_cast<double>(rows) * 1e9 / static_cast<double>(ns); }
};

// The fewest rows that reach 90 % of the best speed among `speeds`. REQUIRES: some, none of no time.
int32_t LeastFastRows(std::span<const RowSpeed> speeds);

// Forward passes of 32, 64, 128, 256 and 512 rows, as far as limits and pool go (none, where
// not even the least fits): each a few times, the quickest counts. To be done soon they run through as many
// layers as have 64 MiB of weights, which no cache holds, and the larger ones are left out where they would
// take it beyond a second.
StatusOr<std::vector<RowSpeed>> MeasureRowSpeeds(const Model& model, int64_t weight_bytes,
                                                 const EngineLimits& limits, BackendModelRunner& runner,
                                                 const Clock& clock);

}  // namespace tramontane
