// SIGTERM and SIGINT, for commands that serve until they are told to stop. Main thread.
#pragma once

namespace tramontane {

// From now on the first signal is noted and the second one ends the process at once. False when the system
// refuses.
bool InstallStopSignals();

// True when a stop signal came within the time; below 0 the time never ends.
bool StopRequested(int timeout_ms);

}  // namespace tramontane
