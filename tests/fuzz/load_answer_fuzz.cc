// Answers of servers to the load tool. The first byte says where the rest is cut; whole and cut it must give
// the same record, what a full parser takes for JSON the scanner must take too, and in what is shown there is
// no secret and no byte that a terminal obeys.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bench/load/wire/answer_reader.h"

namespace {

using tramontane::load::AnswerReader;
using tramontane::load::AnswerRules;
using tramontane::load::RequestRecord;

constexpr const char* kSecret = "sk-fuzz/01";

void CheckShown(const std::string& text) {
  if (text.size() > tramontane::load::kMaxServerTextBytes + 3) std::abort();
  if (tramontane::load::VisibleText(text) != text) std::abort();
  if (tramontane::load::WithoutSecret(text, kSecret) != text) std::abort();
}

RequestRecord RecordOf(std::string_view bytes, size_t piece) {
  static const AnswerRules rules{{}, kSecret, /*wants_timing=*/true};
  RequestRecord record;
  AnswerReader reader(&record, rules);
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    reader.Read(bytes.substr(0, piece), 1);
  }
  reader.Close(1, "closed");
  if (!reader.complete()) std::abort();
  CheckShown(record.error);
  return record;
}

void CheckSame(const RequestRecord& a, const RequestRecord& b) {
  const bool same = a.outcome == b.outcome && a.status == b.status && a.content_ns == b.content_ns &&
                    a.headers_ns == b.headers_ns && a.first_any_ns == b.first_any_ns &&
                    a.done_ns == b.done_ns && a.input_tokens == b.input_tokens &&
                    a.output_tokens == b.output_tokens && a.output_tokens_from == b.output_tokens_from &&
                    a.timing_json == b.timing_json;
  if (!same) std::abort();
}

// Only one way round: the scanner lets through halves of surrogate pairs and numbers beyond a double. And a
// full parser skips a byte order mark, which the event stream has taken already, and takes a zero byte for
// the end of the text.
void CheckJson(const std::string& text) {
  if (text.starts_with('\xEF') || text.find('\0') != std::string::npos) return;
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  std::string fault;
  const bool is_read = tramontane::load::ReadAnswerEvent(text, &fault).has_value();
  const bool is_deep = fault.find("brackets") != std::string::npos;
  if (parsed.is_object() && !is_read && !is_deep) std::abort();
  if (is_read && !parsed.is_discarded() && !parsed.is_object()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const RequestRecord whole = RecordOf(bytes, bytes.size() + 1);
  CheckSame(RecordOf(bytes, 1), whole);
  CheckSame(RecordOf(bytes, 1 + data[0]), whole);
  CheckJson(std::string(bytes));
  const std::string head = "HTTP/1.1 200 OK\r\n\r\n";  // most inputs get no further than a head of their own
  const std::string answer = head + std::string(bytes);
  CheckSame(RecordOf(answer, 1 + data[0]), RecordOf(answer, answer.size()));
  return 0;
}
