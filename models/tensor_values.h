// The numbers of a tensor in f32, whatever the type they are stored in: for whoever looks at a file, not for
// the model, whose weights stay as they are stored. Loading thread.
#pragma once

#include <functional>
#include <span>

#include "models/files/tensor_file.h"

namespace tramontane {

// `count` numbers of that format at `bytes`, the first of a block. REQUIRES: a format of numbers in blocks,
// or a plain one.
void DecodeValues(const Format& format, const std::byte* bytes, int64_t count, float* out);

// Hands the tensor's numbers to `take`, in the file's order, a few ten thousand at a time; what has been read
// is given back to the kernel. REQUIRES: a tensor of that file which has a format.
void ReadValues(const TensorFile& file, const TensorInfo& tensor,
                const std::function<void(std::span<const float>)>& take);

}  // namespace tramontane
