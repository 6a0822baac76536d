// perplexity MODEL FILE: how well a model predicts a text, scored by the engine as it scores a prompt.
//
//   ids of the text   a b c d e f g            --chunk 3
//   prompts           <s> a b c | <s> d e f | <s> g      where the tokenizer puts <s> in front of a text
//   scored                a b c       d e f       g      each given what stands before it in its prompt
//
// Without <s> the first token of each chunk has nothing before it and is not scored. With --against, another
// model of the same vocabulary reads the same prompts, and the two are compared where a token is scored.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "models/files/read_file.h"
#include "server/commands/commands.h"
#include "server/commands/local_engine.h"
#include "server/commands/prompt_logits.h"
#include "server/commands/setting_flags.h"

namespace tramontane {

namespace {

constexpr int64_t kMaxTextBytes = int64_t{256} << 20;
constexpr int64_t kMinChunk = 2;  // a chunk of one token, without bos, scores nothing

struct PerplexityOptions {
  std::string model;
  std::string file;
  std::string against;  // used when has_against
  bool has_against = false;
  std::string against_kv_dtype;  // "": as the model's
  int64_t chunk = 512;
  GivenSettings settings;
};

// A mean of numbers that come one by one, and its standard error as if they were independent.
class RunningMean {
 public:
  void Add(double value) {
    ++count_;
    const double from_old = value - mean_;
    mean_ += from_old / static_cast<double>(count_);
    squares_ += from_old * (value - mean_);
  }
  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  double standard_error() const {
    const auto n = static_cast<double>(count_);
    return count_ < 2 ? 0 : std::sqrt(squares_ / (n - 1) / n);
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

// Adds -log p of each prompt token but the first.
Status ScorePrompt(LocalEngine& local, std::vector<int32_t> prompt, RunningMean* nll) {
  Request request;
  request.id = "perplexity";
  request.prompt = std::move(prompt);
  request.stopping.max_tokens = 0;
  request.output.prompt_logprobs = 0;
  request.received_ns = request.tokenized_ns = local.clock.NowNs();
  const auto bell = std::make_shared<Bell>();  // the stream may ring it after its end
  TM_ASSIGN_OR_RETURN(const auto stream,
                      local.host->engine().Submit(std::move(request), [bell] { bell->Ring(); }));
  while (true) {
    bell->Wait();
    StreamUpdate update = stream->Take();
    if (update.started) {
      for (const TokenInfo& info : update.started->prompt_logprobs) nll->Add(-double{info.logprob});
    }
    for (const StreamFinished& finished : update.finished) TM_RETURN_IF_ERROR(finished.status);
    if (update.done) return update.status;
  }
}

// Of one row of logits.
std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  const double log_sum = highest + std::log(sum);
  std::vector<double> result;
  result.reserve(logits.size());
  for (const float logit : logits) result.push_back(logit - log_sum);
  return result;
}

// What a model's distributions are against those of a reference, over the positions that predict a scored
// token.
struct Comparison {
  RunningMean reference_nll;  // -log p of the scored token by the reference
  RunningMean divergence;     // sum over the vocabulary of p (log p - log q), p the reference's
  int64_t same_likeliest = 0;

