// The house rules over this repository, and for each rule a small tree that breaks it.
#include "tests/tidy/house_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace tramontane::tidy {

void PrintTo(const Finding& finding, std::ostream* out) {
  *out << finding.path << ":" << finding.line << ": " << finding.what;
}

namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::Not;

// What git tracks; empty where there is no git or this is no checkout.
std::vector<std::string> TrackedPaths() {
  std::vector<std::string> paths;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("git ls-files -z 2>/dev/null", "r"), pclose);
  std::string path;
  for (int c = pipe ? std::fgetc(pipe.get()) : EOF; c != EOF; c = std::fgetc(pipe.get())) {
    if (c != '\0') {
      path.push_back(static_cast<char>(c));
      continue;
    }
    paths.push_back(path);
    path.clear();
  }
  return paths;
}

class HouseRules : public ::testing::Test {
 protected:
  void SetUp() override {
    tree_ = LoadTree(TRAMONTANE_SOURCE_DIR, TrackedPaths());
    if (tree_.empty())
      GTEST_SKIP() << "git does not say which files belong to the project; no rule was looked at";
  }

  Tree tree_;
};

TEST_F(HouseRules, EveryArrowIsUsed) { EXPECT_THAT(EveryArrowIsUsed(tree_), IsEmpty()); }
TEST_F(HouseRules, LibrariesHaveTheirRooms) { EXPECT_THAT(LibrariesHaveTheirRooms(tree_), IsEmpty()); }
TEST_F(HouseRules, LayersIncludeOnlyLowerOnes) { EXPECT_THAT(LayersIncludeOnlyLowerOnes(tree_), IsEmpty()); }
TEST_F(HouseRules, NothingBelowTheServerKnowsTheWire) {
  EXPECT_THAT(NothingBelowTheServerKnowsTheWire(tree_), IsEmpty());
}
TEST_F(HouseRules, EverySourceIsBuilt) { EXPECT_THAT(EverySourceIsBuilt(tree_), IsEmpty()); }
TEST_F(HouseRules, NamesAreDefinedOnce) { EXPECT_THAT(NamesAreDefinedOnce(tree_), IsEmpty()); }
TEST_F(HouseRules, HiddenNamesAreTheirFoldersOwn) {
  EXPECT_THAT(HiddenNamesAreTheirFoldersOwn(tree_), IsEmpty());
}
TEST_F(HouseRules, AssemblyHasOneFile) { EXPECT_THAT(AssemblyHasOneFile(tree_), IsEmpty()); }
TEST_F(HouseRules, KernelsSayHowManyThreadsTheyHave) {
  EXPECT_THAT(KernelsSayHowManyThreadsTheyHave(tree_), IsEmpty());
}
TEST_F(HouseRules, FewFilesTurnPositionsIntoPages) {
  EXPECT_THAT(FewFilesTurnPositionsIntoPages(tree_), IsEmpty());
}
TEST_F(HouseRules, FewFilesOfTheEngineKnowThePageSize) {
  EXPECT_THAT(FewFilesOfTheEngineKnowThePageSize(tree_), IsEmpty());
}
TEST_F(HouseRules, OneFileKnowsWhereAWindowBegins) {
  EXPECT_THAT(OneFileKnowsWhereAWindowBegins(tree_), IsEmpty());
}
TEST_F(HouseRules, OnlyAFormatKnowsSizes) { EXPECT_THAT(OnlyAFormatKnowsSizes(tree_), IsEmpty()); }
TEST_F(HouseRules, CommentsKeepTheirColumns) { EXPECT_THAT(CommentsKeepTheirColumns(tree_), IsEmpty()); }
TEST_F(HouseRules, TitlesAndTextsAreOneLine) { EXPECT_THAT(TitlesAndTextsAreOneLine(tree_), IsEmpty()); }
TEST_F(HouseRules, DocumentsNameWhatIsThere) { EXPECT_THAT(DocumentsNameWhatIsThere(tree_), IsEmpty()); }
TEST_F(HouseRules, NothingIsLeftUnfinished) { EXPECT_THAT(NothingIsLeftUnfinished(tree_), IsEmpty()); }
TEST_F(HouseRules, HeadersSayWhatTheyAre) { EXPECT_THAT(HeadersSayWhatTheyAre(tree_), IsEmpty()); }
TEST_F(HouseRules, TopLevelIsTheOwnersLayout) { EXPECT_THAT(TopLevelIsTheOwnersLayout(tree_), IsEmpty()); }
TEST_F(HouseRules, FoldersHaveReadmes) { EXPECT_THAT(FoldersHaveReadmes(tree_), IsEmpty()); }
TEST_F(HouseRules, FilesFitInGit) { EXPECT_THAT(FilesFitInGit(tree_), IsEmpty()); }
TEST_F(HouseRules, ScriptsCanBeRun) { EXPECT_THAT(ScriptsCanBeRun(tree_), IsEmpty()); }

