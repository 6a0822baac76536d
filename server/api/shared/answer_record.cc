#include "server/api/shared/answer_record.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "server/base/text.h"
#include "server/call/prompt_text.h"

namespace tramontane {
namespace {

// "stop_sequence" of FINISH_REASON_STOP_SEQUENCE.
std::string ReasonName(v1::FinishReason reason) {
  constexpr std::string_view kPrefix = "FINISH_REASON_";
  const std::string name = v1::FinishReason_Name(reason);
  return LowerCase(std::string_view(name).substr(std::min(name.size(), kPrefix.size())));
}

constexpr size_t kMaxLoggedReasonBytes = 200;

void AddCount(int64_t count, int64_t* to) { *to = std::max<int64_t>(*to, 0) + count; }

}  // namespace

// The client has gone before its answer was complete.
AnswerRecord::~AnswerRecord() {
  if (told_ || log_.tell == nullptr) return;
  constexpr int kOk = 200;  // as all streams begin
  TellLocked(has_head_ ? kOk : kClientGone, RequestOutcome::kCancelled);
}

double AnswerRecord::MsSinceBegin() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
}

void AnswerRecord::NoteId(const std::string& id) {
  caller.request_id = id;
  const std::lock_guard lock(mutex_);
  line_.id = id;
}

void AnswerRecord::NoteCalls(const std::vector<v1::GenerateRequest>& requests,
                             const v1::GenerateRequest& shared) {
  const std::lock_guard lock(mutex_);
  const std::string& model = shared.model().empty() ? requests.front().model() : shared.model();
  line_.model = model.substr(0, kMaxLoggedFieldBytes);
  if (log_.prompts) line_.prompt = PromptText(requests.front(), kMaxLoggedPromptBytes);
}

void AnswerRecord::NoteScores(const v1::ScoreCandidatesRequest& request) {
  const std::lock_guard lock(mutex_);
  line_.model = request.model().substr(0, kMaxLoggedFieldBytes);
  if (log_.prompts) line_.prompt = PromptText(request, kMaxLoggedPromptBytes);
}

void AnswerRecord::NoteScored(const v1::ScoreCandidatesResponse& response) {
  const std::lock_guard lock(mutex_);
  line_.model = response.model();
  line_.prompt_tokens = response.usage().prompt_tokens();
  line_.cached_tokens = response.usage().cached_tokens();
  line_.output_tokens = 0;
}

void AnswerRecord::NoteEvent(size_t call, const v1::GenerateResponse& event) {
  const std::lock_guard lock(mutex_);
  const auto set_tokens = [&](int32_t choice, int64_t tokens) {
    if (output_tokens_.size() <= call) output_tokens_.resize(call + 1);
    std::vector<int64_t>& of_call = output_tokens_[call];
    if (of_call.size() <= static_cast<size_t>(choice)) of_call.resize(static_cast<size_t>(choice) + 1);
    of_call[static_cast<size_t>(choice)] = tokens;
  };
  if (event.has_delta()) {
    set_tokens(event.delta().choice(), event.delta().completion_tokens());
  } else if (event.has_started()) {
    has_begun_ = true;
    line_.model = event.started().model();
    AddCount(event.started().prompt_tokens(), &line_.prompt_tokens);
    AddCount(event.started().cached_tokens(), &line_.cached_tokens);
  } else if (event.has_finished()) {
    const v1::Finished& finished = event.finished();
    set_tokens(finished.choice(), finished.usage().completion_tokens());
    if (finished.timings().has_admitted_us()) {
      line_.queue_ms = static_cast<double>(finished.timings().admitted_us()) / 1000;
    }
    if (line_.reason.size() >= kMaxLoggedReasonBytes) return;
    line_.reason.append(line_.reason.empty() ? "" : ",").append(ReasonName(finished.reason()));
  }
}

void AnswerRecord::NoteContent() {
  const std::lock_guard lock(mutex_);
  if (line_.ttft_ms < 0) line_.ttft_ms = MsSinceBegin();
}

void AnswerRecord::NoteHead() {
  const std::lock_guard lock(mutex_);
  has_head_ = true;
}

void AnswerRecord::NoteError(const ApiError& error, bool midway) {
  const std::lock_guard lock(mutex_);
  line_.error = error.code.empty() ? error.type : error.code;
  // What is said of a fault of the request may quote it.
  line_.message = error.status >= 500 ? error.message.substr(0, kMaxLoggedFieldBytes) : "";
  if (midway) failed_status_ = error.status;
}

void AnswerRecord::Tell(int status) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(told_, true) || log_.tell == nullptr) return;
  TellLocked(status,
             EndOfAnswer(failed_status_ != 0 ? failed_status_ : status, line_.error, has_begun_).outcome);
}

void AnswerRecord::TellLocked(int status, RequestOutcome outcome) {
  line_.status = std::to_string(status);
  line_.outcome = outcome;
  line_.key = caller.key_name;
  line_.trace_id = caller.trace.trace_id();
  line_.e2el_ms = MsSinceBegin();
  if (line_.outcome != RequestOutcome::kError) line_.message.clear();
  if (line_.outcome == RequestOutcome::kOk) line_.error.clear();
  if (has_begun_) {
    line_.output_tokens = 0;
    for (const std::vector<int64_t>& of_call : output_tokens_) {
      line_.output_tokens = std::accumulate(of_call.begin(), of_call.end(), line_.output_tokens);
    }
  }
  log_.tell(line_);
}

TraceContext TraceOf(const HttpRequest& request) {
  std::vector<std::string_view> parents, states;
  for (const auto& [name, value] : request.headers) {
    if (name == kTraceParentKey) parents.emplace_back(value);
    if (name == kTraceStateKey) states.emplace_back(value);
  }
  if (parents.empty()) return {};
  return ReadTraceContext(parents, states);
}

}  // namespace tramontane
