#include "server/grpc/message_parts.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

// Messages that begin alike, a new one where the last has no room for more.
class Parts {
 public:
  Parts(v1::GenerateResponse empty, size_t most_bytes)
      : empty_(std::move(empty)), most_bytes_(most_bytes), bytes_(empty_.ByteSizeLong()), parts_{empty_} {}

  v1::GenerateResponse& RoomFor(size_t bytes) {
    if (bytes_ > empty_.ByteSizeLong() && bytes_ + bytes > most_bytes_) {
      parts_.push_back(empty_);
      bytes_ = empty_.ByteSizeLong();
    }
    bytes_ += bytes;
    return parts_.back();
  }
  std::vector<v1::GenerateResponse> Take() { return std::move(parts_); }

 private:
  const v1::GenerateResponse empty_;
  const size_t most_bytes_;
  size_t bytes_;  // of the last
  std::vector<v1::GenerateResponse> parts_;
};

constexpr size_t kHeadBytes = 8;  // of an entry: its tag and its length
constexpr size_t kIdBytes = 5;    // of a token id, in a packed list

std::vector<v1::GenerateResponse> PartsOfStarted(v1::Started started, size_t most_bytes) {
  v1::GenerateResponse empty;
  *empty.mutable_started() = started;
  empty.mutable_started()->clear_prompt_logprobs();
  empty.mutable_started()->clear_prompt();
  empty.mutable_started()->clear_unenforced();
  empty.mutable_started()->clear_ignored();
  Parts parts(std::move(empty), most_bytes);
  for (v1::TokenLogprob& entry : *started.mutable_prompt_logprobs()) {
    *parts.RoomFor(entry.ByteSizeLong() + kHeadBytes).mutable_started()->add_prompt_logprobs() =
        std::move(entry);
  }
  for (v1::PromptToken& entry : *started.mutable_prompt()) {
    *parts.RoomFor(entry.ByteSizeLong() + kHeadBytes).mutable_started()->add_prompt() = std::move(entry);
  }
  std::vector<v1::GenerateResponse> taken = parts.Take();
  v1::Started& first = *taken[0].mutable_started();
  *first.mutable_unenforced() = std::move(*started.mutable_unenforced());  // 1 KiB
  *first.mutable_ignored() = std::move(*started.mutable_ignored());        // 16 names
  for (size_t i = 0; i + 1 < taken.size(); ++i) taken[i].mutable_started()->set_more(true);
  return taken;
}

// Bytes of whole characters at the beginning of `text`, at most `most` but for a single one.
size_t PieceBytes(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  const size_t cut = most - TruncatedUtf8Bytes(text.substr(0, most));
  return cut > 0 ? cut : std::min(text.size(), size_t{4});
}

// Tokens that a part has, and how many of the choice there were before them, tell `completion_tokens`.
void AddTokens(const v1::Delta& delta, Parts* parts) {
  const int tokens = std::max(delta.token_ids_size(), delta.logprobs_size());
  for (int i = 0; i < tokens; ++i) {
    const size_t logprob_bytes =
        i < delta.logprobs_size() ? delta.logprobs(i).ByteSizeLong() + kHeadBytes : 0;
    v1::Delta& part = *parts->RoomFor(kIdBytes + logprob_bytes).mutable_delta();
    if (i < delta.token_ids_size()) part.add_token_ids(delta.token_ids(i));
    if (i < delta.logprobs_size()) *part.add_logprobs() = delta.logprobs(i);
    part.set_completion_tokens(delta.completion_tokens() - (tokens - 1 - i));
  }
}

std::vector<v1::GenerateResponse> PartsOfDelta(const v1::Delta& delta, size_t most_bytes) {
  v1::GenerateResponse empty;
  empty.mutable_delta()->set_choice(delta.choice());
  empty.mutable_delta()->set_completion_tokens(delta.completion_tokens());
  Parts parts(std::move(empty), most_bytes);
  AddTokens(delta, &parts);
  const size_t most_text = most_bytes / 2;
  for (std::string_view rest = delta.reasoning(); !rest.empty();) {
    const std::string_view piece = rest.substr(0, PieceBytes(rest, most_text));
    parts.RoomFor(piece.size() + kHeadBytes).mutable_delta()->mutable_reasoning()->append(piece);
    rest.remove_prefix(piece.size());
  }
  size_t begin = 0;
  int mark = 0;
  const auto text = std::string_view(delta.text());
  do {
    const size_t end = begin + PieceBytes(text.substr(begin), most_text);
    int marks_end = mark;
    while (marks_end < delta.marks_size() && static_cast<size_t>(delta.marks(marks_end).at()) <= end)
      ++marks_end;
    const size_t mark_bytes = static_cast<size_t>(marks_end - mark) * (2 * kHeadBytes);
    v1::Delta& part = *parts.RoomFor(end - begin + kHeadBytes + mark_bytes).mutable_delta();
    const auto before = static_cast<int32_t>(begin) - static_cast<int32_t>(part.text().size());
    part.mutable_text()->append(text.substr(begin, end - begin));
    for (; mark < marks_end; ++mark) {
      v1::Mark& moved = *part.add_marks();
      moved = delta.marks(mark);
      moved.set_at(moved.at() - before);
    }
    const bool calls_here = delta.has_tool_calls_at() && static_cast<size_t>(delta.tool_calls_at()) <= end &&
                            (begin == 0 || static_cast<size_t>(delta.tool_calls_at()) > begin);
    if (calls_here) part.set_tool_calls_at(delta.tool_calls_at() - before);
    begin = end;
  } while (begin < text.size());
  return parts.Take();
}

}  // namespace

int32_t MessagesIn(size_t bytes) {
  return static_cast<int32_t>(1 + (std::max<size_t>(bytes, 1) - 1) / kDefaultMessageBytes);
}

std::vector<v1::GenerateResponse> PartsOf(v1::GenerateResponse event, size_t most_bytes) {
  const bool is_long = event.ByteSizeLong() > most_bytes;
  if (is_long && event.has_started()) return PartsOfStarted(std::move(*event.mutable_started()), most_bytes);
  if (is_long && event.has_delta()) return PartsOfDelta(event.delta(), most_bytes);
  std::vector<v1::GenerateResponse> whole;
  whole.push_back(std::move(event));
  return whole;
}

}  // namespace tramontane
