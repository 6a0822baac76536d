// Keys and values of a saved session as tensors in a layout that other engines read, as they are stored:
// nothing is rounded again. Any thread; pure functions of host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// A layout's name on the command line, in the order in which help lists them.
inline constexpr std::string_view kKvExportLayouts[] = {"hnd",      "nhd",      "openppl0",
                                                        "openppl1", "openppl2", "openppl3"};

struct ExportedTensor {
  std::string name;
  std::string dtype;  // as safetensors call it; "U8" where a byte holds two numbers of 4 bits
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// T tokens: positions [0, sinks), and those from first_position on. A layer that holds some of them no more
// has zeros there.
struct ExportedKv {
  int64_t sinks = 0;
  int64_t first_position = 0;
  std::vector<ExportedTensor> tensors;
};

// hnd, nhd: of each layer "layers.I.kv", (1, 2, H, T, X) or (1, 2, T, H, X), one page of FlashInfer's.
// openppl0 to 3: "kv_cache" of all layers, (T, L, 2, H, X), (L, T, 2, H, X), (L, 2, T, H, X) or
// (L, 2, H, T, X). X is head_dim; where numbers are quantised in groups their scales stand in "kv_scale" of
// the same shape with head_dim / group. INVALID_ARGUMENT: no such layout, or one without the session's type
// of numbers. FAILED_PRECONDITION: nearly all of the tensors would be zeros.
StatusOr<ExportedKv> DescribeExport(const v1::SavedKv& saved, const std::string& layout);

// Hands all bytes of those tensors to `write`, one after another. `read_layer` fills the rows of layers 0, 1,
// .., each when those in front of it were written: what is held is one layer, and OpenPPL's scales of all.
// (openppl0 has all layers of a token side by side, and is held whole.) Errors are DescribeExport's, and
// those of the callbacks.
Status ExportKv(const v1::SavedKv& saved, const std::string& layout,
                const std::function<Status(int32_t layer, std::vector<std::byte>* rows)>& read_layer,
                const std::function<Status(std::span<const std::byte> bytes)>& write);

}  // namespace tramontane
