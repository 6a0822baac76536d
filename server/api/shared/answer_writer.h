// AnswerWriter: what an answer says, whatever its dialect. The events of calls become those of choices: text,
// tool calls, an end. A dialect's writer is a subclass that prints them.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answers/answer_reader.h"
#include "server/api/shared/generation.h"
#include "server/api/shared/generation_request.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Why a choice ended that ended well.
enum class AnswerEnd {
  kStop,          // the model was done
  kStopSequence,  // a stop text or token, and no call
  kToolCalls,     // the model was done, or stopped by one of these, and it has called
  kLimit,         // it was cut off, whatever it had called before; by a stop too, within a call
};

// Tokens so far, of all choices.
struct AnswerUsage {
  int64_t prompt_tokens = 0;  // each prompt once, however many choices it has
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of these; of choices that have ended
  // Out of sight at the end of choices that have ended; unset where no context policy holds.
  std::optional<int64_t> discarded_tokens;
};

// Choices of one answer are numbered through: those of its first call, then those of its second.
class AnswerWriter : public ResponseWriter {
 public:
  AnswerWriter(AnswerOptions options, std::vector<FieldNames> names);  // one of names for each call

  std::string OnEvents(size_t call, std::vector<v1::GenerateResponse> events) final;
  ApiError Explain(size_t call, const RpcError& error) const final { return names_[call].Explain(error); }
  std::optional<ApiError> Fault() const final { return fault_; }
  bool HasContent() const final { return has_content_; }
  void SetTiming(const v1::Timings& timing) final { timing_ = timing; }
  int64_t held_bytes() const final;

 protected:
  // Until its end.
  virtual bool HoldsAnswer() const { return !options_.stream; }

  // Each appends what is to be sent now; where nothing is streamed, nothing. Of one choice: OnText,
  // OnReasoning and those of calls in the order in which it says them, then OnFinished or OnFailed.

  virtual void OnStarted(size_t call, const v1::Started& started, std::string* out) = 0;
  // `delta`: where the text came from, for what goes with its tokens; the text may be empty, and lag behind
  // the tokens. Null: of tokens that were told before, with calls or when the text was held back.
  virtual void OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out) = 0;
  // What the model thought, before the OnText of the same delta; never part of a text. Of chats only.
  virtual void OnReasoning(size_t /*choice*/, std::string_view /*text*/, std::string* /*out*/) {}
  // A call, as answer_reader.h has it: begun, a piece of its arguments, whole or cut. Only where
  // options().tools.
  virtual void OnCallBegins(size_t /*choice*/, const CallBegins& /*call*/, std::string* /*out*/) {}
  virtual void OnCallArguments(size_t /*choice*/, std::string_view /*bytes*/, std::string* /*out*/) {}
  virtual void OnCallEnds(size_t /*choice*/, bool /*is_whole*/, std::string* /*out*/) {}
  virtual void OnFinished(size_t choice, AnswerEnd end, const v1::Finished& finished, std::string* out) = 0;
  // The choice ended with an error. Returns what the request is told; the first is its Fault.
  virtual ApiError OnFailed(size_t choice, const v1::Finished& finished, std::string* out) = 0;

  // What the choice failed of, in the words of the request.
  ApiError FaultOf(size_t choice, const v1::Finished& finished) const;

  // What of a choice was held back: it has ended. OnFinished comes behind it; OnFailed may ask for it.
  void Release(size_t choice, AnswerReader::End end, std::string* out);

  const AnswerOptions& options() const { return options_; }
  const std::string& model() const { return model_; }  // after the first Started
  const AnswerUsage& usage() const { return usage_; }
  const std::optional<v1::Finished>& ended() const { return ended_; }   // the choice that ended last
  const std::optional<v1::Timings>& timing() const { return timing_; }  // nothing: nobody asked
  size_t choices() const { return completion_tokens_.size(); }          // of all calls
  size_t FirstChoice(size_t call) const { return call * static_cast<size_t>(options_.choices); }

 private:
  void Tell(size_t choice, const AnswerEvents& events, const v1::Delta* delta, std::string* out);
  void TellText(size_t choice, std::string_view text, const v1::Delta* delta, std::string* out);
  void AddDelta(size_t choice, const v1::Delta& delta, std::string* out);
  void End(size_t choice, const v1::Finished& finished, std::string* out);
  void Count(size_t choice, int64_t completion_tokens);
  void CountBytes(const v1::Started& started);
  void CountBytes(const v1::Delta& delta);

  const AnswerOptions options_;
  const std::vector<FieldNames> names_;
  std::string model_;
  AnswerUsage usage_;
  bool has_content_ = false;
  int64_t answer_bytes_ = 0;
  std::optional<v1::Finished> ended_;
  std::optional<v1::Timings> timing_;
  std::vector<int64_t> completion_tokens_;  // [choices]
  std::vector<AnswerReader> readers_;       // [choices], where there can be calls; else []
  std::optional<ApiError> fault_;           // of the first choice that ended with an error
};

}  // namespace tramontane