// ---- planted violations -------------------------------------------------------------------------

// Matches findings in exactly these files, in this order.
template <typename... Paths>
auto FoundIn(Paths... paths) {
  return ElementsAre(Field(&Finding::path, paths)...);
}

TEST(PlantedViolation, AnUpwardIncludeIsFound) {
  const Tree tree = {
      {"kernels/core/status.h", "#include \"kernels/backend.h\"\n"},
      {"kernels/backend.h", "#include \"kernels/core/status.h\"\n#include \"models/model.h\"\n"},
      {"models/model.cc", "#include \"kernels/backend.h\"\n#include \"models/model.h\"\n"},
      {"models/mistral.cc", "#  include \"engine/request.h\"\n"},
      {"engine/engine.cc", "#include \"models/model.h\"\n#include \"server/setup/config.h\"\n"},
      {"server/setup/host_options.cc", "#include \"engine/engine.h\"\n"},
  };
  EXPECT_THAT(LayersIncludeOnlyLowerOnes(tree),
              ElementsAre(Finding{"kernels/core/status.h", 1, "kernels/core must not see kernels/backend.h"},
                          Finding{"kernels/backend.h", 2, "kernels must not see models/model.h"},
                          Finding{"models/mistral.cc", 1, "models must not see engine/request.h"},
                          Finding{"engine/engine.cc", 2, "engine must not see server/setup/config.h"}));
}

TEST(PlantedViolation, ALeafSeenFromOutsideIsFound) {
  const Tree tree = {
      {"kernels/cpu/linear.cc", "#include \"kernels/cpu/linear.h\"\n#include \"kernels/backend.h\"\n"},
      {"kernels/cuda/attention.cu", "#include \"kernels/cpu/linear.h\"\n"},
      {"models/mistral.cc", "#include \"kernels/backends/cpu_backend.h\"\n"},
      {"server/commands/main.cc",
       "#include \"kernels/backends/cpu_backend.h\"\n#include \"kernels/cpu/linear.h\"\n"},
      {"tests/kernels/linear_test.cc", "#include \"kernels/cpu/linear.h\"\n"},
  };
  EXPECT_THAT(LayersIncludeOnlyLowerOnes(tree),
              FoundIn("kernels/cuda/attention.cu", "models/mistral.cc", "server/commands/main.cc"));
}

TEST(PlantedViolation, AProductThatSeesTestsOrAFolderBesideItIsFound) {
  const Tree tree = {
      {"engine/engine.cc", "#include \"tests/support/fake_clock.h\"\n#include \"models/tokenizer/utf8.h\"\n"},
      {"models/mistral.cc", "#include \"models/tokenizer/tokenizer.h\"\n#include \"bench/timing.h\"\n"},
      {"models/tokenizer/load.cc", "#include \"models/grammar/ebnf.h\"\n"},
      {"models/grammar/ebnf.cc", "#include \"models/tokenizer/tokenizer.h\"\n"},
      {"engine/request.cc", "#include \"tramontane/v1/inference.pb.h\"\n"},
      {"server/api/shared/api_error.cc", "#include \"tramontane/v1/inference.pb.h\"\n"},
      {"bench/gateway_bench.cc", "#include \"tests/support/fake_clock.h\"\n"},
  };
  EXPECT_THAT(LayersIncludeOnlyLowerOnes(tree),
              FoundIn("engine/engine.cc", "models/mistral.cc", "models/mistral.cc",
                      "models/tokenizer/load.cc", "engine/request.cc"));
}

