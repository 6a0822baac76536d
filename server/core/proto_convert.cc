#include "server/core/proto_convert.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/core/utf8.h"
#include "kernels/sampling.h"
#include "models/chat/chat.h"
#include "models/chat/thought_in_text.h"
#include "models/tokenizer/fill_in_middle.h"
#include "server/base/text.h"
#include "server/core/constraint_convert.h"
#include "server/core/marked_calls.h"
#include "server/core/session_prompt.h"
#include "server/core/thought_grammar.h"
#include "server/core/tool_choice.h"

namespace tramontane {

static_assert(static_cast<int>(FinishReason::kStop) + 1 == v1::FINISH_REASON_STOP);
static_assert(static_cast<int>(FinishReason::kLength) + 1 == v1::FINISH_REASON_LENGTH);
static_assert(static_cast<int>(FinishReason::kStopSequence) + 1 == v1::FINISH_REASON_STOP_SEQUENCE);
static_assert(static_cast<int>(FinishReason::kTimeLimit) + 1 == v1::FINISH_REASON_TIME_LIMIT);
static_assert(static_cast<int>(FinishReason::kCancelled) + 1 == v1::FINISH_REASON_CANCELLED);
static_assert(static_cast<int>(FinishReason::kError) + 1 == v1::FINISH_REASON_ERROR);

namespace {

constexpr int64_t kMaxWireFields = 1 << 20;     // of a message, nested ones included; a packed list is one
constexpr int64_t kMaxTokenizeBytes = 6 << 20;  // of a text or chat that is only tokenised; more: refused
constexpr int64_t kMaxTimeLimitMs = 24LL * 3600 * 1000;

std::string Quoted(std::string_view text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  return '"' + ReplaceInvalidUtf8(text.substr(0, kMaxQuotedBytes)) + (cut ? "...\"" : "\"");
}

}  // namespace

// ---- requests -----------------------------------------------------------------------------------

namespace {

std::optional<ChatRole> RoleFromProto(v1::Role role) {
  switch (role) {
    case v1::ROLE_SYSTEM:
      return ChatRole::kSystem;
    case v1::ROLE_USER:
      return ChatRole::kUser;
    case v1::ROLE_ASSISTANT:
      return ChatRole::kAssistant;
    case v1::ROLE_TOOL:
      return ChatRole::kTool;
    default:
      return std::nullopt;
  }
}

RpcError PartsFromProto(const std::string& path, const v1::ChatMessage& proto, ChatMessage* message) {
  if (proto.has_content() && !proto.parts().empty()) {
    return FieldError(path + ".parts", "is given beside content; give one of the two");
  }
  if (proto.has_content()) message->content = proto.content();
  for (int i = 0; i < proto.parts_size(); ++i) {
    const v1::ContentPart& part = proto.parts(i);
    if (part.has_thinking()) {
      message->parts.push_back({.kind = ContentPart::Kind::kThinking,
                                .text = part.thinking().text(),
                                .closed = !part.thinking().open()});
    } else if (part.has_text()) {
      message->parts.push_back({.text = part.text()});
    } else {
      return FieldError(FieldElement(path + ".parts", i),
                        "is empty: exactly one of text and thinking is needed");
    }
  }
  return {};
}

RpcError MessageFromProto(const std::string& path, const v1::ChatMessage& proto, ChatMessage* message) {
  const std::optional<ChatRole> role = RoleFromProto(proto.role());
  if (!role) {
    return FieldError(path + ".role", "is " + std::to_string(proto.role()) +
                                          ", which is none of ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, "
                                          "ROLE_TOOL");
  }
  message->role = *role;
  if (RpcError error = PartsFromProto(path, proto, message); !error.ok()) return error;
  for (const v1::ToolCall& call : proto.tool_calls()) {
    message->tool_calls.push_back({call.id(), call.name(), call.arguments_json()});
  }
  if (proto.has_tool_call_id()) message->tool_call_id = proto.tool_call_id();
  if (proto.has_name()) message->name = proto.name();
  message->prefix = proto.prefix();
  return {};
}

// What a tokenizer lacks is the fault of no field.
RpcError ChatError(const Status& status) {
  const bool is_of_the_request = status.code() == StatusCode::kInvalidArgument;
  return ToRpcError(is_of_the_request ? Status(status).InField("chat") : status);
}

int64_t BytesBetweenBlanks(const std::string& text) {
  constexpr char kBlanks[] = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return 0;
  return static_cast<int64_t>(text.find_last_not_of(kBlanks) + 1 - begin);
}

// What a format surely renders of a chat: blanks around a text may go, and text beside calls.
int64_t LeastTextBytes(const v1::Chat& chat) {
  int64_t bytes = 0;
  for (const v1::ChatMessage& message : chat.messages()) {
    if (message.tool_calls_size() > 0) continue;
    bytes += BytesBetweenBlanks(message.content());
    for (const v1::ContentPart& part : message.parts()) bytes += BytesBetweenBlanks(part.text());
  }
  return bytes;
}

RpcError CheckTokenizeBytes(const std::string& path, int64_t bytes) {
  if (bytes <= kMaxTokenizeBytes) return {};
  return FieldError(path, "has " + std::to_string(bytes) + " bytes; at most " +
                              std::to_string(kMaxTokenizeBytes) + " are tokenised at once");
}

RpcError RenderChatProto(const ChatFormat& format, const v1::Chat& proto, RenderedChat* rendered) {
  std::vector<ChatMessage> messages;
  for (int i = 0; i < proto.messages_size(); ++i) {
    const std::string path = FieldElement("chat.messages", i);
    RpcError error = MessageFromProto(path, proto.messages(i), &messages.emplace_back());
    if (!error.ok()) return error;
  }
  if (RpcError error = CheckToolChoice(proto); !error.ok()) return error;
  std::vector<ToolDefinition> tools;
  for (const v1::Tool& tool : proto.tools()) {
    if (proto.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NONE) break;
    tools.push_back({tool.name(), tool.description(), tool.parameters_json()});
  }
  ChatOptions options;
  if (proto.has_add_generation_prompt()) options.add_generation_prompt = proto.add_generation_prompt();
  if (proto.has_reasoning_effort()) options.reasoning_effort = proto.reasoning_effort();
  if (proto.has_answer_schema_json()) options.answer_schema_json = proto.answer_schema_json();
  if (proto.has_chat_template_kwargs_json()) options.template_kwargs_json = proto.chat_template_kwargs_json();
  StatusOr<RenderedChat> result = format.Render(messages, tools, options);
  if (!result.ok()) return ChatError(result.status());
  *rendered = std::move(result).value();
  return {};
}

// The bytes of the longest piece, or spelling of a control token: since each byte of text is covered by some
// token, a text has at least bytes / longest tokens. 0 where the vocabulary has no byte pieces: then one
// unknown token can stand for any length.
int64_t LongestPieceBytes(const Tokenizer& tokenizer) {
  int64_t longest = 0;
  bool has_bytes = false;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    has_bytes |= tokenizer.Kind(id) == PieceKind::kByte;
    const std::string_view text = tokenizer.IsControl(id) ? tokenizer.Piece(id) : tokenizer.PieceBytes(id);
    longest = std::max(longest, static_cast<int64_t>(text.size()));
  }
  return has_bytes ? longest : 0;
}

RpcError BeyondContext(RpcError error, int64_t prompt_tokens, int64_t context) {
  error.reason = "CONTEXT_LENGTH_EXCEEDED";
  error.info = {{"prompt_tokens", std::to_string(prompt_tokens)}, {"context", std::to_string(context)}};
  return error;
}

// To clients that shorten what they send, output that does not fit is the same as a prompt that does not.
RpcError CheckOutputRoom(const Request& request, int64_t context) {
  const int64_t prompt = std::ssize(request.prompt);
  const int64_t output = request.stopping.max_tokens.value_or(0);
  if (output <= context - prompt) return {};
  return BeyondContext(
      FieldError("stopping.max_tokens", "is " + std::to_string(output) + " after a prompt of " +
                                            std::to_string(prompt) + " tokens; the context holds " +
                                            std::to_string(context) + " in all"),
      prompt, context);
}

}  // namespace

