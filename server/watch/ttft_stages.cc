#include "server/watch/ttft_stages.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

struct StageField {
  double (v1::Timings::*get)() const;
  void (v1::Timings::*set)(double);
};
constexpr std::array<StageField, TtftStages::kCount> kFields = {{
    {&v1::Timings::receive_ms, &v1::Timings::set_receive_ms},
    {&v1::Timings::parse_ms, &v1::Timings::set_parse_ms},
    {&v1::Timings::tokenize_ms, &v1::Timings::set_tokenize_ms},
    {&v1::Timings::queue_ms, &v1::Timings::set_queue_ms},
    {&v1::Timings::prefill_run_ms, &v1::Timings::set_prefill_run_ms},
    {&v1::Timings::prefill_wait_ms, &v1::Timings::set_prefill_wait_ms},
    {&v1::Timings::sample_ms, &v1::Timings::set_sample_ms},
    {&v1::Timings::hold_ms, &v1::Timings::set_hold_ms},
    {&v1::Timings::deliver_ms, &v1::Timings::set_deliver_ms},
}};

double ToMs(int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace

const std::array<const char*, TtftStages::kCount>& TtftStages::Names() {
  static constexpr std::array<const char*, kCount> names = {
      "receive", "parse", "tokenize", "queue", "prefill_run", "prefill_wait", "sample", "hold", "deliver"};
  return names;
}

void TtftStages::End(TtftStage stage, int64_t at_ns) {
  TM_CHECK(ended_ == static_cast<size_t>(stage), "stage %zu ends after stage %zu", static_cast<size_t>(stage),
           ended_);
  moments_ns_[ended_ + 1] = std::max(at_ns, moments_ns_[ended_]);
  ++ended_;
}

void TtftStages::Take(TtftStage stage, int64_t ns) { End(stage, moments_ns_[ended_] + ns); }

int64_t TtftStages::end_ns(TtftStage stage) const { return moments_ns_[static_cast<size_t>(stage) + 1]; }

int64_t TtftStages::ns(TtftStage stage) const {
  return end_ns(stage) - moments_ns_[static_cast<size_t>(stage)];
}

void TtftStages::ToProto(v1::Timings* proto) const {
  for (size_t i = 0; i < ended_; ++i) (proto->*kFields[i].set)(ToMs(ns(static_cast<TtftStage>(i))));
  if (ended_ == kCount) proto->set_ttft_ms(ToMs(total_ns()));
}

double TtftStages::MsOf(const v1::Timings& proto, TtftStage stage) {
  return (proto.*kFields[static_cast<size_t>(stage)].get)();
}

int64_t TtftStages::NsOf(const v1::Timings& proto, TtftStage stage) {
  return std::llround(MsOf(proto, stage) * 1e6);
}

bool IsContent(const v1::GenerateResponse& event) {
  const v1::Delta& delta = event.delta();
  return !delta.text().empty() || !delta.reasoning().empty() || delta.token_ids_size() > 0;
}

}  // namespace tramontane
