// tramontane kv: what is in a saved session's file, and its keys and values as others lay them out.
#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "server/base/file_descriptor.h"
#include "server/commands/commands.h"
#include "server/sessions/kv_export.h"
#include "server/sessions/kv_snapshot.h"
#include "server/sessions/session_file.h"

namespace tramontane {
namespace {

struct KvArguments {
  std::string file;
  std::string layout;
  std::string out;
};

FileDescriptor OpenToRead(const std::string& path) {
  return FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

// What is wrong with a file is told behind its name.
Status OfFile(const std::string& path, const Status& status) {
  return status.ok() ? status : Status(status.code(), path + " " + status.message());
}

StatusOr<SessionFileReader> OpenFile(const FileDescriptor& file, const std::string& path) {
  if (file.get() < 0) return NotFound(path + ": " + std::strerror(errno));
  StatusOr<SessionFileReader> reader = SessionFileReader::Open(file.get());
  if (!reader.ok()) return OfFile(path, reader.status());
  TM_RETURN_IF_ERROR(OfFile(path, reader->Identity().status()));
  return reader;
}

// "layers 0 to 2: window 256, positions 16 to 159, 4608 bytes each"
std::string LayersLine(const v1::SavedKv& kv, int32_t first, int32_t last, int64_t bytes) {
  const v1::SavedKvLayer& layer = kv.layers(first);
  std::string line = first == last ? "layer " + std::to_string(first)
                                   : "layers " + std::to_string(first) + " to " + std::to_string(last);
  line += layer.window() == 0 ? ": no window" : ": window " + std::to_string(layer.window());
  line += ", positions ";
  if (layer.sinks() > 0) line += "0 to " + std::to_string(layer.sinks() - 1) + " and ";
  line += std::to_string(layer.begin()) + " to " + std::to_string(kv.tokens() - 1) + ", " +
          std::to_string(bytes) + " bytes";
  return line + (first == last ? "\n" : " each\n");
}

StatusOr<std::string> ListKv(SessionFileReader& reader) {
  const v1::SavedKv& kv = reader.head().kv();
  std::string text = "keys and values: of the first " + std::to_string(kv.tokens()) + " ids, " +
                     KvElementText(kv) + ", " + std::to_string(kv.kv_heads()) + " heads of " +
                     std::to_string(kv.head_dim()) + "\n";
  std::vector<std::byte> rows;
  int32_t first = 0;  // of layers that are alike
  for (int32_t layer = 0; layer < kv.layers_size(); ++layer) {
    TM_RETURN_IF_ERROR(reader.ReadLayer(layer, &rows));
    const bool goes_on = layer + 1 < kv.layers_size() &&
                         kv.layers(layer + 1).window() == kv.layers(first).window() &&
                         kv.layers(layer + 1).begin() == kv.layers(first).begin() &&
                         kv.layers(layer + 1).sinks() == kv.layers(first).sinks();
    if (goes_on) continue;
    text += "  " + LayersLine(kv, first, layer, std::ssize(rows));
    first = layer + 1;
  }
  return text;
}

Status Show(const KvArguments& arguments) {
  const FileDescriptor file = OpenToRead(arguments.file);
  TM_ASSIGN_OR_RETURN(SessionFileReader reader, OpenFile(file, arguments.file));
  const v1::SavedSession& head = reader.head();
  const std::string kind = head.has_chat()
                               ? "a chat of " + std::to_string(head.chat().messages_size()) + " messages"
                               : "of completions";
  TM_ASSIGN_OR_RETURN(const SessionIdentity identity, reader.Identity());
  std::string text = "session \"" + head.name() + "\": " + kind + "\n";
  if (!head.key().empty()) text += "key: \"" + head.key() + "\"\n";
  text += "model: \"" + identity.model + "\"\nids: " + std::to_string(head.ids_size()) +
          "\ncache_salt: " + (identity.salt.empty() ? "none" : "SHA-256 " + identity.salt) + "\n";
  if (identity.context_policy.type != ContextPolicyType::kNone) {
    text += "context_policy: " + ContextPolicyText(identity.context_policy) + "\n";
  }
  if (head.has_kv()) {
    StatusOr<std::string> listing = ListKv(reader);
    if (!listing.ok()) return OfFile(arguments.file, listing.status());
    text += *listing;
  } else {
    text += "keys and values: none\n";
  }
  text += std::string("file: version ") + reader.version() + ", " + std::to_string(reader.bytes()) +
          " bytes, every checksum is right\n";
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? Status::Ok() : Internal("standard output cannot be written");
}

// The head of a file of tensors that follow each other.
std::string SafetensorsHead(const ExportedKv& exported, const v1::SavedKv& kv, const std::string& layout) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {
      {"layout", layout},
      {"kv_dtype", KvElementText(kv)},
      {"sinks", std::to_string(exported.sinks)},
      {"first_position", std::to_string(exported.first_position)},
      {"tokens", std::to_string(exported.sinks + kv.tokens() - exported.first_position)}};
  int64_t begin = 0;
  for (const ExportedTensor& tensor : exported.tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, begin + tensor.bytes}}};
    begin += tensor.bytes;
  }
  std::string text = header.dump();
  constexpr size_t kAlignment = 8;
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string size;
  for (size_t i = 0; i < sizeof(uint64_t); ++i) size += static_cast<char>(uint64_t{text.size()} >> (8 * i));
  return size + text;
}

