// EbnfTree: a caller's grammar as a tree, for those who look it over. A plain value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

struct EbnfNode {
  enum class Kind {
    kText,      // a literal or a class
    kRule,      // a rule's name
    kSequence,  // `parts`, one after the other
    kChoice,    // one of `parts`
    kRepeat,    // parts[0], from `least` to `most` times
  };
  static constexpr int32_t kUnknownRule = -1;
  static constexpr int64_t kNoMost = std::numeric_limits<int64_t>::max();

  Kind kind = Kind::kText;
  size_t at = 0;               // its first byte in the grammar, behind brackets
  size_t begin = 0, end = 0;   // of kText and kRepeat: all of its bytes, brackets included
  bool is_empty_text = false;  // of kText
  int32_t rule = kUnknownRule;
  int64_t least = 0;
  int64_t most = 0;
  std::vector<EbnfNode> parts = {};
};

struct EbnfTree {
  struct Rule {
    std::string name;
    EbnfNode body;
  };
  std::vector<Rule> rules;
};

// None: it is no grammar. REQUIRES: CheckEbnf is OK with it.
std::optional<EbnfTree> ParseEbnf(std::string_view grammar);

// The rules that are named anywhere in it, each once.
std::vector<int32_t> RulesUsed(const EbnfNode& node);

}  // namespace tramontane
