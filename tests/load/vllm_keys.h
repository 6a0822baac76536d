// What vLLM's load tool writes to its result file and tools that read such files look for.
#pragma once

#include <string>
#include <vector>

namespace tramontane::load {

// What does not depend on the percentiles that were asked for.
inline const std::vector<std::string>& VllmKeys() {
  static const std::vector<std::string> keys = {
      "date",
      "endpoint_type",
      "backend",
      "label",
      "model_id",
      "tokenizer_id",
      "num_prompts",
      "request_rate",
      "burstiness",
      "max_concurrency",
      "duration",
      "completed",
      "failed",
      "total_input_tokens",
      "total_output_tokens",
      "request_throughput",
      "request_goodput",
      "output_throughput",
      "total_token_throughput",
      "max_output_tokens_per_s",
      "max_concurrent_requests",
      "input_lens",
      "output_lens",
      "ttfts",
      "itls",
      "start_times",
      "generated_texts",
      "errors",
  };
  return keys;
}

}  // namespace tramontane::load
