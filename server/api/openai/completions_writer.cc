// The answers of /v1/completions.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "server/api/openai/choices_writer.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/logprobs.h"

namespace tramontane {
namespace {

// The prompt as text, and its tokens in `logprobs`. A character that it leaves unfinished is the answer's.
std::string EchoPrompt(const v1::Started& started, CompletionLogprobs* logprobs) {
  std::string text;
  for (int i = 0; i < started.prompt_size(); ++i) {
    text += started.prompt(i).token_bytes();
    logprobs->AddPrompt(started, i);
  }
  text.resize(text.size() - TruncatedUtf8Bytes(text));
  return text;
}

const char* ObjectName(const AnswerOptions& options) {
  if (!options.as_message) return "text_completion";
  return options.stream ? "chat.completion.chunk" : "chat.completion";
}

// ,"message":{"role":"assistant","content":"..."}
void AppendMessage(std::string_view key, std::string_view content, std::string* out) {
  *out += ",\"";
  *out += key;
  *out += "\":{\"role\":\"assistant\",\"content\":";
  AppendJsonString(content, out);
  *out += '}';
}

// ---- streamed -----------------------------------------------------------------------------------

class CompletionStreamWriter final : public ChunkWriter {
 public:
  CompletionStreamWriter(const char* object, AnswerOptions options, std::vector<FieldNames> names)
      : ChunkWriter(std::move(options), std::move(names), "cmpl-", object),
        streams_(choices(), Stream(this->options())) {}

 private:
  struct Stream {
    explicit Stream(const AnswerOptions& options) : logprobs(options) {}
    CompletionLogprobs logprobs;  // of the next chunk
    std::string prompt_ids;       // 1,2,3 for the first chunk with token ids; then ""
    bool has_tokens = false;      // that were sent
  };

  void OnStarted(size_t call, const v1::Started& started, std::string* out) override;
  void OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) override;
  void OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished, std::string* out) override;

  // ,"token_ids":[1,2,3]     Behind the prompt's, the first time.
  void AppendTokenIds(size_t choice, const google::protobuf::RepeatedField<int32_t>& ids, std::string* out);
  // A chunk up to its finish reason, with the log probabilities that were added since the last one.
  void OpenTextChunk(size_t choice, std::string_view text, std::string* out);

  std::vector<Stream> streams_;
};

void CompletionStreamWriter::OnStarted(size_t call, const v1::Started& started, std::string* out) {
  for (size_t i = FirstChoice(call); i < FirstChoice(call + 1); ++i) {
    if (options().token_ids) streams_[i].prompt_ids = PromptIds(started);
    if (!options().echo) continue;
    const std::string prompt = EchoPrompt(started, &streams_[i].logprobs);
    OpenTextChunk(i, prompt, out);
    *out += ",\"finish_reason\":null";
    CloseChunk(out);
  }
}

void CompletionStreamWriter::OnText(size_t choice, std::string_view text, const v1::Delta* delta,
                                    std::string* out) {
  const bool has_logprobs = options().logprobs >= 0 && delta->logprobs_size() > 0;
  const bool has_ids = options().token_ids && delta->token_ids_size() > 0;
  if (text.empty() && !has_logprobs && !has_ids) return;
  Stream& stream = streams_[choice];
  stream.has_tokens = true;
  for (const v1::TokenLogprob& token : delta->logprobs()) stream.logprobs.Add(token);
  OpenTextChunk(choice, text, out);
  *out += ",\"finish_reason\":null";
  if (has_ids) AppendTokenIds(choice, delta->token_ids(), out);
  CloseChunk(out);
}

void CompletionStreamWriter::AppendTokenIds(size_t choice,
                                            const google::protobuf::RepeatedField<int32_t>& ids,
                                            std::string* out) {
  std::string& prompt_ids = streams_[choice].prompt_ids;
  if (!prompt_ids.empty()) *out += ",\"prompt_token_ids\":[" + std::exchange(prompt_ids, {}) + "]";
  *out += ",\"token_ids\":[";
  AppendIds(ids, out);
  *out += "]";
}

void CompletionStreamWriter::OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished,
                                        std::string* out) {
  OpenTextChunk(choice, "", out);
  AppendFinish(end, finished, out);
  if (options().token_ids && !streams_[choice].has_tokens) AppendTokenIds(choice, {}, out);
  CloseChunk(out);
}

