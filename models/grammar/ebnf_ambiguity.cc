#include "models/grammar/ebnf_ambiguity.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/ebnf_tree.h"

namespace tramontane {
namespace {

// A rule that may be empty in two ways doubles the derivations of whatever it stands beside.
constexpr int64_t kMostWaysToBeEmpty = 64;
// Of elements that may each be empty, any may be the one that takes the next character.
constexpr int64_t kMostEmptyInARule = 128;

// Which rules one may meet from each rule, without a character in between.
using RuleGraph = std::vector<std::vector<int32_t>>;

// The rules that a path leads back to themselves from. (Tarjan's strongly connected components, without
// recursion: a chain of rules may be thousands long.)
class Cycles {
 public:
  explicit Cycles(const RuleGraph& graph)
      : graph_(graph), order_(graph.size(), 0), low_(graph.size(), 0), in_cycle_(graph.size(), false) {
    for (size_t rule = 0; rule < graph.size(); ++rule) {
      if (order_[rule] == 0) VisitFrom(static_cast<int32_t>(rule));
    }
  }
  bool Contains(size_t rule) const { return in_cycle_[rule]; }

 private:
  struct Visit {
    int32_t rule;
    size_t next_edge = 0;
  };

  void VisitFrom(int32_t first) {
    Enter(first);
    while (!path_.empty()) {
      Visit& visit = path_.back();
      const auto& edges = graph_[static_cast<size_t>(visit.rule)];
      if (visit.next_edge == edges.size()) {
        Leave();
        continue;
      }
      const int32_t to = edges[visit.next_edge++];
      if (order_[static_cast<size_t>(to)] == 0) {
        Enter(to);
      } else {
        Lower(visit.rule, order_[static_cast<size_t>(to)]);
      }
    }
  }

  void Enter(int32_t rule) {
    order_[static_cast<size_t>(rule)] = low_[static_cast<size_t>(rule)] = ++entered_;
    path_.push_back({rule});
    open_.push_back(rule);
  }

  void Leave() {
    const int32_t rule = path_.back().rule;
    path_.pop_back();
    const int64_t low = low_[static_cast<size_t>(rule)];
    if (!path_.empty()) Lower(path_.back().rule, low);
    if (low == order_[static_cast<size_t>(rule)]) CloseComponent(rule);
  }

  void CloseComponent(int32_t root) {
    const auto begin = std::find(open_.rbegin(), open_.rend(), root).base() - 1;
    const auto& edges = graph_[static_cast<size_t>(root)];
    const bool is_cycle =
        open_.end() - begin > 1 || std::find(edges.begin(), edges.end(), root) != edges.end();
    for (auto at = begin; at != open_.end(); ++at) {
      in_cycle_[static_cast<size_t>(*at)] = is_cycle;
      order_[static_cast<size_t>(*at)] = kClosed;
    }
    open_.erase(begin, open_.end());
  }

  void Lower(int32_t rule, int64_t to) {
    low_[static_cast<size_t>(rule)] = std::min(low_[static_cast<size_t>(rule)], to);
  }

  static constexpr int64_t kClosed = INT64_MAX;
  const RuleGraph& graph_;
  std::vector<int64_t> order_;  // [rules] in which they were entered, from 1; 0: not yet
  std::vector<int64_t> low_;    // [rules] the first entered that one comes back to
  std::vector<bool> in_cycle_;
  std::vector<Visit> path_;
  std::vector<int32_t> open_;  // entered, and their component not closed
  int64_t entered_ = 0;
};

class AmbiguityCheck {
 public:
  explicit AmbiguityCheck(const EbnfTree& tree) : tree_(tree), nullable_(tree.rules.size(), false) {}

  Status Check() {
    FindNullable();
    for (const EbnfTree::Rule& rule : tree_.rules) TM_RETURN_IF_ERROR(CheckRepetitions(rule, rule.body));
    TM_RETURN_IF_ERROR(CheckRecursion());
    return CheckEmptiness();
  }

 private:
  // How a part may be empty.
  struct Emptiness {
    int64_t ways = 0;
    int64_t elements = 0;  // that may be empty, side by side
  };

