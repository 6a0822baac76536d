// RequestIds: the calls in progress by their callers and ids, so that they can be aborted. Ids are a caller's
// own: two may use the same one at once. Any thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace tramontane {

class ServedCall;

class RequestIds {
 public:
  // False: the caller has a call of that id. A call is here only while it lives.
  bool Add(const std::string& caller, const std::string& id, ServedCall* call);
  void Remove(const std::string& caller, const std::string& id);
  // False: the caller has none of that id.
  bool Cancel(const std::string& caller, const std::string& id);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, ServedCall*> calls_;
};

}  // namespace tramontane
