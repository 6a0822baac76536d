#include "tests/tidy/house_rules.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "tests/tidy/declarations.h"

namespace tramontane::tidy {
namespace {

constexpr size_t kMaxFileBytes = 13'000'000;

bool EndsWithAny(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return path.ends_with(e); });
}

bool IsHeader(std::string_view path) { return EndsWithAny(path, {".h", ".cuh"}); }
bool IsTranslationUnit(std::string_view path) { return EndsWithAny(path, {".cc", ".cu"}); }
bool IsCode(std::string_view path) { return IsHeader(path) || IsTranslationUnit(path); }

bool IsUnder(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

std::string Parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string TopLevelName(const std::string& path) { return path.substr(0, path.find('/')); }

void ForEachLine(const File& file, const std::function<void(int64_t, const std::string&)>& visit) {
  std::istringstream lines(file.text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) visit(number, line);
}

// The path in `#include "path"` or `#include <path>`.
std::optional<std::string> IncludedPath(const std::string& line) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::smatch match;
  if (!std::regex_search(line, match, pattern)) return std::nullopt;
  return match[1].str();
}

void ForEachInclude(const File& file, const std::function<void(int64_t, const std::string&)>& visit) {
  ForEachLine(file, [&](int64_t number, const std::string& line) {
    if (const auto header = IncludedPath(line)) visit(number, *header);
  });
}

bool Includes(const File& file, const std::string& header) {
  bool found = false;
  ForEachInclude(file, [&](int64_t, const std::string& included) { found = found || included == header; });
  return found;
}

// The headers of the tree that the sources include, also by way of others.
std::vector<const File*> HeadersOf(const std::vector<const File*>& sources, const Tree& tree) {
  std::map<std::string, const File*> headers;
  for (const File& file : tree) {
    if (IsHeader(file.path)) headers.emplace(file.path, &file);
  }
  std::vector<const File*> found;
  std::vector<const File*> to_read = sources;
  while (!to_read.empty()) {
    const File& file = *to_read.back();
    to_read.pop_back();
    ForEachInclude(file, [&](int64_t, const std::string& included) {
      const auto header = headers.find(included);
      if (header == headers.end()) return;
      found.push_back(header->second);
      to_read.push_back(header->second);
      headers.erase(header);
    });
  }
  return found;
}

// ---- layers -------------------------------------------------------------------------------------

// A folder of sources and the folders whose headers it may include besides its own.
struct Layer {
  std::string_view folder;
  std::vector<std::string_view> lower;
};

