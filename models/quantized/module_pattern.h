// ModulePattern: which modules a word of compressed-tensors means: the name of one, a class of them, or "re:"
// and a regular expression that a name must begin with, as Python's re.match has it.
//
// Any thread; a value whose copies share what is compiled. Always: a search takes no more steps than its
// limit, whatever the expression.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

class ModulePattern {
 public:
  static constexpr size_t kMaxBytes = 1024;            // of an expression
  static constexpr uint32_t kMaxSearchSteps = 10'000;  // PCRE2's match limit

  // The error says what is wrong with it.
  static StatusOr<ModulePattern> Parse(const std::string& text);

  const std::string& text() const { return text_; }
  bool is_expression() const { return expression_ != nullptr; }
  // A search beyond its limit is an error.
  StatusOr<bool> Matches(const std::string& name) const;

 private:
  explicit ModulePattern(std::string text) : text_(std::move(text)) {}

  std::string text_;
  std::shared_ptr<const void> expression_;  // null: text_ is a name or a class
};

// What PyTorch calls a matrix's module.
struct ModuleNames {
  std::vector<std::string> names;    // of models with a part for images two: releases differ
  std::vector<std::string> classes;  // with those that it inherits from, in the order of bytes
};
ModuleNames NamesOfModule(const std::string& module);

// Whether one of the patterns means it.
StatusOr<bool> MatchesAny(const std::vector<ModulePattern>& patterns, const ModuleNames& module);

// The pattern that counts where several mean it, as compressed-tensors chooses: a name before an expression,
// an expression before a class, and of several the first in the order of bytes. -1: none does.
StatusOr<int64_t> BestMatch(const std::vector<const ModulePattern*>& patterns, const ModuleNames& module);

}  // namespace tramontane
