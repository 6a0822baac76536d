// A model's tokenizer in words, for `tramontane inspect`. Main thread; reads the tokenizer's file.
#pragma once

#include <string>

#include "models/opened_model.h"

namespace tramontane {

// Kind and version, the chat format that follows and why, and what ends an answer: one "name  value" line
// each.
std::string DescribeTokenizer(const OpenedModel& model);

}  // namespace tramontane
