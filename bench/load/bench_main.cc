#include "bench/load/bench_main.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <ostream>
#include <utility>

#include "bench/load/report.h"
#include "bench/load/report_files.h"
#include "bench/load/target_idle.h"

namespace tramontane::load {
namespace {

// Removes its line from the terminal when it goes.
class LiveLine {
 public:
  LiveLine(std::ostream& err, bool is_terminal) : err_(err), is_terminal_(is_terminal) {}
  ~LiveLine() {
    if (shown_) err_ << "\r\033[K" << std::flush;
  }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  void Show(const std::string& what, const RunProgress& progress) {
    if (!is_terminal_) return;
    char text[200];
    std::snprintf(text, sizeof(text),
                  "\r\033[K%s%6.1f s  sent %lld  in flight %lld  waiting %lld  ended %lld  failed %lld",
                  what.c_str(), static_cast<double>(progress.elapsed_ns) * 1e-9,
                  static_cast<long long>(progress.sent), static_cast<long long>(progress.in_flight),
                  static_cast<long long>(progress.waiting), static_cast<long long>(progress.ended),
                  static_cast<long long>(progress.failed));
    err_ << text << std::flush;
    shown_ = true;
  }

 private:
  std::ostream& err_;
  bool is_terminal_;
  bool shown_ = false;
};

// One target, connected.
struct ConnectedTarget {
  TargetOptions options;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<TextTokenizer> tokenizer;  // for chats; null: none is to be had
  bool gave_up = false;                      // something of the last run may still be under way there
};

class BenchCommand {
 public:
  BenchCommand(BenchOptions options, const BenchWorld& world)
      : world_(world), live_(world.err, world.err_is_terminal) {
    report_.options = std::move(options);
    report_.date = world.date();
  }

  int Go();

 private:
  BenchOptions& options() { return report_.options; }
  Status Prepare();
  Status DryRun();
  Status FindModel();
  Status MakeRuns();
  Status MakeSweep();
  Status MakeSearch();
  Status MakeComparison();
  StatusOr<ConnectedTarget> ConnectTo(TargetOptions target) const;
  StatusOr<MeasuredRun> MeasureOn(ConnectedTarget& target, const RunPlan& plan, const std::string& what);
  ReportedRun Reported(MeasuredRun run, std::optional<double> rate) const;
  Status WriteFiles() const;
  int ExitStatusOfRuns() const;
  bool Stopped() const { return world_.stop != nullptr && world_.stop->load(); }

