// Any bytes as text and as ids: text survives encoding, and a stream of ids gives what decoding them at once
// gives.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/tokenizer/detokenizer.h"
#include "tests/fuzz/small_vocabulary.h"

namespace tramontane {
namespace {

constexpr std::string_view kMarker = "\xE2\x96\x81";  // the vocabulary's own spelling of a space

std::string WithPlainSpaces(std::string_view text) {
  std::string plain(text);
  for (size_t at = 0; (at = plain.find(kMarker, at)) != std::string::npos;)
    plain.replace(at, kMarker.size(), " ");
  return plain;
}

// `as_decoded`: the text as its ids spell it.
template <typename CountingTokenizer>
void CheckText(const CountingTokenizer& tokenizer, std::string_view text, const std::string& as_decoded) {
  EncodeWork work;
  const StatusOr<std::vector<int32_t>> ids = tokenizer.EncodeCounted(text, &work);
  TM_CHECK(ids.ok() == !FirstInvalidUtf8(text), "UTF-8 and acceptance differ");
  if (!ids.ok()) return;
  for (const int32_t id : *ids) TM_CHECK(!tokenizer.IsControl(id), "text gave control token %d", id);
  TM_CHECK(work.pair_lookups <= 3 * work.symbols && work.heap_pops <= work.pair_lookups,
           "more than linear work");
  TM_CHECK(tokenizer.Decode(*ids).value() == as_decoded, "the text did not survive");
}

void CheckIds(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int number = static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8;
    ids.push_back(number % tokenizer.vocab_size());
  }
  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    std::string step;
    detokenizer.Append(id, &step);
    TM_CHECK(!FirstInvalidUtf8(step), "half a character was shown");
    streamed += step;
    TM_CHECK(detokenizer.pending_bytes() <= Detokenizer::kMaxPendingBytes, "too much is held back");
  }
  detokenizer.Flush(&streamed);
  TM_CHECK(streamed == tokenizer.Decode(ids).value(), "the stream and Decode() differ");
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  tramontane::CheckText(tramontane::SmallVocabulary(), bytes, tramontane::WithPlainSpaces(bytes));
  tramontane::CheckText(tramontane::SmallTekkenVocabulary(), bytes, std::string(bytes));
  tramontane::CheckIds(tramontane::SmallVocabulary(), bytes);
  tramontane::CheckIds(tramontane::SmallTekkenVocabulary(), bytes);
  return 0;
}
