// FakeGrammar: a grammar that a test writes as a rule on token ids, without a library behind it. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "models/grammar/grammar.h"

namespace tramontane {

class FakeGrammar final : public Grammar {
 public:
  // The tokens that may follow those of the output so far (forced ones apart).
  using Rule = std::function<std::vector<int32_t>(const std::vector<int32_t>& output)>;
  // What filling the mask behind such an output costs, in ns; without it, nothing.
  using Cost = std::function<int64_t(const std::vector<int32_t>& output)>;
  // Both are called by the threads that fill masks, several at once.
  explicit FakeGrammar(Rule rule, Cost cost = {}) : rule_(std::move(rule)), cost_(std::move(cost)) {}

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override {
    std::lock_guard lock(mutex_);
    starts_.push_back(start);
    return std::make_unique<Matcher>(*this);
  }
  int64_t memory_bytes() const override { return 0; }
  const Rule& rule() const { return rule_; }

  // Of the matchers made so far.
  std::vector<TextStart> starts() const {
    std::lock_guard lock(mutex_);
    return starts_;
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(const FakeGrammar& grammar) : grammar_(grammar) {}

    void FillMask(std::span<uint32_t> mask, GrammarWork& work) override {
      for (uint32_t& word : mask) word = 0;
      if (grammar_.cost_) work.spent_ns += grammar_.cost_(output_);
      work.stopped = work.spent_ns > work.most_ns || (work.wanted && !work.wanted());
      if (work.stopped) return;
      for (const int32_t token : grammar_.rule_(output_)) {
        mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      }
    }
    bool Accept(int32_t token, GrammarWork&) override {
      for (const int32_t allowed : grammar_.rule_(output_)) {
        if (allowed != token) continue;
        output_.push_back(token);
        return true;
      }
      return false;
    }

   private:
    const FakeGrammar& grammar_;  // whoever has a matcher has the request, which has the grammar
    std::vector<int32_t> output_;
  };

  const Rule rule_;
  const Cost cost_;
  mutable std::mutex mutex_;  // guards the next
  mutable std::vector<TextStart> starts_;
};

}  // namespace tramontane
