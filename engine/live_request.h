// LiveRequest: one accepted request for as long as it lives, shared by the engine thread, the output thread
// and, where it is constrained, the mask workers. Each field says who may touch it. Made by Submit; freed by
// the last thread that lets go of it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine/candidate_tree.h"
#include "engine/choice_text.h"
#include "engine/request.h"
#include "engine/sampling_history.h"
#include "engine/token_stream.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// Where the texts of a constrained request begin.
struct ConstraintStart {
  static constexpr int64_t kStepsAhead = 10;  // steps whose time a request may spend before it has earned it

  TextStart text = TextStart::kWithinMessage;
  std::vector<uint32_t> mask;  // [MaskWords(vocab)] of the first token
  int64_t left_ns = 0;         // of the request's share, before the first token
};

struct LiveRequest {
  // `tokenizer` may be null: then there is no text.
  LiveRequest(Request asked, std::shared_ptr<TokenStream> to, const Tokenizer* tokenizer,
              const std::vector<int32_t>& eos_ids)
      : request(std::move(asked)),
        stream(std::move(to)),
        history_after_prompt(request, eos_ids),
        stopped_by_text(static_cast<size_t>(request.choices)),
        last_token_ns(static_cast<size_t>(request.choices)) {
    texts.reserve(static_cast<size_t>(request.choices));
    for (int32_t c = 0; c < request.choices; ++c) texts.emplace_back(request, tokenizer);
  }

  const Request request;                       // any thread
  const std::shared_ptr<TokenStream> stream;   // engine thread: its cancel flag; output thread: the rest
  const SamplingHistory history_after_prompt;  // engine thread: what each choice's own history starts from
  std::optional<CandidateTree> tree;           // any thread, once Submit has set it: of its candidates
  ConstraintStart constraint_start;            // any thread, once Submit has set it
  std::atomic<int64_t> constraint_left_ns{0};  // mask workers: of the share of all choices

  // What each choice begins with, and shares with the others.
  const std::vector<int32_t>& prompt() const { return tree ? tree->tokens : request.prompt; }

  // [choices] "stop here": a stop string is complete. Set by the output thread, read by the engine thread.
  std::vector<std::atomic<bool>> stopped_by_text;

  std::vector<ChoiceText> texts;  // [choices] output thread only
  std::vector<int64_t>
      last_token_ns;             // [choices] output thread only: when its last token was computed; 0: none
  int32_t choices_finished = 0;  // output thread only
  Status outcome;                // output thread only: the first that was not OK
};

}  // namespace tramontane
