#include "tests/tidy/declarations.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace tramontane::tidy {
namespace {

struct Token {
  std::string text;
  int64_t line = 0;
};
using Tokens = std::vector<Token>;

// ---- code to tokens

bool IsNameByte(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Names, numbers, "::" and single marks; without comments, literals and directives, which declare nothing.
class Tokenizer {
 public:
  explicit Tokenizer(std::string_view code) : code_(code) {}

  Tokens Run() {
    while (at_ < code_.size()) Next();
    return std::move(tokens_);
  }

 private:
  void Next() {
    const char c = code_[at_];
    if (c == '\n') starts_line_ = true;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) return Skip(1);
    if (c == '#' && starts_line_) return SkipDirective();
    starts_line_ = false;
    if (Begins("//")) return SkipTo("\n", 0);
    if (Begins("/*")) return SkipTo("*/", 2);
    if (Begins("R\"")) return SkipRawString();
    if (c == '"' || c == '\'') return SkipLiteral(c);
    size_t bytes = Begins("::") ? 2 : 1;
    if (IsNameByte(c)) {
      const bool is_number = std::isdigit(static_cast<unsigned char>(c)) != 0;  // 1'000'000
      while (at_ + bytes < code_.size() &&
             (IsNameByte(code_[at_ + bytes]) || (is_number && code_[at_ + bytes] == '\''))) {
        ++bytes;
      }
    }
    tokens_.push_back({std::string(code_.substr(at_, bytes)), line_});
    Skip(bytes);
  }

  bool Begins(std::string_view text) const { return code_.substr(at_).starts_with(text); }

  void Skip(size_t bytes) {
    const std::string_view skipped = code_.substr(at_, bytes);
    line_ += std::count(skipped.begin(), skipped.end(), '\n');
    at_ += skipped.size();
  }

  void SkipTo(std::string_view end, size_t and_of_it) {
    const size_t found = code_.find(end, at_ + 1);
    Skip(found == std::string_view::npos ? code_.size() : found + and_of_it - at_);
  }

  void SkipDirective() {
    do {
      SkipTo("\n", 0);
    } while (at_ < code_.size() && code_[at_ - 1] == '\\');
  }

  void SkipRawString() {
    const size_t open = code_.find('(', at_);
    SkipTo(")" + std::string(code_.substr(at_ + 2, open - at_ - 2)) + "\"", open - at_);
  }

  void SkipLiteral(char quote) {
    size_t end = at_ + 1;
    while (end < code_.size() && code_[end] != quote) end += code_[end] == '\\' ? 2 : 1;
    Skip(end + 1 - at_);
  }

  const std::string_view code_;
  size_t at_ = 0;
  int64_t line_ = 1;
  bool starts_line_ = true;
  Tokens tokens_;
};

// ---- tokens to declarations

bool IsName(const std::string& token) {
  return std::isalpha(static_cast<unsigned char>(token[0])) != 0 || token[0] == '_';
}

bool Holds(const Tokens& tokens, std::string_view text) {
  return std::any_of(tokens.begin(), tokens.end(), [&](const Token& token) { return token.text == text; });
}

// The place behind the bracket that closes the one at `at`.
size_t Behind(const Tokens& tokens, size_t at, std::string_view open, std::string_view close) {
  int depth = 0;
  for (; at < tokens.size(); ++at) {
    if (tokens[at].text == open) ++depth;
    if (tokens[at].text == close && --depth == 0) return at + 1;
  }
  return at;
}

// Without `template <...>`, attributes and alignments.
Tokens Bare(const Tokens& statement) {
  Tokens bare;
  for (size_t at = 0; at < statement.size();) {
    const std::string& text = statement[at].text;
    const std::string next = at + 1 < statement.size() ? statement[at + 1].text : "";
    if (text == "template" && next == "<") {
      at = Behind(statement, at + 1, "<", ">");
    } else if (text == "[" && next == "[") {
      at = Behind(statement, at, "[", "]");
    } else if ((text == "alignas" || text == "__align__") && next == "(") {
      at = Behind(statement, at + 1, "(", ")");
    } else {
      bare.push_back(statement[at++]);
    }
  }
  return bare;
}

// "class Engine final : public Runner {", "enum class Kind : uint8_t {".
std::optional<Token> TypeIn(const Tokens& bare) {
  size_t at = 0;
  if (bare.empty() || (bare[0].text != "class" && bare[0].text != "struct" && bare[0].text != "union" &&
                       bare[0].text != "enum")) {
    return std::nullopt;
  }
  ++at;
  if (at < bare.size() && (bare[at].text == "class" || bare[at].text == "struct")) ++at;
  if (at >= bare.size() || !IsName(bare[at].text)) return std::nullopt;
  const bool ends = at + 1 == bare.size() || bare[at + 1].text == "final" || bare[at + 1].text == ":";
  return ends ? std::optional(bare[at]) : std::nullopt;
}

// "inline constexpr int32_t kTop = 20;", "const std::array<int, 2> kPair{...": the name before the value.
std::optional<Token> ConstantIn(const Tokens& bare) {
  if (!Holds(bare, "const") && !Holds(bare, "constexpr")) return std::nullopt;
  std::optional<Token> name;
  for (const Token& token : bare) {
    if (token.text == "=" || token.text == "[") break;
    if (token.text == "(" || token.text == "operator") return std::nullopt;  // a function
    name = token;
  }
  return name && IsName(name->text) ? name : std::nullopt;
}

std::optional<Token> AliasIn(const Tokens& bare) {
  const bool is_alias = bare.size() > 3 && bare[0].text == "using" && bare[2].text == "=";
  return is_alias ? std::optional(bare[1]) : std::nullopt;
}

// "StatusOr<Plan> MakePlan(const Options& options) {": the name before the parentheses. Not of a member.
std::optional<Token> FunctionIn(const Tokens& bare) {
  for (size_t at = 0; at < bare.size(); ++at) {
    if (bare[at].text == "=" || bare[at].text == "operator" || bare[at].text == "using") return std::nullopt;
    if (bare[at].text == "<") at = Behind(bare, at, "<", ">") - 1;
    if (at + 1 >= bare.size() || bare[at + 1].text != "(") continue;
    const bool is_function =
        at > 0 && IsName(bare[at].text) && bare[at - 1].text != "::" && bare[at - 1].text != "~";
    return is_function ? std::optional(bare[at]) : std::nullopt;
  }
  return std::nullopt;
}

// "namespace a::b" is "a::b::"; "namespace" has no name. `extern "C"` opens no namespace, but hides nothing
// either.
struct Scope {
  enum class Kind { kNamed, kUnnamed, kOther } kind = Kind::kOther;
  std::string prefix;
};

Scope ScopeOf(const Tokens& statement) {
  const bool is_inline = !statement.empty() && statement[0].text == "inline";
  const size_t at = is_inline ? 1 : 0;
  if (statement.size() == 1 && statement[0].text == "extern") return {Scope::Kind::kNamed, ""};
  if (at >= statement.size() || statement[at].text != "namespace") return {};
  std::string prefix;
  for (size_t part = at + 1; part < statement.size(); ++part) prefix += statement[part].text;
  if (prefix.empty()) return {Scope::Kind::kUnnamed, ""};
  return {Scope::Kind::kNamed, prefix + "::"};
}

// What a reader looks for: the last two with functions, kFunctions nothing else.
enum class Wanted { kSeen, kHidden, kFunctions };

class Reader {
 public:
  explicit Reader(Wanted wanted) : wanted_(wanted) {}

