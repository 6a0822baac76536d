#include "server/core/prompt_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/tokenizer/fill_in_middle.h"
#include "server/core/chat_from_proto.h"
#include "server/sessions/session_prompt.h"

namespace tramontane {
namespace {

// The bytes of the longest piece, or spelling of a control token: since each byte of text is covered by some
// token, a text has at least bytes / longest tokens. 0 where the vocabulary has no byte pieces: then one
// unknown token can stand for any length.
int64_t LongestPieceBytes(const Tokenizer& tokenizer) {
  int64_t longest = 0;
  bool has_bytes = false;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    has_bytes |= tokenizer.Kind(id) == PieceKind::kByte;
    const std::string_view text = tokenizer.IsControl(id) ? tokenizer.Piece(id) : tokenizer.PieceBytes(id);
    longest = std::max(longest, static_cast<int64_t>(text.size()));
  }
  return has_bytes ? longest : 0;
}

RpcError CheckLength(const std::string& path, int64_t tokens, const PromptRoom& room) {
  const int64_t context = room.context;
  const int64_t most = room.scores_only ? context : context - 1;  // room for one token of output
  if (tokens <= most) return {};
  return BeyondContext(
      FieldError(path, "is at least " + std::to_string(tokens) + " tokens long; the context of " +
                           std::to_string(context) + " leaves a prompt at most " + std::to_string(most)),
      tokens, context);
}

}  // namespace

RpcError BeyondContext(RpcError error, int64_t prompt_tokens, int64_t context) {
  error.reason = "CONTEXT_LENGTH_EXCEEDED";
  error.info = {{"prompt_tokens", std::to_string(prompt_tokens)}, {"context", std::to_string(context)}};
  return error;
}

PromptReader::PromptReader(const ServedModel& model)
    : model_(model),
      longest_piece_bytes_(LongestPieceBytes(*model.tokenizer)),
      answer_end_(model.chat_format->answer_syntax().end) {}

