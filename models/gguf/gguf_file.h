// GGUF files: what llama.cpp's ecosystem keeps a model in, all of it in one file.
//
//   "GGUF", uint32 version, uint64 count of tensors, uint64 count of keys
//   keys:     string name, uint32 kind, value      (a string is a uint64 length and its bytes;
//                                                   an array is uint32 kind, uint64 count, elements)
//   tensors:  string name, uint32 dimensions, uint64 each (the one that lies side by side first),
//             uint32 type, uint64 offset           (of a block of numbers each; from the data's begin)
//   filler up to a multiple of general.alignment (32 where it is absent): the data begins
//   data:     each tensor at its offset, a multiple of the alignment
//
// Versions 2 and 3, little-endian. Such a file comes from anywhere, so every number in it is checked before
// it is used, and nothing is allocated by what a count or a length merely claims: first the file must have
// the bytes for it. Source: the GGUF specification of the ggml project.
//
// Loading thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/files/tensor_file.h"
#include "models/gguf/gguf_metadata.h"

namespace tramontane {

// Beyond these a file is refused. Ten times what the largest models have.
inline constexpr int64_t kMaxGgufHeaderBytes = 128 << 20;  // all that lies before the data
inline constexpr int64_t kMaxGgufKeys = 1 << 16;
inline constexpr int64_t kMaxGgufTensors = 1 << 17;
inline constexpr int64_t kMaxGgufElements = 1 << 22;  // of one array
inline constexpr int64_t kMaxGgufNameBytes = 65535;   // of a key or a tensor
inline constexpr int kMaxGgufNesting = 4;             // arrays in arrays
inline constexpr int64_t kMaxGgufDimensions = 4;
inline constexpr int64_t kMaxGgufAlignment = 1 << 20;

struct GgufContents {
  uint32_t version = 0;
  GgufMetadata metadata;  // of views into the bytes
  TensorMap tensors;      // shapes rows first
};

// The header of a file whose bytes are `bytes`; only the header is read. Refused, naming `file`, the key or
// tensor, the value and the limit: what is no GGUF, or of another version or byte order; counts, lengths,
// arrays, nesting and offsets that lead past the end of the file; keys and tensors that stand twice; types
// that are unknown or not read; dimensions of no number, that overflow or are not whole blocks; tensors that
// overlap or are not aligned.
StatusOr<GgufContents> ParseGguf(std::string_view bytes, const std::string& file);

// One file, mapped, and its header.
struct GgufFile {
  GgufMetadata metadata;  // of views into the file
  TensorFile file;
};
StatusOr<GgufFile> OpenGguf(const std::string& path);

// Whether `name` ends as GGUF files do.
bool IsGgufName(std::string_view name);

// All files of a model whose first, or only, file is `path`. One that says split.count has its parts beside
// it, named -00001-of-0000N.gguf; the first has the keys. Refused besides: a part that is missing, that is no
// first one, or that says another number of itself than its name; a tensor that stands in two; a number of
// tensors that is not the one that the first announces.
StatusOr<std::vector<GgufFile>> OpenGgufParts(const std::string& path);

// The names of all parts of which `name` is the first by its number; `name` alone where it has no number.
// Empty where it is another part than the first.
std::vector<std::string> GgufPartNames(const std::string& name);
// The first part of the model that `name` is a part of, or `name` itself.
std::string FirstGgufPart(const std::string& name);

}  // namespace tramontane
