// JinjaTemplate: a chat template in the language of Python's jinja2, parsed once, rendered for each request.
// llama_template.cc is the only file that knows the library behind it; absent_template.cc stands in where the
// build has none.
//
// Any thread: a template does not change after Parse(); every Render() has bounds of its own.
// Always: text, values and their sizes may come from strangers. What passes a bound of JinjaLimits ends with
// an error; stack and memory are bounded by them.
//
// It renders as transformers sets jinja2: trim_blocks, lstrip_blocks, break and continue, tojson without
// escapes, raise_exception, strftime_now. README.md lists what of jinja2 is not there.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {

struct JinjaLimits {
  int64_t max_template_bytes = 256 << 10;
  int64_t max_depth = 160;                        // of nested statements, expressions, calls and values
  int64_t max_steps = 20'000'000;                 // nodes visited, values made, kilobytes copied
  int64_t max_value_bytes = 16 << 20;             // of one string or list that the template makes
  int64_t max_memory_bytes = int64_t{256} << 20;  // of all values that live at once
  int64_t max_output_bytes = 16 << 20;
};

class JinjaTemplate {
 public:
  virtual ~JinjaTemplate() = default;

  // INVALID_ARGUMENT: "line 3: ...". UNIMPLEMENTED: this build has no library for it.
  static StatusOr<std::unique_ptr<const JinjaTemplate>> Parse(std::string_view text,
                                                              const JinjaLimits& limits = {});

  // `values` is an object, its members the template's names; `now` is what strftime_now() tells. Always
  // UTF-8. INVALID_ARGUMENT: the template refuses (its raise_exception's message alone), cannot be carried
  // out or passes a bound ("line 3: ...").
  virtual StatusOr<std::string> Render(const JsonValue& values, const std::tm& now) const = 0;
};

// Whether this build can parse templates.
bool HasJinja();

}  // namespace tramontane
