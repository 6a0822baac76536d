// The tables of gpu_tables. Each measures on a device and frees what it took; names of tables and rows are
// also those of peers.py. A table is told of row by row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/device.h"
#include "bench/gpu/report.h"
#include "kernels/core/format.h"

namespace tramontane::gpu {

// By the kernels that the backend chooses; where these are Hopper's, a second table by mma.sync.
std::vector<Table> DecodeAttentionTables(Device& device, const Progress& progress);
std::vector<Table> PrefillAttentionTables(Device& device, const Progress& progress);
// Pages of bf16 and of fewer bits side by side; where the latter are decoded first, another table by row.
std::vector<Table> QuantisedPrefillAttentionTables(Device& device, const Progress& progress);
Table SmallLinearTable(Device& device, const Progress& progress);
// Through libtramontane_cuda.so at `library`, which alone has cuBLASLt. weight: bf16, or fp8, whose products
// are by rows in fp8 where the device has them. On failure no rows, and the note says why.
Table LargeLinearTable(Device& device, const std::string& library, const Format& weight,
                       const Progress& progress);
// Few rows by the kernel itself, many through the same library, both ways that the backend has of them.
Table BlockLinearTable(Device& device, const std::string& library, const Progress& progress);
Table MoeTable(Device& device, const Progress& progress);
Table PointwiseTable(Device& device, const Progress& progress);
Table SamplingTable(Device& device, const Progress& progress);

// A model of Mistral 7B's exact shape with random weights, its embedding in bf16, through the whole engine
// over libtramontane_cuda.so at `library`. On failure no rows, and the note says why.
struct EndToEnd {
  std::string name;
  std::string library = {};
  int32_t window = 0;              // 0: none
  Format matrices = DType::kBf16;  // those that RandomWeights has
  bool short_list = false;         // a few rows, to compare by
  double seconds = 0;              // no row begins that would end later; 0: all are measured
};
Table EndToEndTable(Device& device, const EndToEnd& asked, const Progress& progress);

}  // namespace tramontane::gpu
