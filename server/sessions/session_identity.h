// SessionIdentity: what the keys and values of a saved session depend on besides its tokens, as its file says
// it: a JSON object, every member of which a reader must know. Plain values; any thread.
//
//   {"model":{"name":"breeze","fingerprint":"5f..","weights":"c0.."},
//    "adapter":null,            none is there today
//    "context_policy":{"type":"shift","n_ctx":4096,"n_keep":4,"n_discard":1024},    or {"type":"none"}
//    "salt":"9f..",             SHA-256 of the cache_salt; null: there is none
//    "spans":[]}                what stands for other things than its tokens: nothing today
#pragma once

#include <string>
#include <string_view>

#include "kernels/context_policy.h"
#include "kernels/core/status.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Digests in hexadecimal digits.
struct SessionIdentity {
  std::string model = {};             // the served name, for people
  std::string fingerprint = {};       // ModelFingerprint
  std::string weights = {};           // WeightsFingerprint
  ContextPolicy context_policy = {};  // with nothing left open
  std::string salt = {};              // SaltDigest

  bool operator==(const SessionIdentity&) const = default;
};

// "" of no salt.
std::string SaltDigest(const std::string& cache_salt);

std::string ToJson(const SessionIdentity& identity);
// FAILED_PRECONDITION goes on from "the file", and names the member: one that is missing, wrong, or unknown.
StatusOr<SessionIdentity> ParseSessionIdentity(std::string_view json);
// As fields of the head say it, in files of version 3.
StatusOr<SessionIdentity> IdentityOfVersion3(const v1::SavedSession& head);

}  // namespace tramontane
