// Any bytes as a GGUF file with a tokenizer: an error, or a tokenizer whose ids are its own, and none of them
// control pieces where text stays text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "models/gguf/gguf_file.h"
#include "models/tokenizer/gguf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto contents = tramontane::ParseGguf(bytes, "fuzz");
  if (!contents.ok()) return 0;
  const auto loaded = tramontane::MakeGgufTokenizer(contents->metadata);
  if (!loaded.ok()) {
    TM_CHECK(loaded.status().message().find("fuzz") != std::string::npos, "the file is not named");
    return 0;
  }
  const tramontane::Tokenizer& tokenizer = **loaded;
  for (const std::string_view text : {"", "ab  abc 1234 !!\n", "<s>é漢</s><0x0A>"}) {
    const auto ids = tokenizer.Encode(text);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      TM_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id %d of %d", id, tokenizer.vocab_size());
      TM_CHECK(!tokenizer.IsControl(id), "text became control piece %d", id);
    }
    const auto parsed = tokenizer.EncodeWithControlTokens(text);
    TM_CHECK(parsed.ok() && tokenizer.Decode(*parsed).ok(), "its own ids cannot be read");
  }
  return 0;
}
