// Keys of a GGUF file's architecture, read one by one, and every key accounted for: what KeyReader is for
// JSON. Any thread; for gguf_config.cc and gguf_keys.cc alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/gguf/gguf_metadata.h"

namespace tramontane {

// Keys go by what follows the architecture: "block_count" is "llama.block_count". The first thing that was
// wrong is remembered, so that a list of reads is checked once at its end; after an error every read still
// gives a value in range.
class GgufKeyReader {
 public:
  GgufKeyReader(const GgufMetadata& metadata, const std::string& architecture)
      : metadata_(metadata), prefix_(architecture + ".") {}

  const GgufMetadata& metadata() const { return metadata_; }
  const Status& status() const { return status_; }
  const std::string& prefix() const { return prefix_; }
  std::string PathOf(const std::string& key) const { return prefix_ + key; }

  void MarkRead(const std::string& key) { seen_.insert(PathOf(key)); }
  bool WasRead(const std::string& path) const { return seen_.count(path) != 0; }
  bool Has(const std::string& key) {
    MarkRead(key);
    return metadata_.Has(PathOf(key));
  }

  int64_t Int(const std::string& key, int64_t least, int64_t most) {
    MarkRead(key);
    return Take(metadata_.Int(PathOf(key), least, most), least);
  }
  int64_t IntOr(const std::string& key, int64_t least, int64_t most, int64_t fallback) {
    return Has(key) ? Int(key, least, most) : fallback;
  }
  // The same of a key that may also be an array of `layers` numbers, one for each layer, all equal.
  int64_t IntOfLayers(const std::string& key, int64_t least, int64_t most, int64_t layers) {
    MarkRead(key);
    const auto found = metadata_.values().find(PathOf(key));
    if (found == metadata_.values().end() || found->second.kind != GgufKind::kArray)
      return Int(key, least, most);
    const std::vector<int64_t> numbers = Take(metadata_.Ints(PathOf(key), least, most), {least});
    if (!status_.ok()) return least;
    if (numbers.empty() || std::ssize(numbers) != layers) {
      Wrong(key, "a number, or an array of block_count = " + std::to_string(layers) + " numbers");
      return least;
    }
    const auto [fewest, greatest] = std::minmax_element(numbers.begin(), numbers.end());
    if (*fewest != *greatest) {
      Refuse(key, "from " + std::to_string(*fewest) + " to " + std::to_string(*greatest) +
                      " of them: layers that differ are not implemented");
    }
    return numbers.front();
  }
  // Of a key that is not of the architecture.
  int64_t OtherIntOr(const std::string& path, int64_t least, int64_t most, int64_t fallback) {
    return Take(metadata_.IntOr(path, least, most, fallback), fallback);
  }
  // In [least, most].
  double Number(const std::string& key, double least, double most) {
    MarkRead(key);
    const double number = Take(metadata_.Number(PathOf(key)), least);
    if (number >= least && number <= most) return number;
    char range[64];
    std::snprintf(range, sizeof(range), "a float from %g to %g", least, most);
    Wrong(key, range);
    return least;
  }
  double NumberOr(const std::string& key, double least, double most, double fallback) {
    return Has(key) ? Number(key, least, most) : fallback;
  }
  std::string StringOr(const std::string& key, const std::string& fallback) {
    return Has(key) ? std::string(Take(metadata_.String(PathOf(key)), {})) : fallback;
  }
  std::vector<bool> Bools(const std::string& key) {
    MarkRead(key);
    return Take(metadata_.Bools(PathOf(key)), {});
  }

  void Wrong(const std::string& key, const std::string& wanted) {
    Fail(InvalidArgument(Named(key) + "; it must be " + wanted));
  }
  void Refuse(const std::string& key, const std::string& why) {
    Fail(Unimplemented(Named(key) + ": " + why));
  }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  template <typename T>
  T Take(StatusOr<T> read, T otherwise) {
    if (read.ok()) return *std::move(read);
    Fail(std::move(read).status());
    return otherwise;
  }
  // "FILE: key "llama.x" is 7"
  std::string Named(const std::string& key) const {
    const auto found = metadata_.values().find(PathOf(key));
    return metadata_.file() + ": key \"" + PathOf(key) + "\" is " +
           (found == metadata_.values().end() ? "missing" : GgufMetadata::Text(found->second));
  }

  const GgufMetadata& metadata_;
  const std::string prefix_;
  std::set<std::string> seen_;
  Status status_;
};

// The keys that nothing has read: refused where they would change the computation, else known to be harmless,
// or a warning.
void CheckOtherGgufKeys(GgufKeyReader& in, std::vector<std::string>& warnings);

}  // namespace tramontane