TEST(PlantedViolation, ARoomThatLeansOnOneThatIsNotBelowItIsFound) {
  const Tree tree = {
      {"server/api/gateway.h",
       "#include \"server/call/inference_client.h\"\n#include \"server/http/http.h\"\n#include "
       "\"kernels/core/status.h\"\n"},
      {"server/api/openai/sse.cc", "#include \"engine/request.h\"\n"},
      {"server/api/shared/json.cc", "#include \"server/setup/config.h\"\n#include \"kernels/backend.h\"\n"},
      {"server/http/parser.cc", "#include \"server/api/shared/api_error.h\"\n"},
      {"server/core/served_call.cc", "#include \"server/grpc/grpc_status.h\"\n"},
      {"server/server.cc", "#include \"server/commands/commands.h\"\n"},
  };
  EXPECT_THAT(LayersIncludeOnlyLowerOnes(tree),
              FoundIn("server/api/openai/sse.cc", "server/api/shared/json.cc", "server/api/shared/json.cc",
                      "server/http/parser.cc", "server/core/served_call.cc", "server/server.cc"));
}

TEST(PlantedViolation, AnArrowThatNobodyUsesIsFound) {
  const Tree tree = {{"server/base/host_port.h", "#include \"kernels/core/status.h\"\n"}};
  const Findings findings = EveryArrowIsUsed(tree);
  EXPECT_THAT(findings, Contains(Finding{"server/grpc", 0, "no file of it uses its arrow to server/core"}));
  EXPECT_THAT(findings, Not(Contains(Field(&Finding::path, "server/base"))));
}

TEST(PlantedViolation, ALibraryInAnotherRoomIsFound) {
  const Tree tree = {
      {"server/http/parser.cc", "#include <boost/beast/http.hpp>\n"},
      {"server/api/stages.cc", "#include <boost/asio/ip/address.hpp>\n"},
      {"server/core/served_call.cc", "#include <grpcpp/grpcpp.h>\n"},
      {"server/server.cc", "#include <grpcpp/server_builder.h>\n"},
      {"tests/server/generate_test.cc", "#include <grpcpp/grpcpp.h>\n"},
  };
  EXPECT_THAT(LibrariesHaveTheirRooms(tree), FoundIn("server/api/stages.cc", "server/core/served_call.cc"));
}

TEST(PlantedViolation, ANameDefinedTwiceIsFound) {
  const Tree tree = {
      {"kernels/backend.h", "namespace t {\nclass Backend {\n};\n}\n"},
      {"server/backend.h", "namespace t {\ninline constexpr int kMost = 2;\nstruct Backend {};\n}\n"},
      {"server/host.h",
       "#ifdef HOST\n#include \"kernels/backend.h\"\n#else\nnamespace t {\nclass Backend {};\n}\n#endif\n"},
      {"server/other.cc", "namespace t {\nclass Backend;\nnamespace {\nconstexpr int kMost = 3;\n}\n}\n"},
  };
  EXPECT_THAT(NamesAreDefinedOnce(tree),
              ElementsAre(Finding{"server/backend.h", 3, "t::Backend is defined in kernels/backend.h too"}));
}

