// Any bytes as a tekken.json: an error naming the file, or a tokenizer that works.
//
// A vocabulary needs its 256 bytes, which mutations seldom leave alone: so that the rest of a file is reached
// too,
// "@" in the input stands for the entries of the bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/tokenizer/tekken.h"
#include "models/tokenizer/tekken_file.h"

namespace tramontane {
namespace {

std::string ByteEntries() {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string entries;
  for (size_t byte = 0; byte < 256; ++byte) {
    entries += (byte == 0 ? "{\"rank\":" : ",{\"rank\":") + std::to_string(byte) + ",\"token_bytes\":\"";
    entries += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    entries += "\"}";
  }
  return entries;
}

void CheckTokenizer(const TekkenTokenizer& tokenizer) {
  const std::string_view text = "Hello  [INST] caf\u00E9 \U0001F642 </s>\n";
  const StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) {  // a pattern of its own may leave text out
    TM_CHECK(ids.status().message().starts_with("the tokenizer's pattern "), "%s",
             ids.status().message().c_str());
    return;
  }
  for (const int32_t id : *ids) TM_CHECK(!tokenizer.IsControl(id), "text gave control token %d", id);
  TM_CHECK(tokenizer.Decode(*ids).value() == text, "the text did not survive");
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    TM_CHECK(IsUtf8(tokenizer.Piece(id)), "piece %d is not spelled in UTF-8", id);
  }
}

void CheckFile(std::string file) {
  static const std::string bytes = ByteEntries();
  if (const size_t at = file.find('@'); at != std::string::npos) file.replace(at, 1, bytes);
  auto contents = ParseTekkenFile(file, "fuzz");
  if (!contents.ok()) {
    TM_CHECK(contents.status().message().starts_with("fuzz: "), "the error does not name the file");
    return;
  }
  const auto tokenizer = TekkenTokenizer::Create(std::move(*contents), "fuzz");
  if (tokenizer.ok()) {
    CheckTokenizer(**tokenizer);
  } else {
    TM_CHECK(tokenizer.status().message().starts_with("fuzz: "), "the error does not name the file");
  }
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tramontane::CheckFile(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
