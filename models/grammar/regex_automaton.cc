#include "models/grammar/regex_automaton.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

using RegexEdge = RegexAutomaton::Edge;
using MaybeAutomaton = std::optional<RegexAutomaton>;

// Edges of any number at once, in pieces where all of them lead somewhere together: for each piece,
// `take(first, last, targets)`, the targets in order and each once.
template <typename Take>
void ForEachPiece(const std::vector<RegexEdge>& edges, const Take& take) {
  std::vector<uint32_t> starts;
  for (const RegexEdge& edge : edges) {
    starts.push_back(edge.first);
    starts.push_back(edge.last + 1);
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  std::vector<std::vector<int32_t>> targets(starts.size());
  for (const RegexEdge& edge : edges) {
    const auto from = std::lower_bound(starts.begin(), starts.end(), edge.first) - starts.begin();
    for (auto i = static_cast<size_t>(from); i < starts.size() && starts[i] <= edge.last; ++i) {
      targets[i].push_back(edge.to);
    }
  }
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    if (targets[i].empty()) continue;
    std::sort(targets[i].begin(), targets[i].end());
    targets[i].erase(std::unique(targets[i].begin(), targets[i].end()), targets[i].end());
    take(starts[i], starts[i + 1] - 1, targets[i]);
  }
}

void AddEdge(std::vector<RegexEdge>* edges, const RegexEdge& edge) {
  if (!edges->empty() && edges->back().to == edge.to && edges->back().last + 1 == edge.first) {
    edges->back().last = edge.last;
  } else {
    edges->push_back(edge);
  }
}

// ---- fewest states ------------------------------------------------------------------------------

// Characters to the nearest end from each state; -1: no text ends from there.
std::vector<int32_t> DistancesToEnd(const RegexAutomaton& automaton) {
  const size_t count = automaton.states.size();
  std::vector<std::vector<int32_t>> from(count);
  std::vector<int32_t> distances(count, -1);
  std::vector<int32_t> queue;
  for (size_t s = 0; s < count; ++s) {
    for (const RegexEdge& edge : automaton.states[s].edges) {
      from[static_cast<size_t>(edge.to)].push_back(static_cast<int32_t>(s));
    }
    if (!automaton.states[s].accepts) continue;
    distances[s] = 0;
    queue.push_back(static_cast<int32_t>(s));
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    const auto s = static_cast<size_t>(queue[i]);
    for (const int32_t before : from[s]) {
      if (distances[static_cast<size_t>(before)] >= 0) continue;
      distances[static_cast<size_t>(before)] = distances[s] + 1;
      queue.push_back(before);
    }
  }
  return distances;
}

// Without states from which no text ends.
RegexAutomaton Trimmed(const RegexAutomaton& automaton) {
  const std::vector<int32_t> distances = DistancesToEnd(automaton);
  if (distances[0] < 0) return {{RegexAutomaton::State{}}};
  std::vector<int32_t> numbers(distances.size(), -1);
  int32_t next = 0;
  for (size_t s = 0; s < distances.size(); ++s) {
    if (distances[s] >= 0) numbers[s] = next++;
  }
  RegexAutomaton result;
  for (size_t s = 0; s < distances.size(); ++s) {
    if (distances[s] < 0) continue;
    RegexAutomaton::State& state = result.states.emplace_back();
    state.accepts = automaton.states[s].accepts;
    for (const RegexEdge& edge : automaton.states[s].edges) {
      const int32_t to = numbers[static_cast<size_t>(edge.to)];
      if (to >= 0) AddEdge(&state.edges, {edge.first, edge.last, to});
    }
  }
  return result;
}

