#include "models/chat/choose_chat_format.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "models/chat/chat_check.h"
#include "models/chat/chat_template.h"
#include "models/chat/header_chat.h"
#include "models/chat/mistral_chat.h"
#include "models/chat/template_chat.h"
#include "models/files/built_in_files.h"

namespace tramontane {
namespace {

constexpr TokenizerVersion kVersions[] = {
    TokenizerVersion::kV1,  TokenizerVersion::kV2,  TokenizerVersion::kV3, TokenizerVersion::kV7,
    TokenizerVersion::kV11, TokenizerVersion::kV13, TokenizerVersion::kV15};

constexpr char kChooseOne[] = "--chat-format NAME|FILE chooses a format; completions work without one";

// Of models of v15 whose vocabulary's file has no place to say it.
ModelSettings UsualSettings() {
  return {.reasoning_effort =
              ModelSettings::ReasoningEffort{.values = {"none", "high"}, .default_value = "none"}};
}

std::optional<TokenizerVersion> VersionNamed(std::string_view name) {
  const auto* found = std::find_if(std::begin(kVersions), std::end(kVersions), [&](TokenizerVersion version) {
    return name == TokenizerVersionName(version);
  });
  if (found == std::end(kVersions)) return std::nullopt;
  return *found;
}

ChatFormatPtr MistralFormatFor(const Tokenizer& tokenizer, TokenizerVersion version, std::string why) {
  std::optional<ModelSettings> settings;
  // A file of v15 says its settings, or is not whole.
  const bool file_says =
      tokenizer.model_settings() != nullptr || tokenizer.version() == TokenizerVersion::kV15;
  if (!file_says) settings = UsualSettings();
  return std::make_unique<MistralChatFormat>(tokenizer, version, std::move(why), std::move(settings));
}

// OK where the vocabulary has what the format's simplest chat needs.
Status CanRender(const ChatFormat& format) {
  const ChatMessage probe = {.role = ChatRole::kUser, .content = "a"};
  return format.Render({&probe, 1}, {}).status();
}

StatusOr<ChatFormatPtr> NamedFormat(const Tokenizer& tokenizer, const ChatFormatChoice& choice) {
  const std::string why = "--chat-format asks for it";
  ChatFormatPtr format;
  if (const auto version = VersionNamed(choice.asked)) {
    format = MistralFormatFor(tokenizer, *version, why);
  } else if (const HeaderFormat* header = FindHeaderFormat(choice.asked)) {
    TM_ASSIGN_OR_RETURN(const std::optional<ChatTemplate> found, FindChatTemplate(choice.places));
    const bool is_its_own = found && IsTemplateOf(*found, *header);
    HeaderDetails details = is_its_own ? DetailsOf(*found) : HeaderDetails();
    if (!is_its_own) details.begins_with_bos = header->begins_with_bos && tokenizer.bos_id() >= 0;
    format = std::make_unique<HeaderChatFormat>(*header, tokenizer, std::move(details), why);
  } else {
    return ChatFormatPtr();
  }
  const Status works = CanRender(*format);
  if (!works.ok()) return Status(works.code(), "chat_format is " + choice.asked + ": " + works.message());
  return format;
}

// The format whose control pieces the vocabulary has and the template names; null for none.
const HeaderFormat* FormatKnownByPieces(const Tokenizer& tokenizer, const ChatTemplate& found) {
  for (const HeaderFormat& format : HeaderFormats()) {
    if (HasPiecesOf(format, tokenizer) && IsTemplateOf(found, format)) return &format;
  }
  return nullptr;
}

std::string WhyNotRendered(const ChatTemplate& found, const Tokenizer& tokenizer) {
  const std::string token = FirstUnknownToken(found, tokenizer);
  return "the template in " + found.file +
         (token.empty() ? " is none that is known here; "
                        : " names " + token + ", which no format here has; ") +
         kChooseOne;
}

StatusOr<std::unique_ptr<const TemplateChatFormat>> RunTemplate(const Tokenizer& tokenizer,
                                                                ChatTemplate found, std::string why,
                                                                std::optional<int32_t> end = {}) {
  StatusOr<std::unique_ptr<const JinjaTemplate>> parsed = JinjaTemplate::Parse(found.text);
  if (!parsed.ok()) {
    return Status(parsed.status().code(), "the template in " + found.file + ": " + parsed.status().message());
  }
  return std::make_unique<const TemplateChatFormat>(tokenizer, std::move(found.text),
                                                    std::move(parsed).value(), std::move(why), end);
}

// The two make the same prompts of a few plain chats. Templates that look at the clock are shown the day that
// Llama's have for readers without one.
bool SayTheSame(const ChatFormat& format, const TemplateChatFormat& run,
                const std::vector<std::vector<ChatMessage>>& chats) {
  std::tm day{};
  day.tm_year = 2024 - 1900;
  day.tm_mon = 6;
  day.tm_mday = 26;
  return std::all_of(chats.begin(), chats.end(), [&](const std::vector<ChatMessage>& chat) {
    const StatusOr<RenderedChat> ours = format.Render(chat, {});
    const StatusOr<RenderedChat> theirs = run.RenderAt(day, chat, {}, {});
    return ours.ok() && theirs.ok() && ours->ids == theirs->ids;
  });
}

// Of a template that is that of `format` by its pieces. Where it can be run, it is run for chats with tools;
// and for all, if it does more than the format.
StatusOr<ChatFormatPtr> KnownOrRun(const Tokenizer& tokenizer, const ChatFormatChoice& choice,
                                   const ChatTemplate& found, const HeaderFormat& format) {
  const std::string why = "the template in " + found.file + " names " + std::string(format.begin);
  auto known = std::make_unique<const HeaderChatFormat>(format, tokenizer, DetailsOf(found), why);
  if (!choice.runs_templates) return ChatFormatPtr(std::move(known));
  auto run = RunTemplate(tokenizer, found, why + ", and does more than " + known->name(),
                         known->answer_syntax().end);
  if (!run.ok()) return ChatFormatPtr(std::move(known));
  const ChatMessage system = {.role = ChatRole::kSystem, .content = "Be brief."};
  const ChatMessage user = {.role = ChatRole::kUser, .content = "Hi there"};
  const ChatMessage assistant = {.role = ChatRole::kAssistant, .content = "Hello"};
  if (!SayTheSame(*known, **run, {{user}, {system, user}, {system, user, assistant, user}}))
    return ChatFormatPtr(std::move(run).value());
  return ChatFormatPtr(std::make_unique<const HeaderChatFormat>(format, tokenizer, DetailsOf(found), why,
                                                                std::move(run).value()));
}

// A vocabulary of Mistral's first kind in a file that has no versions: <s> and </s>, and [INST] is text, in
// the template too. Where that can be run, it must make the same prompt of a message; null: it is none.
ChatFormatPtr FirstMistralFormat(const Tokenizer& tokenizer, const ChatFormatChoice& choice,
                                 const ChatTemplate& found) {
  if (!IsPlainInstTemplate(found) || tokenizer.ControlId("[INST]")) return nullptr;
  if (!tokenizer.ControlId("<s>") || !tokenizer.ControlId("</s>")) return nullptr;
  ChatFormatPtr first =
      MistralFormatFor(tokenizer, TokenizerVersion::kV1,
                       "the template in " + found.file + " names [INST], which is text to the vocabulary");
  const ChatMessage hello = {.role = ChatRole::kUser, .content = "Hi there"};
  if (!first->Render({&hello, 1}, {}).ok()) return nullptr;
  if (!choice.runs_templates) return first;
  const auto run = RunTemplate(tokenizer, found, "");
  if (!run.ok()) return first;  // known by its text still
  return SayTheSame(*first, **run, {{hello}}) ? std::move(first) : nullptr;
}

// A file with a template is for those who want it run; where nothing can run it, its text may tell a format.
StatusOr<ChatFormatPtr> FormatOfFile(const Tokenizer& tokenizer, const ChatFormatChoice& choice) {
  if (!FileExists(choice.asked)) {
    return InvalidArgument("chat_format is " + Quoted(choice.asked) +
                           ", which is neither a file nor one of " + ChatFormatNames());
  }
  TM_ASSIGN_OR_RETURN(const ChatTemplate found, ReadChatTemplate(choice.asked));
  if (choice.runs_templates) {
    TM_ASSIGN_OR_RETURN(ChatFormatPtr run,
                        RunTemplate(tokenizer, found, "--chat-format asks for " + choice.asked));
    return run;
  }
  if (const HeaderFormat* format = FormatKnownByPieces(tokenizer, found)) {
    return KnownOrRun(tokenizer, choice, found, *format);
  }
  return Unimplemented("chat_format is " + Quoted(choice.asked) +
                       ": this build runs no templates (TRAMONTANE_JINJA)");
}

StatusOr<ChatFormatPtr> AskedFormat(const Tokenizer& tokenizer, const ChatFormatChoice& choice) {
  TM_ASSIGN_OR_RETURN(ChatFormatPtr named, NamedFormat(tokenizer, choice));
  if (named != nullptr) return named;
  return FormatOfFile(tokenizer, choice);
}

// A file of Mistral's kind without control pieces (v1) may be that of a model with a template of its own.
bool IsForeign(const Tokenizer& tokenizer, const std::optional<ChatTemplate>& found) {
  return tokenizer.version() == TokenizerVersion::kV1 && found &&
         (!found->Names("[INST]") || found->Names("<<SYS>>"));
}

// Whether the template, which names no [INST], opens turns with a piece that the vocabulary has.
bool SpeaksOfOtherTurns(const Tokenizer& tokenizer, const ChatTemplate& found) {
  const auto formats = HeaderFormats();
  return !found.Names("[INST]") &&
         std::any_of(formats.begin(), formats.end(), [&](const HeaderFormat& format) {
           return HasPiecesOf(format, tokenizer) && found.Names(format.begin);
         });
}

bool HasMistralPieces(const Tokenizer& tokenizer) {
  return tokenizer.ControlId("[INST]") && tokenizer.ControlId("[/INST]");
}

// By Mistral's own control pieces; null: this is none of Mistral's, such as one that was trained further on
// turns of another format, whose pieces were added.
ChatFormatPtr MistralFormatByPieces(const Tokenizer& tokenizer, const std::optional<ChatTemplate>& found) {
  if (found && SpeaksOfOtherTurns(tokenizer, *found)) return nullptr;
  if (tokenizer.version() && !IsForeign(tokenizer, found)) {
    return MistralFormatFor(tokenizer, *tokenizer.version(),
                            std::string("the tokenizer's: ") + tokenizer.version_source());
  }
  if (tokenizer.version() || !HasMistralPieces(tokenizer)) return nullptr;
  const ChatTemplate none;
  std::string because;
  const TokenizerVersion version = VersionOfTemplate(found ? *found : none, &because);
  const std::string source = found ? "the template in " + found->file + " names " + because
                                   : "the vocabulary has [INST], and there is no template";
  return MistralFormatFor(tokenizer, version, source);
}

}  // namespace

std::string ChatFormatNames() {
  std::string names;
  for (const TokenizerVersion version : kVersions) {
    names += (names.empty() ? "" : ", ") + std::string(TokenizerVersionName(version));
  }
  for (const HeaderFormat& format : HeaderFormats()) names += ", " + std::string(format.name);
  return names;
}

StatusOr<ChatFormatPtr> ChooseChatFormat(const Tokenizer& tokenizer, const ChatFormatChoice& choice) {
  if (!choice.asked.empty()) return AskedFormat(tokenizer, choice);
  TM_ASSIGN_OR_RETURN(const std::optional<ChatTemplate> found, FindChatTemplate(choice.places));
  if (ChatFormatPtr mistral = MistralFormatByPieces(tokenizer, found)) {
    const Status works = CanRender(*mistral);
    if (works.ok()) return mistral;
    return NoChatFormat("it would be " + mistral->name() + " (" + mistral->why() + "), and " +
                        works.message());
  }
  if (!found) {
    return NoChatFormat(std::string("there is no chat template (chat_template.jinja, chat_template.json, "
                                    "chat_template in tokenizer_config.json, tokenizer.chat_template in a "
                                    "GGUF file); ") +
                        kChooseOne);
  }
  if (const HeaderFormat* format = FormatKnownByPieces(tokenizer, *found)) {
    return KnownOrRun(tokenizer, choice, *found, *format);
  }
  if (ChatFormatPtr first = FirstMistralFormat(tokenizer, choice, *found)) return first;
  if (!choice.runs_templates) return NoChatFormat(WhyNotRendered(*found, tokenizer));
  auto run = RunTemplate(tokenizer, *found, "the template in " + found->file + " is that of no format here");
  if (!run.ok()) return NoChatFormat(run.status().message() + "; " + kChooseOne);
  return ChatFormatPtr(std::move(run).value());
}

}  // namespace tramontane
