#include "server/remote/event_check.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/remote/answer_check.h"

namespace tramontane {
namespace {

constexpr int32_t kMostChoices = 1 << 10;  // more than any server takes
constexpr int64_t kMostIdleDeltas = 8;     // of a choice
constexpr int64_t kMostToldBytes = 4096;
constexpr float kMostLogprob = 0.01f;   // of a probability of 1, as it is rounded
constexpr int32_t kMostErrorCode = 16;  // of google.rpc.Code

std::string MoreThan(int64_t number, const std::string& of_what, int64_t most) {
  return std::to_string(number) + " " + of_what + ", the range is [0, " + std::to_string(most) + "]";
}

// Where a character begins, or at the end.
bool IsBorder(std::string_view text, int32_t at) {
  if (at < 0 || static_cast<size_t>(at) > text.size()) return false;
  return static_cast<size_t>(at) == text.size() ||
         (static_cast<uint8_t>(text[static_cast<size_t>(at)]) & 0xC0) != 0x80;
}

template <typename Token>
bool IsScored(const Token& token) {
  const size_t bytes = token.token_bytes().size() + token.piece().size();
  return token.token_id() >= 0 && token.logprob() <= kMostLogprob &&
         static_cast<int64_t>(bytes) <= kMostTokenBytes;
}

// `most_top`: how many of the likeliest were asked for.
std::string FaultOfLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens,
                            int32_t most_top) {
  for (const v1::TokenLogprob& token : tokens) {
    if (token.top_size() > most_top) return MoreThan(token.top_size(), "likeliest tokens", most_top);
    const bool are_scored =
        IsScored(token) && std::all_of(token.top().begin(), token.top().end(), IsScored<v1::TopLogprob>);
    if (!are_scored || token.rank() < 0) return "a logprob that is none";
  }
  return {};
}

v1::Started HeadOf(const v1::Started& started) {
  v1::Started head;
  head.set_request_id(started.request_id());
  head.set_model(started.model());
  head.set_prompt_tokens(started.prompt_tokens());
  head.set_cached_tokens(started.cached_tokens());
  head.set_seed(started.seed());
  return head;
}

std::string FaultOfHead(const v1::Started& head) {
  if (head.model().empty() || head.model().size() > kMostNameBytes)
    return "a Started whose model has no name, or a long one";
  if (head.request_id().size() > kMostNameBytes) return "a Started with a long id";
  if (head.prompt_tokens() < 0 || head.prompt_tokens() > kMostTokens)
    return MoreThan(head.prompt_tokens(), "tokens of the prompt", kMostTokens);
  if (head.cached_tokens() < 0 || head.cached_tokens() > head.prompt_tokens())
    return MoreThan(head.cached_tokens(), "cached tokens", head.prompt_tokens());
  return {};
}

}  // namespace

EventCheck::EventCheck(const v1::GenerateRequest& request, int64_t max_started_bytes)
    : request_(request),
      max_started_bytes_(max_started_bytes),
      max_tokens_(request.stopping().has_max_tokens() ? request.stopping().max_tokens() : kMostTokens),
      choices_(
          static_cast<size_t>(request.has_choices() ? std::clamp(request.choices(), 0, kMostChoices) : 1)) {}

std::string EventCheck::FaultOf(const v1::GenerateResponse& event) {
  if (event.has_started()) return FaultOfStarted(event.started());
  if (!event.has_delta() && !event.has_finished()) return "an event that is none";
  if (!has_started_) return "an event before the end of Started";
  const int32_t number = event.has_delta() ? event.delta().choice() : event.finished().choice();
  if (number < 0 || static_cast<size_t>(number) >= choices_.size()) {
    return "choice " + std::to_string(number) + " of " + std::to_string(choices_.size());
  }
  Choice& choice = choices_[static_cast<size_t>(number)];
  if (choice.finished) return "an event behind the Finished of its choice";
  return event.has_delta() ? FaultOfDelta(event.delta(), &choice)
                           : FaultOfFinished(event.finished(), &choice);
}

std::string EventCheck::FaultOfEnd() const {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].finished) return "an end without the Finished of choice " + std::to_string(i);
    if (choices_[i].cancelled) return "a good end, and choice " + std::to_string(i) + " was cancelled";
  }
  return {};
}

std::string EventCheck::FaultOfStarted(const v1::Started& started) {
  if (has_started_) return "a second Started";
  v1::Started head = HeadOf(started);
  const bool is_first = started_bytes_ == 0;
  started_bytes_ += static_cast<int64_t>(started.ByteSizeLong());
  if (max_started_bytes_ > 0 && started_bytes_ > max_started_bytes_) {
    return MoreThan(started_bytes_, "bytes of Started", max_started_bytes_);
  }
  int64_t told = 0;
  for (const auto* list : {&started.unenforced(), &started.ignored()}) {
    for (const std::string& part : *list) told += static_cast<int64_t>(part.size());
  }
  if (told > kMostToldBytes) {
    return MoreThan(told, "bytes of what is not enforced or ignored", kMostToldBytes);
  }
  if (is_first) {
    if (std::string fault = FaultOfHead(head); !fault.empty()) return fault;
    head_ = std::move(head);
  } else if (head.SerializeAsString() != head_.SerializeAsString()) {
    return "parts of a Started that differ";
  }
  return FaultOfPrompt(started);
}

