// The explicit table: architecture -> its names in a config, and the blocks of its layers. Adding one is a
// row in architecture.cc, and a file where it has a block that no other has. Any thread once models are
// opened; constants by then.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tramontane {

struct BlockKind;

struct Architecture {
  const char* name;                          // in config.json's `architectures`
  const char* model_type;                    // in config.json
  bool windowed;                             // whether sliding_window means anything
  int32_t default_window;                    // where the key is absent; 0: none
  int64_t default_theta;                     // where rope_theta is absent
  bool layer_types;                          // whether layer_types means anything
  bool query_scaling;                        // whether llama_4_scaling_beta does
  bool experts;                              // whether feed-forward layers are mixtures of experts
  std::span<const BlockKind* const> blocks;  // of every layer, in order
};

std::span<const Architecture> Architectures();
// A row that is no part of the program, as a test makes one up. Before any model is opened. REQUIRES: a name
// and a model_type that no row has.
void AddArchitecture(const Architecture& row);
// REQUIRES: a name of the table.
const Architecture& FindArchitecture(std::string_view name);

}  // namespace tramontane
