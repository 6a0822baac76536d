// What the answers of chats and completions have in common, whole and streamed: an object with a list of
// `choices`, or chunks that are such objects.
//
// One thread at a time. What is the same in every chunk of a stream is rendered once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/shared/answer_writer.h"
#include "server/api/shared/json.h"

namespace tramontane {

class ChoicesWriter : public AnswerWriter {
 public:
  // An id is `id_prefix` and the request's; `object` is what such an answer is called.
  ChoicesWriter(AnswerOptions options, std::vector<FieldNames> names, std::string_view id_prefix,
                std::string_view object)
      : AnswerWriter(std::move(options), std::move(names)), id_prefix_(id_prefix), object_(object) {}

  std::string Fail(const ApiError& error) override;

 protected:
  ApiError OnFailed(size_t choice, const v1::Finished& finished, std::string* out) final;

  // The beginning of the answer's JSON, which is open:
  // {"id":"chatcmpl-1","object":...,"created":...,"model":... After the first Started.
  std::string Head() const;
  // {"prompt_tokens":...} of all that was seen so far.
  void AppendUsage(std::string* out) const;
  // ,"metrics":{...},"timing":{...}     Nothing where nobody asked.
  void AppendTiming(std::string* out) const;

 private:
  const std::string id_prefix_;
  const std::string object_;
};

// An answer in chunks, each an event with one choice in it, and at the end the usage and "[DONE]".
class ChunkWriter : public ChoicesWriter {
 public:
  using ChoicesWriter::ChoicesWriter;

  std::string Finish() final;

 protected:
  // data: {..., "choices":[{"index":0     The caller appends the rest of the choice.
  void OpenChunk(size_t choice, std::string* out);
  // }], "usage": ...}     `more` is what the chunk has beside its choice.
  void CloseChunk(std::string* out, std::string_view more = {}) const;

 private:
  std::string head_;  // the constant part, rendered at the first chunk
};

// ,"finish_reason":"stop","stop_reason":null
void AppendFinish(AnswerEnd end, const v1::Finished& finished, std::string* out);

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

}  // namespace tramontane
