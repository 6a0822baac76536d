#include "bench/load/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "bench/load/parse.h"
#include "kernels/core/utf8.h"

namespace tramontane::load {
namespace {

constexpr NumberRange kRate = {1e-6, 1e6};
constexpr NumberRange kSeconds = {0, 1e7};
constexpr NumberRange kSomeSeconds = {1e-3, 1e7};
constexpr NumberRange kCount = {1, 1e8};
constexpr NumberRange kScale = {1e-6, 1e6};

// A flag with a value, as text; what it means is decided by one function, so that faults read alike.
struct FlagRow {
  const char* name;   // "--rate"
  const char* value;  // what help calls its value; "" for one without
  const char* group;
  const char* help;
};

const std::vector<FlagRow>& Flags() {
  static const std::vector<FlagRow> flags = {
      {"--target", "URL", "Target", "http://, https://, grpc:// or grpcs://HOST:PORT"},
      {"--endpoint", "NAME", "Target", "completions or chat (completions)"},
      {"--model", "NAME", "Target", "the model that is asked (the first that the target serves)"},
      {"--header", "'K: V'", "Target", "a header of every request; may be given again"},
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
       "3 where "
       "missed"},
      {"--find-rate", "", "Limits", "the highest rate at which --slo holds, looked for from --rate (1) on"},
      {"--sweep", "R1,R2,...", "Limits", "one run for each rate"},
      {"--ab", "URL", "Limits", "a second target: alternating slices of the load, ratios with intervals"},
      {"--json", "FILE", "Output", "the result, in vLLM's keys and more"},
      {"--jsonl", "FILE", "Output", "a line for each request"},
      {"--html", "FILE", "Output", "the result as a page that needs nothing else"},
      {"--explain", "", "Output",
       "where the time to the first content went, by the stages a Tramontane server tells"},
      {"--check", "", "Check", "no load: check this tool against servers whose truth is known (15 seconds)"},
  };
  return flags;
}

// What was given on the command line, by flag; those without a value have an empty one.
using Given = std::map<std::string, std::vector<std::string>>;

class Reader {
 public:
  Reader(const Given& given, const OptionSources& sources) : given_(given), sources_(sources) {}

  StatusOr<BenchOptions> Read() {
    if (Has("--check")) {
      if (given_.size() > 1)
        return InvalidArgument("--check stands alone: it brings its own servers and load");
      options_.check = true;
      return std::move(options_);
    }
    TM_RETURN_IF_ERROR(ReadTarget());
    TM_RETURN_IF_ERROR(ReadLoad());
    TM_RETURN_IF_ERROR(ReadWork());
    TM_RETURN_IF_ERROR(ReadWindow());
    TM_RETURN_IF_ERROR(ReadLimits());
    TM_RETURN_IF_ERROR(ReadOutput());
    TM_RETURN_IF_ERROR(CheckTogether());
    return std::move(options_);
  }

 private:
  bool Has(const char* flag) const { return given_.contains(flag); }
  std::string Text(const char* flag, const std::string& otherwise = "") const {
    const auto at = given_.find(flag);
    return at == given_.end() ? otherwise : at->second.back();
  }
  Status Number(const char* flag, const NumberRange& range, double* value) const {
    if (!Has(flag)) return Status::Ok();
    TM_ASSIGN_OR_RETURN(*value, ParseNumber(flag, Text(flag), range));
    return Status::Ok();
  }
  template <typename Integer>
  Status Whole(const char* flag, const NumberRange& range, Integer* value) const {
    if (!Has(flag)) return Status::Ok();
    TM_ASSIGN_OR_RETURN(const int64_t whole, ParseWhole(flag, Text(flag), range));
    *value = static_cast<Integer>(whole);
    return Status::Ok();
  }

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
  // One of the flags was given that only another gives a meaning.
  Status NeedsOther(std::initializer_list<const char*> flags, bool has_other, const char* other) const;
  // Both were given, and mean different things.
  Status Excludes(const char* flag, std::initializer_list<const char*> others) const;