// Every arrow of the tree, and no other: each is there because a file uses it (EveryArrowIsUsed). A folder
// that has no row is part of the one around it.
const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = {
      {"kernels/core", {}},
      {"kernels/backends", {"kernels", "kernels/core"}},
      {"kernels/cpu", {"kernels/backends", "kernels", "kernels/core"}},
      {"kernels/cuda", {"kernels/backends", "kernels", "kernels/core"}},
      {"kernels", {"kernels/core"}},
      {"models/files", {"kernels/core"}},
      {"models/gguf", {"models/files", "kernels/core"}},
      {"models/tokenizer", {"models/gguf", "models/files", "kernels/core"}},
      {"models/chat", {"models/jinja", "models/tokenizer", "models/gguf", "models/files", "kernels/core"}},
      {"models/grammar", {"models/tokenizer", "kernels/core"}},
      {"models/jinja", {"models/tokenizer", "kernels/core"}},
      {"models", {"models/gguf", "models/files", "kernels", "kernels/core"}},
      {"engine/threads", {}},
      {"engine/kv/names", {"kernels", "kernels/core"}},
      {"engine/kv/pages", {"engine/kv/names", "kernels/core"}},
      {"engine/kv/tier", {"engine/threads", "kernels/core"}},
      {"engine/kv",
       {"engine/kv/names", "engine/kv/pages", "engine/kv/tier", "kernels", "kernels/core", "models"}},
      {"engine/request",
       {"engine/kv", "engine/kv/names", "kernels", "kernels/core", "models", "models/chat",
        "models/grammar"}},
      {"engine/schedule", {"engine/kv", "engine/request", "kernels/core", "models"}},
      {"engine/output",
       {"engine/request", "engine/threads", "kernels", "kernels/core", "models/chat", "models/tokenizer"}},
      {"engine/run",
       {"engine/kv/names", "engine/request", "engine/schedule", "engine/threads", "kernels", "kernels/core",
        "models"}},
      {"engine/life",
       {"engine/output", "engine/request", "engine/run", "engine/schedule", "engine/kv/names",
        "engine/threads", "kernels/core", "models", "models/grammar", "models/tokenizer"}},
      {"engine/transfer",
       {"engine/kv", "engine/kv/names", "engine/request", "engine/run", "engine/threads", "kernels",
        "kernels/core", "models"}},
      {"engine",
       {"engine/kv", "engine/kv/tier", "engine/life", "engine/output", "engine/request", "engine/run",
        "engine/schedule", "engine/threads", "engine/transfer", "kernels", "kernels/core", "models",
        "models/chat", "models/tokenizer"}},
      {"proto", {}},
      {"server/base", {"kernels/core"}},
      {"server/call",
       {"server/base", "proto", "engine", "engine/threads", "models", "models/chat", "models/grammar",
        "models/tokenizer", "kernels/core"}},
      {"server/access", {"server/call", "server/base", "kernels/core"}},
      {"server/answers",
       {"server/call", "proto", "engine/output", "engine/request", "models/chat", "models/grammar",
        "models/tokenizer", "kernels/core"}},
      {"server/sessions",
       {"server/answers", "server/call", "server/base", "proto", "engine/kv", "engine/output",
        "engine/request", "engine/threads", "engine/transfer", "models", "kernels", "kernels/core"}},
      {"server/watch",
       {"server/call", "proto", "engine", "engine/output", "engine/request", "engine/transfer",
        "kernels/core"}},
      {"server/core",
       {"server/access", "server/answers", "server/sessions", "server/watch", "server/call", "server/base",
        "proto", "engine", "engine/output", "engine/request", "models/chat", "models/tokenizer", "kernels",
        "kernels/core"}},
      {"server/http", {"server/base", "kernels/core"}},
      {"server/api/shared",
       {"server/http", "server/answers", "server/watch", "server/call", "server/base", "proto",
        "kernels/core"}},
      {"server/api/openai",
       {"server/api/shared", "server/answers", "server/call", "server/base", "proto", "kernels/core"}},
      {"server/api/admin", {"server/api/shared", "server/call"}},
      {"server/api",
       {"server/api/openai", "server/api/admin", "server/api/shared", "server/access", "server/http",
        "server/call", "server/base", "kernels/core"}},
      {"server/grpc",
       {"server/core", "server/access", "server/call", "server/base", "proto", "kernels/core"}},
      {"server/remote", {"server/watch", "server/call", "proto", "kernels/core"}},
      {"server/setup",
       {"server/http", "server/watch", "server/call", "server/base", "engine", "models", "models/chat",
        "models/files", "models/gguf", "models/grammar", "models/tokenizer", "kernels/backends", "kernels",
        "kernels/core"}},
      {"server",
       {"server/grpc", "server/access", "server/api", "server/http", "server/core", "server/sessions",
        "server/watch", "server/call", "server/base", "server/setup", "kernels/core"}},
      {"server/commands",
       {"server",      "server/access",   "server/api",       "server/grpc",    "server/remote",
        "server/core", "server/sessions", "server/watch",     "server/base",    "server/setup",
        "proto",       "engine",          "engine/kv",        "engine/request", "engine/threads",
        "models",      "models/files",    "kernels/backends", "kernels",        "kernels/core"}},
  };
  return layers;
}

