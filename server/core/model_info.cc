#include "server/core/model_info.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "kernels/core/dtype.h"
#include "kernels/core/utf8.h"
#include "kernels/sampling.h"
#include "models/tokenizer/fill_in_middle.h"
#include "server/base/text.h"

namespace tramontane {
namespace {

std::string Quoted(std::string_view text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  return '"' + ReplaceInvalidUtf8(text.substr(0, kMaxQuotedBytes)) + (cut ? "...\"" : "\"");
}

}  // namespace

RpcError CheckModelName(const ServedModel& model, const std::string& name) {
  if (name.empty()) return {};
  const std::vector<std::string>& names = model.names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  RpcError error;
  error.code = StatusCode::kNotFound;
  error.field = "model";
  error.sentence = Quoted(name) + " is not served here; this server serves " + Quoted(names[0]);
  error.field_description = "is not served here";
  error.reason = "MODEL_NOT_FOUND";
  error.missing_model = Quoted(name).substr(1, Quoted(name).size() - 2);
  return error;
}

RpcError GetModel(const ServedModel& model, const v1::GetModelRequest& proto,
                  v1::GetModelResponse* response) {
  if (RpcError error = CheckModelName(model, proto.model()); !error.ok()) return error;
  const ModelConfig& config = model.config;
  const Tokenizer& tokenizer = *model.tokenizer;
  response->set_name(model.names[0]);
  for (const std::string& name : model.names) response->add_names(name);
  response->set_architecture(config.architecture);
  response->set_context(model.engine->limits().context);
  response->set_model_context(config.context);
  response->set_vocab_size(config.vocab_size);
  if (tokenizer.bos_id() >= 0) response->set_bos_token_id(tokenizer.bos_id());
  response->mutable_eos_token_ids()->Add(config.eos_ids.begin(), config.eos_ids.end());
  if (tokenizer.version()) response->set_tokenizer_version(TokenizerVersionName(*tokenizer.version()));
  if (!model.chat_format->is_none()) response->set_chat_format(model.chat_format->name());
  response->set_tokenizer(tokenizer.family());
  response->set_fill_in_middle(CanFillInMiddle(tokenizer));
  response->set_weight_format(DTypeName(config.weight_dtype));
  response->set_layers(config.layers);
  response->set_hidden_size(config.hidden_size);
  response->set_heads(config.heads);
  response->set_kv_heads(config.kv_heads);
  response->set_head_dim(config.head_dim);

  std::map<int32_t, int32_t> layers_by_window;
  for (const int32_t window : config.window) ++layers_by_window[window];
  const auto add_window = [response](int32_t window, int32_t layers) {
    v1::WindowSummary* summary = response->add_windows();
    summary->set_window(window);
    summary->set_layers(layers);
  };
  for (const auto& [window, layers] : layers_by_window) {
    if (window > 0) add_window(window, layers);
  }
  if (layers_by_window.contains(0)) add_window(0, layers_by_window[0]);

  response->set_default_temperature(config.defaults.temperature);
  response->set_default_top_p(config.defaults.top_p);
  response->set_default_top_k(config.defaults.top_k);
  response->set_default_min_p(config.defaults.min_p);
  response->set_default_repetition_penalty(config.defaults.repetition_penalty);
  if (tokenizer.bos_id() >= 0) response->set_bos_piece(PieceText(tokenizer, tokenizer.bos_id()));
  if (tokenizer.eos_id() >= 0) response->set_eos_piece(PieceText(tokenizer, tokenizer.eos_id()));
  return {};
}

void EngineLimitsToProto(const ServedModel& model, v1::Limits* proto) {
  const EngineLimits& limits = model.engine->limits();
  proto->set_context(limits.context);
  proto->set_max_choices(limits.max_choices);
  proto->set_max_stop_strings(limits.max_stop_strings);
  proto->set_max_stop_bytes(limits.max_stop_bytes);
  proto->set_max_stop_token_ids(limits.max_stop_token_ids);
  proto->set_max_logit_bias(limits.max_logit_bias);
  proto->set_max_top_logprobs(kMaxTopLogprobs);
  proto->set_max_candidates(kMaxCandidates);
  proto->set_max_queued_requests(limits.max_queued_requests);
  proto->set_max_queued_bytes(limits.max_queued_bytes);
  proto->set_max_sequences(limits.max_sequences);
  proto->set_max_step_tokens(limits.max_step_tokens);
  proto->set_max_answer_bytes(model.max_answer_bytes);
  if (model.constraints == nullptr) return;
  const ConstraintLimits& constraints = model.constraints->limits();
  proto->set_max_constraint_bytes(constraints.max_bytes);
  proto->set_max_constraint_depth(constraints.max_depth);
  proto->set_max_constraint_repeats(constraints.max_repeats);
  proto->set_max_constraint_size(constraints.max_size);
  proto->set_max_constraint_choices(constraints.max_choices);
  proto->set_max_forced_prefix_ids(limits.max_forced_prefix_ids);
  proto->set_max_constraint_step_us(limits.max_constraint_step_ns / 1000);
}

void LoadToProto(const EngineLoad& load, v1::GetLoadResponse* response) {
  response->set_waiting_requests(load.waiting);
  response->set_running_sequences(load.running);
  response->set_total_pages(load.total_pages);
  response->set_free_pages(load.free_pages);
  response->set_held_pages(load.held_pages);
  response->set_cached_pages(load.cached_pages);
  response->set_steps(load.steps);
  response->set_prefill_steps(load.prefill_steps);
  response->set_decode_steps(load.decode_steps);
  response->set_prompt_tokens(load.prompt_tokens);
  response->set_output_tokens(load.output_tokens);
  response->set_preemptions(load.preemptions);
  response->set_finished_requests(load.finished_requests);
  response->set_cancelled_requests(load.cancelled_requests);
  response->set_failed_rows(load.failed_rows);
  response->set_constrained_tokens(load.constrained_tokens);
  response->set_constraint_us(load.constraint_ns / 1000);
}

std::string PieceText(const Tokenizer& tokenizer, int32_t id) {
  return ReplaceInvalidUtf8(tokenizer.Piece(id));
}

}  // namespace tramontane
