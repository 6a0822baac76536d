#include "engine/sampling_history.h"

#include <algorithm>
#include <limits>

namespace tramontane {

SamplingHistory::SamplingHistory(const Request& request, const std::vector<int32_t>& eos_ids)
    : counts_output_(request.sampling.repetition_penalty != 1.0f ||
                     request.sampling.presence_penalty != 0.0f || request.sampling.frequency_penalty != 0.0f),
      tokens_until_lifted_(request.stopping.min_tokens) {
  if (request.sampling.repetition_penalty != 1.0f) AddPrompt(request);
  for (const auto& [token, bias] : request.sampling.logit_bias) Entry(token).bias = bias;
  if (tokens_until_lifted_ > 0) BanEndings(request, eos_ids);
}

void SamplingHistory::Append(int32_t token) {
  if (counts_output_) {
    LogitAdjust& entry = Entry(token);
    ++entry.output_count;
    entry.in_context = 1;
  }
  if (tokens_until_lifted_ == 0) return;
  --tokens_until_lifted_;
  if (tokens_until_lifted_ == 0) LiftBans();
}

LogitAdjust& SamplingHistory::Entry(int32_t token) {
  auto at = std::lower_bound(adjusts_.begin(), adjusts_.end(), token,
                             [](const LogitAdjust& entry, int32_t wanted) { return entry.token < wanted; });
  if (at == adjusts_.end() || at->token != token) at = adjusts_.insert(at, LogitAdjust{.token = token});
  return *at;
}

void SamplingHistory::AddPrompt(const Request& request) {
  std::vector<int32_t> distinct = request.prompt;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  adjusts_.reserve(distinct.size());
  for (const int32_t token : distinct) adjusts_.push_back({.token = token, .in_context = 1});
}

void SamplingHistory::BanEndings(const Request& request, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> endings = request.stopping.stop_token_ids;
  if (!request.stopping.ignore_eos) endings.insert(endings.end(), eos_ids.begin(), eos_ids.end());
  std::sort(endings.begin(), endings.end());
  endings.erase(std::unique(endings.begin(), endings.end()), endings.end());
  for (const int32_t token : endings) {
    LogitAdjust& entry = Entry(token);
    bans_.push_back({token, entry.bias});
    entry.bias = -std::numeric_limits<float>::infinity();
  }
}

void SamplingHistory::LiftBans() {
  for (const Ban& ban : bans_) Entry(ban.token).bias = ban.bias;
  bans_.clear();
}

}  // namespace tramontane
