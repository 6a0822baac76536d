#include "models/grammar/regex_meeting.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tramontane {
namespace {

// Surely each text of `some` is one of `all`.
bool IsWithin(const RegexAutomaton& some, const RegexAutomaton& all, RegexWork* work) {
  const auto others = Difference(some, all, work);
  return others && others->empty();
}

// Takes out of `node`, a part of `whole`, each alternative that has no text of `all`.
class Pruner {
 public:
  Pruner(RegexNode* whole, const RegexAutomaton& all, RegexWork* work)
      : whole_(whole), all_(all), work_(work) {}

  void Prune(RegexNode* node) {
    if (node->kind == RegexNode::Kind::kChoice) {
      for (size_t i = node->parts.size(); i-- > 0 && node->parts.size() > 1;) {
        RegexNode without = std::move(node->parts[i]);
        node->parts.erase(node->parts.begin() + static_cast<int64_t>(i));
        if (!HasAll()) node->parts.insert(node->parts.begin() + static_cast<int64_t>(i), std::move(without));
      }
    } else if (node->kind == RegexNode::Kind::kRepeat && node->least == 0) {
      for (const auto& [least, most] : {std::pair<int64_t, int64_t>{0, 0}, {1, node->most}}) {
        const RegexNode before = *node;
        node->least = least;
        node->most = most;
        if (HasAll()) break;
        *node = before;
      }
    }
    if (node->kind == RegexNode::Kind::kRepeat && node->most == 0) {
      *node = RegexSequence({});
      return;
    }
    for (RegexNode& part : node->parts) Prune(&part);
  }

 private:
  bool HasAll() {
    const auto automaton = ToAutomaton(*whole_, work_);
    if (!automaton) return false;
    const auto lost = Difference(all_, *automaton, work_);
    return lost && lost->empty();
  }

  RegexNode* whole_;
  const RegexAutomaton& all_;
  RegexWork* work_;
};

}  // namespace

StatusOr<RegexNode> MeetingOf(const std::vector<RegexNode>& all, RegexWork* work, int64_t most_symbols) {
  if (all.size() == 1 && !LooksAhead(all[0])) return all[0];
  const Status too_large = InvalidArgument("is too large to be written as one expression");
  std::vector<RegexAutomaton> automata;
  for (const RegexNode& node : all) {
    std::optional<RegexAutomaton> automaton = ToAutomaton(node, work);
    if (!automaton) return too_large;
    automata.push_back(*std::move(automaton));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const bool within = !LooksAhead(all[i]) && !automata[i].empty() &&
                        std::all_of(automata.begin(), automata.end(), [&](const RegexAutomaton& other) {
                          return &other == &automata[i] || IsWithin(automata[i], other, work);
                        });
    if (within) return all[i];
  }
  std::optional<RegexAutomaton> meeting = automata[0];
  for (size_t i = 1; i < automata.size() && meeting; ++i) meeting = Meeting(*meeting, automata[i], work);
  if (!meeting) return too_large;
  if (meeting->empty()) return InvalidArgument("there is no text that is so");
  for (const RegexNode& node : all) {
    if (LooksAhead(node)) continue;
    RegexNode pruned = node;
    // Leaving out may cost a part of what is left; another way comes after.
    RegexWork some{work->steps / 8};
    const int64_t before = some.steps;
    Pruner(&pruned, *meeting, &some).Prune(&pruned);
    work->steps -= before - some.steps;
    const std::optional<RegexAutomaton> left = ToAutomaton(pruned, work);
    if (left && IsWithin(*left, *meeting, work)) return pruned;
  }
  std::optional<RegexNode> written = ToRegex(*meeting, most_symbols, work);
  if (!written) return too_large;
  return *std::move(written);
}

}  // namespace tramontane
