#include "bench/load/options.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "bench/load/flags.h"
#include "bench/load/parse.h"

namespace tramontane::load {
namespace {

constexpr NumberRange kRate = {1e-6, 1e6};
constexpr NumberRange kSeconds = {0, 1e7};
constexpr NumberRange kSomeSeconds = {1e-3, 1e7};
constexpr NumberRange kCount = {1, 1e8};
constexpr NumberRange kScale = {1e-6, 1e6};

const std::vector<FlagRow>& Flags() {
  static const std::vector<FlagRow> flags = {
      {"--target", "URL", "Target", "http://, https://, grpc:// or grpcs://HOST:PORT"},
      {"--endpoint", "NAME", "Target", "completions or chat (completions)"},
      {"--model", "NAME", "Target", "the model that is asked (the first that the target serves)"},
      {"--header", "'K: V'", "Target", "a header of every request; may be given again", true},
      {"--ca", "FILE", "Target", "certificates to trust, PEM (the system's)"},
      {"--cert", "FILE", "Target", "the client's certificate, PEM"},
      {"--key", "FILE", "Target", "its private key, PEM"},
      {"--insecure", "", "Target", "do not check the target's certificate"},
      {"--extra-body", "JSON", "Target", "an object whose keys join every request's body"},
      {"--api-key-file", "FILE", "Target", "the API key, else TRAMONTANE_API_KEY; it stands in no output"},
      {"--no-ignore-eos", "", "Target", "answers may end before they are as long as asked"},
      {"--rate", "R", "Load", "requests a second, or inf: open loop"},
      {"--trace", "FILE", "Load",
       "replay: Azure's CSV, Mooncake's JSONL, or what --dry-run writes: open loop"},
      {"--concurrency", "C", "Load",
       "alone: closed loop with C slots; else the most in flight, and the wait counts"},
      {"--arrival", "KIND", "Load", "poisson, gamma or constant (poisson)"},
      {"--burstiness", "B", "Load", "of gamma: gaps have a CV of 1/sqrt(B) (1)"},
      {"--ramp", "R0:R1", "Load", "instead of --rate: from R0 to R1 requests a second in a straight line"},
      {"--requests", "N", "Load", "how many are sent (1000, of a trace all)"},
      {"--duration", "S", "Load", "seconds of sending; with --requests what is reached first"},
      {"--drain", "S", "Load", "seconds after sending until what is under way is unfinished (30)"},
      {"--timeout", "S", "Load", "seconds from a request's send until it is given up (600)"},
      {"--dry-run", "", "Load", "open no connection; write the schedule to --jsonl"},
      {"--prompt-tokens", "D", "Work", "N, uniform:A:B or lognormal:MEDIAN:SIGMA (512)"},
      {"--output-tokens", "D", "Work", "the same for answers (128)"},
      {"--token-ids", "A:B", "Work", "prompts are drawn from the ids A to B - 1 (1300:2000)"},
      {"--tokenizer", "PATH", "Work", "a model's folder or tokenizer file: chats of exactly as many tokens"},
      {"--seed", "N", "Work", "fixes the schedule and all lengths (0)"},
      {"--nonce", "N", "Work", "tells the ids of this run from those of others (drawn)"},
      {"--shared-prefix", "N:P", "Work",
       "each prompt begins with one of P texts of N tokens, before its own"},
      {"--turns", "N", "Work", "conversations of N turns: a later prompt begins with what was said (1)"},
      {"--mix", "FILE", "Work", "JSON list of classes: name, weight, and prompt_tokens, output_tokens, ..."},
      {"--rate-scale", "F", "Work", "a trace F times as fast (1)"},
      {"--length-scale", "F", "Work", "prompts and answers F times as long (1)"},
      {"--max-context", "N", "Work", "leave out, and count, requests of more tokens, prompt and answer"},
      {"--spread", "S", "Work", "move each stamp of a trace later by up to S of its seconds (0)"},
      {"--warmup-requests", "N", "Window", "the first N requests are sent and not measured (0)"},
      {"--warmup", "S", "Window", "nor are those intended in the first S seconds (0)"},
      {"--percentiles", "P,P,...", "Statistics", "(50,90,95,99,99.9; 90 and 99 always)"},
      {"--goodput", "LIMITS", "Limits", "\"ttft:2000 tpot:100\", ms: requests a second that meet all"},
      {"--slo", "CLAUSES", "Limits",
       "\"ttft_p99<2000,tpot_p99<100,success>0.99\", or mlperf-8b-server, mlperf-8b-interactive, chat; exit "
       "3 where missed"},
      {"--find-rate", "", "Limits", "the highest rate at which --slo holds, looked for from --rate (1) on"},
      {"--sweep", "R1,R2,...", "Limits", "one run for each rate"},
      {"--ab", "URL", "Limits", "a second target: alternating slices of the load, ratios with intervals"},
      {"--json", "FILE", "Output", "the result, in vLLM's keys and more"},
      {"--jsonl", "FILE", "Output", "a line for each request"},
      {"--html", "FILE", "Output", "the result as a page that needs nothing else"},
      {"--explain", "", "Output",
       "where the time to the first content went, by the stages a Tramontane server tells"},
      {"--check", "", "Check", "no load: check this tool's times on this machine (3 seconds)"},
  };
  return flags;
}

class Reader {
 public:
  Reader(const GivenFlags& given, const OptionSources& sources) : given_(given), sources_(sources) {}

