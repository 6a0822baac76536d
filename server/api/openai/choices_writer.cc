#include "server/api/openai/choices_writer.h"

#include <utility>

#include "server/api/openai/dialect.h"
#include "server/api/shared/timing.h"

namespace tramontane {
namespace {

constexpr char kDoneEvent[] = "data: [DONE]\n\n";

std::string ErrorEvent(const ApiError& error) { return "data: " + ErrorJson(error) + "\n\n"; }

// No other end is told to a client.
std::string_view FinishReasonName(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kLimit:
      return "length";
    case AnswerEnd::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

}  // namespace

std::string ChoicesWriter::Fail(const ApiError& error) { return ErrorEvent(error) + kDoneEvent; }

ApiError ChoicesWriter::OnFailed(size_t choice, const v1::Finished& finished, std::string* out) {
  ApiError fault = FaultOf(choice, finished);
  fault.message = "choice " + std::to_string(choice) + " has failed: " + fault.message;
  if (options().stream && !Fault()) *out += ErrorEvent(fault);
  return fault;
}

std::string ChoicesWriter::Head() const {
  std::string head = "{\"id\":" + JsonString(id_prefix_ + options().id);
  head += ",\"object\":" + JsonString(object_);
  head += ",\"created\":" + std::to_string(options().created_s);
  head += ",\"model\":" + JsonString(model());
  if (!options().system_fingerprint.empty()) {
    head += ",\"system_fingerprint\":" + JsonString(options().system_fingerprint);
  }
  return head;
}

void ChoicesWriter::AppendUsage(std::string* out) const {
  *out += "{\"prompt_tokens\":";
  AppendJsonInteger(usage().prompt_tokens, out);
  *out += ",\"completion_tokens\":";
  AppendJsonInteger(usage().completion_tokens, out);
  *out += ",\"total_tokens\":";
  AppendJsonInteger(usage().prompt_tokens + usage().completion_tokens, out);
  *out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  AppendJsonInteger(usage().cached_tokens, out);
  *out += "},\"completion_tokens_details\":{\"reasoning_tokens\":";
  AppendJsonInteger(usage().reasoning_tokens, out);
  *out += '}';
  if (usage().discarded_tokens) {
    *out += ",\"discarded_tokens\":";
    AppendJsonInteger(*usage().discarded_tokens, out);
  }
  *out += '}';
}

void ChoicesWriter::AppendTiming(std::string* out) const {
  if (options().metrics) {
    *out += ",\"metrics\":" + (choices() == 1 && ended() ? PrintJson(MetricsJson(*ended())) : "null");
  }
  if (timing()) *out += ",\"timing\":" + PrintJson(TimingJson(*timing()));
}

// ---- streams ------------------------------------------------------------------------------------

void ChunkWriter::OpenChunk(size_t choice, std::string* out) {
  if (head_.empty()) head_ = "data: " + Head() + ",\"choices\":[{\"index\":";
  *out += head_;
  AppendJsonInteger(static_cast<int64_t>(choice), out);
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
  const bool has_usage = options().usage_chunk || (timing() && options().usage_in_every_chunk);
  if ((has_usage || timing()) && !Fault()) {
    out = "data: " + Head() + ",\"choices\":[]";
    if (has_usage) {
      out += ",\"usage\":";
      AppendUsage(&out);
    }
    AppendTiming(&out);
    out += "}\n\n";
  }
  return out + kDoneEvent;
}

// ---- pieces -------------------------------------------------------------------------------------

void AppendFinish(AnswerEnd end, const v1::Finished& finished, std::string* out) {
  *out += ",\"finish_reason\":\"";
  *out += FinishReasonName(end);
  *out += "\",\"stop_reason\":";
  if (finished.has_stop()) {
    AppendJsonString(finished.stop(), out);
  } else if (finished.reason() == v1::FINISH_REASON_STOP_SEQUENCE && finished.has_stop_token_id()) {
    AppendJsonInteger(finished.stop_token_id(), out);
  } else {
    *out += "null";
  }
}

std::string PromptIds(const v1::Started& started) {
  std::vector<int32_t> ids;
  for (const v1::PromptToken& token : started.prompt()) ids.push_back(token.token_id());
  std::string text;
  AppendIds(ids, &text);
  return text;
}

}  // namespace tramontane
