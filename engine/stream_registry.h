// StreamRegistry: which request ids are alive, for Abort and to keep ids distinct.
// Any thread but the engine's: it takes a mutex. Entries live from Submit until the output thread is done.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "engine/token_stream.h"

namespace tramontane {

class StreamRegistry {
 public:
  // False when a request of that id is alive.
  bool Add(const std::shared_ptr<TokenStream>& stream);
  void Remove(const std::string& request_id);
  std::shared_ptr<TokenStream> Find(const std::string& request_id) const;  // null when there is none

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<TokenStream>> streams_;
};

}  // namespace tramontane
