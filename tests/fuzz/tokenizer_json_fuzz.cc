// Any bytes as a tokenizer.json: an error naming the file, or a tokenizer that works. The first byte chooses
// what tokenizer_config.json says.
//
// A vocabulary needs its 256 bytes, which mutations seldom leave alone: so that the rest of a file is reached
// too, "@" in the input stands for the pieces of the bytes as ByteLevel spells them, "~" for those of a byte
// fallback. They have the ids from 1000 on.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/tokenizer/detokenizer.h"
#include "models/tokenizer/hugging_face_tokenizer.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {
namespace {

std::string ByteLevelPieces() {
  std::string pieces;
  uint32_t others = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    pieces += byte == 0 ? "\"" : ",\"";
    if (byte == '"' || byte == '\\') pieces += '\\';
    AppendUtf8(is_printable ? byte : others++, &pieces);
    pieces += "\":" + std::to_string(1000 + byte);
  }
  return pieces;
}

std::string FallbackPieces() {
  std::string pieces;
  for (int byte = 0; byte < 256; ++byte) {
    char piece[32];
    std::snprintf(piece, sizeof(piece), "%s\"<0x%02X>\":%d", byte == 0 ? "" : ",", byte, 1000 + byte);
    pieces += piece;
  }
  return pieces;
}

void CheckStream(const HuggingFaceTokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    detokenizer.Append(id, &streamed);
    TM_CHECK(IsUtf8(streamed), "the stream shows half a character");
  }
  detokenizer.Flush(&streamed);
  TM_CHECK(streamed == tokenizer.Decode(ids).value(), "the stream is not the text");
}

void CheckTokenizer(const HuggingFaceTokenizer& tokenizer) {
  const std::string_view text = "Hello  <s>caf\u00E9 \U0001F642 12ab's<tool> </s>\n";
  for (const auto control :
       {HuggingFaceTokenizer::ControlTokens::kAreText, HuggingFaceTokenizer::ControlTokens::kAreParsed}) {
    EncodeWork work;
    const StatusOr<std::vector<int32_t>> ids = tokenizer.EncodeCounted(text, control, &work);
    if (!ids.ok()) {  // a pattern of its own may run away
      TM_CHECK(ids.status().message().starts_with("the tokenizer's pattern "), "%s",
               ids.status().message().c_str());
      continue;
    }
    for (const int32_t id : *ids) {
      const bool may_be =
          control == HuggingFaceTokenizer::ControlTokens::kAreParsed && id < tokenizer.vocab_size();
      TM_CHECK(id >= 0 && (may_be || !tokenizer.IsControl(id)), "text gave control token %d", id);
    }
    TM_CHECK(work.pair_lookups <= 3 * work.symbols && work.heap_pops <= work.pair_lookups, "too much work");
    CheckStream(tokenizer, *ids);
  }
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    TM_CHECK(IsUtf8(tokenizer.Piece(id)), "piece %d is not spelled in UTF-8", id);
  }
  TM_CHECK(tokenizer.bos_id() >= -1 && tokenizer.bos_id() < tokenizer.vocab_size(), "no such bos");
}

void CheckFile(uint8_t choice, std::string file) {
  static const std::string byte_level = ByteLevelPieces();
  static const std::string fallback = FallbackPieces();
  if (const size_t at = file.find('@'); at != std::string::npos) file.replace(at, 1, byte_level);
  if (const size_t at = file.find('~'); at != std::string::npos) file.replace(at, 1, fallback);
  TokenizerConfigFile config;
  if ((choice & 1) != 0) config.bos_token = "<s>";
  if ((choice & 2) != 0) config.eos_token = "a";
  if ((choice & 4) != 0) config.adds_bos = TokenizerConfigFile::AddsBos::kYes;
  auto contents = ParseTokenizerJson(file, "fuzz");
  if (!contents.ok()) {
    TM_CHECK(contents.status().message().starts_with("fuzz: "), "the error does not name the file");
    return;
  }
  const auto tokenizer = HuggingFaceTokenizer::Create(std::move(*contents), config, "fuzz");
  if (tokenizer.ok()) {
    CheckTokenizer(**tokenizer);
  } else {
    TM_CHECK(tokenizer.status().message().starts_with("fuzz: "), "the error does not name the file");
  }
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // As a tokenizer_config.json too: it is small.
  const auto config = tramontane::ParseTokenizerConfig(input, "fuzz");
  TM_CHECK(config.ok() || config.status().message().starts_with("fuzz: "),
           "the error does not name the file");
  if (size > 0) tramontane::CheckFile(data[0], std::string(input.substr(1)));
  return 0;
}
