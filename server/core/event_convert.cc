#include "server/core/event_convert.h"

#include <utility>

#include "server/core/model_info.h"

namespace tramontane {

static_assert(static_cast<int>(FinishReason::kStop) + 1 == v1::FINISH_REASON_STOP);
static_assert(static_cast<int>(FinishReason::kLength) + 1 == v1::FINISH_REASON_LENGTH);
static_assert(static_cast<int>(FinishReason::kStopSequence) + 1 == v1::FINISH_REASON_STOP_SEQUENCE);
static_assert(static_cast<int>(FinishReason::kTimeLimit) + 1 == v1::FINISH_REASON_TIME_LIMIT);
static_assert(static_cast<int>(FinishReason::kCancelled) + 1 == v1::FINISH_REASON_CANCELLED);
static_assert(static_cast<int>(FinishReason::kError) + 1 == v1::FINISH_REASON_ERROR);

v1::GenerateResponse EventConverter::StartedToProto(const StreamStarted& started,
                                                    const std::string& request_id) const {
  v1::GenerateResponse response;
  v1::Started* proto = response.mutable_started();
  proto->set_request_id(request_id);
  proto->set_model(model_.names[0]);
  proto->set_prompt_tokens(started.prompt_tokens);
  proto->set_cached_tokens(started.cached_tokens);
  proto->set_seed(started.seed);
  for (const TokenInfo& info : started.prompt_logprobs) TokenInfoToProto(info, proto->add_prompt_logprobs());
  MessageBytes message(*model_.tokenizer);
  for (const int32_t id : started.prompt) {
    v1::PromptToken* token = proto->add_prompt();
    token->set_token_id(id);
    token->set_token_bytes(std::string(message.Next(id)));
  }
  return response;
}

AnswerSplitter EventConverter::NewSplitter(const Request& request, bool is_chat) const {
  AnswerSyntax syntax = answer_syntax_;
  syntax.thinks_in_text = syntax.thinks_in_text && is_chat;
  return {syntax, request.output.marked_ids, request.output.thoughts.open, *model_.tokenizer};
}

v1::GenerateResponse EventConverter::DeltaToProto(StreamDelta delta, const DeltaParts& parts,
                                                  AnswerSplitter* splitter) const {
  v1::GenerateResponse response;
  v1::Delta* proto = response.mutable_delta();
  splitter->Count(delta.token_ids);
  proto->set_choice(delta.choice);
  if (parts.text) splitter->Split(std::move(delta.text), delta.marks, proto);
  if (parts.token_ids) proto->mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  for (const TokenInfo& info : delta.logprobs) TokenInfoToProto(info, proto->add_logprobs());
  proto->set_completion_tokens(delta.completion_tokens);
  return response;
}

void EventConverter::TokenInfoToProto(const TokenInfo& info, v1::TokenLogprob* proto) const {
  proto->set_token_id(info.token);
  proto->set_logprob(info.logprob);
  proto->set_rank(info.rank);
  proto->set_token_bytes(TokenBytes(info.token, info.use));
  if (proto->token_bytes().empty()) proto->set_piece(PieceText(*model_.tokenizer, info.token));
  // Another token in its place would have lost its space too; only the one that was taken is spelled out.
  const PieceUse top_use = info.use == PieceUse::kSpelledOut ? PieceUse::kAsItIs : info.use;
  for (const TokenLogprob& top : info.top) {
    v1::TopLogprob* top_proto = proto->add_top();
    top_proto->set_token_id(top.token);
    top_proto->set_logprob(top.logprob);
    top_proto->set_token_bytes(TokenBytes(top.token, top.token == info.token ? info.use : top_use));
    if (top_proto->token_bytes().empty()) top_proto->set_piece(PieceText(*model_.tokenizer, top.token));
  }
}

std::string EventConverter::TokenBytes(int32_t id, PieceUse use) const {
  switch (use) {
    case PieceUse::kBeginsText:
      return std::string(MessageBytes(*model_.tokenizer).Next(id));
    case PieceUse::kSpelledOut:
      return std::string(model_.tokenizer->Piece(id));
    case PieceUse::kAsItIs:
      break;
  }
  return std::string(model_.tokenizer->PieceBytes(id));
}

v1::GenerateResponse EventConverter::FinishedToProto(const StreamFinished& finished,
                                                     const AnswerSplitter& splitter) {
  v1::GenerateResponse response;
  v1::Finished* proto = response.mutable_finished();
  proto->set_choice(finished.choice);
  proto->set_reason(static_cast<v1::FinishReason>(static_cast<int>(finished.reason) + 1));
  if (finished.stop_token_id >= 0) proto->set_stop_token_id(finished.stop_token_id);
  if (!finished.stop_string.empty()) proto->set_stop(finished.stop_string);
  if (finished.reason == FinishReason::kError) {
    proto->set_error_message(finished.status.message());
    proto->set_error_field(finished.status.field());
    proto->set_error_code(static_cast<int32_t>(finished.status.code()));
  }

  v1::Usage* usage = proto->mutable_usage();
  usage->set_prompt_tokens(finished.usage.prompt_tokens);
  usage->set_cached_tokens(finished.usage.cached_tokens);
  usage->set_completion_tokens(finished.usage.completion_tokens);
  usage->set_prefill_chunks(finished.usage.prefill_chunks);
  usage->set_preemptions(finished.usage.preemptions);
  usage->set_reasoning_tokens(splitter.reasoning_tokens());
  if (finished.usage.discarded_tokens) usage->set_discarded_tokens(*finished.usage.discarded_tokens);

  const Timings& times = finished.timings;
  v1::Timings* timings = proto->mutable_timings();
  const auto since_received_us = [&times](int64_t at_ns) { return (at_ns - times.received_ns) / 1000; };
  if (times.tokenized_ns != 0) timings->set_tokenized_us(since_received_us(times.tokenized_ns));
  if (times.admitted_ns != 0) timings->set_admitted_us(since_received_us(times.admitted_ns));
  if (times.first_chunk_ns != 0) timings->set_first_chunk_us(since_received_us(times.first_chunk_ns));
  if (times.last_chunk_ns != 0) timings->set_last_chunk_us(since_received_us(times.last_chunk_ns));
  if (times.first_token_ns != 0) timings->set_first_token_us(since_received_us(times.first_token_ns));
  if (times.finished_ns != 0) timings->set_finished_us(since_received_us(times.finished_ns));
  return response;
}

}  // namespace tramontane
