// CpuKernels: the table of everything that is compiled once per instruction set. One constant table per
// variant. Any thread; constant data.
//
// How a variant is made. variant_<name>.cc first includes every shared header, then switches the compiler's
// target (TM_TARGET_BEGIN below), includes the *_impl.h bodies (written over simd.h), switches back, and
// fills one CpuKernels. What stands between the two switches must be in an anonymous namespace: those
// functions carry the instruction set and stay local to their file. Inline functions of shared headers keep
// the base instruction set, because they were declared before the switch; so no object file hands the linker
// a copy of std::min that needs AVX-512, which flags for a whole file would do. Code outside these files is
// compiled for the base instruction set.
//
// What a variant computes exactly as another does is that other's: the AVX-512 variants share all but Linear.
//
// To add an op: write op_impl.h over simd.h, include it in the variant_<name>.cc of each width, add a field
// here.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/moe_kernels.h"
#include "kernels/cpu/sampling_kernels.h"

namespace tramontane {

struct CpuKernels {
  const char* name;
  LinearKernels linear;
  const AttentionKernels& attention;
  const MoeKernels& moe;
  const SamplingKernels& sampling;
};

// The tables; whether this build has one and this machine can run it is isa.h's question.
extern const CpuKernels kPortableKernels;
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512Kernels;
extern const CpuKernels kAvx512VnniKernels;
extern const CpuKernels kAvx512Bf16Kernels;
extern const CpuKernels kAmxBf16Kernels;

// Of variant_avx512_shared.cc.
extern const AttentionKernels kAvx512Attention;
extern const MoeKernels kAvx512Moe;
extern const SamplingKernels kAvx512Sampling;

constexpr CpuKernels Avx512Kernels(const char* name, const LinearKernels& linear) {
  return {name, linear, kAvx512Attention, kAvx512Moe, kAvx512Sampling};
}

}  // namespace tramontane

// TM_TARGET_BEGIN("avx2,fma,f16c") ... TM_TARGET_END: functions in between are compiled for that instruction
// set.
#define TM_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define TM_TARGET_BEGIN(features) \
  TM_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TM_TARGET_END TM_PRAGMA(clang attribute pop)
#else
#define TM_TARGET_BEGIN(features) TM_PRAGMA(GCC push_options) TM_PRAGMA(GCC target(features))
#define TM_TARGET_END TM_PRAGMA(GCC pop_options)
#endif
