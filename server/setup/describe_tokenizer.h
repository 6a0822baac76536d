// A model's tokenizer and chat format in words, for `tramontane inspect` and the log. Main thread.
#pragma once

#include <string>
#include <vector>

#include "models/opened_model.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// Kind and version, the chat format and why, and what ends an answer: one "name  value" line each. Reads the
// tokenizer's file; `chat_format` is the setting of that name. A format that is asked for and cannot be had
// is an error, and so is a tokenizer's file that would be refused; that a folder has none is told in the
// text.
StatusOr<std::string> DescribeTokenizer(const OpenedModel& model, const std::string& chat_format = "");

// The tokenizer's own, and that it has more ids than a model of `vocab_size`.
std::vector<std::string> TokenizerWarnings(const Tokenizer& tokenizer, int32_t vocab_size);

// "2 </s>, 32001 <|im_end|> (generation_config.json, ...)". `tokenizer` may be null.
std::string EndsText(const ModelConfig& config, const Tokenizer* tokenizer);

}  // namespace tramontane