ProtoConverter::ProtoConverter(const ServedModel& model)
    : model_(model),
      longest_piece_bytes_(LongestPieceBytes(*model.tokenizer)),
      answer_syntax_(model.chat_format->answer_syntax()) {
  TM_CHECK(!model.names.empty(), "a served model needs a name");
  const ThoughtMarks marks = answer_syntax_.thoughts();
  if (marks.any() && model.constraints != nullptr) {
    thought_vocabulary_ =
        std::make_shared<const ThoughtVocabulary>(marks, *model.tokenizer, model.config.vocab_size);
  }
}

RpcError ProtoConverter::Generate(const v1::GenerateRequest& proto, Request* request,
                                  const std::function<bool()>& wanted, const SessionState* session) const {
  if (RpcError error = CheckModelName(proto.model()); !error.ok()) return error;
  if (proto.prompt_case() != v1::GenerateRequest::kText) {
    if (proto.has_add_bos()) return FieldError("add_bos", "goes with text prompts only");
    if (proto.has_suffix()) return FieldError("suffix", "goes with text prompts only");
    if (proto.parse_special_tokens())
      return FieldError("parse_special_tokens", "goes with text prompts only");
  }
  if (proto.has_choices()) request->choices = proto.choices();
  request->cache_salt = proto.cache_salt();
  request->prefers_cache = !proto.session().empty();
  request->sampling = ConvertSampling(proto.sampling());
  if (RpcError error = ConvertStopping(proto.stopping(), &request->stopping); !error.ok()) return error;
  if (RpcError error = ConvertOutput(proto.output(), &request->output); !error.ok()) return error;
  if (proto.has_context_policy()) {
    RpcError error = ConvertContextPolicy(proto.context_policy(), &request->context_policy.emplace());
    if (!error.ok()) return error;
  }
  const EngineLimits& limits = model_.engine->limits();
  const ContextPolicy policy = ContextPolicyOf(*request, limits);
  request->context_policy = policy;
  if (session != nullptr) {
    if (RpcError error = CheckSessionPolicy(*session, policy); !error.ok()) return error;
  }
  const PromptRoom room = {.context = MostTokens(policy, limits),
                           .scores_only = request->stopping.max_tokens == 0};
  if (RpcError error = PromptIds(proto, room, session, &request->prompt); !error.ok()) return error;
  if (policy.type == ContextPolicyType::kNone) {
    if (RpcError error = CheckOutputRoom(*request, limits.context); !error.ok()) return error;
  }
  request->output.marked_ids = MarkedIds(answer_syntax_, proto.has_chat());
  ThoughtMarks& thoughts = request->output.thoughts;
  if (proto.has_chat()) {
    thoughts = answer_syntax_.thoughts();
    thoughts.open = thoughts.any() && EndsWithinThought(request->prompt);
  }
  return ConstrainOutput(proto, wanted, &thoughts, &request->constraint);
}

