// RequestOutput: what the output thread has of one accepted request: where it goes, the text of each choice,
// how far each has come. A part of the request's life, which outlives its last output.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/output/choice_text.h"
#include "engine/output/token_stream.h"
#include "engine/request/request.h"
#include "kernels/core/status.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct RequestOutput {
  // `asked` outlives it. `tokenizer` may be null: then there is no text.
  RequestOutput(const Request& asked, std::shared_ptr<TokenStream> to, const Tokenizer* tokenizer)
      : request(asked),
        stream(std::move(to)),
        stopped_by_text(static_cast<size_t>(asked.choices)),
        last_token_ns(static_cast<size_t>(asked.choices)) {
    texts.reserve(static_cast<size_t>(asked.choices));
    for (int32_t c = 0; c < asked.choices; ++c) texts.emplace_back(asked, tokenizer);
  }

  // ---- any thread -------------------------------------------------------------------------------
  const Request& request;
  const std::shared_ptr<TokenStream> stream;  // engine thread: its cancel flag; output thread: the rest
  // [n] "stop here": a stop string is complete. Set by the output thread, read by the engine thread.
  std::vector<std::atomic<bool>> stopped_by_text;

  // ---- output thread ----------------------------------------------------------------------------
  std::vector<ChoiceText> texts;       // [n]
  std::vector<int64_t> last_token_ns;  // [n] when its last token was computed; 0: none
  int32_t choices_finished = 0;
  Status outcome;  // the first that was not OK

  int64_t most_tokens() const {  // of a choice
    int64_t most = 0;
    for (const ChoiceText& text : texts) most = std::max(most, text.tokens());
    return most;
  }
};

}  // namespace tramontane