TEST(PlantedViolation, AHiddenNameThatStandsForSomethingElseIsFound) {
  const Tree tree = {
      {"models/pattern.h", "namespace t {\nconstexpr int kMost = 256;\nbool IsDigit(char c);\n}\n"},
      {"models/ebnf.cc",
       "namespace t {\nnamespace {\nconstexpr int kMost = 128;\nint Size(int x) {}\n}\n}\n"},
      {"models/regex.h", "#include \"models/pattern.h\"\n"},
      {"models/regex.cc",
       "#include \"models/regex.h\"\nnamespace t {\nnamespace {\nbool IsDigit(int c) {}\nStatusOr<A<void()>> "
       "Size(char c);\nconst int kOwn = 1;\n}\n}\n"},
      {"models/json/size.cc", "namespace t {\nnamespace {\nint Size(int x) {}\n}\nint A::Size() {}\n}\n"},
      {"models/far.h", "namespace t {\nconst int kOwn = 1;\n}\n"},
      {"kernels/cpu/size.cc", "namespace t {\nnamespace {\nconstexpr int kMost = 1;\n}\n}\n"},
  };
  EXPECT_THAT(
      HiddenNamesAreTheirFoldersOwn(tree),
      ElementsAre(Finding{"models/ebnf.cc", 3, "t::kMost stands for something in models/pattern.h"},
                  Finding{"models/regex.cc", 4, "t::IsDigit stands for something in models/pattern.h"},
                  Finding{"models/regex.cc", 5, "t::Size stands for something in models/ebnf.cc"}));
}

TEST(PlantedViolation, TheWireBelowTheServerIsFound) {
  const Tree tree = {
      {"engine/engine.cc", "#include <grpcpp/grpcpp.h>\n"},
      {"models/config.cc", "#include \"absl/strings/string_view.h\"\n"},
      {"kernels/backend.h", "#include <google/protobuf/message.h>\n"},
      {"engine/request.h", "#include \"proto/tramontane/v1/inference.pb.h\"\n"},
      {"models/weights.cc", "#include <spdlog/spdlog.h>\n"},
      {"engine/engine_thread.cc", "#include <spdlog/spdlog.h>\n"},
      {"server/service.cc", "#include <grpcpp/grpcpp.h>\n"},
  };
  EXPECT_THAT(NothingBelowTheServerKnowsTheWire(tree),
              FoundIn("engine/engine.cc", "models/config.cc", "kernels/backend.h", "engine/request.h",
                      "models/weights.cc"));
}

TEST(PlantedViolation, ASourceThatNobodyBuildsIsFound) {
  const Tree tree = {
      {"tests/CMakeLists.txt",
       "add_subdirectory(engine)\ntramontane_test(NAME a SOURCES support/a_test.cc)\n"},
      {"tests/engine/CMakeLists.txt", "tramontane_test(NAME storm SOURCES storm_test.cc LIBRARIES x)\n"},
      {"tests/support/a_test.cc", ""},
      {"tests/engine/storm_test.cc", ""},
      {"tests/engine/m_test.cc", ""},  // the end of storm_test.cc, but another file
      {"engine/storm_test.cc", ""},    // named, but not by a CMakeLists.txt above it
  };
  EXPECT_THAT(EverySourceIsBuilt(tree), FoundIn("tests/engine/m_test.cc", "engine/storm_test.cc"));
}

TEST(PlantedViolation, AssemblyInAnotherFileIsFound) {
  const Tree tree = {
      {"kernels/cuda/primitives.cuh", "asm volatile(\"mma.sync\");\n"},
      {"kernels/cuda/attention.cu", "  asm volatile(\"mma.sync\");\n"},
      {"kernels/cpu/pause.cc", "  __asm__ (\"pause\");\n"},
      {"kernels/cpu/words.cc", "int plasm(int);\n"},
  };
  EXPECT_THAT(AssemblyHasOneFile(tree), FoundIn("kernels/cuda/attention.cu", "kernels/cpu/pause.cc"));
}

TEST(PlantedViolation, AKernelWithoutBoundsIsFound) {
  const Tree tree = {
      {"kernels/cuda/primitives.cuh", "#define TM_KERNEL __global__\n#define TM_BOUNDS(...)\n"},
      {"kernels/cuda/a.cu",
       "TM_KERNEL TM_BOUNDS(128) void A() {}\n// a TM_KERNEL of threads\nTM_KERNEL void B() {}\n"},
      {"kernels/cuda/b.cu", "template <int kDim>\nTM_KERNEL\nTM_BOUNDS(kThreads, 2) void C() {}\n"},
      {"tests/kernels/c_test.cc", "TM_KERNEL void D() {}\n"},
  };
  EXPECT_THAT(KernelsSayHowManyThreadsTheyHave(tree),
              ElementsAre(Finding{"kernels/cuda/a.cu", 3, "a kernel without TM_BOUNDS"}));
}

