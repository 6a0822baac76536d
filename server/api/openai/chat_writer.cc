// The answers of /v1/chat/completions.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/openai/chat.h"
#include "server/api/openai/choices_writer.h"
#include "server/api/openai/logprobs.h"

namespace tramontane {
namespace {

// Under both of its names: some clients read the one alone, some the other.
void AppendReasoning(std::string_view text, std::string* out) {
  *out += "\"reasoning_content\":";
  AppendJsonString(text, out);
  *out += ",\"reasoning\":";
  AppendJsonString(text, out);
}

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
    size_t call = 0;          // the one that began last
  };

  void OnStarted(size_t call, const v1::Started& started, std::string* out) override;
  void OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) override;
  void OnReasoning(size_t choice, std::string_view text, std::string* out) override;
  void OnCallBegins(size_t choice, const CallBegins& call, std::string* out) override;
  void OnCallArguments(size_t choice, std::string_view bytes, std::string* out) override;
  void OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished, std::string* out) override;

  void Begin(size_t choice, std::string* out);
  // {"delta":{"tool_calls":[{"index":0     The caller appends the rest of the call.
  void OpenCall(size_t choice, std::string* out);
  void CloseCall(std::string* out) const;

  std::vector<Stream> streams_;
  std::string prompt_ids_;  // 1,2,3 for the first chunk of each choice
};

void ChatStreamWriter::OnStarted(size_t, const v1::Started& started, std::string*) {
  if (options().token_ids) prompt_ids_ = PromptIds(started);
}

// The role leaves together with what comes first, never alone before it: clients time the first chunk.
void ChatStreamWriter::Begin(size_t choice, std::string* out) {
  if (std::exchange(streams_[choice].begun, true)) return;
  OpenChunk(choice, out);
  *out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null";
  CloseChunk(out, options().token_ids ? ",\"prompt_token_ids\":[" + prompt_ids_ + "]" : "");
}

void ChatStreamWriter::OnText(size_t choice, std::string_view text, const v1::Delta* delta,
                              std::string* out) {
  const bool has_logprobs = delta != nullptr && options().logprobs >= 0 && delta->logprobs_size() > 0;
  const bool has_ids = delta != nullptr && options().token_ids && delta->token_ids_size() > 0;
  if (text.empty() && !has_logprobs && !has_ids) return;
  streams_[choice].has_tokens = true;
  Begin(choice, out);
  OpenChunk(choice, out);
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

void ChatStreamWriter::OnReasoning(size_t choice, std::string_view text, std::string* out) {
  Begin(choice, out);
  OpenChunk(choice, out);
  *out += ",\"delta\":{";
  AppendReasoning(text, out);
  *out += "},\"logprobs\":null,\"finish_reason\":null";
  CloseChunk(out);
}

void ChatStreamWriter::OpenCall(size_t choice, std::string* out) {
  OpenChunk(choice, out);
  *out += ",\"delta\":{\"tool_calls\":[{\"index\":";
  AppendJsonInteger(static_cast<int64_t>(streams_[choice].call), out);
}

void ChatStreamWriter::CloseCall(std::string* out) const {
  *out += "}}]},\"logprobs\":null,\"finish_reason\":null";
  CloseChunk(out);
}

void ChatStreamWriter::OnCallBegins(size_t choice, const CallBegins& call, std::string* out) {
  streams_[choice].call = call.number;
  Begin(choice, out);
  OpenCall(choice, out);
  *out += ",\"id\":\"" + call.id + "\",\"type\":\"function\",\"function\":{\"name\":\"" + call.name;
  *out += "\",\"arguments\":\"\"";
  CloseCall(out);
}

void ChatStreamWriter::OnCallArguments(size_t choice, std::string_view bytes, std::string* out) {
  OpenCall(choice, out);
  // Mistral's client wants a name in each; others add it to the one they have.
  *out += ",\"function\":{\"name\":\"\",\"arguments\":";
  AppendJsonString(bytes, out);
  CloseCall(out);
}

void ChatStreamWriter::OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished,
                                  std::string* out) {
  Begin(choice, out);
  OpenChunk(choice, out);
  // Where no token came, here are the lists that would have come with them.
  const bool has_tokens = streams_[choice].has_tokens;
  const bool empty_logprobs = options().logprobs >= 0 && !has_tokens;
  *out += ",\"delta\":{},\"logprobs\":";
  *out += empty_logprobs ? "{\"content\":[],\"refusal\":null}" : "null";
  AppendFinish(end, finished, out);
  if (options().token_ids && !has_tokens) *out += ",\"token_ids\":[]";
  CloseChunk(out);
}

// ---- whole --------------------------------------------------------------------------------------

