// ProtoConverter: what stands between the messages of the .proto and the engine, one part for each kind of
// message.
//
// Any thread: nothing of it changes once made. No gRPC in here, so it is tested alone.
#pragma once

#include "server/call/served_model.h"
#include "server/core/event_convert.h"
#include "server/core/prompt_reader.h"
#include "server/core/request_convert.h"
#include "server/core/text_calls.h"

namespace tramontane {

struct ProtoConverter {
  explicit ProtoConverter(const ServedModel& model)  // borrowed
      : prompts(model), texts(model, prompts), requests(model, prompts), events(model) {}
  ProtoConverter(const ProtoConverter&) = delete;
  ProtoConverter& operator=(const ProtoConverter&) = delete;

  const PromptReader prompts;
  const TextCalls texts;
  const RequestConverter requests;
  const EventConverter events;
};

}  // namespace tramontane
