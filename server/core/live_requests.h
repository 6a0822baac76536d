// LiveRequestsText: the requests that are open, as one JSON object, once the engine has told of those that
// run. Never anything of what they say. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/output/token_stream.h"
#include "server/watch/pending_text.h"

namespace tramontane {

// One that is open, as its door knows it.
struct LiveCall {
  std::string id;
  std::string key;  // name of its caller's; "": none
  int64_t received_ns = 0;
  int64_t prompt_tokens = -1;                 // -1: not known yet
  std::shared_ptr<const TokenStream> stream;  // null: the engine has not been given it
};

class LiveRequestsText final : public PendingText {
 public:
  static constexpr size_t kRequests = 1024;  // the oldest; of the others it says how many

  // `calls`: in any order.
  LiveRequestsText(std::vector<LiveCall> calls, std::string model, int64_t now_ns,
                   std::shared_ptr<const LiveQuestion> question);
  std::optional<std::string> Take() override;

 private:
  std::vector<LiveCall> calls_;  // oldest first
  int64_t left_out_ = 0;
  const std::string model_;
  const int64_t now_ns_;
  const std::shared_ptr<const LiveQuestion> question_;
};

}  // namespace tramontane
