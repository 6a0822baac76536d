// EngineTrace: the TraceText of this process: steps and requests, as Perfetto (ui.perfetto.dev) opens them.
// Steps are in two rows, one a lane; requests are slices of their own, with their stages inside.
//
// One thread at a time; while there is one, steps and requests are recorded. What is recorded between two
// calls beyond what is kept (StepTrace::kSteps, RequestTrace::kRequests) is lost, and counted in the text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/step_trace.h"
#include "server/watch/request_trace.h"
#include "server/watch/trace_text.h"

namespace tramontane {

class EngineTrace final : public TraceText {
 public:
  EngineTrace(std::shared_ptr<StepTrace> steps, std::shared_ptr<RequestTrace> requests);
  ~EngineTrace() override;
  EngineTrace(const EngineTrace&) = delete;
  EngineTrace& operator=(const EngineTrace&) = delete;

  std::string Next() override;
  std::string End() override;

 private:
  void AddEvent(const std::string& json, std::string* out);
  void AddSteps(std::string* out);
  void AddRequests(std::string* out);
  void AddRequest(int64_t number, const RequestRecord& record, std::string* out);
  void AddLost(const char* what, int64_t count, int64_t before_ns, std::string* out);

  const std::shared_ptr<StepTrace> steps_;
  const std::shared_ptr<RequestTrace> requests_;
  int64_t next_step_;
  int64_t next_request_;
  bool begun_ = false;
};

}  // namespace tramontane
