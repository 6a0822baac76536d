// The splitter for patterns that are not matched by hand.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/tokenizer/piece_splitter.h"

namespace tramontane {
namespace {

constexpr uint32_t kMaxHeapKibibytes = 20'000;  // of one match

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string ErrorText(int error) {
  char text[256];
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

class Pcre2Splitter final : public PieceSplitter {
 public:
  Pcre2Splitter(std::unique_ptr<pcre2_code, Free> code, std::unique_ptr<pcre2_match_context, Free> limits,
                UnmatchedText unmatched)
      : code_(std::move(code)), limits_(std::move(limits)), unmatched_(unmatched) {}

  Status Split(std::string_view text, std::vector<uint32_t>* ends) const override {
    ends->clear();
    const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create(1, nullptr));
    TM_CHECK(match != nullptr, "out of memory");
    // The caller has checked the text: checking it again at every piece would take quadratic time.
    const bool may_skip = unmatched_ == UnmatchedText::kIsPiece;
    const uint32_t options = PCRE2_NO_UTF_CHECK | (may_skip ? 0 : PCRE2_ANCHORED);
    for (size_t at = 0; at < text.size();) {
      const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                    options, match.get(), limits_.get());
      if (count == PCRE2_ERROR_NOMATCH && may_skip) {
        ends->push_back(static_cast<uint32_t>(text.size()));
        break;
      }
      const size_t* const found = pcre2_get_ovector_pointer(match.get());
      if (count >= 0 && found[0] > at) ends->push_back(static_cast<uint32_t>(found[0]));
      const size_t end = count < 0 ? at : found[1];
      if (end <= at) {
        const bool has_failed = count < 0 && count != PCRE2_ERROR_NOMATCH;
        return InvalidArgument("the tokenizer's pattern " +
                               (has_failed ? "fails at byte " + std::to_string(at) + ": " + ErrorText(count)
                                           : "matches nothing at byte " + std::to_string(at)));
      }
      at = end;
      ends->push_back(static_cast<uint32_t>(at));
    }
    return Status::Ok();
  }

 private:
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_context, Free> limits_;
  UnmatchedText unmatched_;
};

}  // namespace

StatusOr<std::unique_ptr<const PieceSplitter>> MakePcre2Splitter(const std::string& pattern,
                                                                 UnmatchedText unmatched) {
  if (pattern.empty() || pattern.size() > PieceSplitter::kMaxPatternBytes) {
    return DataLoss("a pattern of " + std::to_string(pattern.size()) + " bytes is not 1 to " +
                    std::to_string(PieceSplitter::kMaxPatternBytes));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  // \C could end a piece inside a character.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  std::unique_ptr<pcre2_code, Free> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                                       pattern.size(), kOptions, &error, &offset, nullptr));
  if (code == nullptr) {
    return DataLoss("not a regular expression at byte " + std::to_string(offset) + ": " + ErrorText(error));
  }
  uint32_t may_match_nothing = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &may_match_nothing);
  if (unmatched == UnmatchedText::kIsPiece && may_match_nothing != 0) {
    return DataLoss("a regular expression that may match no text at all");
  }
  std::unique_ptr<pcre2_match_context, Free> limits(pcre2_match_context_create(nullptr));
  TM_CHECK(limits != nullptr, "out of memory");
  pcre2_set_match_limit(limits.get(), PieceSplitter::kMaxMatchSteps);
  pcre2_set_heap_limit(limits.get(), kMaxHeapKibibytes);
  return std::unique_ptr<const PieceSplitter>(
      new Pcre2Splitter(std::move(code), std::move(limits), unmatched));
}

}  // namespace tramontane
