#include "kernels/context_policy.h"

#include <algorithm>
#include <string>

#include "kernels/core/broken_rule.h"

namespace tramontane {
namespace {

Status CheckWithin(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return InvalidArgument("is " + std::to_string(value) + ", allowed are " + std::to_string(least) + " to " +
                         std::to_string(most))
      .WithField(field, FieldForm::kSubject);
}

constexpr int64_t kMaxPolicyTokens = int64_t{1} << 26;

}  // namespace

const char* ContextPolicyName(ContextPolicyType type) {
  static constexpr const char* kNames[kContextPolicyTypes] = {"none", "sinks", "shift", "reevaluate"};
  return kNames[static_cast<size_t>(type)];
}

std::string ContextPolicyText(const ContextPolicy& policy) {
  std::string text = ContextPolicyName(policy.type);
  if (policy.type == ContextPolicyType::kNone) return text;
  text += " (n_ctx " + std::to_string(policy.n_ctx) + ", n_keep " + std::to_string(policy.n_keep);
  if (policy.n_discard > 0) text += ", n_discard " + std::to_string(policy.n_discard);
  return text + ")";
}

Status CheckContextPolicy(const ContextPolicy& policy) {
  if (policy.type == ContextPolicyType::kNone) return Status::Ok();
  TM_RETURN_IF_ERROR(CheckWithin("n_ctx", policy.n_ctx, 1, kMaxPolicyTokens));
  TM_RETURN_IF_ERROR(CheckWithin("n_keep", policy.n_keep, 0, policy.n_ctx - 1));
  if (policy.type == ContextPolicyType::kSinks) {
    if (policy.n_discard == 0) return Status::Ok();
    return InvalidArgument("is " + std::to_string(policy.n_discard) +
                           "; together with type sinks it must be unset: tokens go one by one")
        .WithField("n_discard", FieldForm::kSubject);
  }
  return CheckWithin("n_discard", policy.n_discard, 1, policy.n_ctx - policy.n_keep);
}

ContextView ViewAt(const ContextPolicy& policy, int64_t position) {
  ContextView view;
  view.sink_query_position = position;
  if (policy.type == ContextPolicyType::kNone) return view;
  view.sink_len = policy.n_keep;
  view.left = policy.n_keep;
  if (policy.type == ContextPolicyType::kSinks) {
    view.left = std::max(policy.n_keep, position + 1 - (policy.n_ctx - policy.n_keep));
    return view;
  }
  const int64_t beyond = std::max<int64_t>(0, position + 1 - policy.n_ctx);
  view.discarded = (beyond + policy.n_discard - 1) / policy.n_discard * policy.n_discard;
  view.left += view.discarded;
  view.sink_query_position = position - view.discarded;
  if (IsBroken(KvRule::kSinkQueryPosition)) view.sink_query_position = position;
  return view;
}

}  // namespace tramontane
