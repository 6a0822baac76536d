// OutputConstraint: which token may come next in one choice: the forced ones first, then what the grammar
// allows. Always: it has followed every token that the choice accepted, so a choice that is preempted and
// computed again needs nothing here.
//
// The engine thread makes it and tells it of each token (Follow); a worker then does the work (Work), and it
// is the engine thread's again once ready() is true.
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
      : live_(std::move(live)), step_ns_(step_ns) {}

  // ---- engine thread ----------------------------------------------------------------------------
  // The choice goes on with `token`. Not ready until a worker has done the work. REQUIRES: ready().
  void Follow(int32_t token) {
    token_ = token;
    ready_.store(false, std::memory_order_relaxed);
  }
  bool ready() const { return ready_.load(std::memory_order_acquire); }

  // REQUIRES for these: ready().
  std::span<const uint32_t> mask() const {  // [MaskWords(vocab_size)] of the next token
    return mask_.empty() ? live_->constraint_start.mask : mask_;
  }
  const Status& fault() const { return fault_; }                 // not OK: the choice ends with it
  int64_t TakeSpentNs() { return std::exchange(spent_ns_, 0); }  // since the last call
  bool slow() const { return slow_; }  // the last work took so long that nobody should wait for the next

  // Nobody wants to know any more. Work that is being done ends soon.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }

  // ---- a worker ---------------------------------------------------------------------------------
  void Work();

 private:
  bool AcceptAndFill(GrammarWork& work);
  void Charge(const GrammarWork& work);
  const std::vector<int32_t>& forced() const { return live_->request.constraint.forced_prefix; }

  const std::shared_ptr<LiveRequest> live_;
  const int64_t step_ns_;
  std::atomic<bool> ready_{true};
  std::atomic<bool> abandoned_{false};

  // Of the thread whose turn it is.
  int32_t token_ = -1;  // to be followed
  size_t forced_done_ = 0;
  std::unique_ptr<GrammarMatcher> matcher_;  // from the first token of the grammar's on
  std::vector<uint32_t> mask_;               // empty: no token yet
  Status fault_;
  int64_t spent_ns_ = 0;
  bool slow_ = false;
};

}  // namespace tramontane