// The innermost layer a path lies in; tests and benchmarks are in none and may include anything.
const Layer* LayerOf(std::string_view path) {
  const bool is_generated = IsUnder(path, "tramontane") || IsUnder(path, "google/rpc");
  if (is_generated) path = "proto/generated";
  const Layer* innermost = nullptr;
  for (const Layer& layer : Layers()) {
    const bool inside = IsUnder(path, layer.folder);
    if (inside && (innermost == nullptr || layer.folder.size() > innermost->folder.size()))
      innermost = &layer;
  }
  return innermost;
}

bool MayInclude(const Layer& from, const std::string& header) {
  if (IsUnder(header, "tests") || IsUnder(header, "bench")) return false;
  const Layer* to = LayerOf(header);
  if (to == nullptr || to == &from) return true;
  return std::find(from.lower.begin(), from.lower.end(), to->folder) != from.lower.end();
}

// ---- sources and CMake --------------------------------------------------------------------------

// Whether a CMakeLists.txt names a source by its path from there, as a word of its own.
bool Names(const std::string& cmake_text, const std::string& relative_path) {
  static constexpr std::string_view kEdges = " \t\n()\"/";
  for (size_t at = cmake_text.find(relative_path); at != std::string::npos;
       at = cmake_text.find(relative_path, at + 1)) {
    const size_t end = at + relative_path.size();
    const bool starts = at == 0 || kEdges.find(cmake_text[at - 1]) != std::string_view::npos;
    const bool ends = end == cmake_text.size() || kEdges.find(cmake_text[end]) != std::string_view::npos;
    if (starts && ends) return true;
  }
  return false;
}

}  // namespace

Tree LoadTree(const std::filesystem::path& root, const std::vector<std::string>& paths) {
  Tree tree;
  for (const std::string& path : paths) {
    std::ifstream stream(root / path, std::ios::binary);
    std::error_code gone;
    const auto status = std::filesystem::status(root / path, gone);
    if (!stream || gone || !std::filesystem::is_regular_file(status)) continue;
    const bool executable =
        (status.permissions() & std::filesystem::perms::owner_exec) != std::filesystem::perms::none;
    tree.push_back({path,
                    std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()),
                    executable});
  }
  return tree;
}

Findings LayersIncludeOnlyLowerOnes(const Tree& tree) {
  Findings findings;
  for (const File& file : tree) {
    const Layer* layer = LayerOf(file.path);
    if (layer == nullptr || !IsCode(file.path)) continue;
    ForEachInclude(file, [&](int64_t number, const std::string& header) {
      if (MayInclude(*layer, header)) return;
      findings.push_back({file.path, number, std::string(layer->folder) + " must not see " + header});
    });
  }
  return findings;
}

Findings EveryArrowIsUsed(const Tree& tree) {
  std::set<std::pair<std::string_view, std::string_view>> used;
  for (const File& file : tree) {
    const Layer* from = LayerOf(file.path);
    if (from == nullptr || !IsCode(file.path)) continue;
    ForEachInclude(file, [&](int64_t, const std::string& header) {
      const Layer* to = LayerOf(header);
      if (to != nullptr) used.emplace(from->folder, to->folder);
    });
  }
  Findings findings;
  for (const Layer& from : Layers()) {
    for (const std::string_view to : from.lower) {
      if (used.count({from.folder, to}) != 0) continue;
      findings.push_back({std::string(from.folder), 0, "no file of it uses its arrow to " + std::string(to)});
    }
  }
  return findings;
}

Findings LibrariesHaveTheirRooms(const Tree& tree) {
  struct Library {
    std::regex header;
    std::vector<std::string_view> folders;  // whose own files may include it; not those of folders inside
  };
  static const std::vector<Library> libraries = {
      {std::regex("^(grpc|absl/|google/rpc/)"), {"server/grpc", "server/remote", "server"}},
      {std::regex("^boost/"), {"server/http"}},
      {std::regex("^CLI/"), {"server/commands"}},
      {std::regex("^openssl/"), {"server/commands", "server/sessions", "server/access", "server/http"}},
      {std::regex("^xgrammar/"), {"models/grammar"}},
      {std::regex("^jinja/"), {"models/jinja"}},
  };
  Findings findings;
  for (const File& file : tree) {
    const Layer* layer = LayerOf(file.path);
    if (layer == nullptr || !IsCode(file.path)) continue;
    ForEachInclude(file, [&](int64_t number, const std::string& header) {
      for (const Library& library : libraries) {
        const auto& folders = library.folders;
        if (!std::regex_search(header, library.header)) continue;
        if (std::find(folders.begin(), folders.end(), layer->folder) != folders.end()) continue;
        findings.push_back({file.path, number, header + " is not for " + std::string(layer->folder)});
      }
    });
  }
  return findings;
}

