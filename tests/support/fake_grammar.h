// FakeGrammar: a grammar that a test writes as a rule on token ids, without a library behind it. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/grammar/grammar.h"

namespace tramontane {

class FakeGrammar final : public Grammar {
 public:
  // The tokens that may follow those of the output so far (forced ones apart).
  using Rule = std::function<std::vector<int32_t>(const std::vector<int32_t>& output)>;
  explicit FakeGrammar(Rule rule) : rule_(std::move(rule)) {}

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override {
    starts_.push_back(start);
    return std::make_unique<Matcher>(rule_);
  }
  int64_t memory_bytes() const override { return 0; }

  // Of the matchers made so far; the thread that made them.
  const std::vector<TextStart>& starts() const { return starts_; }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(Rule rule) : rule_(std::move(rule)) {}

    void FillMask(std::span<uint32_t> mask) override {
      for (uint32_t& word : mask) word = 0;
      for (const int32_t token : rule_(output_)) {
        mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      }
    }
    bool Accept(int32_t token) override {
      for (const int32_t allowed : rule_(output_)) {
        if (allowed != token) continue;
        output_.push_back(token);
        return true;
      }
      return false;
    }

   private:
    const Rule rule_;
    std::vector<int32_t> output_;
  };

  const Rule rule_;
  mutable std::vector<TextStart> starts_;
};

}  // namespace tramontane