// The prompt is that of a Generate which generates nothing.
RpcError ProtoConverter::ScoreCandidates(const v1::ScoreCandidatesRequest& proto, Request* request) const {
  v1::GenerateRequest scoring;
  scoring.set_model(proto.model());
  if (proto.has_text()) scoring.set_text(proto.text());
  if (proto.has_token_ids()) *scoring.mutable_token_ids() = proto.token_ids();
  if (proto.has_chat()) *scoring.mutable_chat() = proto.chat();
  if (proto.has_add_bos()) scoring.set_add_bos(proto.add_bos());
  if (proto.has_parse_special_tokens()) scoring.set_parse_special_tokens(proto.parse_special_tokens());
  scoring.set_cache_salt(proto.cache_salt());
  scoring.mutable_stopping()->set_max_tokens(0);
  scoring.mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_NONE);
  if (MustCallTools(proto.chat())) {
    return FieldError("chat.tool_choice",
                      "makes the model call, but nothing is generated: auto and none are what it may be");
  }
  if (proto.candidates().empty()) return FieldError("candidates", "is empty: there must be at least one");
  if (proto.candidates_size() > kMaxCandidates) {
    return FieldError("candidates", "has " + std::to_string(proto.candidates_size()) + " entries; at most " +
                                        std::to_string(kMaxCandidates) + " are allowed");
  }
  if (RpcError error = Generate(scoring, request); !error.ok()) return error;
  const bool goes_on = !model_.tokenizer->IsControl(request->prompt.back());
  for (int i = 0; i < proto.candidates_size(); ++i) {
    RpcError error = CandidateIds(FieldElement("candidates", static_cast<size_t>(i)), proto.candidates(i),
                                  goes_on, &request->candidates.emplace_back());
    if (!error.ok()) return error;
  }
  return {};
}

// `goes_on`: behind text, where the space that encoders put in front of a text stands for one that it begins
// with.
RpcError ProtoConverter::CandidateIds(const std::string& path, const v1::Candidate& candidate, bool goes_on,
                                      std::vector<int32_t>* ids) const {
  switch (candidate.kind_case()) {
    case v1::Candidate::kText: {
      const PromptRoom room = {.context = model_.engine->limits().context, .scores_only = true};
      std::string_view text = candidate.text();
      if (RpcError error = CheckBytes(path + ".text", static_cast<int64_t>(text.size()), room); !error.ok())
        return error;
      const bool adds_space = model_.tokenizer->leading_space() != LeadingSpace::kKept;
      if (goes_on && adds_space && text.size() > 1 && text.front() == ' ') text.remove_prefix(1);
      StatusOr<std::vector<int32_t>> encoded = model_.tokenizer->Encode(text);
      if (!encoded.ok()) return FieldError(path + ".text", encoded.status().message());
      *ids = *std::move(encoded);
      break;
    }
    case v1::Candidate::kTokenIds:
      if (RpcError error = CheckIds(path + ".token_ids.ids", candidate.token_ids().ids()); !error.ok())
        return error;
      ids->assign(candidate.token_ids().ids().begin(), candidate.token_ids().ids().end());
      break;
    case v1::Candidate::KIND_NOT_SET:
      return FieldError(path, "is missing: exactly one of text and token_ids is needed");
  }
  return ids->empty() ? FieldError(path, "is empty: a candidate has at least one token") : RpcError();
}

namespace {

// What asks a model not to think.
bool AsksForNoThought(const v1::Chat& chat) {
  if (chat.reasoning_effort() == "none") return true;
  const auto kwargs =
      nlohmann::json::parse(chat.chat_template_kwargs_json(), nullptr, /*allow_exceptions=*/false);
  const auto is_off = [&kwargs](const char* key) {
    return kwargs.is_object() && kwargs.contains(key) && kwargs[key] == false;
  };
  return is_off("enable_thinking") || is_off("thinking");
}

// An answer that has begun thinks no more, unless it is at it.
bool GoesOnWithAnswer(const v1::Chat& chat) {
  return chat.messages_size() > 0 && chat.messages(chat.messages_size() - 1).prefix();
}

}  // namespace

RpcError ProtoConverter::ConstrainOutput(const v1::GenerateRequest& proto,
                                         const std::function<bool()>& wanted, ThoughtMarks* thoughts,
                                         ConstraintParams* constraint) const {
  if (RpcError error = Constrain(proto, wanted, constraint); !error.ok()) return error;
  if (constraint->grammar == nullptr || !thoughts->any()) return {};
  const bool may_begin = !AsksForNoThought(proto.chat()) && !GoesOnWithAnswer(proto.chat());
  const bool from_first_token = proto.constraint().from_first_token() || !constraint->forced_prefix.empty();
  if (from_first_token || !(thoughts->open || may_begin) || !thought_vocabulary_->MayThink(thoughts->open)) {
    thoughts->open = false;  // what is held to its form from here on is no thought
    return {};
  }
  constraint->grammar =
      std::make_shared<ThoughtGrammar>(thought_vocabulary_, std::move(constraint->grammar), thoughts->open);
  return {};
}

