// Fill in the middle: a prompt whose output stands between two texts, as Codestral was trained on.
//
// Any thread. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// The vocabulary has the control tokens that such a prompt needs: [SUFFIX] and [PREFIX].
bool CanFillInMiddle(const Tokenizer& tokenizer);

// <s>[SUFFIX] suffix [PREFIX] prefix, id for id as mistral-common's encode_fim; no <s> without `add_bos`. The
// suffix has no dummy space, for it stands behind something. An error's field is "suffix" or "text".
StatusOr<std::vector<int32_t>> FillInMiddleIds(const Tokenizer& tokenizer, std::string_view prefix,
                                               std::string_view suffix, bool add_bos);

}  // namespace tramontane