// Without states from which no text ends, and with one state for those from which the same texts end.
RegexAutomaton Smallest(const RegexAutomaton& automaton, RegexWork* work) {
  const size_t count = automaton.states.size();
  // Classes of states, by their distance to the end at first, are split by where their states lead until none
  // splits any more; none is split where that takes too long.
  std::vector<int32_t> of = DistancesToEnd(automaton);
  if (of[0] < 0) return {{RegexAutomaton::State{}}};
  const auto edges_of = [&](size_t s) {
    std::vector<RegexEdge> edges;
    for (const RegexEdge& edge : automaton.states[s].edges) {
      if (of[static_cast<size_t>(edge.to)] < 0) continue;
      AddEdge(&edges, {edge.first, edge.last, of[static_cast<size_t>(edge.to)]});
    }
    return edges;
  };
  for (size_t classes = 0;;) {
    const bool apart = work->steps < 0;  // each by itself
    std::map<std::vector<int64_t>, int32_t> known;
    std::vector<int32_t> next(count, -1);
    for (size_t s = 0; s < count; ++s) {
      if (of[s] < 0) continue;
      std::vector<int64_t> signature = {apart ? static_cast<int64_t>(s) : of[s]};
      for (const RegexEdge& edge : edges_of(s)) {
        if (!apart) signature.insert(signature.end(), {edge.first, edge.last, edge.to});
      }
      work->Take(static_cast<int64_t>(signature.size()));
      next[s] = known.try_emplace(std::move(signature), static_cast<int32_t>(known.size())).first->second;
    }
    of = std::move(next);
    if (apart || known.size() == classes) break;
    classes = known.size();
  }
  // States by their class, the start's first (it is the first that was met).
  RegexAutomaton result;
  for (size_t s = 0; s < count; ++s) {
    if (of[s] < static_cast<int32_t>(result.states.size())) continue;
    result.states.push_back({edges_of(s), automaton.states[s].accepts});
  }
  return result;
}

// ---- from expressions ---------------------------------------------------------------------------

// An automaton with empty steps, built from its end to its start.
class NfaBuilder {
 public:
  explicit NfaBuilder(RegexReaders readers) : readers_(readers) {}

  // The states of `automaton` as they are; its start.
  int32_t Embed(const RegexAutomaton& automaton) {
    const auto base = static_cast<int32_t>(nodes_.size());
    for (const RegexAutomaton::State& state : automaton.states) {
      Node& node = nodes_.emplace_back();
      node.accepts = state.accepts;
      for (const RegexEdge& edge : state.edges) node.edges.push_back({edge.first, edge.last, base + edge.to});
    }
    return base;
  }

  // Where `node` begins that goes on at `next`.
  int32_t Build(const RegexNode& node, int32_t next) {
    if (nodes_.size() > kMostNodes) return next;
    switch (node.kind) {
      case RegexNode::Kind::kClass: {
        const int32_t at = Add({});
        const CodePoints& set = readers_ == RegexReaders::kAll ? node.surely : node.maybe;
        for (const CodePointRange& range : set.ranges()) {
          nodes_[static_cast<size_t>(at)].edges.push_back({range.first, range.last, next});
        }
        return at;
      }
      case RegexNode::Kind::kSequence:
        for (size_t i = node.parts.size(); i-- > 0;) next = Build(node.parts[i], next);
        return next;
      case RegexNode::Kind::kChoice: {
        std::vector<int32_t> starts;
        starts.reserve(node.parts.size());
        for (const RegexNode& part : node.parts) starts.push_back(Build(part, next));
        return Add(std::move(starts));
      }
      default:
        return Repeat(node, next);
    }
  }

  int32_t Any(std::vector<int32_t> starts) { return Add(std::move(starts)); }

  MaybeAutomaton Determinize(int32_t start, RegexWork* work) const {
    const MaybeAutomaton result = OfSets({Closure({start})}, RegexAutomaton::kMostStates, work);
    return result ? std::optional(Trimmed(*result)) : std::nullopt;
  }

