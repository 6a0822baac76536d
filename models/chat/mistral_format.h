// Mistral's chat formats, one row each: what a format allows, and how its prompts are put together.
//
// Any thread. A constant table; mistral_chat.h is the way in.
#pragma once

#include <string_view>

#include "kernels/core/status.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class ChatPrompt;
struct ChatTurn;
struct NormalizedChat;

struct MistralFormat {
  enum class CallIds {
    kUnchecked,
    kNineCharacters,  // letters and digits
    kAny,             // any text but "" and "null"
  };
  enum class Results {
    kCounted,      // as many as there are calls
    kMatchedById,  // one for each call by its id; shown in the order of the calls
  };
  enum class Thinking {
    kNowhere,
    kOfAssistantAndSystem,
    kOfAssistant,
  };
  enum class ToolsAt {
    kNowhere,
    kLastUser,   // in front of the last user turn
    kFirstUser,  // where what is in front of them can be kept from one prompt to the next
  };

  TokenizerVersion version;
  CallIds call_ids;
  Results results;
  Thinking thinking;
  ToolsAt tools_at;
  std::string_view between_parts;  // joins the texts of one message; messages are joined by a blank line
  bool content_beside_calls;       // an assistant's turn may have both; else its calls win
  bool system_turns;               // system messages keep their place; else one prompt, inside a user turn
  bool json_results;               // a tool's result is shown as the JSON it is, or as a JSON string
  bool model_settings;             // what the vocabulary's file says of settings stands behind the tools
  Status (*render)(const MistralFormat& format, const NormalizedChat& chat, ChatPrompt* prompt);
  // Of formats that show all turns alike; else null.
  Status (*render_calls)(const ChatTurn& turn, ChatPrompt* prompt);
  Status (*render_result)(const ChatTurn& turn, ChatPrompt* prompt);
};

const MistralFormat& MistralFormatOf(TokenizerVersion version);

}  // namespace tramontane
