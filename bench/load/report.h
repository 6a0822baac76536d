// What an invocation found, and the four ways to tell it. Pure but for the stream that is written to.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "bench/load/compare.h"
#include "bench/load/measure.h"
#include "bench/load/options.h"
#include "bench/load/search.h"

namespace tramontane::load {

// One measured run with what was asked of it.
struct ReportedRun {
  std::optional<double> rate;  // asked for; nothing: by a trace, a ramp or slots
  MeasuredRun run;
  std::vector<SloVerdict> verdicts;
};

struct BenchReport {
  BenchOptions options;
  std::string date;               // UTC, 20261123-080548 as vLLM writes it
  std::vector<ReportedRun> runs;  // one; of a sweep one a rate; of --find-rate the last confirmation, if any
  std::optional<FoundRate> found;
  std::optional<Comparison> comparison;  // then `runs` is empty
};

// For people. Begins with what makes the numbers doubtful, if anything does.
void WriteTable(const BenchReport& report, std::ostream& out);

// vLLM's keys and ours; of a sweep the last run's, and all in "runs".
std::string JsonReport(const BenchReport& report);

// One line a request, with its target where that is not empty: of two that are compared.
void WriteRequestLines(const std::vector<RequestRecord>& records, const std::vector<std::string>& class_names,
                       const std::string& target, std::ostream& out);
// The same of a schedule: what --dry-run writes and --trace reads.
void WriteScheduleLines(const std::vector<ScheduledRequest>& requests, std::ostream& out);

// One page, whose pictures are in it.
std::string HtmlReport(const BenchReport& report);

}  // namespace tramontane::load
