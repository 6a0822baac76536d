#include "server/api/shared/answer_writer.h"

#include <utility>

#include "server/call/answer_cost.h"

namespace tramontane {
namespace {

// `called`: the answer has a call. `cut`: it had to be calls, and the last is not whole.
AnswerEnd EndOf(v1::FinishReason reason, bool called, bool cut) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
    case v1::FINISH_REASON_TIME_LIMIT:
      return AnswerEnd::kLimit;
    case v1::FINISH_REASON_STOP_SEQUENCE:
      return cut ? AnswerEnd::kLimit : called ? AnswerEnd::kToolCalls : AnswerEnd::kStopSequence;
    default:
      return called ? AnswerEnd::kToolCalls : AnswerEnd::kStop;
  }
}

int64_t BytesOf(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& scored) {
  int64_t entries = 0;
  for (const v1::TokenLogprob& token : scored) entries += ScoreEntries(1, token.top_size());
  return entries * kScoreTextBytes;
}

}  // namespace

AnswerWriter::AnswerWriter(AnswerOptions options, std::vector<FieldNames> names)
    : options_(std::move(options)),
      names_(std::move(names)),
      model_(options_.model),
      completion_tokens_(names_.size() * static_cast<size_t>(options_.choices)) {
  for (size_t i = 0; options_.tools && i < choices(); ++i) {
    parsers_.push_back(MakeToolCallParser(options_.call_id_seed, options_.one_tool_call, i));
  }
}

std::string AnswerWriter::OnEvents(size_t call, std::vector<v1::GenerateResponse> events) {
  std::string out;
  for (const v1::GenerateResponse& event : events) {
    if (event.has_delta()) {
      CountBytes(event.delta());
      AddDelta(FirstChoice(call) + static_cast<size_t>(event.delta().choice()), event.delta(), &out);
    } else if (event.has_started()) {
      if (model_.empty()) model_ = event.started().model();
      usage_.prompt_tokens += event.started().prompt_tokens();
      usage_.cached_tokens += event.started().cached_tokens();
      CountBytes(event.started());
      OnStarted(call, event.started(), &out);
    } else if (event.has_finished()) {
      End(FirstChoice(call) + static_cast<size_t>(event.finished().choice()), event.finished(), &out);
    }
  }
  return out;
}

void AnswerWriter::AddDelta(size_t choice, const v1::Delta& delta, std::string* out) {
  Count(choice, delta.completion_tokens());
  has_content_ = has_content_ || !delta.reasoning().empty();
  if (!delta.reasoning().empty()) OnReasoning(choice, delta.reasoning(), out);
  if (parsers_.empty()) return TellText(choice, delta.text(), &delta, out);
  Tell(choice, parsers_[choice].Append(delta), &delta, out);
}

void AnswerWriter::Tell(size_t choice, const ToolCallParser::Output& parsed, const v1::Delta* delta,
                        std::string* out) {
  // Where there can be nothing but calls, what is not one is a piece of one that was cut off.
  const std::string_view text = options_.only_tool_calls ? std::string_view() : parsed.text;
  if (delta != nullptr || !text.empty()) TellText(choice, text, delta, out);
  has_content_ = has_content_ || !parsed.calls.empty();
  size_t number = parsers_[choice].calls() - parsed.calls.size();
  for (const ParsedToolCall& call : parsed.calls) OnToolCall(choice, number++, call, out);
}

void AnswerWriter::TellText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) {
  const bool has_ids = options_.token_ids && delta != nullptr && delta->token_ids_size() > 0;
  has_content_ = has_content_ || has_ids || !text.empty();
  OnText(choice, text, delta, out);
}

void AnswerWriter::Release(size_t choice, ToolCallParser::End end, std::string* out) {
  if (!parsers_.empty()) Tell(choice, parsers_[choice].Finish(end), nullptr, out);
}

void AnswerWriter::End(size_t choice, const v1::Finished& finished, std::string* out) {
  Count(choice, finished.usage().completion_tokens());
  usage_.reasoning_tokens += finished.usage().reasoning_tokens();
  if (finished.usage().has_discarded_tokens()) {
    usage_.discarded_tokens = usage_.discarded_tokens.value_or(0) + finished.usage().discarded_tokens();
  }
  if (finished.reason() == v1::FINISH_REASON_CANCELLED) return;  // the call fails: Fail says it
  if (finished.reason() == v1::FINISH_REASON_ERROR) {
    ApiError fault = OnFailed(choice, finished, out);
    if (!fault_) fault_ = std::move(fault);
    return;
  }
  const auto end = finished.reason() == v1::FINISH_REASON_STOP ? ToolCallParser::End::kOfTheModel
                                                               : ToolCallParser::End::kCutOff;
  const bool is_within_call = !parsers_.empty() && parsers_[choice].IsCutBy(end);
  Release(choice, end, out);
  const bool called = !parsers_.empty() && parsers_[choice].calls() > 0;
  const bool cut = options_.only_tool_calls && (is_within_call || !called);
  OnFinished(choice, EndOf(finished.reason(), called, cut), finished, out);
}

ApiError AnswerWriter::FaultOf(size_t choice, const v1::Finished& finished) const {
  const auto code = static_cast<StatusCode>(finished.error_code());
  const bool is_known = finished.error_code() != 0;  // older servers say none
  RpcError error = ToOutcome(Status(is_known ? code : StatusCode::kInternal, ""));
  error.field = finished.error_field();
  error.set_message(finished.error_message());
  return names_[choice / static_cast<size_t>(options_.choices)].Explain(error);
}

void AnswerWriter::Count(size_t choice, int64_t completion_tokens) {
  usage_.completion_tokens += completion_tokens - completion_tokens_[choice];
  completion_tokens_[choice] = completion_tokens;
}

void AnswerWriter::CountBytes(const v1::Started& started) {
  answer_bytes_ +=
      options_.choices * (BytesOf(started.prompt_logprobs()) + started.prompt_size() * kTokenBytes);
}

void AnswerWriter::CountBytes(const v1::Delta& delta) {
  answer_bytes_ += static_cast<int64_t>(delta.text().size() + delta.reasoning().size());
  if (options_.logprobs >= 0) answer_bytes_ += BytesOf(delta.logprobs());
  if (options_.token_ids) answer_bytes_ += delta.token_ids_size() * kTokenBytes;
}

}  // namespace tramontane
