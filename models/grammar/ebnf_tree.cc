#include "models/grammar/ebnf_tree.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

bool IsNameCharacter(char c) {
  return c == '_' || c == '-' || c == '.' || IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Reads what CheckEbnf has let through. Names become numbers once all rules are known.
class EbnfParser {
 public:
  explicit EbnfParser(std::string_view grammar) : grammar_(grammar) {}

  std::optional<EbnfTree> Parse() {
    SkipSpace();
    while (at_ < grammar_.size()) {
      if (!AtDefinition()) return std::nullopt;
      const std::string name(TakeName());
      TakeDefinitionSign();
      numbers_.emplace(name, static_cast<int32_t>(tree_.rules.size()));
      EbnfNode body = Choice();
      if (failed_ || Peek() == ')') return std::nullopt;
      tree_.rules.push_back({name, std::move(body)});
    }
    for (const Use& use : uses_) Find(use);
    for (EbnfTree::Rule& rule : tree_.rules) NameRules(&rule.body);
    return std::move(tree_);
  }

 private:
  struct Use {
    size_t at;
    std::string_view name;
  };

  EbnfNode Choice() {
    EbnfNode choice{.kind = EbnfNode::Kind::kChoice, .at = at_};
    choice.parts.push_back(Sequence());
    while (Peek() == '|') {
      Step();
      choice.parts.push_back(Sequence());
    }
    return choice.parts.size() == 1 ? std::move(choice.parts[0]) : std::move(choice);
  }

  EbnfNode Sequence() {
    EbnfNode sequence{.kind = EbnfNode::Kind::kSequence, .at = at_};
    while (!failed_ && !AtEndOfSequence()) {
      const size_t start = at_;
      EbnfNode element = Element();
      if (!failed_ && AtQuantifier()) element = Repeated(std::move(element), start);
      failed_ = failed_ || AtQuantifier();
      sequence.parts.push_back(std::move(element));
    }
    return sequence;
  }

  EbnfNode Element() {
    const size_t start = at_;
    if (Peek() == '(') {
      Step();
      EbnfNode inside = Choice();
      failed_ = failed_ || Peek() != ')';
      Step();
      return inside;
    }
    if (Peek() == '"') return Enclosed('"');
    if (Peek() == '[') return Enclosed(']');
    if (IsNameCharacter(Peek())) {
      uses_.push_back({start, TakeName()});
      return {.kind = EbnfNode::Kind::kRule, .at = start};
    }
    failed_ = true;
    return {};
  }

  // A literal or a class; a class is never empty.
  EbnfNode Enclosed(char close) {
    const size_t start = at_++;
    while (at_ < grammar_.size() && grammar_[at_] != close) at_ += grammar_[at_] == '\\' ? 2 : 1;
    const bool is_empty = close == '"' && at_ == start + 1;
    const size_t end = std::min(grammar_.size(), at_ + 1);
    Step();
    return {
        .kind = EbnfNode::Kind::kText, .at = start, .begin = start, .end = end, .is_empty_text = is_empty};
  }

  EbnfNode Repeated(EbnfNode element, size_t start) {
    EbnfNode repeat{.kind = EbnfNode::Kind::kRepeat, .at = element.at, .begin = start};
    switch (Peek()) {
      case '*':
        repeat.most = EbnfNode::kNoMost;
        break;
      case '+':
        repeat.least = 1;
        repeat.most = EbnfNode::kNoMost;
        break;
      case '?':
        repeat.most = 1;
        break;
      default:
        TakeCounts(&repeat);
    }
    repeat.end = std::min(grammar_.size(), at_ + 1);
    Step();
    repeat.parts.push_back(std::move(element));
    return repeat;
  }

  // {m}, {m,} or {m,n}, up to the closing brace.
  void TakeCounts(EbnfNode* repeat) {
    Step();
    repeat->least = repeat->most = TakeNumber();
    if (Peek() != ',') return;
    Step();
    repeat->most = IsDigit(Peek()) ? TakeNumber() : EbnfNode::kNoMost;
  }

  int64_t TakeNumber() {
    int64_t number = 0;
    for (; IsDigit(Peek()); ++at_) number = std::min<int64_t>(INT32_MAX, number * 10 + (Peek() - '0'));
    SkipSpace();
    return number;
  }

  std::string_view TakeName() {
    const size_t start = at_;
    while (IsNameCharacter(Peek())) ++at_;
    const std::string_view name = grammar_.substr(start, at_ - start);
    SkipSpace();
    return name;
  }

  bool AtDefinition() {
    const size_t start = at_;
    const bool named = !TakeName().empty();
    const bool defines = named && grammar_.substr(at_).starts_with("::=");
    at_ = start;
    return defines;
  }
  void TakeDefinitionSign() {
    at_ += 3;
    SkipSpace();
  }

  bool AtEndOfSequence() {
    return at_ >= grammar_.size() || Peek() == '|' || Peek() == ')' || AtDefinition();
  }
  bool AtQuantifier() const { return Peek() == '*' || Peek() == '+' || Peek() == '?' || Peek() == '{'; }
  char Peek() const { return at_ < grammar_.size() ? grammar_[at_] : '\0'; }
  void Step() {
    at_ = std::min(grammar_.size(), at_ + 1);
    SkipSpace();
  }
  void SkipSpace() {
    while (at_ < grammar_.size()) {
      const char c = grammar_[at_];
      if (c == '#') {
        at_ = std::min(grammar_.size(), grammar_.find_first_of("\r\n", at_));
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  void Find(const Use& use) {
    const auto found = numbers_.find(std::string(use.name));
    if (found != numbers_.end()) rule_at_[use.at] = found->second;
  }
  void NameRules(EbnfNode* node) {
    if (node->kind == EbnfNode::Kind::kRule) {
      const auto found = rule_at_.find(node->at);
      if (found != rule_at_.end()) node->rule = found->second;
    }
    for (EbnfNode& part : node->parts) NameRules(&part);
  }

  const std::string_view grammar_;
  size_t at_ = 0;
  bool failed_ = false;
  EbnfTree tree_;
  std::vector<Use> uses_;
  std::unordered_map<std::string, int32_t> numbers_;
  std::unordered_map<size_t, int32_t> rule_at_;  // by the first byte of a name's use
};

void AddRulesUsed(const EbnfNode& node, std::vector<int32_t>* rules) {
  if (node.kind == EbnfNode::Kind::kRule && node.rule != EbnfNode::kUnknownRule) rules->push_back(node.rule);
  for (const EbnfNode& part : node.parts) AddRulesUsed(part, rules);
}

}  // namespace

std::optional<EbnfTree> ParseEbnf(std::string_view grammar) { return EbnfParser(grammar).Parse(); }

std::vector<int32_t> RulesUsed(const EbnfNode& node) {
  std::vector<int32_t> rules;
  AddRulesUsed(node, &rules);
  std::sort(rules.begin(), rules.end());
  rules.erase(std::unique(rules.begin(), rules.end()), rules.end());
  return rules;
}

}  // namespace tramontane
