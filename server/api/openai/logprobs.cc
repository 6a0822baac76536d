#include "server/api/openai/logprobs.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "server/api/shared/json.h"
#include "server/call/answer_cost.h"

namespace tramontane {
namespace {

constexpr char kHex[] = "0123456789abcdef";

std::string TokenIdName(int32_t id) { return "token_id:" + std::to_string(id); }

// "bytes:\xe5\x8c"
std::string BytesName(std::string_view bytes) {
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    name += "\\x";
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  return name;
}

// Unlike the name of any other token but those that read the same.
std::string NameOf(const AnswerOptions& options, int32_t id, const std::string& bytes) {
  if (options.tokens_as_ids || bytes.empty()) return TokenIdName(id);
  return IsUtf8(bytes) ? bytes : BytesName(bytes);
}

// ---- chats --------------------------------------------------------------------------------------

// "token": ..., "logprob": ..., "bytes": ... of an object that is open. Token: TokenLogprob or TopLogprob.
template <typename Token>
void AppendScored(const Token& token, const AnswerOptions& options, std::string* out) {
  const std::string& bytes = token.token_bytes();
  const std::string& name = bytes.empty() ? token.piece() : bytes;
  *out += "\"token\":";
  AppendJsonString(options.tokens_as_ids || name.empty() ? TokenIdName(token.token_id()) : name, out);
  *out += ",\"logprob\":";
  AppendJsonLogprob(token.logprob(), out);
  *out += ",\"bytes\":";
  if (bytes.empty()) {
    *out += "null";
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    *out += i == 0 ? '[' : ',';
    AppendJsonInteger(static_cast<uint8_t>(bytes[i]), out);
  }
  *out += ']';
}

}  // namespace

void AppendChatLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens,
                        const AnswerOptions& options, std::string* out) {
  const char* comma = "";
  for (const v1::TokenLogprob& token : tokens) {
    *out += comma;
    *out += '{';
    AppendScored(token, options, out);
    *out += ",\"top_logprobs\":[";
    const char* top_comma = "{";
    for (const v1::TopLogprob& top : token.top()) {
      *out += top_comma;
      AppendScored(top, options, out);
      *out += '}';
      top_comma = ",{";
    }
    *out += "]}";
    comma = ",";
  }
}

// ---- completions --------------------------------------------------------------------------------

namespace {

void AppendEntry(std::string* list) {
  if (!list->empty()) *list += ',';
}

// Characters that begin in `bytes`, however tokens cut them.
int64_t CharactersBegun(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

// {" the": -0.5, ...}: the token itself, then the likeliest, as many as were asked for. Where two read the
// same, the likelier one stays: keys of an object are different.
void AppendTopDictionary(const AnswerOptions& options, const std::string& name, const v1::TokenLogprob& token,
                         std::string* out) {
  struct Entry {
    std::string name;
    float logprob;
  };
  std::vector<Entry> entries;
  const auto add = [&entries](std::string entry_name, float logprob) {
    const auto same = std::find_if(entries.begin(), entries.end(),
                                   [&](const Entry& entry) { return entry.name == entry_name; });
    if (same == entries.end()) entries.push_back({std::move(entry_name), logprob});
  };
  for (int i = 0; i < std::min(token.top_size(), options.logprobs); ++i) {
    const v1::TopLogprob& top = token.top(i);
    const bool is_itself = top.token_id() == token.token_id();
    add(is_itself ? name : NameOf(options, top.token_id(), top.token_bytes()), top.logprob());
  }
  add(name, token.logprob());
  const char* comma = "{";
  for (const Entry& entry : entries) {
    *out += comma;
    AppendJsonString(entry.name, out);
    *out += ':';
    AppendJsonLogprob(entry.logprob, out);
    comma = ",";
  }
  *out += '}';
}

}  // namespace

void CompletionLogprobs::AddPrompt(const v1::Started& started) {
  for (int i = 0; i < started.prompt_size(); ++i) {
    const v1::PromptToken& token = started.prompt(i);
    const bool is_scored = i > 0 && i <= started.prompt_logprobs_size();
    AddToken(token.token_id(), token.token_bytes(), is_scored ? &started.prompt_logprobs(i - 1) : nullptr);
  }
}

void CompletionLogprobs::GoOnFrom(std::shared_ptr<const CompletionLogprobs> before) {
  characters_ = before->characters_;
  before_ = std::move(before);
}

void CompletionLogprobs::Add(const v1::TokenLogprob& token) {
  AddToken(token.token_id(), token.token_bytes(), &token);
}

void CompletionLogprobs::AddToken(int32_t id, const std::string& bytes, const v1::TokenLogprob* scored) {
  const std::string name = NameOf(*options_, id, bytes);
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) AppendEntry(list);
  AppendJsonString(name, &tokens_);
  AppendJsonInteger(characters_, &offsets_);
  characters_ += CharactersBegun(bytes);
  if (scored == nullptr) {
    logprobs_ += "null";
    top_ += "null";
    return;
  }
  AppendJsonLogprob(scored->logprob(), &logprobs_);
  AppendTopDictionary(*options_, name, *scored, &top_);
}

void CompletionLogprobs::AppendTo(std::string* out) const {
  *out += "{\"tokens\":[";
  AppendList(&CompletionLogprobs::tokens_, out);
  *out += "],\"token_logprobs\":[";
  AppendList(&CompletionLogprobs::logprobs_, out);
  *out += "],\"top_logprobs\":[";
  AppendList(&CompletionLogprobs::top_, out);
  *out += "],\"text_offset\":[";
  AppendList(&CompletionLogprobs::offsets_, out);
  *out += "]}";
}

void CompletionLogprobs::AppendList(std::string CompletionLogprobs::* list, std::string* out) const {
  const std::string& own = this->*list;
  if (before_ != nullptr && !before_->empty()) {
    *out += (*before_).*list;
    if (!own.empty()) *out += ',';
  }
  *out += own;
}

void CompletionLogprobs::Clear() {
  before_ = nullptr;
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) list->clear();
}

// ---- prompts ------------------------------------------------------------------------------------

namespace {

void AppendDecoded(int32_t id, const std::string& bytes, float logprob, int64_t rank, std::string* out) {
  *out += '"';
  AppendJsonInteger(id, out);
  *out += "\":{\"logprob\":";
  AppendJsonLogprob(logprob, out);
  *out += ",\"rank\":";
  AppendJsonInteger(rank, out);
  *out += ",\"decoded_token\":";
  AppendJsonString(bytes, out);
  *out += '}';
}

}  // namespace

std::string PromptLogprobs(const v1::Started& started, const AnswerOptions& options) {
  std::string out = "[null";
  int64_t entries = 1;
  for (const v1::TokenLogprob& token : started.prompt_logprobs())
    entries += ScoreEntries(1, token.top_size());
  out.reserve(static_cast<size_t>(entries * kScoreTextBytes));  // memory that is not written costs nothing
  for (const v1::TokenLogprob& token : started.prompt_logprobs()) {
    out += ",{";
    AppendDecoded(token.token_id(), token.token_bytes(), token.logprob(), token.rank(), &out);
    for (int i = 0; i < std::min(token.top_size(), options.prompt_logprobs); ++i) {
      const v1::TopLogprob& top = token.top(i);
      if (top.token_id() == token.token_id()) continue;
      out += ',';
      AppendDecoded(top.token_id(), top.token_bytes(), top.logprob(), i + 1, &out);
    }
    out += '}';
  }
  out += ']';
  return out;
}

}  // namespace tramontane
