// `tramontane simulate` from its command line to its exit status: the load tool against a SimulatedServer.
// Main thread.
#pragma once

#include <atomic>
#include <iosfwd>

namespace tramontane::simulate {

// What it meets of the world.
struct SimulateWorld {
  std::ostream& out;  // the table
  std::ostream& err;  // faults, and the live line
  bool err_is_terminal = false;
  const std::atomic<bool>* stop = nullptr;  // set by a signal
};

// Exit statuses as load::ExitStatus. The same arguments give the same bytes, in every output.
int RunSimulate(int argc, const char* const* argv, const SimulateWorld& world);

}  // namespace tramontane::simulate
