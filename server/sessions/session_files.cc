#include "server/sessions/session_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/base/file_descriptor.h"
#include "server/sessions/context_policy_convert.h"
#include "server/sessions/kv_snapshot.h"

namespace tramontane {
namespace {

constexpr mode_t kOwnerOnly = 0600;

RpcError SystemError(const std::string& what) {
  return ToRpcError(Status(StatusCode::kInternal, what + ": " + std::strerror(errno)));
}

RpcError NotSavedError(const std::string& name) {
  RpcError error = ToRpcError(Status(StatusCode::kNotFound, "no session \"" + name + "\" was saved"));
  error.reason = "SESSION_NOT_FOUND";
  return error;
}

// The system's own stamp may be that of several files.
bool NoteWritten(int file) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  const timespec times[] = {now, now};
  return futimens(file, times) == 0;
}

RpcError FileError(const std::string& name, const std::string& fault) {
  RpcError error =
      ToRpcError(Status(StatusCode::kFailedPrecondition, "the file of session \"" + name + "\" " + fault));
  error.reason = "SESSION_FILE_UNUSABLE";
  return error;
}

// "" or what is wrong with it.
std::string ReadPolicy(const v1::SavedSession& saved, ContextPolicy* policy) {
  *policy = {};
  if (!saved.has_context_policy()) return "";
  if (RpcError error = ContextPolicyFromProto(saved.context_policy(), policy); !error.ok()) {
    return error.message();
  }
  const Status status = CheckContextPolicy(*policy);
  return status.ok() ? "" : "context_policy." + status.message();
}

// "" or what is wrong with what a file says, whose digest is right.
std::string StateFault(const v1::SavedSession& saved, const SavedSessionModel& model) {
  const auto is_id = [&](int32_t id) { return id >= 0 && id < model.vocab_size; };
  if (saved.ids().empty() || !std::all_of(saved.ids().begin(), saved.ids().end(), is_id)) {
    return "holds ids that the vocabulary does not have, or none";
  }
  if (saved.cache_salt().size() > kMaxCacheSaltBytes) {
    return "holds a cache_salt of " + std::to_string(saved.cache_salt().size()) + " bytes; at most " +
           std::to_string(kMaxCacheSaltBytes) + " are allowed";
  }
  ContextPolicy policy;
  if (const std::string fault = ReadPolicy(saved, &policy); !fault.empty()) {
    return "holds a policy that cannot be: " + fault;
  }
  const CachedText text = CachedTextOf({saved.ids().begin(), saved.ids().end()}, "", policy);
  if (saved.has_kv() && saved.kv().tokens() > std::ssize(text.tokens)) {
    return "holds keys and values of " + std::to_string(saved.kv().tokens()) + " tokens, and " +
           std::to_string(text.tokens.size()) + " ids that have any";
  }
  const int messages = saved.chat().messages_size();
  const bool ends_with_answer =
      messages > 1 && saved.chat().messages(messages - 1).role() == v1::ROLE_ASSISTANT;
  return saved.has_chat() && !ends_with_answer ? "holds a chat that does not end with an answer" : "";
}

}  // namespace

std::string ModelFingerprint(const ServedModel& model) {
  const ModelConfig& config = model.config;
  const Tokenizer& tokenizer = *model.tokenizer;
  std::string said = config.architecture + "/" + model.chat_format->name() + "/" + tokenizer.family();
  for (const int64_t number :
       {int64_t{config.vocab_size}, int64_t{config.layers}, int64_t{config.hidden_size},
        int64_t{config.heads}, int64_t{config.kv_heads}, int64_t{config.head_dim}}) {
    said += "/" + std::to_string(number);
  }
  for (const auto window : config.window) said += "," + std::to_string(window);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view piece = tokenizer.Piece(id);
    said += "\n" + std::to_string(piece.size()) + (tokenizer.IsControl(id) ? "c" : "t");
    said += piece;
  }
  return Sha256Digest(said);
}

std::string WeightsFingerprint(const ServedModel& model) { return Sha256Digest(model.weight_sample); }

StatusOr<std::unique_ptr<SessionFiles>> SessionFiles::Open(const std::string& folder,
                                                           const SessionDirLimits& limits) {
  TM_ASSIGN_OR_RETURN(std::unique_ptr<SessionFolder> opened, SessionFolder::Open(folder, limits));
  return std::unique_ptr<SessionFiles>(new SessionFiles(std::move(opened)));
}

