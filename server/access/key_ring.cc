#include "server/access/key_ring.h"

#include <openssl/crypto.h>

#include <cstring>
#include <ctime>
#include <utility>

#include "server/access/key_file.h"
#include "server/access/whole_file.h"

namespace tramontane {
namespace {

constexpr int64_t kMostFileBytes = int64_t{64} << 20;

uint64_t FirstBytes(const KeyDigest& digest) {
  uint64_t first = 0;
  std::memcpy(&first, digest.data(), sizeof first);
  return first;
}

}  // namespace

StatusOr<std::unique_ptr<KeyRing>> KeyRing::Open(const std::string& path, std::vector<std::string>* warnings,
                                                 KeyUse::NowNs now_ns) {
  std::unique_ptr<KeyRing> ring(new KeyRing(path, std::move(now_ns)));
  TM_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(path, kMostFileBytes));
  TM_RETURN_IF_ERROR(ring->Take(content));
  ring->looked_at_ = content;
  if (OthersCanRead(path)) warnings->emplace_back(kOthersCanRead);
  return ring;
}

Status KeyRing::Take(const std::string& content) {
  TM_ASSIGN_OR_RETURN(std::vector<ApiKey> keys, ParseKeyFile(content));
  auto table = std::make_shared<Table>();
  for (ApiKey& key : keys) {
    table->has_admin = table->has_admin || key.admin;
    const auto before = Named(key.name);
    key.use = before == nullptr ? std::make_shared<KeyUse>(key, now_ns_) : before->use;
    key.use->SetBounds(key);
    const uint64_t first = FirstBytes(key.digest);
    const auto taken = std::make_shared<const ApiKey>(std::move(key));
    table->keys.emplace(first, taken);
    table->named.emplace(taken->name, taken);
  }
  const std::lock_guard lock(mutex_);
  table_ = std::move(table);
  return {};
}

Reloaded KeyRing::LookAgain(std::string* fault) {
  const StatusOr<std::string> content = ReadWholeFile(path_, kMostFileBytes);
  const std::string seen = content.ok() ? *content : content.status().message();
  {
    const std::lock_guard lock(mutex_);
    if (seen == looked_at_) return Reloaded::kUnchanged;
    looked_at_ = seen;
  }
  const Status status = content.ok() ? Take(*content) : content.status();
  if (status.ok()) return Reloaded::kTaken;
  *fault = status.message();
  return Reloaded::kFailed;
}

std::shared_ptr<const ApiKey> KeyRing::Find(std::string_view key) const {
  if (key.empty() || key.size() > kMostKeyBytes) return nullptr;
  const KeyDigest digest = DigestOfKey(key);
  const std::shared_ptr<const Table> keys = table();
  const auto [begin, end] = keys->keys.equal_range(FirstBytes(digest));
  for (auto at = begin; at != end; ++at) {
    const bool is_it = CRYPTO_memcmp(at->second->digest.data(), digest.data(), digest.size()) == 0;
    if (is_it) return at->second->IsValidAt(std::time(nullptr)) ? at->second : nullptr;
  }
  return nullptr;
}

std::shared_ptr<const ApiKey> KeyRing::Named(const std::string& name) const {
  const std::shared_ptr<const Table> keys = table();
  const auto found = keys->named.find(name);
  return found == keys->named.end() ? nullptr : found->second;
}

bool KeyRing::has_admin() const { return table()->has_admin; }
size_t KeyRing::size() const { return table()->keys.size(); }

std::shared_ptr<const KeyRing::Table> KeyRing::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

}  // namespace tramontane
