// TemplateRenderer: a chat template in a language of its own, ready to run: the place where Jinja goes in.
// models/chat knows no language; whoever builds one in hands a TemplateCompiler to ChooseChatFormat.
//
// Any thread: a renderer does not change once made.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

class TemplateRenderer {
 public:
  virtual ~TemplateRenderer() = default;

  // `variables`: a JSON object of what the template may name: messages, tools, add_generation_prompt,
  // bos_token, eos_token and more. INVALID_ARGUMENT: what the template itself refuses (raise_exception), in
  // its words. RESOURCE_EXHAUSTED: a limit on steps, depth or output.
  virtual StatusOr<std::string> Render(std::string_view variables) const = 0;
};

// Errors name the line. Null where a build has no template language.
using TemplateCompiler = StatusOr<std::unique_ptr<const TemplateRenderer>> (*)(std::string_view text);

}  // namespace tramontane
