#include "server/setup/describe_tokenizer.h"

#include "engine/engine_host.h"
#include "models/tokenizer/load.h"

namespace tramontane {
namespace {

std::string WarningLines(const Tokenizer& tokenizer, int32_t vocab_size) {
  std::string text;
  for (const std::string& warning : TokenizerWarnings(tokenizer, vocab_size)) {
    text += "warning       " + warning + "\n";
  }
  return text;
}

std::string AnswersEnd(const ModelConfig& config, const Tokenizer* tokenizer) {
  return "answers end   at " + EndsText(config, tokenizer) + "\n";
}

}  // namespace

std::vector<std::string> TokenizerWarnings(const Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<std::string> warnings(tokenizer.warnings().begin(), tokenizer.warnings().end());
  if (tokenizer.vocab_size() > vocab_size) {
    warnings.push_back("the tokenizer has " + std::to_string(tokenizer.vocab_size()) + " ids, the model " +
                       std::to_string(vocab_size) + ": a text with one that the model lacks is refused");
  }
  if (tokenizer.padding_begin() < vocab_size) {
    warnings.push_back("the model has rows for " + std::to_string(vocab_size) +
                       " ids, the tokenizer has tokens up to " +
                       std::to_string(tokenizer.padding_begin() - 1) +
                       ": those behind are never drawn, but for what ends an answer");
  }
  return warnings;
}

std::string EndsText(const ModelConfig& config, const Tokenizer* tokenizer) {
  std::string text;
  for (const int32_t id : config.eos_ids) {
    text += (text.empty() ? "" : ", ") + std::to_string(id);
    if (tokenizer != nullptr && id < tokenizer->vocab_size()) text += " " + std::string(tokenizer->Piece(id));
  }
  return (text.empty() ? "no id" : text) + " (" + config.eos_source + ")";
}

StatusOr<std::string> DescribeTokenizer(const OpenedModel& model, const std::string& chat_format) {
  const auto loaded = LoadTokenizer(model.folder.tokenizer, model.config.vocab_size);
  // A folder may lack its tokenizer yet; a GGUF file is whole or nothing.
  const bool may_lack = model.folder.layout != FolderLayout::kGguf;
  if (!loaded.ok() && !(may_lack && loaded.status().code() == StatusCode::kNotFound)) return loaded.status();
  if (!loaded.ok())
    return "vocabulary of " + loaded.status().message() + "\n" + AnswersEnd(model.config, nullptr);
  const Tokenizer& tokenizer = **loaded;
  TM_ASSIGN_OR_RETURN(const ChatFormatPtr format, ChatFormatOf(model, tokenizer, chat_format));
  ModelConfig config = model.config;
  AddEndOfTurn(*format, &config);
  const std::string version =
      tokenizer.version() ? " " + std::string(TokenizerVersionName(*tokenizer.version())) : "";
  return "vocabulary of " + std::string(tokenizer.family()) + version + ", " +
         std::to_string(tokenizer.vocab_size()) + " ids\n" + WarningLines(tokenizer, config.vocab_size) +
         "chat format   " + format->name() + ", " + format->why() + "\n" + AnswersEnd(config, &tokenizer);
}

}  // namespace tramontane
