// Which chat format a model has: one explicit rule, applied once, when the model is opened.
//
//   1. `asked`: the name of a format, or a file with a template.
//   2. Mistral's own control pieces: Mistral's format of the version that the tokenizer's file says, whatever
//      template lies beside it, but one of 3; where the kind of file has no versions, of the version that the
//      template names (VersionOfTemplate).
//   3. ChatML and Llama 3: the vocabulary has their control pieces, and the template names these and no
//      others; where templates can be run, it also makes the same of plain chats, and is run for the others.
//   4. v1: the vocabulary has <s> and </s> but no [INST], and the template spells that as text and names
//      nothing of a later format; where templates can be run, it makes the same prompt of a message.
//   5. Any other template is run (template_chat.h), and so is a file that is asked for. Where the build
//      cannot run it, or its text cannot be read, there is no format.
//   6. No template: there is no format.
//
// Any thread; reads files.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/chat/chat_format.h"
#include "models/jinja/jinja_template.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct ChatFormatChoice {
  std::string asked;                // "": nobody asks; else a name of ChatFormatNames(), or a file
  std::vector<std::string> places;  // where a template may lie, in this order: folders, GGUF files
  bool runs_templates = HasJinja();
};

// "v1, v2, v3, v7, v11, v13, v15, chatml, llama3"
std::string ChatFormatNames();

// A model without a format is none of the errors, which are: what is asked for cannot be had, or a file
// cannot be read. `tokenizer` outlives the format.
StatusOr<ChatFormatPtr> ChooseChatFormat(const Tokenizer& tokenizer, const ChatFormatChoice& choice);

}  // namespace tramontane
