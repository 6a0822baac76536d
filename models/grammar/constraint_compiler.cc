#include "models/grammar/constraint_compiler.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/grammar/ebnf.h"
#include "models/grammar/ebnf_ambiguity.h"
#include "models/grammar/ebnf_check.h"
#include "models/grammar/ebnf_repetitions.h"
#include "models/grammar/json_schema_grammar.h"
#include "models/grammar/regex_grammar.h"

namespace tramontane {
namespace {

// Different specs have different keys.
std::string KeyOf(const ConstraintSpec& spec) {
  std::string key = std::to_string(static_cast<int>(spec.kind)) + ' ' + spec.text;
  for (const std::string& choice : spec.choices) key += std::to_string(choice.size()) + ' ' + choice;
  return key;
}

constexpr std::chrono::milliseconds kLookWhileWaiting(50);  // whether the caller is still there

Status NotWanted() { return Status(StatusCode::kCancelled, "nobody waits for the constraint any more"); }

}  // namespace

std::unique_ptr<ConstraintCompiler> ConstraintCompiler::Create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                               const std::vector<int32_t>& eos_ids,
                                                               const ConstraintLimits& limits) {
  std::unique_ptr<GrammarBackend> backend =
      MakeGrammarBackend(MakeGrammarVocabulary(tokenizer, vocab_size, eos_ids));
  if (backend == nullptr) return nullptr;
  return std::make_unique<ConstraintCompiler>(std::move(backend), limits);
}

ConstraintCompiler::ConstraintCompiler(std::unique_ptr<GrammarBackend> backend,
                                       const ConstraintLimits& limits)
    : backend_(std::move(backend)), limits_(limits) {}

class ConstraintCompiler::Turn {
 public:
  Turn(ConstraintCompiler& compiler, const std::string& key) : compiler_(compiler), key_(key) {}
  ~Turn() {
    {
      std::lock_guard lock(compiler_.mutex_);
      compiler_.compiling_.erase(key_);
      if (outcome_.has_value()) compiler_.Keep(key_, *outcome_);
    }
    compiler_.compiled_one_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void Give(const Outcome& outcome) { outcome_ = outcome; }

 private:
  ConstraintCompiler& compiler_;
  const std::string& key_;
  std::optional<Outcome> outcome_;
};

StatusOr<std::shared_ptr<const Grammar>> ConstraintCompiler::Compile(const ConstraintSpec& spec,
                                                                     const std::function<bool()>& wanted) {
  TM_RETURN_IF_ERROR(CheckSize(spec));
  const std::string key = KeyOf(spec);
  TM_ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> kept, FindOrTakeTurn(key, wanted));
  if (kept != nullptr) return kept;
  Turn turn(*this, key);
  bool took_too_long = false;
  const Outcome outcome = CompileNow(spec, wanted, &took_too_long);
  if (outcome.ok() || took_too_long) turn.Give(outcome);
  return outcome;
}

ConstraintCompiler::Outcome ConstraintCompiler::FindOrTakeTurn(const std::string& key,
                                                               const std::function<bool()>& wanted) {
  std::unique_lock lock(mutex_);
  const auto my_turn = [&] { return !compiling_.contains(key); };
  while (!compiled_one_.wait_for(lock, kLookWhileWaiting, my_turn)) {
    if (wanted && !wanted()) return NotWanted();
  }
  if (const Outcome* kept = Find(key)) return *kept;
  compiling_.insert(key);
  return std::shared_ptr<const Grammar>();
}

ConstraintCompiler::Outcome ConstraintCompiler::CompileNow(const ConstraintSpec& spec,
                                                           const std::function<bool()>& wanted,
                                                           bool* took_too_long) const {
  TM_ASSIGN_OR_RETURN(const std::string ebnf, ToEbnf(spec));
  if (wanted && !wanted()) return NotWanted();
  GrammarWork work{.most_ns = limits_.max_compile_ns, .wanted = wanted};
  Outcome outcome = backend_->Compile(ebnf, work);
  if (!work.stopped) return outcome;
  if (wanted && !wanted()) return NotWanted();
  *took_too_long = true;
  return InvalidArgument("takes more than " + std::to_string(limits_.max_compile_ns / 1'000'000) +
                         " ms to compile (max_compile_ms); fewer or smaller repetitions are quicker");
}

ConstraintStats ConstraintCompiler::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

Status ConstraintCompiler::CheckSize(const ConstraintSpec& spec) const {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (bytes <= static_cast<size_t>(limits_.max_bytes)) return {};
  return InvalidArgument("has " + std::to_string(bytes) + " bytes; at most " +
                         std::to_string(limits_.max_bytes) + " are allowed");
}

StatusOr<std::string> ConstraintCompiler::ToEbnf(const ConstraintSpec& spec) const {
  switch (spec.kind) {
    case ConstraintSpec::Kind::kJsonSchema:
      return JsonSchemaGrammar(spec.text, limits_);
    case ConstraintSpec::Kind::kJsonObject:
      return JsonObjectGrammar();
    case ConstraintSpec::Kind::kRegex: {
      TM_ASSIGN_OR_RETURN(const Pattern pattern, RegexToPattern(spec.text, {}, limits_));
      return EbnfRule("root", EbnfPattern(pattern));
    }
    case ConstraintSpec::Kind::kGrammar:
      TM_RETURN_IF_ERROR(CheckEbnf(spec.text, limits_));
      TM_RETURN_IF_ERROR(CheckUnambiguous(spec.text));
      return WithRegularRepetitions(spec.text, limits_);
    case ConstraintSpec::Kind::kChoice: {
      if (spec.choices.empty()) return InvalidArgument("has no texts; at least one is needed");
      if (spec.choices.size() > static_cast<size_t>(limits_.max_choices)) {
        return InvalidArgument("has " + std::to_string(spec.choices.size()) + " texts; at most " +
                               std::to_string(limits_.max_choices) + " are allowed");
      }
      std::vector<Pattern> alternatives;
      for (size_t i = 0; i < spec.choices.size(); ++i) {
        if (spec.choices[i].empty())
          return InvalidArgument("has an empty text at index " + std::to_string(i));
        alternatives.push_back(PatternLiteral(spec.choices[i]));
      }
      return EbnfRule("root", EbnfPattern(PatternChoice(alternatives)));
    }
  }
  return Internal("a constraint of no kind");
}

const ConstraintCompiler::Outcome* ConstraintCompiler::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return &found->second->outcome;
}

void ConstraintCompiler::Keep(const std::string& key, const Outcome& outcome) {
  if (outcome.ok()) ++stats_.compiled;
  const int64_t bytes =
      static_cast<int64_t>(key.size()) +
      (outcome.ok() ? (*outcome)->memory_bytes() : static_cast<int64_t>(outcome.status().message().size()));
  if (bytes > limits_.max_cache_bytes) return;
  kept_.push_front({key, outcome, bytes});
  by_key_[key] = kept_.begin();
  stats_.cached_bytes += bytes;
  while (stats_.cached_bytes > limits_.max_cache_bytes) {
    stats_.cached_bytes -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
  stats_.cached = static_cast<int64_t>(kept_.size());
}

}  // namespace tramontane