Status CannotWrite(const std::string& path) {
  return InvalidArgument("is \"" + path + "\", which cannot be written: " + std::strerror(errno))
      .WithField("--out", FieldForm::kSubject);
}

// Every checksum, before anything is written.
Status CheckLayers(SessionFileReader& reader) {
  std::vector<std::byte> rows;
  for (int32_t layer = 0; layer < reader.head().kv().layers_size(); ++layer) {
    TM_RETURN_IF_ERROR(reader.ReadLayer(layer, &rows));
  }
  return Status::Ok();
}

Status Export(const KvArguments& arguments) {
  const FileDescriptor file = OpenToRead(arguments.file);
  TM_ASSIGN_OR_RETURN(SessionFileReader reader, OpenFile(file, arguments.file));
  if (!reader.head().has_kv()) {
    return FailedPrecondition(arguments.file + " holds no keys and values: none were cached as it was saved");
  }
  const v1::SavedKv& kv = reader.head().kv();
  TM_ASSIGN_OR_RETURN(const ExportedKv exported, DescribeExport(kv, arguments.layout));
  TM_RETURN_IF_ERROR(OfFile(arguments.file, CheckLayers(reader)));
  // Once more from the front, a layer at a time.
  const FileDescriptor again = OpenToRead(arguments.file);
  TM_ASSIGN_OR_RETURN(SessionFileReader layers, OpenFile(again, arguments.file));
  if (layers.bytes() != reader.bytes() || layers.head().kv().SerializeAsString() != kv.SerializeAsString()) {
    return FailedPrecondition(arguments.file + " was changed meanwhile");
  }
  std::error_code none_there;
  if (std::filesystem::equivalent(arguments.file, arguments.out, none_there)) {
    return InvalidArgument("is \"" + arguments.out + "\", which is the file that is read")
        .WithField("--out", FieldForm::kSubject);
  }
  std::ofstream out(arguments.out, std::ios::binary);
  out << SafetensorsHead(exported, kv, arguments.layout);
  if (!out) return CannotWrite(arguments.out);
  const auto write = [&](std::span<const std::byte> bytes) {
    out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    return out ? Status::Ok() : CannotWrite(arguments.out);
  };
  TM_RETURN_IF_ERROR(ExportKv(
      kv, arguments.layout,
      [&](int32_t layer, std::vector<std::byte>* rows) {
        return OfFile(arguments.file, layers.ReadLayer(layer, rows));
      },
      write));
  out.close();
  return out ? Status::Ok() : CannotWrite(arguments.out);
}

int Finished(const char* command, const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane kv %s: %s\n", command, status.ToString().c_str());
  return 1;
}

}  // namespace

void AddKvCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<KvArguments>();
  CLI::App* command =
      app.add_subcommand("kv", "Look into the file of a saved session, and at its keys and values");
  command->require_subcommand(1);
  CLI::App* show = command->add_subcommand("show", "Check the file and say what is in it");
  CLI::App* exporting =
      command->add_subcommand("export", "Write its keys and values as tensors, in a layout of other engines");
  for (CLI::App* with_file : {show, exporting}) {
    with_file->add_option("FILE", arguments->file, "the file, of --session-dir")->required();
  }
  exporting
      ->add_option(
          "--layout", arguments->layout,
          "hnd and nhd: a tensor for each layer, (1, 2, heads, tokens, dim) or (1, 2, tokens, heads, "
          "dim). openppl0 to 3: one of all layers, as OpenPPL's cache_layout says")
      ->type_name("hnd|nhd|openppl0|openppl1|openppl2|openppl3")
      ->check(
          CLI::IsMember(std::vector<std::string>(std::begin(kKvExportLayouts), std::end(kKvExportLayouts))))
      ->required();
  exporting->add_option("--out", arguments->out, "file to write")->type_name("F.safetensors")->required();
  show->callback([arguments, run] { *run = [arguments] { return Finished("show", Show(*arguments)); }; });
  exporting->callback(
      [arguments, run] { *run = [arguments] { return Finished("export", Export(*arguments)); }; });
}

}  // namespace tramontane