  // From each state alone.
  bool HasFewSets(RegexWork* work) const {
    std::vector<Set> alone;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].accepts || !nodes_[n].edges.empty()) alone.push_back({static_cast<int32_t>(n)});
    }
    const size_t most = 4 * alone.size() + 100;
    return work->Take(static_cast<int64_t>(alone.size())) && OfSets(std::move(alone), most, work).has_value();
  }

 private:
  static constexpr size_t kMostNodes = 20'000;
  using Set = std::vector<int32_t>;  // of nodes that one is in at once, in order

  // Of what the sets in `begin` lead to: the first of them is the start.
  MaybeAutomaton OfSets(std::vector<Set> begin, size_t most_sets, RegexWork* work) const {
    if (nodes_.size() > kMostNodes) return std::nullopt;
    RegexAutomaton result;
    std::map<Set, int32_t> known;
    std::vector<Set> sets;
    const auto state_of = [&](Set set) {
      const auto [found, is_new] = known.try_emplace(std::move(set), static_cast<int32_t>(sets.size()));
      if (is_new) sets.push_back(found->first);
      return found->second;
    };
    for (Set& set : begin) state_of(std::move(set));
    for (size_t s = 0; s < sets.size(); ++s) {
      if (sets.size() > most_sets) return std::nullopt;
      RegexAutomaton::State state;
      std::vector<RegexEdge> edges;
      for (const int32_t n : sets[s]) {
        const Node& node = nodes_[static_cast<size_t>(n)];
        state.accepts = state.accepts || node.accepts;
        edges.insert(edges.end(), node.edges.begin(), node.edges.end());
      }
      if (!work->Take(static_cast<int64_t>(sets[s].size() + edges.size()))) return std::nullopt;
      ForEachPiece(edges, [&](uint32_t first, uint32_t last, const std::vector<int32_t>& targets) {
        work->Take(static_cast<int64_t>(targets.size()));
        AddEdge(&state.edges, {first, last, state_of(Closure(targets))});
      });
      result.states.push_back(std::move(state));
    }
    return result;
  }

  struct Node {
    std::vector<RegexEdge> edges;
    std::vector<int32_t> empty_steps;
    bool accepts = false;
  };

  int32_t Add(std::vector<int32_t> empty_steps) {
    nodes_.push_back({{}, std::move(empty_steps), false});
    return static_cast<int32_t>(nodes_.size()) - 1;
  }

  int32_t Repeat(const RegexNode& node, int32_t next) {
    const RegexNode& part = node.parts[0];
    int32_t at = next;
    if (node.most == kUnbounded) {
      at = Add({next});
      const int32_t again = Build(part, at);
      nodes_[static_cast<size_t>(at)].empty_steps.push_back(again);
    } else {
      for (int64_t n = node.least; n < node.most && nodes_.size() <= kMostNodes; ++n) {
        at = Add({Build(part, at), next});
      }
    }
    for (int64_t n = 0; n < node.least && nodes_.size() <= kMostNodes; ++n) at = Build(part, at);
    return at;
  }

  // With what empty steps lead to: those that have edges or accept, in order.
  std::vector<int32_t> Closure(const std::vector<int32_t>& set) const {
    std::vector<int32_t> open = set;
    std::vector<int32_t> result;
    std::vector<int32_t> seen;
    while (!open.empty()) {
      const int32_t n = open.back();
      open.pop_back();
      const auto place = std::lower_bound(seen.begin(), seen.end(), n);
      if (place != seen.end() && *place == n) continue;
      seen.insert(place, n);
      const Node& node = nodes_[static_cast<size_t>(n)];
      if (node.accepts || !node.edges.empty()) result.push_back(n);
      open.insert(open.end(), node.empty_steps.begin(), node.empty_steps.end());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  const RegexReaders readers_;
  std::vector<Node> nodes_;
};

RegexAutomaton OfAll(bool empty_text_only) {
  RegexAutomaton result;
  result.states.resize(1);
  result.states[0].accepts = true;
  if (!empty_text_only) result.states[0].edges.push_back({0, CodePoints::kMost, 0});
  return result;
}

MaybeAutomaton AnyOf(const std::vector<MaybeAutomaton>& alternatives, RegexWork* work) {
  NfaBuilder builder(RegexReaders::kAll);
  std::vector<int32_t> starts;
  for (const MaybeAutomaton& alternative : alternatives) {
    if (!alternative) return std::nullopt;
    starts.push_back(builder.Embed(*alternative));
  }
  return builder.Determinize(builder.Any(std::move(starts)), work);
}

// Texts of `node` with one of `rest` behind each.
MaybeAutomaton InFront(const RegexNode& node, const RegexAutomaton& rest, RegexReaders readers,
                       RegexWork* work) {
  if (!LooksAhead(node)) {
    NfaBuilder builder(readers);
    const int32_t end = builder.Embed(rest);
    return builder.Determinize(builder.Build(node, end), work);
  }
  switch (node.kind) {
    case RegexNode::Kind::kSequence: {
      MaybeAutomaton all = rest;
      for (size_t i = node.parts.size(); i-- > 0 && all;) all = InFront(node.parts[i], *all, readers, work);
      return all;
    }
    case RegexNode::Kind::kChoice: {
      std::vector<MaybeAutomaton> alternatives;
      for (const RegexNode& part : node.parts) alternatives.push_back(InFront(part, rest, readers, work));
      return AnyOf(alternatives, work);
    }
    case RegexNode::Kind::kRepeat: {
      TM_CHECK(node.most != kUnbounded, "a repetition without end of a lookahead");
      MaybeAutomaton all = rest;
      for (int64_t n = 0; n < node.most && all; ++n) {
        const MaybeAutomaton once_more = InFront(node.parts[0], *all, readers, work);
        all = n < node.most - node.least ? AnyOf({once_more, rest}, work) : once_more;
      }
      return all;
    }
    case RegexNode::Kind::kAhead: {
      const MaybeAutomaton ahead = InFront(node.parts[0], OfAll(/*empty_text_only=*/true), readers, work);
      const MaybeAutomaton both = ahead ? Meeting(rest, *ahead, work) : ahead;
      return both ? Smallest(*both, work) : both;
    }
    case RegexNode::Kind::kNotAhead: {
      const auto others = readers == RegexReaders::kAll ? RegexReaders::kAny : RegexReaders::kAll;
      const MaybeAutomaton ahead = InFront(node.parts[0], OfAll(/*empty_text_only=*/true), others, work);
      const MaybeAutomaton others_left = ahead ? Difference(rest, *ahead, work) : ahead;
      return others_left ? Smallest(*others_left, work) : others_left;
    }
    case RegexNode::Kind::kClass:
      break;
  }
  TM_CHECK(false, "a class that looks ahead");
}

// ---- two at once --------------------------------------------------------------------------------

// Texts of `a` that `b` has too, or has not.
MaybeAutomaton ProductOf(const RegexAutomaton& a, const RegexAutomaton& b, bool in_both, RegexWork* work) {
  constexpr int32_t kNowhere = -1;
  RegexAutomaton result;
  std::map<std::pair<int32_t, int32_t>, int32_t> known;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto state_of = [&](int32_t s, int32_t t) {
    const auto [found, is_new] = known.try_emplace({s, t}, static_cast<int32_t>(pairs.size()));
    if (is_new) pairs.emplace_back(s, t);
    return found->second;
  };
  state_of(0, 0);
  for (size_t p = 0; p < pairs.size(); ++p) {
    const auto [s, t] = pairs[p];
    const RegexAutomaton::State& here = a.states[static_cast<size_t>(s)];
    static const RegexAutomaton::State nowhere;
    const RegexAutomaton::State& there = t == kNowhere ? nowhere : b.states[static_cast<size_t>(t)];
    RegexAutomaton::State state;
    state.accepts = here.accepts && there.accepts == in_both;
    auto other = there.edges.begin();
    for (const RegexEdge& edge : here.edges) {
      uint32_t next = edge.first;
      while (next <= edge.last) {
        while (other != there.edges.end() && other->last < next) ++other;
        const bool shared = other != there.edges.end() && other->first <= next;
        uint32_t last = edge.last;
        if (shared) {
          last = std::min(last, other->last);
        } else if (other != there.edges.end()) {
          last = std::min(last, other->first - 1);
        }
        if (shared || !in_both)
          AddEdge(&state.edges, {next, last, state_of(edge.to, shared ? other->to : kNowhere)});
        next = last + 1;
      }
    }
    const bool go_on = work->Take(static_cast<int64_t>(1 + here.edges.size() + there.edges.size()));
    if (pairs.size() > RegexAutomaton::kMostPairs || !go_on) return std::nullopt;
    result.states.push_back(std::move(state));
  }
  return Trimmed(result);
}

// ---- to expressions -----------------------------------------------------------------------------

// States are taken out one by one, the one first whose taking out writes least; what led over it leads past
// it.
class Eliminator {
 public:
  Eliminator(const RegexAutomaton& automaton, int64_t most_symbols)
      : count_(static_cast<int32_t>(automaton.states.size())), most_symbols_(most_symbols) {
    // Two more: the start, and the end.
    start_ = count_;
    end_ = count_ + 1;
    for (int32_t s = 0; s < count_; ++s) {
      const RegexAutomaton::State& state = automaton.states[static_cast<size_t>(s)];
      std::map<int32_t, CodePoints> classes;
      for (const RegexEdge& edge : state.edges) classes[edge.to].Add({{edge.first, edge.last}});
      for (const auto& [to, characters] : classes) Lead(s, to, {RegexClass(characters), 1});
      if (state.accepts) Lead(s, end_, {RegexSequence({}), 0});
    }
    Lead(start_, 0, {RegexSequence({}), 0});
  }

  std::optional<RegexNode> Run(RegexWork* work) {
    for (int32_t left = count_; left > 0; --left) {
      int32_t best = -1;
      int64_t best_cost = 0;
      for (int32_t s = 0; s < count_; ++s) {
        if (gone_.contains(s)) continue;
        const int64_t cost = CostOf(s);
        if (best >= 0 && cost >= best_cost) continue;
        best = s;
        best_cost = cost;
      }
      TakeOut(best);
      if (symbols_ > most_symbols_ || !work->Take(static_cast<int64_t>(ways_.size()))) return std::nullopt;
    }
    return ways_.at({start_, end_}).node;
  }

 private:
  struct Way {
    RegexNode node;
    int64_t symbols = 0;
  };
  using Ends = std::pair<int32_t, int32_t>;

  void Lead(int32_t from, int32_t to, Way way) {
    symbols_ += way.symbols;
    const auto found = ways_.find({from, to});
    if (found == ways_.end()) {
      into_[to].insert(from);
      out_of_[from].insert(to);
      ways_.emplace(Ends{from, to}, std::move(way));
      return;
    }
    Way& known = found->second;
    known.symbols += way.symbols;
    std::vector<RegexNode> alternatives;
    for (RegexNode* node : {&known.node, &way.node}) {
      if (node->kind == RegexNode::Kind::kChoice) {
        alternatives.insert(alternatives.end(), node->parts.begin(), node->parts.end());
      } else {
        alternatives.push_back(*node);
      }
    }
    known.node = RegexChoice(std::move(alternatives));
  }

  int64_t CostOf(int32_t s) {
    int64_t in = 0, out = 0, in_count = 0, out_count = 0, loop = 0;
    for (const int32_t from : into_[s]) {
      const int64_t symbols = ways_.at({from, s}).symbols;
      if (from == s) {
        loop = symbols;
      } else {
        in += symbols + 1;
        ++in_count;
      }
    }
    for (const int32_t to : out_of_[s]) {
      if (to == s) continue;
      out += ways_.at({s, to}).symbols + 1;
      ++out_count;
    }
    return in * (out_count - 1) + out * (in_count - 1) + loop * (in_count * out_count - 1);
  }

  void TakeOut(int32_t s) {
    std::optional<Way> loop;
    if (const auto found = ways_.find({s, s}); found != ways_.end()) loop = found->second;
    const auto into = into_[s];
    const auto out_of = out_of_[s];
    for (const int32_t from : into) {
      if (from == s) continue;
      const Way before = ways_.at({from, s});
      for (const int32_t to : out_of) {
        if (to == s) continue;
        const Way& behind = ways_.at({s, to});
        std::vector<RegexNode> parts;
        const auto add = [&parts](const RegexNode& node) {
          if (node.kind == RegexNode::Kind::kSequence) {
            parts.insert(parts.end(), node.parts.begin(), node.parts.end());
          } else {
            parts.push_back(node);
          }
        };
        add(before.node);
        if (loop) add(RegexRepeat(loop->node, 0, kUnbounded));
        add(behind.node);
        Lead(from, to,
             {RegexSequence(std::move(parts)), before.symbols + behind.symbols + (loop ? loop->symbols : 0)});
        if (symbols_ > 4 * most_symbols_) return;
      }
    }
    for (const int32_t from : into) Drop(from, s);
    for (const int32_t to : out_of) Drop(s, to);
    gone_.insert(s);
  }

  void Drop(int32_t from, int32_t to) {
    const auto found = ways_.find({from, to});
    if (found == ways_.end()) return;
    symbols_ -= found->second.symbols;
    ways_.erase(found);
    into_[to].erase(from);
    out_of_[from].erase(to);
  }

  const int32_t count_;
  const int64_t most_symbols_;
  int32_t start_ = 0;
  int32_t end_ = 0;
  int64_t symbols_ = 0;  // of all ways
  std::map<Ends, Way> ways_;
  std::map<int32_t, std::set<int32_t>> into_, out_of_;
  std::set<int32_t> gone_;
};

}  // namespace

