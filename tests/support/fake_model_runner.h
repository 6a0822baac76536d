// FakeModelRunner: a ModelRunner without a model or a device, for tests of the engine.
//
// It keeps, for every slot of every page, the token that was written there, and makes a row's logits from a
// hash of all the slots that its query may see in every group. So the next token depends on exactly what
// attention would read: a page released too early, shared without a copy or listed in the wrong order changes
// the output. Tokens are then chosen by the rules of tests/reference. The thread that steps the engine.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/run/model_runner.h"
#include "models/kv_layout.h"

namespace tramontane {

class FakeModelRunner final : public ModelRunner {
 public:
  FakeModelRunner(const KvLayout& layout, int64_t pool_pages, int32_t vocab_size);

  // An image holds the tokens of a page.
  static int64_t ImageBytes(const KvLayout& layout) {
    return layout.format.page_size * int64_t{sizeof(int64_t)};
  }

  Status MovePages(std::span<const PageMove> moves) override;
  Status ReadPages(std::span<const PageImage> images) override;  // of none: it is all done
  StatusOr<StepTicket> Forward(const StepPlan& plan) override;
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override;
  StatusOr<StepResult> Collect(StepTicket ticket) override;

  // ---- what a test may set ------------------------------------------------------------------------------
  std::function<void(const StepPlan&)> on_forward;
  // Makes logits non-finite where it returns true, for the token at `position` of `choice`; 0 for scores of
  // prompts.
  std::function<bool(const std::string& request_id, int32_t choice, int64_t position)> not_finite;
  // Chooses the token itself; -1 leaves it to the logits.
  std::function<int32_t(const std::string& request_id, int32_t choice, int64_t position)> forced;
  bool device_lost = false;  // Collect fails from now on
  int64_t masked_draws = 0;  // so far

 private:
  void Write(const StepRow& row);
  std::vector<float> LogitsAfter(const StepRow& row, int64_t position) const;
  WantResult Choose(const std::vector<float>& logits, Want::Kind kind, const ChoiceSampling& choice) const;

  const KvLayout layout_;
  const int32_t vocab_size_;
  std::vector<int64_t> slots_;  // [pages, page_size] position * vocab + token; -1: never written
  struct OpenStep {
    StepTicket ticket;
    std::vector<const Sequence*> rows;  // of each want
    std::vector<Want> wants;
    std::vector<std::vector<float>> logits;  // [wants, vocab] after the position of each
    bool sampled = false;
    StepResult result;
  };
  std::deque<OpenStep> open_;  // at most two
  // The first token that the last sampled step drew for each row, as the device would hold it.
  std::map<const Sequence*, int32_t> last_sampled_;
};

}  // namespace tramontane
