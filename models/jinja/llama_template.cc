// llama.cpp's evaluator behind JinjaTemplate: bounds, values, errors.
#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <utility>

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "kernels/core/utf8.h"
#include "models/jinja/jinja_template.h"

namespace jinja::bounds {

// What one parse or render has used. The thread's current one is found by Step() and the others.
class Account {
 public:
  explicit Account(const tramontane::JinjaLimits& limits) : limits_(limits), outer_(current) {
    current = this;
  }
  ~Account() {
    EndAll();
    current = outer_;
  }
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  void Step(size_t count) {
    steps_ += static_cast<int64_t>(std::min<size_t>(count, 1 << 30));
    if (steps_ > limits_.max_steps) Refuse("it takes more steps than", limits_.max_steps);
  }
  void CheckValue(int64_t count, size_t bytes) {
    const auto most = static_cast<uint64_t>(limits_.max_value_bytes);
    if (count <= 0 || bytes == 0) return;
    if (bytes > most || static_cast<uint64_t>(count) > most / bytes) {
      Refuse("a value has more bytes than", limits_.max_value_bytes);
    }
  }
  void Hold(size_t bytes) {
    memory_ += static_cast<int64_t>(bytes);
    if (memory_ > limits_.max_memory_bytes)
      Refuse("its values have more bytes than", limits_.max_memory_bytes);
  }
  void Drop(size_t bytes) { memory_ -= static_cast<int64_t>(bytes); }
  void Deepen() {
    if (depth_ == limits_.max_depth) Refuse("it is nested deeper than", limits_.max_depth);
    ++depth_;
  }
  void Rise(int levels) { depth_ -= levels; }
  void Enter(Tracked* value) {
    value->next_ = first_;
    if (first_ != nullptr) first_->previous_ = value;
    first_ = value;
  }
  void Leave(Tracked* value) {
    if (value->previous_ != nullptr) value->previous_->next_ = value->next_;
    if (value->next_ != nullptr) value->next_->previous_ = value->previous_;
    if (first_ == value) first_ = value->next_;
  }

  static thread_local Account* current;

 private:
  [[noreturn]] void Refuse(const char* what, int64_t limit) {
    steps_ = limits_.max_steps;  // so that the next step refuses too
    throw Exceeded{std::string(what) + " " + std::to_string(limit)};
  }
  // Of values that hold each other none would ever end by itself.
  void EndAll() noexcept {
    Remains remains;
    for (Tracked* value = first_; value != nullptr; value = value->next_) value->Release(remains);
    Bury(remains);
  }

  const tramontane::JinjaLimits& limits_;
  Account* outer_;
  Tracked* first_ = nullptr;
  int64_t steps_ = 0;
  int64_t memory_ = 0;
  int64_t depth_ = 0;
};

thread_local Account* Account::current = nullptr;

namespace {

constexpr size_t kValueBytes = 400;    // of a value without what it holds
constexpr size_t kBytesPerStep = 256;  // copied in the time of a step

}  // namespace

void Step(size_t count) { Account::current->Step(count); }
void Copy(size_t bytes) { Account::current->Step(bytes / kBytesPerStep); }
void Room(int64_t count, size_t bytes) {
  Account::current->CheckValue(count, bytes);
  Account::current->Step(1);
}

Deeper::~Deeper() { Account::current->Rise(levels_); }
void Deeper::More() {
  Account::current->Deepen();
  ++levels_;
}

Tracked::Tracked() { Enter(); }
Tracked::Tracked(const Tracked&) { Enter(); }
void Tracked::Enter() {
  Account::current->Step(1);
  Account::current->Hold(kValueBytes);
  Account::current->Enter(this);
}
Tracked::~Tracked() {
  Account::current->Leave(this);
  Account::current->Drop(kValueBytes + held_);
}
void Tracked::Hold() {
  if (held_ != 0) return;
  held_ = HeldBytes();
  Account::current->Hold(held_);
  Copy(held_);
}

void Bury(Remains& remains) noexcept {
  static thread_local Remains waiting;
  static thread_local bool is_burying = false;
  for (auto& value : remains.values) {
    if (value != nullptr) waiting.values.push_back(std::move(value));
  }
  for (auto& function : remains.functions) waiting.functions.push_back(std::move(function));
  if (is_burying) return;
  is_burying = true;
  while (!waiting.values.empty() || !waiting.functions.empty()) {
    if (!waiting.values.empty()) {
      const auto ends_here = std::move(waiting.values.back());
      waiting.values.pop_back();
    } else {
      const auto ends_here = std::move(waiting.functions.back());
      waiting.functions.pop_back();
    }
  }
  is_burying = false;
}

size_t CodePoints(const std::string& text) {
  Copy(text.size());
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string> SplitCodePoints(const std::string& text) {
  Room(static_cast<int64_t>(text.size()), sizeof(std::string));
  std::vector<std::string> characters;
  for (const char c : text) {
    const bool continues = (static_cast<uint8_t>(c) & 0xC0) == 0x80;
    if (characters.empty() || !continues) characters.emplace_back();
    characters.back() += c;
  }
  return characters;
}

// As repr() but for characters that Python does not print and are not control characters: these stay.
std::string Quoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      quoted += {'\\', c};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      quoted += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (byte < 0x20 || byte == 0x7F) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      quoted += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      quoted += c;
    }
  }
  return quoted + quote;
}

