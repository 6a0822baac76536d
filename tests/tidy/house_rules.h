// The project's own rules about its source tree, each a function from a tree to what breaks the rule.
// Any thread; pure, but for LoadTree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tramontane::tidy {

struct File {
  std::string path;  // from the root, with '/'
  std::string text;  // as it is on disk
  bool executable = false;
};
using Tree = std::vector<File>;

// One place that breaks a rule; line 0 means the file as a whole.
struct Finding {
  std::string path;
  int64_t line = 0;
  std::string what;

  friend bool operator==(const Finding&, const Finding&) = default;
};
using Findings = std::vector<Finding>;

// Reads the files named, skipping those that are gone from the disk.
Tree LoadTree(const std::filesystem::path& root, const std::vector<std::string>& paths);

// kernels/core <- kernels <- models <- engine <- server by #include, and within models tokenizer <- grammar;
// kernels/cpu and kernels/cuda are leaves of which others see only the maker of the backend; server/gateway
// sees proto, kernels/core and the client seam, nothing else of ours. No tests and no benchmarks.
Findings LayersIncludeOnlyLowerOnes(const Tree& tree);

// Every arrow of that list has a file that goes along it.
Findings EveryArrowIsUsed(const Tree& tree);

// gRPC, Boost and the like are included in the rooms that are for them alone.
Findings LibrariesHaveTheirRooms(const Tree& tree);

// Nothing below server/ knows absl, gRPC or protobuf; logging stops at the engine's thread.
Findings NothingBelowTheServerKnowsTheWire(const Tree& tree);

// Every .cc and .cu is named in the CMakeLists.txt of its folder or of one above: a test that is not built
// cannot fail.
Findings EverySourceIsBuilt(const Tree& tree);

// No two files define a type or a constant of one name in one namespace: what links both has two definitions
// of one thing. (Where one of the files includes the other, they are the halves of an #if: the compiler has
// seen both.)
Findings NamesAreDefinedOnce(const Tree& tree);

// What a source of models, engine or server hides in an unnamed namespace has a name that no other source
// of its folder, and no header that these include, gives to anything: compiled together, one would silently
// be taken for the other.
Findings HiddenNamesAreTheirFoldersOwn(const Tree& tree);

// Inline assembly and PTX live in kernels/cuda/primitives.cuh and hopper_primitives.cuh.
Findings AssemblyHasOneFile(const Tree& tree);

// Every kernel says how many threads its blocks have: the compiler that does not know may give it registers
// with which a block cannot be launched.
Findings KernelsSayHowManyThreadsTheyHave(const Tree& tree);

// Dividing by the page size, or taking the rest, by whatever name and be it by a shift, a mask or a
// multiplication, is how a position becomes a place; five files may do it.
Findings FewFilesTurnPositionsIntoPages(const Tree& tree);
// The engine says what lies where in pages by a Paging (engine/kv/names/paging.h); six files name the number.
Findings FewFilesOfTheEngineKnowThePageSize(const Tree& tree);

// The first position that a window shows is FirstVisible's (kernels/paged_kv.h), on host and device: what
// rolls pages, builds masks and bounds attention's loops must agree to the position. Nobody else takes a
// window from a position or adds one to a key, but for the CPU's attention, which asks which queries are past
// a key.
Findings OneFileKnowsWhereAWindowBegins(const Tree& tree);

// How many bytes numbers take, only their Format says: an element's size in bytes by its dtype stands in
// kernels/core/format.h and nowhere else.
Findings OnlyAFormatKnowsSizes(const Tree& tree);

// A line of a table or list in a comment that grew too long for the formatter was folded to the first column,
// and what hung below it hangs below nothing.
Findings CommentsKeepTheirColumns(const Tree& tree);

// What a document names is there, looked for from the root and from the document's folder: a source, script
// or document in backquotes with its folder, or by its name alone in a row of a table; a test
// (`runner_test`); a file or folder that is linked to.
Findings DocumentsNameWhatIsThere(const Tree& tree);

// A title (// ---- words ----) that grew too long had its line folded under it, and a text that was cut to
// the columns was cut again a word or two later.
Findings TitlesAndTextsAreOneLine(const Tree& tree);

Findings NothingIsLeftUnfinished(const Tree& tree);
Findings HeadersSayWhatTheyAre(const Tree& tree);  // a comment first, and #pragma once
Findings TopLevelIsTheOwnersLayout(const Tree& tree);
Findings FoldersHaveReadmes(const Tree& tree);
Findings FilesFitInGit(const Tree& tree);  // below 13 MB
Findings ScriptsCanBeRun(const Tree& tree);

}  // namespace tramontane::tidy
