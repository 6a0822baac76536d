// RegexAutomaton: the texts of an expression as a deterministic automaton, to meet others: "these and those",
// "these but not those", "are these among those?".
//
// Any thread. Plain values. Each of its functions stops at kMostStates and kMostSteps, with nothing.
// Always: states[0] is the start; what has no edge leads nowhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/grammar/regex_tree.h"

namespace tramontane {

struct RegexAutomaton {
  static constexpr size_t kMostStates = 4096;       // of one automaton
  static constexpr int64_t kMostSteps = 2'000'000;  // edges looked at by one function

  struct Edge {
    uint32_t first;
    uint32_t last;  // inclusive
    int32_t to;
  };
  struct State {
    std::vector<Edge> edges;  // in order, apart from each other
    bool accepts = false;
  };
  std::vector<State> states;

  bool empty() const;  // has no text
};

// Of a class's two sets of characters, the one that counts.
enum class RegexReaders { kAll, kAny };  // what all readers take; what any of them does

// Its texts, lookaheads heeded; with as few states as they need.
std::optional<RegexAutomaton> ToAutomaton(const RegexNode& node, RegexReaders readers = RegexReaders::kAll);

// Texts of both; texts of `a` that `b` has not.
std::optional<RegexAutomaton> Meeting(const RegexAutomaton& a, const RegexAutomaton& b);
std::optional<RegexAutomaton> Difference(const RegexAutomaton& a, const RegexAutomaton& b);

// As an expression of at most `most_symbols`. REQUIRES: not empty.
std::optional<RegexNode> ToRegex(const RegexAutomaton& automaton, int64_t most_symbols);

bool Matches(const RegexAutomaton& automaton, std::string_view utf8);

}  // namespace tramontane
