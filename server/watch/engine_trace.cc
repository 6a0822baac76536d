#include "server/watch/engine_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

using EventJson = nlohmann::ordered_json;

constexpr int kProcess = 1;  // Chrome's events belong to processes and threads: lanes are threads here

double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

std::string Text(const EventJson& json) {
  return json.dump(-1, ' ', false, EventJson::error_handler_t::replace);
}

EventJson NameEvent(const char* what, int thread, const char* name) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", name}}}};
}

// "b" and "e": the beginning and the end of a slice of a request, which may overlap those of others.
EventJson SliceEvent(const char* phase, const char* name, int64_t id, int64_t at_ns) {
  return {{"name", name}, {"cat", "request"},         {"ph", phase}, {"id", id}, {"pid", kProcess},
          {"tid", 0},     {"ts", Microseconds(at_ns)}};
}

}  // namespace

EngineTrace::EngineTrace(std::shared_ptr<StepTrace> steps, std::shared_ptr<RequestTrace> requests)
    : steps_(std::move(steps)), requests_(std::move(requests)) {
  steps_->Start();
  requests_->Start();
  next_step_ = steps_->added();
  next_request_ = requests_->added();
}

EngineTrace::~EngineTrace() {
  steps_->Stop();
  requests_->Stop();
}

std::string EngineTrace::Next() {
  std::string out;
  if (!begun_) {
    AddEvent(Text(NameEvent("process_name", 0, "tramontane")), &out);
    for (const Lane lane : {Lane::kPrefill, Lane::kDecode}) {
      AddEvent(Text(NameEvent("thread_name", static_cast<int>(lane), LaneName(lane))), &out);
    }
  }
  AddSteps(&out);
  AddRequests(&out);
  return out;
}

std::string EngineTrace::End() { return Next() + "\n]\n"; }

void EngineTrace::AddEvent(const std::string& json, std::string* out) {
  *out += std::exchange(begun_, true) ? ",\n" : "[\n";
  *out += json;
}

void EngineTrace::AddSteps(std::string* out) {
  const int64_t end = steps_->added();
  const int64_t first = std::max(next_step_, end - static_cast<int64_t>(StepTrace::kSteps));
  int64_t lost = first - next_step_;
  int64_t begin_ns = 0;  // of the first that is still there
  for (int64_t number = first; number < end; ++number) {
    StepRecord record;
    if (!steps_->Get(number, &record)) {
      ++lost;
      continue;
    }
    if (begin_ns == 0) begin_ns = record.begin_ns;
    AddEvent(Text({{"name", LaneName(record.lane)},
                   {"cat", "step"},
                   {"ph", "X"},
                   {"pid", kProcess},
                   {"tid", static_cast<int>(record.lane)},
                   {"ts", Microseconds(record.begin_ns)},
                   {"dur", Microseconds(record.end_ns - record.begin_ns)},
                   {"args",
                    {{"step", record.step},
                     {"lane", LaneName(record.lane)},
                     {"rows", record.rows},
                     {"tokens", record.tokens},
                     {"pages", record.held_pages}}}}),
             out);
  }
  next_step_ = end;
  AddLost("steps", lost, begin_ns, out);
}

void EngineTrace::AddRequests(std::string* out) {
  std::vector<RequestRecord> records;
  const int64_t lost = requests_->Read(&next_request_, &records);
  int64_t number = next_request_ - static_cast<int64_t>(records.size());
  for (const RequestRecord& record : records) AddRequest(number++, record, out);
  if (lost > 0) AddLost("requests", lost, records.front().stages.begin_ns(), out);
}

void EngineTrace::AddRequest(int64_t number, const RequestRecord& record, std::string* out) {
  const TtftStages& stages = record.stages;
  const char* id = record.id.empty() ? "refused" : record.id.c_str();
  EventJson begin = SliceEvent("b", id, number, stages.begin_ns());
  begin["args"] = {{"prompt_tokens", record.prompt_tokens},
                   {"completion_tokens", record.completion_tokens},
                   {"chunks", record.chunks},
                   {"preemptions", record.preemptions},
                   {"reason", record.reasons}};
  AddEvent(Text(begin), out);
  int64_t at_ns = stages.begin_ns();
  for (size_t i = 0; i < TtftStages::kCount && stages.ended(static_cast<TtftStage>(i)); ++i) {
    const char* name = TtftStages::Names()[i];
    AddEvent(Text(SliceEvent("b", name, number, at_ns)), out);
    at_ns = stages.end_ns(static_cast<TtftStage>(i));
    AddEvent(Text(SliceEvent("e", name, number, at_ns)), out);
  }
  AddEvent(Text(SliceEvent("e", id, number, std::max(at_ns, record.end_ns))), out);
}

void EngineTrace::AddLost(const char* what, int64_t count, int64_t before_ns, std::string* out) {
  if (count == 0) return;
  AddEvent(Text({{"name", "lost"},
                 {"ph", "i"},
                 {"s", "g"},
                 {"pid", kProcess},
                 {"tid", 0},
                 {"ts", Microseconds(before_ns)},
                 {"args", {{what, count}}}}),
           out);
}

}  // namespace tramontane
