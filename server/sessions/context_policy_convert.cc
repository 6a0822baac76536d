#include "server/sessions/context_policy_convert.h"

#include <cstdint>
#include <string>

namespace tramontane {

v1::ContextPolicy ContextPolicyToProto(const ContextPolicy& policy) {
  v1::ContextPolicy proto;
  proto.set_type(
      static_cast<v1::ContextPolicy::Type>(v1::ContextPolicy::TYPE_NONE + static_cast<int>(policy.type)));
  if (policy.type == ContextPolicyType::kNone) return proto;
  proto.set_n_ctx(policy.n_ctx);
  proto.set_n_keep(policy.n_keep);
  if (policy.n_discard > 0) proto.set_n_discard(policy.n_discard);
  return proto;
}

RpcError ContextPolicyFromProto(const v1::ContextPolicy& proto, ContextPolicy* policy) {
  if (proto.type() < v1::ContextPolicy::TYPE_NONE || proto.type() > v1::ContextPolicy::TYPE_REEVALUATE) {
    return FieldError("context_policy.type",
                      "is " + std::to_string(proto.type()) + "; it must be from 1 (none) to 4 (reevaluate)");
  }
  policy->type = static_cast<ContextPolicyType>(proto.type() - v1::ContextPolicy::TYPE_NONE);
  if (policy->type == ContextPolicyType::kNone) {
    const auto needless = [](const char* name, int64_t value) {
      return FieldError(std::string("context_policy.") + name,
                        "is " + std::to_string(value) + "; under type none it must be unset");
    };
    if (proto.has_n_ctx()) return needless("n_ctx", proto.n_ctx());
    if (proto.has_n_keep()) return needless("n_keep", proto.n_keep());
    if (proto.has_n_discard()) return needless("n_discard", proto.n_discard());
  }
  if (proto.has_n_ctx() && proto.n_ctx() < 1) {
    return FieldError("context_policy.n_ctx", "is " + std::to_string(proto.n_ctx()) + "; the least is 1");
  }
  if (proto.has_n_discard() && proto.n_discard() < 1) {
    return FieldError("context_policy.n_discard",
                      "is " + std::to_string(proto.n_discard()) + "; the least is 1");
  }
  policy->n_ctx = proto.n_ctx();
  if (proto.has_n_keep()) policy->n_keep = proto.n_keep();
  policy->n_discard = proto.n_discard();
  return {};
}

}  // namespace tramontane
