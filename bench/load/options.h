// The flags of `tramontane bench`, and of `tramontane simulate` where they are the same; and what is wrong
// with them. Main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "bench/load/arrivals.h"
#include "bench/load/flags.h"
#include "bench/load/slo.h"
#include "bench/load/summary.h"
#include "bench/load/target_options.h"
#include "bench/load/work.h"

namespace tramontane::load {

inline constexpr int64_t kDefaultRequests =
    1000;  // where neither --requests nor --duration nor a trace ends a run

struct BenchOptions {
  std::string program = "tramontane bench";  // as faults name it
  TargetOptions target;
  // Load. Open loop with arrivals or a trace, else closed.
  std::optional<ArrivalOptions> arrivals;
  std::string trace_path;
  int32_t concurrency = 0;  // 0: no cap
  std::optional<int64_t> requests;
  std::optional<double> duration_s;
  double drain_s = 30;
  double timeout_s = 600;
  bool dry_run = false;
  // Work.
  std::vector<WorkClass> classes = std::vector<WorkClass>(1);
  IdRange token_ids;
  std::string tokenizer_path;
  uint64_t seed = 0;
  uint64_t nonce = 0;
  double rate_scale = 1;
  double length_scale = 1;
  double spread_s = 0;
  int64_t max_context = 0;
  // Window and statistics.
  int64_t warmup_requests = 0;
  double warmup_s = 0;
  std::vector<double> percentiles;
  // Limits and searches; at most one of the last three.
  std::vector<GoodputLimit> goodput;
  Slo slo;
  bool find_rate = false;
  std::vector<double> sweep;
  std::string ab_url;
  // Output.
  std::string json_path;
  std::string jsonl_path;
  std::string html_path;
  bool explain = false;  // asks the server for its stages, and shows those of single requests
  bool check =
      false;  // instead of a run: the tool against servers whose truth is known, or OtherTarget::alone
  std::string command_line;  // as it was given, without what is secret

  bool closed_loop() const { return !arrivals && trace_path.empty(); }
};

// A program whose target is no server: its own flags stand where those of a target do, and flags that only a
// server gives a meaning are left out.
struct OtherTarget {
  std::string program;  // "tramontane simulate"
  std::string about;
  std::vector<FlagRow> flags;
  std::string alone;  // a flag that is a command of its own, as --check
  std::function<StatusOr<TargetOptions>(const GivenFlags&)> read;  // not asked with --dry-run
};

// Where the options come from besides the command line.
struct OptionSources {
  std::function<const char*(const char*)> environment;  // as getenv
  std::function<uint64_t()> draw_nonce;                 // where --nonce is not given
  const OtherTarget* other_target = nullptr;            // null: servers
};

struct ParsedOptions {
  BenchOptions options;
  std::optional<int> exit_status;  // set: nothing is to be run; help was printed (0) or a fault named (2)
};

// Prints help to `out` and faults to `err`: the flag, the value and what it may be.
ParsedOptions ParseOptions(int argc, const char* const* argv, const OptionSources& sources, std::ostream& out,
                           std::ostream& err);

}  // namespace tramontane::load