RpcError PromptReader::Read(const v1::GenerateRequest& proto, const PromptRoom& room,
                            const SessionState* session, std::vector<int32_t>* ids) const {
  std::string path;
  switch (proto.prompt_case()) {
    case v1::GenerateRequest::kText: {
      path = "text";
      const auto bytes = static_cast<int64_t>(proto.text().size() + proto.suffix().size());
      if (RpcError error = CheckBytes(path, bytes, room); !error.ok()) return error;
      if (RpcError error = TextIds(proto, ids); !error.ok()) return error;
      break;
    }
    case v1::GenerateRequest::kTokenIds: {
      path = "token_ids.ids";
      if (RpcError error = CheckIds(path, proto.token_ids().ids()); !error.ok()) return error;
      ids->assign(proto.token_ids().ids().begin(), proto.token_ids().ids().end());
      break;
    }
    case v1::GenerateRequest::kChat: {
      path = "chat";
      const int64_t shown = model_.chat_format->shows_all_texts() ? LeastTextBytes(proto.chat()) : 0;
      if (RpcError error = CheckBytes(path, shown, room); !error.ok()) return error;
      if (RpcError error = ChatIds(proto.chat(), session, ids); !error.ok()) return error;
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return FieldError("prompt", "is missing: exactly one of text, token_ids and chat is needed");
  }
  if (ids->empty()) return FieldError(path, "is empty: a prompt has at least one token");
  if (RpcError error = CheckLength(path, static_cast<int64_t>(ids->size()), room); !error.ok()) return error;
  const bool is_text = session != nullptr && !session->is_chat;
  return is_text ? CheckGoesOn(*session, path, *ids) : RpcError();
}

RpcError PromptReader::ReadCandidate(const std::string& path, const v1::Candidate& candidate, bool goes_on,
                                     std::vector<int32_t>* ids) const {
  switch (candidate.kind_case()) {
    case v1::Candidate::kText: {
      const PromptRoom room = {.context = model_.engine->limits().context, .scores_only = true};
      std::string_view text = candidate.text();
      if (RpcError error = CheckBytes(path + ".text", static_cast<int64_t>(text.size()), room); !error.ok())
        return error;
      const bool adds_space = model_.tokenizer->leading_space() != LeadingSpace::kKept;
      if (goes_on && adds_space && text.size() > 1 && text.front() == ' ') text.remove_prefix(1);
      StatusOr<std::vector<int32_t>> encoded = model_.tokenizer->Encode(text);
      if (!encoded.ok()) return FieldError(path + ".text", encoded.status().message());
      *ids = *std::move(encoded);
      break;
    }
    case v1::Candidate::kTokenIds:
      if (RpcError error = CheckIds(path + ".token_ids.ids", candidate.token_ids().ids()); !error.ok())
        return error;
      ids->assign(candidate.token_ids().ids().begin(), candidate.token_ids().ids().end());
      break;
    case v1::Candidate::KIND_NOT_SET:
      return FieldError(path, "is missing: exactly one of text and token_ids is needed");
  }
  return ids->empty() ? FieldError(path, "is empty: a candidate has at least one token") : RpcError();
}

RpcError PromptReader::ChatIds(const v1::Chat& chat, const SessionState* session,
                               std::vector<int32_t>* ids) const {
  const RenderIds render = [this](const v1::Chat& rendered_chat, std::vector<int32_t>* rendered_ids) {
    RenderedChat rendered;
    RpcError error = RenderChatProto(*model_.chat_format, rendered_chat, &rendered);
    *rendered_ids = std::move(rendered.ids);
    return error;
  };
  if (session == nullptr) return render(chat, ids);
  return GoOnWithChat(*session, chat, answer_end_, render, ids);
}

template <typename TextRequest>
RpcError PromptReader::TextIds(const TextRequest& proto, std::vector<int32_t>* ids) const {
  const bool add_bos = !proto.has_add_bos() || proto.add_bos();
  if (proto.has_suffix()) {
    if (proto.parse_special_tokens()) return FieldError("parse_special_tokens", "does not go with a suffix");
    auto filled = FillInMiddleIds(*model_.tokenizer, proto.text(), proto.suffix(), add_bos);
    if (!filled.ok()) return FieldError(filled.status().field(), filled.status().sentence());
    *ids = std::move(filled).value();
    return {};
  }
  StatusOr<std::vector<int32_t>> encoded = proto.parse_special_tokens()
                                               ? model_.tokenizer->EncodeWithControlTokens(proto.text())
                                               : model_.tokenizer->Encode(proto.text());
  if (!encoded.ok()) return FieldError("text", encoded.status().message());
  ids->clear();
  if (add_bos && model_.tokenizer->adds_bos()) ids->push_back(model_.tokenizer->bos_id());
  ids->insert(ids->end(), encoded->begin(), encoded->end());
  return {};
}

RpcError PromptReader::CheckIds(const std::string& path,
                                const google::protobuf::RepeatedField<int32_t>& ids) const {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model_.config.vocab_size) {
      return FieldError(FieldElement(path, static_cast<size_t>(i)),
                        "is " + std::to_string(ids[i]) + "; the vocabulary has the ids 0 to " +
                            std::to_string(model_.config.vocab_size - 1));
    }
  }
  return {};
}

// What is far too long is said to be without tokenising it.
RpcError PromptReader::CheckBytes(const std::string& path, int64_t bytes, const PromptRoom& room) const {
  return longest_piece_bytes_ == 0 ? RpcError() : CheckLength(path, bytes / longest_piece_bytes_, room);
}

template RpcError PromptReader::TextIds(const v1::GenerateRequest& proto, std::vector<int32_t>* ids) const;
template RpcError PromptReader::TextIds(const v1::TokenizeRequest& proto, std::vector<int32_t>* ids) const;

}  // namespace tramontane
