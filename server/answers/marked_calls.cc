#include "server/answers/marked_calls.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/grammar/branch_grammar.h"
#include "server/answers/constraint_convert.h"
#include "server/answers/tool_arguments.h"

namespace tramontane {
namespace {

constexpr char kPath[] = "chat.tool_choice";

std::string ParametersPath(int tool) { return FieldElement("chat.tools", tool) + ".parameters"; }

// All of them together are one constraint, which has one limit.
RpcError CheckBytes(const ServedModel& model, const v1::Chat& chat) {
  if (model.constraints == nullptr) return {};
  const int64_t most = model.constraints->limits().max_bytes;
  int64_t bytes = 0;
  for (int tool = 0; tool < chat.tools_size(); ++tool) {
    bytes += static_cast<int64_t>(chat.tools(tool).name().size() + chat.tools(tool).parameters_json().size());
    if (bytes <= most) continue;
    return FieldError(ParametersPath(tool), "brings the schemas of the tools to " + std::to_string(bytes) +
                                                " bytes; at most " + std::to_string(most) +
                                                " are enforced at once");
  }
  return {};
}

// An object, whatever else the schema says.
std::string ArgumentsSchema(const v1::Tool& tool) {
  auto schema = nlohmann::ordered_json::parse(tool.parameters_json(), nullptr, /*allow_exceptions=*/false);
  if (TakesNoArguments(schema)) schema = NoArguments();
  if (!schema.contains("type")) schema["type"] = "object";
  return schema.dump();
}

RpcError CompileArguments(const ServedModel& model, const v1::Chat& chat, int tool,
                          const std::function<bool()>& wanted, std::shared_ptr<const Grammar>* grammar) {
  v1::Constraint schema;
  schema.set_json_schema(ArgumentsSchema(chat.tools(tool)));
  ConstraintParams compiled;
  const ConstraintSource source{.path = kPath, .parts = {{.schema_path = "", .path = ParametersPath(tool)}}};
  RpcError error = ConvertConstraint(model, source, schema, wanted, &compiled);
  *grammar = std::move(compiled.grammar);
  return error;
}

// [TOOL_CALLS] name [ARGS]
RpcError HeadOf(const ServedModel& model, const AnswerSyntax& syntax, const v1::Tool& tool,
                std::vector<int32_t>* head) {
  const StatusOr<std::vector<int32_t>> name = model.tokenizer->Encode(tool.name());
  if (!name.ok()) return ToRpcError(name.status());
  head->push_back(syntax.tool_calls);
  head->insert(head->end(), name->begin(), name->end());
  head->push_back(syntax.args);
  return {};
}

}  // namespace

RpcError ConstrainMarkedCalls(const ServedModel& model, const AnswerSyntax& syntax, const v1::Chat& chat,
                              const std::function<bool()>& wanted, ConstraintParams* constraint) {
  if (RpcError error = CheckBytes(model, chat); !error.ok()) return error;
  const bool is_named = chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NAMED;
  const bool one_call = is_named || (chat.has_parallel_tool_calls() && !chat.parallel_tool_calls());
  std::vector<GrammarBranch> branches;
  for (int tool = 0; tool < chat.tools_size(); ++tool) {
    if (is_named && chat.tools(tool).name() != chat.tool_choice().name()) continue;
    GrammarBranch& branch = branches.emplace_back();
    if (RpcError error = HeadOf(model, syntax, chat.tools(tool), &branch.head); !error.ok()) return error;
    if (RpcError error = CompileArguments(model, chat, tool, wanted, &branch.grammar); !error.ok())
      return error;
  }
  constraint->grammar =
      std::make_shared<BranchGrammar>(std::move(branches), one_call ? Branches::kOnce : Branches::kRepeat,
                                      model.config.eos_ids, model.config.vocab_size);
  return {};
}

}  // namespace tramontane
