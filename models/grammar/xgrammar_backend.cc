// The only file that includes xgrammar. The library throws; nothing leaves this file but a Status. It is
// built so that it calls back from its loops (xgrammar/changes.patch), and can be stopped there.
#include <dlpack/dlpack.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>
#include <xgrammar/tokenizer_info.h>

#include <time.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "models/grammar/grammar_backend.h"

namespace tramontane {
namespace {

int64_t ThreadTimeNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Thrown through the library. Not a std::exception: those are its own words about a grammar.
struct Stopped {};

// Measures one piece of work on this thread, and stops it where it has cost enough or nobody wants it.
class Metered {
 public:
  explicit Metered(GrammarWork& work) : work_(work), start_ns_(ThreadTimeNs()) { running = this; }
  ~Metered() {
    work_.spent_ns += ThreadTimeNs() - start_ns_;
    running = nullptr;
  }
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;

  // From the library's loops: cheap nearly always.
  static void Look() {
    if (running != nullptr && --running->looks_left_ == 0) running->LookClosely();
  }

 private:
  static constexpr int32_t kLooks = 256;  // some 10 us of the library's work, mostly

  void LookClosely() {
    looks_left_ = kLooks;
    const bool spent = ThreadTimeNs() - start_ns_ > work_.most_ns - work_.spent_ns;
    if (!spent && (!work_.wanted || work_.wanted())) return;
    work_.stopped = true;
    throw Stopped();
  }

  static thread_local Metered* running;
  GrammarWork& work_;
  const int64_t start_ns_;
  int32_t looks_left_ = kLooks;
};

thread_local Metered* Metered::running = nullptr;

}  // namespace
}  // namespace tramontane

