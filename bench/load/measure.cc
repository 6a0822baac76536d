#include "bench/load/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>

#include "bench/load/prompt.h"

namespace tramontane::load {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr double kMostLagMs = 1, kMostThreadShare = 0.8;

int64_t Ns(double seconds) { return std::llround(1e9 * seconds); }

uint64_t NonceOf(uint64_t nonce, int64_t number) {
  return number == 0 ? nonce : Mixed(nonce ^ Mixed(static_cast<uint64_t>(number)));
}

std::string RequestId(uint64_t nonce, int64_t number, int64_t index) {
  char text[64];
  std::snprintf(text, sizeof(text), "bench-%llx-%lld-%lld", static_cast<unsigned long long>(nonce),
                static_cast<long long>(number), static_cast<long long>(index));
  return text;
}

// Turns scheduled requests into outgoing ones.
class Writer {
 public:
  Writer(const RunPlan& plan, const RunTools& tools, int64_t number)
      : plan_(plan), tools_(tools), number_(number), prompts_(plan.token_ids, NonceOf(plan.nonce, number)) {}

  OutgoingRequest Write(const ScheduledRequest& scheduled) {
    OutgoingRequest request;
    request.index = scheduled.plan.index;
    request.class_index = scheduled.plan.class_index;
    request.request_id = RequestId(plan_.nonce, number_, scheduled.plan.index);
    request.input_tokens = scheduled.plan.input_tokens;
    request.output_tokens = scheduled.plan.output_tokens;
    request.ids = prompts_.Ids(scheduled);
    if (plan_.wants_text) {
      request.text = Text(request.ids);
      request.ids.clear();
    }
    return request;
  }
  const Status& status() const { return status_; }  // the first thing that went wrong

 private:
  std::string Text(const std::vector<int32_t>& ids) {
    if (tools_.tokenizer == nullptr || !status_.ok()) return WordsOf(ids);
    auto text = TextOf(ids, *tools_.tokenizer);
    if (text.ok()) return *std::move(text);
    status_ = text.status();
    return WordsOf(ids);
  }

  const RunPlan& plan_;
  const RunTools& tools_;
  int64_t number_;
  PromptWriter prompts_;
  Status status_;
};

std::vector<std::pair<std::string, Summary>> ByClass(const RunPlan& plan, const RunResult& result) {
  std::vector<std::pair<std::string, Summary>> classes;
  if (plan.class_names.size() < 2) return classes;
  for (size_t i = 0; i < plan.class_names.size(); ++i) {
    std::vector<RequestRecord> records;
    for (const RequestRecord& record : result.records) {
      if (record.class_index == static_cast<int32_t>(i)) records.push_back(record);
    }
    classes.emplace_back(plan.class_names[i], Summarize(records, result.start_ns, plan.summary));
  }
  return classes;
}

double OfferedRate(const std::vector<ScheduledRequest>& requests) {
  if (requests.empty() || requests.back().plan.intended_ns == 0)
    return std::numeric_limits<double>::infinity();
  return static_cast<double>(requests.size()) * 1e9 / static_cast<double>(requests.back().plan.intended_ns);
}

}  // namespace

StatusOr<RunPlan> PlanOf(const BenchOptions& options) {
  RunPlan plan;
  plan.schedule.seed = options.seed;
  plan.schedule.classes = options.classes;
  plan.schedule.arrivals = options.arrivals;
  if (!options.trace_path.empty()) {
    TM_ASSIGN_OR_RETURN(auto rows, ReadTrace(options.trace_path));
    plan.schedule.trace = std::make_shared<const std::vector<TraceRow>>(std::move(rows));
  }
  plan.schedule.rate_scale = options.rate_scale;
  plan.schedule.length_scale = options.length_scale;
  plan.schedule.spread_seconds = options.spread_s;
  plan.schedule.max_context = options.max_context;
  plan.limits.closed_loop = options.closed_loop();
  plan.limits.concurrency = options.concurrency;
  if (options.duration_s) plan.limits.duration_ns = Ns(*options.duration_s);
  plan.limits.drain_ns = Ns(options.drain_s);
  plan.limits.timeout_ns = Ns(options.timeout_s);
  plan.most_requests = options.requests.value_or(kNever);
  plan.summary.percentiles = options.percentiles;
  for (const double p : PercentilesOf(options.slo)) plan.summary.percentiles.push_back(p);
  plan.summary.goodput = options.goodput;
  plan.summary.warmup_requests = options.warmup_requests;
  plan.summary.warmup_ns = Ns(options.warmup_s);
  plan.summary.closed_loop = plan.limits.closed_loop;
  plan.summary.seed = options.seed;
  for (const WorkClass& work : options.classes) plan.class_names.push_back(work.name);
  plan.token_ids = options.token_ids;
  plan.nonce = options.nonce;
  plan.wants_text = options.target.endpoint == Endpoint::kChat;
  plan.simulated = options.target.simulated;
  return plan;
}

