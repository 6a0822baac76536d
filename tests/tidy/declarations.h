// The names that a C++ file gives to types, constants and functions in namespaces: what other files can
// collide with. Any thread; pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tramontane::tidy {

struct Declaration {
  std::string name;  // "tramontane::v1::Backend"
  int64_t line = 0;

  friend bool operator==(const Declaration&, const Declaration&) = default;
};

// Classes, structs, unions, enums, aliases and const or constexpr variables at namespace scope, in the order
// of the file. Not those of unnamed namespaces, which no other file sees; nor specialisations, whose name is
// the template's. It reads tokens and knows no macros: enough for code that clang-format has laid out.
std::vector<Declaration> Declarations(const std::string& code);

// As Declarations, and functions, of unnamed namespaces alone: "tramontane::IsDigit" is one within
// tramontane.
std::vector<Declaration> HiddenDeclarations(const std::string& code);

// The functions of namespaces with a name, declared or defined; an overload is named again.
std::vector<Declaration> Functions(const std::string& code);

}  // namespace tramontane::tidy
