// ServedModel: what the server serves, put together by whoever starts it and borrowed by the service.
// A plain value; does not change once the server serves it. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/threads/clock.h"
#include "models/chat/chat_format.h"
#include "models/grammar/constraint_compiler.h"
#include "models/model_config.h"
#include "models/tokenizer/tokenizer.h"
#include "server/call/answer_cost.h"

namespace tramontane {

struct ServedModel {
  std::vector<std::string> names;           // what requests may call it; the first is its name; at least one
  ModelConfig config;                       // eos ids and defaults included
  std::string device;                       // for people: "cpu (avx2, 2 threads)"
  Engine* engine = nullptr;                 // running, warmed up; outlives the server
  const Tokenizer* tokenizer = nullptr;     // outlives the server
  const ChatFormat* chat_format = nullptr;  // outlives the server
  const Clock* clock = nullptr;             // the engine's
  std::string weight_sample = {};           // SampleOfWeights: what keys and values are known by
  ConstraintCompiler* constraints = nullptr;          // null: no structured output; outlives the server
  int64_t max_answer_bytes = kDefaultMaxAnswerBytes;  // of one answer (answer_cost.h); 0: no bound
};

}  // namespace tramontane
