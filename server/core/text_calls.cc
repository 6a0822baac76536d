#include "server/core/text_calls.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "server/call/answer_cost.h"
#include "server/core/answer_bound.h"
#include "server/core/chat_from_proto.h"
#include "server/core/model_info.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxTokenizeBytes = 6 << 20;  // of a text or chat that is only tokenised; more: refused

RpcError CheckTokenizeBytes(const std::string& path, int64_t bytes) {
  if (bytes <= kMaxTokenizeBytes) return {};
  return FieldError(path, "has " + std::to_string(bytes) + " bytes; at most " +
                              std::to_string(kMaxTokenizeBytes) + " are tokenised at once");
}

// `bytes`: of the answer, on its way to the client (server/call/answer_cost.h).
RpcError CheckAnswer(const std::string& path, const std::string& what, int64_t bytes, int64_t most) {
  if (most == 0 || bytes <= most) return {};
  return AnswerTooLarge(path, what, bytes, most);
}

std::string TokensText(size_t tokens) { return std::to_string(tokens) + " tokens"; }

}  // namespace

RpcError TextCalls::Tokenize(const v1::TokenizeRequest& proto, v1::TokenizeResponse* response) const {
  if (RpcError error = CheckModelName(model_, proto.model()); !error.ok()) return error;
  std::vector<int32_t> ids;
  switch (proto.input_case()) {
    case v1::TokenizeRequest::kText: {
      const auto bytes = static_cast<int64_t>(proto.text().size() + proto.suffix().size());
      if (RpcError error = CheckTokenizeBytes("text", bytes); !error.ok()) return error;
      if (RpcError error = prompts_.TextIds(proto, &ids); !error.ok()) return error;
      break;
    }
    case v1::TokenizeRequest::kChat: {
      if (proto.has_add_bos()) return FieldError("add_bos", "goes with text only");
      if (proto.has_suffix()) return FieldError("suffix", "goes with text only");
      if (proto.parse_special_tokens()) return FieldError("parse_special_tokens", "goes with text only");
      const int64_t bytes = LeastTextBytes(proto.chat());
      if (RpcError error = CheckTokenizeBytes("chat", bytes); !error.ok()) return error;
      RenderedChat rendered;
      if (RpcError error = RenderChatProto(*model_.chat_format, proto.chat(), &rendered); !error.ok())
        return error;
      ids = std::move(rendered.ids);
      break;
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      return FieldError("input", "is missing: exactly one of text and chat is needed");
  }
  const std::string path = proto.pieces() ? "pieces" : proto.has_chat() ? "chat" : "text";
  const std::string what =
      proto.pieces() ? "is true for " + TokensText(ids.size()) : "has " + TokensText(ids.size());
  const int64_t token_bytes = kTokenBytes + (proto.pieces() ? kPieceBytes : 0);
  RpcError error = CheckAnswer(path, what, std::ssize(ids) * token_bytes, model_.max_answer_bytes);
  if (!error.ok()) return error;
  response->mutable_token_ids()->Reserve(static_cast<int>(ids.size()));
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  if (!proto.pieces()) return {};
  response->mutable_pieces()->Reserve(static_cast<int>(ids.size()));
  for (const int32_t id : ids) response->add_pieces(PieceText(*model_.tokenizer, id));
  return {};
}

RpcError TextCalls::Detokenize(const v1::DetokenizeRequest& proto, v1::DetokenizeResponse* response) const {
  if (RpcError error = CheckModelName(model_, proto.model()); !error.ok()) return error;
  if (RpcError error = prompts_.CheckIds("token_ids", proto.token_ids()); !error.ok()) return error;
  const bool skip_special = !proto.has_skip_special_tokens() || proto.skip_special_tokens();
  std::string bytes;
  MessageBytes message(*model_.tokenizer);
  for (const int32_t id : proto.token_ids()) {
    bytes +=
        !skip_special && model_.tokenizer->IsControl(id) ? model_.tokenizer->Piece(id) : message.Next(id);
    const int64_t most = model_.max_answer_bytes;
    const auto text_bytes = static_cast<int64_t>(bytes.size()) * kTextCopies;
    if (most > 0 && text_bytes > most) {
      return AnswerTooLarge("token_ids", "has " + std::to_string(proto.token_ids_size()) + " entries",
                            text_bytes, most);
    }
  }
  response->set_text(ReplaceInvalidUtf8(bytes));
  return {};
}

RpcError TextCalls::RenderChat(const v1::RenderChatRequest& proto, v1::RenderChatResponse* response) const {
  if (RpcError error = CheckModelName(model_, proto.model()); !error.ok()) return error;
  if (!proto.has_chat()) return FieldError("chat", "is missing");
  const int64_t bytes = LeastTextBytes(proto.chat());
  if (RpcError error = CheckTokenizeBytes("chat", bytes); !error.ok()) return error;
  RenderedChat rendered;
  if (RpcError error = RenderChatProto(*model_.chat_format, proto.chat(), &rendered); !error.ok())
    return error;
  const int64_t answer_bytes =
      std::ssize(rendered.ids) * kTokenBytes + std::ssize(rendered.text) * kTextCopies;
  RpcError error =
      CheckAnswer("chat", "has " + TokensText(rendered.ids.size()), answer_bytes, model_.max_answer_bytes);
  if (!error.ok()) return error;
  response->mutable_token_ids()->Reserve(static_cast<int>(rendered.ids.size()));
  response->mutable_token_ids()->Add(rendered.ids.begin(), rendered.ids.end());
  response->set_text(ReplaceInvalidUtf8(rendered.text));
  return {};
}

}  // namespace tramontane