void CompletionStreamWriter::OpenTextChunk(size_t choice, std::string_view text, std::string* out) {
  OpenChunk(choice, out);
  *out += ",\"text\":";
  AppendJsonString(text, out);
  if (options().as_message) AppendMessage("delta", text, out);
  *out += ",\"logprobs\":";
  CompletionLogprobs& logprobs = streams_[choice].logprobs;
  const bool said_before = logprobs.empty() && streams_[choice].has_tokens;
  if (options().logprobs < 0 || said_before) {
    *out += "null";
  } else {
    logprobs.AppendTo(out);
  }
  logprobs.Clear();
}

// ---- whole --------------------------------------------------------------------------------------

class CompletionWholeWriter final : public ChoicesWriter {
 public:
  CompletionWholeWriter(const char* object, AnswerOptions options, std::vector<FieldNames> names)
      : ChoicesWriter(std::move(options), std::move(names), "cmpl-", object),
        texts_(choices(), Text(this->options())) {}

  std::string Finish() override;

 private:
  struct Text {
    explicit Text(const AnswerOptions& options) : logprobs(options) {}
    std::string text;
    CompletionLogprobs logprobs;
    std::string prompt_ids;       // 1,2,3
    std::string prompt_logprobs;  // [null, ...]
    std::vector<int32_t> token_ids;
    AnswerEnd end = AnswerEnd::kStop;
    v1::Finished finished;
  };

  void OnStarted(size_t call, const v1::Started& started, std::string* out) override;
  void OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) override;
  void OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished, std::string*) override {
    texts_[choice].end = end;
    texts_[choice].finished = finished;
  }

  void AppendChoice(size_t choice, std::string* out) const;

  std::vector<Text> texts_;
};

void CompletionWholeWriter::OnStarted(size_t call, const v1::Started& started, std::string*) {
  for (size_t i = FirstChoice(call); i < FirstChoice(call + 1); ++i) {
    Text& text = texts_[i];
    if (options().token_ids) text.prompt_ids = PromptIds(started);
    if (options().prompt_logprobs >= 0) text.prompt_logprobs = PromptLogprobs(started, options());
    if (options().echo) text.text = EchoPrompt(started, &text.logprobs);
  }
}

void CompletionWholeWriter::OnText(size_t choice, std::string_view more, const v1::Delta* delta,
                                   std::string*) {
  Text& text = texts_[choice];
  text.text += more;
  for (const v1::TokenLogprob& token : delta->logprobs()) text.logprobs.Add(token);
  text.token_ids.insert(text.token_ids.end(), delta->token_ids().begin(), delta->token_ids().end());
}

std::string CompletionWholeWriter::Finish() {
  std::string out = Head() + ",\"choices\":[";
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (i > 0) out += ',';
    AppendChoice(i, &out);
  }
  out += "],\"usage\":";
  AppendUsage(&out);
  AppendTiming(&out);
  return out + "}";
}

void CompletionWholeWriter::AppendChoice(size_t choice, std::string* out) const {
  const Text& text = texts_[choice];
  *out += "{\"index\":" + std::to_string(choice) + ",\"text\":";
  AppendJsonString(text.text, out);
  if (options().as_message) AppendMessage("message", text.text, out);
  *out += ",\"logprobs\":";
  if (options().logprobs < 0) {
    *out += "null";
  } else {
    text.logprobs.AppendTo(out);
  }
  AppendFinish(text.end, text.finished, out);
  if (options().prompt_logprobs >= 0) *out += ",\"prompt_logprobs\":" + text.prompt_logprobs;
  if (options().token_ids) {
    *out += ",\"prompt_token_ids\":[" + text.prompt_ids + "],\"token_ids\":[";
    AppendIds(text.token_ids, out);
    *out += "]";
  }
  *out += "}";
}

}  // namespace

std::unique_ptr<ResponseWriter> MakeCompletionWriter(AnswerOptions options, std::vector<FieldNames> names) {
  const char* const object = ObjectName(options);
  if (options.stream)
    return std::make_unique<CompletionStreamWriter>(object, std::move(options), std::move(names));
  return std::make_unique<CompletionWholeWriter>(object, std::move(options), std::move(names));
}

}  // namespace tramontane
