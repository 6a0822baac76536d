// What a body says that the output must be: the ways to say it, and the constraint that they are.
// Pure functions and plain values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/shared/api_error.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/json.h"
#include "server/api/shared/shape.h"
#include "server/call/field_limits.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Every way in which one body says it. Several are one where they say the same.
class OutputDemands {
 public:
  // Each lies in the body at `field`. REQUIRES: the values were checked.
  void AddJsonObject(std::string field);
  void AddSchema(const Json& schema, std::string field);  // an object, a boolean, or either as text
  void AddRegex(const Json& text, std::string field);
  void AddGrammar(const Json& text, std::string field);  // EBNF
  void AddChoice(const Json& texts, std::string field);
  // A format as OpenAI's dialects have it, of which "type" is text, json_object or json_schema, at `field`.
  // `schema` is what a json_schema names, at `schema_field`; null: any object.
  void AddFormat(const Json& format, std::string field, const Json* schema, std::string schema_field);

  bool empty() const { return demands_.empty(); }

  // The constraint, if there is one, and in `names` where the body says so. A fault: they differ.
  std::optional<ApiError> PutInto(v1::GenerateRequest* call, FieldNames* names) const;

 private:
  struct Demand {
    std::string field;
    std::string format_field;  // what is around it
    v1::Constraint constraint;
  };
  v1::Constraint& Add(std::string field);

  std::vector<Demand> demands_;
};

// ---- of chats and completions -------------------------------------------------------------------

// The rows of their tables: response_format, structured_outputs, and older names of its fields.
std::vector<Field> ConstraintFields(const FieldLimits& limits);
// What a body with these rows says.
std::optional<ApiError> ConvertConstraint(const Json& json, v1::GenerateRequest* call, FieldNames* names);

}  // namespace tramontane
