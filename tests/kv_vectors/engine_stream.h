// A text without an end as the engine runs it: an Engine with one request, over a runner that notes what each
// row is. One thread beside those that an engine has.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/model_runner.h"
#include "kernels/context_policy.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"

namespace tramontane::kv_vectors {

struct StreamCase {
  ContextPolicy policy;
  int64_t prompt = 0;
  int64_t tokens = 0;  // that are computed; the text's token i has the id i
};

// The engine that it gets: as many pages as the store says that such a text needs, so that those which left
// are written again.
struct StreamSetup {
  StreamCase stream;
  KvLayout layout;
  EngineLimits limits;
  int32_t vocab_size = 0;
};
enum class StreamPrompts {
  kWhole,  // a prompt, or what a discard left, is one step
  kCut,    // it comes in chunks of a few tokens
};
StreamSetup MakeStreamSetup(const StreamCase& stream, const KvFormat& format, int64_t window,
                            StreamPrompts prompts);

// Tokens [token, token + count) of the text, computed with nothing drawn between them: a prompt, what is left
// of it after a discard, or one token.
struct StreamEvent {
  int64_t token = 0;
  int64_t count = 0;
  // Of its last token:
  int64_t query_position = 0;  // where it stands among the tokens that are left
  int64_t held = 0;            // tokens in the pages of its table that the policy shows it
  int64_t left = 0;            // the first of these that is not one of the n_keep; n_keep where none is

  int64_t Discarded() const { return token + count - 1 - query_position; }
};

// `runner` computes the rows and draws token i + 1 behind token i; null: nothing is computed, and these are
// given. INVALID_ARGUMENT: the request is refused. INTERNAL: a page holds, or a table lists, what it should
// not, or the request did not end as it should.
StatusOr<std::vector<StreamEvent>> RunStream(const StreamSetup& setup, ModelRunner* runner);

}  // namespace tramontane::kv_vectors
