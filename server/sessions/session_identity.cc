#include "server/sessions/session_identity.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "kernels/core/utf8.h"
#include "server/base/text.h"
#include "server/sessions/context_policy_convert.h"
#include "server/sessions/session_file.h"

namespace tramontane {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxIdentityBytes = size_t{64} << 10;

// Reads member by member. The first fault stays.
class IdentityReader {
 public:
  explicit IdentityReader(const Json& json) : json_(json) {}

  StatusOr<SessionIdentity> Read() {
    SessionIdentity identity;
    CheckMembers(json_, "identity", {"model", "adapter", "context_policy", "salt", "spans"});
    if (fault_.empty()) ReadModel(json_["model"], &identity);
    if (fault_.empty() && !json_["adapter"].is_null()) Fail("identity.adapter", "must be null");
    if (fault_.empty()) ReadPolicy(json_["context_policy"], &identity.context_policy);
    if (fault_.empty() && !json_["salt"].is_null()) identity.salt = Text(json_["salt"], "identity.salt");
    if (fault_.empty() && json_["spans"] != Json::array()) Fail("identity.spans", "must be an empty list");
    if (!fault_.empty()) return FailedPrecondition(fault_);
    return identity;
  }

 private:
  void Fail(const std::string& path, const std::string& what) {
    if (fault_.empty()) fault_ = "has an " + path + " that " + what;
  }

  // `json` is an object of these members and no others.
  void CheckMembers(const Json& json, const std::string& path, std::initializer_list<const char*> names) {
    if (!json.is_object()) return Fail(path, "must be an object");
    for (const auto& member : json.items()) {
      if (std::find(names.begin(), names.end(), member.key()) != names.end()) continue;
      return Fail(path + "." + Excerpt(member.key()), "this server does not know: a newer one has saved it");
    }
    for (const char* name : names) {
      if (!json.contains(name)) return Fail(path + "." + name, "is missing");
    }
  }
  std::string Text(const Json& json, const std::string& path) {
    if (json.is_string()) return json.get<std::string>();
    Fail(path, "must be text");
    return "";
  }
  int64_t Number(const Json& json, const std::string& path) {
    if (json.is_number_integer()) return json.get<int64_t>();
    Fail(path, "must be a whole number");
    return 0;
  }

  void ReadModel(const Json& json, SessionIdentity* identity) {
    CheckMembers(json, "identity.model", {"name", "fingerprint", "weights"});
    if (!fault_.empty()) return;
    identity->model = Text(json["name"], "identity.model.name");
    identity->fingerprint = Text(json["fingerprint"], "identity.model.fingerprint");
    identity->weights = Text(json["weights"], "identity.model.weights");
  }

  void ReadPolicy(const Json& json, ContextPolicy* policy) {
    const std::string path = "identity.context_policy";
    if (json == Json{{"type", "none"}}) return;
    CheckMembers(json, path, {"type", "n_ctx", "n_keep", "n_discard"});
    if (!fault_.empty()) return;
    for (const auto type :
         {ContextPolicyType::kSinks, ContextPolicyType::kShift, ContextPolicyType::kReevaluate}) {
      if (json["type"] == ContextPolicyName(type)) policy->type = type;
    }
    if (policy->type == ContextPolicyType::kNone) Fail(path + ".type", "this server does not know");
    policy->n_ctx = Number(json["n_ctx"], path + ".n_ctx");
    policy->n_keep = Number(json["n_keep"], path + ".n_keep");
    policy->n_discard = Number(json["n_discard"], path + ".n_discard");
  }

  const Json& json_;
  std::string fault_;
};

// With numbers of a policy that can be.
StatusOr<SessionIdentity> Checked(SessionIdentity identity) {
  const Status status = CheckContextPolicy(identity.context_policy);
  if (status.ok()) return identity;
  return FailedPrecondition("holds a policy that cannot be: context_policy." + status.message());
}

}  // namespace

std::string SaltDigest(const std::string& cache_salt) {
  return cache_salt.empty() ? "" : HexText(Sha256Digest(cache_salt));
}

std::string ToJson(const SessionIdentity& identity) {
  const ContextPolicy& policy = identity.context_policy;
  nlohmann::ordered_json json = {
      {"model",
       {{"name", identity.model}, {"fingerprint", identity.fingerprint}, {"weights", identity.weights}}},
      {"adapter", nullptr},
      {"context_policy", {{"type", ContextPolicyName(policy.type)}}},
      {"salt", nullptr},
      {"spans", nlohmann::ordered_json::array()}};
  if (policy.type != ContextPolicyType::kNone) {
    json["context_policy"].update(
        {{"n_ctx", policy.n_ctx}, {"n_keep", policy.n_keep}, {"n_discard", policy.n_discard}});
  }
  if (!identity.salt.empty()) json["salt"] = identity.salt;
  return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

StatusOr<SessionIdentity> ParseSessionIdentity(std::string_view text) {
  if (text.size() > kMaxIdentityBytes) {
    return FailedPrecondition("has an identity of " + std::to_string(text.size()) + " bytes; at most " +
                              std::to_string(kMaxIdentityBytes) + " are allowed");
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return FailedPrecondition("has an identity that is not JSON");
  TM_ASSIGN_OR_RETURN(SessionIdentity identity, IdentityReader(json).Read());
  return Checked(std::move(identity));
}

StatusOr<SessionIdentity> IdentityOfVersion3(const v1::SavedSession& head) {
  SessionIdentity identity = {.model = head.model(),
                              .fingerprint = HexText(head.fingerprint()),
                              .weights = HexText(head.kv().weights()),
                              .salt = SaltDigest(head.cache_salt())};
  if (!head.has_context_policy()) return identity;
  const RpcError error = ContextPolicyFromProto(head.context_policy(), &identity.context_policy);
  if (!error.ok()) return FailedPrecondition("holds a policy that cannot be: " + error.message());
  return Checked(std::move(identity));
}

}  // namespace tramontane