  void FindNullable();
  bool IsNullable(const EbnfNode& node) const;
  Status CheckRepetitions(const EbnfTree::Rule& rule, const EbnfNode& node) const;
  Status CheckRecursion() const;
  enum class Side { kLeft, kRight };
  void AddEdges(const EbnfNode& node, Side side, std::vector<int32_t>* edges) const;
  RuleGraph Graph(Side side) const;
  Status CheckEmptiness();
  void AddEmptyRules(const EbnfNode& node, std::vector<int32_t>* rules) const;
  StatusOr<Emptiness> EmptinessOf(const EbnfTree::Rule& rule, const EbnfNode& node) const;

  static Status Fault(const EbnfTree::Rule& rule, const std::string& what) {
    return InvalidArgument("rule \"" + Excerpt(rule.name) + "\": " + what);
  }

  const EbnfTree& tree_;
  std::vector<bool> nullable_;        // [rules]
  std::vector<Emptiness> emptiness_;  // [rules]
};

// ---- what may be empty --------------------------------------------------------------------------

// From the rules that plainly may be empty to those that mention them.
void AmbiguityCheck::FindNullable() {
  RuleGraph mentioned_by(tree_.rules.size());
  for (size_t rule = 0; rule < tree_.rules.size(); ++rule) {
    for (const int32_t used : RulesUsed(tree_.rules[rule].body)) {
      mentioned_by[static_cast<size_t>(used)].push_back(static_cast<int32_t>(rule));
    }
  }
  std::vector<int32_t> to_look_at(tree_.rules.size());
  std::iota(to_look_at.begin(), to_look_at.end(), 0);
  while (!to_look_at.empty()) {
    const auto rule = static_cast<size_t>(to_look_at.back());
    to_look_at.pop_back();
    if (nullable_[rule] || !IsNullable(tree_.rules[rule].body)) continue;
    nullable_[rule] = true;
    to_look_at.insert(to_look_at.end(), mentioned_by[rule].begin(), mentioned_by[rule].end());
  }
}

bool AmbiguityCheck::IsNullable(const EbnfNode& node) const {
  const auto nullable = [this](const EbnfNode& part) { return IsNullable(part); };
  switch (node.kind) {
    case EbnfNode::Kind::kText:
      return node.is_empty_text;
    case EbnfNode::Kind::kRule:
      return node.rule != EbnfNode::kUnknownRule && nullable_[static_cast<size_t>(node.rule)];
    case EbnfNode::Kind::kSequence:
      return std::all_of(node.parts.begin(), node.parts.end(), nullable);
    case EbnfNode::Kind::kChoice:
      return std::any_of(node.parts.begin(), node.parts.end(), nullable);
    case EbnfNode::Kind::kRepeat:
      return node.least == 0 || IsNullable(node.parts[0]);
  }
  return false;
}

Status AmbiguityCheck::CheckRepetitions(const EbnfTree::Rule& rule, const EbnfNode& node) const {
  if (node.kind == EbnfNode::Kind::kRepeat && node.most > 1 && IsNullable(node.parts[0])) {
    return Fault(rule, "is ambiguous: at byte " + std::to_string(node.at) +
                           " it repeats what may be empty, so that each text has endless derivations");
  }
  for (const EbnfNode& part : node.parts) TM_RETURN_IF_ERROR(CheckRepetitions(rule, part));
  return {};
}

// ---- recursion ----------------------------------------------------------------------------------

// Of x = "a x" and x = "x b", "a x b" has two derivations, "a a x b b" has six, and so on.
Status AmbiguityCheck::CheckRecursion() const {
  const RuleGraph left_graph = Graph(Side::kLeft);
  const RuleGraph right_graph = Graph(Side::kRight);
  const Cycles left(left_graph);
  const Cycles right(right_graph);
  for (size_t rule = 0; rule < tree_.rules.size(); ++rule) {
    if (!left.Contains(rule) || !right.Contains(rule)) continue;
    return Fault(tree_.rules[rule],
                 "is ambiguous: it may begin with itself and end with itself (left and right recursion at "
                 "once); let it be recursive on one side");
  }
  return {};
}

RuleGraph AmbiguityCheck::Graph(Side side) const {
  RuleGraph graph;
  for (const EbnfTree::Rule& rule : tree_.rules) AddEdges(rule.body, side, &graph.emplace_back());
  return graph;
}

void AmbiguityCheck::AddEdges(const EbnfNode& node, Side side, std::vector<int32_t>* edges) const {
  if (node.kind == EbnfNode::Kind::kRule && node.rule != EbnfNode::kUnknownRule) edges->push_back(node.rule);
  if (node.kind != EbnfNode::Kind::kSequence) {
    for (const EbnfNode& part : node.parts) AddEdges(part, side, edges);
    return;
  }
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const EbnfNode& part = node.parts[side == Side::kLeft ? i : node.parts.size() - 1 - i];
    AddEdges(part, side, edges);
    if (!IsNullable(part)) return;
  }
}

// ---- emptiness ----------------------------------------------------------------------------------

// From rules that are empty by themselves to those that are empty through others; where that never begins, a
// rule is empty through itself.
Status AmbiguityCheck::CheckEmptiness() {
  emptiness_.resize(tree_.rules.size());
  RuleGraph empty_through(tree_.rules.size());
  std::vector<size_t> waits_for(tree_.rules.size(), 0);
  std::vector<size_t> settled;
  for (size_t rule = 0; rule < tree_.rules.size(); ++rule) {
    if (!nullable_[rule]) continue;
    std::vector<int32_t> through;
    AddEmptyRules(tree_.rules[rule].body, &through);
    for (const int32_t other : through)
      empty_through[static_cast<size_t>(other)].push_back(static_cast<int32_t>(rule));
    waits_for[rule] = through.size();
    if (through.empty()) settled.push_back(rule);
  }
  for (size_t next = 0; next < settled.size(); ++next) {
    const size_t rule = settled[next];
    TM_ASSIGN_OR_RETURN(emptiness_[rule], EmptinessOf(tree_.rules[rule], tree_.rules[rule].body));
    for (const int32_t other : empty_through[rule]) {
      if (--waits_for[static_cast<size_t>(other)] == 0) settled.push_back(static_cast<size_t>(other));
    }
  }
  for (size_t rule = 0; rule < tree_.rules.size(); ++rule) {
    if (waits_for[rule] > 0) return Fault(tree_.rules[rule], "is ambiguous: it may be empty through itself");
    TM_RETURN_IF_ERROR(EmptinessOf(tree_.rules[rule], tree_.rules[rule].body).status());
  }
  return {};
}

// The rules through which the part may be empty.
void AmbiguityCheck::AddEmptyRules(const EbnfNode& node, std::vector<int32_t>* rules) const {
  if (!IsNullable(node)) return;
  if (node.kind == EbnfNode::Kind::kRule) rules->push_back(node.rule);
  for (const EbnfNode& part : node.parts) AddEmptyRules(part, rules);
}

// REQUIRES: that of the rules through which it may be empty is known.
StatusOr<AmbiguityCheck::Emptiness> AmbiguityCheck::EmptinessOf(const EbnfTree::Rule& rule,
                                                                const EbnfNode& node) const {
  const bool is_sequence = node.kind == EbnfNode::Kind::kSequence;
  Emptiness whole{is_sequence ? 1 : 0, 0};
  if (node.kind == EbnfNode::Kind::kText && node.is_empty_text) whole = {1, 0};
  if (node.kind == EbnfNode::Kind::kRule && IsNullable(node)) {
    whole = {emptiness_[static_cast<size_t>(node.rule)].ways,
             std::max<int64_t>(1, emptiness_[static_cast<size_t>(node.rule)].elements)};
  }
  int64_t side_by_side = 0;
  for (const EbnfNode& part : node.parts) {
    TM_ASSIGN_OR_RETURN(const Emptiness inside, EmptinessOf(rule, part));
    whole.ways = is_sequence ? whole.ways * inside.ways : whole.ways + inside.ways;
    side_by_side = inside.ways == 0 ? 0 : side_by_side + inside.elements;
    if (!is_sequence) side_by_side = inside.elements;
    whole.elements = std::max(whole.elements, side_by_side);
    if (whole.ways > kMostWaysToBeEmpty) {
      return Fault(
          rule, "is ambiguous: it may be empty in more than " + std::to_string(kMostWaysToBeEmpty) + " ways");
    }
    if (whole.elements > kMostEmptyInARule) {
      return Fault(rule, "has more than " + std::to_string(kMostEmptyInARule) +
                             " elements side by side that may be empty");
    }
  }
  if (node.kind == EbnfNode::Kind::kRepeat && node.least == 0)
    whole = {whole.ways + 1, std::max<int64_t>(1, whole.elements)};
  return whole;
}

}  // namespace

Status CheckUnambiguous(std::string_view grammar) {
  const std::optional<EbnfTree> tree = ParseEbnf(grammar);
  return tree ? AmbiguityCheck(*tree).Check() : Status::Ok();
}

}  // namespace tramontane