// The library is built to hand us what it logs: its errors are exceptions, its warnings are about texts that
// our own translators never write.
namespace xgrammar {

void InterruptionPoint() { tramontane::Metered::Look(); }
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar

namespace tramontane {
namespace {

void SetBit(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

class XGrammarMatcher final : public GrammarMatcher {
 public:
  XGrammarMatcher(std::shared_ptr<const GrammarVocabulary> vocabulary,
                  const xgrammar::CompiledGrammar& compiled, TextStart start)
      : vocabulary_(std::move(vocabulary)),
        compiled_(compiled),
        pieces_mask_(MaskWords(static_cast<int32_t>(vocabulary_->pieces.size()))),
        at_start_(start == TextStart::kOfMessage) {}

  void FillMask(std::span<uint32_t> mask, GrammarWork& work) override {
    const Metered metered(work);
    const bool is_made = Guarded([this] { return FillPiecesMask(); });
    if (!is_made || terminated_ || at_start_) std::fill(mask.begin(), mask.end(), 0);
    if (!is_made) return;
    if (terminated_) {  // eos was ignored: only more of it may follow
      for (const int32_t eos : vocabulary_->eos_ids) SetBit(mask, eos);
      return;
    }
    if (at_start_) {
      for (int32_t t = 0; t < vocabulary_->vocab_size; ++t) {
        const int32_t piece = vocabulary_->at_start[static_cast<size_t>(t)];
        const bool allowed =
            piece == GrammarVocabulary::kSpaceAlone ? !space_dropped_ : MaskAllows(pieces_mask_, piece);
        if (allowed) SetBit(mask, t);
      }
      return;
    }
    std::copy_n(pieces_mask_.begin(), mask.size(), mask.begin());
    const int32_t odd = vocabulary_->vocab_size % 32;  // pieces behind the vocabulary are no tokens
    if (odd != 0) mask.back() &= (1u << odd) - 1;
  }

  bool Accept(int32_t token, GrammarWork& work) override {
    if (token < 0 || token >= vocabulary_->vocab_size) return false;
    if (terminated_) return IsEos(token);
    const Metered metered(work);
    int32_t piece = token;
    if (at_start_) {
      piece = vocabulary_->at_start[static_cast<size_t>(token)];
      if (piece == GrammarVocabulary::kSpaceAlone) {
        if (space_dropped_) return false;
        space_dropped_ = true;
        at_start_ = vocabulary_->space_alone_goes_on;
        return true;
      }
    }
    const bool accepted = Guarded([&] { return matcher().AcceptToken(piece); });
    if (!accepted) return false;
    at_start_ = false;
    terminated_ = matcher_->IsTerminated();
    return true;
  }

  std::unique_ptr<GrammarMatcher> Copy() const override {
    auto copy = std::make_unique<XGrammarMatcher>(*this);  // the library's copies are of one state
    if (matcher_) copy->matcher_.emplace(matcher_->Fork());
    return copy;
  }

 private:
  bool IsEos(int32_t token) const {
    const std::vector<int32_t>& ids = vocabulary_->eos_ids;
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  }

  // Made by the first call that needs it: what the library does then can be long as well.
  xgrammar::GrammarMatcher& matcher() {
    if (!matcher_) matcher_.emplace(compiled_);
    return *matcher_;
  }

  bool FillPiecesMask() {
    if (terminated_) return true;
    auto words = static_cast<int64_t>(pieces_mask_.size());
    DLTensor tensor{};
    tensor.data = pieces_mask_.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &words;
    matcher().FillNextTokenBitmask(&tensor);
    return true;
  }

  // Nothing that the library throws goes further: after that this matcher allows nothing.
  template <typename Call>
  bool Guarded(const Call& call) {
    if (failed_) return false;
    try {
      return call();
    } catch (const Stopped&) {
    } catch (const std::exception&) {
    }
    failed_ = true;
    return false;
  }

  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const xgrammar::CompiledGrammar compiled_;
  std::optional<xgrammar::GrammarMatcher> matcher_;
  std::vector<uint32_t> pieces_mask_;
  bool at_start_;
  bool space_dropped_ = false;  // one space alone is allowed, so that a message cannot start for ever
  bool terminated_ = false;     // eos was accepted
  bool failed_ = false;
};

class XGrammar final : public Grammar {
 public:
  XGrammar(std::shared_ptr<const GrammarVocabulary> vocabulary, xgrammar::CompiledGrammar compiled)
      : vocabulary_(std::move(vocabulary)), compiled_(std::move(compiled)) {}

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override {
    return std::make_unique<XGrammarMatcher>(vocabulary_, compiled_, start);
  }
  int64_t memory_bytes() const override { return static_cast<int64_t>(compiled_.MemorySizeBytes()); }

 private:
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const xgrammar::CompiledGrammar compiled_;
};

class XGrammarBackend final : public GrammarBackend {
 public:
  explicit XGrammarBackend(GrammarVocabulary vocabulary)
      : vocabulary_(std::make_shared<const GrammarVocabulary>(std::move(vocabulary))),
        compiler_(xgrammar::TokenizerInfo(vocabulary_->pieces, xgrammar::VocabType::RAW, std::nullopt,
                                          vocabulary_->eos_ids),
                  /*max_threads=*/1, /*cache_enabled=*/false) {}

  StatusOr<std::shared_ptr<const Grammar>> Compile(const std::string& ebnf,
                                                   GrammarWork& work) const override {
    const Metered metered(work);
    try {
      xgrammar::CompiledGrammar compiled = compiler_.CompileGrammar(ebnf);
      return std::shared_ptr<const Grammar>(std::make_shared<XGrammar>(vocabulary_, std::move(compiled)));
    } catch (const Stopped&) {
      return Status(StatusCode::kAborted, "compiling was stopped");
    } catch (const std::exception& error) {
      return InvalidArgument(error.what());
    }
  }

 private:
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable xgrammar::GrammarCompiler compiler_;  // locks for itself
};

}  // namespace

std::unique_ptr<GrammarBackend> MakeGrammarBackend(GrammarVocabulary vocabulary) {
  return std::make_unique<XGrammarBackend>(std::move(vocabulary));
}

}  // namespace tramontane
