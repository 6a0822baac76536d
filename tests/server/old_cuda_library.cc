// Stands in for a CUDA library of another release.
#include <cstdint>
#include <cstring>

extern "C" int32_t TramontaneMakeCudaBackend(uint32_t, void**, char* reason, int64_t) {
  std::strcpy(reason, "the library says why");
  return 1;  // kCudaLibraryOtherAbi
}
