// The answers of /v1/completions.
#include <memory>
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

// What the answers to a prompt repeat of it, printed once for all of them.
struct Prompt {
  std::string text;                                  // echoed
  std::shared_ptr<const CompletionLogprobs> echoed;  // its tokens; null: no echo
  std::string ids;                                   // 1,2,3
  std::string logprobs = "null";                     // [null, ...]
};

// A character that the prompt leaves unfinished is the answer's.
std::shared_ptr<const Prompt> PromptOf(const v1::Started& started, const AnswerOptions& options) {
  auto prompt = std::make_shared<Prompt>();
  if (options.token_ids) prompt->ids = PromptIds(started);
  if (options.prompt_logprobs >= 0) prompt->logprobs = PromptLogprobs(started, options);
  if (!options.echo) return prompt;
  for (const v1::PromptToken& token : started.prompt()) prompt->text += token.token_bytes();
  prompt->text.resize(prompt->text.size() - TruncatedUtf8Bytes(prompt->text));
  auto echoed = std::make_shared<CompletionLogprobs>(options);
  echoed->AddPrompt(started);
  prompt->echoed = std::move(echoed);
  return prompt;
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
    CompletionLogprobs logprobs;           // of the next chunk
    std::shared_ptr<const Prompt> prompt;  // for the first chunk with token ids; then null
    bool has_tokens = false;               // that were sent
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
  const std::shared_ptr<const Prompt> prompt = PromptOf(started, options());
  for (size_t i = FirstChoice(call); i < FirstChoice(call + 1); ++i) {
    if (options().token_ids && !prompt->ids.empty()) streams_[i].prompt = prompt;
    if (!options().echo) continue;
    streams_[i].logprobs.GoOnFrom(prompt->echoed);
    OpenTextChunk(i, prompt->text, out);
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
  if (const auto prompt = std::exchange(streams_[choice].prompt, nullptr)) {
    *out += ",\"prompt_token_ids\":[" + prompt->ids + "]";
  }
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
    std::shared_ptr<const Prompt> prompt = std::make_shared<Prompt>();
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

  void AppendChoice(size_t choice, std::string* out);

  std::vector<Text> texts_;
};

void CompletionWholeWriter::OnStarted(size_t call, const v1::Started& started, std::string*) {
  const std::shared_ptr<const Prompt> prompt = PromptOf(started, options());
  for (size_t i = FirstChoice(call); i < FirstChoice(call + 1); ++i) {
    texts_[i].prompt = prompt;
    texts_[i].text = prompt->text;
    if (prompt->echoed != nullptr) texts_[i].logprobs.GoOnFrom(prompt->echoed);
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
  out.reserve(out.size() + static_cast<size_t>(held_bytes()));
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (i > 0) out += ',';
    AppendChoice(i, &out);
  }
  out += "],\"usage\":";
  AppendUsage(&out);
  AppendTiming(&out);
  return out + "}";
}

// What is printed is let go: the answer is there once, not twice.
void CompletionWholeWriter::AppendChoice(size_t choice, std::string* out) {
  const Text text = std::exchange(texts_[choice], Text(options()));
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
  if (options().prompt_logprobs >= 0) (*out += ",\"prompt_logprobs\":") += text.prompt->logprobs;
  if (options().token_ids) {
    *out += ",\"prompt_token_ids\":[" + text.prompt->ids + "],\"token_ids\":[";
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
