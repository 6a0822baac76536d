#include "models/grammar/grammar_backend.h"

namespace tramontane {

std::unique_ptr<GrammarBackend> MakeGrammarBackend(GrammarVocabulary) { return nullptr; }

}  // namespace tramontane
