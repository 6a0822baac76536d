#include "bench/load/prompt_text.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bench/load/json_text.h"
#include "models/tokenizer/load.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

class FileTokenizer final : public TextTokenizer {
 public:
  explicit FileTokenizer(std::unique_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  StatusOr<std::string> Decode(const std::vector<int32_t>& ids) override { return tokenizer_->Decode(ids); }
  StatusOr<int64_t> Count(const std::string& text) override {
    TM_ASSIGN_OR_RETURN(const auto ids, tokenizer_->Encode(text));
    return static_cast<int64_t>(ids.size());
  }

 private:
  std::unique_ptr<const Tokenizer> tokenizer_;
};

class TargetTokenizer final : public TextTokenizer {
 public:
  TargetTokenizer(TargetOptions target, AskTarget ask, Clock& clock, const std::atomic<bool>* stop)
      : target_(std::move(target)), ask_(std::move(ask)), clock_(clock), stop_(stop) {}

  void AllowFor(int64_t ns) override {
    allowed_ns_ = ns;
    allowed_from_ns_ = clock_.Now();
  }

  StatusOr<std::string> Decode(const std::vector<int32_t>& ids) override {
    TM_ASSIGN_OR_RETURN(const Json answer, Post("/detokenize", {{"model", target_.model}, {"tokens", ids}}));
    if (!answer.contains("prompt") || !answer["prompt"].is_string()) return Wrong("/detokenize", "prompt");
    std::string text = answer["prompt"].get<std::string>();
    if (text.size() <= kMaxBytesAnId * ids.size()) return text;
    return Unavailable("the target's /detokenize answers " + std::to_string(text.size()) + " bytes for " +
                       std::to_string(ids.size()) + " ids; it may be at most " +
                       std::to_string(kMaxBytesAnId) + " an id");
  }
  StatusOr<int64_t> Count(const std::string& text) override {
    TM_ASSIGN_OR_RETURN(const Json answer, Tokenized(text));
    if (!answer.contains("count") || !answer["count"].is_number_integer()) return Wrong("/tokenize", "count");
    // Tokenizers make hardly more tokens than bytes; what lies beyond would grow a prompt without an end.
    const Json& count = answer["count"];
    const uint64_t most = 2 * text.size() + (counts_chats_ ? kMostTemplateTokens : 16);
    if (!count.is_number_unsigned() || count.get<uint64_t>() > most) {
      return Unavailable("the target's /tokenize counts " + count.dump() + " tokens in " +
                         std::to_string(text.size()) + " bytes; it must be 0 to " + std::to_string(most));
    }
    return static_cast<int64_t>(count.get<uint64_t>());
  }

 private:
  static constexpr uint64_t kMostTemplateTokens = 4096;

  // Where chats are asked for, what /tokenize makes of one: the template's own tokens are tokens of the
  // prompt too. A target that does not count the first chat is asked for the text alone from then on.
  StatusOr<Json> Tokenized(const std::string& text) {
    if (counts_chats_) {
      const Json message = {{"role", "user"}, {"content", text}};
      auto answer = Post("/tokenize", {{"model", target_.model}, {"messages", Json::array({message})}});
      const bool is_first = !std::exchange(has_counted_, answer.ok() || has_counted_);
      if (answer.ok() || !is_first) return answer;
      counts_chats_ = false;
    }
    return Post("/tokenize", {{"model", target_.model}, {"prompt", text}, {"add_special_tokens", false}});
  }
  static Status Wrong(const char* path, const char* key) {
    return Unavailable(std::string("the target's ") + path + " answers without \"" + key + "\"");
  }
  StatusOr<Json> Post(const char* path, const Json& question) {
    if (stop_ != nullptr && stop_->load()) {
      return Status(StatusCode::kCancelled, "stopped while prompts were written");
    }
    TargetOptions target = target_;
    if (allowed_ns_) {
      const int64_t left_ns = allowed_from_ns_ + *allowed_ns_ - clock_.Now();
      if (left_ns <= 0) {
        return Unavailable(
            "the target's /tokenize and /detokenize take longer than " +
            std::to_string(*allowed_ns_ / 1'000'000) +
            " ms for the prompts of a run, as long as --timeout: --tokenizer FILE asks no target");
      }
      target.timeout_s = std::min(target.timeout_s, static_cast<double>(left_ns) * 1e-9);
    }
    TM_ASSIGN_OR_RETURN(const PlainAnswer answer, ask_(target, {"POST", path, question.dump()}));
    constexpr int32_t kHttpOk = 200;
    if (answer.status != kHttpOk) {
      return Unavailable(std::string("the target's ") + path + " answers " + std::to_string(answer.status));
    }
    Json body = JsonOf(answer.body);
    if (!body.is_object())
      return Unavailable(std::string("the target's ") + path + " answers no JSON object");
    return body;
  }

  TargetOptions target_;
  bool counts_chats_ = target_.endpoint == Endpoint::kChat;
  bool has_counted_ = false;  // a chat
  AskTarget ask_;
  Clock& clock_;
  const std::atomic<bool>* stop_;
  std::optional<int64_t> allowed_ns_;  // from allowed_from_ns_ on
  int64_t allowed_from_ns_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<TextTokenizer>> TokenizerOfFile(const std::string& path) {
  TM_ASSIGN_OR_RETURN(auto tokenizer, LoadTokenizer(path));
  return std::unique_ptr<TextTokenizer>(std::make_unique<FileTokenizer>(std::move(tokenizer)));
}

StatusOr<std::unique_ptr<TextTokenizer>> TokenizerOfTarget(const TargetOptions& target, AskTarget ask,
                                                           Clock& clock, const std::atomic<bool>* stop) {
  auto tokenizer = std::make_unique<TargetTokenizer>(target, std::move(ask), clock, stop);
  TM_ASSIGN_OR_RETURN(const int64_t count, tokenizer->Count("a"));
  if (count < 1) return Unavailable("the target's /tokenize counts no token in \"a\"");
  return std::unique_ptr<TextTokenizer>(std::move(tokenizer));
}

std::string WordsOf(const std::vector<int32_t>& ids) {
  static constexpr char kConsonants[] = "bdfghklmnprstvz", kVowels[] = "aeiou";
  std::string text;
  for (const int32_t id : ids) {
    const auto number = static_cast<size_t>(id);
    if (!text.empty()) text += ' ';
    text += kConsonants[number % 15];
    text += kVowels[number / 15 % 5];
    text += kConsonants[number / 75 % 15];
  }
  return text;
}

StatusOr<std::string> TextOf(const std::vector<int32_t>& ids, TextTokenizer& tokenizer) {
  constexpr int kTries = 12;
  const auto wanted = static_cast<int64_t>(ids.size());
  std::vector<int32_t> used = ids;
  std::string nearest;
  int64_t nearest_off = wanted + 1;
  for (int tries = 0; tries < kTries; ++tries) {
    TM_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(used));
    TM_ASSIGN_OR_RETURN(const int64_t count, tokenizer.Count(text));
    const int64_t off = count - wanted;
    if (std::llabs(off) < nearest_off) {
      nearest_off = std::llabs(off);
      nearest = std::move(text);
    }
    if (off == 0) break;
    // Neighbours that became one token leave room at the end; what became several takes it away.
    if (off > 0) {
      used.resize(static_cast<size_t>(std::max<int64_t>(1, static_cast<int64_t>(used.size()) - off)));
    } else {
      for (int64_t i = 0; i < -off; ++i) used.push_back(ids[static_cast<size_t>(i + tries) % ids.size()]);
    }
  }
  return nearest;
}

}  // namespace tramontane::load
