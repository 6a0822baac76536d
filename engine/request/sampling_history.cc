#include "engine/request/sampling_history.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

namespace tramontane {

SamplingHistory::SamplingHistory(const Request& request, const std::vector<int32_t>& eos_ids)
    : counts_output_(request.sampling.repetition_penalty != 1.0f ||
                     request.sampling.presence_penalty != 0.0f || request.sampling.frequency_penalty != 0.0f),
      tokens_until_lifted_(request.stopping.min_tokens) {
  if (request.sampling.repetition_penalty != 1.0f) AddPrompt(request);
  for (const auto& [token, bias] : request.sampling.logit_bias) Entry(token).bias = bias;
  for (const int32_t token : request.sampling.banned)
    Entry(token).bias = -std::numeric_limits<float>::infinity();
  if (tokens_until_lifted_ > 0) BanEndings(request, eos_ids);
}

uint64_t SamplingHistory::NextId() {
  static std::atomic<uint64_t> last{0};  // requests come on many threads, and to several engines
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void SamplingHistory::Append(int32_t token) {
  if (counts_output_) {
    last_change_ = IndexOf(token);
    ++version_;
    LogitAdjust& entry = adjusts_[static_cast<size_t>(last_change_)];
    ++entry.output_count;
    entry.in_context = 1;
  }
  if (tokens_until_lifted_ == 0) return;
  --tokens_until_lifted_;
  if (tokens_until_lifted_ == 0) LiftBans();
}

int32_t SamplingHistory::IndexOf(int32_t token) {
  const auto token_at = [this](int32_t index) { return adjusts_[static_cast<size_t>(index)].token; };
  auto at = std::lower_bound(by_token_.begin(), by_token_.end(), token,
                             [&](int32_t index, int32_t wanted) { return token_at(index) < wanted; });
  if (at == by_token_.end() || token_at(*at) != token) {
    at = by_token_.insert(at, static_cast<int32_t>(adjusts_.size()));
    adjusts_.push_back({.token = token});
  }
  return *at;
}

void SamplingHistory::AddPrompt(const Request& request) {
  std::vector<int32_t> distinct = request.prompt;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  adjusts_.reserve(distinct.size());
  for (const int32_t token : distinct) adjusts_.push_back({.token = token, .in_context = 1});
  by_token_.resize(distinct.size());
  std::iota(by_token_.begin(), by_token_.end(), 0);
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

void SamplingHistory::AllowEndings() {
  tokens_until_lifted_ = 0;
  LiftBans();
}

void SamplingHistory::LiftBans() {
  if (bans_.empty()) return;
  ++version_;
  last_change_ = -1;
  for (const Ban& ban : bans_) Entry(ban.token).bias = ban.bias;
  bans_.clear();
}

}  // namespace tramontane
