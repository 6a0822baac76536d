// GrammarBackend: the library that compiles grammars, behind one call. xgrammar_backend.cc is the only file
// that knows it; absent_backend.cc stands in where the build has no such library.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "models/grammar/grammar.h"
#include "models/grammar/vocabulary.h"

namespace tramontane {

class GrammarBackend {
 public:
  virtual ~GrammarBackend() = default;
  // `ebnf` has a rule "root". Any thread; milliseconds to seconds. INVALID_ARGUMENT: the library's own words.
  // Where `work` is stopped: ABORTED. The grammars may outlive the backend.
  virtual StatusOr<std::shared_ptr<const Grammar>> Compile(const std::string& ebnf,
                                                           GrammarWork& work) const = 0;
};

// Null: this build has none.
std::unique_ptr<GrammarBackend> MakeGrammarBackend(GrammarVocabulary vocabulary);

}  // namespace tramontane
