#include "server/answers/answer_constraint.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/grammar/answer_grammar.h"
#include "models/grammar/constraint_compiler.h"
#include "server/answers/call_list_schema.h"
#include "server/answers/called_tools.h"
#include "server/answers/constraint_convert.h"
#include "server/answers/tool_arguments.h"

namespace tramontane {
namespace {

using Translated = std::shared_ptr<const TranslatedConstraint>;
using Kind = ConstraintSpec::Kind;

constexpr char kTools[] = "chat.tools";
constexpr char kChoice[] = "chat.tool_choice";
constexpr size_t kMostUnenforcedBytes = 1024;
// Of all tools together, in those of one schema: so many, one behind the other, are translated for a request.
constexpr int64_t kMostSchemas = 16;
// A list is translated as often as that with one schema less each time, and then without any.
constexpr int kMostTries = 16;

std::string ToolPath(int tool) { return FieldElement(kTools, static_cast<size_t>(tool)); }
std::string ParametersPath(int tool) { return ToolPath(tool) + ".parameters"; }

// Compiled once a call of it begins.
class TranslatedGrammar final : public PendingGrammar {
 public:
  // `path`: of what it is a fault of if it cannot be compiled.
  TranslatedGrammar(ConstraintCompiler& compiler, Translated translated, std::string path)
      : compiler_(compiler), translated_(std::move(translated)), path_(std::move(path)) {}

  std::shared_ptr<const Grammar> Find() const override { return compiler_.FindCompiled(*translated_); }
  StatusOr<std::shared_ptr<const Grammar>> Compile(const std::function<bool()>& wanted) const override {
    auto grammar = compiler_.CompileTranslated(translated_, wanted);
    if (grammar.ok() || grammar.status().code() != StatusCode::kInvalidArgument) return grammar;
    return Status(grammar.status()).InField(path_);
  }

 private:
  ConstraintCompiler& compiler_;
  const Translated translated_;
  const std::string path_;
};

// The calls of one chat's tools.
class CallsOf {
 public:
  CallsOf(const ServedModel& model, const AnswerSyntax& syntax, const v1::Chat& chat, Unenforced* unenforced)
      : model_(model),
        compiler_(*model.constraints),
        syntax_(syntax),
        chat_(chat),
        unenforced_(*unenforced),
        left_bytes_(kMostSchemas * compiler_.limits().max_bytes) {}

  RpcError Marked(std::vector<AnswerCall>* calls);
  RpcError Listed(std::vector<AnswerCall>* calls);

 private:
  using Notes = std::vector<std::string>;

  // [TOOL_CALLS] name [ARGS]
  RpcError HeadOf(const v1::Tool& tool, std::vector<int32_t>* head) const;
  RpcError TranslateArguments(int tool, Translated* translated);
  RpcError TranslateList(std::vector<ListedTool> tools, TranslatedConstraint* list) const;
  // Which of the tools it is whose schema has to go; at the end of `tools`: none is left.
  std::vector<ListedTool>::iterator WhoseFault(const RpcError& fault, std::vector<ListedTool>& tools) const;
  // The parts of a list that are told, as those of the tools. An error: one is of none.
  RpcError TellParts(const Notes& parts, const ConstraintSource& source, const std::vector<ListedTool>& tools,
                     Notes* notes) const;
  // An error where the tool is strict.
  RpcError LeaveOut(int tool, const RpcError& fault, Notes* notes) const;
  RpcError LetGo(int tool, const std::string& part, Notes* notes) const;

  // Of what is left for schemas; false: there is no more.
  bool TakeBytes(const v1::Tool& tool) {
    left_bytes_ -= static_cast<int64_t>(tool.name().size() + tool.parameters_json().size());
    return left_bytes_ >= 0;
  }
  Status TooManyBytes() const {
    return InvalidArgument("brings the schemas of the tools to more than " +
                           std::to_string(kMostSchemas * compiler_.limits().max_bytes) +
                           " bytes; at most so many are enforced at once");
  }

