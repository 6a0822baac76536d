#include "models/chat/chat_turns.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

constexpr std::string_view kBetweenMessages = "\n\n";

// Joins the contents of messages as mistral-common does: texts of one message by what the format puts between
// parts, those of several by a blank line. Empty texts go, and thinking stands between texts on its own.
class ContentJoiner {
 public:
  ContentJoiner(const MistralFormat& format, std::vector<ContentPart>* joined)
      : between_parts_(format.between_parts), joined_(joined) {}

  void Add(const ChatMessage& message) {
    separator_ = kBetweenMessages;
    if (message.content) AddText(*message.content);
    for (const ContentPart& part : message.parts) {
      if (part.kind == ContentPart::Kind::kThinking) {
        joined_->push_back(part);
      } else {
        AddText(part.text);
      }
    }
  }

 private:
  void AddText(std::string_view text) {
    if (text.empty()) return;
    if (joined_->empty() || joined_->back().kind == ContentPart::Kind::kThinking) {
      joined_->emplace_back();
    } else {
      joined_->back().text += separator_;
    }
    joined_->back().text += text;
    separator_ = between_parts_;
  }

  std::string_view between_parts_;
  std::string_view separator_;
  std::vector<ContentPart>* joined_;
};

std::string TextOf(const MistralFormat& format, const ChatMessage& message) {
  ChatTurn turn;
  ContentJoiner(format, &turn.content).Add(message);
  return turn.Text();
}

// A JSON text as Python prints it; what is not JSON becomes a JSON string.
StatusOr<std::string> JsonOrString(const std::string& label, std::string_view text) {
  std::string json;
  StatusOr<JsonValue> value = ParsePythonJson(text.empty() ? "{}" : text);
  if (value.ok()) {
    AppendPythonJson(*value, &json);
  } else if (value.status().code() == StatusCode::kInvalidArgument) {
    AppendPythonJsonString(text, &json);
  } else {
    return ChatFault(label, value.status().message());
  }
  return json;
}

// The empty ones too.
std::string JoinParagraphs(std::span<const std::string> paragraphs) {
  std::string text;
  for (const std::string& paragraph : paragraphs) {
    if (&paragraph != &paragraphs.front()) text += "\n\n";
    text += paragraph;
  }
  return text;
}

Status MergeInto(const MistralFormat& format, const ChatMessage& message, size_t index, ChatTurn* turn) {
  turn->role = message.role;
  turn->label = MessageLabel(index);
  turn->prefix = message.prefix;
  ContentJoiner(format, &turn->content).Add(message);
  if (message.role == ChatRole::kTool) {
    turn->name = message.name;
    turn->call_id = message.tool_call_id.value_or("");
    if (!format.json_results) return Status::Ok();
    TM_ASSIGN_OR_RETURN(std::string json, JsonOrString(turn->label + ".content", turn->Text()));
    turn->content = {{.text = std::move(json)}};
    return Status::Ok();
  }
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    TM_ASSIGN_OR_RETURN(std::string arguments,
                        JsonOrString(CallLabel(index, i) + ".arguments", call.arguments_json));
    turn->calls.push_back({call.name, std::move(arguments), call.id});
  }
  return Status::Ok();
}

// The json.dumps of mistral-common's tool list; "" for none.
StatusOr<std::string> ToolsJson(std::span<const ToolDefinition> tools) {
  std::string json;
  for (size_t i = 0; i < tools.size(); ++i) {
    const ToolDefinition& tool = tools[i];
    const std::string label = "tools[" + std::to_string(i) + "]";
    TM_RETURN_IF_ERROR(CheckFunctionName(label + ".name", tool.name));
    TM_RETURN_IF_ERROR(CheckUtf8(label + ".description", tool.description));
    TM_RETURN_IF_ERROR(CheckUtf8(label + ".parameters", tool.parameters_json));
    const std::string_view parameters_json = tool.parameters_json;
    const StatusOr<JsonValue> parameters = ParsePythonJson(parameters_json.empty() ? "{}" : parameters_json);
    if (!parameters.ok()) return ChatFault(label + ".parameters", parameters.status().message());
    if (parameters->kind != JsonValue::Kind::kObject) {
      return ChatFault(label + ".parameters", "not a JSON object");
    }
    json += json.empty() ? "[" : ", ";
    json += "{\"type\": \"function\", \"function\": {\"name\": ";
    AppendPythonJsonString(tool.name, &json);
    json += ", \"description\": ";
    AppendPythonJsonString(tool.description, &json);
    json += ", \"parameters\": ";
    AppendPythonJson(*parameters, &json);
    json += "}}";
  }
  if (!json.empty()) json += "]";
  return json;
}

