// AnswerRoom: what one answer may hold until its end, of its own bound and of what all answers may hold
// together. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/api/shared/api_error.h"
#include "server/base/held_bytes.h"

namespace tramontane {

// Plain values, of whoever answers.
struct AnswerRoomOptions {
  int64_t max_bytes = 0;         // of one answer; 0: no bound
  ByteBudget* budget = nullptr;  // of all; outlives the room; null: none
  std::string client = {};       // whose share of that it takes (AddressShare)
};

class AnswerRoom {
 public:
  explicit AnswerRoom(const AnswerRoomOptions& options) : max_bytes_(options.max_bytes) {
    if (options.budget != nullptr) held_.emplace(*options.budget, options.client);
  }

  // So much is held now. What stands against it: 429 where it is more than an answer may have, and would be
  // again; 503 where others hold too much.
  std::optional<ApiError> Hold(int64_t bytes);
  void LetGo() { held_.reset(); }

 private:
  const int64_t max_bytes_;
  std::optional<HeldBytes> held_;
};

}  // namespace tramontane
