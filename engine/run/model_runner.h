// ModelRunner: turns a StepPlan into one upload, one forward pass, one sampling pass and one small download.
// It alone knows that the device is asynchronous. Engine thread only.
//
// The verbs are apart so that step n+1 is computed while step n is read, and sampled knowing its tokens:
//
//   Forward(n)  Sample(n)  Forward(n+1)  Collect(n)  Sample(n+1)  Forward(n+2)  Collect(n+1)  ...
//
// Forward(plan) -> ticket;  Sample(ticket, ...);  Collect(ticket) -> what the rows want. In that order
// for each ticket; Sample of one comes after Collect of the one before, so at most two are open. A decode row
// of n+1 may begin at a token that step n has sampled and nobody has read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/names/prefix_tree.h"
#include "engine/request/sampling_history.h"
#include "engine/schedule/step_plan.h"
#include "kernels/core/status.h"
#include "kernels/sampling.h"

namespace tramontane {

struct StepTicket {
  int64_t id = 0;
};

// How to draw one choice: built by the engine from the request and its history, just before Sample.
struct ChoiceSampling {
  SamplingRow row;  // adjust_begin, adjust_end and mask_row are filled in by the runner
  // What it changes in the logits; null: nothing. Of the choices of one sequence, which share a slot until
  // they fork, all have the same entries. Read before Sample returns.
  const SamplingHistory* history = nullptr;
  std::span<const uint32_t> mask;  // [MaskWords(vocab)] set: allowed; empty: all. Read before it returns
};

// One for each draw of StepPlan::wants, in their order.
struct SampleInputs {
  std::vector<ChoiceSampling> choices;
};

// Of a draw and of a score alike: a token, and how likely it was.
struct WantResult {
  Want::Kind kind = Want::Kind::kDraw;
  TokenLogprob token = {};  // id -1: the row failed, its logits were not finite
  int32_t rank = 0;
  std::vector<TokenLogprob> top = {};
};

struct StepResult {
  std::vector<WantResult> wants;  // in the order of StepPlan::wants
};

// A page of the pool and its bytes on the host, [page_bytes] of KvLayout.
struct PageImage {
  PageId page = kNoPage;
  std::byte* bytes = nullptr;
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // An error is a lost device: every stream ends with INTERNAL and the server stops.
  virtual StatusOr<StepTicket> Forward(const StepPlan& plan) = 0;
  virtual Status Sample(StepTicket ticket, const SampleInputs& inputs) = 0;
  virtual StatusOr<StepResult> Collect(StepTicket ticket) = 0;

  // ---- pages between the pool and the host --------------------------------------------------------

  // In order, behind the last step that was collected and in front of all that will be forwarded, beside what
  // is in flight but its page copies: it neither writes to these pages, nor do its rows see what is in those
  // that are moved in. Done when a step that is forwarded later is collected, or ReadPages has returned. An
  // error is a lost device.
  virtual Status MovePages(std::span<const PageMove>) { return Internal("pages cannot be moved"); }

  // Whether there are pages to copy: a model that a test has made up may have none.
  virtual bool copies_pages() const { return false; }
  // Behind all that was queued; done on return. An error is a lost device. REQUIRES: copies_pages().
  virtual Status ReadPages(std::span<const PageImage>) { return Internal("pages cannot be read"); }
  virtual Status WritePages(std::span<const PageImage>) { return Internal("pages cannot be written"); }
};

}  // namespace tramontane
