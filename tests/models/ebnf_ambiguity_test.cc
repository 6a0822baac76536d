#include "models/grammar/ebnf_ambiguity.h"

#include <gtest/gtest.h>

#include <string>

#include "models/grammar/ebnf_check.h"

namespace tramontane {
namespace {

std::string Refusal(const std::string& grammar) {
  EXPECT_TRUE(CheckEbnf(grammar, {}).ok()) << grammar;
  const Status status = CheckUnambiguous(grammar);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << grammar;
  return status.message();
}

void ExpectTaken(const std::string& grammar) {
  EXPECT_TRUE(CheckEbnf(grammar, {}).ok()) << grammar;
  const Status status = CheckUnambiguous(grammar);
  EXPECT_TRUE(status.ok()) << status << "\n" << grammar;
}

// "r0 ::= ...", "r1 ::= ..." and so on, with % for the rule's number and $ for the next one's.
std::string Rules(int count, const std::string& body) {
  std::string rules;
  for (int i = 0; i < count; ++i) {
    rules += "r" + std::to_string(i) + " ::= ";
    for (const char c : body) {
      if (c == '%') {
        rules += std::to_string(i);
      } else if (c == '$') {
        rules += std::to_string(i + 1);
      } else {
        rules += c;
      }
    }
    rules += '\n';
  }
  return rules;
}

TEST(EbnfAmbiguity, RecursionOnBothSidesIsRefusedByRule) {
  for (const char* grammar : {
           "root ::= root root | \"a\"",
           "root ::= root root root | root root | \"c\" | \"\"",
           "root ::= root \"+\" root | [0-9]",
           "root ::= root \"+\" [0-9] | \"-\" root | [0-9]",
           "root ::= (\"\" | \"x\")? root | root \"y\" | \"z\"",
           "root ::= root",
       }) {
    EXPECT_NE(Refusal(grammar).find("rule \"root\""), std::string::npos) << grammar;
    EXPECT_NE(Refusal(grammar).find("ambiguous"), std::string::npos) << grammar;
  }
  EXPECT_NE(Refusal("root ::= \"(\" list \")\"\nlist ::= item | list \",\" list\nitem ::= \"i\"")
                .find("rule \"list\": is ambiguous: it may begin with itself and end with itself"),
            std::string::npos);
  EXPECT_NE(Refusal("root ::= a\na ::= b \"x\" a | \"a\"\nb ::= a | \"b\"").find("rule \"a\""),
            std::string::npos);
}

TEST(EbnfAmbiguity, RecursionOnOneSideOrInTheMiddleIsFine) {
  ExpectTaken(
      "root ::= root \"+\" term | term\nterm ::= term \"*\" factor | factor\n"
      "factor ::= [0-9]+ | \"-\" factor | \"(\" root \")\"");
  ExpectTaken("root ::= \"a\" root | \"\"");
  ExpectTaken("root ::= \"(\" root \")\" | \"[\" root \"]\" | \"\"");
  ExpectTaken("root ::= \"x\" root root");
}

TEST(EbnfAmbiguity, WhatMayBeEmptyIsNotRepeated) {
  EXPECT_NE(
      Refusal("root ::= (ws)* \"a\"\nws ::= [ ]*").find("rule \"root\": is ambiguous: at byte 10 it repeats"),
      std::string::npos);
  EXPECT_NE(Refusal("root ::= \"x\" list+\nlist ::= \"a\" | \"\"").find("at byte 13"), std::string::npos);
  EXPECT_NE(Refusal("root ::= (\"a\"? \"b\"?){2,5}").find("repeats"), std::string::npos);
  ExpectTaken("root ::= ws? \"a\"{1} (ws \"b\")*\nws ::= [ ]*");
}

TEST(EbnfAmbiguity, TooManyWaysToBeEmptyAreRefused) {
  EXPECT_NE(Refusal("root ::= r0\n" + Rules(260, "r$ r$ | \"x\" | \"\"") + "r260 ::= \"y\"?").find("64 ways"),
            std::string::npos);
  EXPECT_NE(Refusal("root ::= r0\n" + Rules(260, "r$ | \"\"") + "r260 ::= \"y\"").find("64 ways"),
            std::string::npos);
  EXPECT_NE(Refusal("root ::= a \"x\"\na ::= b | \"\"\nb ::= a? c\nc ::= a | \"d\"").find("rule"),
            std::string::npos);
}

TEST(EbnfAmbiguity, TooManyElementsThatMayBeEmptySideBySideAreRefused) {
  std::string root = "root ::= \"x\"";
  for (int i = 0; i < 260; ++i) root += " r" + std::to_string(i);
  EXPECT_NE(Refusal(root + "\n" + Rules(260, "\"a\" | \"\"")).find("more than 128 elements side by side"),
            std::string::npos);
  std::string options = "root ::= \"{\"";
  for (int i = 0; i < 100; ++i) options += " (\"key" + std::to_string(i) + "\" [0-9]+)?";
  ExpectTaken(options + " \"}\"");
}

// llama.cpp's, as people send it.
TEST(EbnfAmbiguity, GrammarsOfJsonAreTaken) {
  ExpectTaken(R"EBNF(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ([^"\\] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws  # a comment
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)EBNF");
}

TEST(EbnfAmbiguity, WhatIsNoGrammarIsLeftToTheLibrary) {
  for (const char* text : {"", "root", "root ::= (\"a\"", "::= a", "root ::= a b", "root ::= \"a\"**"}) {
    EXPECT_TRUE(CheckUnambiguous(text).ok()) << text;
  }
}

// No depth of rules is a depth of calls.
TEST(EbnfAmbiguity, ChainsOfThousandsOfRulesAreFollowed) {
  ExpectTaken("root ::= r0\n" + Rules(3000, "\"a\" r$ | r$ \"b\"") + "r3000 ::= \"y\"");
}

}  // namespace
}  // namespace tramontane
