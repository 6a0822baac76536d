// inspect PATH --tensors: every tensor of a model's files, one JSON line each, whatever the architecture:
//   name, type (as the file calls it), shape (rows first), f32_sha256 (of the numbers in f32, little-endian,
//   in the file's order) and head (the first eight of them)
// Both of the last are null for a type of safetensors that has no value in f32 here ("I64"); a number that is
// not finite is null. Memory does not grow with the file. Main thread.
#pragma once

#include <string>

#include "kernels/core/status.h"
#include "models/model_folder.h"

namespace tramontane {

// To standard output, in the order in which they lie in the files.
Status PrintTensors(const std::string& path, const FileChoice& choice);

}  // namespace tramontane
