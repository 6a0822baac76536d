#include "server/commands/setting_flags.h"

namespace tramontane {
namespace {

// By its kind a setting is one value, a list that may also be given name by name, or a flag alone, which
// =false turns off.
void AddFlag(const Setting& setting, GivenSettings* given, CLI::App* command) {
  const std::string flag = FlagOf(setting);
  const std::string metavar = setting.metavar;
  const bool has_value = setting.json != nullptr;
  const std::string help = setting.help + (has_value ? " [default: " + DefaultText(setting) + "]" : "");
  const auto set = [given, &setting](const std::string& text) { given->emplace_back(&setting, text); };
  if (metavar == "true|false") {
    command->add_flag(flag, help)
        ->each(set)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(has_value ? setting.group : "");  // of one that is no more there is nothing to show
  } else if (IsList(setting)) {
    const bool is_plural = flag.ends_with('s');
    const std::string names = is_plural ? flag + "," + flag.substr(0, flag.size() - 1) : flag;
    const auto set_joined = [set](const std::vector<std::string>& values) {
      set(CLI::detail::join(values, ","));
    };
    command->add_option_function<std::vector<std::string>>(names, set_joined, help)
        ->allow_extra_args(false)  // what follows a name is another argument
        ->type_name(metavar)
        ->group(setting.group);
  } else {
    command->add_option_function<std::string>(flag, set, help)
        ->type_name(metavar)
        ->take_last()
        ->group(setting.group);
  }
}

}  // namespace

void AddSettingFlags(bool (*is_wanted)(std::string_view key), GivenSettings* given, CLI::App* command) {
  for (const Setting& setting : ServeSettings()) {
    if (is_wanted(setting.key)) AddFlag(setting, given, command);
  }
}

std::vector<std::string> ApplyFlags(const GivenSettings& given, ServeConfig* config) {
  std::vector<std::string> problems;
  for (const auto& [setting, text] : given) {
    const std::string problem = setting->set(*config, text);
    if (!problem.empty()) problems.push_back(FlagOf(*setting) + " " + problem);
  }
  return problems;
}

}  // namespace tramontane
