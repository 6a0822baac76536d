// FieldLimits: what the server behind the gateway allows of the fields whose size a client chooses. Requests
// are checked against them before anything is copied out of a body. A plain value, filled by whoever starts
// the gateway; any thread.
#pragma once

#include <cstdint>

#include "server/call/answer_cost.h"

namespace tramontane {

// As built, a gateway does not know the settings of the servers behind it: these are the least strict.
struct FieldLimits {
  int64_t max_choices = 128;                // n
  int64_t max_stop_strings = 16;            // stop
  int64_t max_stop_bytes = 256;             // of one of them
  int64_t max_stop_token_ids = 64;          // stop_token_ids
  int64_t max_logit_bias = 1024;            // entries of logit_bias
  int64_t max_constraint_bytes = 64 << 10;  // of a schema, a regex, a grammar, or all choices together
  int64_t max_constraint_choices = 1024;    // texts of a choice
  int64_t max_answer_bytes = kDefaultMaxAnswerBytes;  // of one answer (answer_cost.h); 0: no bound
};

}  // namespace tramontane