Findings NothingBelowTheServerKnowsTheWire(const Tree& tree) {
  static const std::regex wire(R"(^(absl/|grpc|google/protobuf|.*\.pb\.h$))");
  Findings findings;
  for (const File& file : tree) {
    const bool below =
        IsUnder(file.path, "kernels") || IsUnder(file.path, "models") || IsUnder(file.path, "engine");
    if (!below || !IsCode(file.path)) continue;
    ForEachInclude(file, [&](int64_t number, const std::string& header) {
      const bool logs = header.starts_with("spdlog/") && !file.path.starts_with("engine/engine_thread.");
      if (logs || std::regex_search(header, wire)) {
        findings.push_back({file.path, number, header + " is for server/"});
      }
    });
  }
  return findings;
}

Findings EverySourceIsBuilt(const Tree& tree) {
  Findings findings;
  for (const File& source : tree) {
    if (!IsTranslationUnit(source.path)) continue;
    const bool named = std::any_of(tree.begin(), tree.end(), [&](const File& file) {
      if (!file.path.ends_with("/CMakeLists.txt")) return false;
      const std::string folder = Parent(file.path);
      return IsUnder(source.path, folder) && Names(file.text, source.path.substr(folder.size() + 1));
    });
    if (!named) findings.push_back({source.path, 0, "named in no CMakeLists.txt of its folder or one above"});
  }
  return findings;
}

Findings NamesAreDefinedOnce(const Tree& tree) {
  std::map<std::string, const File*> places;  // by name, the first file that defines it
  Findings findings;
  for (const File& file : tree) {
    if (!IsCode(file.path)) continue;
    for (const Declaration& declared : Declarations(file.text)) {
      const File* first = places.emplace(declared.name, &file).first->second;
      if (first == &file || Includes(*first, file.path) || Includes(file, first->path)) continue;
      findings.push_back(
          {file.path, declared.line, declared.name + " is defined in " + first->path + " too"});
    }
  }
  return findings;
}

Findings HiddenNamesAreTheirFoldersOwn(const Tree& tree) {
  std::map<std::string, std::vector<const File*>> folders;  // of sources that may be compiled together
  for (const File& file : tree) {
    const bool is_ours =
        IsUnder(file.path, "models") || IsUnder(file.path, "engine") || IsUnder(file.path, "server");
    if (is_ours && file.path.ends_with(".cc")) folders[Parent(file.path)].push_back(&file);
  }
  Findings findings;
  for (const auto& [folder, sources] : folders) {
    std::map<std::string, const File*> places;  // by name, the first that gives it
    for (const File* header : HeadersOf(sources, tree)) {
      for (const Declaration& declared : Declarations(header->text)) places.emplace(declared.name, header);
      for (const Declaration& declared : Functions(header->text)) places.emplace(declared.name, header);
    }
    for (const File* file : sources) {
      for (const Declaration& declared : HiddenDeclarations(file->text)) {
        const File* first = places.emplace(declared.name, file).first->second;
        if (first == file) continue;
        findings.push_back(
            {file->path, declared.line, declared.name + " stands for something in " + first->path});
      }
    }
  }
  return findings;
}