  StatusOr<BenchOptions> Read() {
    const OtherTarget* const other = sources_.other_target;
    const std::string alone = other == nullptr ? "--check" : other->alone;
    if (given_.Has(alone.c_str())) {
      if (given_.size() > 1) return InvalidArgument(alone + " stands alone: without a load");
      options_.check = true;
      if (other != nullptr) TM_RETURN_IF_ERROR(other->read(given_).status());
      return std::move(options_);
    }
    if (other == nullptr) TM_RETURN_IF_ERROR(ReadTarget());
    TM_RETURN_IF_ERROR(ReadLoad());
    TM_RETURN_IF_ERROR(ReadWork());
    TM_RETURN_IF_ERROR(ReadWindow());
    TM_RETURN_IF_ERROR(ReadLimits());
    TM_RETURN_IF_ERROR(ReadOutput());
    TM_RETURN_IF_ERROR(CheckTogether());
    if (other != nullptr && !options_.dry_run) {
      TM_ASSIGN_OR_RETURN(options_.target, other->read(given_));
    }
    return std::move(options_);
  }

 private:
  Status ReadTarget();
  Status ReadApiKey();
  Status ReadLoad();
  Status ReadArrivals();
  Status ReadRamp(ArrivalOptions* arrivals) const;
  Status ReadWork();
  Status ReadClasses();
  Status ReadWindow();
  Status ReadLimits();
  Status ReadOutput();
  Status CheckTogether() const;