  // The two rows of logits, and the token that came.
  void Add(std::span<const float> model, std::span<const float> reference, int32_t token) {
    const std::vector<double> log_q = LogSoftmax(model);
    const std::vector<double> log_p = LogSoftmax(reference);
    double sum = 0;
    for (size_t t = 0; t < log_p.size(); ++t) {
      if (const double p = std::exp(log_p[t]); p > 0) sum += p * (log_p[t] - log_q[t]);
    }
    divergence.Add(sum);
    reference_nll.Add(-log_p[static_cast<size_t>(token)]);
    const auto likeliest = [](std::span<const float> row) {
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    same_likeliest += likeliest(model) == likeliest(reference) ? 1 : 0;
  }
};

Status CompareOnPrompt(std::span<const int32_t> prompt, PromptLogits& model, PromptLogits& reference,
                       Comparison* comparison) {
  TM_RETURN_IF_ERROR(model.Forward(prompt));
  TM_RETURN_IF_ERROR(reference.Forward(prompt));
  const auto scored = static_cast<int32_t>(prompt.size()) - 1;
  const auto vocab = static_cast<size_t>(model.vocab_size());
  std::vector<float> of_model, of_reference;  // [rows, vocab]
  for (int32_t begin = 0; begin < scored; begin += PromptLogits::kMaxRows) {
    const int32_t rows = std::min(PromptLogits::kMaxRows, scored - begin);
    TM_RETURN_IF_ERROR(model.Logits(begin, rows, &of_model));
    TM_RETURN_IF_ERROR(reference.Logits(begin, rows, &of_reference));
    for (int32_t row = 0; row < rows; ++row) {
      const size_t at = static_cast<size_t>(row) * vocab;
      comparison->Add(std::span(of_model).subspan(at, vocab), std::span(of_reference).subspan(at, vocab),
                      prompt[static_cast<size_t>(begin + row) + 1]);
    }
  }
  return Status::Ok();
}

// The model itself once more, beside the reference: the engine tells of the likeliest tokens alone.
Status CompareModels(const PerplexityOptions& options, ServeConfig config,
                     const std::vector<std::vector<int32_t>>& prompts, nlohmann::ordered_json* report) {
  const auto max_tokens = static_cast<int32_t>(options.chunk + 1);
  TM_ASSIGN_OR_RETURN(const auto model, PromptLogits::Open(config, max_tokens));
  config.model = options.against;
  if (!options.against_kv_dtype.empty()) {
    config.kv_dtype = options.against_kv_dtype;
    config.kv_group = 0;
  }
  TM_ASSIGN_OR_RETURN(const auto reference, PromptLogits::Open(config, max_tokens));
  if (model->vocab_size() != reference->vocab_size()) {
    return InvalidArgument("--against is a model of " + std::to_string(reference->vocab_size()) +
                           " tokens, MODEL has " + std::to_string(model->vocab_size()));
  }
  Comparison comparison;
  for (const std::vector<int32_t>& prompt : prompts) {
    TM_RETURN_IF_ERROR(CompareOnPrompt(prompt, *model, *reference, &comparison));
  }
  (*report)["against"] = reference->name();
  (*report)["against_nll"] = comparison.reference_nll.mean();
  (*report)["kl"] = comparison.divergence.mean();
  (*report)["kl_standard_error"] = comparison.divergence.standard_error();
  (*report)["same_likeliest"] =
      static_cast<double>(comparison.same_likeliest) / static_cast<double>(comparison.divergence.count());
  return Status::Ok();
}

Status CheckChunk(int64_t chunk, int64_t context) {
  const int64_t limit = context - 1;  // room for bos
  if (chunk >= kMinChunk && chunk <= limit) return Status::Ok();
  return InvalidArgument("--chunk is " + std::to_string(chunk) + ", the limits are " +
                         std::to_string(kMinChunk) + " to " + std::to_string(limit) +
                         ", one less than the context");
}

// What was scored, the mean and what follows from it.
nlohmann::ordered_json Report(const PerplexityOptions& options, const LocalEngine& local, size_t tokens,
                              bool has_bos, const RunningMean& nll) {
  nlohmann::ordered_json report;
  report["model"] = local.name;
  report["text_tokens"] = tokens;
  report["chunk"] = options.chunk;
  report["bos"] = has_bos;
  report["scored_tokens"] = nll.count();
  report["nll"] = nll.mean();
  report["nll_standard_error"] = nll.standard_error();
  report["perplexity"] = std::exp(nll.mean());
  return report;
}

Status MeasurePerplexity(const PerplexityOptions& options, ServeConfig config) {
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.file, kMaxTextBytes));
  config.max_sequences = 1;
  TM_ASSIGN_OR_RETURN(std::unique_ptr<LocalEngine> local, StartLocalEngine(config));
  TM_RETURN_IF_ERROR(CheckChunk(options.chunk, local->host->engine().limits().context));
  const Tokenizer& tokenizer = local->host->tokenizer();
  auto encoded = tokenizer.Encode(text);
  if (!encoded.ok()) return Status(encoded.status().code(), options.file + ": " + encoded.status().message());
  const std::span<const int32_t> ids = *encoded;