StatusOr<MeasuredRun> Measure(const RunPlan& plan, const RunTools& tools, int64_t number) {
  MeasuredRun run;
  RunLimits limits = plan.limits;
  limits.max_requests = plan.most_requests;
  TM_RETURN_IF_ERROR(CheckSize(plan.schedule, plan.most_requests, limits.duration_ns));
  Writer writer(plan, tools, number);
  Scheduler slots(plan.schedule);  // closed loop: drawn as slots fall free
  std::deque<ScheduledRequest> scheduled;
  run.offered_rate = std::numeric_limits<double>::infinity();
  if (!limits.closed_loop) {
    Schedule schedule = DrawSchedule(plan.schedule, plan.most_requests, limits.duration_ns);
    run.left_out = schedule.left_out;
    if (schedule.requests.empty()) {
      return InvalidArgument(
          "the schedule is empty: no request is intended within its time, or none fits "
          "--max-context (" +
          std::to_string(schedule.left_out) + " were left out)");
    }
    run.offered_rate = OfferedRate(schedule.requests);
    limits.duration_ns = std::min(limits.duration_ns, schedule.requests.back().plan.intended_ns + 1);
    scheduled.assign(schedule.requests.begin(), schedule.requests.end());
  }
  // A tokenizer may be a server away, so texts are written before the run; without a schedule the first few.
  std::deque<OutgoingRequest> written;
  constexpr size_t kWrittenSlots = 1000;
  if (plan.wants_text && tools.tokenizer != nullptr) {
    tools.tokenizer->AllowFor(limits.timeout_ns);
    while (limits.closed_loop && scheduled.size() < kWrittenSlots &&
           static_cast<int64_t>(scheduled.size()) < plan.most_requests) {
      auto next = slots.Next();
      if (!next) break;
      scheduled.push_back(*std::move(next));
    }
    for (const ScheduledRequest& request : scheduled) written.push_back(writer.Write(request));
    TM_RETURN_IF_ERROR(writer.status());
    if (limits.duration_ns < kNever) {  // texts that are written in the run may not hold it up
      tools.tokenizer->AllowFor(std::min(limits.timeout_ns, limits.duration_ns + limits.drain_ns));
    }
  }
  RunHooks hooks;
  hooks.next = [&]() -> std::optional<ScheduledRequest> {
    if (scheduled.empty() && limits.closed_loop) return slots.Next();
    if (scheduled.empty()) return std::nullopt;
    ScheduledRequest next = std::move(scheduled.front());
    scheduled.pop_front();
    return next;
  };
  hooks.write = [&](const ScheduledRequest& request) {
    if (written.empty()) return writer.Write(request);
    OutgoingRequest outgoing = std::move(written.front());
    written.pop_front();
    return outgoing;
  };
  std::map<int64_t, int32_t> planned_tokens;  // by index, of what was handed out
  hooks.write = [&, write = std::move(hooks.write)](const ScheduledRequest& request) {
    planned_tokens[request.plan.index] = request.plan.input_tokens;
    return write(request);
  };
  hooks.progress = tools.progress;
  hooks.stop = tools.stop;
  run.result = Run(limits, hooks, tools.transport, tools.clock);
  if (plan.simulated) {
    run.result.cpu_ns = 0;
    run.result.busiest_thread_share = 0;
  }
  if (limits.closed_loop) run.left_out = slots.left_out();
  run.planned = static_cast<int64_t>(run.result.records.size());
  for (RequestRecord& record : run.result.records) {
    record.error = WithoutSecret(record.error, tools.secret);
    record.timing_json = WithoutSecret(record.timing_json, tools.secret);
    const bool counted =
        record.outcome == Outcome::kOk && record.output_tokens_from == TokenCountFrom::kUsage;
    if (counted && record.input_tokens != planned_tokens[record.index]) ++run.prompt_mismatches;
  }
  run.summary = Summarize(run.result.records, run.result.start_ns, plan.summary);
  run.classes = ByClass(plan, run.result);
  const bool capped = !limits.closed_loop && limits.concurrency > 0;
  const bool late = !capped && run.summary.client_lag_p99_ms.value_or(0) > kMostLagMs;
  run.client_bound = late || run.result.busiest_thread_share > kMostThreadShare;
  return run;
}

}  // namespace tramontane::load
