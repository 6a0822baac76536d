// A fuzz target that accepts anything: what is tested with it is the replay, not a parser.
#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* /*data*/, size_t /*size*/) { return 0; }
