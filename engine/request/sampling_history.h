// SamplingHistory: what earlier tokens and the request's own wishes change in the logits of one choice's next
// token: penalties, logit bias, and the ban of ending tokens before min_tokens.
//
// Made by Submit with the prompt in it (the one long piece of work, off the engine thread), then copied per
// choice and kept by the engine thread: one token costs one entry, never another look at the prompt. Always:
// adjusts() names each token once, and an entry stays where it is.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "engine/request/request.h"
#include "kernels/sampling.h"

namespace tramontane {

class SamplingHistory {
 public:
  // After the prompt, before the first output token.
  SamplingHistory(const Request& request, const std::vector<int32_t>& eos_ids);

  // One more output token.
  void Append(int32_t token);
  // Endings are banned, until min_tokens have come.
  bool bans_endings() const { return !bans_.empty(); }
  // They are banned no more, whatever has come.
  void AllowEndings();

  // Of the request that it was made for, and of none before or after in this process; its copies have it too.
  uint64_t id() const { return id_; }
  // For the next token. Valid until Append.
  std::span<const LogitAdjust> adjusts() const { return adjusts_; }
  // Of adjusts(): counts its changes since the prompt.
  int64_t version() const { return version_; }
  // The entry that the last change made or changed; -1: several.
  int32_t last_change() const { return last_change_; }
  // Of heap memory that it takes for its entries.
  int64_t bytes() const {
    return std::ssize(adjusts_) * static_cast<int64_t>(sizeof(LogitAdjust) + sizeof(int32_t));
  }

 private:
  int32_t IndexOf(int32_t token);  // of its entry, made where there is none
  LogitAdjust& Entry(int32_t token) { return adjusts_[static_cast<size_t>(IndexOf(token))]; }
  void AddPrompt(const Request& request);
  void BanEndings(const Request& request, const std::vector<int32_t>& eos_ids);
  void LiftBans();

  struct Ban {
    int32_t token = 0;
    float bias = 0.0f;  // of the request, to be put back
  };

  static uint64_t NextId();

  uint64_t id_ = NextId();
  bool counts_output_;           // some penalty looks at the output
  int64_t tokens_until_lifted_;  // output tokens still to come before the bans end
  std::vector<Ban> bans_;
  std::vector<LogitAdjust> adjusts_;  // at most one per token of the vocabulary
  std::vector<int32_t> by_token_;     // indices in adjusts_, in ascending order of their tokens
  int64_t version_ = 0;
  int32_t last_change_ = -1;
};

}  // namespace tramontane
