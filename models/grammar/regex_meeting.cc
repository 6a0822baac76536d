#include "models/grammar/regex_meeting.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tramontane {
namespace {

std::optional<bool> IsWithin(const RegexNode& node, const RegexAutomaton& all, RegexWork* work) {
  const auto automaton = ToAutomaton(node, work);
  if (!automaton) return std::nullopt;
  const auto others = Difference(*automaton, all, work);
  if (!others) return std::nullopt;
  return others->empty();
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
  std::optional<RegexAutomaton> meeting;
  for (const RegexNode& node : all) {
    std::optional<RegexAutomaton> automaton = ToAutomaton(node, work);
    if (automaton && meeting) automaton = Meeting(*meeting, *automaton, work);
    if (!automaton) return too_large;
    meeting = std::move(automaton);
  }
  if (meeting->empty()) return InvalidArgument("there is no text that is so");
  for (const RegexNode& node : all) {
    if (!LooksAhead(node) && IsWithin(node, *meeting, work).value_or(false)) return node;
  }
  for (const RegexNode& node : all) {
    if (LooksAhead(node)) continue;
    RegexNode pruned = node;
    // What is left out last may cost what is left; the other ways come after.
    RegexWork some{work->steps / 8};
    const int64_t before = some.steps;
    Pruner(&pruned, *meeting, &some).Prune(&pruned);
    work->steps -= before - some.steps;
    if (IsWithin(pruned, *meeting, work).value_or(false)) return pruned;
  }
  std::optional<RegexNode> written = ToRegex(*meeting, most_symbols, work);
  if (!written) return too_large;
  return *std::move(written);
}

}  // namespace tramontane
