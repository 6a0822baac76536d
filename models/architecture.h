// The explicit table: architecture -> its names in a config, and the blocks of its layers. Adding one is a
// row in architecture.cc, and a file where it has a block that no other has. Any thread; constants.
#pragma once

#include <span>
#include <string_view>

namespace tramontane {

struct BlockKind;

struct Architecture {
  const char* name;                          // in config.json's `architectures`
  const char* model_type;                    // in config.json
  bool windowed;                             // whether sliding_window means anything
  std::span<const BlockKind* const> blocks;  // of every layer, in order
};

std::span<const Architecture> Architectures();
// REQUIRES: a name of the table.
const Architecture& FindArchitecture(std::string_view name);

}  // namespace tramontane
