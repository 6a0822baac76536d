// EventConverter: the engine's events as messages of the .proto. Any thread: it does not change once made.
#pragma once

#include <cstdint>
#include <string>

#include "engine/output/token_stream.h"
#include "engine/request/request.h"
#include "models/chat/answer_syntax.h"
#include "server/answers/answer_splitter.h"
#include "server/call/served_model.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class EventConverter {
 public:
  explicit EventConverter(const ServedModel& model)  // borrowed
      : model_(model), answer_syntax_(model.chat_format->answer_syntax()) {}

  v1::GenerateResponse StartedToProto(const StreamStarted& started, const std::string& request_id) const;
  // Without `text` or `token_ids` that part stays empty.
  struct DeltaParts {
    bool text = true;
    bool token_ids = true;
  };
  // `splitter` is that of the delta's choice.
  v1::GenerateResponse DeltaToProto(StreamDelta delta, const DeltaParts& parts,
                                    AnswerSplitter* splitter) const;
  static v1::GenerateResponse FinishedToProto(const StreamFinished& finished, const AnswerSplitter& splitter);

  // Of a choice of that request, as RequestConverter::Generate filled it in.
  AnswerSplitter NewSplitter(const Request& request, bool is_chat) const;

 private:
  std::string TokenBytes(int32_t id, PieceUse use) const;
  void TokenInfoToProto(const TokenInfo& info, v1::TokenLogprob* proto) const;

  const ServedModel& model_;
  const AnswerSyntax answer_syntax_;
};

}  // namespace tramontane
