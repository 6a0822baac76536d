// A tokenizer's file as the tokenizer.* keys of a GGUF file: what gguf_tokenizer.h reads, the other way
// round.
//
//   tokenizer.model   model "llama": pieces, scores and types as they are
//   tekken.json       model "gpt2", pre "tekken": the merges follow from the ranks
//   tokenizer.json    model "gpt2": byte-level ones, whose cuts are those of a pre-tokenizer with a name
//   a GGUF file       its keys as they are, a chat template too
//
// Any thread; reads files.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_output.h"

namespace tramontane {

// Of the file that LoadTokenizer(path) reads. The tokens are `vocab_size`: what the file lacks of these is
// filled up with unused ones. NOT_FOUND: there is no tokenizer. What the keys cannot say, so that a text
// would have other ids, is UNIMPLEMENTED and named. A version of Mistral's is not said: a chat is as the
// template says.
StatusOr<GgufKeys> MakeGgufTokenizerKeys(const std::string& path, int64_t vocab_size);

// The pairs by which the tokens of a tekken.json merge, in the order of the ranks: of each token the two that
// are left of it when its bytes are merged by all lower ranks. A token of which more are left has no pair; it
// comes from text that is it alone. tokens: by rank, the first 256 single bytes.
std::vector<std::pair<std::string, std::string>> MergesOfRanks(const std::vector<std::string>& tokens);

}  // namespace tramontane
