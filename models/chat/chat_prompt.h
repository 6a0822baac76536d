// ChatPrompt: the ids of a prompt as it is put together, segment by segment.
//
// One thread. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/chat/chat.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// The ids of a text's beginning and end: what the vocabulary's files say, else <s> and </s>; -1 for none.
int32_t BeginningOf(const Tokenizer& tokenizer);
int32_t EndOf(const Tokenizer& tokenizer);

class ChatPrompt {
 public:
  explicit ChatPrompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Status Begin() { return Id(BeginningOf(tokenizer_), "beginning"); }
  Status EndAnswer() { return Id(EndOf(tokenizer_), "end"); }
  Status Control(std::string_view piece);
  // A segment of its own. `label` is what an error names.
  Status Text(const std::string& label, std::string_view text);
  // A segment between two control tokens.
  Status Block(std::string_view begin, const std::string& label, std::string_view text, std::string_view end);
  // Each part a segment, thinking between [THINK] and, if it is closed, [/THINK].
  Status Parts(const std::string& label, std::span<const ContentPart> parts);

  RenderedChat Finish();

 private:
  Status Id(int32_t id, const char* what);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
};

}  // namespace tramontane