RpcError SessionFiles::Save(const SessionKey& key, const SessionState& state, const SavedSessionModel& model,
                            const KvPages* pages, int64_t* bytes) {
  v1::SavedSession saved;
  saved.set_name(key.name);
  saved.set_model(model.name);
  saved.set_fingerprint(model.fingerprint);
  saved.mutable_ids()->Add(state.ids.begin(), state.ids.end());
  if (state.is_chat) *saved.mutable_chat() = state.chat;
  saved.set_cache_salt(state.cache_salt);
  const bool has_policy = state.context_policy.type != ContextPolicyType::kNone;
  if (has_policy) {
    *saved.mutable_context_policy() = ContextPolicyToProto(state.context_policy);
  }
  const bool has_pages = pages != nullptr && pages->tokens > 0;
  if (has_pages)
    *saved.mutable_kv() =
        DescribeKv(*pages, *model.layout, CachedTextOf({}, "", state.context_policy).policy, model.weights);
  const std::string file_name = SessionFileName(key.name, state.cache_salt, key.caller);
  std::lock_guard lock(mutex_);
  if (RpcError error = folder_->MakeRoom(file_name, SessionFileBytes(saved)); !error.ok()) return error;
  return Write(file_name, [&](int file) {
    SessionFileWriter writer(file);
    bool written = writer.WriteHead(saved);
    std::vector<std::byte> rows;
    for (int32_t layer = 0; written && layer < saved.kv().layers_size(); ++layer) {
      RowsOfPages(*pages, *model.layout, saved.kv(), layer, &rows);
      written = writer.WriteLayer(layer, rows);
    }
    *bytes = writer.bytes();
    return written;
  });
}

RpcError SessionFiles::Write(const std::string& file_name, const std::function<bool(int file)>& fill) {
  const int folder = folder_->descriptor();
  const std::string aside = SessionFolder::AsideName(file_name);
  const auto failed = [&] {
    RpcError error = SystemError("the session cannot be saved");
    unlinkat(folder, aside.c_str(), 0);
    return error;
  };
  {
    const FileDescriptor file(
        openat(folder, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly));
    if (file.get() < 0) return SystemError("the session cannot be saved");
    flock(file.get(), LOCK_EX | LOCK_NB);
    if (!fill(file.get()) || !NoteWritten(file.get()) || fsync(file.get()) != 0) return failed();
    if (renameat(folder, aside.c_str(), folder, file_name.c_str()) != 0) return failed();
  }
  return fsync(folder) == 0 ? RpcError() : SystemError("the session was saved, its folder cannot be synced");
}

RpcError SessionFiles::Restore(const SessionKey& key, const std::string& cache_salt, OthersFiles others,
                               const SavedSessionModel& model, SessionState* state, KvPages* pages) const {
  const std::string& name = key.name;
  // Not blocked by what is no file: a pipe.
  const FileDescriptor file(openat(folder_->descriptor(),
                                   folder_->FileOf(name, cache_salt, key.caller, others).c_str(),
                                   O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return NotSavedError(name);
  if (file.get() < 0 && errno == ELOOP) return FileError(name, "is a link, which is not followed");
  if (file.get() < 0) return SystemError("the session cannot be restored");
  StatusOr<SessionFileReader> opened = SessionFileReader::Open(file.get());
  if (!opened.ok()) return FileError(name, opened.status().message());
  SessionFileReader reader = *std::move(opened);
  v1::SavedSession& saved = reader.head();
  if (saved.name() != name) return FileError(name, "holds the session \"" + saved.name() + "\"");
  if (saved.cache_salt() != cache_salt) return NotSavedError(name);
  if (saved.fingerprint() != model.fingerprint) {
    return FileError(name, "is of another model: \"" + saved.model() + "\" was served, \"" + model.name +
                               "\" is now, and their dimensions, vocabularies or chat formats differ");
  }
  if (const std::string fault = StateFault(saved, model); !fault.empty()) return FileError(name, fault);
  if (RpcError error = ReadPages(name, model, reader, pages); !error.ok()) return error;
  state->ids.assign(saved.ids().begin(), saved.ids().end());
  state->is_chat = saved.has_chat();
  state->chat = std::move(*saved.mutable_chat());
  state->cache_salt = saved.cache_salt();
  ReadPolicy(saved, &state->context_policy);
  return {};
}

// A file is read to its end even where nobody wants its pages: a damaged one is refused.
RpcError SessionFiles::ReadPages(const std::string& name, const SavedSessionModel& model,
                                 SessionFileReader& reader, KvPages* pages) {
  *pages = {};
  if (!reader.head().has_kv()) return {};
  const v1::SavedKv& kv = reader.head().kv();
  std::optional<PagesOfRows> made;
  if (model.layout != nullptr) {
    if (const std::string fault = KvFault(kv, *model.layout, model.weights); !fault.empty()) {
      return FileError(name, "is of another model or --kv-dtype than \"" + model.name + "\": it " + fault);
    }
    ContextPolicy policy;
    ReadPolicy(reader.head(), &policy);
    made.emplace(*model.layout, kv, CachedTextOf({}, "", policy).policy);
  }
  std::vector<std::byte> rows;
  for (int32_t layer = 0; layer < kv.layers_size(); ++layer) {
    if (const Status status = reader.ReadLayer(layer, &rows); !status.ok()) {
      return FileError(name, status.message());
    }
    if (made) made->Add(layer, rows);
  }
  if (made) *pages = made->Take();
  return {};
}

}  // namespace tramontane