  const Given& given_;
  const OptionSources& sources_;
  BenchOptions options_;
};

Status Reader::ReadTarget() {
  TargetOptions& target = options_.target;
  target.url = Text("--target");
  const std::string endpoint = Text("--endpoint", "completions");
  if (endpoint != "completions" && endpoint != "chat") {
    return BadValue("--endpoint", endpoint, "completions or chat");
  }
  target.endpoint = endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions;
  target.model = Text("--model");
  if (const auto headers = given_.find("--header"); headers != given_.end()) {
    for (const std::string& header : headers->second) {
      const size_t colon = header.find(':');
      const bool fits =
          colon != std::string::npos && colon > 0 && header.find_first_of("\r\n") == std::string::npos;
      if (!fits) return BadValue("--header", header.substr(0, colon), "'NAME: VALUE' in one line");
      const size_t begin = header.find_first_not_of(' ', colon + 1);
      target.headers.emplace_back(header.substr(0, colon),
                                  begin == std::string::npos ? "" : header.substr(begin));
    }
  }
  target.ca_file = Text("--ca");
  target.cert_file = Text("--cert");
  target.key_file = Text("--key");
  target.insecure = Has("--insecure");
  target.ignore_eos = !Has("--no-ignore-eos");
  target.extra_body = Text("--extra-body");
  if (Has("--extra-body")) {
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
  if (Has("--api-key-file")) {
    std::ifstream file(Text("--api-key-file"));
    if (!file || !std::getline(file, key) || key.empty()) {
      return BadValue("--api-key-file", Text("--api-key-file"), "a file whose first line is the key");
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
  options_.trace_path = Text("--trace");
  if (Has("--trace") && options_.trace_path.empty()) return BadValue("--trace", "", "a file");
  TM_RETURN_IF_ERROR(Whole("--concurrency", {1, 100'000}, &options_.concurrency));
  if (Has("--requests")) {
    int64_t requests = 0;
    TM_RETURN_IF_ERROR(Whole("--requests", kCount, &requests));
    options_.requests = requests;
  }
  if (Has("--duration")) {
    double seconds = 0;
    TM_RETURN_IF_ERROR(Number("--duration", kSomeSeconds, &seconds));
    options_.duration_s = seconds;
  }
  if (!options_.requests && !options_.duration_s && options_.trace_path.empty())
    options_.requests = kDefaultRequests;
  TM_RETURN_IF_ERROR(Number("--drain", kSeconds, &options_.drain_s));
  TM_RETURN_IF_ERROR(Number("--timeout", kSomeSeconds, &options_.timeout_s));
  options_.target.timeout_s = std::min(options_.timeout_s, 30.0);  // of a question outside of a run
  options_.dry_run = Has("--dry-run");
  return ReadArrivals();
}

Status Reader::ReadArrivals() {
  static const std::map<std::string, ArrivalProcess> processes = {{"poisson", ArrivalProcess::kPoisson},
                                                                  {"gamma", ArrivalProcess::kGamma},
                                                                  {"constant", ArrivalProcess::kConstant}};
  ArrivalOptions arrivals;
  const std::string process = Text("--arrival", "poisson");
  if (!processes.contains(process)) return BadValue("--arrival", process, "poisson, gamma or constant");
  arrivals.process = processes.at(process);
  TM_RETURN_IF_ERROR(NeedsOther({"--burstiness"}, process == "gamma", "--arrival gamma"));
  TM_RETURN_IF_ERROR(Number("--burstiness", {1e-3, 1e3}, &arrivals.burstiness));
  TM_RETURN_IF_ERROR(Excludes("--ramp", {"--rate", "--trace", "--find-rate", "--sweep"}));
  TM_RETURN_IF_ERROR(Excludes("--rate", {"--trace", "--sweep"}));
  TM_RETURN_IF_ERROR(Excludes("--trace", {"--find-rate", "--sweep", "--arrival"}));
  const bool by_search = Has("--find-rate") || Has("--sweep");
  if (Has("--rate") && Text("--rate") != "inf") {
    TM_RETURN_IF_ERROR(Number("--rate", kRate, &arrivals.rate));
  } else if (by_search) {
    if (Has("--rate")) return BadValue("--rate", "inf", "a number with --find-rate, from which it looks");
    arrivals.rate = 1;
  } else if (Has("--ramp")) {
    TM_RETURN_IF_ERROR(ReadRamp(&arrivals));
  }
  if (Has("--rate") || Has("--ramp") || by_search) options_.arrivals = arrivals;
  TM_RETURN_IF_ERROR(NeedsOther({"--arrival"}, options_.arrivals.has_value(), "--rate"));
  const bool any = options_.arrivals || !options_.trace_path.empty() || options_.concurrency > 0;
  if (!any)
    return InvalidArgument("the load is missing: give at least one of --rate, --trace and --concurrency");
  return Status::Ok();
}

// Over --duration; else over the time that --requests take at the mean of both rates.
Status Reader::ReadRamp(ArrivalOptions* arrivals) const {
  const std::string text = Text("--ramp");
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
  if (Has("--token-ids")) {
    TM_ASSIGN_OR_RETURN(options_.token_ids, ParseIdRange("--token-ids", Text("--token-ids")));
  }
  options_.tokenizer_path = Text("--tokenizer");
  TM_RETURN_IF_ERROR(Whole("--seed", {0, 9e15}, &options_.seed));
  options_.nonce = Has("--nonce") ? 0 : sources_.draw_nonce();
  TM_RETURN_IF_ERROR(Whole("--nonce", {0, 9e15}, &options_.nonce));
  TM_RETURN_IF_ERROR(Number("--rate-scale", kScale, &options_.rate_scale));
  TM_RETURN_IF_ERROR(Number("--length-scale", kScale, &options_.length_scale));
  TM_RETURN_IF_ERROR(Number("--spread", kSeconds, &options_.spread_s));
  TM_RETURN_IF_ERROR(Whole("--max-context", {2, 1e9}, &options_.max_context));
  const bool by_trace = !options_.trace_path.empty();
  TM_RETURN_IF_ERROR(NeedsOther({"--rate-scale", "--spread"}, by_trace, "--trace"));
  TM_RETURN_IF_ERROR(
      Excludes("--trace", {"--prompt-tokens", "--output-tokens", "--shared-prefix", "--turns", "--mix"}));
  return ReadClasses();
}

Status Reader::ReadClasses() {
  WorkClass work;
  if (Has("--prompt-tokens")) {
    TM_ASSIGN_OR_RETURN(work.prompt_tokens,
                        LengthDistribution::Parse("--prompt-tokens", Text("--prompt-tokens")));
  }
  if (Has("--output-tokens")) {
    TM_ASSIGN_OR_RETURN(work.output_tokens,
                        LengthDistribution::Parse("--output-tokens", Text("--output-tokens")));
  }
  if (Has("--shared-prefix")) {
    TM_ASSIGN_OR_RETURN(work.shared_prefix, ParseSharedPrefix("--shared-prefix", Text("--shared-prefix")));
  }
  if (Has("--turns")) {
    TM_ASSIGN_OR_RETURN(work.turns, ParseTurns("--turns", Text("--turns")));
  }
  options_.classes = {work};
  if (Has("--mix")) {
    TM_ASSIGN_OR_RETURN(options_.classes, ReadMix(Text("--mix"), work));
  }
  return Status::Ok();
}

Status Reader::ReadWindow() {
  TM_RETURN_IF_ERROR(Whole("--warmup-requests", {0, 1e8}, &options_.warmup_requests));
  TM_RETURN_IF_ERROR(Number("--warmup", kSeconds, &options_.warmup_s));
  options_.percentiles.clear();
  const std::string percentiles = Text("--percentiles", "50,90,95,99,99.9");
  std::set<double> all = {90, 99};
  for (const std::string_view part : SplitAt(percentiles, ',')) {
    TM_ASSIGN_OR_RETURN(const double p, ParseNumber("--percentiles", part, {0, 100}));
    all.insert(p);
  }
  options_.percentiles.assign(all.begin(), all.end());
  return Status::Ok();
}

Status Reader::ReadLimits() {
  if (Has("--goodput")) {
    TM_ASSIGN_OR_RETURN(options_.goodput, ParseGoodput("--goodput", Text("--goodput")));
  }
  if (Has("--slo")) {
    TM_ASSIGN_OR_RETURN(options_.slo, ParseSlo("--slo", Text("--slo")));
  }
  options_.find_rate = Has("--find-rate");
  TM_RETURN_IF_ERROR(NeedsOther({"--find-rate"}, Has("--slo"), "--slo"));
  TM_RETURN_IF_ERROR(Excludes("--find-rate", {"--sweep", "--ab"}));
  TM_RETURN_IF_ERROR(Excludes("--sweep", {"--ab"}));
  if (Has("--sweep")) {
    const std::string rates = Text("--sweep");  // which the parts lie in
    for (const std::string_view part : SplitAt(rates, ',')) {
      TM_ASSIGN_OR_RETURN(const double rate, ParseNumber("--sweep", part, kRate));
      options_.sweep.push_back(rate);
    }
  }
  options_.ab_url = Text("--ab");
  return Status::Ok();
}

Status Reader::ReadOutput() {
  options_.json_path = Text("--json");
  options_.jsonl_path = Text("--jsonl");
  options_.html_path = Text("--html");
  options_.explain = Has("--explain");
  options_.target.timing = options_.explain;
  return Status::Ok();
}

Status Reader::CheckTogether() const {
  if (options_.dry_run) {
    TM_RETURN_IF_ERROR(NeedsOther({"--dry-run"}, Has("--jsonl"), "--jsonl"));
    return Excludes("--dry-run", {"--find-rate", "--sweep", "--ab", "--explain"});
  }
  TM_RETURN_IF_ERROR(Excludes("--explain", {"--find-rate", "--sweep", "--ab"}));
  if (options_.target.url.empty()) {
    return InvalidArgument("--target is missing; it must be http://, https://, grpc:// or grpcs://HOST:PORT");
  }
  for (const char* flag : {"--target", "--ab"}) {
    if (!Has(flag)) continue;
    const std::string url = Text(flag);
    const auto begins = [&](const char* scheme) { return url.starts_with(scheme); };
    if (!begins("http://") && !begins("https://") && !begins("grpc://") && !begins("grpcs://")) {
      return BadValue(flag, url, "http://, https://, grpc:// or grpcs://HOST:PORT");
    }
  }
  return Status::Ok();
}

Status Reader::NeedsOther(std::initializer_list<const char*> flags, bool has_other, const char* other) const {
  for (const char* flag : flags) {
    if (Has(flag) && !has_other) return InvalidArgument(std::string(flag) + " needs " + other);
  }
  return Status::Ok();
}

Status Reader::Excludes(const char* flag, std::initializer_list<const char*> others) const {
  for (const char* other : others) {
    if (Has(flag) && Has(other))
      return InvalidArgument(std::string(flag) + " and " + other + " exclude each other");
  }
  return Status::Ok();
}

// The command line for a report. Values of headers are left out: they may be keys.
std::string CommandLineText(int argc, const char* const* argv) {
  std::string text = "tramontane bench";
  bool is_header = false;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const std::string joined = "--header=";
    if (is_header || word.starts_with(joined)) {
      word = word.substr(0, word.find(':')) + ": ...";
    }
    is_header = !is_header && word == "--header";
    const bool plain = !word.empty() && word.find_first_of(" \t\n\"'\\$`<>|&;(){}*?") == std::string::npos;
    text += ' ';
    text += plain ? word : "'" + word + "'";
  }
  return text;
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv, const OptionSources& sources, std::ostream& out,
                           std::ostream& err) {
  CLI::App app("Measures how an LLM server answers under load, by the definitions of docs/ttft.md.",
               "tramontane bench");
  std::map<std::string, std::vector<std::string>> values;
  for (const FlagRow& row : Flags()) {
    CLI::Option* option = nullptr;
    if (row.value[0] == '\0') {
      option = app.add_flag(row.name, row.help);
    } else {
      option = app.add_option(row.name, values[row.name], row.help)->type_name(row.value)->expected(1);
      option->multi_option_policy(std::string_view(row.name) == "--header" ? CLI::MultiOptionPolicy::TakeAll
                                                                           : CLI::MultiOptionPolicy::Throw);
      if (std::string_view(row.name) == "--header") option->allow_extra_args(false);
    }
    option->group(row.group);
  }
  constexpr int kUsageStatus = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, out, err);
    return {{}, status == 0 ? 0 : kUsageStatus};
  }
  Given given;
  for (const FlagRow& row : Flags()) {
    if (app.count(row.name) > 0)
      given[row.name] = values.contains(row.name) ? values[row.name] : std::vector<std::string>(1);
  }
  for (const auto& [flag, texts] : given) {
    if (std::all_of(texts.begin(), texts.end(), [](const std::string& text) { return IsUtf8(text); }))
      continue;
    err << "tramontane bench: " << flag << " is not UTF-8\n";
    return {{}, kUsageStatus};
  }
  auto options = Reader(given, sources).Read();
  if (!options.ok()) {
    err << "tramontane bench: " << options.status().message() << "\n";
    return {{}, kUsageStatus};
  }
  options->command_line = CommandLineText(argc, argv);
  return {*std::move(options), std::nullopt};
}

}  // namespace tramontane::load
