// ConstrainCalls: what holds an answer to the calls that a chat allows, as a grammar: any text, a text of
// another grammar or nothing, and then calls. In the formats that mark each call, v11 and later, a call is
// [TOOL_CALLS], a tool's name, [ARGS] and arguments valid under its schema; before them, [TOOL_CALLS] and one
// list.
//
// Any thread. Nothing is compiled here: what a schema asks is found, and its grammar is compiled when the
// answer calls.
#pragma once

#include <string>
#include <vector>

#include "engine/request/request.h"
#include "models/chat/answer_syntax.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Parts of the tools' schemas that an answer is not held to, as Started.unenforced has them.
class Unenforced {
 public:
  void Add(std::string part);
  // At most 1 KiB, and then how many more.
  std::vector<std::string> Parts() const;

 private:
  std::vector<std::string> parts_;
};

// `constraint`: has what an answer without calls is, or nothing. What a tool's schema asks that no grammar
// holds is `unenforced`, or of a tool that is strict an error: "chat.tools[1].parameters". REQUIRES: the chat
// was rendered, and MayCallTools(chat).
RpcError ConstrainCalls(const ServedModel& model, const AnswerSyntax& syntax, const v1::Chat& chat,
                        ConstraintParams* constraint, Unenforced* unenforced);

}  // namespace tramontane