RpcError ProtoConverter::Constrain(const v1::GenerateRequest& proto, const std::function<bool()>& wanted,
                                   ConstraintParams* constraint) const {
  if (!MustCallTools(proto.chat())) {
    if (!proto.has_constraint()) return {};
    return ConvertConstraint(model_, {"constraint"}, proto.constraint(), wanted, constraint);
  }
  if (proto.has_constraint()) {
    return FieldError("constraint", "does not go with a tool_choice that makes the model call");
  }
  if (answer_syntax_.calls == AnswerSyntax::Calls::kNameAndArguments) {
    return ConstrainMarkedCalls(model_, answer_syntax_, proto.chat(), wanted, constraint);
  }
  if (answer_syntax_.calls == AnswerSyntax::Calls::kNone) {
    return FieldError("chat.tool_choice", "asks for a call, but in chat format " +
                                              model_.chat_format->name() +
                                              " answers have no calls: auto and none are what it may be");
  }
  v1::Constraint calls;
  ConstraintSource source;
  if (RpcError error = ToolCallConstraint(proto.chat(), *model_.tokenizer, &calls, &source); !error.ok()) {
    return error;
  }
  return ConvertConstraint(model_, source, calls, wanted, constraint);
}

RpcError ProtoConverter::CheckModelName(const std::string& name) const {
  if (name.empty()) return {};
  const std::vector<std::string>& names = model_.names;
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

RpcError ProtoConverter::PromptIds(const v1::GenerateRequest& proto, const PromptRoom& room,
                                   const SessionState* session, std::vector<int32_t>* ids) const {
  std::string path;
  switch (proto.prompt_case()) {
    case v1::GenerateRequest::kText: {
      path = "text";
      const auto bytes = static_cast<int64_t>(proto.text().size() + proto.suffix().size());
      if (RpcError error = CheckBytes(path, bytes, room); !error.ok()) return error;
      if (RpcError error = TextIds(proto, ids); !error.ok()) return error;
      break;
    }
    case v1::GenerateRequest::kTokenIds: {
      path = "token_ids.ids";
      if (RpcError error = CheckIds(path, proto.token_ids().ids()); !error.ok()) return error;
      ids->assign(proto.token_ids().ids().begin(), proto.token_ids().ids().end());
      break;
    }
    case v1::GenerateRequest::kChat: {
      path = "chat";
      const int64_t shown = model_.chat_format->shows_all_texts() ? LeastTextBytes(proto.chat()) : 0;
      if (RpcError error = CheckBytes(path, shown, room); !error.ok()) return error;
      if (RpcError error = ChatIds(proto.chat(), session, ids); !error.ok()) return error;
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return FieldError("prompt", "is missing: exactly one of text, token_ids and chat is needed");
  }
  if (ids->empty()) return FieldError(path, "is empty: a prompt has at least one token");
  if (RpcError error = CheckLength(path, static_cast<int64_t>(ids->size()), room); !error.ok()) return error;
  const bool is_text = session != nullptr && !session->is_chat;
  return is_text ? CheckGoesOn(*session, path, *ids) : RpcError();
}

RpcError ProtoConverter::ChatIds(const v1::Chat& chat, const SessionState* session,
                                 std::vector<int32_t>* ids) const {
  const RenderIds render = [this](const v1::Chat& rendered_chat, std::vector<int32_t>* rendered_ids) {
    RenderedChat rendered;
    RpcError error = RenderChatProto(*model_.chat_format, rendered_chat, &rendered);
    *rendered_ids = std::move(rendered.ids);
    return error;
  };
  if (session == nullptr) return render(chat, ids);
  return GoOnWithChat(*session, chat, answer_syntax_.end, render, ids);
}

template <typename TextRequest>
RpcError ProtoConverter::TextIds(const TextRequest& proto, std::vector<int32_t>* ids) const {
  const bool add_bos = !proto.has_add_bos() || proto.add_bos();
  if (proto.has_suffix()) {
    if (proto.parse_special_tokens()) return FieldError("parse_special_tokens", "does not go with a suffix");
    auto filled = FillInMiddleIds(*model_.tokenizer, proto.text(), proto.suffix(), add_bos);
    if (!filled.ok()) return FieldError(filled.status().field(), filled.status().sentence());
    *ids = std::move(filled).value();
    return {};
  }
  StatusOr<std::vector<int32_t>> encoded = proto.parse_special_tokens()
                                               ? model_.tokenizer->EncodeWithControlTokens(proto.text())
                                               : model_.tokenizer->Encode(proto.text());
  if (!encoded.ok()) return FieldError("text", encoded.status().message());
  ids->clear();
  if (add_bos && model_.tokenizer->adds_bos()) ids->push_back(model_.tokenizer->bos_id());
  ids->insert(ids->end(), encoded->begin(), encoded->end());
  return {};
}

RpcError ProtoConverter::CheckIds(const std::string& path,
                                  const google::protobuf::RepeatedField<int32_t>& ids) const {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model_.config.vocab_size) {
      return FieldError(FieldElement(path, static_cast<size_t>(i)),
                        "is " + std::to_string(ids[i]) + "; the vocabulary has the ids 0 to " +
                            std::to_string(model_.config.vocab_size - 1));
    }
  }
  return {};
}