TEST(PlantedViolation, PageArithmeticInAnotherFileIsFound) {
  const Tree tree = {
      {"kernels/paged_kv.h", "return position / page_size;\n"},
      {"engine/scheduler.cc", "pages = (tokens + page_size - 1) / page_size;\n"},
      {"engine/kv_store.cc", "return end / store.page_size() * store.page_size();\n"},
      {"engine/alias.cc", "const auto block = static_cast<size_t>(page_size());\nx = end / block;\n"},
      {"engine/other.cc", "const int32_t block = layout.format.page_size;\nx = end + block;\ny = end / 2;\n"},
      {"engine/paged.cc", "page = position / store.paging().tokens();\n"},
      {"kernels/cpu/attention.cc", "offset = position % kv.page_size;\n"},
      {"kernels/cpu/mask.cc", "offset = position & (kv.page_size - 1);\n"},
      {"kernels/cuda/shift.cu", "page = position >> p.page_log2;\n"},
      {"kernels/cuda/logarithm.cu", "log = std::countr_zero(static_cast<unsigned>(kv.format.page_size));\n"},
      {"kernels/cuda/divisor.cu", "page = pages.divisor.Quotient(position);\n"},
      {"models/mistral.cc", "// position / page_size is not for us\nint64_t page_size = 16;\n"},
      {"tests/engine/kv_test.cc", "EXPECT_EQ(pages, tokens / page_size);\n"},
  };
  EXPECT_THAT(FewFilesTurnPositionsIntoPages(tree),
              FoundIn("engine/scheduler.cc", "engine/kv_store.cc", "engine/alias.cc", "engine/paged.cc",
                      "kernels/cpu/attention.cc", "kernels/cpu/mask.cc", "kernels/cuda/shift.cu",
                      "kernels/cuda/logarithm.cu", "kernels/cuda/divisor.cu"));
}

TEST(PlantedViolation, APageSizeThatGoesRoundTheEngineIsFound) {
  const Tree tree = {{"engine/kv/names/paging.h", "Paging(int32_t page_size);\n"},
                     {"engine/engine_host.cc", "page_size = 16;\n"},
                     {"engine/README.md", "A page has page_size tokens.\n"},
                     {"engine/run/tables.cc", "if (size > kMaxPageSize) return;\n"},
                     {"kernels/paged_kv.h", "int32_t page_size;\n"}};
  EXPECT_THAT(FewFilesOfTheEngineKnowThePageSize(tree), FoundIn("engine/README.md", "engine/run/tables.cc"));
}

TEST(PlantedViolation, ASecondLeftEdgeOfAWindowIsFound) {
  const Tree tree = {
      {"kernels/paged_kv.h", "return position - window + 1;\n"},
      {"kernels/cuda/attention.cu", "begin = p.run.window > 0 ? Max(0, first - p.run.window + 1) : 0;\n"},
      {"kernels/cpu/attention.cc", "return std::max(0, position + 1 - params->window);\n"},
      {"engine/kv_store.cc", "const int64_t first = accepted - (group.window - 1);\n"},
      {"engine/kv_store.h", "// the query at p sees p - window + 1 and on\nFirstVisible(p, window);\n"},
      {"engine/ring.cc", "for (int64_t p = end - window; p < end; ++p) {\n"},
      {"kernels/masks.cc", "const int64_t past = key + spec.window - 1;\n"},
      {"kernels/tiles.cc", "blocks = (spec.window - shape.compressed_window) / block;\n"},
      {"server/flags.cc", "Flag(\"--window\", window - 1);\n"},
      {"models/kv_layout.cc", "pages = PagesFor(window - 1 + ahead, page_size) + 1;\n"},
      {"tests/kernels/attention_test.cc", "EXPECT_EQ(first, position - window + 1);\n"},
  };
  EXPECT_THAT(OneFileKnowsWhereAWindowBegins(tree),
              FoundIn("kernels/cuda/attention.cu", "kernels/cpu/attention.cc", "engine/kv_store.cc",
                      "engine/ring.cc", "kernels/masks.cc"));
}