  const auto chunk = static_cast<size_t>(options.chunk);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    std::vector<int32_t> prompt;
    if (tokenizer.adds_bos()) prompt.push_back(tokenizer.bos_id());
    const auto piece = ids.subspan(begin, std::min(chunk, ids.size() - begin));
    prompt.insert(prompt.end(), piece.begin(), piece.end());
    if (prompt.size() > 1) prompts.push_back(std::move(prompt));
  }
  RunningMean nll;
  for (const std::vector<int32_t>& prompt : prompts) TM_RETURN_IF_ERROR(ScorePrompt(*local, prompt, &nll));
  if (nll.count() == 0) {
    return InvalidArgument(options.file + ": " + std::to_string(ids.size()) +
                           " tokens of text, of which none has one before it");
  }
  nlohmann::ordered_json report = Report(options, *local, ids.size(), tokenizer.adds_bos(), nll);
  if (options.has_against) {
    local.reset();  // its memory is wanted
    TM_RETURN_IF_ERROR(CompareModels(options, std::move(config), prompts, &report));
  }
  std::fputs((report.dump() + "\n").c_str(), stdout);
  return std::fflush(stdout) == 0 ? Status::Ok() : Internal("standard output cannot be written");
}

int RunPerplexity(const PerplexityOptions& options) {
  ServeConfig config;
  const std::vector<std::string> problems = ApplyFlags(options.settings, &config);
  for (const std::string& problem : problems) {
    std::fprintf(stderr, "tramontane perplexity: %s\n", problem.c_str());
  }
  if (!problems.empty()) return 2;
  config.model = options.model;
  const Status status = MeasurePerplexity(options, std::move(config));
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane perplexity: %s\n", status.ToString().c_str());
  return 1;
}

// Of serve's settings, those that say what the model is and how it is computed.
bool DecidesTheScores(std::string_view key) {
  for (const std::string_view setting :
       {"model_format", "tokenizer", "device", "cpu_variant", "threads", "memory", "kv_dtype", "kv_group",
        "page_size", "kv_layout", "context", "max_step_tokens", "linear"}) {
    if (key == setting) return true;
  }
  return false;
}

}  // namespace

void AddPerplexityCommand(CLI::App& app, RunCommand* run) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = app.add_subcommand(
      "perplexity", "Score a text in process: mean negative log-likelihood of a token, one JSON line");
  command->add_option("MODEL", options->model, "what serve takes; \"\": the embedded model, breeze")
      ->required();
  command->add_option("FILE", options->file, "UTF-8 text; control tokens in it are text")->required();
  command->add_option("--chunk", options->chunk, "tokens of text in a prompt, each chunk scored by itself")
      ->capture_default_str();
  CLI::Option* against =
      command->add_option("--against", options->against,
                          "a model of the same vocabulary to compare with; \"\": the embedded one");
  command
      ->add_option("--against-kv-dtype", options->against_kv_dtype,
                   "kv_dtype of the model that --against names; none: the same as MODEL's")
      ->check(CLI::IsMember({"f32", "bf16", "fp8", "int8", "int4"}))
      ->needs(against);
  AddSettingFlags(DecidesTheScores, &options->settings, command);
  command->callback([options, against, run] {
    options->has_against = against->count() > 0;
    *run = [options] { return RunPerplexity(*options); };
  });
}

}  // namespace tramontane
