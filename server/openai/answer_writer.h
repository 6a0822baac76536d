// The answers of OpenAI's endpoints that generate: events of the .proto to JSON, whole or as server-sent
// events.
//
// One thread at a time. What is the same in every chunk of a stream is rendered once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/generation.h"
#include "server/openai/generation_request.h"
#include "server/openai/json.h"

namespace tramontane {

std::unique_ptr<ResponseWriter> MakeChatWriter(AnswerOptions options, std::vector<FieldNames> names);
std::unique_ptr<ResponseWriter> MakeCompletionWriter(AnswerOptions options, std::vector<FieldNames> names);

// ---- what they are made of, for writers of other endpoints --------------------------------------

// What every answer has: it counts tokens, knows which choice an event belongs to, and says what went wrong.
// Choices of one answer are numbered through: those of its first call, then those of its second.
class AnswerWriter : public ResponseWriter {
 public:
  AnswerWriter(AnswerOptions options, std::vector<FieldNames> names);  // one of names for each call

  std::string OnEvents(size_t call, std::vector<v1::GenerateResponse> events) final;
  ApiError Explain(size_t call, const RpcError& error) const final { return names_[call].Explain(error); }
  std::optional<ApiError> Fault() const final { return fault_; }
  std::string Fail(const ApiError& error) override;

 protected:
  // Each appends what is to be sent now; where nothing is streamed, nothing.
  virtual void OnStarted(size_t call, const v1::Started& started, std::string* out) = 0;
  virtual void OnDelta(size_t index, const v1::Delta& delta, std::string* out) = 0;
  // Only for choices that ended well.
  virtual void OnFinished(size_t index, const v1::Finished& finished, std::string* out) = 0;

  const AnswerOptions& options() const { return options_; }
  size_t choices() const { return completion_tokens_.size(); }  // of all calls
  size_t FirstChoice(size_t call) const { return call * static_cast<size_t>(options_.choices); }
  // The beginning of the answer's JSON, which is open:
  // {"id":"chatcmpl-1","object":...,"created":...,"model":... After the first Started.
  std::string Head(std::string_view id_prefix, std::string_view object) const;
  // {"prompt_tokens":...} of all that was seen so far.
  void AppendUsage(std::string* out) const;

 private:
  void Count(size_t index, int64_t completion_tokens);

  const AnswerOptions options_;
  const std::vector<FieldNames> names_;
  std::string model_;
  int64_t prompt_tokens_ = 0;  // each prompt once, however many choices it has
  int64_t cached_tokens_ = 0;
  int64_t all_completion_tokens_ = 0;
  std::vector<int64_t> completion_tokens_;  // [choices]
  std::optional<ApiError> fault_;           // of the first choice that ended with an error
};

// An answer in chunks, each an event with one choice in it, and at the end the usage and "[DONE]".
class ChunkWriter : public AnswerWriter {
 public:
  ChunkWriter(AnswerOptions options, std::vector<FieldNames> names, std::string_view id_prefix,
              std::string_view object)
      : AnswerWriter(std::move(options), std::move(names)), id_prefix_(id_prefix), object_(object) {}

  std::string Finish() final;

 protected:
  // data: {..., "choices":[{"index":0     The caller appends the rest of the choice.
  void OpenChunk(size_t index, std::string* out);
  // }], "usage": ...}     `more` is what the chunk has beside its choice.
  void CloseChunk(std::string* out, std::string_view more = {}) const;

 private:
  const std::string id_prefix_;
  const std::string object_;
  std::string head_;  // the constant part, rendered at the first chunk
};

// ,"finish_reason":"stop","stop_reason":null
void AppendFinish(const v1::Finished& finished, std::string_view reason, std::string* out);
// "stop" or "length": no other end is told to a client.
std::string_view FinishReasonName(v1::FinishReason reason);

// 1,2,3
template <typename Ids>
void AppendIds(const Ids& ids, std::string* out) {
  const char* comma = "";
  for (const int32_t id : ids) {
    *out += comma;
    AppendJsonInteger(id, out);
    comma = ",";
  }
}
std::string PromptIds(const v1::Started& started);

// Server-sent events.
std::string ErrorEvent(const ApiError& error);
inline constexpr char kDoneEvent[] = "data: [DONE]\n\n";

}  // namespace tramontane