  const ServedModel& model_;
  ConstraintCompiler& compiler_;
  const AnswerSyntax& syntax_;
  const v1::Chat& chat_;
  Unenforced& unenforced_;
  int64_t left_bytes_;
};

RpcError CallsOf::HeadOf(const v1::Tool& tool, std::vector<int32_t>* head) const {
  const StatusOr<std::vector<int32_t>> name = model_.tokenizer->Encode(tool.name());
  if (!name.ok()) return ToRpcError(name.status());
  head->push_back(syntax_.tool_calls);
  head->insert(head->end(), name->begin(), name->end());
  head->push_back(syntax_.args);
  return {};
}

RpcError CallsOf::LeaveOut(int tool, const RpcError& fault, Notes* notes) const {
  if (chat_.tools(tool).strict())
    return fault.field == ParametersPath(tool) ? fault : FieldError(ParametersPath(tool), fault.sentence);
  // Of ".properties.x.pattern: ..", the keyword.
  const std::string place = fault.sentence.substr(0, fault.sentence.find(':'));
  const bool names_keyword = place.starts_with('.') && place.size() < fault.sentence.size();
  const std::string why = names_keyword ? place.substr(place.rfind('.') + 1) : fault.sentence;
  notes->push_back(ParametersPath(tool) + " (" + why + ")");
  return {};
}

RpcError CallsOf::LetGo(int tool, const std::string& part, Notes* notes) const {
  if (chat_.tools(tool).strict()) {
    return FieldError(ParametersPath(tool), part + " cannot be enforced, and the tool is strict");
  }
  notes->push_back(ParametersPath(tool) + part);
  return {};
}

RpcError CallsOf::TranslateArguments(int tool, Translated* translated) {
  const v1::Tool& asked = chat_.tools(tool);
  Notes notes;
  StatusOr<Translated> outcome = TooManyBytes();
  if (TakeBytes(asked)) {
    outcome = compiler_.TranslateOnce("arguments " + asked.parameters_json(), [&] {
      return compiler_.TranslateNow({Kind::kToolArguments, ArgumentsSchema(asked.parameters_json()), {}});
    });
  }
  if (!outcome.ok()) {
    const ConstraintSource source{.path = kChoice,
                                  .parts = {{.schema_path = "", .path = ParametersPath(tool)}}};
    const RpcError fault = ConstraintFault(source, kChoice, outcome.status());
    if (outcome.status().code() != StatusCode::kInvalidArgument) return fault;
    if (RpcError error = LeaveOut(tool, fault, &notes); !error.ok()) return error;
    outcome = compiler_.Translate({Kind::kToolArguments, kAnyObject, {}});
    if (!outcome.ok()) return ToRpcError(outcome.status());
  }
  *translated = *std::move(outcome);
  for (const std::string& part : (*translated)->unenforced) {
    if (RpcError error = LetGo(tool, part, &notes); !error.ok()) return error;
  }
  for (std::string& note : notes) unenforced_.Add(std::move(note));
  return {};
}

RpcError CallsOf::Marked(std::vector<AnswerCall>* calls) {
  for (int tool = 0; tool < chat_.tools_size(); ++tool) {
    if (!MayCallTool(chat_, chat_.tools(tool))) continue;
    AnswerCall& call = calls->emplace_back();
    if (RpcError error = HeadOf(chat_.tools(tool), &call.head); !error.ok()) return error;
    Translated arguments;
    if (RpcError error = TranslateArguments(tool, &arguments); !error.ok()) return error;
    call.text = std::make_shared<TranslatedGrammar>(compiler_, std::move(arguments), ParametersPath(tool));
  }
  return {};
}

RpcError CallsOf::Listed(std::vector<AnswerCall>* calls) {
  std::vector<ListedTool> tools;
  std::string key = MayCallOnce(chat_) ? "call " : "calls ";
  for (int tool = 0; tool < chat_.tools_size(); ++tool) {
    const v1::Tool& asked = chat_.tools(tool);
    if (!MayCallTool(chat_, asked)) continue;
    tools.push_back({.index = tool, .schema = asked.parameters_json()});
    key += std::to_string(tool) + (asked.strict() ? " strict " : " ") + std::to_string(asked.name().size()) +
           ' ' + asked.name() + std::to_string(asked.parameters_json().size()) + ' ' +
           asked.parameters_json();
  }
  RpcError fault;
  const StatusOr<Translated> list =
      compiler_.TranslateOnce(std::move(key), [&]() -> StatusOr<TranslatedConstraint> {
        TranslatedConstraint translated;
        fault = TranslateList(std::move(tools), &translated);
        if (!fault.ok()) return InvalidArgument(fault.sentence);
        return translated;
      });
  if (!fault.ok()) return fault;
  if (!list.ok()) return ToRpcError(list.status());
  for (const std::string& part : (*list)->unenforced) unenforced_.Add(part);
  calls->push_back(
      {.head = {syntax_.tool_calls}, .text = std::make_shared<TranslatedGrammar>(compiler_, *list, kTools)});
  return {};
}

// Schemas are left out until the rest of the list is one that can be held to.
RpcError CallsOf::TranslateList(std::vector<ListedTool> tools, TranslatedConstraint* list) const {
  Notes left_out;
  int64_t left_bytes = kMostSchemas * compiler_.limits().max_bytes;
  for (ListedTool& tool : tools) {
    left_bytes -= static_cast<int64_t>(tool.schema.size());
    RpcError fault = FieldError(ParametersPath(tool.index), TooManyBytes().sentence());
    if (left_bytes >= 0) {
      tool.schema = ArgumentsSchema(tool.schema);
      const std::string type = TypeThatIsNoObject(tool.schema);
      if (type.empty()) continue;
      fault = FieldError(ParametersPath(tool.index),
                         ".type: is " + Excerpt(type) + ", and arguments of a tool are an object");
    }
    if (RpcError error = LeaveOut(tool.index, fault, &left_out); !error.ok()) return error;
    tool.schema = kAnyObject;
  }
  for (int tries = 1;; ++tries) {
    ConstraintSource source;
    const std::string schema = CallListSchema(chat_, tools, MayCallOnce(chat_), &source);
    StatusOr<TranslatedConstraint> outcome = compiler_.TranslateNow({Kind::kToolCalls, schema, {}});
    RpcError fault = outcome.ok() ? RpcError() : ConstraintFault(source, kChoice, outcome.status());
    Notes notes = left_out;
    if (fault.ok()) fault = TellParts(outcome->unenforced, source, tools, &notes);
    if (fault.ok()) {
      *list = *std::move(outcome);
      list->unenforced = std::move(notes);
      return {};
    }
    const auto faulty = WhoseFault(fault, tools);
    if (faulty == tools.end()) return fault;
    for (ListedTool& tool : tools) {
      const bool goes = &tool == &*faulty || (tries > kMostTries && !chat_.tools(tool.index).strict());
      if (!goes || tool.schema == kAnyObject) continue;
      if (RpcError error = LeaveOut(tool.index, fault, &left_out); !error.ok()) return error;
      tool.schema = kAnyObject;
    }
  }
}

RpcError CallsOf::TellParts(const Notes& parts, const ConstraintSource& source,
                            const std::vector<ListedTool>& tools, Notes* notes) const {
  for (const std::string& part : parts) {
    size_t i = 0;
    while (i < tools.size() && !LiesInField(part, source.parts[i].schema_path) &&
           !part.starts_with(source.parts[i].schema_path + " ")) {
      ++i;
    }
    if (i == tools.size())
      return FieldError(kChoice, "brings the schemas of the tools to more than one list can be held to");
    const std::string inside = part.substr(source.parts[i].schema_path.size());
    if (RpcError error = LetGo(tools[i].index, inside, notes); !error.ok()) return error;
  }
  return {};
}

// That of the tool that is named; else of the largest, those that are strict last.
std::vector<ListedTool>::iterator CallsOf::WhoseFault(const RpcError& fault,
                                                      std::vector<ListedTool>& tools) const {
  const auto named = std::find_if(tools.begin(), tools.end(), [&fault](const ListedTool& tool) {
    return fault.field == ParametersPath(tool.index);
  });
  const auto weight = [this](const ListedTool& tool) {
    const size_t bytes = tool.schema == kAnyObject ? 0 : tool.schema.size();
    return std::pair(bytes > 0 && !chat_.tools(tool.index).strict(), bytes);
  };
  const auto largest =
      std::max_element(tools.begin(), tools.end(),
                       [&weight](const ListedTool& a, const ListedTool& b) { return weight(a) < weight(b); });
  const auto faulty = named != tools.end() ? named : largest;
  return faulty->schema == kAnyObject ? tools.end() : faulty;
}

// A server that cannot hold a call to anything.
RpcError LeaveCallsFree(const v1::Chat& chat, const std::string& why, Unenforced* unenforced) {
  for (int tool = 0; tool < chat.tools_size(); ++tool) {
    if (chat.tools(tool).strict()) return FieldError(ToolPath(tool) + ".strict", "is true, and " + why);
  }
  unenforced->Add(kTools);
  return {};
}

}  // namespace

void Unenforced::Add(std::string part) { parts_.push_back(std::move(part)); }

std::vector<std::string> Unenforced::Parts() const {
  std::vector<std::string> parts;
  size_t bytes = 0;
  for (const std::string& part : parts_) {
    bytes += part.size();
    if (bytes > kMostUnenforcedBytes) break;
    parts.push_back(part);
  }
  const size_t left = parts_.size() - parts.size();
  if (left > 0) parts.push_back("and " + std::to_string(left) + " more");
  return parts;
}

RpcError ConstrainCalls(const ServedModel& model, const AnswerSyntax& syntax, const v1::Chat& chat,
                        ConstraintParams* constraint, Unenforced* unenforced) {
  const bool must_call = MustCallTools(chat);
  if (syntax.calls == AnswerSyntax::Calls::kNone) {
    const std::string& format = model.chat_format->name();
    if (!must_call) return LeaveCallsFree(chat, "in chat format " + format + " calls are text", unenforced);
    return FieldError(kChoice, "asks for a call, but in chat format " + format +
                                   " answers have no calls: auto and none are what it may be");
  }
  const bool can_hold = model.constraints != nullptr && !model.config.eos_ids.empty();
  if (!can_hold && must_call) return NoStructuredOutput(kChoice);
  if (!can_hold) return LeaveCallsFree(chat, "this server has no structured output", unenforced);

  using Begin = AnswerShape::Begin;
  const bool marked = syntax.calls == AnswerSyntax::Calls::kNameAndArguments;
  const std::shared_ptr<const Grammar>& text = constraint->grammar;
  AnswerShape shape{.begin = must_call         ? Begin::kCall
                             : text == nullptr ? Begin::kAnyText
                                               : Begin::kTextOrCall,
                    .text = text,
                    .calls_repeat = marked && !MayCallOnce(chat)};
  CallsOf calls(model, syntax, chat, unenforced);
  if (RpcError error = marked ? calls.Marked(&shape.calls) : calls.Listed(&shape.calls); !error.ok())
    return error;
  constraint->grammar = std::make_shared<AnswerGrammar>(std::move(shape), *model.tokenizer,
                                                        model.config.eos_ids, model.config.vocab_size);
  constraint->goes_before_min_tokens = true;
  return {};
}

}  // namespace tramontane
