// PendingFake: a grammar that a test has at once, or as if it had to be compiled first. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "models/grammar/answer_grammar.h"

namespace tramontane {

class PendingFake final : public PendingGrammar {
 public:
  enum When { kAtOnce, kCompiledLater };
  // `grammar` null: it cannot be compiled. `on_compile` is called by the thread that compiles.
  explicit PendingFake(std::shared_ptr<const Grammar> grammar, When when = kAtOnce,
                       std::function<void()> on_compile = {})
      : grammar_(std::move(grammar)), on_compile_(std::move(on_compile)), known_(when == kAtOnce) {}

  std::shared_ptr<const Grammar> Find() const override { return known_ ? grammar_ : nullptr; }
  StatusOr<std::shared_ptr<const Grammar>> Compile(const std::function<bool()>&) const override {
    ++compiled_;
    if (on_compile_) on_compile_();
    if (grammar_ == nullptr) return InvalidArgument("takes more than 1500 ms to compile");
    known_ = true;
    return grammar_;
  }
  int32_t compiled() const { return compiled_; }

 private:
  const std::shared_ptr<const Grammar> grammar_;
  const std::function<void()> on_compile_;
  mutable std::atomic<bool> known_;
  mutable std::atomic<int32_t> compiled_{0};
};

}  // namespace tramontane
