// Renders templates for jinja_oracle.py: reads {"template", "values"}, a line of JSON each, and answers
// {"output"} or {"error"}.
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "models/jinja/jinja_template.h"

namespace tramontane {
namespace {

const JsonValue& Member(const JsonValue& object, std::string_view key) {
  for (const JsonMember& member : object.members) {
    if (member.key == key) return member.value;
  }
  TM_CHECK(false, "no such member");
}

StatusOr<std::string> Rendered(const JsonValue& request) {
  std::tm now{};  // that of jinja_oracle.py: Monday, 2025-07-14 12:00
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 14;
  now.tm_hour = 12;
  now.tm_wday = 1;
  now.tm_yday = 194;
  TM_ASSIGN_OR_RETURN(const auto parsed, JinjaTemplate::Parse(Member(request, "template").text));
  return parsed->Render(Member(request, "values"), now);
}

void Answer(const std::string& line) {
  const StatusOr<JsonValue> request = ParsePythonJson(line);
  TM_CHECK(request.ok(), "%s", request.status().message().c_str());
  const StatusOr<std::string> output = Rendered(*request);
  std::string answer = output.ok() ? R"({"output": )" : R"({"error": )";
  AppendPythonJsonString(output.ok() ? *output : output.status().message(), &answer);
  std::cout << answer << "}\n";
}

}  // namespace
}  // namespace tramontane

int main() {
  std::string line;
  while (std::getline(std::cin, line)) tramontane::Answer(line);
  return 0;
}
