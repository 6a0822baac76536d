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

#include "engine/request/request.h"
#include "server/base/file_descriptor.h"
#include "server/base/text.h"
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

// "" or what is wrong with what a file says, whose digest is right.
std::string StateFault(const v1::SavedSession& saved, const ContextPolicy& policy,
                       const SavedSessionModel& model) {
  const auto is_id = [&](int32_t id) { return id >= 0 && id < model.vocab_size; };
  if (saved.ids().empty() || !std::all_of(saved.ids().begin(), saved.ids().end(), is_id)) {
    return "holds ids that the vocabulary does not have, or none";
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

// "" or why its keys and values are of no use here.
std::string PagesFault(const v1::SavedKv& kv, const SessionIdentity& identity,
                       const SavedSessionModel& model) {
  if (identity.weights != HexText(model.weights))
    return "holds keys and values that other weights have given";
  return KvFault(kv, *model.layout);
}

// A file is read to its end even where nobody wants its pages: a damaged one is refused. Errors go on from
// "the file".
Status ReadPages(const SessionIdentity& identity, const SavedSessionModel& model, SessionFileReader& reader,
                 KvPages* pages) {
  *pages = {};
  if (!reader.head().has_kv()) return {};
  const v1::SavedKv& kv = reader.head().kv();
  std::optional<PagesOfRows> made;
  if (model.layout != nullptr) {
    if (const std::string fault = PagesFault(kv, identity, model); !fault.empty()) {
      return FailedPrecondition("is of another model or --kv-dtype than \"" + model.name + "\": it " + fault);
    }
    made.emplace(*model.layout, kv, MaskPolicyOf(identity.context_policy));
  }
  std::vector<std::byte> rows;
  for (int32_t layer = 0; layer < kv.layers_size(); ++layer) {
    TM_RETURN_IF_ERROR(reader.ReadLayer(layer, &rows));
    if (made) made->Add(layer, rows);
  }
  if (made) *pages = made->Take();
  return {};
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

RpcError SessionFiles::Save(const Caller& caller, const std::string& name, const SessionState& state,
                            const SavedSessionModel& model, const KvPages* pages, int64_t* bytes) {
  v1::SavedSession saved;
  saved.set_name(name);
  saved.set_key(caller.key_name);
  saved.set_identity(ToJson({.model = model.name,
                             .fingerprint = HexText(model.fingerprint),
                             .weights = HexText(model.weights),
                             .context_policy = state.context_policy,
                             .salt = SaltDigest(state.cache_salt)}));
  saved.mutable_ids()->Add(state.ids.begin(), state.ids.end());
  if (state.is_chat) *saved.mutable_chat() = state.chat;
  const bool has_pages = pages != nullptr && pages->tokens > 0;
  if (has_pages) {
    *saved.mutable_kv() = DescribeKv(*pages, *model.layout, MaskPolicyOf(state.context_policy));
  }
  const std::string file_name = SessionFileName(name, state.cache_salt, caller.identity);
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

// By whom, and what.
struct SessionFiles::Wanted {
  const Caller& caller;
  const std::string& name;
  const std::string& cache_salt;
  const SavedSessionModel& model;
};

RpcError SessionFiles::Restore(const Caller& caller, const std::string& name, const std::string& cache_salt,
                               const SavedSessionModel& model, SessionState* state, KvPages* pages) const {
  const Wanted wanted = {.caller = caller, .name = name, .cache_salt = cache_salt, .model = model};
  RpcError error = Read(SessionFileName(name, cache_salt, caller.identity), wanted, state, pages);
  if (error.code != StatusCode::kNotFound) return error;
  // Without keys who asks is an address, which may be another one tomorrow.
  const bool has_key = caller.key != nullptr || !caller.key_name.empty();
  const OthersFiles others = has_key ? OthersFiles::kNotThere : OthersFiles::kRestored;
  for (const std::string& file_name : folder_->FilesBesideOwn(name, cache_salt, others)) {
    error = Read(file_name, wanted, state, pages);
    if (error.code != StatusCode::kNotFound) break;
  }
  return error;
}

RpcError SessionFiles::Read(const std::string& file_name, const Wanted& wanted, SessionState* state,
                            KvPages* pages) const {
  const std::string& name = wanted.name;
  const SavedSessionModel& model = wanted.model;
  // Not blocked by what is no file: a pipe.
  const FileDescriptor file(
      openat(folder_->descriptor(), file_name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return NotSavedError(name);
  if (file.get() < 0 && errno == ELOOP) return FileError(name, "is a link, which is not followed");
  if (file.get() < 0) return SystemError("the session cannot be restored");
  StatusOr<SessionFileReader> opened = SessionFileReader::Open(file.get());
  if (!opened.ok()) return FileError(name, opened.status().message());
  SessionFileReader reader = *std::move(opened);
  v1::SavedSession& saved = reader.head();
  // Wherever somebody has put it.
  if (!saved.key().empty() && saved.key() != wanted.caller.key_name) return NotSavedError(name);
  const StatusOr<SessionIdentity> identity = reader.Identity();
  if (!identity.ok()) return FileError(name, identity.status().message());
  if (identity->salt != SaltDigest(wanted.cache_salt)) return NotSavedError(name);
  if (saved.name() != name) return FileError(name, "holds the session \"" + saved.name() + "\"");
  if (wanted.cache_salt.size() > kMaxCacheSaltBytes) {
    return FileError(name, "holds a cache_salt of " + std::to_string(wanted.cache_salt.size()) +
                               " bytes; at most " + std::to_string(kMaxCacheSaltBytes) + " are allowed");
  }
  if (identity->fingerprint != HexText(model.fingerprint)) {
    return FileError(name, "is of another model: \"" + identity->model + "\" was served, \"" + model.name +
                               "\" is now, and their dimensions, vocabularies or chat formats differ");
  }
  if (const std::string fault = StateFault(saved, identity->context_policy, model); !fault.empty()) {
    return FileError(name, fault);
  }
  if (const Status status = ReadPages(*identity, model, reader, pages); !status.ok()) {
    return FileError(name, status.message());
  }
  state->ids.assign(saved.ids().begin(), saved.ids().end());
  state->is_chat = saved.has_chat();
  state->chat = std::move(*saved.mutable_chat());
  state->cache_salt = wanted.cache_salt;
  state->context_policy = identity->context_policy;
  return {};
}

}  // namespace tramontane
