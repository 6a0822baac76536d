#include "models/jinja/jinja_template.h"

namespace tramontane {

StatusOr<std::unique_ptr<const JinjaTemplate>> JinjaTemplate::Parse(std::string_view, const JinjaLimits&) {
  return Status(StatusCode::kUnimplemented,
                "this build has no library for Jinja templates; build it with TRAMONTANE_JINJA=ON");
}

bool HasJinja() { return false; }

}  // namespace tramontane
