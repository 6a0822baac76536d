#include "server/api/shared/answer_writer.h"

#include <utility>

#include "server/call/answer_cost.h"

namespace tramontane {
namespace {

// `called`: the answer has a whole call. `cut`: it ended within one, or has none where it had to.
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
    readers_.emplace_back(
        AnswerReader::Options{options_.call_id_seed + "-" + std::to_string(i), options_.one_tool_call});
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
  if (!readers_.empty()) return Tell(choice, readers_[choice].Read(delta), &delta, out);
  has_content_ = has_content_ || !delta.reasoning().empty();
  if (!delta.reasoning().empty()) OnReasoning(choice, delta.reasoning(), out);
  TellText(choice, delta.text(), &delta, out);
}

// What goes with the tokens of `delta` is told once, with its text or before its calls.
void AnswerWriter::Tell(size_t choice, const AnswerEvents& events, const v1::Delta* delta, std::string* out) {
  for (const AnswerEvent& event : events) {
    if (const auto* thought = std::get_if<AnswerThought>(&event)) {
      has_content_ = true;
      OnReasoning(choice, thought->bytes, out);
      continue;
    }
    const auto* text = std::get_if<AnswerText>(&event);
    // Where there can be nothing but calls, nothing else is shown.
    std::string_view shown;
    if (text != nullptr && !options_.only_tool_calls) shown = text->bytes;
    if (delta != nullptr || !shown.empty()) TellText(choice, shown, std::exchange(delta, nullptr), out);
    if (text != nullptr) continue;
    has_content_ = true;
    if (const auto* call = std::get_if<CallBegins>(&event)) OnCallBegins(choice, *call, out);
    if (const auto* piece = std::get_if<CallArguments>(&event)) OnCallArguments(choice, piece->bytes, out);
    if (const auto* end = std::get_if<CallEnds>(&event)) OnCallEnds(choice, end->is_whole, out);
  }
  if (delta != nullptr) TellText(choice, "", delta, out);
}

void AnswerWriter::TellText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) {
  const bool has_ids = options_.token_ids && delta != nullptr && delta->token_ids_size() > 0;
  has_content_ = has_content_ || has_ids || !text.empty();
  OnText(choice, text, delta, out);
}

void AnswerWriter::Release(size_t choice, AnswerReader::End end, std::string* out) {
  if (!readers_.empty()) Tell(choice, readers_[choice].Finish(end), nullptr, out);
}

void AnswerWriter::End(size_t choice, const v1::Finished& finished, std::string* out) {
  Count(choice, finished.usage().completion_tokens());
  if (options_.metrics) ended_ = finished;
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
  const auto end = finished.reason() == v1::FINISH_REASON_STOP ? AnswerReader::End::kOfTheModel
                                                               : AnswerReader::End::kCutOff;
  const bool is_within_call = !readers_.empty() && readers_[choice].is_within_call();
  Release(choice, end, out);
  const bool called = !readers_.empty() && readers_[choice].whole_calls() > 0;
  const bool cut = is_within_call || (options_.only_tool_calls && !called);
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

int64_t AnswerWriter::held_bytes() const {
  if (HoldsAnswer()) return answer_bytes_;
  size_t bytes = 0;
  for (const AnswerReader& reader : readers_) bytes += reader.held_bytes();
  return static_cast<int64_t>(bytes);
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
