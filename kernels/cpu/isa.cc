#include "kernels/cpu/isa.h"

#include <string_view>

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

const std::vector<const CpuKernels*>& BuiltVariants() {
  // TM_BUILT_*: variants.cmake.
  static const std::vector<const CpuKernels*> variants = [] {
    std::vector<const CpuKernels*> built;
#if defined(__x86_64__)
#ifdef TM_BUILT_AMX_BF16
    built.push_back(&kAmxBf16Kernels);
#endif
#ifdef TM_BUILT_AVX512_VNNI
    built.push_back(&kAvx512VnniKernels);
#endif
#ifdef TM_BUILT_AVX512_BF16
    // Where dot products of bf16 are no faster than fused multiply-adds (linear_impl.h), exact inputs cost
    // nothing.
    built.insert(__builtin_cpu_is("intel") ? built.end() : built.end() - 1, &kAvx512Bf16Kernels);
#endif
#ifdef TM_BUILT_AVX512
    built.push_back(&kAvx512Kernels);
#endif
#ifdef TM_BUILT_AVX2
    built.push_back(&kAvx2Kernels);
#endif
#endif
#ifdef TM_BUILT_PORTABLE
    built.push_back(&kPortableKernels);
#endif
    return built;
  }();
  return variants;
}

bool MachineRuns(const CpuKernels& kernels) {
  const std::string_view name = kernels.name;
  if (name == "portable") return true;
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (name == "avx2") return avx2;
  if (name == "avx512") return avx512;
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (name == "avx512_vnni") return vnni;
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  if (name == "avx512_bf16") return bf16;
  if (name == "amx_bf16") return bf16 && HasAmxTiles();
#endif
  return false;
}

std::vector<std::string> CpuVariants() {
  std::vector<std::string> names;
  for (const CpuKernels* kernels : BuiltVariants()) {
    if (MachineRuns(*kernels)) names.emplace_back(kernels->name);
  }
  return names;
}

}  // namespace tramontane