  const GivenFlags& given_;
  const OptionSources& sources_;
  BenchOptions options_;
};

Status Reader::ReadTarget() {
  TargetOptions& target = options_.target;
  target.url = given_.Text("--target");
  const std::string endpoint = given_.Text("--endpoint", "completions");
  if (endpoint != "completions" && endpoint != "chat") {
    return BadValue("--endpoint", endpoint, "completions or chat");
  }
  target.endpoint = endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions;
  target.model = given_.Text("--model");
  for (const std::string& header : given_.All("--header")) {
    const size_t colon = header.find(':');
    const bool fits =
        colon != std::string::npos && colon > 0 && header.find_first_of("\r\n") == std::string::npos;
    // Of one without a colon nothing is shown: it may be a secret.
    const std::string name = colon == std::string::npos ? "..." : header.substr(0, colon);
    if (!fits) return BadValue("--header", name, "'NAME: VALUE' in one line");
    const size_t begin = header.find_first_not_of(' ', colon + 1);
    target.headers.emplace_back(header.substr(0, colon),
                                begin == std::string::npos ? "" : header.substr(begin));
  }
  target.ca_file = given_.Text("--ca");
  target.cert_file = given_.Text("--cert");
  target.key_file = given_.Text("--key");
  target.insecure = given_.Has("--insecure");
  target.ignore_eos = !given_.Has("--no-ignore-eos");
  target.extra_body = given_.Text("--extra-body");
  if (given_.Has("--extra-body")) {
    if (IsNestedTooDeep(target.extra_body))
      return InvalidArgument("--extra-body is nested more than 32 deep");
    const auto body = nlohmann::json::parse(target.extra_body, nullptr, /*allow_exceptions=*/false);
    if (!body.is_object()) return BadValue("--extra-body", target.extra_body, "a JSON object");
  }
  return ReadApiKey();
}

Status Reader::ReadApiKey() {
  const char* const from_environment = sources_.environment("TRAMONTANE_API_KEY");
  std::string key = from_environment == nullptr ? "" : from_environment;
  if (given_.Has("--api-key-file")) {
    std::ifstream file(given_.Text("--api-key-file"));
    if (!file || !std::getline(file, key) || key.empty()) {
      return BadValue("--api-key-file", given_.Text("--api-key-file"), "a file whose first line is the key");
    }
  }
  while (!key.empty() && (key.back() == '\r' || key.back() == '\n' || key.back() == ' ')) key.pop_back();
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  if (!std::all_of(key.begin(), key.end(), printable)) {
    return InvalidArgument("the API key holds a byte that a header cannot; it must be printable ASCII");
  }
  options_.target.api_key = std::move(key);
  return Status::Ok();
}

Status Reader::ReadLoad() {
  options_.trace_path = given_.Text("--trace");
  if (given_.Has("--trace") && options_.trace_path.empty()) return BadValue("--trace", "", "a file");
  TM_RETURN_IF_ERROR(given_.Whole("--concurrency", {1, 100'000}, &options_.concurrency));
  if (given_.Has("--requests")) {
    int64_t requests = 0;
    TM_RETURN_IF_ERROR(given_.Whole("--requests", kCount, &requests));
    options_.requests = requests;
  }
  if (given_.Has("--duration")) {
    double seconds = 0;
    TM_RETURN_IF_ERROR(given_.Number("--duration", kSomeSeconds, &seconds));
    options_.duration_s = seconds;
  }
  if (!options_.requests && !options_.duration_s && options_.trace_path.empty())
    options_.requests = kDefaultRequests;
  TM_RETURN_IF_ERROR(given_.Number("--drain", kSeconds, &options_.drain_s));
  TM_RETURN_IF_ERROR(given_.Number("--timeout", kSomeSeconds, &options_.timeout_s));
  options_.target.timeout_s = std::min(options_.timeout_s, 30.0);  // of a question outside of a run
  options_.dry_run = given_.Has("--dry-run");
  return ReadArrivals();
}

Status Reader::ReadArrivals() {
  static const std::map<std::string, ArrivalProcess> processes = {{"poisson", ArrivalProcess::kPoisson},
                                                                  {"gamma", ArrivalProcess::kGamma},
                                                                  {"constant", ArrivalProcess::kConstant}};
  ArrivalOptions arrivals;
  const std::string process = given_.Text("--arrival", "poisson");
  if (!processes.contains(process)) return BadValue("--arrival", process, "poisson, gamma or constant");
  arrivals.process = processes.at(process);
  TM_RETURN_IF_ERROR(given_.NeedsOther({"--burstiness"}, process == "gamma", "--arrival gamma"));
  TM_RETURN_IF_ERROR(given_.Number("--burstiness", {1e-3, 1e3}, &arrivals.burstiness));
  TM_RETURN_IF_ERROR(given_.Excludes("--ramp", {"--rate", "--trace", "--find-rate", "--sweep"}));
  TM_RETURN_IF_ERROR(given_.Excludes("--rate", {"--trace", "--sweep"}));
  TM_RETURN_IF_ERROR(given_.Excludes("--trace", {"--find-rate", "--sweep", "--arrival"}));
  const bool by_search = given_.Has("--find-rate") || given_.Has("--sweep");
  if (given_.Has("--rate") && given_.Text("--rate") != "inf") {
    TM_RETURN_IF_ERROR(given_.Number("--rate", kRate, &arrivals.rate));
  } else if (by_search) {
    if (given_.Has("--rate"))
      return BadValue("--rate", "inf", "a number with --find-rate, from which it looks");
    arrivals.rate = 1;
  } else if (given_.Has("--ramp")) {
    TM_RETURN_IF_ERROR(ReadRamp(&arrivals));
  }
  if (given_.Has("--rate") || given_.Has("--ramp") || by_search) options_.arrivals = arrivals;
  TM_RETURN_IF_ERROR(given_.NeedsOther({"--arrival"}, options_.arrivals.has_value(), "--rate"));
  const bool any = options_.arrivals || !options_.trace_path.empty() || options_.concurrency > 0;
  if (!any)
    return InvalidArgument("the load is missing: give at least one of --rate, --trace and --concurrency");
  return Status::Ok();
}

// Over --duration; else over the time that --requests take at the mean of both rates.
Status Reader::ReadRamp(ArrivalOptions* arrivals) const {
  const std::string text = given_.Text("--ramp");
  const auto parts = SplitAt(text, ':');
  if (parts.size() != 2) return BadValue("--ramp", text, "R0:R1");
  TM_ASSIGN_OR_RETURN(arrivals->rate, ParseNumber("--ramp", parts[0], kRate));
  TM_ASSIGN_OR_RETURN(arrivals->ramp_to_rate, ParseNumber("--ramp", parts[1], kRate));
  const double mean = 0.5 * (arrivals->rate + arrivals->ramp_to_rate);
  arrivals->ramp_seconds =
      options_.duration_s ? *options_.duration_s : static_cast<double>(*options_.requests) / mean;
  return Status::Ok();
}

Status Reader::ReadWork() {
  if (given_.Has("--token-ids")) {
    TM_ASSIGN_OR_RETURN(options_.token_ids, ParseIdRange("--token-ids", given_.Text("--token-ids")));
  }
  options_.tokenizer_path = given_.Text("--tokenizer");
  TM_RETURN_IF_ERROR(given_.Whole("--seed", {0, 9e15}, &options_.seed));
  options_.nonce = given_.Has("--nonce") ? 0 : sources_.draw_nonce();
  TM_RETURN_IF_ERROR(given_.Whole("--nonce", {0, 9e15}, &options_.nonce));
  TM_RETURN_IF_ERROR(given_.Number("--rate-scale", kScale, &options_.rate_scale));
  TM_RETURN_IF_ERROR(given_.Number("--length-scale", kScale, &options_.length_scale));
  TM_RETURN_IF_ERROR(given_.Number("--spread", kSeconds, &options_.spread_s));
  TM_RETURN_IF_ERROR(given_.Whole("--max-context", {2, 1e9}, &options_.max_context));
  const bool by_trace = !options_.trace_path.empty();
  TM_RETURN_IF_ERROR(given_.NeedsOther({"--rate-scale", "--spread"}, by_trace, "--trace"));
  TM_RETURN_IF_ERROR(given_.Excludes(
      "--trace", {"--prompt-tokens", "--output-tokens", "--shared-prefix", "--turns", "--mix"}));
  return ReadClasses();
}

Status Reader::ReadClasses() {
  WorkClass work;
  if (given_.Has("--prompt-tokens")) {
    TM_ASSIGN_OR_RETURN(work.prompt_tokens,
                        LengthDistribution::Parse("--prompt-tokens", given_.Text("--prompt-tokens")));
  }
  if (given_.Has("--output-tokens")) {
    TM_ASSIGN_OR_RETURN(work.output_tokens,
                        LengthDistribution::Parse("--output-tokens", given_.Text("--output-tokens")));
  }
  if (given_.Has("--shared-prefix")) {
    TM_ASSIGN_OR_RETURN(work.shared_prefix,
                        ParseSharedPrefix("--shared-prefix", given_.Text("--shared-prefix")));
  }
  if (given_.Has("--turns")) {
    TM_ASSIGN_OR_RETURN(work.turns, ParseTurns("--turns", given_.Text("--turns")));
  }
  options_.classes = {work};
  if (given_.Has("--mix")) {
    TM_ASSIGN_OR_RETURN(options_.classes, ReadMix(given_.Text("--mix"), work));
  }
  return Status::Ok();
}

Status Reader::ReadWindow() {
  TM_RETURN_IF_ERROR(given_.Whole("--warmup-requests", {0, 1e8}, &options_.warmup_requests));
  TM_RETURN_IF_ERROR(given_.Number("--warmup", kSeconds, &options_.warmup_s));
  options_.percentiles.clear();
  const std::string percentiles = given_.Text("--percentiles", "50,90,95,99,99.9");
  std::set<double> all = {90, 99};
  for (const std::string_view part : SplitAt(percentiles, ',')) {
    TM_ASSIGN_OR_RETURN(const double p, ParseNumber("--percentiles", part, {0, 100}));
    all.insert(p);
  }
  options_.percentiles.assign(all.begin(), all.end());
  return Status::Ok();
}

Status Reader::ReadLimits() {
  if (given_.Has("--goodput")) {
    TM_ASSIGN_OR_RETURN(options_.goodput, ParseGoodput("--goodput", given_.Text("--goodput")));
  }
  if (given_.Has("--slo")) {
    TM_ASSIGN_OR_RETURN(options_.slo, ParseSlo("--slo", given_.Text("--slo")));
  }
  options_.find_rate = given_.Has("--find-rate");
  TM_RETURN_IF_ERROR(given_.NeedsOther({"--find-rate"}, given_.Has("--slo"), "--slo"));
  TM_RETURN_IF_ERROR(given_.Excludes("--find-rate", {"--sweep", "--ab"}));
  TM_RETURN_IF_ERROR(given_.Excludes("--sweep", {"--ab"}));
  TM_RETURN_IF_ERROR(given_.Excludes("--ab", {"--slo"}));  // it is one target's
  if (given_.Has("--sweep")) {
    const std::string rates = given_.Text("--sweep");  // which the parts lie in
    for (const std::string_view part : SplitAt(rates, ',')) {
      TM_ASSIGN_OR_RETURN(const double rate, ParseNumber("--sweep", part, kRate));
      options_.sweep.push_back(rate);
    }
  }
  options_.ab_url = given_.Text("--ab");
  return Status::Ok();
}

Status Reader::ReadOutput() {
  options_.json_path = given_.Text("--json");
  options_.jsonl_path = given_.Text("--jsonl");
  options_.html_path = given_.Text("--html");
  options_.explain = given_.Has("--explain");
  options_.target.timing = options_.explain;
  return Status::Ok();
}

Status Reader::CheckTogether() const {
  if (options_.dry_run) {
    TM_RETURN_IF_ERROR(given_.NeedsOther({"--dry-run"}, given_.Has("--jsonl"), "--jsonl"));
    return given_.Excludes("--dry-run", {"--find-rate", "--sweep", "--ab", "--explain"});
  }
  TM_RETURN_IF_ERROR(given_.Excludes("--explain", {"--find-rate", "--sweep", "--ab"}));
  if (sources_.other_target != nullptr) return Status::Ok();
  if (options_.target.url.empty()) {
    return InvalidArgument("--target is missing; it must be http://, https://, grpc:// or grpcs://HOST:PORT");
  }
  for (const char* flag : {"--target", "--ab"}) {
    if (!given_.Has(flag)) continue;
    const std::string url = given_.Text(flag);
    const auto begins = [&](const char* scheme) { return url.starts_with(scheme); };
    if (!begins("http://") && !begins("https://") && !begins("grpc://") && !begins("grpcs://")) {
      return BadValue(flag, url, "http://, https://, grpc:// or grpcs://HOST:PORT");
    }
  }
  return Status::Ok();
}

FlagProgram ProgramOf(const OtherTarget* other) {
  if (other == nullptr) {
    return {"tramontane bench",
            "Measures how an LLM server answers under load, by the definitions of docs/ttft.md.", Flags()};
  }
  static const std::set<std::string> of_servers = {"--token-ids", "--tokenizer", "--nonce", "--ab",
                                                   "--explain"};
  FlagProgram program = {other->program, other->about, other->flags};
  for (const FlagRow& row : Flags()) {
    const std::string_view group = row.group;
    if (group == "Target" || group == "Check" || of_servers.contains(row.name)) continue;
    program.flags.push_back(row);
  }
  return program;
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv, const OptionSources& sources, std::ostream& out,
                           std::ostream& err) {
  const FlagProgram program = ProgramOf(sources.other_target);
  const ParsedFlags flags = ParseFlags(argc, argv, program, out, err);
  if (flags.exit_status) return {{}, flags.exit_status};
  auto options = Reader(flags.given, sources).Read();
  if (!options.ok()) {
    constexpr int kUsageStatus = 2;
    err << program.name << ": " << options.status().message() << "\n";
    return {{}, kUsageStatus};
  }
  options->program = program.name;
  options->command_line = CommandLineText(program.name, argc, argv);
  return {*std::move(options), std::nullopt};
}

}  // namespace tramontane::load