  std::vector<Declaration> Read(const Tokens& tokens) {
    for (const Token& token : tokens) {
      if (token.text == "{") {
        Open();
      } else if (token.text == "}") {
        if (!scopes_.empty()) scopes_.pop_back();
        statement_.clear();
      } else if (token.text == ";") {
        if (IsWantedHere()) EndOfStatement();
        statement_.clear();
      } else {
        statement_.push_back(token);
      }
    }
    return std::move(found_);
  }

 private:
  // Whether what stands here is in namespaces, and as hidden from other files as is wanted.
  bool IsWantedHere() const {
    const auto is = [](Scope::Kind kind) {
      return [kind](const Scope& scope) { return scope.kind == kind; };
    };
    if (std::any_of(scopes_.begin(), scopes_.end(), is(Scope::Kind::kOther))) return false;
    const bool is_hidden = std::any_of(scopes_.begin(), scopes_.end(), is(Scope::Kind::kUnnamed));
    return is_hidden == (wanted_ == Wanted::kHidden);
  }

  void Open() {
    const Scope scope = ScopeOf(statement_);
    if (IsWantedHere() && scope.kind == Scope::Kind::kOther) {
      const Tokens bare = Bare(statement_);
      if (const auto type = TypeIn(bare)) AddOther(*type);
      if (const auto constant = ConstantIn(bare)) AddOther(*constant);
      AddFunction(bare);
    }
    scopes_.push_back(scope);
    statement_.clear();
  }

  void EndOfStatement() {
    const Tokens bare = Bare(statement_);
    if (const auto alias = AliasIn(bare)) return AddOther(*alias);
    AddFunction(bare);
    if (!Holds(bare, "=")) return;
    if (const auto constant = ConstantIn(bare)) AddOther(*constant);
  }

  void AddFunction(const Tokens& bare) {
    if (wanted_ == Wanted::kSeen) return;
    if (const auto function = FunctionIn(bare)) Add(*function);
  }

  void AddOther(const Token& name) {
    if (wanted_ != Wanted::kFunctions) Add(name);
  }

  void Add(const Token& name) {
    std::string prefix;
    for (const Scope& scope : scopes_) prefix += scope.prefix;
    found_.push_back({prefix + name.text, name.line});
  }

  const Wanted wanted_;
  std::vector<Scope> scopes_;
  Tokens statement_;  // since the last brace or semicolon
  std::vector<Declaration> found_;
};

}  // namespace

std::vector<Declaration> Declarations(const std::string& code) {
  return Reader(Wanted::kSeen).Read(Tokenizer(code).Run());
}

std::vector<Declaration> HiddenDeclarations(const std::string& code) {
  return Reader(Wanted::kHidden).Read(Tokenizer(code).Run());
}

std::vector<Declaration> Functions(const std::string& code) {
  return Reader(Wanted::kFunctions).Read(Tokenizer(code).Run());
}

}  // namespace tramontane::tidy