std::string EventCheck::FaultOfPrompt(const v1::Started& started) {
  const v1::Output& output = request_.output();
  const int64_t tokens = head_.prompt_tokens();
  const int64_t most_logprobs = output.has_prompt_logprobs() ? std::max<int64_t>(0, tokens - 1) : 0;
  const int64_t most_prompt = output.prompt_tokens() ? tokens : 0;
  prompt_logprobs_ += started.prompt_logprobs_size();
  prompt_ += started.prompt_size();
  if (prompt_logprobs_ > most_logprobs)
    return MoreThan(prompt_logprobs_, "logprobs of the prompt", most_logprobs);
  if (prompt_ > most_prompt) return MoreThan(prompt_, "entries of the prompt", most_prompt);
  if (started.more() && started.prompt_logprobs().empty() && started.prompt().empty())
    return "a part of a Started that says nothing";
  has_started_ = !started.more();
  // One that has ended before its prompt was scored has no logprobs.
  const bool is_scored = prompt_logprobs_ == 0 || prompt_logprobs_ == most_logprobs;
  if (has_started_ && (!is_scored || prompt_ < most_prompt)) return "a Started that lacks a part";
  for (const v1::PromptToken& token : started.prompt()) {
    const auto bytes = static_cast<int64_t>(token.token_bytes().size());
    if (token.token_id() < 0 || bytes > kMostTokenBytes) return "a token of the prompt that is none";
  }
  return FaultOfLogprobs(started.prompt_logprobs(), output.prompt_logprobs());
}

std::string EventCheck::FaultOfDelta(const v1::Delta& delta, Choice* choice) const {
  if (delta.completion_tokens() < choice->completion_tokens || delta.completion_tokens() > max_tokens_) {
    return std::to_string(delta.completion_tokens()) + " tokens behind " +
           std::to_string(choice->completion_tokens) + ", the most are " + std::to_string(max_tokens_);
  }
  const v1::Output& output = request_.output();
  const int64_t gained =
      delta.completion_tokens() - std::exchange(choice->completion_tokens, delta.completion_tokens());
  const int64_t ids = !output.has_token_ids() || output.token_ids() ? gained : 0;
  const int64_t logprobs = output.has_logprobs() ? gained : 0;
  if (delta.token_ids_size() != ids)
    return std::to_string(delta.token_ids_size()) + " ids of " + std::to_string(ids) + " tokens";
  if (delta.logprobs_size() != logprobs)
    return std::to_string(delta.logprobs_size()) + " logprobs of " + std::to_string(logprobs) + " tokens";
  if (std::any_of(delta.token_ids().begin(), delta.token_ids().end(), [](int32_t id) { return id < 0; }))
    return "an id below 0";
  if (std::string fault = FaultOfText(delta, choice); !fault.empty()) return fault;
  const bool is_idle = gained == 0 && delta.text().empty() && delta.reasoning().empty() &&
                       delta.marks().empty() && !delta.has_tool_calls_at();
  if (is_idle && ++choice->idle_deltas > kMostIdleDeltas) return "Deltas that say nothing";
  return FaultOfLogprobs(delta.logprobs(), output.logprobs());
}

std::string EventCheck::FaultOfText(const v1::Delta& delta, Choice* choice) const {
  const std::string& text = delta.text();
  const bool is_wanted = !request_.output().has_text() || request_.output().text();
  if (!is_wanted && !(text.empty() && delta.reasoning().empty())) return "text that nobody asked for";
  choice->text_bytes += static_cast<int64_t>(text.size() + delta.reasoning().size());
  if (choice->text_bytes >
      kMostTokenBytes * (choice->completion_tokens + 1)) {  // the prompt's last character may go on
    return std::to_string(choice->text_bytes) + " bytes of text of " +
           std::to_string(choice->completion_tokens) + " tokens";
  }
  if (delta.has_tool_calls_at()) {
    const bool is_second = std::exchange(choice->has_tool_calls, true);
    if (is_second || !IsBorder(text, delta.tool_calls_at()))
      return "tool calls at " + std::to_string(delta.tool_calls_at()) + " of " + std::to_string(text.size()) +
             " bytes";
  }
  int32_t before = 0;
  for (const v1::Mark& mark : delta.marks()) {
    const bool is_known = mark.kind() >= v1::MARK_KIND_CALL && mark.kind() <= v1::MARK_KIND_ARGUMENTS;
    if (!is_known || mark.at() < before || !IsBorder(text, mark.at())) return "a mark that is none";
    before = mark.at();
  }
  choice->marks += delta.marks_size();
  if (choice->marks > choice->completion_tokens)
    return std::to_string(choice->marks) + " marks of " + std::to_string(choice->completion_tokens) +
           " tokens";
  return {};
}

std::string EventCheck::FaultOfFinished(const v1::Finished& finished, Choice* choice) const {
  choice->finished = true;
  choice->cancelled = finished.reason() == v1::FINISH_REASON_CANCELLED;
  const v1::Usage& usage = finished.usage();
  if (finished.reason() < v1::FINISH_REASON_STOP || finished.reason() > v1::FINISH_REASON_ERROR)
    return "a Finished without a reason that is one";
  if (finished.error_code() < 0 || finished.error_code() > kMostErrorCode)
    return "a Finished with the error code " + std::to_string(finished.error_code());
  if (std::string fault = NumberFault(finished); !fault.empty()) return fault;
  if (usage.prompt_tokens() != head_.prompt_tokens()) return "a usage of another prompt";
  if (usage.completion_tokens() < choice->completion_tokens || usage.completion_tokens() > max_tokens_ ||
      usage.reasoning_tokens() > usage.completion_tokens()) {
    return "a usage of " + std::to_string(usage.completion_tokens()) + " tokens behind " +
           std::to_string(choice->completion_tokens);
  }
  const auto& stops = request_.stopping().stop();
  if (finished.has_stop() && std::find(stops.begin(), stops.end(), finished.stop()) == stops.end())
    return "a stop that was not asked for";
  return {};
}

}  // namespace tramontane