Findings AssemblyHasOneFile(const Tree& tree) {
  static const std::regex assembly(R"((^|[^\w])(asm|__asm|__asm__)\s*(volatile|__volatile__)?\s*\()");
  Findings findings;
  for (const File& file : tree) {
    const bool may =
        file.path == "kernels/cuda/primitives.cuh" ||  // the device's instructions
        file.path == "kernels/cuda/hopper_primitives.cuh" ||
        file.path == "kernels/cuda/emulator/fiber.cc" ||  // the host's stack switch
        file.path == "kernels/cpu/simd.h" ||  // an order of additions, two products by a spread word
        IsUnder(file.path, "tests/tidy");
    if (!IsCode(file.path) || may) continue;
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      if (std::regex_search(line, assembly)) {
        findings.push_back({file.path, number, "inline assembly outside kernels/cuda/*primitives.cuh"});
      }
    });
  }
  return findings;
}

Findings KernelsSayHowManyThreadsTheyHave(const Tree& tree) {
  constexpr std::string_view kKernel = "TM_KERNEL";
  Findings findings;
  for (const File& file : tree) {
    if (!IsUnder(file.path, "kernels/cuda") || !IsCode(file.path)) continue;
    int64_t number = 1;
    size_t counted = 0;
    for (size_t at = file.text.find(kKernel); at != std::string::npos; at = file.text.find(kKernel, at + 1)) {
      number += std::count(file.text.begin() + static_cast<std::ptrdiff_t>(counted),
                           file.text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      counted = at;
      const size_t line = file.text.rfind('\n', at) + 1;  // from 0 where there is none
      const std::string before = file.text.substr(line, at - line);
      if (before.starts_with("#define") || before.find("//") != std::string::npos) continue;
      const size_t next = file.text.find_first_not_of(" \n", at + kKernel.size());
      if (next != std::string::npos && file.text.compare(next, 10, "TM_BOUNDS(") == 0) continue;
      findings.push_back({file.path, number, "a kernel without TM_BOUNDS"});
    }
  }
  return findings;
}

namespace {

// Names that the file gives to a page size, beside those that say so themselves: `const int32_t size =
// layout.format.page_size;`. As alternatives of a regular expression, each with a | in front.
std::string OtherNamesOfAPageSize(const File& file) {
  static const std::regex alias(
      R"(\b(\w+)\s*(=|\{)\s*(static_cast<[\w:]+>\()?[\w.>()-]*page_size(_|\(\))?\)?\s*[;})])");
  std::string names;
  ForEachLine(file, [&](int64_t, const std::string& line) {
    std::smatch match;
    const std::string code = line.substr(0, line.find("//"));
    if (std::regex_search(code, match, alias) && match[1].str().find("page_size") == std::string::npos) {
      names += "|" + match[1].str();
    }
  });
  return names;
}

}  // namespace

Findings FewFilesTurnPositionsIntoPages(const Tree& tree) {
  static const std::set<std::string_view> allowed = {
      "kernels/paged_kv.h",                // (page, offset) -> address: the formula
      "kernels/cuda/device_pages.h",       // the formula without a division
      "kernels/cuda/device_pages.cuh",     // and where it meets page tables
      "kernels/cuda/hopper_attention.cu",  // pages of a power of two, as its tensor map has them,
      "kernels/cuda/hopper_tile.cuh",      // and which of a tile's rows are whose
  };
  // Beside a quotient or a rest: the logarithm or a shift by it, a mask, the formula's divisor.
  static const std::string by_logarithm =
      R"rx((<<|>>)\s*[\w.>()-]*page_(size_)?log2|(countr_zero|bit_width|PopCount|__ffs|log2)\s*\(.*page_size)rx";
  static const std::string by_mask = R"rx([\w)]\s+&\s+~?\(?[\w.>()-]*page_size)rx";
  static const std::string by_divisor = R"rx(\bdivisor_?\.Quotient\()rx";
  Findings findings;
  for (const File& file : tree) {
    if (LayerOf(file.path) == nullptr || !IsCode(file.path) || allowed.count(file.path) != 0) continue;
    const auto has = [&](std::string_view word) { return file.text.find(word) != std::string::npos; };
    if (!has("page_") && !has("Quotient") && !has("paging")) continue;
    const std::regex by_page_size(
        R"rx([/%]=?\s*(static_cast<[\w:]+>\()?([\w.>()-]*page_size|[\w.>()-]*paging(_|\(\))?\.tokens|\b(page_tokens)rx" +
        OtherNamesOfAPageSize(file) + R"rx()\b)|)rx" + by_logarithm + "|" + by_mask + "|" + by_divisor);
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      const std::string code = line.substr(0, line.find("//"));
      if (std::regex_search(code, by_page_size)) {
        findings.push_back({file.path, number, "position arithmetic by page size: " + line});
      }
    });
  }
  return findings;
}

