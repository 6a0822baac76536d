// OutputConstraint: which token may come next in one choice: the forced ones first, then what the grammar
// allows. Always: it has followed every token that the choice accepted, so a choice that is preempted and
// computed again needs nothing here.
//
// The engine thread makes it and tells it of each token (Follow). Where any token may come next that is all.
// Otherwise a worker does the work (Work), and it is the engine thread's again once ready() is true; or once
// must_prepare() is: then a grammar has to be compiled first, which the engine thread hands to a worker that
// keeps nobody waiting (BeginToPrepare).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/life/live_request.h"
#include "engine/request/request.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// Where the texts of a request begin, the same for all its choices. Made by the thread that submits.
StatusOr<ConstraintStart> StartOfConstraint(const Request& request, const Tokenizer& tokenizer,
                                            int32_t vocab_size, int64_t step_ns);

class OutputConstraint {
 public:
  // `step_ns`: EngineLimits::max_constraint_step_ns. REQUIRES: the request has a grammar.
  OutputConstraint(std::shared_ptr<LiveRequest> live, int64_t step_ns)
      : live_(std::move(live)), step_ns_(step_ns), free_(live_->constraint_start.mask.empty()) {}

  // ---- engine thread ----------------------------------------------------------------------------
  // The choice goes on with `token`. True: it is not ready until a worker has done the work. REQUIRES:
  // ready().
  bool Follow(int32_t token);
  bool ready() const { return stage_.load(std::memory_order_acquire) == Stage::kReady; }
  bool must_prepare() const { return stage_.load(std::memory_order_acquire) == Stage::kMustPrepare; }
  void BeginToPrepare() { stage_.store(Stage::kPrepares, std::memory_order_relaxed); }
  // Of work that is posted: it compiles.
  bool prepares() const { return stage_.load(std::memory_order_acquire) == Stage::kPrepares; }

  // REQUIRES for these: ready().
  std::span<const uint32_t> mask() const;  // [MaskWords(vocab_size)] of the next token; empty: any may come
  const Status& fault() const { return fault_; }                 // not OK: the choice ends with it
  int64_t TakeSpentNs() { return std::exchange(spent_ns_, 0); }  // since the last call
  // The last work took so long that nobody should wait for the next; so little that the engine may do the
  // next itself.
  bool slow() const { return last_ns_ > 1'000'000; }
  bool light() const { return 0 < last_ns_ && last_ns_ < 100'000; }

  // Nobody wants to know any more. Work that is being done ends soon.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }

  // ---- a worker ---------------------------------------------------------------------------------
  void Work();

 private:
  enum class Stage : uint8_t { kReady, kWorks, kMustPrepare, kPrepares };

  bool Accept(GrammarWork& work);
  void FillMask(GrammarWork& work);
  GrammarMatcher& matcher();
  void Charge(const GrammarWork& work);
  bool forces() const { return forced_done_ < forced().size(); }  // a token that is left
  const std::vector<int32_t>& forced() const { return live_->request.constraint.forced_prefix; }

  const std::shared_ptr<LiveRequest> live_;
  const int64_t step_ns_;
  std::atomic<Stage> stage_{Stage::kReady};
  std::atomic<bool> abandoned_{false};

  // Of the thread whose turn it is.
  int32_t token_ = -1;  // to be followed
  size_t forced_done_ = 0;
  std::unique_ptr<GrammarMatcher> matcher_;  // from the first token of the grammar's on
  bool free_;                                // any token may come next
  std::vector<uint32_t> mask_;               // empty: none was filled for this choice yet
  Status fault_;
  int64_t spent_ns_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace tramontane
