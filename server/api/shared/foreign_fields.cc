#include "server/api/shared/foreign_fields.h"

#include <utility>

namespace tramontane {

Field Ignored(std::string name) {
  return {.name = std::move(name), .shape = Anything(), .doc = "Accepted; changes nothing.", .ignored = true};
}

Field Refused(std::string name, std::vector<Json> harmless, const std::string& why) {
  return {.name = std::move(name), .shape = Only(std::move(harmless), why), .doc = why};
}

namespace {

using Fields = std::vector<Field>;

// Tables may be asked for before the constants of this file are made; functions are always there.
Json NoText() { return ""; }
Json NoEntries() { return Json::array(); }
Json NoFields() { return Json::object(); }

constexpr char kOwnFormat[] = "chats are always rendered in the model's own format";
constexpr char kTextOnly[] = "this model reads text only";
constexpr char kOneAdapter[] = "no adapters are served";
constexpr char kTopLevel[] = "its fields go to the top level of the body";
constexpr char kOtherSampling[] = "not supported: use temperature, top_p, top_k or min_p";
constexpr char kOtherPenalty[] =
    "not supported: use repetition_penalty, presence_penalty or frequency_penalty";
constexpr char kUseMaxTokens[] = "use max_tokens";
constexpr char kUseMinTokens[] = "use min_tokens";
constexpr char kUseStop[] = "use stop";
constexpr char kUseLogprobs[] = "use logprobs, and top_logprobs in a chat";
constexpr char kUseLogitBias[] = "not supported; logit_bias can forbid tokens";
constexpr char kNeverCut[] = "a prompt is never cut: shorten it before it is sent";
constexpr char kUseContextPolicy[] =
    "use context_policy, whose n_keep and n_discard say what of a text that outgrows its context stays";
constexpr char kUseTokenIds[] = "use return_token_ids";

void Append(Fields* fields, Fields more) {
  for (Field& field : more) fields->push_back(std::move(field));
}

// What is here under another name.
Fields RenamedFields() {
  return {
      Refused("grammar", {NoText()}, "use structured_outputs.grammar, or structured_outputs.json"),
      Refused("json_schema", {}, "use response_format, or structured_outputs.json"),
      Refused("structural_tag", {}, "structural tags are not supported: use structured_outputs"),
      Refused("format", {NoText()}, "use response_format"),
      Refused("n_predict", {-1}, kUseMaxTokens),
      Refused("num_predict", {-1}, kUseMaxTokens),
      Refused("max_new_tokens", {}, kUseMaxTokens),
      Refused("max_output_tokens", {}, kUseMaxTokens),
      Refused("max_length", {}, kUseMaxTokens),
      Refused("min_new_tokens", {0}, kUseMinTokens),
      Refused("min_length", {0}, kUseMinTokens),
      Refused("n_cmpl", {1}, "use n"),
      Refused("num_return_sequences", {1}, "use n"),
      Refused("repeat_penalty", {1}, "use repetition_penalty"),
      Refused("rep_pen", {1}, "use repetition_penalty"),
      Refused("stop_sequences", {NoEntries()}, kUseStop),
      Refused("stop_sequence", {NoEntries()}, kUseStop),
      Refused("stop_strings", {NoEntries()}, kUseStop),
      Refused("until", {NoEntries()}, kUseStop),
      Refused("stop_regex", {NoText(), NoEntries()}, kUseStop),
      Refused("no_stop_trim", {false}, "use include_stop_str_in_output"),
      Refused("do_sample", {true}, "use temperature: 0 always takes the likeliest token"),
      Refused("n_probs", {0}, kUseLogprobs),
      Refused("top_n_tokens", {0}, kUseLogprobs),
      Refused("decoder_input_details", {false}, "use prompt_logprobs"),
      Refused("logprob_token_ids", {NoEntries()}, "only the likeliest tokens can be asked for"),
      Refused("return_tokens", {false}, kUseTokenIds),
      Refused("details", {false}, kUseTokenIds),
      Refused("return_full_text", {false}, "use echo of /v1/completions"),
      Refused("options", {NoFields()}, kTopLevel),
      Refused("parameters", {NoFields()}, kTopLevel),
      Refused("sampling_params", {NoFields()}, kTopLevel),
      Refused("extra_body", {NoFields()}, kTopLevel),
      Refused("num_ctx", {}, "the context is chosen when the server is started (--context)"),
      Refused("max_time", {}, "hang up to end a request"),
      Refused("timeout", {}, "hang up to end a request"),
      Refused("t_max_predict_ms", {0, -1}, "hang up to end a request"),
  };
}

// Other ways to choose a token.
Fields SamplerFields() {
  return {
      Refused("use_beam_search", {false}, "beam search is not supported"),
      Refused("num_beams", {1}, "beam search is not supported"),
      Refused("typical_p", {1}, kOtherSampling),
      Refused("typical", {1}, kOtherSampling),
      Refused("tfs_z", {1}, kOtherSampling),
      Refused("tfs", {1}, kOtherSampling),
      Refused("top_a", {0}, kOtherSampling),
      Refused("top_n_sigma", {-1, 0}, kOtherSampling),
      Refused("min_keep", {0}, kOtherSampling),
      Refused("mirostat", {0}, kOtherSampling),
      Refused("mirostat_mode", {0}, kOtherSampling),
      Refused("mirostat_tau", {5}, kOtherSampling),
      Refused("mirostat_eta", {0.1}, kOtherSampling),
      Refused("xtc_probability", {0}, kOtherSampling),
      Refused("xtc_threshold", {0.1}, kOtherSampling),
      Refused("dynatemp_range", {0}, kOtherSampling),
      Refused("dynatemp_exponent", {1}, kOtherSampling),
      Refused("smoothing_factor", {0}, kOtherSampling),
      Refused("smoothing_curve", {1}, kOtherSampling),
      Refused("epsilon_cutoff", {0}, kOtherSampling),
      Refused("eta_cutoff", {0}, kOtherSampling),
      Refused("penalty_alpha", {0}, kOtherSampling),
      Refused("guidance_scale", {1}, kOtherSampling),
      Refused("negative_prompt", {NoText()}, kOtherSampling),
      Refused("adaptive_target", {-1}, kOtherSampling),
      Refused("samplers", {NoEntries()}, "the order of the filters is fixed: top_k, top_p, min_p"),
      Refused("dry_multiplier", {0}, kOtherPenalty),
      Refused("dry_base", {1.75}, kOtherPenalty),
      Refused("dry_allowed_length", {2}, kOtherPenalty),
      Refused("dry_penalty_last_n", {-1, 0}, kOtherPenalty),
      Refused("dry_sequence_breakers", {NoEntries(), Json::array({"\n", ":", "\"", "*"})}, kOtherPenalty),
      Refused("repeat_last_n", {-1}, "penalties look at all of the prompt and the answer"),
      Refused("penalize_nl", {true}, kOtherPenalty),
      Refused("penalize_newline", {true}, kOtherPenalty),
      Refused("no_repeat_ngram_size", {0}, kOtherPenalty),
      Refused("encoder_repetition_penalty", {1}, kOtherPenalty),
      Refused("repetition_detection", {}, kOtherPenalty),
      Refused("allowed_token_ids", {NoEntries()}, kUseLogitBias),
      Refused("bad_words", {NoEntries()}, kUseLogitBias),
      Refused("logits_processors", {NoEntries()}, kUseLogitBias),
      Refused("custom_logit_processor", {NoText()}, kUseLogitBias),
      Refused("custom_params", {NoFields()}, kUseLogitBias),
      Refused("vllm_xargs", {NoFields()}, kUseLogitBias),
      Refused("watermark", {false}, "answers are not watermarked"),
  };
}

// Other kinds of prompts and answers.
Fields PromptFields() {
  return {
      Refused("inputs", {}, "use prompt, or messages"),
      Refused("input_ids", {}, "token ids are the prompt of /v1/completions"),
      Refused("prompt_embeds", {}, "prompts are text or token ids"),
      Refused("input_embeds", {}, "prompts are text or token ids"),
      Refused("images", {NoEntries()}, kTextOnly),
      Refused("image_data", {NoEntries()}, kTextOnly),
      Refused("mm_processor_kwargs", {NoFields()}, kTextOnly),
      Refused("media_io_kwargs", {NoFields()}, kTextOnly),
      Refused("system", {NoText()}, "use a message with the role system"),
      Refused("template", {NoText()}, kOwnFormat),
      Refused("raw", {false}, "/v1/completions takes a prompt as it is"),
      Refused("context", {NoEntries()}, "send the whole conversation as messages"),
      Refused("truncate_prompt_tokens", {-1}, kNeverCut),
      Refused("truncate", {}, kNeverCut),
      Refused("truncation", {"disabled", "auto"}, kNeverCut),
      Refused("n_keep", {0}, kUseContextPolicy),
      Refused("num_keep", {0}, kUseContextPolicy),
      Refused("n_discard", {0}, kUseContextPolicy),
      Refused("n_indent", {0}, "lines keep the white space that the model gives them"),
      Refused("lora", {NoEntries()}, kOneAdapter),
      Refused("lora_path", {NoText()}, kOneAdapter),
      Refused("lora_request", {}, kOneAdapter),
      Refused("adapter_id", {NoText()}, kOneAdapter),
      Refused("return_hidden_states", {false}, "answers are text"),
      Refused("response_fields", {NoEntries()}, "answers are always whole"),
      Refused("post_sampling_probs", {false}, "log probabilities are those before sampling"),
  };
}

// What is about no token.
Fields IgnoredFields() {
  Fields fields;
  for (const char* name : {"length_penalty",  // of beam search
                           "early_stopping",  // as above
                           "truncation_side",
                           "spaces_between_special_tokens",
                           "stream_interval",
                           "extra_key",
                           "cache_prompt",
                           "id_slot",
                           "session_id",
                           "session_params",
                           "rid",
                           "keep_alive",
                           "kv_transfer_params",
                           "data_parallel_rank",
                           "guided_decoding_backend",
                           "return_progress",
                           "timings_per_token",
                           "user",
                           "safety_identifier",
                           "prompt_cache_key",
                           "prompt_cache_retention",
                           "prompt_cache_options",
                           "metadata",
                           "client_metadata",  // Codex's
                           "store",
                           "service_tier",
                           "moderation",
                           "provider"}) {
    fields.push_back(Ignored(name));
  }
  return fields;
}

Fields ThinkingFields() {
  const Json off = {{"enabled", false}};
  const Json none = {{"effort", "none"}};
  const Json disabled = {{"type", "disabled"}};
  return {
      Refused("prompt_mode", {}, kUseReasoningEffort),
      Refused("reasoning", {NoFields(), off, none}, kUseReasoningEffort),
      Refused("thinking", {false, disabled}, kUseReasoningEffort),
      Refused("think", {false}, kUseReasoningEffort),
      Refused("enable_thinking", {false}, kUseReasoningEffort),
      Refused("thinking_budget", {0}, kUseReasoningEffort),
      Refused("reasoning_budget", {0}, kUseReasoningEffort),
      Ignored("include_reasoning"),
      Ignored("separate_reasoning"),
      Ignored("stream_reasoning"),
      Ignored("reasoning_format"),
  };
}

}  // namespace

Fields ForeignFields() {
  Fields fields = RenamedFields();
  Append(&fields, SamplerFields());
  Append(&fields, PromptFields());
  Append(&fields, IgnoredFields());
  Append(&fields, {Refused("guided_whitespace_pattern", {}, "the white space of JSON cannot be chosen")});
  return fields;
}

Fields ForeignChatFields() {
  Fields fields = {
      Refused("prompt", {}, "use messages, or /v1/completions"),
      Refused("suffix", {NoText()}, "a chat has no text behind the answer"),
      Refused("best_of", {1}, "use n"),
      Refused("audio", {}, "this model writes text only"),
      {.name = "modalities",
       .shape = ArrayOf(Only({"text"}, "this model writes text only")),
       .doc = "[\"text\"] is the only one."},
      Refused("functions", {NoEntries()}, "deprecated by its makers: use tools"),
      Refused("function_call", {"none"}, "deprecated by its makers: use tool_choice"),
      Refused("echo", {false}, "a chat's prompt cannot be returned; /v1/chat/completions/render shows it"),
      Refused("chat_template", {}, kOwnFormat),
      Refused("tool_prompt", {NoText()}, kOwnFormat),
      Refused("parse_special_tokens", {false}, "a chat's texts stay texts; /v1/completions has it"),
      Refused("add_special_tokens", {false}, "a chat has the special tokens of the model's own format"),
      Refused("documents", {NoEntries()}, "this model's chat format has no place for documents"),
      Refused("verbosity", {"medium"}, "not supported: ask for it in a message"),
      Refused("web_search_options", {}, "this server searches nothing"),
      Refused("guardrails", {NoEntries()}, "this server judges no text"),
      Refused("top_prompt_logprobs", {0}, "use prompt_logprobs"),
      Ignored("prediction"),  // makes an answer faster, not another one
  };
  Append(&fields, ThinkingFields());
  return fields;
}

Fields ForeignCompletionFields() {
  return {
      Refused("messages", {}, "use prompt, or /v1/chat/completions"),
      Refused("top_logprobs", {0}, "use logprobs, a number here"),
      Refused("safe_prompt", {false}, "chats can have it: /v1/chat/completions"),
      Refused("tools", {NoEntries()}, "tools are for /v1/chat/completions"),
      Refused("tool_choice", {"none", "auto"}, "tools are for /v1/chat/completions"),
  };
}

Fields ForeignResponsesFields() {
  constexpr char kStateless[] = "this server keeps no responses: send the whole conversation as `input`";
  constexpr char kUseTextFormat[] = "use text.format";
  constexpr char kOnlyInChats[] = "text.format has only schemas; /v1/chat/completions has the rest";
  constexpr char kInChats[] = "/v1/chat/completions has it";
  constexpr char kUseMaxOutputTokens[] = "use max_output_tokens";
  const Json text_format = {{"type", "text"}};
  Fields fields = {
      Refused("previous_response_id", {}, kStateless),
      Refused("conversation", {}, kStateless),
      Refused("background", {false}, kStateless),
      Refused("prompt", {}, "this server keeps no prompts: use input"),
      Refused("messages", {}, "use input"),
      Refused("max_tokens", {}, kUseMaxOutputTokens),
      Refused("max_completion_tokens", {}, kUseMaxOutputTokens),
      Refused("n", {1}, "a response is one answer; /v1/chat/completions has n"),
      Refused("response_format", {text_format}, kUseTextFormat),
      Refused("structured_outputs", {}, "use text.format, or /v1/chat/completions"),
      Refused("guided_json", {}, kUseTextFormat),
      Refused("guided_regex", {}, kOnlyInChats),
      Refused("guided_choice", {}, kOnlyInChats),
      Refused("guided_grammar", {}, kOnlyInChats),
      Refused("regex", {}, kOnlyInChats),
      Refused("ebnf", {}, kOnlyInChats),
      Refused("top_logprobs", {0}, "log probabilities are in /v1/chat/completions"),
      Refused("logprobs", {false}, "log probabilities are in /v1/chat/completions"),
      Refused("functions", {NoEntries()}, "use tools"),
      Refused("function_call", {"none"}, "use tool_choice"),
      Refused("reasoning_effort", {"none"}, "use reasoning.effort"),
      Refused("verbosity", {"medium"}, "not supported: ask for it in the input"),
      Refused("logit_bias", {NoFields()}, kInChats),
      Refused("stop_token_ids", {NoEntries()}, kInChats),
      Refused("include_stop_str_in_output", {false}, kInChats),
      Refused("skip_special_tokens", {true}, kInChats),
      Refused("prompt_logprobs", {}, kInChats),
      Refused("return_token_ids", {false}, kInChats),
      Refused("safe_prompt", {false}, kInChats),
      Ignored("max_tool_calls"),  // of tools that the server runs: there are none
      Ignored("stream_options"),
      Ignored("context_management"),
      Ignored("include_reasoning"),
  };
  for (Field& field : ForeignFields()) {
    const bool has_row =
        field.name == "metadata" || field.name == "truncation" || field.name == "max_output_tokens";
    if (!has_row) fields.push_back(std::move(field));
  }
  return fields;
}

Fields ForeignTokenizeFields() {
  return {
      Refused("text", {}, "use prompt"),
      Refused("input", {}, "use prompt"),
      Refused("add_special", {}, "use add_special_tokens"),
      Refused("with_pieces", {false}, "use return_token_strs"),
      Refused("parse_special", {false}, "text that looks like a control token is text"),
      Refused("chat_template", {}, kOwnFormat),
      Refused("mm_processor_kwargs", {NoFields()}, kTextOnly),
  };
}

}  // namespace tramontane