Findings FewFilesOfTheEngineKnowThePageSize(const Tree& tree) {
  static const std::set<std::string_view> allowed = {
      "engine/kv/names/paging.h",                                     // the value that the others pass on
      "engine/request/limits.h",     "engine/request/limits.cc",      // what may be asked for
      "engine/engine_host.cc",                                        // what the model's pages have
      "engine/transfer/kv_report.h", "engine/transfer/kv_report.cc",  // what is told of it
  };
  Findings findings;
  for (const File& file : tree) {
    if (!IsUnder(file.path, "engine") || allowed.count(file.path) != 0) continue;
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      if (line.find("page_size") == std::string::npos && line.find("PageSize") == std::string::npos) return;
      findings.push_back({file.path, number, "a page's size in place of a Paging: " + line});
    });
  }
  return findings;
}

Findings OneFileKnowsWhereAWindowBegins(const Tree& tree) {
  static constexpr std::string_view kAllowed = "kernels/paged_kv.h";  // FirstVisible, FirstBlind
  // Whatever less a window, as in position - window + 1, position - (window - 1) and end - window; and a key
  // plus a window less one.
  static const std::regex edge(
      R"(-\s+\(?\s*(\w+(\.|->))*window_?\b(?!\.|->|\()|\+\s*(\w+(\.|->))*window_?\s*-\s*1\b)");
  Findings findings;
  for (const File& file : tree) {
    if (LayerOf(file.path) == nullptr || !IsCode(file.path) || file.path == kAllowed) continue;
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      const std::string code = line.substr(0, line.find("//"));
      if (std::regex_search(code, edge)) {
        findings.push_back({file.path, number, "what FirstVisible says, said again: " + line});
      }
    });
  }
  return findings;
}

Findings OnlyAFormatKnowsSizes(const Tree& tree) {
  static const std::regex size_of_dtype(R"(\bDType(Bytes|Size)\s*\()");
  // `dtype == DType::kF32 ? 4 : 2`; tests may, as a definition of their own to hold the product to.
  static const std::regex chosen(R"(DType::k\w+\s*\?\s*[1248]\s*:\s*[1248]\b)");
  Findings findings;
  for (const File& file : tree) {
    if (!IsCode(file.path) || file.path == "kernels/core/format.h" || IsUnder(file.path, "tests/tidy"))
      continue;
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      const std::string code = line.substr(0, line.find("//"));
      const bool is_product = LayerOf(file.path) != nullptr;
      if (std::regex_search(code, size_of_dtype) || (is_product && std::regex_search(code, chosen))) {
        findings.push_back({file.path, number, "bytes by dtype outside kernels/core/format.h: " + line});
      }
    });
  }
  return findings;
}

