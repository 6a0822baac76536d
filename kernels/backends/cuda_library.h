// The one C entry point of libtramontane_cuda.so, which a server opens at run time where it is there. No
// exception and no standard-library type crosses it: integers, characters and a Backend, whose methods keep
// the same rule.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tramontane {

// What the backend is to do that it does not by itself.
struct CudaBackendOptions {
  // 1: where the device multiplies fp8 by fp8, rows of x that meet weights in fp8 of one scale a row are
  // rounded to fp8, more than 16 at once, each with a scale of its own (kernels/README.md).
  int32_t fp8_products = 0;
  // Rows of x from which on weights in blocks are decoded a slice at a time and multiplied as bf16 ones; 0:
  // as many as kernels/cuda/decode_weight.h says. For tests and tables, which go either way.
  int32_t least_decoded_rows = 0;
  int64_t decoded_slice_bytes = 0;  // of bf16 that a slice has at most; 0: as there
};

inline constexpr char kCudaLibraryEntry[] = "TramontaneMakeCudaBackend";

enum CudaLibraryResult : int32_t {
  kCudaLibraryOk = 0,
  kCudaLibraryOtherAbi = 1,  // it was built with another kBackendAbiVersion
  kCudaLibraryNoDevice = 2,  // the driver or the GPU is missing or too old
};

// abi_version: the caller's kBackendAbiVersion; nothing behind it is read where it is another one. On success
// `backend` is the caller's to Destroy. Otherwise `reason` [reason_bytes] gets a sentence of what is missing,
// cut to its size and ended by 0.
using MakeCudaBackendEntry = int32_t (*)(uint32_t abi_version, Backend** backend, char* reason,
                                         int64_t reason_bytes, const CudaBackendOptions* options);

}  // namespace tramontane