  const BenchWorld& world_;
  LiveLine live_;
  BenchReport report_;
  RunPlan plan_;
  ConnectedTarget target_;
  int64_t runs_made_ = 0;
  std::vector<RequestRecord> compared_records_[2];  // of --ab, for --jsonl
};

int BenchCommand::Go() {
  Status status = Prepare();
  if (!status.ok()) {
    world_.err << options().program << ": " << status.message() << "\n";
    return kUsage;
  }
  if (options().dry_run) {
    status = DryRun();
  } else {
    status = MakeRuns();
    if (status.ok()) {
      WriteTable(report_, world_.out);
      status = WriteFiles();
    }
  }
  world_.out << std::flush;
  if (!status.ok()) {
    world_.err << options().program << ": " << status.message() << "\n";
    return status.code() == StatusCode::kInvalidArgument ? kUsage : kNothingSucceeded;
  }
  return options().dry_run ? kMade : ExitStatusOfRuns();
}

Status BenchCommand::Prepare() {
  TM_ASSIGN_OR_RETURN(plan_, PlanOf(options()));
  return CheckReportFiles(options());  // before an hour of load, not after it
}

Status BenchCommand::DryRun() {
  TM_RETURN_IF_ERROR(CheckSize(plan_.schedule, plan_.most_requests, plan_.limits.duration_ns));
  std::vector<ScheduledRequest> requests;
  int64_t left_out = 0;
  if (options().closed_loop()) {
    Scheduler scheduler(plan_.schedule);
    const int64_t count = options().requests.value_or(kDefaultRequests);
    while (static_cast<int64_t>(requests.size()) < count) {
      auto next = scheduler.Next();
      if (!next) break;
      requests.push_back(*std::move(next));
    }
    left_out = scheduler.left_out();
  } else {
    Schedule schedule = DrawSchedule(plan_.schedule, plan_.most_requests, plan_.limits.duration_ns);
    requests = std::move(schedule.requests);
    left_out = schedule.left_out;
  }
  std::ofstream file(options().jsonl_path);
  WriteScheduleLines(requests, file);
  file.flush();
  if (!file) return Unavailable(options().jsonl_path + " cannot be written");
  world_.out << requests.size() << " requests to " << options().jsonl_path << ", " << left_out
             << " left out\n";
  return Status::Ok();
}

Status BenchCommand::MakeRuns() {
  if (options().target.model.empty()) {
    TM_RETURN_IF_ERROR(FindModel());
  }
  TM_ASSIGN_OR_RETURN(target_, ConnectTo(options().target));
  if (!options().ab_url.empty()) return MakeComparison();
  if (options().find_rate) return MakeSearch();
  if (!options().sweep.empty()) return MakeSweep();
  std::optional<double> rate;
  if (options().arrivals && options().arrivals->ramp_to_rate == 0) rate = options().arrivals->rate;
  TM_ASSIGN_OR_RETURN(MeasuredRun run, MeasureOn(target_, plan_, ""));
  report_.runs.push_back(Reported(std::move(run), rate));
  return Status::Ok();
}

// A target that cannot be reached is what the requests are to find, one by one; one that is there has to say.
Status BenchCommand::FindModel() {
  auto model = world_.first_served_model(options().target);
  if (!model.ok() && model.status().code() != StatusCode::kUnavailable) return std::move(model).status();
  if (!model.ok()) world_.err << options().program << ": " << model.status().message() << "\n";
  options().target.model = model.ok() ? WithoutSecret(*model, options().target.api_key) : "unknown";
  return Status::Ok();
}

Status BenchCommand::MakeSweep() {
  for (const double rate : options().sweep) {
    if (Stopped()) break;
    RunPlan plan = plan_;
    plan.schedule.arrivals->rate = rate;
    StatusOr<MeasuredRun> made = MeasureOn(target_, plan, "rate " + std::to_string(rate) + " ");
    if (!made.ok() && made.status().code() == StatusCode::kCancelled) break;
    TM_ASSIGN_OR_RETURN(MeasuredRun run, std::move(made));
    report_.runs.push_back(Reported(std::move(run), rate));
  }
  return Status::Ok();
}

Status BenchCommand::MakeSearch() {
  std::optional<ReportedRun> last_confirmed;
  const auto probe = [&](double rate, int confirmation) -> StatusOr<Probe> {
    RunPlan plan = plan_;
    plan.schedule.arrivals->rate = rate;
    plan.schedule.seed += static_cast<uint64_t>(confirmation);
    plan.summary.intervals = false;
    TM_ASSIGN_OR_RETURN(MeasuredRun run, MeasureOn(target_, plan, "probe at " + std::to_string(rate) + " "));
    if (run.result.stopped) return Status(StatusCode::kCancelled, "the search was stopped");
    ReportedRun reported = Reported(std::move(run), rate);
    Probe made;
    made.rate = rate;
    made.verdicts = reported.verdicts;
    made.steady = reported.run.summary.steady;
    made.holds = Holds(made.verdicts) && made.steady;
    if (confirmation > 0 || !last_confirmed) last_confirmed = std::move(reported);
    return made;
  };
  TM_ASSIGN_OR_RETURN(report_.found, FindRate(options().arrivals->rate, probe));
  if (!last_confirmed) return Status::Ok();
  MeasuredRun& run = last_confirmed->run;
  run.summary = Summarize(run.result.records, run.result.start_ns, plan_.summary);
  report_.runs.push_back(*std::move(last_confirmed));
  return Status::Ok();
}

Status BenchCommand::MakeComparison() {
  TargetOptions other = options().target;
  other.url = options().ab_url;
  ConnectedTarget second;
  TM_ASSIGN_OR_RETURN(second, ConnectTo(std::move(other)));
  RunPlan slice_plan = plan_;
  if (options().requests)
    slice_plan.most_requests = std::max<int64_t>(1, *options().requests / kSlicesOfEach);
  if (options().duration_s) slice_plan.limits.duration_ns /= kSlicesOfEach;
  const auto slice = [&](int target, int number) -> StatusOr<MeasuredRun> {
    RunPlan plan = slice_plan;
    plan.schedule.seed += static_cast<uint64_t>(number);
    ConnectedTarget& chosen = target == 0 ? target_ : second;
    TM_ASSIGN_OR_RETURN(MeasuredRun run, MeasureOn(chosen, plan, target == 0 ? "A " : "B "));
    if (run.result.stopped) return Status(StatusCode::kCancelled, "the comparison was stopped");
    auto& records = compared_records_[target];
    records.insert(records.end(), run.result.records.begin(), run.result.records.end());
    return run;
  };
  TM_ASSIGN_OR_RETURN(report_.comparison, Compare(plan_.summary, slice));
  return Status::Ok();
}

StatusOr<ConnectedTarget> BenchCommand::ConnectTo(TargetOptions target) const {
  ConnectedTarget connected;
  TM_ASSIGN_OR_RETURN(connected.transport, world_.connect(target));
  if (plan_.wants_text) {
    if (!report_.options.tokenizer_path.empty()) {
      TM_ASSIGN_OR_RETURN(connected.tokenizer, TokenizerOfFile(report_.options.tokenizer_path));
    } else if (auto tokenizer = TokenizerOfTarget(target, world_.ask, world_.clock, world_.stop);
               tokenizer.ok()) {
      connected.tokenizer = *std::move(tokenizer);
    } else {
      world_.err << "tramontane bench: no exact prompts: " << tokenizer.status().message()
                 << "; the server's usage tells their length\n";
    }
  }
  connected.options = std::move(target);
  return connected;
}

StatusOr<MeasuredRun> BenchCommand::MeasureOn(ConnectedTarget& target, const RunPlan& plan,
                                              const std::string& what) {
  const bool follows_another = runs_made_ > 0;
  const IdleWait idle = follows_another ? WaitUntilIdle(target.options, world_.ask, target.gave_up,
                                                        plan.limits.drain_ns, world_.clock, world_.stop)
                                        : IdleWait::kIdle;
  if (idle == IdleWait::kStopped) return Status(StatusCode::kCancelled, "stopped between two runs");
  if (idle == IdleWait::kBusy) {
    return Unavailable(target.options.url + " was still busy " +
                       std::to_string(plan.limits.drain_ns / 1'000'000'000) + " s after the run before");
  }
  RunTools tools{*target.transport, world_.clock};
  tools.tokenizer = target.tokenizer.get();
  tools.stop = world_.stop;
  tools.secret = target.options.api_key;
  tools.progress = [&](const RunProgress& progress) { live_.Show(what, progress); };
  TM_ASSIGN_OR_RETURN(MeasuredRun run, Measure(plan, tools, runs_made_++));
  if (world_.target_counts) run.target_counts = world_.target_counts();
  target.gave_up =
      std::any_of(run.result.records.begin(), run.result.records.end(), [](const RequestRecord& record) {
        return record.outcome == Outcome::kUnfinished || record.outcome == Outcome::kTimeout;
      });
  return run;
}

ReportedRun BenchCommand::Reported(MeasuredRun run, std::optional<double> rate) const {
  ReportedRun reported{rate, std::move(run), {}};
  reported.verdicts = Judge(report_.options.slo, reported.run.summary);
  return reported;
}

Status BenchCommand::WriteFiles() const {
  const BenchOptions& options = report_.options;
  const auto write = [](const std::string& path, const auto& body) {
    if (path.empty()) return Status::Ok();
    std::ofstream file(path, std::ios::binary);
    body(file);
    file.flush();
    return file ? Status::Ok() : Unavailable(path + " cannot be written");
  };
  TM_RETURN_IF_ERROR(write(options.json_path, [&](std::ostream& file) { file << JsonReport(report_); }));
  TM_RETURN_IF_ERROR(write(options.html_path, [&](std::ostream& file) { file << HtmlReport(report_); }));
  return write(options.jsonl_path, [&](std::ostream& file) {
    WriteRequestLines(compared_records_[0], plan_.class_names, options.target.url, file);
    WriteRequestLines(compared_records_[1], plan_.class_names, options.ab_url, file);
    for (const ReportedRun& run : report_.runs)
      WriteRequestLines(run.run.result.records, plan_.class_names, "", file);
  });
}

int BenchCommand::ExitStatusOfRuns() const {
  int64_t completed = 0;
  bool met = true;
  for (const ReportedRun& run : report_.runs) {
    completed += run.run.summary.completed;
    met = met && Holds(run.verdicts);
  }
  if (report_.comparison) completed = report_.comparison->completed[0] + report_.comparison->completed[1];
  if (completed == 0) return kNothingSucceeded;
  if (report_.found) met = report_.found->rate.has_value();
  return met ? kMade : kSloMissed;
}

}  // namespace

int RunBench(int argc, const char* const* argv, const BenchWorld& world) {
  ParsedOptions parsed = ParseOptions(argc, argv, world.options, world.out, world.err);
  if (parsed.exit_status) return *parsed.exit_status;
  if (parsed.options.check) return world.check(world.out, world.err);
  return BenchCommand(std::move(parsed.options), world).Go();
}

}  // namespace tramontane::load
