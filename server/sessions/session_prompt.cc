#include "server/sessions/session_prompt.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

constexpr char kSession[] = "session";
constexpr char kMessages[] = "chat.messages";

RpcError Differs(std::string path, std::string sentence, int64_t index) {
  RpcError error =
      ToRpcError(Status(StatusCode::kFailedPrecondition, std::move(sentence)).WithField(std::move(path)));
  error.reason = "SESSION_DIFFERS";
  error.info = {{"index", std::to_string(index)}};
  return error;
}

RpcError CannotGoOn(std::string sentence) {
  RpcError error =
      ToRpcError(Status(StatusCode::kFailedPrecondition, std::move(sentence)).WithField(kSession));
  error.reason = "SESSION_CANNOT_GO_ON";
  return error;
}

// What an assistant said, whether it came as content or as parts, without what it thought.
std::string SaidText(const v1::ChatMessage& message) {
  std::string text = message.content();
  for (const v1::ContentPart& part : message.parts()) text += part.text();
  return text;
}

// An id that the session does not know is whatever the client was told by its door.
bool IsSameCall(const v1::ToolCall& own, const v1::ToolCall& call) {
  const auto arguments = [](const v1::ToolCall& of) {
    return of.arguments_json().empty() ? std::string("{}") : of.arguments_json();
  };
  return own.name() == call.name() && arguments(own) == arguments(call) &&
         (own.id().empty() || own.id() == call.id());
}

// Beside calls the text may be left out: formats that cannot hold both do so too.
bool IsSameAnswer(const v1::ChatMessage& own, const v1::ChatMessage& message) {
  const bool same_calls = std::equal(own.tool_calls().begin(), own.tool_calls().end(),
                                     message.tool_calls().begin(), message.tool_calls().end(), IsSameCall);
  const std::string text = SaidText(message);
  const bool same_text = text == SaidText(own) || (text.empty() && !own.tool_calls().empty());
  return same_calls && same_text;
}

bool IsSameMessage(const v1::ChatMessage& own, const v1::ChatMessage& message) {
  if (own.role() != message.role()) return false;
  if (own.role() == v1::ROLE_ASSISTANT) return IsSameAnswer(own, message);
  return own.SerializeAsString() == message.SerializeAsString();
}

// What the assistant says in a session was said here.
RpcError CheckNewRoles(const v1::Chat& chat, int first) {
  for (int i = first; i < chat.messages_size(); ++i) {
    if (chat.messages(i).role() != v1::ROLE_ASSISTANT) continue;
    return Differs(std::string(kMessages) + "[" + std::to_string(i) + "]",
                   "is the assistant's, and not among the session's " + std::to_string(first) +
                       " messages; behind them come a user's, a tool's or a system's",
                   i);
  }
  return {};
}

RpcError CheckMessages(const v1::Chat& own, const v1::Chat& chat) {
  const int count = own.messages_size();
  const auto [first_own, first] =
      std::mismatch(own.messages().begin(), own.messages().end(), chat.messages().begin(),
                    chat.messages().end(), IsSameMessage);
  const auto index = static_cast<int>(first - chat.messages().begin());
  const std::string path = std::string(kMessages) + "[" + std::to_string(index) + "]";
  if (first_own == own.messages().end()) {
    if (first != chat.messages().end()) return CheckNewRoles(chat, index);
    return Differs(
        path, "is missing: the session holds " + std::to_string(count) + " messages, and none follows them",
        index);
  }
  if (first == chat.messages().end()) {
    return Differs(path, "is missing: the session holds " + std::to_string(count) + " messages", index);
  }
  return Differs(path, "is not the message that the session holds in its place", index);
}

// Ids of a session's chat where the model began its last answer, and of the chat that goes on.
struct Rendered {
  std::vector<int32_t> before;
  std::vector<int32_t> whole;

  // -1: `whole` begins with `before`.
  int64_t FirstThatDiffers() const {
    const auto at = std::mismatch(before.begin(), before.end(), whole.begin(), whole.end()).first;
    return at == before.end() ? -1 : at - before.begin();
  }
};

RpcError RenderBoth(v1::Chat own, const v1::Chat& chat, const RenderIds& render, Rendered* rendered) {
  own.mutable_messages()->RemoveLast();
  if (RpcError error = render(own, &rendered->before); !error.ok()) return error;
  return render(chat, &rendered->whole);
}

bool HidesTools(const v1::Chat& chat) { return chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NONE; }

bool HasSameTools(const v1::Chat& own, const v1::Chat& chat) {
  return HidesTools(own) == HidesTools(chat) &&
         std::equal(own.tools().begin(), own.tools().end(), chat.tools().begin(), chat.tools().end(),
                    [](const v1::Tool& a, const v1::Tool& b) {
                      return a.SerializeAsString() == b.SerializeAsString();
                    });
}

