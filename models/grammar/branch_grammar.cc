#include "models/grammar/branch_grammar.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

class BranchGrammar::Matcher final : public GrammarMatcher {
 public:
  explicit Matcher(const BranchGrammar& grammar) : grammar_(grammar) { BeginHead(); }

  void FillMask(std::span<uint32_t> mask, GrammarWork& work) override {
    if (text_ == nullptr) {
      std::fill(mask.begin(), mask.end(), 0);
      return AllowHeads(mask);
    }
    text_->FillMask(mask, work);
    if (!work.stopped && MayRepeat(mask)) AllowFirst(mask);
  }

  bool Accept(int32_t token, GrammarWork& work) override {
    if (text_ == nullptr) return AcceptInHead(token);
    if (grammar_.branching_ == Branches::kOnce || !BeginsHead(token)) return text_->Accept(token, work);
    std::vector<uint32_t> mask(MaskWords(grammar_.vocab_size_));
    text_->FillMask(mask, work);
    if (work.stopped || !MayRepeat(mask)) return false;
    BeginHead();
    return AcceptInHead(token);
  }

 private:
  static void Allow(int32_t token, std::span<uint32_t> mask) {
    mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }

  void BeginHead() {
    text_ = nullptr;
    at_ = 0;
    open_.clear();
    for (const GrammarBranch& branch : grammar_.branches_) open_.push_back(&branch);
  }
  bool BeginsHead(int32_t token) const {
    return std::any_of(grammar_.branches_.begin(), grammar_.branches_.end(),
                       [token](const GrammarBranch& branch) { return branch.head[0] == token; });
  }
  void AllowHeads(std::span<uint32_t> mask) const {
    for (const GrammarBranch* branch : open_) Allow(branch->head[at_], mask);
  }
  void AllowFirst(std::span<uint32_t> mask) const {
    for (const GrammarBranch& branch : grammar_.branches_) Allow(branch.head[0], mask);
  }
  // Whether the text of which this is the mask is whole, and another branch may follow it.
  bool MayRepeat(std::span<const uint32_t> mask) const {
    return grammar_.branching_ == Branches::kRepeat &&
           std::any_of(grammar_.eos_ids_.begin(), grammar_.eos_ids_.end(),
                       [mask](int32_t eos) { return MaskAllows(mask, eos); });
  }

  bool AcceptInHead(int32_t token) {
    std::vector<const GrammarBranch*> still_open;
    for (const GrammarBranch* branch : open_) {
      if (branch->head[at_] == token) still_open.push_back(branch);
    }
    if (still_open.empty()) return false;
    open_ = std::move(still_open);
    ++at_;
    if (open_.front()->head.size() == at_) {
      text_ = open_.front()->grammar->NewMatcher(TextStart::kWithinMessage);
    }
    return true;
  }

  const BranchGrammar& grammar_;
  std::vector<const GrammarBranch*> open_;  // whose heads begin as the output does
  size_t at_ = 0;                           // ids of the head so far
  std::unique_ptr<GrammarMatcher> text_;    // behind the head; null: in it
};

BranchGrammar::BranchGrammar(std::vector<GrammarBranch> branches, Branches branching,
                             std::vector<int32_t> eos_ids, int32_t vocab_size)
    : branches_(std::move(branches)),
      branching_(branching),
      eos_ids_(std::move(eos_ids)),
      vocab_size_(vocab_size) {
  TM_CHECK(!branches_.empty(), "a grammar of branches needs branches");
  for (const GrammarBranch& branch : branches_) TM_CHECK(!branch.head.empty(), "a branch needs a head");
}

std::unique_ptr<GrammarMatcher> BranchGrammar::NewMatcher(TextStart) const {
  return std::make_unique<Matcher>(*this);
}

int64_t BranchGrammar::memory_bytes() const {
  int64_t bytes = 0;
  for (const GrammarBranch& branch : branches_) {
    bytes += branch.grammar->memory_bytes() + static_cast<int64_t>(branch.head.size() * sizeof(int32_t));
  }
  return bytes;
}

}  // namespace tramontane