std::string FloatText(double value) { return tramontane::PythonFloat(value); }

}  // namespace jinja::bounds

namespace tramontane {
namespace {

// An integer beyond 64 bits, printed with all its digits and calculated with as a float.
struct LongInteger : jinja::value_float_t {
  LongInteger(double value, std::string text) : jinja::value_float_t(value), text(std::move(text)) {}
  std::string type() const override { return "Integer"; }
  jinja::string as_string() const override { return text; }

  std::string text;
};

jinja::value NumberOf(const JsonValue& json) {
  const bool is_integer = json.text.find_first_not_of("-0123456789") == std::string::npos;
  if (!is_integer) return jinja::mk_val<jinja::value_float>(json.number);
  int64_t integer = 0;
  const char* const end = json.text.data() + json.text.size();
  if (std::from_chars(json.text.data(), end, integer).ec == std::errc()) {
    return jinja::mk_val<jinja::value_int>(integer);
  }
  return std::make_shared<LongInteger>(json.number, json.text);
}

jinja::value ValueOf(const JsonValue& json) {
  jinja::bounds::Deeper deeper;
  switch (json.kind) {
    case JsonValue::Kind::kNull:
      return jinja::mk_val<jinja::value_none>();
    case JsonValue::Kind::kBool:
      return jinja::mk_val<jinja::value_bool>(json.boolean);
    case JsonValue::Kind::kNumber:
      return NumberOf(json);
    case JsonValue::Kind::kString: {
      const auto string = jinja::mk_val<jinja::value_string>(json.text);
      string->Hold();
      return string;
    }
    case JsonValue::Kind::kArray: {
      const auto array = jinja::mk_val<jinja::value_array>();
      for (const JsonValue& item : json.items) array->push_back(ValueOf(item));
      array->Hold();
      return array;
    }
    case JsonValue::Kind::kObject:
      break;
  }
  const auto object = jinja::mk_val<jinja::value_object>();
  for (const JsonMember& member : json.members) object->insert(member.key, ValueOf(member.value));
  object->Hold();
  return object;
}

// Carries out `work` and gives what it throws as an error: everything the library throws is the template's
// fault, or that of what it was given.
template <typename Work>
Status Guarded(Work work) {
  try {
    work();
  } catch (const jinja::bounds::Exceeded& exceeded) {
    return InvalidArgument(exceeded.sentence);
  } catch (const jinja::break_statement::signal&) {
    return InvalidArgument("a break outside of a loop");
  } catch (const jinja::continue_statement::signal&) {
    return InvalidArgument("a continue outside of a loop");
  } catch (const std::exception& fault) {
    return InvalidArgument(fault.what());
  }
  return Status::Ok();
}

class LlamaTemplate : public JinjaTemplate {
 public:
  LlamaTemplate(std::string text, const JinjaLimits& limits) : text_(std::move(text)), limits_(limits) {}

  Status Read() {
    jinja::bounds::Account account(limits_);
    return Guarded([&] {
      jinja::lexer lexer;
      program_ = jinja::parse_from_tokens(lexer.tokenize(text_));
    });
  }

  StatusOr<std::string> Render(const JsonValue& values, const std::tm& now) const override {
    jinja::bounds::Account account(limits_);
    std::string output;
    TM_RETURN_IF_ERROR(Guarded([&] {
      jinja::context context(text_);
      context.current_time = now;
      for (const JsonMember& member : values.members) context.set_val(member.key, ValueOf(member.value));
      const auto results = jinja::runtime(context).execute(program_);
      output = jinja::runtime::gather_string_parts(results)->val_str.str();
    }));
    if (output.size() > static_cast<size_t>(limits_.max_output_bytes)) {
      return InvalidArgument("its output of " + std::to_string(output.size()) + " bytes is longer than " +
                             std::to_string(limits_.max_output_bytes));
    }
    if (!IsUtf8(output)) return InvalidArgument("its output is not UTF-8");
    return output;
  }

 private:
  const std::string text_;
  const JinjaLimits limits_;
  jinja::program program_;
};

// As jinja2 reads a text: every line's end is '\n'.
std::string WithPlainLineEnds(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_return = text[i] == '\r';
    if (is_return && i + 1 < text.size() && text[i + 1] == '\n') continue;
    plain += is_return ? '\n' : text[i];
  }
  return plain;
}

}  // namespace

StatusOr<std::unique_ptr<const JinjaTemplate>> JinjaTemplate::Parse(std::string_view text,
                                                                    const JinjaLimits& limits) {
  if (text.size() > static_cast<size_t>(limits.max_template_bytes)) {
    return InvalidArgument("its " + std::to_string(text.size()) + " bytes are more than " +
                           std::to_string(limits.max_template_bytes));
  }
  if (!IsUtf8(text)) return InvalidArgument("it is not UTF-8");
  auto parsed = std::make_unique<LlamaTemplate>(WithPlainLineEnds(text), limits);
  TM_RETURN_IF_ERROR(parsed->Read());
  return std::unique_ptr<const JinjaTemplate>(std::move(parsed));
}

bool HasJinja() { return true; }

}  // namespace tramontane