// What some formats put in front of the last question, wherever it was given: the system's messages and the
// tools. In the session's ids it stands where it was said, so what is put behind them need not say it again.
// `own` and `chat`, which begins with its messages, are without it then; false: they have none.
bool LeaveOutWhatMoves(v1::Chat* own, v1::Chat* chat) {
  bool has_any = false;
  const int count = own->messages_size();
  for (int i = count; i-- > 0;) {
    if (own->messages(i).role() != v1::ROLE_SYSTEM) continue;
    own->mutable_messages()->DeleteSubrange(i, 1);
    chat->mutable_messages()->DeleteSubrange(i, 1);
    has_any = true;
  }
  if (own->tools().empty() || !HasSameTools(*own, *chat)) return has_any;
  for (v1::Chat* of : {own, chat}) {
    of->clear_tools();
    of->clear_tool_choice();
    of->clear_parallel_tool_calls();
  }
  return true;
}

// With what moves where it does not, else without it.
RpcError RenderGoingOn(const v1::Chat& session, const v1::Chat& chat, const RenderIds& render,
                       Rendered* rendered) {
  if (RpcError error = RenderBoth(session, chat, render, rendered); !error.ok()) return error;
  const int64_t differs = rendered->FirstThatDiffers();
  if (differs < 0) return {};
  v1::Chat own = session;
  v1::Chat without = chat;
  const bool can_be_without = LeaveOutWhatMoves(&own, &without) &&
                              RenderBoth(own, without, render, rendered).ok() &&
                              rendered->FirstThatDiffers() < 0;
  if (can_be_without) return {};
  return CannotGoOn(
      "cannot go on: with what was added, or asked otherwise, the chat format renders its messages "
      "differently from token " +
      std::to_string(differs) + " on; begin another session");
}

}  // namespace

RpcError CheckSessionFields(const v1::GenerateRequest& request) {
  if (const std::string fault = SessionNameFault(request.session()); !fault.empty()) {
    return FieldError(kSession, fault);
  }
  if (request.has_choices() && request.choices() != 1) {
    return FieldError("choices",
                      "is " + std::to_string(request.choices()) + "; with a session the most is 1");
  }
  if (!request.has_chat()) return {};
  if (request.output().has_text() && !request.output().text()) {
    return FieldError("output.text", "is false; the session of a chat keeps the text of its answers");
  }
  const int last = request.chat().messages_size() - 1;
  if (last < 0 || !request.chat().messages(last).prefix()) return {};
  return FieldError(std::string(kMessages) + "[" + std::to_string(last) + "].prefix",
                    "does not go with a session, whose answers are whole messages");
}

RpcError CheckSessionKind(const SessionState& session, const v1::GenerateRequest& request) {
  if (session.cache_salt != request.cache_salt()) {
    return Differs("cache_salt", "is not the one that the session was begun with", 0);
  }
  if (session.is_chat == request.has_chat()) return {};
  return Differs(kSession,
                 session.is_chat ? "is a chat, and the prompt is none" : "is no chat, and the prompt is one",
                 0);
}

RpcError CheckSessionPolicy(const SessionState& session, const ContextPolicy& policy) {
  if (session.context_policy == policy) return {};
  return Differs("context_policy",
                 "is " + ContextPolicyText(policy) + ", and the session was begun with " +
                     ContextPolicyText(session.context_policy),
                 0);
}

RpcError CheckGoesOn(const SessionState& session, const std::string& path,
                     const std::vector<int32_t>& prompt) {
  const auto [own, given] =
      std::mismatch(session.ids.begin(), session.ids.end(), prompt.begin(), prompt.end());
  if (own == session.ids.end()) return {};
  const auto index = own - session.ids.begin();
  const std::string is = given == prompt.end() ? "ends there" : "is " + std::to_string(*given);
  return Differs(path,
                 "does not go on from the session: token " + std::to_string(index) + " of its " +
                     std::to_string(session.ids.size()) + " is " + std::to_string(*own) +
                     ", and the prompt " + is,
                 index);
}

RpcError GoOnWithChat(const SessionState& session, const v1::Chat& chat, int32_t end, const RenderIds& render,
                      std::vector<int32_t>* ids) {
  if (RpcError error = CheckMessages(session.chat, chat); !error.ok()) return error;
  Rendered rendered;
  if (RpcError error = RenderGoingOn(session.chat, chat, render, &rendered); !error.ok()) return error;
  const std::vector<int32_t>& whole = rendered.whole;
  const auto in_whole = whole.begin() + std::ssize(rendered.before);
  // Texts have no control tokens, so that the first one behind the question ends the answer to it.
  const auto answer_end = std::find(in_whole, whole.end(), end);
  if (end < 0 || answer_end == whole.end()) {
    return CannotGoOn("cannot go on: the chat format does not say where its last answer ends");
  }
  const bool has_end = !session.ids.empty() && session.ids.back() == end;
  *ids = session.ids;
  ids->insert(ids->end(), has_end ? answer_end + 1 : answer_end, whole.end());
  return {};
}

}  // namespace tramontane
