// Events of a call, as a server sends them, for tests of what becomes of them in answers.
#pragma once

#include <cstdint>
#include <string>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline v1::GenerateResponse Started(const std::string& model = "m", int64_t prompt_tokens = 3) {
  v1::GenerateResponse event;
  event.mutable_started()->set_model(model);
  event.mutable_started()->set_prompt_tokens(prompt_tokens);
  return event;
}

// One token with that text; its calls begin at that byte, -1: at none.
inline v1::GenerateResponse Said(const std::string& text, int32_t tool_calls_at = -1, int32_t choice = 0) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_text(text);
  event.mutable_delta()->set_choice(choice);
  event.mutable_delta()->set_completion_tokens(1);
  if (tool_calls_at >= 0) event.mutable_delta()->set_tool_calls_at(tool_calls_at);
  return event;
}

inline v1::GenerateResponse Finished(v1::FinishReason reason, int32_t choice = 0) {
  v1::GenerateResponse event;
  event.mutable_finished()->set_reason(reason);
  event.mutable_finished()->set_choice(choice);
  if (reason == v1::FINISH_REASON_ERROR) event.mutable_finished()->set_error_message("why");
  event.mutable_finished()->mutable_usage()->set_prompt_tokens(3);
  event.mutable_finished()->mutable_usage()->set_completion_tokens(2);
  return event;
}

}  // namespace tramontane
