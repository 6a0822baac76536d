#include "models/quantized/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr std::string_view kExpressionMark = "re:";
constexpr uint32_t kMaxSearchKibibytes = 1024;

struct FreeSearch {
  void operator()(pcre2_match_context* limits) const { pcre2_match_context_free(limits); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string TextOfError(int error) {
  char text[256];
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

StatusOr<ModulePattern> ModulePattern::Parse(const std::string& text) {
  ModulePattern pattern(text);
  if (!text.starts_with(kExpressionMark)) return pattern;
  const std::string_view expression = std::string_view(text).substr(kExpressionMark.size());
  if (expression.size() > kMaxBytes) {
    return InvalidArgument("an expression has " + std::to_string(expression.size()) +
                           " bytes; the limit is " + std::to_string(kMaxBytes));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* const code =
      pcre2_compile(Units(expression), expression.size(), kOptions, &error, &offset, nullptr);
  if (code == nullptr) {
    return InvalidArgument(text + " is no regular expression at byte " + std::to_string(offset) + ": " +
                           TextOfError(error));
  }
  pattern.expression_ = std::shared_ptr<pcre2_code>(code, [](pcre2_code* owned) { pcre2_code_free(owned); });
  return pattern;
}

StatusOr<bool> ModulePattern::Matches(const std::string& name) const {
  if (expression_ == nullptr) return name == text_;
  const std::unique_ptr<pcre2_match_context, FreeSearch> limits(pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, FreeSearch> found(pcre2_match_data_create(1, nullptr));
  TM_CHECK(limits != nullptr && found != nullptr, "out of memory");
  pcre2_set_match_limit(limits.get(), kMaxSearchSteps);
  pcre2_set_heap_limit(limits.get(), kMaxSearchKibibytes);
  const int count = pcre2_match(static_cast<const pcre2_code*>(expression_.get()), Units(name), name.size(),
                                0, 0, found.get(), limits.get());
  if (count >= 0) return true;
  if (count == PCRE2_ERROR_NOMATCH) return false;
  return ResourceExhausted(text_ + " cannot be looked for in " + name + ": " + TextOfError(count) +
                           "; the limit is " + std::to_string(kMaxSearchSteps) + " steps");
}

namespace {

// A module of Mistral's own files as Hugging Face's call it, which configs of either mean; "" for others.
std::string HuggingFaceName(const std::string& module) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {".attention.wq", ".self_attn.q_proj"},
      {".attention.wk", ".self_attn.k_proj"},
      {".attention.wv", ".self_attn.v_proj"},
      {".attention.wo", ".self_attn.o_proj"},
      {".feed_forward.w1", ".mlp.gate_proj"},
      {".feed_forward.w2", ".mlp.down_proj"},
      {".feed_forward.w3", ".mlp.up_proj"},
      {".feed_forward.experts.", ".block_sparse_moe.experts."},
      {".feed_forward.gate", ".block_sparse_moe.gate"}};
  if (module == "output") return "lm_head";
  if (module == "tok_embeddings") return "model.embed_tokens";
  if (!module.starts_with("layers.")) return "";
  for (const auto& [own, other] : kParts) {
    const size_t at = module.find(own);
    if (at == std::string::npos) continue;
    return "model." + module.substr(0, at) + std::string(other) + module.substr(at + own.size());
  }
  return "";
}

}  // namespace

ModuleNames NamesOfModule(const std::string& module) {
  constexpr std::string_view kOldBody = "language_model.model.", kBody = "model.language_model.";
  // Plain models have a head of the newer name too, whose name is that alone.
  constexpr std::string_view kOldHead = "language_model.lm_head", kHead = "lm_head";
  ModuleNames of;
  of.names.push_back(module);
  if (module.starts_with(kOldBody)) of.names.push_back(std::string(kBody) + module.substr(kOldBody.size()));
  if (module.starts_with(kBody)) of.names.push_back(std::string(kOldBody) + module.substr(kBody.size()));
  if (module == kOldHead) of.names.emplace_back(kHead);
  if (const std::string other = HuggingFaceName(module); !other.empty()) of.names.push_back(other);
  const bool embeds = module.ends_with("embed_tokens") || module.ends_with("tok_embeddings");
  of.classes = {embeds ? "Embedding" : "Linear", "Module"};
  return of;
}

namespace {

enum class MatchKind : int32_t { kName, kExpression, kClass, kNone };

StatusOr<MatchKind> KindOfMatch(const ModulePattern& pattern, const ModuleNames& module) {
  for (const std::string& name : module.names) {
    TM_ASSIGN_OR_RETURN(const bool matches, pattern.Matches(name));
    if (matches) return pattern.is_expression() ? MatchKind::kExpression : MatchKind::kName;
  }
  const bool of_class =
      std::find(module.classes.begin(), module.classes.end(), pattern.text()) != module.classes.end();
  return of_class ? MatchKind::kClass : MatchKind::kNone;
}

}  // namespace

StatusOr<bool> MatchesAny(const std::vector<ModulePattern>& patterns, const ModuleNames& module) {
  for (const ModulePattern& pattern : patterns) {
    TM_ASSIGN_OR_RETURN(const MatchKind kind, KindOfMatch(pattern, module));
    if (kind != MatchKind::kNone) return true;
  }
  return false;
}

StatusOr<int64_t> BestMatch(const std::vector<const ModulePattern*>& patterns, const ModuleNames& module) {
  int64_t best = -1;
  MatchKind best_kind = MatchKind::kNone;
  for (size_t i = 0; i < patterns.size(); ++i) {
    TM_ASSIGN_OR_RETURN(const MatchKind kind, KindOfMatch(*patterns[i], module));
    if (kind == MatchKind::kNone || kind > best_kind) continue;
    if (kind == best_kind && patterns[i]->text() > patterns[static_cast<size_t>(best)]->text()) continue;
    best = static_cast<int64_t>(i);
    best_kind = kind;
  }
  return best;
}

}  // namespace tramontane