// Three lines of one comment: a full one; a short one that begins farther left than the next, and whose first
// word found no room on the full one; and the next, which goes on in the middle of the sentence.
Findings CommentsKeepTheirColumns(const Tree& tree) {
  constexpr size_t kColumnLimit = 110;  // of .clang-format
  constexpr size_t kShortLine = 64;
  struct Line {
    size_t length = 0;             // 0: not of a comment with words
    size_t slashes = 0, text = 0;  // columns
    std::string words;
  };
  static const std::regex comment(R"(^(\s*)//(\s*)(\S.*)$)");
  Findings findings;
  for (const File& file : tree) {
    if (!IsCode(file.path) || IsUnder(file.path, "tests/tidy")) continue;
    std::array<Line, 2> before;  // the full one, the short one
    ForEachLine(file, [&](int64_t number, const std::string& text) {
      Line line;
      std::smatch match;
      if (std::regex_match(text, match, comment)) {
        line.length = text.size();
        line.slashes = static_cast<size_t>(match[1].length());
        line.text = static_cast<size_t>(match[2].length());
        line.words = match[3].str();
      }
      const auto& [full, folded] = before;
      const bool is_one_comment = full.length > 0 && folded.length > 0 && line.length > 0 &&
                                  full.slashes == folded.slashes && folded.slashes == line.slashes;
      const size_t first_word = std::min(folded.words.find(' '), folded.words.size());
      if (is_one_comment && line.text > folded.text && folded.length < kShortLine &&
          full.length + 1 + first_word > kColumnLimit && !EndsWithAny(folded.words, {".", ":", ";"}) &&
          folded.words.find("  ") == std::string::npos) {
        findings.push_back({file.path, number - 1, "\"" + folded.words + "\" was folded out of its column"});
      }
      before = {std::move(before[1]), std::move(line)};
    });
  }
  return findings;
}

Findings TitlesAndTextsAreOneLine(const Tree& tree) {
  static const std::regex title(R"(^\s*// ---- \S.*$)"), dashes(R"(^\s*// ?-+$)");
  // A string of one or two words between two others, which do not end where it does.
  static const std::regex text(R"rx(^\s*"(\\.|[^"\\])+ "$)rx"), crumb(R"rx(^\s*"([^" \\]+ ){1,2}"$)rx");
  Findings findings;
  for (const File& file : tree) {
    if (!IsCode(file.path) || IsUnder(file.path, "tests/tidy")) continue;
    std::string before;
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      if (std::regex_match(line, dashes) && std::regex_match(before, title)) {
        findings.push_back({file.path, number, "the line of a title was folded"});
      }
      if (std::regex_match(line, crumb) && std::regex_match(before, text)) {
        findings.push_back({file.path, number, "a text was folded twice: " + line});
      }
      before = line;
    });
  }
  return findings;
}

namespace {

// What there is to be named: paths of files and of their folders, and names without a folder.
class NamesOfTree {
 public:
  explicit NamesOfTree(const Tree& tree) {
    static const std::regex test(R"(\bNAME\s+(\w+))");
    for (const File& file : tree) {
      for (std::string path = file.path; !path.empty(); path = Parent(path)) paths_.insert(path);
      const std::string name = file.path.substr(file.path.rfind('/') + 1);  // the whole where there is no '/'
      names_.insert(name);
      names_.insert(name.substr(0, name.rfind('.')));  // `runner_test` for runner_test.cc
      if (name != "CMakeLists.txt") continue;
      for (std::sregex_iterator match(file.text.begin(), file.text.end(), test), end; match != end; ++match) {
        names_.insert((*match)[1]);
      }
    }
  }

  bool HasPath(const std::string& path) const { return paths_.count(path) != 0; }
  bool HasName(const std::string& name) const { return names_.count(name) != 0; }

 private:
  std::set<std::string> paths_;
  std::set<std::string> names_;
};

}  // namespace

Findings DocumentsNameWhatIsThere(const Tree& tree) {
  static const std::regex quoted(R"(`([\w.-]+(?:/[\w.-]+)*)`)"), linked(R"(\]\(([^)#\s:]+)(?:#[^)]*)?\))");
  static const std::regex test(R"((?:.*/)?(\w+_test))"), file_name(R"(.*\w\.(cc|h|cu|cuh|py|sh|md))");
  const NamesOfTree there(tree);
  Findings findings;
  for (const File& file : tree) {
    if (!file.path.ends_with(".md")) continue;
    const auto is_path = [&](const std::string& path) {
      const auto from_here = std::filesystem::path(Parent(file.path)) / path;
      std::string whole = from_here.lexically_normal().generic_string();
      if (whole.ends_with('/')) whole.pop_back();
      return there.HasPath(path) || there.HasPath(whole);
    };
    const auto is_there = [&](const std::string& name, bool is_row) {
      std::smatch match;
      if (std::regex_match(name, match, test)) return there.HasName(match[1]);
      const bool is_made = name.ends_with(".pb.h");  // by the build
      if (is_made || !std::regex_match(name, file_name)) return true;
      return name.find('/') != std::string::npos ? is_path(name) : !is_row || there.HasName(name);
    };
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      const auto look = [&](const std::regex& pattern, const auto& exists) {
        for (std::sregex_iterator match(line.begin(), line.end(), pattern), end; match != end; ++match) {
          const std::string name = (*match)[1];
          if (!exists(name)) findings.push_back({file.path, number, name + " is not there"});
        }
      };
      look(quoted, [&](const std::string& name) { return is_there(name, line.starts_with("|")); });
      look(linked, is_path);
    });
  }
  return findings;
}