// What is far too long is said to be without tokenising it.
RpcError ProtoConverter::CheckBytes(const std::string& path, int64_t bytes, const PromptRoom& room) const {
  return longest_piece_bytes_ == 0 ? RpcError() : CheckLength(path, bytes / longest_piece_bytes_, room);
}

RpcError ProtoConverter::CheckLength(const std::string& path, int64_t tokens, const PromptRoom& room) {
  const int64_t context = room.context;
  const int64_t most = room.scores_only ? context : context - 1;  // room for one token of output
  if (tokens <= most) return {};
  return BeyondContext(
      FieldError(path, "is at least " + std::to_string(tokens) + " tokens long; the context of " +
                           std::to_string(context) + " leaves a prompt at most " + std::to_string(most)),
      tokens, context);
}

SamplingParams ProtoConverter::ConvertSampling(const v1::Sampling& proto) const {
  const ModelConfig::Defaults& defaults = model_.config.defaults;
  SamplingParams sampling;
  sampling.temperature = proto.has_temperature() ? proto.temperature() : defaults.temperature;
  sampling.top_p = proto.has_top_p() ? proto.top_p() : defaults.top_p;
  sampling.top_k = proto.has_top_k() ? proto.top_k() : defaults.top_k;
  sampling.min_p = proto.has_min_p() ? proto.min_p() : defaults.min_p;
  sampling.repetition_penalty =
      proto.has_repetition_penalty() ? proto.repetition_penalty() : defaults.repetition_penalty;
  if (proto.has_presence_penalty()) sampling.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) sampling.frequency_penalty = proto.frequency_penalty();
  if (proto.has_seed()) sampling.seed = proto.seed();
  sampling.logit_bias.assign(proto.logit_bias().begin(), proto.logit_bias().end());
  std::sort(sampling.logit_bias.begin(), sampling.logit_bias.end());  // a map has no order of its own
  return sampling;
}

v1::ContextPolicy ProtoConverter::ContextPolicyToProto(const ContextPolicy& policy) {
  v1::ContextPolicy proto;
  proto.set_type(
      static_cast<v1::ContextPolicy::Type>(v1::ContextPolicy::TYPE_NONE + static_cast<int>(policy.type)));
  if (policy.type == ContextPolicyType::kNone) return proto;
  proto.set_n_ctx(policy.n_ctx);
  proto.set_n_keep(policy.n_keep);
  if (policy.n_discard > 0) proto.set_n_discard(policy.n_discard);
  return proto;
}

RpcError ProtoConverter::ConvertContextPolicy(const v1::ContextPolicy& proto, ContextPolicy* policy) {
  if (proto.type() < v1::ContextPolicy::TYPE_NONE || proto.type() > v1::ContextPolicy::TYPE_REEVALUATE) {
    return FieldError("context_policy.type",
                      "is " + std::to_string(proto.type()) + "; it must be from 1 (none) to 4 (reevaluate)");
  }
  policy->type = static_cast<ContextPolicyType>(proto.type() - v1::ContextPolicy::TYPE_NONE);
  if (policy->type == ContextPolicyType::kNone) {
    const auto needless = [](const char* name, int64_t value) {
      return FieldError(std::string("context_policy.") + name,
                        "is " + std::to_string(value) + "; under type none it must be unset");
    };
    if (proto.has_n_ctx()) return needless("n_ctx", proto.n_ctx());
    if (proto.has_n_keep()) return needless("n_keep", proto.n_keep());
    if (proto.has_n_discard()) return needless("n_discard", proto.n_discard());
  }
  if (proto.has_n_ctx() && proto.n_ctx() < 1) {
    return FieldError("context_policy.n_ctx", "is " + std::to_string(proto.n_ctx()) + "; the least is 1");
  }
  if (proto.has_n_discard() && proto.n_discard() < 1) {
    return FieldError("context_policy.n_discard",
                      "is " + std::to_string(proto.n_discard()) + "; the least is 1");
  }
  policy->n_ctx = proto.n_ctx();
  if (proto.has_n_keep()) policy->n_keep = proto.n_keep();
  policy->n_discard = proto.n_discard();
  return {};
}

RpcError ProtoConverter::ConvertStopping(const v1::Stopping& proto, StoppingParams* stopping) {
  if (proto.has_max_tokens()) stopping->max_tokens = proto.max_tokens();
  stopping->min_tokens = proto.min_tokens();
  stopping->stop.assign(proto.stop().begin(), proto.stop().end());
  stopping->stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  stopping->include_stop = proto.include_stop();
  stopping->ignore_eos = proto.ignore_eos();
  if (proto.time_limit_ms() < 0 || proto.time_limit_ms() > kMaxTimeLimitMs) {
    return FieldError("stopping.time_limit_ms", "is " + std::to_string(proto.time_limit_ms()) +
                                                    "; it must be from 0 to " +
                                                    std::to_string(kMaxTimeLimitMs));
  }
  stopping->time_limit_ns = proto.time_limit_ms() * 1'000'000;
  return {};
}

