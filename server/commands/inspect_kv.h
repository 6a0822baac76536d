// inspect --kv: what the KV cache does with prompts of given lengths, iteration by iteration: masks, page
// tables, rings, pages freed. The tables are the store's own; there is no model. Main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "kernels/core/status.h"
#include "server/setup/config.h"

namespace tramontane {

struct KvViewArguments {
  bool wanted = false;  // --kv
  std::string seqlens;  // "4,1,3"
  int64_t window = 0;
  int64_t chunk = 0;  // 0: the longest prompt
  int64_t steps = 0;
  std::string policy = "none";
  int64_t n_ctx = 0;
  int64_t n_keep = 4;
  int64_t n_discard = 0;  // 0: 1 under `shift`
  int64_t shared_prefix = 0;
  std::string svg;           // a file for the picture; empty: none
  bool page_wanted = false;  // --kv-dtype is given
};

// Its flags, each of which needs the one returned, --kv.
CLI::Option* AddKvViewFlags(CLI::App& command, KvViewArguments* arguments);

// To standard output, and to the file of --svg: the iterations, where there are --seqlens, and a page, where
// there is --kv-dtype. `config`: its page size and how it keeps numbers. INVALID_ARGUMENT names the flag, its
// value and the limit.
Status PrintKvView(const KvViewArguments& arguments, const ServeConfig& config);

}  // namespace tramontane
