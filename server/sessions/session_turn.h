// SessionTurn: one request's part in its session: what it found there, and what it leaves. Of a request that
// names no session it does nothing.
//
//   Begin -> NotePrompt -> NoteTokens, NoteDelta ... NoteFinished      or LetGo: the session stays as it was
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/output/token_stream.h"
#include "server/answers/answer_reader.h"
#include "server/call/caller.h"
#include "server/call/rpc_error.h"
#include "server/sessions/session_store.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class SessionTurn {
 public:
  // Takes the caller's session that the request names. Not OK: its name, a field that does not go with one,
  // it is in use, all are, or it is of another kind.
  RpcError Begin(SessionStore& store, const Caller& caller, const v1::GenerateRequest& request);
  const SessionState* found() const { return lease_.state(); }  // null: nothing yet, or no session

  // Whose the pages are that the request finds and leaves; null: it names no session.
  std::shared_ptr<const KvOwner> kv_owner() const { return next_.kv_owner; }

  // What was asked, once its prompt is known.
  void NotePrompt(const v1::GenerateRequest& request, std::span<const int32_t> prompt,
                  const ContextPolicy& policy);
  // What the model said: the ids of its choice, and what was made of them.
  void NoteTokens(std::span<const int32_t> ids);
  void NoteDelta(const v1::Delta& delta);
  // Keeps it all, where the request ended well.
  void NoteFinished(const StreamFinished& finished);

  void LetGo() { lease_.LetGo(); }

 private:
  void AddEvents(const AnswerEvents& events);
  void EndAnswer(FinishReason reason);

  SessionLease lease_;
  SessionState next_;
  // Of chats:
  std::optional<AnswerReader> reader_;  // where the answer may have calls
  bool only_calls_ = false;             // what is no whole call is no text either
  v1::ChatMessage answer_;
};

}  // namespace tramontane