TEST(PlantedViolation, ASizeByDTypeInAnotherFileIsFound) {
  const Tree tree = {
      {"kernels/core/format.h", "block_bytes(plain == DType::kF32 ? 4 : 2)\n"},
      {"kernels/cpu/linear.cc", "bytes = n * static_cast<int64_t>(DTypeBytes(dtype));\n"},
      {"models/weights.cc", "// DTypeBytes(dtype) is not for us\nbytes = format.Bytes(n);\n"},
      {"engine/host.cc", "bytes = n * (dtype == DType::kF32 ? 4 : 2);\n"},
      {"engine/kv.cc", "name = dtype == DType::kF32 ? \"f32\" : \"bf16\";\n"},
      {"tests/kernels/linear_test.cc", "bytes.resize(n * DTypeSize(dtype));\n"},
      {"tests/kernels/rope_test.cc", "expected = n * (dtype == DType::kF32 ? 4 : 2);\n"},
  };
  EXPECT_THAT(OnlyAFormatKnowsSizes(tree),
              FoundIn("kernels/cpu/linear.cc", "engine/host.cc", "tests/kernels/linear_test.cc"));
}

TEST(PlantedViolation, ALineFoldedOutOfItsColumnIsFound) {
  const std::string full = "// Grid:   " + std::string(96, 'x');
  const Tree tree = {
      {"kernels/folded.h", full + "\n// enough\n//         blocks.\n"},
      {"kernels/hanging.h", full + "\n//         enough\n//         blocks.\n"},
      {"kernels/list.h", full + "\n// of which:\n//   - one\n"},
      {"kernels/sentence.h", full + "\n// enough\n// blocks.\n"},
      {"kernels/two.cc", "  " + full + "\n  // of\n  //   x\n"},
  };
  EXPECT_THAT(CommentsKeepTheirColumns(tree), FoundIn("kernels/folded.h", "kernels/two.cc"));
}

TEST(PlantedViolation, AFoldedTitleOrTextIsFound) {
  const std::string title = "// ---- a title", dashes = "// " + std::string(90, '-');
  const Tree tree = {
      {"kernels/whole.cc", title + " ----\n\n" + dashes + "\n// words\n"},
      {"kernels/folded.cc", title + "\n" + dashes + "\n"},
      {"kernels/texts.cc", "  \"some words of a text that go on \"\n  \"until here\"\n  f(\n  \"one \"\n"},
      {"kernels/crumb.cc", "  \"some words of a text that \"\n  \"go \"\n  \"on\"\n"},
  };
  EXPECT_THAT(TitlesAndTextsAreOneLine(tree), FoundIn("kernels/folded.cc", "kernels/crumb.cc"));
}

TEST(PlantedViolation, ANameOfNothingInADocumentIsFound) {
  const Tree tree = {
      {"docs/use.md",
       "`engine/engine.h`, `../run` and [it](../engine/README.md#steps), [here](use.md)\n"
       "`engine/gone.h` and [it](../engine/gone.md)\n"},
      {"engine/README.md",
       "| `engine.h` | `sub/step.cc`, `.cu` |\n| `gone.h` |\na `foreign.h` that nobody has\n"
       "`step_test`, `tests/engine/run_test`, `lost_test`; [sub/](sub/), [sub/gone/](sub/gone/)\n"
       "`sub/gone.py`, `tramontane/v1/made.pb.h`, `/etc/far.sh`, [far](https://a.b/c.md)\n"},
      {"engine/engine.h", "// `engine/gone.h`\n"},
      {"engine/sub/step.cc", ""},
      {"tests/engine/step_test.cc", ""},
      {"tests/engine/CMakeLists.txt", "tramontane_test(NAME run_test SOURCES step_test.cc)\n"},
      {"run", ""},
  };
  EXPECT_THAT(DocumentsNameWhatIsThere(tree),
              ElementsAre(Finding{"docs/use.md", 2, "engine/gone.h is not there"},
                          Finding{"docs/use.md", 2, "../engine/gone.md is not there"},
                          Finding{"engine/README.md", 2, "gone.h is not there"},
                          Finding{"engine/README.md", 4, "lost_test is not there"},
                          Finding{"engine/README.md", 4, "sub/gone/ is not there"},
                          Finding{"engine/README.md", 5, "sub/gone.py is not there"}));
}