// Where a turn cannot hold both, its text is left out.
Status LetCallsWin(std::vector<ChatTurn>* turns) {
  for (ChatTurn& turn : *turns) {
    if (turn.calls.empty()) continue;
    if (turn.prefix) return ChatFault(turn.label, "prefix goes on from text, not from tool calls");
    turn.content.clear();
  }
  return Status::Ok();
}

// Where results carry no ids, their order tells which call each belongs to.
void PutResultsInOrderOfCalls(std::vector<ChatTurn>* turns) {
  const auto is_result = [](const ChatTurn& turn) { return turn.role == ChatRole::kTool; };
  for (auto begin = turns->begin(); begin != turns->end();) {
    const std::vector<TurnCall>& calls = begin->calls;
    auto end = ++begin;
    while (end != turns->end() && is_result(*end)) ++end;
    std::unordered_map<std::string_view, size_t> index_of;
    for (size_t i = 0; i < calls.size(); ++i) index_of.emplace(calls[i].id, i);
    const auto index = [&](const ChatTurn& result) {
      const auto found = index_of.find(result.call_id);
      return found == index_of.end() ? calls.size() : found->second;
    };
    if (!calls.empty()) {
      std::stable_sort(begin, end, [&](const ChatTurn& a, const ChatTurn& b) { return index(a) < index(b); });
    }
    begin = end;
  }
}

void FindUsers(NormalizedChat* chat) {
  const auto is_user = [](const ChatTurn& turn) { return turn.role == ChatRole::kUser; };
  const auto begin = chat->turns.begin();
  chat->first_user = static_cast<size_t>(std::find_if(begin, chat->turns.end(), is_user) - begin);
  chat->last_user = chat->first_user;
  for (size_t i = chat->first_user; i < chat->turns.size(); ++i) {
    if (is_user(chat->turns[i])) chat->last_user = i;
  }
}

}  // namespace

bool ChatTurn::HasThinking() const {
  return std::any_of(content.begin(), content.end(),
                     [](const ContentPart& part) { return part.kind == ContentPart::Kind::kThinking; });
}

std::string ChatTurn::Text() const {
  TM_DCHECK(!HasThinking() && content.size() <= 1, "%zu parts", content.size());
  return content.empty() ? "" : content.front().text;
}

StatusOr<NormalizedChat> NormalizeChat(const MistralFormat& format, std::span<const SaidMessage> said,
                                       std::span<const ToolDefinition> tools) {
  NormalizedChat chat;
  std::vector<std::string> system_paragraphs;
  TM_ASSIGN_OR_RETURN(chat.tools, ToolsJson(tools));
  for (size_t i = 0; i < said.size(); ++i) {
    const ChatMessage& message = *said[i].message;
    const ChatRole role = message.role;
    if (role == ChatRole::kSystem && !format.system_turns) {
      std::string text = TextOf(format, message);
      const bool is_paragraph = !message.parts.empty() || !text.empty();
      if (is_paragraph) system_paragraphs.push_back(std::move(text));
      continue;
    }
    const bool joins_neighbours = role == ChatRole::kUser || role == ChatRole::kAssistant;
    if (i == 0 || !joins_neighbours || said[i - 1].message->role != role) chat.turns.emplace_back();
    TM_RETURN_IF_ERROR(MergeInto(format, message, said[i].index, &chat.turns.back()));
  }
  chat.system_prompt = JoinParagraphs(system_paragraphs);
  if (!format.content_beside_calls) TM_RETURN_IF_ERROR(LetCallsWin(&chat.turns));
  if (format.results == MistralFormat::Results::kMatchedById) PutResultsInOrderOfCalls(&chat.turns);
  if (!format.system_turns && (chat.turns.empty() || chat.turns.front().role != ChatRole::kUser)) {
    chat.turns.insert(chat.turns.begin(), ChatTurn());
  }
  FindUsers(&chat);
  return chat;
}

}  // namespace tramontane
