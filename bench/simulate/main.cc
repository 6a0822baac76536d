// tramontane_simulate: what `tramontane simulate` runs.
#include <unistd.h>

#include <iostream>

#include "bench/load/stop_signals.h"
#include "bench/simulate/simulate_main.h"

int main(int argc, char** argv) {
  return tramontane::simulate::RunSimulate(argc, argv,
                                           {.out = std::cout,
                                            .err = std::cerr,
                                            .err_is_terminal = isatty(STDERR_FILENO) != 0,
                                            .stop = tramontane::load::StopOnSignals()});
}
