#include "models/grammar/constraint_compiler.h"

#include <chrono>
#include <iterator>
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

bool IsOfTools(const ConstraintSpec& spec) {
  return spec.kind == ConstraintSpec::Kind::kToolArguments || spec.kind == ConstraintSpec::Kind::kToolCalls;
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
  Turn(ConstraintCompiler& compiler, std::shared_ptr<const TranslatedConstraint> translated)
      : compiler_(compiler), translated_(std::move(translated)) {}
  ~Turn() {
    {
      std::lock_guard lock(compiler_.mutex_);
      compiler_.compiling_.erase(translated_->key);
      if (outcome_.has_value()) compiler_.Keep(translated_, std::move(outcome_));
    }
    compiler_.compiled_one_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void Give(const Outcome& outcome) { outcome_ = outcome; }

 private:
  ConstraintCompiler& compiler_;
  const std::shared_ptr<const TranslatedConstraint> translated_;
  std::optional<Outcome> outcome_;
};

StatusOr<std::shared_ptr<const TranslatedConstraint>> ConstraintCompiler::Translate(
    const ConstraintSpec& spec) {
  TM_RETURN_IF_ERROR(CheckSize(spec));
  return TranslateOnce(KeyOf(spec), [&] { return TranslateNow(spec); });
}

StatusOr<std::shared_ptr<const TranslatedConstraint>> ConstraintCompiler::TranslateOnce(
    std::string key, const std::function<StatusOr<TranslatedConstraint>()>& make) {
  {
    std::lock_guard lock(mutex_);
    if (const Kept* kept = Find(key)) return kept->translated;
  }
  TM_ASSIGN_OR_RETURN(TranslatedConstraint translated, make());
  translated.key = std::move(key);
  auto shared = std::make_shared<const TranslatedConstraint>(std::move(translated));
  std::lock_guard lock(mutex_);
  if (const Kept* kept = Find(shared->key)) return kept->translated;  // another was quicker
  Keep(shared, std::nullopt);
  return shared;
}

StatusOr<TranslatedConstraint> ConstraintCompiler::TranslateNow(const ConstraintSpec& spec) const {
  TM_RETURN_IF_ERROR(CheckSize(spec));
  TranslatedConstraint translated;
  if (IsOfTools(spec)) {
    const bool is_list = spec.kind == ConstraintSpec::Kind::kToolCalls;
    TM_ASSIGN_OR_RETURN(SchemaGrammar grammar, is_list ? RelaxedSchemaGrammar(spec.text, limits_)
                                                       : ToolArgumentsGrammar(spec.text, limits_));
    translated.ebnf = std::move(grammar.ebnf);
    translated.unenforced = std::move(grammar.unenforced);
  } else {
    TM_ASSIGN_OR_RETURN(translated.ebnf, ToEbnf(spec));
  }
  return translated;
}

ConstraintCompiler::Outcome ConstraintCompiler::CompileTranslated(
    const std::shared_ptr<const TranslatedConstraint>& translated, const std::function<bool()>& wanted) {
  TM_ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> kept, FindOrTakeTurn(translated->key, wanted));
  if (kept != nullptr) return kept;
  Turn turn(*this, translated);
  bool took_too_long = false;
  const Outcome outcome = CompileNow(translated->ebnf, wanted, &took_too_long);
  if (outcome.ok() || took_too_long) turn.Give(outcome);
  return outcome;
}

std::shared_ptr<const Grammar> ConstraintCompiler::FindCompiled(const TranslatedConstraint& translated) {
  std::lock_guard lock(mutex_);
  const Kept* kept = Find(translated.key);
  const bool is_compiled = kept != nullptr && kept->outcome.has_value() && kept->outcome->ok();
  return is_compiled ? **kept->outcome : nullptr;
}

ConstraintCompiler::Outcome ConstraintCompiler::Compile(const ConstraintSpec& spec,
                                                        const std::function<bool()>& wanted) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const TranslatedConstraint> translated, Translate(spec));
  return CompileTranslated(translated, wanted);
}

ConstraintCompiler::Outcome ConstraintCompiler::FindOrTakeTurn(const std::string& key,
                                                               const std::function<bool()>& wanted) {
  std::unique_lock lock(mutex_);
  const auto my_turn = [&] { return !compiling_.contains(key); };
  while (!compiled_one_.wait_for(lock, kLookWhileWaiting, my_turn)) {
    if (wanted && !wanted()) return NotWanted();
  }
  if (const Kept* kept = Find(key); kept != nullptr && kept->outcome.has_value()) return *kept->outcome;
  compiling_.insert(key);
  return std::shared_ptr<const Grammar>();
}

ConstraintCompiler::Outcome ConstraintCompiler::CompileNow(const std::string& ebnf,
                                                           const std::function<bool()>& wanted,
                                                           bool* took_too_long) const {
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
  if (IsOfTools(spec) || bytes <= static_cast<size_t>(limits_.max_bytes)) return {};
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
    case ConstraintSpec::Kind::kToolArguments:
    case ConstraintSpec::Kind::kToolCalls:
      break;  // have more to tell than a grammar
  }
  return Internal("a constraint of no kind");
}

const ConstraintCompiler::Kept* ConstraintCompiler::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return &*found->second;
}

// In the place of what was kept of the same.
void ConstraintCompiler::Keep(std::shared_ptr<const TranslatedConstraint> translated,
                              std::optional<Outcome> outcome) {
  auto bytes = static_cast<int64_t>(translated->key.size() + translated->ebnf.size());
  for (const std::string& part : translated->unenforced) bytes += std::ssize(part);
  if (outcome.has_value()) {
    if (outcome->ok()) ++stats_.compiled;
    bytes += outcome->ok() ? (**outcome)->memory_bytes() : std::ssize(outcome->status().message());
  }
  if (const auto before = by_key_.find(translated->key); before != by_key_.end()) Drop(before->second);
  if (bytes > limits_.max_cache_bytes) return;
  kept_.push_front({std::move(translated), std::move(outcome), bytes});
  by_key_[kept_.front().translated->key] = kept_.begin();
  stats_.cached_bytes += bytes;
  if (kept_.front().outcome.has_value()) ++stats_.cached;
  while (stats_.cached_bytes > limits_.max_cache_bytes) Drop(std::prev(kept_.end()));
}

void ConstraintCompiler::Drop(std::list<Kept>::iterator kept) {
  stats_.cached_bytes -= kept->bytes;
  if (kept->outcome.has_value()) --stats_.cached;
  by_key_.erase(kept->translated->key);
  kept_.erase(kept);
}

}  // namespace tramontane
