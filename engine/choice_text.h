// ChoiceText: the text of one choice from its token ids: detokenised, cut at stop strings.
// Output thread only (made by Submit). The request and the tokenizer outlive it.
// Always: tokens() counts the tokens delivered; a choice that is finished() takes no more of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "models/tokenizer/detokenizer.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class ChoiceText {
 public:
  enum class Spelling { kShown, kHidden };  // hidden: the token ends the choice and adds no text

  // `tokenizer` may be null: then no token has text.
  ChoiceText(const Request& request, const Tokenizer* tokenizer);

  // Appends to `text` what this token lets the reader see: whole code points, and nothing that may become a
  // stop string. Returns the stop string it completes, or null.
  const std::string* Append(int32_t token, Spelling spelling, std::string* text);

  // The text ends here: appends what was held back.
  void Flush(std::string* text);

  int64_t tokens() const { return tokens_; }
  bool finished() const { return finished_; }
  void set_finished() { finished_ = true; }

 private:
  std::string Spell(int32_t token);

  const Tokenizer* tokenizer_;
  std::optional<Detokenizer> detokenizer_;
  StopMatcher matcher_;
  int64_t min_tokens_;
  bool skip_special_tokens_;
  int64_t tokens_ = 0;
  bool finished_ = false;
};

}  // namespace tramontane
