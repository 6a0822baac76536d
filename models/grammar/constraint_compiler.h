// ConstraintCompiler: from what a caller asked to a Grammar of this model's vocabulary; keeps what came of
// it.
//
// Any thread; Compile takes milliseconds to seconds and belongs on a worker. Always: what is kept takes at
// most max_cache_bytes; one constraint is compiled once at a time, others that want it wait for it. What took
// too long is kept as well: the same constraint has the same answer, and its time is not spent again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
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

class ConstraintCompiler {
 public:
  // Null: this build has no structured output. `vocab_size` is that of the model's logits.
  static std::unique_ptr<ConstraintCompiler> Create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                    const std::vector<int32_t>& eos_ids,
                                                    const ConstraintLimits& limits);
  ConstraintCompiler(std::unique_ptr<GrammarBackend> backend, const ConstraintLimits& limits);

  // INVALID_ARGUMENT says what is wrong; its field is a path in the schema, if it is a schema's fault.
  // `wanted` is asked from time to time, on this thread: once it is false the end comes soon, CANCELLED.
  // Empty: always wanted.
  StatusOr<std::shared_ptr<const Grammar>> Compile(const ConstraintSpec& spec,
                                                   const std::function<bool()>& wanted = {});

  ConstraintStats stats() const;
  const ConstraintLimits& limits() const { return limits_; }

 private:
  using Outcome = StatusOr<std::shared_ptr<const Grammar>>;
  struct Kept {
    std::string key;
    Outcome outcome;
    int64_t bytes = 0;
  };

  // The right to compile `key`, given back with what came of it, whatever happens meanwhile.
  class Turn;
  // What is kept, or null and the turn: once nobody else compiles the same.
  Outcome FindOrTakeTurn(const std::string& key, const std::function<bool()>& wanted);
  // Sets `*took_too_long` where that is what came of it.
  Outcome CompileNow(const ConstraintSpec& spec, const std::function<bool()>& wanted,
                     bool* took_too_long) const;
  StatusOr<std::string> ToEbnf(const ConstraintSpec& spec) const;
  Status CheckSize(const ConstraintSpec& spec) const;
  const Outcome* Find(const std::string& key);                // holds mutex_; null: not kept
  void Keep(const std::string& key, const Outcome& outcome);  // holds mutex_

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
