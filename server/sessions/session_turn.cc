#include "server/sessions/session_turn.h"

#include <utility>

#include "server/answers/must_call.h"
#include "server/sessions/session_prompt.h"

namespace tramontane {
namespace {

bool EndedWell(FinishReason reason) {
  return reason != FinishReason::kCancelled && reason != FinishReason::kError;
}

}  // namespace

RpcError SessionTurn::Begin(SessionStore& store, const Caller& caller, const v1::GenerateRequest& request) {
  if (request.session().empty()) return {};
  if (RpcError error = CheckSessionFields(request); !error.ok()) return error;
  if (RpcError error = store.Take({caller.identity, request.session()}, &lease_); !error.ok()) return error;
  return found() == nullptr ? RpcError() : CheckSessionKind(*found(), request);
}

void SessionTurn::NotePrompt(const v1::GenerateRequest& request, std::span<const int32_t> prompt,
                             const ContextPolicy& policy) {
  if (!lease_.held()) return;
  next_.ids.assign(prompt.begin(), prompt.end());
  next_.cache_salt = request.cache_salt();
  next_.context_policy = policy;
  const bool has_owner = found() != nullptr && found()->kv_owner != nullptr;
  next_.kv_owner = has_owner ? found()->kv_owner : std::make_shared<const KvOwner>();
  next_.is_chat = request.has_chat();
  if (!next_.is_chat) return;
  next_.chat = request.chat();
  const v1::Chat& chat = next_.chat;
  answer_.set_role(v1::ROLE_ASSISTANT);
  only_calls_ = MustCallTools(chat);
  const bool one_call = chat.has_parallel_tool_calls() && !chat.parallel_tool_calls();
  if (chat.tools_size() > 0 && chat.tool_choice().mode() != v1::TOOL_CHOICE_MODE_NONE) {
    reader_.emplace(AnswerReader::Options{.id_seed = "", .one_call = one_call});
  }
}

void SessionTurn::NoteTokens(std::span<const int32_t> ids) {
  if (lease_.held()) next_.ids.insert(next_.ids.end(), ids.begin(), ids.end());
}

void SessionTurn::NoteDelta(const v1::Delta& delta) {
  if (!lease_.held() || !next_.is_chat) return;
  if (reader_) return AddEvents(reader_->Read(delta));
  answer_.mutable_content()->append(delta.text());
}

// The ids of calls are drawn by the door, or by a client of gRPC for itself.
void SessionTurn::AddEvents(const AnswerEvents& events) {
  for (const AnswerEvent& event : events) {
    if (const auto* text = std::get_if<AnswerText>(&event)) answer_.mutable_content()->append(text->bytes);
    if (const auto* call = std::get_if<CallBegins>(&event)) answer_.add_tool_calls()->set_name(call->name);
    if (const auto* piece = std::get_if<CallArguments>(&event)) {
      answer_.mutable_tool_calls()->rbegin()->mutable_arguments_json()->append(piece->bytes);
    }
    const auto* end = std::get_if<CallEnds>(&event);
    if (end != nullptr && !end->is_whole) answer_.mutable_tool_calls()->RemoveLast();
  }
}

// An answer that says nothing is no message: formats leave it out, so that nothing could follow it.
void SessionTurn::NoteFinished(const StreamFinished& finished) {
  if (!lease_.held()) return;
  if (!EndedWell(finished.reason)) return lease_.LetGo();
  if (next_.is_chat) {
    EndAnswer(finished.reason);
    if (answer_.content().empty() && answer_.tool_calls().empty()) return lease_.LetGo();
    *next_.chat.add_messages() = std::move(answer_);
  } else if (finished.stop_token_id >= 0 && !next_.ids.empty() &&
             next_.ids.back() == finished.stop_token_id) {
    next_.ids.pop_back();  // it ended the text: what goes on from the text may do without it
  }
  lease_.Keep(std::move(next_));
}

void SessionTurn::EndAnswer(FinishReason reason) {
  using End = AnswerReader::End;
  if (reader_) AddEvents(reader_->Finish(reason == FinishReason::kStop ? End::kOfTheModel : End::kCutOff));
  if (only_calls_) answer_.clear_content();
}

}  // namespace tramontane
