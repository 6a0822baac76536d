#include "models/grammar/ebnf_repetitions.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/code_points.h"
#include "models/grammar/ebnf.h"
#include "models/grammar/ebnf_tree.h"
#include "models/grammar/pattern.h"

namespace tramontane {
namespace {

constexpr int64_t kMostText = int64_t{1} << 20;  // bytes of patterns that are made, those of parts included
constexpr int32_t kMostRulesDeep = 64;           // that refer to each other

// Reads what stands between quotes or brackets, as the library does.
class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  // [...]; `text` is what is inside.
  std::optional<Pattern> Class() {
    CodePoints characters;
    const bool is_complement = text_.starts_with('^');
    if (is_complement) ++at_;
    while (at_ < text_.size()) {
      const std::optional<uint32_t> first = Character("^$\\.*+?()[]{}|/-");
      if (!first) return std::nullopt;
      uint32_t last = *first;
      if (at_ + 1 < text_.size() && text_[at_] == '-') {
        ++at_;
        const std::optional<uint32_t> to = Character("^$\\.*+?()[]{}|/-");
        if (!to || *to < last) return std::nullopt;
        last = *to;
      }
      characters.Add(CodePoints({{*first, last}}));
    }
    if (is_complement) characters = characters.Complement();
    return characters.empty() ? std::nullopt : std::optional(PatternClass(characters));
  }

  // "..."; `text` is what is inside.
  std::optional<Pattern> Literal() {
    std::vector<Pattern> characters;
    while (at_ < text_.size()) {
      const std::optional<uint32_t> character = Character("'\"?\\/");
      if (!character) return std::nullopt;
      characters.push_back(PatternClass(CodePoints({{*character, *character}})));
    }
    return PatternSequence(characters);
  }

 private:
  static bool IsCharacter(uint32_t code_point) {
    return code_point <= CodePoints::kMost && (code_point < 0xD800 || code_point > 0xDFFF);
  }

  // `themselves`: what stands for itself behind a backslash. None: not understood.
  std::optional<uint32_t> Character(std::string_view themselves) {
    if (text_[at_] != '\\') {
      const Utf8Unit unit = NextUtf8(text_.substr(at_));
      if (unit.kind != Utf8Kind::kValid) return std::nullopt;
      const uint32_t code_point = CodePointsOf(text_.substr(at_, unit.bytes))[0];
      at_ += unit.bytes;
      return code_point;
    }
    if (at_ + 1 == text_.size()) return std::nullopt;
    const char escape = text_[at_ + 1];
    at_ += 2;
    if (themselves.find(escape) != std::string_view::npos) return static_cast<unsigned char>(escape);
    switch (escape) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '"':
      case '\'':
        return static_cast<unsigned char>(escape);
      case 'x':
        return Hex(0);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      default:
        return std::nullopt;
    }
  }

  // `digits`: as many; 0: all that are there.
  std::optional<uint32_t> Hex(size_t digits) {
    const std::string_view left = text_.substr(at_, digits == 0 ? std::string_view::npos : digits);
    uint32_t code_point = 0;
    const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), code_point, 16);
    const auto read = static_cast<size_t>(end - left.data());
    if (error != std::errc() || read < digits || !IsCharacter(code_point)) return std::nullopt;
    at_ += read;
    return code_point;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

class RepetitionWriter {
 public:
  RepetitionWriter(std::string_view grammar, const EbnfTree& tree, const ConstraintLimits& limits)
      : grammar_(grammar), tree_(tree), limits_(limits), patterns_(tree.rules.size()) {}

  std::string Write() {
    for (const EbnfTree::Rule& rule : tree_.rules) Visit(rule.body);
    text_ += grammar_.substr(written_);
    return std::move(text_);
  }

 private:
  enum class Progress { kNone, kBegun, kDone };
  struct RulePattern {
    Progress progress = Progress::kNone;
    std::optional<Pattern> pattern;  // none: of kDone, it is not regular
  };

  // In the order of the text.
  void Visit(const EbnfNode& node) {
    const bool is_counted = node.kind == EbnfNode::Kind::kRepeat && node.most > 1 &&
                            (node.most != EbnfNode::kNoMost || node.least > 1);
    if (is_counted) {
      const std::optional<Pattern> pattern = PatternOf(node, 0);
      if (pattern && !pattern->text.empty()) {
        text_ += grammar_.substr(written_, node.begin - written_);
        text_ += EbnfPattern(*pattern).text;
        written_ = node.end;
        return;
      }
    }
    for (const EbnfNode& part : node.parts) Visit(part);
  }

  // None: not regular, not understood, or too large.
  std::optional<Pattern> PatternOf(const EbnfNode& node, int32_t rules_deep) {
    std::optional<Pattern> pattern = MakePattern(node, rules_deep);
    if (!pattern) return std::nullopt;
    text_left_ -= static_cast<int64_t>(pattern->text.size());
    const bool is_too_large = text_left_ < 0 || pattern->size > kPatternSymbols * limits_.max_size ||
                              pattern->empty_side_by_side > kMostEmptySideBySide;
    return is_too_large ? std::nullopt : pattern;
  }

  std::optional<Pattern> MakePattern(const EbnfNode& node, int32_t rules_deep) {
    if (node.kind == EbnfNode::Kind::kRule) return PatternOfRule(node.rule, rules_deep + 1);
    if (node.kind == EbnfNode::Kind::kText) {
      TextReader reader(grammar_.substr(node.begin + 1, node.end - node.begin - 2));
      return grammar_[node.begin] == '[' ? reader.Class() : reader.Literal();
    }
    std::vector<Pattern> parts;
    for (const EbnfNode& part : node.parts) {
      std::optional<Pattern> pattern = PatternOf(part, rules_deep);
      if (!pattern) return std::nullopt;
      parts.push_back(*std::move(pattern));
    }
    if (node.kind == EbnfNode::Kind::kSequence) return PatternSequence(parts);
    if (node.kind == EbnfNode::Kind::kChoice) return PatternChoice(parts);
    return PatternRepeat(parts[0], node.least, node.most == EbnfNode::kNoMost ? kUnbounded : node.most);
  }

  std::optional<Pattern> PatternOfRule(int32_t rule, int32_t rules_deep) {
    if (rule == EbnfNode::kUnknownRule || rules_deep > kMostRulesDeep) return std::nullopt;
    RulePattern& made = patterns_[static_cast<size_t>(rule)];
    if (made.progress == Progress::kBegun) return std::nullopt;  // it leads back to itself
    if (made.progress == Progress::kNone) {
      made.progress = Progress::kBegun;
      made.pattern = PatternOf(tree_.rules[static_cast<size_t>(rule)].body, rules_deep);
      made.progress = Progress::kDone;
    }
    return made.pattern;
  }

  const std::string_view grammar_;
  const EbnfTree& tree_;
  const ConstraintLimits& limits_;
  std::vector<RulePattern> patterns_;  // of the rules
  int64_t text_left_ = kMostText;
  std::string text_;
  size_t written_ = 0;  // of the grammar
};

}  // namespace

std::string WithRegularRepetitions(std::string_view grammar, const ConstraintLimits& limits) {
  const std::optional<EbnfTree> tree = ParseEbnf(grammar);
  if (!tree) return std::string(grammar);
  return RepetitionWriter(grammar, *tree, limits).Write();
}

}  // namespace tramontane
