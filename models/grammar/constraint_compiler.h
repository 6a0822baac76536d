// ConstraintCompiler: from what a caller asked to a Grammar of this model's vocabulary, in two halves; keeps
// what came of each.
//
// Any thread. Translate reads what a caller wrote and finds its faults, in time bounded by its size;
// CompileTranslated is the backend's part, and takes milliseconds to seconds: both belong on a worker.
// Always: what is kept takes at most max_cache_bytes; one constraint is compiled once at a time, others that
// want it wait for it. What took too long is kept as well: the same constraint has the same answer, and its
// time is not spent again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"
#include "models/grammar/grammar.h"
#include "models/grammar/grammar_backend.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct ConstraintStats {
  int64_t compiled = 0;  // since the start
  int64_t cached = 0;
  int64_t cached_bytes = 0;
};

// A constraint as the backend takes it. Does not change: any thread.
struct TranslatedConstraint {
  std::string key;  // of what was asked: equal keys, equal constraints
  std::string ebnf;
  // Parts of a schema that the grammar does not hold a text to, by path and keyword.
  std::vector<std::string> unenforced = {};
};

class ConstraintCompiler {
 public:
  using Outcome = StatusOr<std::shared_ptr<const Grammar>>;
  // Null: this build has no structured output. `vocab_size` is that of the model's logits.
  static std::unique_ptr<ConstraintCompiler> Create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                    const std::vector<int32_t>& eos_ids,
                                                    const ConstraintLimits& limits);
  ConstraintCompiler(std::unique_ptr<GrammarBackend> backend, const ConstraintLimits& limits);

  // INVALID_ARGUMENT says what is wrong; its field is a path in the schema, if it is a schema's fault.
  StatusOr<std::shared_ptr<const TranslatedConstraint>> Translate(const ConstraintSpec& spec);
  // What `make` gives, which is not called where the same `key` is kept. For callers who know what they ask
  // by less than a spec. Keys of specs begin with a digit.
  StatusOr<std::shared_ptr<const TranslatedConstraint>> TranslateOnce(
      std::string key, const std::function<StatusOr<TranslatedConstraint>()>& make);
  StatusOr<TranslatedConstraint> TranslateNow(const ConstraintSpec& spec) const;  // without its key
  // `wanted` is asked from time to time, on this thread: once it is false the end comes soon, CANCELLED.
  // Empty: always wanted.
  Outcome CompileTranslated(const std::shared_ptr<const TranslatedConstraint>& translated,
                            const std::function<bool()>& wanted = {});
  // Null: it is not kept, or came to no grammar. Does not wait.
  std::shared_ptr<const Grammar> FindCompiled(const TranslatedConstraint& translated);

  // Both halves.
  Outcome Compile(const ConstraintSpec& spec, const std::function<bool()>& wanted = {});

  ConstraintStats stats() const;
  const ConstraintLimits& limits() const { return limits_; }

 private:
  struct Kept {
    std::shared_ptr<const TranslatedConstraint> translated;
    std::optional<Outcome> outcome;  // none: nobody has wanted it compiled
    int64_t bytes = 0;
  };

  // The right to compile `key`, given back with what came of it, whatever happens meanwhile.
  class Turn;
  // What is kept, or null and the turn: once nobody else compiles the same.
  Outcome FindOrTakeTurn(const std::string& key, const std::function<bool()>& wanted);
  // Sets `*took_too_long` where that is what came of it.
  Outcome CompileNow(const std::string& ebnf, const std::function<bool()>& wanted, bool* took_too_long) const;
  StatusOr<std::string> ToEbnf(const ConstraintSpec& spec) const;
  Status CheckSize(const ConstraintSpec& spec) const;
  // These three hold mutex_.
  const Kept* Find(const std::string& key);  // null: not kept
  void Keep(std::shared_ptr<const TranslatedConstraint> translated, std::optional<Outcome> outcome);
  void Drop(std::list<Kept>::iterator kept);

  const std::unique_ptr<GrammarBackend> backend_;
  const ConstraintLimits limits_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable compiled_one_;
  std::unordered_set<std::string> compiling_;
  std::list<Kept> kept_;  // the most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_key_;
  ConstraintStats stats_;
};

}  // namespace tramontane
