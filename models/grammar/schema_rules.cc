#include "models/grammar/schema_rules.h"

#include <algorithm>

#include "models/grammar/schema_place.h"

namespace tramontane {

const std::string* SchemaRules::Find(const std::string& key) const {
  const auto found = names_.find(key);
  return found == names_.end() ? nullptr : &found->second;
}

std::string SchemaRules::Begin(const std::string& key) {
  begun_.push_back(names_.emplace(key, "r" + std::to_string(next_name_++)).first);
  return begun_.back()->second;
}

Status SchemaRules::Add(const std::string& name, const Ebnf& body, const std::string& path) {
  size_ = std::min(kMostGrammarSize, size_ + body.size);
  pattern_size_ = std::min(kMostGrammarSize, pattern_size_ + body.pattern_size);
  if (size_ > most_size_) {
    return TooLargeFault(path, most_size_, " symbols of grammar, repetitions written out");
  }
  if (pattern_size_ > most_pattern_size_) {
    return TooLargeFault(path, most_pattern_size_,
                         " symbols of strings and patterns, repetitions written out");
  }
  text_ += EbnfRule(name, body);
  return {};
}

StatusOr<Ebnf> SchemaRules::Rule(const Ebnf& body, const std::string& path) {
  if (body.size <= 1) return body;  // a name, a character
  if (const std::string* known = Find(body.text)) return EbnfName(*known);
  const std::string name = Begin(body.text);
  TM_RETURN_IF_ERROR(Add(name, body, path));
  return EbnfName(name);
}

StatusOr<Ebnf> SchemaRules::Repeated(const Ebnf& part, int64_t least, int64_t most, const std::string& path) {
  Ebnf tail = most == kUnbounded ? EbnfAnyNumber(part) : EbnfEmpty();
  for (int64_t n = most == kUnbounded ? least : most; n > 0; --n) {
    const bool is_empty = tail.text == EbnfEmpty().text;
    const Ebnf next = is_empty ? part : EbnfSequence({part, tail});
    TM_ASSIGN_OR_RETURN(tail, Rule(n > least ? EbnfOptional(next) : next, path));
  }
  return tail;
}

void SchemaRules::ReturnTo(const Mark& mark) {
  text_.resize(mark.text_bytes);
  size_ = mark.size;
  pattern_size_ = mark.pattern_size;
  for (; begun_.size() > mark.names; begun_.pop_back()) names_.erase(begun_.back());
}

}  // namespace tramontane
