#include "tests/tidy/declarations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tramontane::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Names(const std::string& code) {
  std::vector<std::string> names;
  for (const Declaration& declared : Declarations(code)) names.push_back(declared.name);
  return names;
}

TEST(Declarations, TypesAliasesAndConstantsAreTold) {
  EXPECT_THAT(Names("namespace a {\n"
                    "class Engine final : public Runner { struct Inner {}; };\n"
                    "template <typename T>\nstruct alignas(16) Pair { T first; };\n"
                    "enum class Kind : uint8_t { kOne };\n"
                    "using Row = std::vector<int>;\n"
                    "inline constexpr int32_t kMost = 1'000 * sizeof(int);\n"
                    "constexpr std::array<int, 2> kPair = {{1, 2}};\n"
                    "const char kName[] = \"class Fake {\";\n"
                    "inline constexpr std::chrono::seconds kHangs{60};\n"
                    "}  // namespace a\n"),
              ElementsAre("a::Engine", "a::Pair", "a::Kind", "a::Row", "a::kMost", "a::kPair", "a::kName",
                          "a::kHangs"));
}

TEST(Declarations, NamesCarryTheirNamespaceAndLine) {
  EXPECT_THAT(
      Declarations("/* two\nlines */ struct A {};\nnamespace a::b {\nnamespace c {\nstruct A {};\n}}\n"),
      ElementsAre(Declaration{"A", 2}, Declaration{"a::b::c::A", 5}));
}

TEST(Declarations, WhatOtherFilesDoNotSeeIsNotTold) {
  EXPECT_THAT(Names("namespace a {\nnamespace {\nstruct Hidden {};\nconstexpr int kHidden = 1;\n}\n"
                    "int F() { struct Local {}; constexpr int kLocal = 2; return kLocal; }\n}\n"),
              IsEmpty());
}

TEST(HiddenDeclarations, TypesConstantsAndFunctionsOfUnnamedNamespacesAreTold) {
  const std::string code =
      "namespace a {\nint Seen();\nstruct SeenToo {};\nnamespace {\nusing Row = std::vector<int>;\n"
      "constexpr int kMost = 2;\ntemplate <typename T>\nstd::function<void(int)> Make(const T& x = T()) { "
      "return F(x); }\n"
      "Status Ahead(int x);\nclass Room { int Member(); };\nstruct Room::Inner {};\nint Room::Member() { "
      "return 1; }\n"
      "int counter = Count();\nRoom::~Room() {}\n}\n}\n";
  std::vector<std::string> names;
  for (const Declaration& declared : HiddenDeclarations(code)) names.push_back(declared.name);
  EXPECT_THAT(names, ElementsAre("a::Row", "a::kMost", "a::Make", "a::Ahead", "a::Room"));
  EXPECT_THAT(Functions(code), ElementsAre(Declaration{"a::Seen", 2}));
}

TEST(Declarations, WhatDefinesNothingNewIsNotTold) {
  EXPECT_THAT(Names("namespace a {\nclass Ahead;\nstruct Engine::Impl { int x = 0; };\n"
                    "template <> struct Traits<int> { };\n"
                    "constexpr bool Even(int x = 2) { return x % 2 == 0; }\n"
                    "const Row& Find();\nbool operator==(const A&, const A&) = default;\n"
                    "#define MACRO struct Fake { \\\n  int x; }\n"
                    "const char* text() { return R\"x(struct Fake { )\" )x\"; }\n}\n"),
              IsEmpty());
}

}  // namespace
}  // namespace tramontane::tidy
