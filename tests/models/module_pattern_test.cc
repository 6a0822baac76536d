// Words of compressed-tensors for modules: the package puts each module into the same group
// (tests/golden/make_module_pattern_goldens.py).
#include "models/quantized/module_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace tramontane {
namespace {

using nlohmann::json;

std::vector<ModulePattern> Parsed(const json& texts) {
  std::vector<ModulePattern> patterns;
  for (const json& text : texts) patterns.push_back(ModulePattern::Parse(text).value());
  return patterns;
}

// -1: none.
int64_t GroupOf(const std::string& module, const json& groups, const json& ignore) {
  const ModuleNames names = NamesOfModule(module);
  if (MatchesAny(Parsed(ignore), names).value()) return -1;
  std::vector<std::vector<ModulePattern>> patterns;
  for (const json& targets : groups) patterns.push_back(Parsed(targets));
  std::vector<const ModulePattern*> all;
  std::vector<int64_t> group_of;
  for (size_t group = 0; group < patterns.size(); ++group) {
    for (const ModulePattern& pattern : patterns[group]) {
      all.push_back(&pattern);
      group_of.push_back(static_cast<int64_t>(group));
    }
  }
  const int64_t best = BestMatch(all, names).value();
  return best < 0 ? -1 : group_of[static_cast<size_t>(best)];
}

TEST(ModulePattern, ModulesAreInTheGroupsOfThePackage) {
  std::ifstream file(TRAMONTANE_SOURCE_DIR "/tests/golden/module_patterns.json");
  const json golden = json::parse(file);
  size_t compared = 0;
  for (const json& of : golden["cases"]) {
    for (const json& module : golden["modules"]) {
      const std::string name = module;
      const auto expected = of["group_of"].find(name);
      EXPECT_EQ(GroupOf(name, of["groups"], of["ignore"]),
                expected == of["group_of"].end() ? -1 : expected->get<int64_t>())
          << name << " of " << of["groups"] << " but " << of["ignore"];
      ++compared;
    }
  }
  EXPECT_EQ(compared, 20u * 79u);
}

// Files of models with a part for images have one of two names, and so have configs.
TEST(ModulePattern, ModulesOfAWrapperHaveBothOfTheirNames) {
  constexpr char kOld[] = "language_model.model.layers.3.mlp.up_proj";
  constexpr char kNew[] = "model.language_model.layers.3.mlp.up_proj";
  for (const char* module : {kOld, kNew}) {
    for (const char* text :
         {kOld, kNew, "re:language_model\\.model.*up_proj", "re:model\\.language_model.*up_proj"}) {
      EXPECT_TRUE(MatchesAny(Parsed({text}), NamesOfModule(module)).value()) << module << " " << text;
    }
  }
  EXPECT_TRUE(MatchesAny(Parsed({"lm_head"}), NamesOfModule("language_model.lm_head")).value());
  EXPECT_FALSE(MatchesAny(Parsed({"re:^(?!lm_head).*"}), NamesOfModule("lm_head")).value());
}

TEST(ModulePattern, ASearchEndsAtItsLimit) {
  const ModulePattern pattern = ModulePattern::Parse("re:(a|aa|a?)+[bc]").value();
  EXPECT_TRUE(pattern.Matches("aaaab").value());
  const auto matches = pattern.Matches(std::string(40, 'a'));
  ASSERT_FALSE(matches.ok());
  EXPECT_EQ(matches.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(matches.status().message(), testing::HasSubstr("the limit is 10000 steps"));
}

}  // namespace
}  // namespace tramontane
