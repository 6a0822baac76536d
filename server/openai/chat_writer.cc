// The answers of /v1/chat/completions.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/answer_writer.h"
#include "server/openai/logprobs.h"
#include "server/openai/tool_calls.h"

namespace tramontane {
namespace {

// The text of one choice, and the tool calls in it where there can be any.
class ChatChoice {
 public:
  void LookForToolCalls(const AnswerOptions& options, size_t index) {
    parser_.emplace(MakeToolCallParser(options.call_id_seed, options.one_tool_call, index));
    only_calls_ = options.only_tool_calls;
  }

  ToolCallParser::Output Append(const v1::Delta& delta) {
    if (!parser_) return {.text = delta.text(), .calls = {}};
    std::optional<int32_t> calls_at;
    if (delta.has_tool_calls_at()) calls_at = delta.tool_calls_at();
    return WithoutScraps(parser_->Append(delta.text(), calls_at));
  }
  ToolCallParser::Output Finish() {
    return parser_ ? WithoutScraps(parser_->Finish()) : ToolCallParser::Output();
  }

  size_t calls() const { return parser_ ? parser_->calls() : 0; }

  // A choice that was cut off stays "length", whatever it had called before.
  std::string_view FinishReason(const v1::Finished& finished) const {
    const bool called = calls() > 0 && finished.reason() == v1::FINISH_REASON_STOP;
    return called ? "tool_calls" : FinishReasonName(finished.reason());
  }

 private:
  // Where there can be nothing but calls, what is not one is a piece of one that was cut off.
  ToolCallParser::Output WithoutScraps(ToolCallParser::Output output) const {
    if (only_calls_) output.text.clear();
    return output;
  }

  std::optional<ToolCallParser> parser_;
  bool only_calls_ = false;
};

// ---- streamed -----------------------------------------------------------------------------------

class ChatStreamWriter final : public ChunkWriter {
 public:
  ChatStreamWriter(AnswerOptions options, std::vector<FieldNames> names)
      : ChunkWriter(std::move(options), std::move(names), "chatcmpl-", "chat.completion.chunk"),
        streams_(choices()) {}

 private:
  struct Stream {
    bool begun = false;       // its role was sent
    bool has_tokens = false;  // that were sent
    ChatChoice choice;
  };

  void OnStarted(size_t call, const v1::Started& started, std::string* out) override;
  void OnDelta(size_t index, const v1::Delta& delta, std::string* out) override;
  void OnFinished(size_t index, const v1::Finished& finished, std::string* out) override;

  void Begin(size_t index, std::string* out);
  void AppendContent(size_t index, std::string_view text, const v1::Delta* delta, std::string* out);
  void AppendToolCalls(size_t index, const std::vector<ParsedToolCall>& calls, std::string* out);

  std::vector<Stream> streams_;
  std::string prompt_ids_;  // 1,2,3 for the first chunk of each choice
};

void ChatStreamWriter::OnStarted(size_t, const v1::Started& started, std::string*) {
  if (options().token_ids) prompt_ids_ = PromptIds(started);
  if (!options().tools) return;
  for (size_t i = 0; i < streams_.size(); ++i) streams_[i].choice.LookForToolCalls(options(), i);
}

void ChatStreamWriter::OnDelta(size_t index, const v1::Delta& delta, std::string* out) {
  const ToolCallParser::Output parsed = streams_[index].choice.Append(delta);
  AppendContent(index, parsed.text, &delta, out);
  AppendToolCalls(index, parsed.calls, out);
}

void ChatStreamWriter::OnFinished(size_t index, const v1::Finished& finished, std::string* out) {
  const ToolCallParser::Output rest = streams_[index].choice.Finish();
  AppendContent(index, rest.text, nullptr, out);
  AppendToolCalls(index, rest.calls, out);
  Begin(index, out);
  OpenChunk(index, out);
  // Where no token came, here are the lists that would have come with them.
  const bool has_tokens = streams_[index].has_tokens;
  const bool empty_logprobs = options().logprobs >= 0 && !has_tokens;
  *out += ",\"delta\":{},\"logprobs\":";
  *out += empty_logprobs ? "{\"content\":[],\"refusal\":null}" : "null";
  AppendFinish(finished, streams_[index].choice.FinishReason(finished), out);
  if (options().token_ids && !has_tokens) *out += ",\"token_ids\":[]";
  CloseChunk(out);
}

// The role leaves together with what comes first, never alone before it: clients time the first chunk.
void ChatStreamWriter::Begin(size_t index, std::string* out) {
  if (std::exchange(streams_[index].begun, true)) return;
  OpenChunk(index, out);
  *out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null";
  CloseChunk(out, options().token_ids ? ",\"prompt_token_ids\":[" + prompt_ids_ + "]" : "");
}

// `delta` is where the text came from, for what goes with its tokens; null: what was held back at the end.
void ChatStreamWriter::AppendContent(size_t index, std::string_view text, const v1::Delta* delta,
                                     std::string* out) {
  const bool has_logprobs = delta != nullptr && options().logprobs >= 0 && delta->logprobs_size() > 0;
  const bool has_ids = delta != nullptr && options().token_ids && delta->token_ids_size() > 0;
  if (text.empty() && !has_logprobs && !has_ids) return;
  streams_[index].has_tokens = true;
  Begin(index, out);
  OpenChunk(index, out);
  *out += ",\"delta\":{\"content\":";
  AppendJsonString(text, out);
  if (has_logprobs) {
    *out += "},\"logprobs\":{\"content\":[";
    AppendChatLogprobs(delta->logprobs(), options(), out);
    *out += "],\"refusal\":null},\"finish_reason\":null";
  } else {
    *out += "},\"logprobs\":null,\"finish_reason\":null";
  }
  if (has_ids) {
    *out += ",\"token_ids\":[";
    AppendIds(delta->token_ids(), out);
    *out += "]";
  }
  CloseChunk(out);
}

void ChatStreamWriter::AppendToolCalls(size_t index, const std::vector<ParsedToolCall>& calls,
                                       std::string* out) {
  if (calls.empty()) return;
  Begin(index, out);
  const size_t sent_before = streams_[index].choice.calls() - calls.size();
  for (const Json& tool_calls : ToolCallDeltas(calls, sent_before)) {
    OpenChunk(index, out);
    *out += ",\"delta\":{\"tool_calls\":" + PrintJson(tool_calls);
    *out += "},\"logprobs\":null,\"finish_reason\":null";
    CloseChunk(out);
  }
}

// ---- whole --------------------------------------------------------------------------------------

class ChatWholeWriter final : public AnswerWriter {
 public:
  ChatWholeWriter(AnswerOptions options, std::vector<FieldNames> names)
      : AnswerWriter(std::move(options), std::move(names)), messages_(choices()) {}

