// KvTablesText: the KV cache's tables as one JSON object, from the moment on when the engine has told them.
// One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/transfer/kv_report.h"
#include "server/watch/pending_text.h"

namespace tramontane {

std::string KvReportJson(const KvReport& report);

class KvTablesText final : public PendingText {
 public:
  explicit KvTablesText(std::shared_ptr<const KvQuestion> question);
  std::optional<std::string> Take() override;

 private:
  const std::shared_ptr<const KvQuestion> question_;
};

}  // namespace tramontane