TEST(PlantedViolation, AMarkOfUnfinishedWorkIsFound) {
  const Tree tree = {
      {"engine/engine.cc", "int x;  // TODO: y\n"},
      {"docs/use.md", "FIXME\n"},
      {"engine/other.cc", "int todo_list;\n"},
  };
  EXPECT_THAT(NothingIsLeftUnfinished(tree), FoundIn("engine/engine.cc", "docs/use.md"));
}

TEST(PlantedViolation, ASilentHeaderIsFound) {
  const Tree tree = {
      {"engine/good.h", "// What it is.\n#pragma once\n"},
      {"engine/silent.h", "#pragma once\n// late\n"},
      {"engine/twice.h", "// What it is.\nint x;\n"},
  };
  // "#pragma once" on the first line has no comment before it; the rule asks for a line above it.
  EXPECT_THAT(HeadersSayWhatTheyAre(tree), FoundIn("engine/silent.h", "engine/silent.h", "engine/twice.h"));
}

TEST(PlantedViolation, AStrangerAtTheTopLevelIsFound) {
  const Tree tree = {
      {"notes.txt", ""}, {"scripts/a.sh", ""}, {"engine/a.h", ""}, {".ci/run", ""}, {"run", ""}};
  EXPECT_THAT(TopLevelIsTheOwnersLayout(tree), FoundIn("notes.txt", "scripts"));
}

TEST(PlantedViolation, AFolderWithoutReadmeIsFound) {
  const Tree tree = {
      {"engine/a.h", ""},       {"kernels/README.md", ""}, {"kernels/cpu/a.cc", ""},
      {"tests/README.md", ""},  {"tests/engine/a.cc", ""}, {"models/tokenizer/README.md", ""},
      {"models/README.md", ""}, {".ci/run", ""},
  };
  EXPECT_THAT(FoldersHaveReadmes(tree), FoundIn("engine", "kernels/cpu"));
}

TEST(PlantedViolation, AHugeFileIsFound) {
  const Tree tree = {{"models/big.safetensors", std::string(13'000'000, 'x')}, {"models/small", "x"}};
  EXPECT_THAT(FilesFitInGit(tree), FoundIn("models/big.safetensors"));
}

TEST(PlantedViolation, AScriptWithoutRunBitIsFound) {
  const Tree tree = {{"run", "#!/usr/bin/env bash\n", true}, {"check", "#!/usr/bin/env bash\n", false}};
  EXPECT_THAT(ScriptsCanBeRun(tree), FoundIn("check"));
}

TEST(LoadTree, ReadsTextAndRunBitAndSkipsWhatIsGone) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "house_rules_tree";
  std::filesystem::create_directories(root / "engine");
  std::ofstream(root / "engine/a.h") << "// A.\n";
  std::ofstream(root / "run") << "#!/bin/sh\n";
  std::filesystem::permissions(root / "run", std::filesystem::perms::owner_all);
  const Tree tree = LoadTree(root, {"engine/a.h", "run", "engine/gone.h"});
  std::filesystem::remove_all(root);
  ASSERT_EQ(tree.size(), 2u);
  EXPECT_EQ(tree[0].text, "// A.\n");
  EXPECT_FALSE(tree[0].executable);
  EXPECT_TRUE(tree[1].executable);
}

}  // namespace
}  // namespace tramontane::tidy
