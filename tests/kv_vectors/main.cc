// kv_vectors [--backend cpu|emulator|cuda] FILE...: README.md.
#include <iostream>

#include "tests/kv_vectors/run.h"

int main(int argc, char** argv) {
  return tramontane::kv_vectors::KvVectorsMain({argv + 1, argv + argc}, std::cout, std::cerr);
}
