#include "engine/output/output_processor.h"

#include <string>
#include <utility>

namespace tramontane {
namespace {

constexpr int64_t kBehindBytes = 64 << 10;  // a reader that does not take these is behind

StreamDelta DeltaOf(const ChoiceOutput& output, const ChoiceText& text, ChoiceText::Shown shown) {
  return {.choice = output.choice,
          .text = std::move(shown.text),
          .completion_tokens = text.tokens(),
          .marks = std::move(shown.marks)};
}

}  // namespace

OutputProcessor::OutputProcessor(const EngineLimits& limits, Signal& engine_wake,
                                 std::function<void()> on_done)
    : most_unread_tokens_(limits.unread_tokens()),
      most_unread_bytes_(limits.max_unread_bytes),
      engine_wake_(engine_wake),
      on_done_(std::move(on_done)),
      metrics_(limits.context),
      ring_(static_cast<size_t>(limits.output_queue_steps)),
      thread_([this] { Run(); }) {}

OutputProcessor::~OutputProcessor() {
  stopping_.store(true, std::memory_order_release);
  wake_.Notify();
  thread_.join();
}

void OutputProcessor::Run() {
  while (true) {
    const bool stopping = stopping_.load(std::memory_order_acquire);  // before the last look at the ring
    StepOutput* step = ring_.Front();
    if (step == nullptr) {
      if (stopping) return;
      wake_.Wait(Signal::kForever);
      continue;
    }
    for (ChoiceOutput& output : *step) Deliver(output);
    step->clear();
    ring_.Pop();
    engine_wake_.Notify();
  }
}

void OutputProcessor::Deliver(ChoiceOutput& output) {
  if (output.started) {
    const Request& request = output.request->request;
    const bool has_begun = output.timings.first_chunk_ns != 0;
    if (has_begun && request.counted != nullptr) request.counted->prompt += std::ssize(request.prompt);
    output.request->stream->PutStarted(std::move(*output.started));
  }
  ChoiceText& text = output.request->texts[static_cast<size_t>(output.choice)];
  if (text.finished()) return;  // computed beyond a stop string
  const std::string* stop = output.token ? DeliverToken(output, text) : nullptr;
  if (stop != nullptr || output.end) FinishChoice(output, text, stop);
}

const std::string* OutputProcessor::DeliverToken(ChoiceOutput& output, ChoiceText& text) {
  const Request& request = output.request->request;
  // An ending token has no text; a stop token's own is kept by include_stop, eos never is.
  const bool ends_by_id = output.end && output.end->stop_token_id >= 0;
  const bool shown =
      !ends_by_id || (request.stopping.include_stop && output.end->reason != FinishReason::kStop);
  int64_t& last_token_ns = output.request->last_token_ns[static_cast<size_t>(output.choice)];
  const int64_t token_ns = output.timings.finished_ns;  // of the step that computed it
  metrics_.OnToken(request, output.choice, output.timings, token_ns, std::exchange(last_token_ns, token_ns));

  ChoiceText::Shown gain;
  const auto spelling = shown ? ChoiceText::Spelling::kShown : ChoiceText::Spelling::kHidden;
  output.token->use = text.UseOf(output.token->token, spelling);
  const std::string* stop = text.Append(output.token->token, spelling, &gain);
  if (stop == nullptr && output.end) stop = text.Flush(&gain);
  StreamDelta delta = DeltaOf(output, text, std::move(gain));
  delta.token_ids = {output.token->token};
  if (request.output.logprobs >= 0) delta.logprobs.push_back(*std::move(output.token));
  RequestOutput& live = *output.request;
  const Unread unread = live.stream->PutDelta(std::move(delta), output.timings, output.usage);
  std::string fault = live.outcome.ok() ? UnreadFault(unread, output.choice) : "";
  if (!fault.empty()) {
    live.outcome = ResourceExhausted(std::move(fault));
    live.stream->Cancel();  // the engine ends what is cancelled within a step
  }
  return stop;
}

std::string OutputProcessor::UnreadFault(const Unread& unread, int32_t choice) const {
  const bool is_too_far = unread.tokens > most_unread_tokens_;
  const bool is_behind = unread.bytes_of_all > most_unread_bytes_ && unread.bytes >= kBehindBytes;
  if (!is_too_far && !is_behind) return "";
  const std::string reader = "the reader of choice " + std::to_string(choice) + " is ";
  if (is_too_far) {
    return reader + "more than " + std::to_string(most_unread_tokens_) +
           " tokens behind, which is the limit (max_unread_tokens)";
  }
  return reader + std::to_string(unread.bytes) + " bytes behind, and all readers together more than " +
         std::to_string(most_unread_bytes_) + ", which is the limit";
}

void OutputProcessor::FinishChoice(const ChoiceOutput& output, ChoiceText& text, const std::string* stop) {
  RequestOutput& request = *output.request;
  text.set_finished();

  StreamFinished finished;
  finished.choice = output.choice;
  finished.usage = output.usage;
  finished.usage.completion_tokens = text.tokens();
  finished.timings = output.timings;
  if (stop != nullptr) {
    finished.reason = FinishReason::kStopSequence;
    finished.stop_string = *stop;
    request.stopped_by_text[static_cast<size_t>(output.choice)].store(true, std::memory_order_release);
  } else {
    finished.reason = output.end->reason;
    finished.stop_token_id = output.end->stop_token_id;
    if (finished.reason == FinishReason::kError) finished.status = output.end->status;
    if (request.outcome.ok()) request.outcome = output.end->status;
    if (!output.token) FlushHeldText(output, text);
  }
  const int64_t last_token_ns = request.last_token_ns[static_cast<size_t>(output.choice)];
  metrics_.OnChoiceFinished(finished.reason, request.request, finished.timings, last_token_ns, text.tokens());
  const bool is_last = ++request.choices_finished == request.request.choices;
  if (is_last && OutputMetrics::EndsWell(finished.reason))
    metrics_.OnRequestFinished(request.request, finished.usage, request.most_tokens());
  request.stream->PutFinished(std::move(finished));

  if (!is_last) return;
  on_done_();
  request.stream->PutDone(request.outcome);
}

void OutputProcessor::FlushHeldText(const ChoiceOutput& output, ChoiceText& text) {
  ChoiceText::Shown held;
  text.Flush(&held);
  if (held.text.empty() && held.marks.empty()) return;
  output.request->stream->PutDelta(DeltaOf(output, text, std::move(held)), output.timings, output.usage);
}

}  // namespace tramontane