Findings NothingIsLeftUnfinished(const Tree& tree) {
  static const std::regex mark(R"(\b(TODO|FIXME|XXX)\b)");
  Findings findings;
  for (const File& file : tree) {
    const bool text =
        IsCode(file.path) || EndsWithAny(file.path, {".md", ".txt", ".py", ".sh", ".proto", ".json"});
    if (!text || IsUnder(file.path, "tests/tidy")) continue;
    ForEachLine(file, [&](int64_t number, const std::string& line) {
      if (std::regex_search(line, mark)) findings.push_back({file.path, number, "a mark of unfinished work"});
    });
  }
  return findings;
}

Findings HeadersSayWhatTheyAre(const Tree& tree) {
  Findings findings;
  for (const File& file : tree) {
    if (!IsHeader(file.path)) continue;
    if (!file.text.starts_with("//")) findings.push_back({file.path, 1, "a header opens with what it is"});
    if (file.text.find("\n#pragma once\n") == std::string::npos) {
      findings.push_back({file.path, 0, "no #pragma once"});
    }
  }
  return findings;
}

Findings TopLevelIsTheOwnersLayout(const Tree& tree) {
  static const std::set<std::string> layout = {
      "server",    "engine",          "kernels", "proto", "models",         "configs",
      "tests",     "docker",          "bench",   "docs",  "CMakeLists.txt", "CMakePresets.json",
      "README.md", "CONTRIBUTING.md", "LICENSE", "run",   "check",
  };
  std::set<std::string> strangers;
  for (const File& file : tree) {
    const std::string name = TopLevelName(file.path);
    if (name.front() != '.' && layout.count(name) == 0) strangers.insert(name);
  }
  Findings findings;
  for (const std::string& name : strangers)
    findings.push_back({name, 0, "not a name of the top level's layout"});
  return findings;
}

Findings FoldersHaveReadmes(const Tree& tree) {
  static const std::set<std::string> libraries = {"kernels", "models", "engine", "server"};
  std::set<std::string> wanted, present;
  for (const File& file : tree) {
    const std::string folder = Parent(file.path);
    const std::string top = TopLevelName(file.path);
    if (folder.empty() || top.front() == '.') continue;
    wanted.insert(top);
    // The parts of a library are folders with a meaning of their own: models/tokenizer, kernels/cpu.
    const bool is_part = Parent(folder) == top && libraries.count(top) != 0;
    if (is_part) wanted.insert(folder);
    if (file.path.ends_with("/README.md")) present.insert(folder);
  }
  Findings findings;
  for (const std::string& folder : wanted) {
    if (present.count(folder) == 0) findings.push_back({folder, 0, "no README.md"});
  }
  return findings;
}

Findings FilesFitInGit(const Tree& tree) {
  Findings findings;
  for (const File& file : tree) {
    if (file.text.size() >= kMaxFileBytes) findings.push_back({file.path, 0, "13 MB or more"});
  }
  return findings;
}

Findings ScriptsCanBeRun(const Tree& tree) {
  Findings findings;
  for (const File& file : tree) {
    if (file.text.starts_with("#!") && !file.executable) findings.push_back({file.path, 0, "no run bit"});
  }
  return findings;
}

}  // namespace tramontane::tidy
