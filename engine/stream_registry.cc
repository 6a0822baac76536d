#include "engine/stream_registry.h"

namespace tramontane {

bool StreamRegistry::Add(const std::shared_ptr<TokenStream>& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.try_emplace(stream->request_id(), stream).second;
}

void StreamRegistry::Remove(const std::string& request_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(request_id);
}

std::shared_ptr<TokenStream> StreamRegistry::Find(const std::string& request_id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(request_id);
  return found == streams_.end() ? nullptr : found->second;
}

}  // namespace tramontane
