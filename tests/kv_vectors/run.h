// Runs vector files on a machine and says what came of each case. One thread.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/kv_vectors/machine.h"

namespace tramontane::kv_vectors {

struct Outcome {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;

  bool good() const { return failed == 0 && passed > 0; }
};

// A line for each case that fails or is skipped, and last the sums:
//
//   FAIL FILE KIND NAME: first difference
//   SKIP FILE KIND NAME: limit
//   N passed, M failed
//
// A file that cannot be read counts as one failure.
Outcome RunFiles(Machine& machine, const std::vector<std::string>& files, std::ostream& out);

// The program: exit status 0 where something passed and nothing failed, 1 else, 2 for a wrong command line.
int KvVectorsMain(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tramontane::kv_vectors
