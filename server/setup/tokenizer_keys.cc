#include "server/setup/tokenizer_keys.h"

#include <memory>
#include <optional>
#include <utility>

#include "models/chat/chat_template.h"
#include "models/gguf/gguf_file.h"
#include "models/tokenizer/gguf_tokenizer_keys.h"
#include "models/tokenizer/load.h"
#include "models/tokenizer/tokenizer_files.h"

namespace tramontane {
namespace {

// Without a template a reader takes [INST] for v3, the commonest.
Status NoteChatFormat(const std::string& place, std::vector<std::string>* notes) {
  TM_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(place));
  const std::optional<TokenizerVersion> version = tokenizer->version();
  if (!version || version == TokenizerVersion::kV3) return {};
  const std::string name = TokenizerVersionName(*version);
  notes->push_back(place + " has no chat template, and no key of a GGUF file says that chats are " + name +
                   "'s; serve it with --chat-format " + name);
  return {};
}

}  // namespace

StatusOr<TokenizerKeys> TokenizerKeysOf(const OpenedModel& model) {
  const std::string& place = model.folder.tokenizer;
  TokenizerKeys made;
  auto keys = MakeGgufTokenizerKeys(place, model.config.vocab_size);
  if (!keys.ok() && keys.status().code() != StatusCode::kNotFound) return keys.status();
  if (!keys.ok()) {
    made.notes.push_back(keys.status().message() + "; the file will need one beside it");
    return made;
  }
  made.keys = *std::move(keys);
  TM_ASSIGN_OR_RETURN(const std::optional<ChatTemplate> found, FindChatTemplate({&place, 1}));
  if (!found) TM_RETURN_IF_ERROR(NoteChatFormat(place, &made.notes));
  if (found) made.keys.SetString("tokenizer.chat_template", found->text);
  return made;
}

StatusOr<TokenizerFiles> TokenizerFilesOf(const OpenedModel& model) {
  const std::string& place = model.folder.tokenizer;
  TM_ASSIGN_OR_RETURN(const GgufFile file, OpenGguf(place));
  TokenizerFiles made;
  auto files = MakeTokenizerFiles(file.metadata);
  if (!files.ok()) {
    made.notes.push_back(
        files.status().message() + ": no tokenizer is written; serve the folder with " +
        (files.status().code() == StatusCode::kNotFound ? "--tokenizer" : "--tokenizer " + place));
    return made;
  }
  for (auto& [name, bytes] : *files) made.files.push_back({std::move(name), std::move(bytes)});
  TM_ASSIGN_OR_RETURN(const std::optional<ChatTemplate> found, FindChatTemplate({&place, 1}));
  if (found) made.files.push_back({"chat_template.jinja", found->text});
  return made;
}

}  // namespace tramontane
