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

StatusOr<std::unique_ptr<KeyRing>> KeyRing::Open(const std::string& path,
                                                 std::vector<std::string>* warnings) {
  std::unique_ptr<KeyRing> ring(new KeyRing(path));
  TM_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(path, kMostFileBytes));
  TM_RETURN_IF_ERROR(ring->Take(content, warnings));
  ring->looked_at_ = content;
  if (OthersCanRead(path)) warnings->emplace_back(kOthersCanRead);
  return ring;
}

Status KeyRing::Take(const std::string& content, std::vector<std::string>* warnings) {
  TM_ASSIGN_OR_RETURN(KeyFile file, ParseKeyFile(content));
  auto table = std::make_shared<Table>();
  for (ApiKey& key : file.keys) {
    table->has_admin = table->has_admin || key.admin;
    const uint64_t first = FirstBytes(key.digest);
    table->keys.emplace(first, std::make_shared<const ApiKey>(std::move(key)));
  }
  *warnings = std::move(file.warnings);
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
  std::vector<std::string> warnings;
  const Status status = content.ok() ? Take(*content, &warnings) : content.status();
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

bool KeyRing::has_admin() const { return table()->has_admin; }
size_t KeyRing::size() const { return table()->keys.size(); }

std::shared_ptr<const KeyRing::Table> KeyRing::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

}  // namespace tramontane