// In the engine -1 means none; on the wire that is to leave the field out.
RpcError ProtoConverter::ConvertOutput(const v1::Output& proto, OutputParams* output) {
  if (proto.has_logprobs()) output->logprobs = proto.logprobs();
  if (proto.has_prompt_logprobs()) output->prompt_logprobs = proto.prompt_logprobs();
  if (proto.has_skip_special_tokens()) output->skip_special_tokens = proto.skip_special_tokens();
  output->prompt_tokens = proto.prompt_tokens();
  if (proto.logprobs() < 0) {
    return FieldError("output.logprobs", "is " + std::to_string(proto.logprobs()) + ", below 0");
  }
  if (proto.prompt_logprobs() < 0) {
    return FieldError("output.prompt_logprobs",
                      "is " + std::to_string(proto.prompt_logprobs()) + ", below 0");
  }
  return {};
}

RpcError ProtoConverter::Tokenize(const v1::TokenizeRequest& proto, v1::TokenizeResponse* response) const {
  if (RpcError error = CheckModelName(proto.model()); !error.ok()) return error;
  std::vector<int32_t> ids;
  switch (proto.input_case()) {
    case v1::TokenizeRequest::kText: {
      const auto bytes = static_cast<int64_t>(proto.text().size() + proto.suffix().size());
      if (RpcError error = CheckTokenizeBytes("text", bytes); !error.ok()) return error;
      if (RpcError error = TextIds(proto, &ids); !error.ok()) return error;
      break;
    }
    case v1::TokenizeRequest::kChat: {
      if (proto.has_add_bos()) return FieldError("add_bos", "goes with text only");
      if (proto.has_suffix()) return FieldError("suffix", "goes with text only");
      if (proto.parse_special_tokens()) return FieldError("parse_special_tokens", "goes with text only");
      const int64_t bytes = LeastTextBytes(proto.chat());
      if (RpcError error = CheckTokenizeBytes("chat", bytes); !error.ok()) return error;
      RenderedChat rendered;
      if (RpcError error = RenderChatProto(*model_.chat_format, proto.chat(), &rendered); !error.ok())
        return error;
      ids = std::move(rendered.ids);
      break;
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      return FieldError("input", "is missing: exactly one of text and chat is needed");
  }
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  if (proto.pieces()) {
    for (const int32_t id : ids) response->add_pieces(PieceText(id));
  }
  return {};
}

RpcError ProtoConverter::Detokenize(const v1::DetokenizeRequest& proto,
                                    v1::DetokenizeResponse* response) const {
  if (RpcError error = CheckModelName(proto.model()); !error.ok()) return error;
  if (RpcError error = CheckIds("token_ids", proto.token_ids()); !error.ok()) return error;
  const bool skip_special = !proto.has_skip_special_tokens() || proto.skip_special_tokens();
  std::string bytes;
  MessageBytes message(*model_.tokenizer);
  for (const int32_t id : proto.token_ids()) {
    bytes +=
        !skip_special && model_.tokenizer->IsControl(id) ? model_.tokenizer->Piece(id) : message.Next(id);
  }
  response->set_text(ReplaceInvalidUtf8(bytes));
  return {};
}

RpcError ProtoConverter::RenderChat(const v1::RenderChatRequest& proto,
                                    v1::RenderChatResponse* response) const {
  if (RpcError error = CheckModelName(proto.model()); !error.ok()) return error;
  if (!proto.has_chat()) return FieldError("chat", "is missing");
  const int64_t bytes = LeastTextBytes(proto.chat());
  if (RpcError error = CheckTokenizeBytes("chat", bytes); !error.ok()) return error;
  RenderedChat rendered;
  if (RpcError error = RenderChatProto(*model_.chat_format, proto.chat(), &rendered); !error.ok())
    return error;
  response->mutable_token_ids()->Add(rendered.ids.begin(), rendered.ids.end());
  response->set_text(ReplaceInvalidUtf8(rendered.text));
  return {};
}

RpcError ProtoConverter::GetModel(const v1::GetModelRequest& proto, v1::GetModelResponse* response) const {
  if (RpcError error = CheckModelName(proto.model()); !error.ok()) return error;
  const ModelConfig& config = model_.config;
  const Tokenizer& tokenizer = *model_.tokenizer;
  response->set_name(model_.names[0]);
  for (const std::string& name : model_.names) response->add_names(name);
  response->set_architecture(config.architecture);
  response->set_context(model_.engine->limits().context);
  response->set_model_context(config.context);
  response->set_vocab_size(config.vocab_size);
  if (tokenizer.bos_id() >= 0) response->set_bos_token_id(tokenizer.bos_id());
  response->mutable_eos_token_ids()->Add(config.eos_ids.begin(), config.eos_ids.end());
  if (tokenizer.version()) response->set_tokenizer_version(TokenizerVersionName(*tokenizer.version()));
  if (!model_.chat_format->is_none()) response->set_chat_format(model_.chat_format->name());
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
  if (tokenizer.bos_id() >= 0) response->set_bos_piece(PieceText(tokenizer.bos_id()));
  if (tokenizer.eos_id() >= 0) response->set_eos_piece(PieceText(tokenizer.eos_id()));
  return {};
}

void ProtoConverter::EngineLimitsToProto(v1::Limits* proto) const {
  const EngineLimits& limits = model_.engine->limits();
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
  if (model_.constraints == nullptr) return;
  const ConstraintLimits& constraints = model_.constraints->limits();
  proto->set_max_constraint_bytes(constraints.max_bytes);
  proto->set_max_constraint_depth(constraints.max_depth);
  proto->set_max_constraint_repeats(constraints.max_repeats);
  proto->set_max_constraint_size(constraints.max_size);
  proto->set_max_constraint_choices(constraints.max_choices);
  proto->set_max_forced_prefix_ids(limits.max_forced_prefix_ids);
  proto->set_max_constraint_step_us(limits.max_constraint_step_ns / 1000);
}

// ---- events -------------------------------------------------------------------------------------

v1::GenerateResponse ProtoConverter::StartedToProto(const StreamStarted& started,
                                                    const std::string& request_id) const {
  v1::GenerateResponse response;
  v1::Started* proto = response.mutable_started();
  proto->set_request_id(request_id);
  proto->set_model(model_.names[0]);
  proto->set_prompt_tokens(started.prompt_tokens);
  proto->set_cached_tokens(started.cached_tokens);
  proto->set_seed(started.seed);
  for (const TokenInfo& info : started.prompt_logprobs) TokenInfoToProto(info, proto->add_prompt_logprobs());
  MessageBytes message(*model_.tokenizer);
  for (const int32_t id : started.prompt) {
    v1::PromptToken* token = proto->add_prompt();
    token->set_token_id(id);
    token->set_token_bytes(std::string(message.Next(id)));
  }
  return response;
}

AnswerSplitter ProtoConverter::NewSplitter(const Request& request, bool is_chat) const {
  AnswerSyntax syntax = answer_syntax_;
  syntax.thinks_in_text = syntax.thinks_in_text && is_chat;
  return {syntax, request.output.marked_ids, request.output.thoughts.open, *model_.tokenizer};
}

bool ProtoConverter::EndsWithinThought(const std::vector<int32_t>& prompt) const {
  const auto last_control = std::find_if(prompt.rbegin(), prompt.rend(),
                                         [this](int32_t id) { return model_.tokenizer->IsControl(id); });
  if (!answer_syntax_.thinks_in_text) {
    return last_control != prompt.rend() && *last_control == answer_syntax_.begin_think;
  }
  constexpr ptrdiff_t kMostIds = 64;  // of the text behind a prompt's last control token
  const ptrdiff_t count = std::min(kMostIds, last_control - prompt.rbegin());
  const StatusOr<std::string> text = model_.tokenizer->Decode({prompt.end() - count, prompt.end()});
  return text.ok() && LeavesThoughtOpen(*text);
}

v1::GenerateResponse ProtoConverter::DeltaToProto(StreamDelta delta, const DeltaParts& parts,
                                                  AnswerSplitter* splitter) const {
  v1::GenerateResponse response;
  v1::Delta* proto = response.mutable_delta();
  splitter->Count(delta.token_ids);
  proto->set_choice(delta.choice);
  if (parts.text) splitter->Split(std::move(delta.text), delta.marks, proto);
  if (parts.token_ids) proto->mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  for (const TokenInfo& info : delta.logprobs) TokenInfoToProto(info, proto->add_logprobs());
  proto->set_completion_tokens(delta.completion_tokens);
  return response;
}

void ProtoConverter::TokenInfoToProto(const TokenInfo& info, v1::TokenLogprob* proto) const {
  proto->set_token_id(info.token);
  proto->set_logprob(info.logprob);
  proto->set_rank(info.rank);
  proto->set_token_bytes(TokenBytes(info.token, info.use));
  if (proto->token_bytes().empty()) proto->set_piece(PieceText(info.token));
  // Another token in its place would have lost its space too; only the one that was taken is spelled out.
  const PieceUse top_use = info.use == PieceUse::kSpelledOut ? PieceUse::kAsItIs : info.use;
  for (const TokenLogprob& top : info.top) {
    v1::TopLogprob* top_proto = proto->add_top();
    top_proto->set_token_id(top.token);
    top_proto->set_logprob(top.logprob);
    top_proto->set_token_bytes(TokenBytes(top.token, top.token == info.token ? info.use : top_use));
    if (top_proto->token_bytes().empty()) top_proto->set_piece(PieceText(top.token));
  }
}

std::string ProtoConverter::TokenBytes(int32_t id, PieceUse use) const {
  switch (use) {
    case PieceUse::kBeginsText:
      return std::string(MessageBytes(*model_.tokenizer).Next(id));
    case PieceUse::kSpelledOut:
      return std::string(model_.tokenizer->Piece(id));
    case PieceUse::kAsItIs:
      break;
  }
  return std::string(model_.tokenizer->PieceBytes(id));
}

// A piece that is not UTF-8 (a model file may hold any bytes) still has to travel as text.
std::string ProtoConverter::PieceText(int32_t id) const {
  return ReplaceInvalidUtf8(model_.tokenizer->Piece(id));
}

v1::GenerateResponse ProtoConverter::FinishedToProto(const StreamFinished& finished,
                                                     const AnswerSplitter& splitter) {
  v1::GenerateResponse response;
  v1::Finished* proto = response.mutable_finished();
  proto->set_choice(finished.choice);
  proto->set_reason(static_cast<v1::FinishReason>(static_cast<int>(finished.reason) + 1));
  if (finished.stop_token_id >= 0) proto->set_stop_token_id(finished.stop_token_id);
  if (!finished.stop_string.empty()) proto->set_stop(finished.stop_string);
  if (finished.reason == FinishReason::kError) {
    proto->set_error_message(finished.status.message());
    proto->set_error_field(finished.status.field());
    proto->set_error_code(static_cast<int32_t>(finished.status.code()));
  }

  v1::Usage* usage = proto->mutable_usage();
  usage->set_prompt_tokens(finished.usage.prompt_tokens);
  usage->set_cached_tokens(finished.usage.cached_tokens);
  usage->set_completion_tokens(finished.usage.completion_tokens);
  usage->set_prefill_chunks(finished.usage.prefill_chunks);
  usage->set_preemptions(finished.usage.preemptions);
  usage->set_reasoning_tokens(splitter.reasoning_tokens());
  if (finished.usage.discarded_tokens) usage->set_discarded_tokens(*finished.usage.discarded_tokens);

  const Timings& times = finished.timings;
  v1::Timings* timings = proto->mutable_timings();
  const auto since_received_us = [&times](int64_t at_ns) { return (at_ns - times.received_ns) / 1000; };
  if (times.tokenized_ns != 0) timings->set_tokenized_us(since_received_us(times.tokenized_ns));
  if (times.admitted_ns != 0) timings->set_admitted_us(since_received_us(times.admitted_ns));
  if (times.first_chunk_ns != 0) timings->set_first_chunk_us(since_received_us(times.first_chunk_ns));
  if (times.last_chunk_ns != 0) timings->set_last_chunk_us(since_received_us(times.last_chunk_ns));
  if (times.first_token_ns != 0) timings->set_first_token_us(since_received_us(times.first_token_ns));
  if (times.finished_ns != 0) timings->set_finished_us(since_received_us(times.finished_ns));
  return response;
}

void ProtoConverter::LoadToProto(const EngineLoad& load, v1::GetLoadResponse* response) {
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

// ---- bytes --------------------------------------------------------------------------------------

namespace {

// Walks the wire form of a message without building it. Depth is bounded by the types, none of which contains
// itself.
class WireWalk {
 public:
  // False at the first fault: error() says which, and is OK where `bytes` are simply no `type`.
  bool Walk(const google::protobuf::Descriptor& type, std::string_view bytes, const std::string& prefix);
  const RpcError& error() const { return error_; }

 private:
  bool WalkLengthDelimited(const google::protobuf::FieldDescriptor& field, std::string_view bytes,
                           const std::string& path);

  int64_t fields_ = 0;
  RpcError error_;
};

bool WireWalk::Walk(const google::protobuf::Descriptor& type, std::string_view bytes,
                    const std::string& prefix) {
  enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  std::map<int, size_t> seen;  // field number -> entries so far
  while (const uint32_t tag = in.ReadTag()) {
    if (++fields_ > kMaxWireFields) {
      error_ = ToRpcError(
          InvalidArgument("the request has more than " + std::to_string(kMaxWireFields) + " fields"));
      return false;
    }
    uint64_t varint = 0;
    uint32_t size = 0;
    switch (tag & 7) {
      case kVarint:
        if (!in.ReadVarint64(&varint)) return false;
        break;
      case kFixed64:
        if (!in.Skip(8)) return false;
        break;
      case kFixed32:
        if (!in.Skip(4)) return false;
        break;
      case kLengthDelimited: {
        if (!in.ReadVarint32(&size)) return false;
        const std::string_view content = bytes.substr(static_cast<size_t>(in.CurrentPosition()), size);
        if (content.size() < size || !in.Skip(static_cast<int>(size))) return false;
        const auto* field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
        if (field == nullptr) break;
        const std::string path = prefix + field->name();
        const size_t index = seen[field->number()]++;
        if (!WalkLengthDelimited(*field, content, field->is_repeated() ? FieldElement(path, index) : path))
          return false;
        break;
      }
      default:
        return false;  // groups: none of our messages has any
    }
  }
  return in.ConsumedEntireMessage();
}

bool WireWalk::WalkLengthDelimited(const google::protobuf::FieldDescriptor& field, std::string_view bytes,
                                   const std::string& path) {
  if (field.type() == google::protobuf::FieldDescriptor::TYPE_MESSAGE) {
    return Walk(*field.message_type(), bytes, path + ".");
  }
  if (field.type() != google::protobuf::FieldDescriptor::TYPE_STRING) return true;
  const std::optional<size_t> bad = FirstInvalidUtf8(bytes);
  if (!bad) return true;
  error_ = FieldError(path, "is not UTF-8 at byte " + std::to_string(*bad));
  error_.reason = "INVALID_UTF8";
  return false;
}

}  // namespace

RpcError CheckWireFields(const google::protobuf::Descriptor& type, const std::string& bytes) {
  WireWalk walk;
  walk.Walk(type, bytes, "");
  return walk.error();
}

RpcError ExplainParseFailure(const google::protobuf::Descriptor& type, const std::string& bytes) {
  WireWalk walk;
  walk.Walk(type, bytes, "");
  if (!walk.error().ok()) return walk.error();
  RpcError error;
  error.code = StatusCode::kInvalidArgument;
  error.sentence =
      "the " + std::to_string(bytes.size()) + " bytes of the request are not a " + type.full_name();
  error.reason = "MALFORMED_MESSAGE";
  return error;
}

}  // namespace tramontane
