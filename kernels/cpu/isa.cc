#include "kernels/cpu/isa.h"

#include "kernels/cpu/cpu_backend.h"

namespace tramontane {

const std::vector<const CpuKernels*>& AllVariants() {
#if defined(__x86_64__)
  // Where dot products of bf16 are no faster than fused multiply-adds (linear_impl.h), exact inputs cost
  // nothing.
  static const bool exact_first = __builtin_cpu_is("intel");
  static const std::vector<const CpuKernels*> variants = {exact_first ? &kAvx512Kernels : &kAvx512Bf16Kernels,
                                                          exact_first ? &kAvx512Bf16Kernels : &kAvx512Kernels,
                                                          &kAvx2Kernels, &kPortableKernels};
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
  if (&kernels == &kAvx512Bf16Kernels) return avx512 && __builtin_cpu_supports("avx512bf16");
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
