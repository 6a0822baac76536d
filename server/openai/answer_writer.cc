#include "server/openai/answer_writer.h"

#include <utility>

namespace tramontane {

AnswerWriter::AnswerWriter(AnswerOptions options, std::vector<FieldNames> names)
    : options_(std::move(options)),
      names_(std::move(names)),
      model_(options_.model),
      completion_tokens_(names_.size() * static_cast<size_t>(options_.choices)) {}

std::string AnswerWriter::OnEvents(size_t call, std::vector<v1::GenerateResponse> events) {
  std::string out;
  for (const v1::GenerateResponse& event : events) {
    if (event.has_delta()) {
      const size_t index = FirstChoice(call) + static_cast<size_t>(event.delta().choice());
      Count(index, event.delta().completion_tokens());
      OnDelta(index, event.delta(), &out);
    } else if (event.has_started()) {
      if (model_.empty()) model_ = event.started().model();
      prompt_tokens_ += event.started().prompt_tokens();
      cached_tokens_ += event.started().cached_tokens();
      OnStarted(call, event.started(), &out);
    } else if (event.has_finished()) {
      const v1::Finished& finished = event.finished();
      const size_t index = FirstChoice(call) + static_cast<size_t>(finished.choice());
      Count(index, finished.usage().completion_tokens());
      if (finished.reason() == v1::FINISH_REASON_CANCELLED) continue;  // the call fails: Fail says it
      if (finished.reason() != v1::FINISH_REASON_ERROR) {
        OnFinished(index, finished, &out);
      } else if (!fault_) {
        fault_ = ToApiError(ToRpcError(
            Internal("choice " + std::to_string(index) + " has failed: " + finished.error_message())));
        if (options_.stream) out += ErrorEvent(*fault_);
      }
    }
  }
  return out;
}

void AnswerWriter::Count(size_t index, int64_t completion_tokens) {
  all_completion_tokens_ += completion_tokens - completion_tokens_[index];
  completion_tokens_[index] = completion_tokens;
}

std::string AnswerWriter::Fail(const ApiError& error) { return ErrorEvent(error) + kDoneEvent; }

std::string AnswerWriter::Head(std::string_view id_prefix, std::string_view object) const {
  std::string head = "{\"id\":" + JsonString(std::string(id_prefix) + options_.id);
  head += ",\"object\":" + JsonString(object);
  head += ",\"created\":" + std::to_string(options_.created_s);
  head += ",\"model\":" + JsonString(model_);
  if (!options_.system_fingerprint.empty()) {
    head += ",\"system_fingerprint\":" + JsonString(options_.system_fingerprint);
  }
  return head;
}

void AnswerWriter::AppendUsage(std::string* out) const {
  *out += "{\"prompt_tokens\":";
  AppendJsonInteger(prompt_tokens_, out);
  *out += ",\"completion_tokens\":";
  AppendJsonInteger(all_completion_tokens_, out);
  *out += ",\"total_tokens\":";
  AppendJsonInteger(prompt_tokens_ + all_completion_tokens_, out);
  *out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  AppendJsonInteger(cached_tokens_, out);
  *out += "},\"completion_tokens_details\":{\"reasoning_tokens\":0}}";
}

// ---- streams ------------------------------------------------------------------------------------

void ChunkWriter::OpenChunk(size_t index, std::string* out) {
  if (head_.empty()) head_ = "data: " + Head(id_prefix_, object_) + ",\"choices\":[{\"index\":";
  *out += head_;
  AppendJsonInteger(static_cast<int64_t>(index), out);
}

void ChunkWriter::CloseChunk(std::string* out, std::string_view more) const {
  *out += "}]";
  *out += more;
  if (options().usage_in_every_chunk) {
    *out += ",\"usage\":";
    AppendUsage(out);
  } else if (options().usage_chunk) {
    *out += ",\"usage\":null";
  }
  *out += "}\n\n";
}

std::string ChunkWriter::Finish() {
  std::string out;
  if (options().usage_chunk && !Fault()) {
    out = "data: " + Head(id_prefix_, object_) + ",\"choices\":[],\"usage\":";
    AppendUsage(&out);
    out += "}\n\n";
  }
  return out + kDoneEvent;
}

// ---- pieces -------------------------------------------------------------------------------------

void AppendFinish(const v1::Finished& finished, std::string_view reason, std::string* out) {
  *out += ",\"finish_reason\":\"";
  *out += reason;
  *out += "\",\"stop_reason\":";
  if (finished.has_stop()) {
    AppendJsonString(finished.stop(), out);
  } else if (finished.reason() == v1::FINISH_REASON_STOP_SEQUENCE && finished.has_stop_token_id()) {
    AppendJsonInteger(finished.stop_token_id(), out);
  } else {
    *out += "null";
  }
}

std::string_view FinishReasonName(v1::FinishReason reason) {
  const bool cut = reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_TIME_LIMIT;
  return cut ? "length" : "stop";
}

std::string PromptIds(const v1::Started& started) {
  std::vector<int32_t> ids;
  for (const v1::PromptToken& token : started.prompt()) ids.push_back(token.token_id());
  std::string text;
  AppendIds(ids, &text);
  return text;
}

std::string ErrorEvent(const ApiError& error) { return "data: " + ErrorJson(error) + "\n\n"; }

}  // namespace tramontane
