// Any bytes as a SentencePiece model file: an error, or a tokenizer that works.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/sentencepiece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tramontane;
  auto model = ParseSentencePieceModel({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!model.ok()) {
    TM_CHECK(model.status().message().starts_with("fuzz: "), "the error does not name the file");
    return 0;
  }
  const SentencePieceTokenizer tokenizer(std::move(*model), TokenizerVersion::kV3);
  const StatusOr<std::vector<int32_t>> ids = tokenizer.Encode("Hello  [INST] caf\u00E9 \U0001F642\n");
  TM_CHECK(ids.ok(), "text that is UTF-8 is refused");
  for (const int32_t id : *ids) TM_CHECK(!tokenizer.IsControl(id), "text gave control token %d", id);
  const StatusOr<std::string> text = tokenizer.Decode(*ids);
  TM_CHECK(text.ok() && !FirstInvalidUtf8(*text), "the decoded text is not UTF-8");
  return 0;
}
