#include "server/api/shared/generation_timing.h"

#include "server/watch/ttft_stages.h"

namespace tramontane {

void GenerationTiming::NoteTold(size_t call, int64_t now_ns) {
  first_call_ = call;
  told_ns_ = now_ns;
}

// The middle is the call's to know: what it was in the engine. What a dialect has kept back (the begin of a
// call of a tool) was held as well.
bool GenerationTiming::NoteEnd(size_t call, const v1::Timings& told, const HttpRequest& request) {
  if (first_call_.value_or(call) != call) return false;
  timings_.Clear();
  timings_.set_chunks(told.chunks());
  timings_.set_cached_tokens(told.cached_tokens());
  timings_.set_preemptions(told.preemptions());
  if (!first_call_ || !told.has_hold_ms()) return true;
  TtftStages stages(request.first_byte_ns);
  stages.End(TtftStage::kReceive, request.whole_ns);
  stages.End(TtftStage::kParse, parsed_ns_);
  for (const TtftStage stage : {TtftStage::kTokenize, TtftStage::kQueue, TtftStage::kPrefillRun,
                                TtftStage::kPrefillWait, TtftStage::kSample}) {
    stages.Take(stage, TtftStages::NsOf(told, stage));
  }
  stages.Take(TtftStage::kHold, TtftStages::NsOf(told, TtftStage::kHold) + told_ns_ - taken_ns_);
  stages.End(TtftStage::kDeliver, delivered_ns_);  // 0 where nothing is streamed: at once
  stages.ToProto(&timings_);
  return true;
}

}  // namespace tramontane
