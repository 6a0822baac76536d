#include "server/setup/describe_tokenizer.h"

#include <algorithm>

#include "models/tokenizer/load.h"
#include "models/tokenizer/tekken.h"

namespace tramontane {
namespace {

// Why the tokenizer has its version.
std::string VersionSource(const OpenedModel& model, const Tokenizer& tokenizer) {
  if (dynamic_cast<const TekkenTokenizer*>(&tokenizer) != nullptr) return "tekken.json says so";
  const bool elsewhere = model.folder.tokenizer != model.folder.path;
  const bool suffix =
      std::any_of(model.file_names.begin(), model.file_names.end(),
                  [](const std::string& name) { return name.starts_with("tokenizer.model.v"); });
  const bool named = elsewhere ? model.folder.tokenizer.find(".model.v") != std::string::npos : suffix;
  return named ? "the suffix of its name says so" : "by its control pieces";
}

std::string EndsText(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::string text;
  for (const int32_t id : config.eos_ids) {
    text += (text.empty() ? "" : ", ") + std::to_string(id);
    if (tokenizer != nullptr && id < tokenizer->vocab_size()) text += " " + std::string(tokenizer->Piece(id));
  }
  return (text.empty() ? "no id" : text) + " (" + config.eos_source + ")";
}

std::string AnswersEnd(const ModelConfig& config, const Tokenizer* tokenizer) {
  return "answers end   at " + EndsText(config, tokenizer) + "\n";
}

}  // namespace

std::string DescribeTokenizer(const OpenedModel& model) {
  const auto loaded = LoadTokenizer(model.folder.tokenizer);
  if (!loaded.ok())
    return "vocabulary of " + loaded.status().message() + "\n" + AnswersEnd(model.config, nullptr);
  const Tokenizer& tokenizer = **loaded;
  const bool tekken = dynamic_cast<const TekkenTokenizer*>(&tokenizer) != nullptr;
  const std::string version = TokenizerVersionName(tokenizer.version());
  return "vocabulary of " + std::string(tekken ? "tekken " : "SentencePiece ") + version + ", " +
         std::to_string(tokenizer.vocab_size()) + " ids\n" + "chat format   " + version +
         ", the tokenizer's: " + VersionSource(model, tokenizer) + "\n" +
         AnswersEnd(model.config, &tokenizer);
}

}  // namespace tramontane
