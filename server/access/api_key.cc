#include "server/access/api_key.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>

#include "kernels/core/check.h"

namespace tramontane {

bool ApiKey::MayUse(const std::string& model) const {
  return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
}

KeyDigest DigestOfKey(std::string_view key) {
  TM_CHECK(key.size() <= kMostKeyBytes, "a key of %zu bytes", key.size());
  KeyDigest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

std::string DrawKey() {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::array<uint8_t, 43> bytes{};
  TM_CHECK(RAND_bytes(bytes.data(), bytes.size()) == 1, "the system has no randomness");
  std::string key = "tm-";
  for (const uint8_t byte : bytes) key += kLetters[byte % 64];
  return key;
}

}  // namespace tramontane
