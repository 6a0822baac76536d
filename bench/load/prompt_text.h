// Text of as many tokens as were planned, for targets that take no ids: made of the ids' own text, and
// corrected until the tokenizer counts right. One thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/load/clock.h"
#include "bench/load/connect.h"
#include "bench/load/target_options.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// A tokenizer as far as prompts need one.
class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;
  virtual StatusOr<std::string> Decode(const std::vector<int32_t>& ids) = 0;
  virtual StatusOr<int64_t> Count(const std::string& text) = 0;
  // From now on for so long; then questions to a server fail. One that asks no server needs no time.
  virtual void AllowFor(int64_t /*ns*/) {}
};

// Of a model's folder or tokenizer file.
StatusOr<std::unique_ptr<TextTokenizer>> TokenizerOfFile(const std::string& path);

using AskTarget = std::function<StatusOr<PlainAnswer>(const TargetOptions&, const PlainQuestion&)>;
// The target's own, by its /tokenize and /detokenize; an error where it has none. UNAVAILABLE beyond the time
// allowed, or where an answer is no count or longer than kMaxBytesAnId for each id; CANCELLED once `stop` is
// set. The clock, and stop where it is not null, outlive it.
inline constexpr size_t kMaxBytesAnId = 256;
StatusOr<std::unique_ptr<TextTokenizer>> TokenizerOfTarget(const TargetOptions& target, AskTarget ask,
                                                           Clock& clock, const std::atomic<bool>* stop);
// Without any: a word of letters for each id, of about one token. The count is a guess: what the server's
// usage says decides.
std::string WordsOf(const std::vector<int32_t>& ids);

// The text of ids, of exactly as many tokens where that can be had within a few tries; else the nearest.
StatusOr<std::string> TextOf(const std::vector<int32_t>& ids, TextTokenizer& tokenizer);

}  // namespace tramontane::load
