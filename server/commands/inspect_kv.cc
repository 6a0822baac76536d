#include "server/commands/inspect_kv.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "server/commands/kv_listing.h"
#include "server/commands/kv_page_listing.h"
#include "server/commands/kv_picture.h"
#include "server/commands/rolling_trace.h"

namespace tramontane {
namespace {

// What can still be looked at: every iteration is printed, with a column for each key.
constexpr int64_t kMostSequences = 8;
constexpr int64_t kMostPromptTokens = 256;  // of all sequences
constexpr int64_t kMostSteps = 100;
constexpr int64_t kMostContext = 512;

Status Refused(const char* flag, const std::string& value, int64_t least, int64_t most) {
  return InvalidArgument("is " + value + ", allowed are " + std::to_string(least) + " to " +
                         std::to_string(most))
      .WithField(flag, FieldForm::kSubject);
}

Status CheckFlag(const char* flag, int64_t value, int64_t least, int64_t most) {
  return value >= least && value <= most ? Status::Ok() : Refused(flag, std::to_string(value), least, most);
}

// "4,1,3"
StatusOr<std::vector<int32_t>> ReadLengths(std::string_view text) {
  if (text.empty()) {
    return InvalidArgument("is missing: tokens of each prompt, as 4,1,3")
        .WithField("--seqlens", FieldForm::kSubject);
  }
  std::vector<int32_t> lengths;
  int64_t tokens = 0;
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    int32_t length = 0;
    const auto [end, fault] = std::from_chars(item.data(), item.data() + item.size(), length);
    const bool is_number = fault == std::errc() && end == item.data() + item.size();
    const std::string field = FieldElement("--seqlens", lengths.size());
    if (!is_number || length < 1 || length > kMostPromptTokens) {
      return Refused(field.c_str(), "\"" + std::string(item) + "\"", 1, kMostPromptTokens);
    }
    lengths.push_back(length);
    tokens += length;
    if (item.size() == text.size()) break;
    text.remove_prefix(item.size() + 1);
  }
  TM_RETURN_IF_ERROR(
      CheckFlag("the number of --seqlens", static_cast<int64_t>(lengths.size()), 1, kMostSequences));
  TM_RETURN_IF_ERROR(CheckFlag("the sum of --seqlens", tokens, 1, kMostPromptTokens));
  return lengths;
}

StatusOr<ContextPolicy> ReadPolicy(const KvViewArguments& arguments) {
  ContextPolicy policy;
  if (arguments.policy == "none") return policy;
  policy.type = arguments.policy == "sinks" ? ContextPolicyType::kSinks : ContextPolicyType::kShift;
  const bool shifts = policy.type == ContextPolicyType::kShift;
  policy.n_ctx = arguments.n_ctx;
  policy.n_keep = arguments.n_keep;
  policy.n_discard = shifts && arguments.n_discard == 0 ? 1 : arguments.n_discard;
  TM_RETURN_IF_ERROR(CheckFlag("--n-ctx", policy.n_ctx, 1, kMostContext));
  TM_RETURN_IF_ERROR(CheckFlag("--n-keep", policy.n_keep, 0, policy.n_ctx - 1));
  if (shifts) {
    TM_RETURN_IF_ERROR(CheckFlag("--n-discard", policy.n_discard, 1, policy.n_ctx - policy.n_keep));
  } else if (policy.n_discard != 0) {
    return InvalidArgument("--n-discard is " + std::to_string(policy.n_discard) +
                           "; sinks lets tokens go one by one");
  }
  return policy;
}

StatusOr<RollingTraceOptions> ReadOptions(const KvViewArguments& arguments, int64_t page_size) {
  RollingTraceOptions options;
  TM_ASSIGN_OR_RETURN(options.prompt_tokens, ReadLengths(arguments.seqlens));
  const auto [shortest, longest] =
      std::minmax_element(options.prompt_tokens.begin(), options.prompt_tokens.end());
  const int64_t chunk = arguments.chunk == 0 ? *longest : arguments.chunk;
  TM_RETURN_IF_ERROR(CheckFlag("--window", arguments.window, 0, kMostPromptTokens));
  TM_RETURN_IF_ERROR(CheckFlag("--chunk", chunk, 1, kMostPromptTokens));
  TM_RETURN_IF_ERROR(CheckFlag("--steps", arguments.steps, 0, kMostSteps));
  TM_RETURN_IF_ERROR(CheckFlag("--shared-prefix", arguments.shared_prefix, 0, *shortest));
  TM_ASSIGN_OR_RETURN(options.policy, ReadPolicy(arguments));
  options.window = static_cast<int32_t>(arguments.window);
  options.chunk = static_cast<int32_t>(chunk);
  options.decode_steps = static_cast<int32_t>(arguments.steps);
  options.page_size = static_cast<int32_t>(page_size);
  options.shared_prefix = static_cast<int32_t>(arguments.shared_prefix);
  return options;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return Status::Ok();
  return InvalidArgument("is \"" + path + "\", which cannot be written")
      .WithField("--svg", FieldForm::kSubject);
}

// Iterations in words; the picture goes to its file.
StatusOr<std::string> TraceListing(const KvViewArguments& arguments, int64_t page_size) {
  TM_ASSIGN_OR_RETURN(const RollingTraceOptions options, ReadOptions(arguments, page_size));
  TM_ASSIGN_OR_RETURN(const std::vector<RollingStep> steps, TraceRolling(options));
  if (!arguments.svg.empty()) {
    TM_ASSIGN_OR_RETURN(const std::string picture, DrawKvTrace(options, steps));
    TM_RETURN_IF_ERROR(WriteFile(arguments.svg, picture));
  }
  return ListKvTrace(options, steps);
}

}  // namespace

