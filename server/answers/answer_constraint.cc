#include "server/answers/answer_constraint.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "models/grammar/answer_grammar.h"
#include "models/grammar/constraint_compiler.h"
#include "server/answers/call_list_schema.h"
#include "server/answers/called_tools.h"
#include "server/answers/constraint_convert.h"
#include "server/answers/tool_arguments.h"

namespace tramontane {
namespace {

using Translated = std::shared_ptr<const TranslatedConstraint>;

constexpr char kTools[] = "chat.tools";
constexpr char kChoice[] = "chat.tool_choice";
constexpr char kAnyObject[] = R"({"type":"object"})";
constexpr size_t kMostUnenforcedBytes = 1024;
// Of all tools together, in those of one schema: so many, one behind the other, are translated for a request.
constexpr int64_t kMostSchemas = 16;

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
  // [TOOL_CALLS] name [ARGS]
  RpcError HeadOf(const v1::Tool& tool, std::vector<int32_t>* head) const;
  RpcError TranslateArguments(int tool, Translated* translated);
  StatusOr<Translated> TranslateSchema(std::string schema) {
    return compiler_.Translate({ConstraintSpec::Kind::kJsonSchema, std::move(schema), {}});
  }
  // Enough for all tools that are not left to be any object.
  bool TakeBytes(const v1::Tool& tool) {
    left_bytes_ -= static_cast<int64_t>(tool.name().size() + tool.parameters_json().size());
    return left_bytes_ >= 0;
  }
  Status TooManyBytes() const {
    return InvalidArgument("brings the schemas of the tools to more than " +
                           std::to_string(kMostSchemas * compiler_.limits().max_bytes) +
                           " bytes; at most so many are enforced at once");
  }
  // An error where the tool is strict.
  RpcError LeaveOut(int tool, const RpcError& fault);
  RpcError NoteUnenforced(int tool, const std::string& part);

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

RpcError CallsOf::LeaveOut(int tool, const RpcError& fault) {
  if (chat_.tools(tool).strict()) return fault;
  unenforced_.Add(ParametersPath(tool) + " (" + fault.sentence + ")");
  return {};
}

RpcError CallsOf::NoteUnenforced(int tool, const std::string& part) {
  if (chat_.tools(tool).strict()) {
    return FieldError(ParametersPath(tool), part + " cannot be enforced, and the tool is strict");
  }
  unenforced_.Add(ParametersPath(tool) + part);
  return {};
}

RpcError CallsOf::TranslateArguments(int tool, Translated* translated) {
  const v1::Tool& asked = chat_.tools(tool);
  StatusOr<Translated> outcome = TooManyBytes();
  if (TakeBytes(asked)) outcome = TranslateSchema(ArgumentsSchema(asked.parameters_json()));
  if (!outcome.ok()) {
    const ConstraintSource source{.path = kChoice,
                                  .parts = {{.schema_path = "", .path = ParametersPath(tool)}}};
    RpcError fault = ConstraintFault(source, kChoice, outcome.status());
    if (outcome.status().code() != StatusCode::kInvalidArgument) return fault;
    if (RpcError error = LeaveOut(tool, fault); !error.ok()) return error;
    outcome = TranslateSchema(kAnyObject);
    if (!outcome.ok()) return ToRpcError(outcome.status());
  }
  *translated = *std::move(outcome);
  for (const std::string& part : (*translated)->unenforced) {
    if (RpcError error = NoteUnenforced(tool, part); !error.ok()) return error;
  }
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

// Schemas are left out until the rest of the list is one that can be held to. What is no tool's fault is that
// of their number or size: then the largest goes.
RpcError CallsOf::Listed(std::vector<AnswerCall>* calls) {
  std::vector<ListedTool> tools;
  for (int tool = 0; tool < chat_.tools_size(); ++tool) {
    const v1::Tool& asked = chat_.tools(tool);
    if (!MayCallTool(chat_, asked)) continue;
    const bool fits = TakeBytes(asked);
    if (!fits) {
      const RpcError fault = FieldError(ParametersPath(tool), TooManyBytes().sentence());
      if (RpcError error = LeaveOut(tool, fault); !error.ok()) return error;
    }
    tools.push_back({.index = tool, .schema = fits ? ArgumentsSchema(asked.parameters_json()) : kAnyObject});
  }
  for (;;) {
    ConstraintSource source;
    StatusOr<Translated> list = TranslateSchema(CallListSchema(chat_, tools, MayCallOnce(chat_), &source));
    const RpcError fault = list.ok() ? RpcError() : ConstraintFault(source, kChoice, list.status());
    if (!list.ok() && list.status().code() != StatusCode::kInvalidArgument) return fault;
    auto faulty = std::find_if(tools.begin(), tools.end(), [&fault](const ListedTool& tool) {
      return fault.field == ParametersPath(tool.index);
    });
    if (!list.ok() && faulty == tools.end()) {
      faulty = std::max_element(tools.begin(), tools.end(), [this](const ListedTool& a, const ListedTool& b) {
        const bool a_strict = chat_.tools(a.index).strict(), b_strict = chat_.tools(b.index).strict();
        return a_strict != b_strict ? a_strict : a.schema.size() < b.schema.size();
      });
    }
    if (!list.ok()) {
      if (faulty->schema == kAnyObject) return fault;  // nothing is left to be left out
      if (RpcError error = LeaveOut(faulty->index, fault); !error.ok()) return error;
      faulty->schema = kAnyObject;
      continue;
    }
    for (const std::string& part : (*list)->unenforced) {
      for (size_t i = 0; i < tools.size(); ++i) {
        if (!LiesInField(part, source.parts[i].schema_path)) continue;
        const std::string inside = part.substr(source.parts[i].schema_path.size());
        if (RpcError error = NoteUnenforced(tools[i].index, inside); !error.ok()) return error;
      }
    }
    calls->push_back({.head = {syntax_.tool_calls},
                      .text = std::make_shared<TranslatedGrammar>(compiler_, *std::move(list), kTools)});
    return {};
  }
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