class ChatWholeWriter final : public ChoicesWriter {
 public:
  ChatWholeWriter(AnswerOptions options, std::vector<FieldNames> names)
      : ChoicesWriter(std::move(options), std::move(names), "chatcmpl-", "chat.completion"),
        messages_(choices()) {}

  std::string Finish() override;

 private:
  struct Call {
    CallBegins head;
    std::string arguments;
  };
  struct Message {
    std::string content;
    std::string reasoning;
    std::vector<Call> calls;
    std::string logprobs;  // of its tokens, joined by commas
    std::vector<int32_t> token_ids;
    AnswerEnd end = AnswerEnd::kStop;
    v1::Finished finished;
  };

  void OnStarted(size_t call, const v1::Started& started, std::string* out) override;
  void OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) override;
  void OnReasoning(size_t choice, std::string_view text, std::string*) override {
    messages_[choice].reasoning += text;
  }
  void OnCallBegins(size_t choice, const CallBegins& call, std::string*) override {
    messages_[choice].calls.push_back({.head = call, .arguments = ""});
  }
  void OnCallArguments(size_t choice, std::string_view bytes, std::string*) override {
    messages_[choice].calls.back().arguments += bytes;
  }
  void OnCallEnds(size_t choice, bool is_whole, std::string*) override {
    if (!is_whole) messages_[choice].calls.pop_back();
  }
  void OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished, std::string*) override {
    messages_[choice].end = end;
    messages_[choice].finished = finished;
  }

  void AppendChoice(size_t choice, std::string* out);
  static void AppendCalls(const std::vector<Call>& calls, std::string* out);

  std::vector<Message> messages_;
  std::string prompt_ids_;       // 1,2,3
  std::string prompt_logprobs_;  // [null, ...]
};

void ChatWholeWriter::OnStarted(size_t, const v1::Started& started, std::string*) {
  if (options().token_ids) prompt_ids_ = PromptIds(started);
  if (options().prompt_logprobs >= 0) prompt_logprobs_ = PromptLogprobs(started, options());
}

void ChatWholeWriter::OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string*) {
  Message& message = messages_[choice];
  message.content += text;
  if (delta == nullptr) return;
  if (options().logprobs >= 0 && delta->logprobs_size() > 0) {
    if (!message.logprobs.empty()) message.logprobs += ',';
    AppendChatLogprobs(delta->logprobs(), options(), &message.logprobs);
  }
  message.token_ids.insert(message.token_ids.end(), delta->token_ids().begin(), delta->token_ids().end());
}

std::string ChatWholeWriter::Finish() {
  std::string out = Head() + ",\"choices\":[";
  out.reserve(out.size() + static_cast<size_t>(held_bytes()));
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (i > 0) out += ',';
    AppendChoice(i, &out);
  }
  out += "],\"usage\":";
  AppendUsage(&out);
  if (options().token_ids) out += ",\"prompt_token_ids\":[" + prompt_ids_ + "]";
  if (options().prompt_logprobs >= 0) (out += ",\"prompt_logprobs\":") += prompt_logprobs_;
  AppendTiming(&out);
  return out + "}";
}

void ChatWholeWriter::AppendCalls(const std::vector<Call>& calls, std::string* out) {
  *out += ",\"tool_calls\":";
  const char* before = "[{\"id\":\"";
  for (const auto& [head, arguments] : calls) {
    *out += before + head.id + "\",\"type\":\"function\",\"function\":{\"name\":\"" + head.name;
    *out += "\",\"arguments\":";
    AppendJsonString(arguments, out);
    *out += "}}";
    before = ",{\"id\":\"";
  }
  *out += ']';
}

// What is printed is let go: the answer is there once, not twice.
void ChatWholeWriter::AppendChoice(size_t choice, std::string* out) {
  const Message message = std::exchange(messages_[choice], {});
  *out += "{\"index\":" + std::to_string(choice) + ",\"message\":{\"role\":\"assistant\",\"content\":";
  if (message.content.empty() && (!message.calls.empty() || options().only_tool_calls)) {
    *out += "null";
  } else {
    AppendJsonString(message.content, out);
  }
  *out += ",\"refusal\":null";
  if (!message.reasoning.empty()) {
    *out += ',';
    AppendReasoning(message.reasoning, out);
  }
  // No empty list: clients take it for a call.
  if (!message.calls.empty()) AppendCalls(message.calls, out);
  *out += "},\"logprobs\":";
  if (options().logprobs < 0) {
    *out += "null";
  } else {
    ((*out += "{\"content\":[") += message.logprobs) += "],\"refusal\":null}";
  }
  AppendFinish(message.end, message.finished, out);
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
