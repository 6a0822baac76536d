#include "models/tokenizer/fill_in_middle.h"

#include <algorithm>
#include <optional>
#include <string>

namespace tramontane {
namespace {

// Text in front of a suffix while it is encoded: no vocabulary joins it to what follows.
constexpr std::string_view kSomething = "☺";

bool StartsWith(const std::vector<int32_t>& ids, const std::vector<int32_t>& start) {
  return ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
}

// The ids of a text that stands behind another.
StatusOr<std::vector<int32_t>> EncodeBehindSomething(const Tokenizer& tokenizer, std::string_view text) {
  if (text.empty()) return std::vector<int32_t>();
  TM_ASSIGN_OR_RETURN(std::vector<int32_t> plain, tokenizer.Encode(text));
  TM_ASSIGN_OR_RETURN(const std::vector<int32_t> something, tokenizer.Encode(kSomething));
  TM_ASSIGN_OR_RETURN(std::vector<int32_t> both,
                      tokenizer.Encode(std::string(kSomething) + std::string(text)));
  if (!StartsWith(both, something)) return plain;  // a sign that changes the one before it
  both.erase(both.begin(), both.begin() + static_cast<ptrdiff_t>(something.size()));
  return both;
}

}  // namespace

bool CanFillInMiddle(const Tokenizer& tokenizer) {
  return tokenizer.ControlId("[SUFFIX]") && tokenizer.ControlId("[PREFIX]");
}

StatusOr<std::vector<int32_t>> FillInMiddleIds(const Tokenizer& tokenizer, std::string_view prefix,
                                               std::string_view suffix, bool add_bos) {
  const std::optional<int32_t> suffix_id = tokenizer.ControlId("[SUFFIX]");
  const std::optional<int32_t> prefix_id = tokenizer.ControlId("[PREFIX]");
  if (!suffix_id || !prefix_id) {
    return InvalidArgument(
               std::string("is given, and the model cannot fill in the middle: its vocabulary has no ") +
               (suffix_id ? "[PREFIX]" : "[SUFFIX]"))
        .WithField("suffix");
  }
  StatusOr<std::vector<int32_t>> behind = EncodeBehindSomething(tokenizer, suffix);
  if (!behind.ok()) return Status(behind.status()).WithField("suffix");
  StatusOr<std::vector<int32_t>> before = tokenizer.Encode(prefix);
  if (!before.ok()) return Status(before.status()).WithField("text");
  std::vector<int32_t> ids;
  if (add_bos && tokenizer.adds_bos()) ids.push_back(tokenizer.bos_id());
  ids.push_back(*suffix_id);
  ids.insert(ids.end(), behind->begin(), behind->end());
  ids.push_back(*prefix_id);
  ids.insert(ids.end(), before->begin(), before->end());
  return ids;
}

}  // namespace tramontane
