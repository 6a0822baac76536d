#include "models/grammar/string_grammar.h"

#include <algorithm>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/grammar/regex_grammar.h"
#include "models/grammar/regex_meeting.h"
#include "models/grammar/string_formats.h"

namespace tramontane {
namespace {

// Of formats as they are written beside a pattern; what is larger meets their shapes.
constexpr int64_t kMostWrittenSymbols = 512;

Status StringFault(const char* keyword, const std::string& what) {
  return InvalidArgument(what).WithField(keyword);
}

StatusOr<std::vector<RegexNode>> ParsePatterns(const StringKeywords& keywords,
                                               const ConstraintLimits& limits) {
  std::vector<RegexNode> nodes;
  for (const std::string& pattern : keywords.patterns) {
    if (FirstInvalidUtf8(pattern)) return StringFault(".pattern", "half of a surrogate pair is no text");
    StatusOr<RegexNode> node = ParseRegex(pattern, RegexReading::Match::kAnywhere, limits);
    if (!node.ok()) return StringFault(".pattern", node.status().message());
    nodes.push_back(*std::move(node));
  }
  return nodes;
}

RegexNode ParseOurs(const char* expression) {
  return ParseRegex(expression, RegexReading::Match::kWhole, ConstraintLimits{}).value();
}

std::vector<const StringFormat*> KnownFormats(const StringKeywords& keywords) {
  std::vector<const StringFormat*> known;
  for (const std::string& name : keywords.formats) {
    const StringFormat* format = FindStringFormat(name);
    if (format != nullptr && std::find(known.begin(), known.end(), format) == known.end())
      known.push_back(format);
  }
  return known;
}

bool RepeatsBeyond(const RegexNode& node, int64_t most) {
  return (node.kind == RegexNode::Kind::kRepeat && (node.least > most || node.most > most)) ||
         std::any_of(node.parts.begin(), node.parts.end(),
                     [most](const RegexNode& part) { return RepeatsBeyond(part, most); });
}

// All of them, and at most how long a text may be so that they are.
struct Met {
  RegexNode node;
  int64_t most = kUnbounded;
};
StatusOr<Met> Meet(const std::vector<RegexNode>& patterns, const std::vector<const StringFormat*>& formats,
                   RegexWork* work) {
  std::vector<RegexNode> written;
  for (const StringFormat* format : formats) written.push_back(ParseOurs(format->written));
  written.insert(written.end(), patterns.begin(), patterns.end());
  const bool has_shapes = std::any_of(formats.begin(), formats.end(),
                                      [](const StringFormat* format) { return format->shape != nullptr; });
  StatusOr<RegexNode> node = MeetingOf(written, work, has_shapes ? kMostWrittenSymbols : kMostMeetingSymbols);
  if (node.ok()) return Met{*std::move(node), kUnbounded};
  if (!has_shapes || written.size() == 1) return node.status();
  Met met;
  for (const StringFormat* format : formats) {
    if (format->shape_most == kUnbounded) continue;
    met.most = met.most == kUnbounded ? format->shape_most : std::min(met.most, format->shape_most);
  }
  for (const auto form : {&StringFormat::shape, &StringFormat::simple}) {
    std::vector<RegexNode> shapes = patterns;
    for (const StringFormat* format : formats) {
      const char* shape = format->*form != nullptr ? format->*form : format->shape;
      shapes.push_back(ParseOurs(shape != nullptr ? shape : format->written));
    }
    node = MeetingOf(shapes, work);
    if (!node.ok()) continue;
    met.node = *std::move(node);
    return met;
  }
  return node.status();
}

// The names of what is there: "pattern and format".
std::string KeywordNames(const StringKeywords& keywords) {
  std::string names;
  if (!keywords.patterns.empty()) names = "pattern";
  if (!keywords.formats.empty()) names += names.empty() ? "format" : " and format";
  return names;
}

}  // namespace

StatusOr<Pattern> StringGrammar(const StringKeywords& keywords, const ConstraintLimits& limits,
                                RegexWork* work, RegexWork* overlaps) {
  const auto in_string = RegexReading::Spelling::kInJsonString;
  TM_ASSIGN_OR_RETURN(const std::vector<RegexNode> patterns, ParsePatterns(keywords, limits));
  const std::vector<const StringFormat*> formats = KnownFormats(keywords);
  const char* const field = !patterns.empty() ? ".pattern" : !formats.empty() ? ".format" : ".maxLength";
  Met met{AnyText(), kUnbounded};
  if (!patterns.empty() || !formats.empty()) {
    StatusOr<Met> meeting = Meet(patterns, formats, work);
    if (!meeting.ok()) {
      const bool alone = patterns.size() + formats.size() == 1;
      return StringFault(
          field, (alone ? "" : "beside the other patterns and formats ") + meeting.status().message());
    }
    met = *std::move(meeting);
  }
  const int64_t most = keywords.most == kUnbounded ? met.most
                       : met.most == kUnbounded    ? keywords.most
                                                   : std::min(keywords.most, met.most);
  std::optional<BoundedRegex> bounded = WithinLengths(met.node, keywords.least, most);
  if (!bounded) {
    return StringFault(keywords.most == kUnbounded ? ".minLength" : ".maxLength",
                       "leaves no text under " + KeywordNames(keywords));
  }
  if (keywords.most > limits.max_repeats && RepeatsBeyond(bounded->node, limits.max_repeats)) {
    return StringFault(".maxLength", "is " + std::to_string(keywords.most) + "; at most " +
                                         std::to_string(limits.max_repeats) + " is supported");
  }
  if (overlaps != nullptr && !patterns.empty() && !IsNearlyDeterministic(bounded->node, overlaps)) {
    return StringFault(field, "has repetitions that overlap too much");
  }
  StatusOr<Pattern> pattern = ToPattern(bounded->node, in_string, limits);
  if (!pattern.ok()) return StringFault(field, pattern.status().message());
  return pattern;
}

StatusOr<bool> StringHolds(const StringKeywords& keywords, const std::string& text,
                           const ConstraintLimits& limits, RegexWork* work) {
  const auto length = static_cast<int64_t>(CodePointsOf(text).size());
  if (length < keywords.least || (keywords.most != kUnbounded && length > keywords.most)) return false;
  TM_ASSIGN_OR_RETURN(std::vector<RegexNode> nodes, ParsePatterns(keywords, limits));
  for (const StringFormat* format : KnownFormats(keywords)) {
    const bool anything = format->outer == nullptr && format->shape != nullptr;
    if (!anything) nodes.push_back(ParseOurs(format->outer != nullptr ? format->outer : format->written));
  }
  for (const RegexNode& node : nodes) {
    const std::optional<RegexAutomaton> automaton = ToAutomaton(node, work);
    if (!automaton)
      return StringFault(".pattern", "is too large to look for in the values of enum and const");
    if (!Matches(*automaton, text)) return false;
  }
  return true;
}

}  // namespace tramontane
