#include "server/answers/constraint_convert.h"

#include <memory>
#include <string_view>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/grammar/constraint_compiler.h"

namespace tramontane {
namespace {

// `path` goes on to the kind that was set.
RpcError ToSpec(const v1::Constraint& proto, ConstraintSpec* spec, std::string* path) {
  switch (proto.kind_case()) {
    case v1::Constraint::kJsonSchema:
      spec->kind = ConstraintSpec::Kind::kJsonSchema;
      spec->text = proto.json_schema();
      *path += ".json_schema";
      return {};
    case v1::Constraint::kJsonObject:
      spec->kind = ConstraintSpec::Kind::kJsonObject;
      *path += ".json_object";
      if (!proto.json_object()) return FieldError(*path, "is false; leave it out instead");
      return {};
    case v1::Constraint::kRegex:
      spec->kind = ConstraintSpec::Kind::kRegex;
      spec->text = proto.regex();
      *path += ".regex";
      return {};
    case v1::Constraint::kGrammar:
      spec->kind = ConstraintSpec::Kind::kGrammar;
      spec->text = proto.grammar();
      *path += ".grammar";
      return {};
    case v1::Constraint::kChoice:
      spec->kind = ConstraintSpec::Kind::kChoice;
      spec->choices.assign(proto.choice().texts().begin(), proto.choice().texts().end());
      *path += ".choice.texts";
      return {};
    case v1::Constraint::KIND_NOT_SET:
      break;
  }
  return FieldError(*path,
                    "is empty: exactly one of json_schema, json_object, regex, grammar and choice is "
                    "needed");
}

}  // namespace

RpcError ConstraintFault(const ConstraintSource& source, const std::string& path, const Status& status) {
  if (status.code() != StatusCode::kInvalidArgument) return ToRpcError(status);
  std::string_view place = status.field();  // in the schema
  const std::string* field = &path;
  std::string sentence = status.sentence();
  for (const ConstraintSource::Part& part : source.parts) {
    if (!LiesInField(place, part.schema_path)) continue;
    place.remove_prefix(part.schema_path.size());
    field = &part.path;
    const size_t moved = part.moved_to.empty() ? std::string::npos : sentence.find(part.moved_to);
    if (moved != std::string::npos) sentence.replace(moved, part.moved_to.size(), "#");
    break;
  }
  return FieldError(*field, FieldText(Excerpt(place), status.form(), sentence));
}

RpcError NoStructuredOutput(const std::string& path) {
  RpcError error = ToRpcError(Unimplemented("this server has no structured output").WithField(path));
  error.field_description = error.message();
  error.reason = "NO_STRUCTURED_OUTPUT";
  return error;
}

RpcError ConvertConstraint(const ServedModel& model, const ConstraintSource& source,
                           const v1::Constraint& proto, const std::function<bool()>& wanted,
                           ConstraintParams* constraint) {
  if (model.constraints == nullptr) return NoStructuredOutput(source.path);
  ConstraintSpec spec;
  std::string kind_path = source.path;
  if (RpcError error = ToSpec(proto, &spec, &kind_path); !error.ok()) return error;
  StatusOr<std::shared_ptr<const Grammar>> grammar = model.constraints->Compile(spec, wanted);
  if (!grammar.ok()) return ConstraintFault(source, kind_path, grammar.status());
  constraint->grammar = *std::move(grammar);
  constraint->forced_prefix.assign(proto.forced_prefix_ids().begin(), proto.forced_prefix_ids().end());
  return {};
}

}  // namespace tramontane