CLI::Option* AddKvViewFlags(CLI::App& command, KvViewArguments* arguments) {
  CLI::Option* kv = command.add_flag(
      "--kv", arguments->wanted,
      "print instead what the KV cache does with prompts of --seqlens: masks, page tables, pages freed");
  const auto number = [&](const char* flag, int64_t* value, const char* help) {
    command.add_option(flag, *value, help)->type_name("N")->needs(kv);
  };
  command.add_option("--seqlens", arguments->seqlens, "tokens of each prompt, up to 8 of them, 256 in all")
      ->type_name("N,N,..")
      ->needs(kv);
  number("--window", &arguments->window, "tokens that a query sees, itself included; 0: all");
  number("--chunk", &arguments->chunk, "tokens of a prompt in one iteration; 0: all");
  number("--steps", &arguments->steps, "iterations of one token each, after the prompts; at most 100");
  command.add_option("--context-policy", arguments->policy, "how a text goes on that outgrows --n-ctx")
      ->type_name("none|sinks|shift")
      ->check(CLI::IsMember({"none", "sinks", "shift"}))
      ->needs(kv);
  number("--n-ctx", &arguments->n_ctx, "tokens that a query sees at most under --context-policy, up to 512");
  number("--n-keep", &arguments->n_keep, "of these, first ones");
  number("--n-discard", &arguments->n_discard, "of one discard, under shift; 0: 1");
  number("--shared-prefix", &arguments->shared_prefix,
         "first tokens that all prompts have in common, so that later ones find pages of earlier ones");
  command.add_option("--svg", arguments->svg, "write the same as a picture")->type_name("FILE")->needs(kv);
  return kv;
}

Status PrintKvView(const KvViewArguments& arguments, const ServeConfig& config) {
  std::string text;
  if (!arguments.page_wanted || !arguments.seqlens.empty()) {
    TM_ASSIGN_OR_RETURN(text, TraceListing(arguments, config.page_size));
  }
  if (arguments.page_wanted) {
    TM_ASSIGN_OR_RETURN(const std::string page, ListKvPage(config, static_cast<int32_t>(config.page_size)));
    text += (text.empty() ? "" : "\n") + page;
  }
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? Status::Ok() : Internal("standard output cannot be written");
}

}  // namespace tramontane
