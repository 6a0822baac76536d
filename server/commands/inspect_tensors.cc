#include "server/commands/inspect_tensors.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "models/tensor_values.h"
#include "models/weights.h"

namespace tramontane {
namespace {

using nlohmann::ordered_json;

// SHA-256 of what is added, bit by bit as it lies in memory.
class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    TM_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
             "OpenSSL has no SHA-256");
  }
  void Add(std::span<const float> values) {
    const int done = EVP_DigestUpdate(context_.get(), values.data(), values.size_bytes());
    TM_CHECK(done == 1, "OpenSSL cannot hash %zu bytes", values.size_bytes());
  }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    TM_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &bytes) == 1, "OpenSSL cannot end a hash");
    std::string text;
    for (unsigned int i = 0; i < bytes; ++i) {
      char byte[4];
      std::snprintf(byte, sizeof(byte), "%02x", digest[i]);
      text += byte;
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

std::string TensorLine(const std::string& name, const WeightFiles::Found& found) {
  constexpr size_t kHead = 8;
  const TensorInfo& tensor = *found.tensor;
  ordered_json line = {{"name", name},
                       {"type", tensor.dtype_name},
                       {"shape", tensor.shape},
                       {"f32_sha256", nullptr},
                       {"head", nullptr}};
  if (HasValues(tensor)) {
    Sha256 hash;
    ordered_json head = ordered_json::array();
    ReadValues(*found.file, tensor, [&](std::span<const float> values) {
      hash.Add(values);
      for (const float value : values.first(std::min(values.size(), kHead - head.size())))
        head.push_back(value);
    });
    line["f32_sha256"] = hash.Hex();
    line["head"] = std::move(head);
  }
  return line.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

Status PrintTensors(const std::string& path, const FileChoice& choice) {
  TM_ASSIGN_OR_RETURN(const ModelFolder folder, FindModelFiles(path, choice));
  TM_ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(folder));
  using Entry = std::pair<const std::string, WeightFiles::Found>;
  std::vector<const Entry*> by_place;
  for (const Entry& entry : files.all()) by_place.push_back(&entry);
  std::sort(by_place.begin(), by_place.end(), [](const Entry* a, const Entry* b) {
    const auto place = [](const WeightFiles::Found& found) {
      return std::tuple(found.file->path(), found.tensor->begin, found.tensor->end);
    };
    return place(a->second) < place(b->second);
  });
  for (const Entry* entry : by_place) {
    const std::string line = TensorLine(entry->first, entry->second);
    if (std::fputs(line.c_str(), stdout) < 0) break;
  }
  return std::fflush(stdout) == 0 ? Status::Ok() : Internal("standard output cannot be written");
}

}  // namespace tramontane