bool RegexAutomaton::empty() const {
  return std::none_of(states.begin(), states.end(), [](const State& state) { return state.accepts; });
}

MaybeAutomaton ToAutomaton(const RegexNode& node, RegexWork* work, RegexReaders readers) {
  return InFront(node, OfAll(/*empty_text_only=*/true), readers, work);
}

MaybeAutomaton Meeting(const RegexAutomaton& a, const RegexAutomaton& b, RegexWork* work) {
  return ProductOf(a, b, /*in_both=*/true, work);
}

MaybeAutomaton Difference(const RegexAutomaton& a, const RegexAutomaton& b, RegexWork* work) {
  return ProductOf(a, b, /*in_both=*/false, work);
}

std::optional<RegexNode> ToRegex(const RegexAutomaton& automaton, int64_t most_symbols, RegexWork* work) {
  constexpr size_t kMostWritten = 256;  // states: taking one out looks at all of them
  TM_CHECK(!automaton.empty(), "an automaton of no text");
  const RegexAutomaton smallest = Smallest(automaton, work);
  if (smallest.states.size() > kMostWritten) return std::nullopt;
  return Eliminator(smallest, most_symbols).Run(work);
}

bool IsNearlyDeterministic(const RegexNode& node, RegexWork* work) {
  if (work->steps < 0) return false;
  NfaBuilder builder(RegexReaders::kAll);
  const int32_t end = builder.Embed(OfAll(/*empty_text_only=*/true));
  builder.Build(node, end);
  return builder.HasFewSets(work);
}

bool Matches(const RegexAutomaton& automaton, std::string_view utf8) {
  size_t state = 0;
  for (const uint32_t character : CodePointsOf(utf8)) {
    const std::vector<RegexEdge>& edges = automaton.states[state].edges;
    const auto found = std::find_if(edges.begin(), edges.end(), [character](const RegexEdge& edge) {
      return edge.first <= character && character <= edge.last;
    });
    if (found == edges.end()) return false;
    state = static_cast<size_t>(found->to);
  }
  return automaton.states[state].accepts;
}

}  // namespace tramontane
