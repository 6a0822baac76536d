// ChoiceText: the text of one choice from its token ids: detokenised, cut at stop strings, and where in it
// the tokens stand that the request asked about. Output thread only (made by Submit). The request and the
// tokenizer outlive it. Always: tokens() counts the tokens delivered; a choice that is finished() takes no
// more of them; without stop strings the whole characters of the prompt and the choice's text are what the
// ids of both say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/output/stop_matcher.h"
#include "engine/output/token_stream.h"
#include "engine/request/request.h"
#include "models/chat/thought_in_text.h"
#include "models/tokenizer/detokenizer.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class ChoiceText {
 public:
  enum class Spelling { kShown, kHidden };  // hidden: the token ends the choice and adds no text

  // `tokenizer` may be null: then no token has text.
  ChoiceText(const Request& request, const Tokenizer* tokenizer);

  // What the reader gets to see.
  struct Shown {
    std::string text;
    std::vector<TextMark> marks;  // in `text`
  };

  // Appends to `shown` what this token lets the reader see: whole code points, and nothing that may become a
  // stop string. Returns the stop string it completes, or null.
  const std::string* Append(int32_t token, Spelling spelling, Shown* shown);

  // How `token` would become text if it came next.
  PieceUse UseOf(int32_t token, Spelling spelling) const;

  // The text ends here: appends what was held back. Returns the stop string that is found in what could not
  // be told from a thought before, or null.
  const std::string* Flush(Shown* shown);

  int64_t tokens() const { return tokens_; }
  bool finished() const { return finished_; }
  void set_finished() { finished_ = true; }

 private:
  // A token of whose place the reader is told, as it stands in the choice's text.
  struct Mark {
    int32_t token;
    size_t at;
  };

  bool IsMarked(int32_t token) const;
  std::string Spell(int32_t token);
  // Stop strings count in the answer alone. Returns as Append.
  const std::string* Match(int32_t token, std::string_view piece, std::string* shown);
  const std::string* MatchBehindThought(std::string_view piece, std::string* shown);
  const std::string* MatchAnswer(std::string_view piece, std::string* shown);
  // `shown` has grown to what the reader sees now, from `old_bytes`.
  void CountShown(size_t old_bytes, Shown* shown);

  const Tokenizer* tokenizer_;
  std::optional<Detokenizer> detokenizer_;
  StopMatcher matcher_;
  int64_t min_tokens_;
  bool skip_special_tokens_;
  const std::vector<int32_t>& marked_ids_;
  const ThoughtMarks& thoughts_;
  bool thinks_;  // in a thought between control tokens
  // Where marks are text and stop strings wait for the answer: until it begins.
  std::optional<ThoughtInText> thought_;
  std::string undecided_;  // of a thought or of the answer: not shown yet
  int64_t tokens_ = 0;
  // In bytes of the choice's text.
  size_t spelled_bytes_ = 0;  // of the tokens so far, held back or not
  size_t shown_bytes_ = 0;
  std::vector<Mark> marks_;  // not shown yet
  bool finished_ = false;
};

}  // namespace tramontane
