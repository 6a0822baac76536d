#include "kernels/cpu/isa.h"

#include "kernels/backends/cpu_backend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tramontane {

#if defined(__x86_64__)
namespace {

// The registers of tiles are large, so Linux saves them only for a process that has asked for it: once, for
// all its threads.
bool HasAmxTiles() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0 && (edx & kAmxInt8) != 0 &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

}  // namespace
#endif

const std::vector<const CpuKernels*>& AllVariants() {
#if defined(__x86_64__)
  // Where dot products of bf16 are no faster than fused multiply-adds (linear_impl.h), exact inputs cost
  // nothing.
  static const bool exact_first = __builtin_cpu_is("intel");
  static const std::vector<const CpuKernels*> variants = {
      &kAmxBf16Kernels,
      exact_first ? &kAvx512VnniKernels : &kAvx512Bf16Kernels,
      exact_first ? &kAvx512Bf16Kernels : &kAvx512VnniKernels,
      &kAvx512Kernels,
      &kAvx2Kernels,
      &kPortableKernels};
#else
  static const std::vector<const CpuKernels*> variants = {&kPortableKernels};
#endif
  return variants;
}

bool MachineRuns(const CpuKernels& kernels) {
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (&kernels == &kAvx2Kernels) return avx2;
  if (&kernels == &kAvx512Kernels) return avx512;
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (&kernels == &kAvx512VnniKernels) return vnni;
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  if (&kernels == &kAvx512Bf16Kernels) return bf16;
  if (&kernels == &kAmxBf16Kernels) return bf16 && HasAmxTiles();
#endif
  return &kernels == &kPortableKernels;
}

std::vector<std::string> CpuVariants() {
  std::vector<std::string> names;
  for (const CpuKernels* kernels : AllVariants()) {
    if (MachineRuns(*kernels)) names.emplace_back(kernels->name);
  }
  return names;
}

}  // namespace tramontane
