// RegexAutomaton: the texts of an expression as a deterministic automaton, to meet others: "these and those",
// "these but not those", "are these among those?".
//
// Any thread. Plain values. Each of its functions stops at kMostStates or kMostPairs, and where its work is
// used up, with nothing. Always: states[0] is the start; what has no edge leads nowhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/grammar/regex_tree.h"

namespace tramontane {

// What all automata of a constraint may cost together, about half a second of a processor.
struct RegexWork {
  int64_t steps = 3'000'000;  // edges and states looked at
  bool Take(int64_t more) {
    steps -= more;
    return steps >= 0;
  }
};

struct RegexAutomaton {
  static constexpr size_t kMostStates = 2048;  // of an expression
  static constexpr size_t kMostPairs = 16384;  // of two automata at once

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

// Its texts, lookaheads heeded.
std::optional<RegexAutomaton> ToAutomaton(const RegexNode& node, RegexWork* work,
                                          RegexReaders readers = RegexReaders::kAll);

// Whether the library will make an automaton of it: the states that one can be in at once, begun in each of
// them, are a few times as many sets as there are states. False also where the work is used up. REQUIRES:
// looks nowhere ahead.
bool IsNearlyDeterministic(const RegexNode& node, RegexWork* work);

// Texts of both; texts of `a` that `b` has not.
std::optional<RegexAutomaton> Meeting(const RegexAutomaton& a, const RegexAutomaton& b, RegexWork* work);
std::optional<RegexAutomaton> Difference(const RegexAutomaton& a, const RegexAutomaton& b, RegexWork* work);

// As an expression of at most `most_symbols`. REQUIRES: not empty.
std::optional<RegexNode> ToRegex(const RegexAutomaton& automaton, int64_t most_symbols, RegexWork* work);

bool Matches(const RegexAutomaton& automaton, std::string_view utf8);

}  // namespace tramontane