  std::string Finish() override;

 private:
  struct Message {
    ChatChoice choice;
    std::string content;
    std::vector<ParsedToolCall> calls;
    std::string logprobs;  // of its tokens, joined by commas
    std::vector<int32_t> token_ids;
    v1::Finished finished;

    void Add(ToolCallParser::Output parsed);
  };

  void OnStarted(size_t call, const v1::Started& started, std::string* out) override;
  void OnDelta(size_t index, const v1::Delta& delta, std::string* out) override;
  void OnFinished(size_t index, const v1::Finished& finished, std::string* out) override;

  void AppendChoice(size_t index, std::string* out) const;

  std::vector<Message> messages_;
  std::string prompt_ids_;       // 1,2,3
  std::string prompt_logprobs_;  // [null, ...]
};

void ChatWholeWriter::OnStarted(size_t, const v1::Started& started, std::string*) {
  if (options().token_ids) prompt_ids_ = PromptIds(started);
  if (options().prompt_logprobs >= 0) prompt_logprobs_ = PromptLogprobs(started, options());
  if (!options().tools) return;
  for (size_t i = 0; i < messages_.size(); ++i) messages_[i].choice.LookForToolCalls(options(), i);
}

void ChatWholeWriter::OnDelta(size_t index, const v1::Delta& delta, std::string*) {
  Message& message = messages_[index];
  message.Add(message.choice.Append(delta));
  if (options().logprobs >= 0 && delta.logprobs_size() > 0) {
    if (!message.logprobs.empty()) message.logprobs += ',';
    AppendChatLogprobs(delta.logprobs(), options(), &message.logprobs);
  }
  message.token_ids.insert(message.token_ids.end(), delta.token_ids().begin(), delta.token_ids().end());
}

void ChatWholeWriter::OnFinished(size_t index, const v1::Finished& finished, std::string*) {
  Message& message = messages_[index];
  message.Add(message.choice.Finish());
  message.finished = finished;
}

void ChatWholeWriter::Message::Add(ToolCallParser::Output parsed) {
  content += parsed.text;
  for (ParsedToolCall& call : parsed.calls) calls.push_back(std::move(call));
}

std::string ChatWholeWriter::Finish() {
  std::string out = Head("chatcmpl-", "chat.completion") + ",\"choices\":[";
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (i > 0) out += ',';
    AppendChoice(i, &out);
  }
  out += "],\"usage\":";
  AppendUsage(&out);
  if (options().token_ids) out += ",\"prompt_token_ids\":[" + prompt_ids_ + "]";
  if (options().prompt_logprobs >= 0) out += ",\"prompt_logprobs\":" + prompt_logprobs_;
  return out + "}";
}

void ChatWholeWriter::AppendChoice(size_t index, std::string* out) const {
  const Message& message = messages_[index];
  *out += "{\"index\":" + std::to_string(index) + ",\"message\":{\"role\":\"assistant\",\"content\":";
  if (message.content.empty() && (!message.calls.empty() || options().only_tool_calls)) {
    *out += "null";
  } else {
    AppendJsonString(message.content, out);
  }
  *out += ",\"refusal\":null";
  // No empty list: clients take it for a call.
  if (!message.calls.empty()) *out += ",\"tool_calls\":" + PrintJson(ToolCallsJson(message.calls));
  *out += "},\"logprobs\":";
  *out += options().logprobs < 0 ? "null" : "{\"content\":[" + message.logprobs + "],\"refusal\":null}";
  AppendFinish(message.finished, message.choice.FinishReason(message.finished), out);
  if (options().token_ids) {
    *out += ",\"token_ids\":[";
    AppendIds(message.token_ids, out);
    *out += "]";
  }
  *out += "}";
}

}  // namespace

std::unique_ptr<ResponseWriter> MakeChatWriter(AnswerOptions options, std::vector<FieldNames> names) {
  if (options.stream) return std::make_unique<ChatStreamWriter>(std::move(options), std::move(names));
  return std::make_unique<ChatWholeWriter>(std::move(options), std::move(names));
}

}  // namespace tramontane
