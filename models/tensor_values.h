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

// Whether each of the tensor's numbers is one of f32: those of weights, and of the types of a byte or two
// that safetensors has beside them (F8_E4M3, F8_E5M2, F8_E8M0, I8, U8, I16, U16, BOOL), as they are stored,
// without scales that lie elsewhere. I32, I64, F64 and the like may not be.
bool HasValues(const TensorInfo& tensor);

// Hands the tensor's numbers to `take`, in the file's order, a few ten thousand at a time; what has been read
// is given back to the kernel. REQUIRES: a tensor of that file, and HasValues.
void ReadValues(const TensorFile& file, const TensorInfo& tensor,
                const std::function<void(std::span<const float>)>& take);

}  // namespace tramontane
