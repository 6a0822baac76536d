// SchemaRules: the rules that a schema has come to so far, their names, and their size, which is bounded.
//
// One thread. Always: what is added can be taken back as far as a mark, names and all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/ebnf.h"

namespace tramontane {

class SchemaRules {
 public:
  // Symbols, repetitions written out (pattern.h): `most_size`, of which `most_pattern_size` in patterns.
  SchemaRules(int64_t most_size, int64_t most_pattern_size)
      : most_size_(most_size), most_pattern_size_(most_pattern_size) {}

  // Null: no rule was begun under `key`, which is no text of Ebnf.
  const std::string* Find(const std::string& key) const;
  // The name of a rule that is added later, so that the rule may refer to itself.
  std::string Begin(const std::string& key);
  // Errors, here and below, are of the field `path`.
  Status Add(const std::string& name, const Ebnf& body, const std::string& path);

  // A rule of its own; the same body twice is one rule.
  StatusOr<Ebnf> Rule(const Ebnf& body, const std::string& path);
  // From `least` to `most` times, as a rule for each time that is left.
  StatusOr<Ebnf> Repeated(const Ebnf& part, int64_t least, int64_t most, const std::string& path);

  struct Mark {
    size_t text_bytes;
    size_t names;
    int64_t size;
    int64_t pattern_size;
  };
  Mark mark() const { return {text_.size(), begun_.size(), size_, pattern_size_}; }
  void ReturnTo(const Mark& mark);

  const std::string& text() const { return text_; }

 private:
  using Names = std::map<std::string, std::string>;

  const int64_t most_size_;
  const int64_t most_pattern_size_;
  std::string text_;
  int64_t size_ = 0;
  int64_t pattern_size_ = 0;
  int32_t next_name_ = 1;
  Names names_;                         // key, or a body's text -> name
  std::vector<Names::iterator> begun_;  // of names_, in order
};

}  // namespace tramontane
