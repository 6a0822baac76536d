// SIGTERM, SIGINT and SIGHUP, for commands that serve until they are told to stop. Main thread.
#pragma once

#include <functional>

#include "kernels/core/status.h"

namespace tramontane {

// From now on the first signal is noted and a second one ends the process at once, with status 1. SIGHUP is
// left alone where whoever started the process had it ignored (nohup), and a second SIGHUP says nothing new:
// a terminal that goes away may send it twice.
Status InstallStopSignals();

// True when a stop signal came within the time; below 0 the time never ends.
bool StopRequested(int timeout_ms);

// After a stop signal: tells of it, and returns when `delay` seconds are over or `is_over`, which is asked
// several times a second, says so.
void WaitForBalancers(double delay, const std::function<void()>& tell, const std::function<bool()>& is_over);

}  // namespace tramontane
