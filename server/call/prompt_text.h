// PromptText: the beginning of what a request says, for a log that has prompts. Pure function; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// At most `most_bytes`, cut between characters: a text, ids as "[1,2,3]", or of a chat its messages behind
// the names of their roles.
std::string PromptText(const v1::GenerateRequest& request, size_t most_bytes);
std::string PromptText(const v1::ScoreCandidatesRequest& request, size_t most_bytes);

}  // namespace tramontane
