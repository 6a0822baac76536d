#include "models/tokenizer/detokenizer.h"

#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"

namespace tramontane {

void Detokenizer::Append(int32_t id, std::string* text) {
  pending_ += message_.Next(id);
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8(rest);
    if (unit.kind == Utf8Kind::kTruncated) break;
    *text += unit.kind == Utf8Kind::kValid ? rest.substr(0, unit.bytes) : kReplacementCharacter;
    rest.remove_prefix(unit.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  TM_DCHECK(pending_.size() <= kMaxPendingBytes, "%zu bytes held back", pending_.size());
}

void Detokenizer::Flush(std::string* text) {
  if (!pending_.empty()) *text += kReplacementCharacter;
  pending_.clear();
}

}  // namespace tramontane
