// How a person ends a load tool's run. Main thread.
#pragma once

#include <atomic>

namespace tramontane::load {

// From now on the first SIGINT or SIGTERM sets what is returned, so that the run ends early, with a report;
// the second ends the program.
const std::atomic<bool>* StopOnSignals();

}  // namespace tramontane::load
