#include "bench/load/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "kernels/core/utf8.h"

namespace tramontane::load {
namespace {

void AddFlag(const FlagRow& row, GivenFlags::Values* values, CLI::App* app) {
  CLI::Option* option = nullptr;
  if (row.value[0] == '\0') {
    option = app->add_flag(row.name, row.help)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  } else {
    option = app->add_option(row.name, (*values)[row.name], row.help)->type_name(row.value)->expected(1);
    option->multi_option_policy(row.repeats ? CLI::MultiOptionPolicy::TakeAll
                                            : CLI::MultiOptionPolicy::Throw);
    option->allow_extra_args(false);  // else '[1]' is taken apart
  }
  option->group(row.group);
}

}  // namespace

ParsedFlags ParseFlags(int argc, const char* const* argv, const FlagProgram& program, std::ostream& out,
                       std::ostream& err) {
  constexpr int kUsageStatus = 2;
  CLI::App app(program.about, program.name);
  GivenFlags::Values values;
  for (const FlagRow& row : program.flags) AddFlag(row, &values, &app);
  GivenFlags::Values given;
  try {
    app.parse(argc, argv);
    for (const FlagRow& row : program.flags) {
      if (app.count(row.name) == 0) continue;
      if (values.contains(row.name)) {
        given[row.name] = values[row.name];
      } else if (app[row.name]->as<bool>()) {  // not --insecure=false
        given[row.name].resize(1);
      }
    }
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, out, err);
    return {{}, status == 0 ? 0 : kUsageStatus};
  }
  for (const auto& [flag, texts] : given) {
    if (std::all_of(texts.begin(), texts.end(), [](const std::string& text) { return IsUtf8(text); }))
      continue;
    err << program.name << ": " << flag << " is not UTF-8\n";
    return {{}, kUsageStatus};
  }
  return {GivenFlags(std::move(given)), std::nullopt};
}

std::string GivenFlags::Text(const char* flag, const std::string& otherwise) const {
  const auto at = values_.find(flag);
  return at == values_.end() ? otherwise : at->second.back();
}

std::vector<std::string> GivenFlags::All(const char* flag) const {
  const auto at = values_.find(flag);
  return at == values_.end() ? std::vector<std::string>() : at->second;
}

Status GivenFlags::Number(const char* flag, const NumberRange& range, double* value) const {
  if (!Has(flag)) return Status::Ok();
  TM_ASSIGN_OR_RETURN(*value, ParseNumber(flag, Text(flag), range));
  return Status::Ok();
}

Status GivenFlags::NeedsOther(std::initializer_list<const char*> flags, bool has_other,
                              const char* other) const {
  for (const char* flag : flags) {
    if (Has(flag) && !has_other) return InvalidArgument(std::string(flag) + " needs " + other);
  }
  return Status::Ok();
}

Status GivenFlags::Excludes(const char* flag, std::initializer_list<const char*> others) const {
  for (const char* other : others) {
    if (Has(flag) && Has(other))
      return InvalidArgument(std::string(flag) + " and " + other + " exclude each other");
  }
  return Status::Ok();
}

std::string CommandLineText(const std::string& program, int argc, const char* const* argv) {
  std::string text = program;
  bool is_header = false;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const std::string joined = "--header=";
    if (is_header || word.starts_with(joined)) {
      word = word.substr(0, word.find(':')) + ": ...";
    }
    is_header = !is_header && word == "--header";
    const bool plain = !word.empty() && word.find_first_of(" \t\n\"'\\$`<>|&;(){}*?") == std::string::npos;
    text += ' ';
    text += plain ? word : "'" + word + "'";
  }
  return text;
}

}  // namespace tramontane::load
