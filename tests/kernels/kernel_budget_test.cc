// What the CUDA kernels take of a multiprocessor stays within kernels/cuda/budget.txt: registers, spilled
// bytes, stack and static shared memory as ptxas reported them while the library was compiled, what a warp
// issues in the main loops of the machine code (machine_code.h), and the dynamic shared memory of launches,
// measured on the emulator.
//
// A change that takes more fails here. If the change is worth it, write the budget anew and look at what git
// shows:
//   TRAMONTANE_WRITE_BUDGET=1 build/release/bin/kernel_budget_test
#include <cxxabi.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/decode_pages.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/sampling.h"
#include "tests/kernels/machine_code.h"

namespace tramontane {
namespace {

constexpr const char* kBudgetFile = TRAMONTANE_SOURCE_DIR "/kernels/cuda/budget.txt";

// Per kernel and architecture.
struct Usage {
  int registers = 0;  // of a thread
  int spilled = 0;    // bytes stored and loaded
  int stack = 0;      // bytes of a thread
  int shared = 0;     // static bytes of a block
};
using KernelOnArchitecture =
    std::pair<std::string, std::string>;  // ("AttentionKernel<Bf16, 64, 16>", "sm_80")
using Usages = std::map<KernelOnArchitecture, Usage>;
using DynamicShared = std::map<std::string, int64_t>;  // bytes of a block, by kernel
using Loops = std::map<KernelOnArchitecture, LoopCost>;

struct Budget {
  std::string nvcc;  // "13.0": other versions allocate registers otherwise
  Usages usage;
  DynamicShared dynamic;
  Loops loops;
};

// "_ZN...AttentionKernel..." to "AttentionKernel<Bf16, 64, 16>": no namespaces, return type or parameters.
std::string KernelName(const std::string& mangled) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  for (const char* dropped : {"tramontane::", "cuda::", "(anonymous namespace)::"}) {
    for (size_t at = name.find(dropped); at != std::string::npos; at = name.find(dropped)) {
      name.erase(at, std::string(dropped).size());
    }
  }
  if (name.starts_with("void ")) name.erase(0, 5);
  return name.substr(0, name.find('('));
}

// What `ptxas -v` wrote.
void AddUsages(std::istream& log, Usages* usages) {
  static const std::regex entry("Compiling entry function '(\\w+)' for '(\\w+)'");
  static const std::regex frame(
      "(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads");
  static const std::regex used("Used (\\d+) registers.*");
  static const std::regex shared(", (\\d+) bytes smem");
  Usage* current = nullptr;
  std::smatch match;
  for (std::string line; std::getline(log, line);) {
    if (std::regex_search(line, match, entry)) {
      current = &(*usages)[{KernelName(match[1]), match[2]}];
    } else if (current != nullptr && std::regex_search(line, match, frame)) {
      current->stack = std::stoi(match[1]);
      current->spilled = std::stoi(match[2]) + std::stoi(match[3]);
    } else if (current != nullptr && std::regex_search(line, match, used)) {
      current->registers = std::stoi(match[1]);
      if (std::regex_search(line, match, shared)) current->shared = std::stoi(match[1]);
    }
  }
}

Usages CompiledUsages() {
  Usages usages;
  std::istringstream logs(TRAMONTANE_PTXAS_LOGS);
  for (std::string path; std::getline(logs, path, ':');) {
    std::ifstream log(path);
    EXPECT_TRUE(log) << path;
    AddUsages(log, &usages);
  }
  return usages;
}

std::string FirstUsageBeyond(const Usages& used, const Usages& allowed) {
  for (const auto& [kernel, u] : used) {
    const std::string name = kernel.first + " on " + kernel.second;
    const auto found = allowed.find(kernel);
    if (found == allowed.end()) return name + " has no budget";
    const Usage& a = found->second;
    auto beyond = [&](const char* what, int value, int limit) {
      return name + ": " + std::to_string(value) + " " + what + ", the budget is " + std::to_string(limit);
    };
    if (u.registers > a.registers) return beyond("registers", u.registers, a.registers);
    if (u.spilled > a.spilled) return beyond("spilled bytes", u.spilled, a.spilled);
    if (u.stack > a.stack) return beyond("bytes of stack", u.stack, a.stack);
    if (u.shared > a.shared) return beyond("bytes of static shared memory", u.shared, a.shared);
  }
  return "";
}

// ---- main loops --------------------------------------------------------------------------------

// Where .ci/install puts the tools, and where toolkits have them.
std::string Disassembler() {
  for (const char* folder :
       {TRAMONTANE_SOURCE_DIR "/build/disassembler/nvidia/cu13/bin", TRAMONTANE_CUDA_BIN}) {
    const std::filesystem::path tools = folder;
    if (std::filesystem::exists(tools / "cuobjdump") && std::filesystem::exists(tools / "nvdisasm"))
      return folder;
  }
  return "";
}

// What one architecture has in an object, by mangled names.
std::map<std::string, std::vector<Instruction>> MachineCodeOf(const std::string& object,
                                                              const std::string& architecture) {
  const std::string command =
      "PATH='" + Disassembler() + "':\"$PATH\" cuobjdump -sass -arch " + architecture + " '" + object + "'";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << command;
    return {};
  }
  std::string text;
  std::vector<char> piece(1 << 16);
  while (const size_t bytes = std::fread(piece.data(), 1, piece.size(), pipe))
    text.append(piece.data(), bytes);
  EXPECT_EQ(pclose(pipe), 0) << command;
  std::istringstream dump(text);
  return ReadMachineCode(dump);
}

// Of the kernels that one architecture has in `objects`, those that make tensor products in a loop.
Loops LoopsOf(const std::vector<std::string>& objects, const std::string& architecture) {
  Loops loops;
  for (const std::string& object : objects) {
    for (const auto& [name, code] : MachineCodeOf(object, architecture)) {
      const LoopCost cost = MainLoopCost(code);
      if (cost.products > 0) loops[{KernelName(name), architecture}] = cost;
    }
  }
  return loops;
}

constexpr const char* kLoopArchitecture = "sm_90a";

// The objects of these sources: "/attention.cu".
std::vector<std::string> ObjectsOf(const std::vector<std::string>& sources) {
  std::vector<std::string> objects;
  std::istringstream logs(TRAMONTANE_PTXAS_LOGS);
  for (std::string log; std::getline(logs, log, ':');) {
    for (const std::string& source : sources) {
      const std::string ending = source + ".ptxas";
      if (log.ends_with(ending)) objects.push_back(log.substr(0, log.size() - ending.size()) + source + ".o");
    }
  }
  return objects;
}

Loops CompiledLoops() {
  return LoopsOf(ObjectsOf({"/attention.cu", "/attention_by_row.cu", "/attention_latent.cu",
                            "/hopper_attention.cu", "/hopper_decode.cu", "/linear_small.cu"}),
                 kLoopArchitecture);
}

std::string FirstLoopBeyond(const Loops& found, const Loops& allowed) {
  for (const auto& [kernel, cost] : found) {
    const std::string name = "the main loop of " + kernel.first + " on " + kernel.second;
    const auto budget = allowed.find(kernel);
    if (budget == allowed.end()) return name + " has no budget";
    if (cost.instructions > budget->second.instructions) {
      return name + " issues " + std::to_string(cost.instructions) + " instructions, the budget is " +
             std::to_string(budget->second.instructions);
    }
    if (cost.branches > budget->second.branches) {
      return name + " has " + std::to_string(cost.branches) + " branches, the budget is " +
             std::to_string(budget->second.branches);
    }
  }
  return "";
}

// Lines: "nvcc 13.0", "sm_80 REGISTERS SPILLED STACK SHARED KERNEL", "dynamic BYTES KERNEL", "loop sm_90a
// INSTRUCTIONS BRANCHES KERNEL"; '#' begins a comment.
Budget ReadBudget(std::istream& file) {
  Budget budget;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string first, kernel;
    words >> first;
    if (first == "nvcc") {
      words >> budget.nvcc;
    } else if (first == "dynamic") {
      int64_t bytes = 0;
      words >> bytes >> std::ws;
      std::getline(words, kernel);
      budget.dynamic[kernel] = bytes;
    } else if (first == "loop") {
      std::string architecture;
      LoopCost cost;
      words >> architecture >> cost.instructions >> cost.branches >> std::ws;
      std::getline(words, kernel);
      budget.loops[{kernel, architecture}] = cost;
    } else {
      Usage u;
      words >> u.registers >> u.spilled >> u.stack >> u.shared >> std::ws;
      std::getline(words, kernel);
      budget.usage[{kernel, first}] = u;
    }
    EXPECT_TRUE(words) << line;
  }
  return budget;
}

void WriteBudget(const Budget& budget) {
  std::ofstream file(kBudgetFile);
  file << "# What the kernels may take; tests/kernels/kernel_budget_test.cc reads this and says how to write "
          "it.\n"
          "nvcc "
       << budget.nvcc
       << "\n\n# architecture, registers, spilled bytes, stack, static shared memory, kernel\n";
  for (const auto& [kernel, u] : budget.usage) {
    file << kernel.second << ' ' << u.registers << ' ' << u.spilled << ' ' << u.stack << ' ' << u.shared
         << ' ' << kernel.first << '\n';
  }
  file << "\n# most dynamic shared memory of a block, kernel\n";
  for (const auto& [kernel, bytes] : budget.dynamic) file << "dynamic " << bytes << ' ' << kernel << '\n';
  file << "\n# in one turn of the main loop: architecture, instructions and branches that a warp issues, "
          "kernel\n";
  for (const auto& [kernel, cost] : budget.loops) {
    file << "loop " << kernel.second << ' ' << cost.instructions << ' ' << cost.branches << ' '
         << kernel.first << '\n';
  }
}

// ---- launches with as much shared memory as each kernel ever takes ------------------------------

int64_t SharedBytesOf(const std::function<int()>& launch) {
  emulator::CurrentSettings() = {};
  emulator::TotalStats() = {};
  EXPECT_EQ(launch(), 0);
  return emulator::TotalStats().shared_bytes;
}

int64_t AttentionSharedBytes(DType dtype, int32_t head_dim, int32_t tile_rows) {
  const cuda::AttentionWork nothing{};
  cuda::AttentionRunParams p{};
  p.kv = KvLayerView({.element = dtype, .kv_heads = 1, .head_dim = head_dim});
  p.work = &nothing;
  p.tile_rows = tile_rows;
  p.max_items = 1;
  return SharedBytesOf([&] { return cuda::RunAttention(p, nullptr); });
}

int64_t AttentionByRowSharedBytes(const Format& element, int32_t head_dim) {
  const cuda::AttentionWork nothing{};
  cuda::AttentionByRowParams p{};
  p.run.kv = KvLayerView({.element = element, .kv_heads = 1, .head_dim = head_dim});
  p.run.work = &nothing;
  p.run.tile_rows = cuda::kByRowTileRows;
  p.run.max_items = 1;
  return SharedBytesOf([&] { return cuda::RunAttentionByRow(p, nullptr); });
}

int64_t HopperSharedBytes(int32_t head_dim, int32_t tile_rows) {
  const cuda::AttentionWork nothing{};
  cuda::HopperAttentionParams p{};
  const KvFormat format = {.element = DType::kBf16, .kv_heads = 1, .head_dim = head_dim};
  p.run.kv = KvLayerView(format, nullptr, format.PageBytes(1));
  p.run.work = &nothing;
  p.run.group = 1;
  p.run.tile_rows = tile_rows;
  p.run.max_items = 1;
  p.blocks = 1;
  return SharedBytesOf([&] {
    return tile_rows == cuda::kHopperPrefillRows ? cuda::RunHopperPrefill(p, nullptr)
                                                 : cuda::RunHopperDecode(p, nullptr);
  });
}

// The most that rows take.
int64_t LatentAttentionSharedBytes() {
  const cuda::AttentionWork nothing{};
  cuda::LatentAttentionParams p{};
  p.run.kv = KvLayerView({.element = DType::kBf16,
                          .kv_heads = 1,
                          .head_dim = cuda::kMostLatentDim,
                          .latent_value_dim = cuda::kMostLatentValueDim});
  p.run.work = &nothing;
  p.run.tile_rows = cuda::kByRowTileRows;
  p.run.max_items = 1;
  return SharedBytesOf([&] { return cuda::RunLatentAttention(p, nullptr); });
}

// Weights of kernels that are made for each type, and what they are called there.
const std::pair<DType, const char*> kWeightTypes[] = {
    {DType::kBf16, "Bf16"}, {DType::kQ8_0, "Q8_0"}, {DType::kQ4_0, "Q4_0"}, {DType::kQ4_1, "Q4_1"},
    {DType::kQ5_0, "Q5_0"}, {DType::kQ5_1, "Q5_1"}, {DType::kQ4K, "Q4K"},   {DType::kQ5K, "Q5K"},
    {DType::kQ6K, "Q6K"},   {DType::kInt4, "Int4"}, {DType::kInt8, "Int8"}, {DType::kFp8E4M3, "Fp8"}};

int32_t LeastInFeatures(DType type) {
  return type == DType::kBf16 ? cuda::kTileNumbers : cuda::LayoutOf(type).numbers();
}

// The longest rows that a launch of so many takes, times 16 outputs.
int64_t SmallLinearSharedBytes(int32_t rows, Prologue prologue, DType type) {
  cuda::SmallLinearParams p{};
  p.rows = rows;
  p.prologue = prologue;
  p.epilogue = Epilogue::kNone;
  p.out_features = 16;
  p.out_dtype = DType::kBf16;
  p.weight_format = type;
  p.in_features = LeastInFeatures(type);
  cuda::SmallLinearParams longer = p;
  while (longer.in_features < 8192 && cuda::SmallLinearSupported(longer)) {
    p = longer;
    longer.in_features += LeastInFeatures(type);
  }
  const auto k = static_cast<size_t>(p.in_features);
  const std::vector<uint16_t> x(static_cast<size_t>(rows) * k), weight(16 * k);
  const std::vector<float> norm(k, 1.0f);
  std::vector<uint16_t> out(static_cast<size_t>(rows) * 16);
  p.x = x.data();
  p.x_stride = p.in_features;
  p.weight = weight.data();
  p.norm_weight = norm.data();
  p.out = out.data();
  p.out_stride = 16;
  return SharedBytesOf([&] { return cuda::LaunchSmallLinear(p, nullptr); });
}

// One row of one expert, of the widest hidden size there is and with the most experts where these matter.
int64_t MoeRouteSharedBytes() {
  const std::vector<uint16_t> x(cuda::kMaxMoeHidden);
  std::vector<uint16_t> normalised(x.size());
  const std::vector<float> norm(x.size());
  const std::vector<float> router(x.size() * kMaxExperts);
  int32_t chosen = 0;
  float share = 0.0f;
  const cuda::MoeRouteParams p = {x.data(),
                                  norm.data(),
                                  router.data(),
                                  normalised.data(),
                                  &chosen,
                                  &share,
                                  nullptr,
                                  cuda::kMaxMoeHidden,
                                  1,
                                  cuda::kMaxMoeHidden,
                                  kMaxExperts,
                                  1,
                                  1e-5f};
  return SharedBytesOf([&] { return cuda::LaunchMoeRoute(p, nullptr); });
}

int64_t MoeGroupSharedBytes() {
  const int32_t chosen = 0;
  int32_t order = 0;
  cuda::MoeTile tile{};
  return SharedBytesOf(
      [&] { return cuda::LaunchMoeGroup({&chosen, &order, &tile, 1, kMaxExperts, 1}, nullptr); });
}

int64_t MoeOrderSharedBytes() {
  std::vector<uint16_t> x(cuda::kMaxMoeOrderWidth);
  const int32_t chosen = 0;
  cuda::MoeOrderParams p{};
  p.x = p.y = x.data();
  p.chosen = &chosen;
  p.pairs = p.pairs_of_a_row = 1;
  p.width = cuda::kMaxMoeOrderWidth;
  return SharedBytesOf([&] { return cuda::LaunchMoeOrder(p, nullptr); });
}

int64_t MoeGemmSharedBytes(int32_t rows, bool tiles, DType type) {
  const int32_t in = LeastInFeatures(type);
  const std::vector<uint16_t> x(static_cast<size_t>(rows * in)), weight(static_cast<size_t>(16 * in));
  const std::vector<int32_t> chosen(static_cast<size_t>(rows));
  std::vector<int32_t> order(chosen.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<float> out(static_cast<size_t>(rows) * 16);
  const cuda::MoeTile tile = {0, 0, rows};
  cuda::MoeGemmParams p{};
  p.weights[0] = weight.data();
  p.x = x.data();
  p.out = out.data();
  p.chosen = chosen.data();
  p.order = tiles ? order.data() : nullptr;
  p.tiles = &tile;
  p.max_tiles = 1;
  p.rows = p.pairs = rows;
  p.pairs_of_a_row = p.experts = 1;
  p.weight_format = type;
  p.in_features = in;
  p.out_features = 16;
  return SharedBytesOf([&] { return cuda::LaunchMoeGemm(p, nullptr); });
}

DynamicShared MeasuredDynamicShared() {
  DynamicShared bytes;
  for (const auto& [dtype, type_name] : {std::pair{DType::kBf16, "Bf16"}, {DType::kF16, "F16"}}) {
    for (const int32_t head_dim : {32, 64, 96, 128}) {
      for (const int32_t rows : {16, 64, 128}) {
        if (rows == cuda::kWideTileRows && !cuda::HasWideTile(head_dim)) continue;
        std::ostringstream name;
        name << "AttentionKernel<" << type_name << ", " << head_dim << ", " << rows << ">";
        bytes[name.str()] = AttentionSharedBytes(dtype, head_dim, rows);
      }
    }
  }
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    const std::string name = "AttentionByRowKernel<" + std::to_string(head_dim);
    bytes[name + ", false>"] = AttentionByRowSharedBytes(DType::kBf16, head_dim);
    bytes[name + ", true>"] = AttentionByRowSharedBytes(Format::BareFp8(), head_dim);
  }
  for (const int32_t head_dim : {64, 128}) {
    const std::string shape = "<" + std::to_string(head_dim) + ">";
    bytes["HopperPrefillKernel" + shape] = HopperSharedBytes(head_dim, cuda::kHopperPrefillRows);
    bytes["HopperDecodeKernel" + shape] = HopperSharedBytes(head_dim, cuda::kHopperDecodeRows);
  }
  bytes["LatentAttentionKernel"] = LatentAttentionSharedBytes();
  for (const auto& [type, name] : kWeightTypes) {
    const std::string small = std::string("SmallLinearKernel<") + name,
                      moe = std::string("MoeSmallKernel<") + name;
    bytes[small + ", 1, false>"] = SmallLinearSharedBytes(8, Prologue::kNone, type);
    bytes[small + ", 2, false>"] = SmallLinearSharedBytes(16, Prologue::kNone, type);
    bytes[small + ", 1, true>"] = SmallLinearSharedBytes(8, Prologue::kRmsNorm, type);
    if (type == DType::kBf16)
      bytes[small + ", 2, true>"] = SmallLinearSharedBytes(16, Prologue::kRmsNorm, type);
    bytes[moe + ", 1>"] = MoeGemmSharedBytes(8, false, type);
    bytes[moe + ", 2>"] = MoeGemmSharedBytes(16, false, type);
    const std::string tiles =
        type == DType::kBf16 ? "MoeTileKernel" : std::string("TileLinearKernel<") + name + ">";
    bytes[tiles] = MoeGemmSharedBytes(20, true, type);
  }
  bytes["MoeRouteKernel"] = MoeRouteSharedBytes();
  bytes["MoeGroupKernel"] = MoeGroupSharedBytes();
  bytes["MoeOrderKernel"] = MoeOrderSharedBytes();
  cuda::AttentionWork work{};
  cuda::AttentionPlanParams plan{};
  plan.kv_heads = 1;
  plan.work = &work;
  bytes["PlanAttentionKernel"] = SharedBytesOf([&] { return cuda::PlanAttention(plan, nullptr); });
  const int32_t left = 0;
  plan.left = &left;
  bytes["PlanAttentionByRowKernel"] = SharedBytesOf([&] { return cuda::PlanAttention(plan, nullptr); });
  cuda::AttentionSharersParams sharers{};
  sharers.page_size = 1;
  sharers.group = 1;
  bytes["FindAttentionSharersKernel"] =
      SharedBytesOf([&] { return cuda::FindAttentionSharers(sharers, nullptr); });
  bytes["ListPagesKernel"] = SharedBytesOf([] {
    const int32_t zero = 0, none[2] = {};
    int32_t first_entry = 0, count = 0;
    cuda::ListPagesParams list{};
    list.table = {.first_entry = &zero, .kv_base = &zero, .kv_end = &zero};
    list.qo_indptr = none;
    list.batch = 1;
    list.listing.first_entry = &first_entry;
    list.listing.count = &count;
    return cuda::LaunchListPages(list, nullptr);
  });
  const std::vector<uint16_t> x(8);
  std::vector<uint16_t> y(8);
  const std::vector<float> weight(8);
  const cuda::RmsNormKernelParams norm{x.data(), nullptr, weight.data(), y.data(), 8, 1, 8, 1e-5f};
  bytes["RmsNormKernel"] = SharedBytesOf([&] { return cuda::LaunchRmsNorm(norm, nullptr); });
  float logit = 0.0f;
  const SamplingRow row;
  SampleRecord record;
  cuda::SampleKernelParams sample{};
  sample.call.logits = MakeTensor(&logit, DType::kF32, 1, 1);
  sample.call.rows = &row;
  sample.call.records = &record;
  bytes["SampleKernel"] = SharedBytesOf([&] { return cuda::LaunchSample(sample, nullptr); });
  std::vector<std::byte> split(static_cast<size_t>(cuda::SplitSampleBytes()));
  sample.split = split.data();
  sample.blocks = 2;
  for (const char* kernel : {"SampleScanKernel", "SampleWeighKernel", "SampleFinishKernel"})
    bytes[kernel] = SharedBytesOf([&] { return cuda::LaunchSample(sample, nullptr); });
  return bytes;
}

Budget CommittedBudget() {
  std::ifstream file(kBudgetFile);
  EXPECT_TRUE(file) << kBudgetFile;
  return ReadBudget(file);
}

// Why there is nothing from ptxas to compare; empty where there is.
std::string WhyNotCompiled(const Budget& budget) {
  const std::string version = TRAMONTANE_NVCC_VERSION;
  if (version.empty()) {
    return std::string(TRAMONTANE_NVCC_MISSING) +
           ": the kernels were not compiled for sm_80, sm_89 and sm_90a, nor their registers and spills "
           "checked";
  }
  if (version != budget.nvcc && std::getenv("TRAMONTANE_WRITE_BUDGET") == nullptr) {
    return "the kernels compile; the budget is for nvcc " + budget.nvcc + ", this is " + version;
  }
  return "";
}

TEST(KernelBudgetTest, EveryKernelStaysWithinItsRegistersSpillsAndStaticSharedMemory) {
  Budget budget = CommittedBudget();
  if (const std::string reason = WhyNotCompiled(budget); !reason.empty()) GTEST_SKIP() << reason;
  const Usages used = CompiledUsages();
  ASSERT_FALSE(used.empty());
  if (std::getenv("TRAMONTANE_WRITE_BUDGET") != nullptr) {
    const Loops loops = Disassembler().empty() ? budget.loops : CompiledLoops();
    WriteBudget({TRAMONTANE_NVCC_VERSION, used, MeasuredDynamicShared(), loops});
    budget = CommittedBudget();
  }
  EXPECT_EQ(FirstUsageBeyond(used, budget.usage), "");
  for (const auto& [kernel, allowed] : budget.usage) {
    EXPECT_TRUE(used.count(kernel)) << kernel.first << " on " << kernel.second
                                    << " has a budget but does not exist";
  }
}

TEST(KernelBudgetTest, MainLoopsIssueNoMoreThanTheirInstructionsAndBranches) {
  const Budget budget = CommittedBudget();
  if (const std::string reason = WhyNotCompiled(budget); !reason.empty()) GTEST_SKIP() << reason;
  if (Disassembler().empty()) {
    GTEST_SKIP() << "no cuobjdump and nvdisasm (.ci/install disassembler): nobody looked at the machine code";
  }
  const Loops loops = CompiledLoops();
  ASSERT_FALSE(loops.empty());
  EXPECT_EQ(FirstLoopBeyond(loops, budget.loops), "");
  for (const auto& [kernel, allowed] : budget.loops) {
    EXPECT_TRUE(loops.count(kernel)) << kernel.first << " on " << kernel.second
                                     << " has a loop's budget but no loop";
  }
  for (const auto& [kernel, cost] : loops) {
    EXPECT_EQ(cost.divisions, 0) << "the main loop of " << kernel.first << " divides";
  }
}

// A warp that gave registers back and names one of them reads what others have there. The compiler takes
// setmaxnreg for a hint that it may drop.
TEST(KernelBudgetTest, WarpsThatFetchUseNoMoreRegistersThanTheyKept) {
  const Budget budget = CommittedBudget();
  if (const std::string reason = WhyNotCompiled(budget); !reason.empty()) GTEST_SKIP() << reason;
  if (Disassembler().empty()) {
    GTEST_SKIP() << "no cuobjdump and nvdisasm (.ci/install disassembler): nobody looked at the machine code";
  }
  int kernels = 0;
  for (const std::string& object : ObjectsOf({"/hopper_attention.cu"})) {
    for (const auto& [name, code] : MachineCodeOf(object, kLoopArchitecture)) {
      SCOPED_TRACE(name);
      const std::vector<RegisterLimit> limits = RegisterLimits(code);
      ASSERT_EQ(limits.size(), 2U) << "a branch that computes and one that fetches";
      EXPECT_EQ(std::max(limits[0].allowed, limits[1].allowed), 232);
      EXPECT_EQ(std::min(limits[0].allowed, limits[1].allowed), 40);
      for (const RegisterLimit& limit : limits) EXPECT_LE(limit.used, limit.allowed);
      ++kernels;
    }
  }
  EXPECT_EQ(kernels, 2) << "head_dim 64 and 128";
}

TEST(KernelBudgetTest, RegistersBehindALimitAreThoseOfEveryWayFromThere) {
  std::istringstream dump(
      "Function : f\n"
      "        /*0000*/                   IADD3 R90, R91, 0x1, RZ ;\n"
      "        /*0010*/               @P0 BRA 0x60 ;\n"
      "        /*0020*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;\n"
      "        /*0030*/               @P1 BRA 0x80 ;\n"
      "        /*0040*/                   LDG.E.64 R10, desc[UR40][R6.64] ;\n"
      "        /*0050*/                   EXIT ;\n"
      "        /*0060*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;\n"
      "        /*0070*/                   EXIT ;\n"
      "        /*0080*/                   LDG.E.128 R20, desc[UR40][R6.64] ;\n"
      "        /*0090*/                   EXIT ;\n");
  const std::vector<RegisterLimit> limits = RegisterLimits(ReadMachineCode(dump).at("f"));
  ASSERT_EQ(limits.size(), 2U);
  EXPECT_EQ(limits[0].allowed, 24);
  EXPECT_EQ(limits[0].used, 24);
  EXPECT_EQ(limits[1].allowed, 240);
  EXPECT_EQ(limits[1].used, 0);
}

TEST(KernelBudgetTest, LaunchesTakeTheDynamicSharedMemoryThatTheBudgetSays) {
  EXPECT_EQ(MeasuredDynamicShared(), CommittedBudget().dynamic);
}

// CUDA Programming Guide, table of technical specifications: the most shared memory of one block.
TEST(KernelBudgetTest, SharedMemoryOfEveryKernelFitsItsArchitecture) {
  const std::map<std::string, int64_t> limit = {
      {"sm_80", 163 * 1024}, {"sm_89", 99 * 1024}, {"sm_90a", 227 * 1024}};
  const Budget budget = CommittedBudget();
  for (const auto& [kernel, usage] : budget.usage) {
    const auto dynamic = budget.dynamic.find(kernel.first);
    const int64_t bytes = usage.shared + (dynamic == budget.dynamic.end() ? 0 : dynamic->second);
    EXPECT_LE(bytes, limit.at(kernel.second)) << kernel.first << " on " << kernel.second;
  }
}

// A loop from 0x10 to 0x90: a copy that the last turn jumps over, and a mask that most turns do.
TEST(KernelBudgetTest, ATurnOfALoopIsTheShortestWayWithAllProductsAndCopies) {
  std::istringstream dump(
      "\t\tFunction : kernel\n"
      "        /*0000*/                   MOV R1, c[0x0][0x28] ;            /* 0x00000a00ff017624 */\n"
      "                                                                     /* 0x000fe400078e00ff */\n"
      "        /*0010*/              @P1  BRA 0x30 ;                        /* 0x00000a00ff017624 */\n"
      "        /*0020*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;\n"
      "        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n"
      "        /*0040*/             @!P0  BRA 0x70 ;\n"
      "        /*0050*/                   FSEL R4, R4, -INF , P2 ;\n"
      "        /*0060*/                   MUFU.RCP R5, R4 ;\n"
      "        /*0070*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n"
      "        /*0080*/              @P3  MUFU.RCP R9, R8 ;\n"
      "        /*0090*/                   BRA P4, 0x10 ;\n"
      "        /*00a0*/                   EXIT ;\n"
      "        /*00b0*/                   BRA 0xb0 ;\n");
  const auto functions = ReadMachineCode(dump);
  ASSERT_TRUE(functions.count("kernel"));
  ASSERT_EQ(functions.at("kernel").size(), 12u);
  const LoopCost cost = MainLoopCost(functions.at("kernel"));
  EXPECT_EQ(cost.instructions, 7);
  EXPECT_EQ(cost.branches, 3);
  EXPECT_EQ(cost.divisions, 1);
  EXPECT_EQ(cost.copies, 1);
  EXPECT_EQ(cost.products, 2);
  const KernelOnArchitecture kernel = {"kernel", "sm_90a"};
  EXPECT_EQ(FirstLoopBeyond({{kernel, cost}}, {{kernel, cost}}), "");
  for (int LoopCost::* field : {&LoopCost::instructions, &LoopCost::branches}) {
    LoopCost less = cost;
    less.*field -= 1;
    EXPECT_NE(FirstLoopBeyond({{kernel, cost}}, {{kernel, less}}).find("the main loop of kernel on sm_90a"),
              std::string::npos);
  }
  EXPECT_EQ(FirstLoopBeyond({{kernel, cost}}, {}), "the main loop of kernel on sm_90a has no budget");
}

// A loop over items from 0x10 to 0x90 with a loop over tiles in it, from 0x20 to 0x60, which loads what it
// multiplies; who waits does so behind the end, and from there goes on in the middle of the inner loop.
TEST(KernelBudgetTest, TheMainLoopIsTheInnermostAndBringsWhatItMultiplies) {
  std::istringstream dump(
      "\t\tFunction : kernel\n"
      "        /*0000*/                   MOV R1, c[0x0][0x28] ;\n"
      "        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;\n"
      "        /*0020*/             @!P0  BRA 0xb0 ;\n"
      "        /*0030*/              @P1  BRA 0x50 ;\n"
      "        /*0040*/                   LDG.E.64 R2, desc[UR6][R4.64] ;\n"
      "        /*0050*/                   HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], R24 ;\n"
      "        /*0060*/              @P2  BRA 0x20 ;\n"
      "        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;\n"
      "        /*0080*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;\n"
      "        /*0090*/              @P3  BRA 0x10 ;\n"
      "        /*00a0*/                   EXIT ;\n"
      "        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R14 ;\n"
      "        /*00c0*/             @!P0  BRA 0xb0 ;\n"
      "        /*00d0*/                   BRA 0x30 ;\n");
  const LoopCost cost = MainLoopCost(ReadMachineCode(dump).at("kernel"));
  EXPECT_EQ(cost.instructions, 5);
  EXPECT_EQ(cost.branches, 3);
  EXPECT_EQ(cost.products, 1);
}

TEST(KernelBudgetTest, AKernelThatTakesMoreThanItsBudgetIsNamed) {
  std::istringstream log(
      "ptxas info    : Compiling entry function '_ZN10tramontane4cuda11EmbedKernelENS0_17EmbedKernelParamsE' "
      "for 'sm_80'\n"
      "ptxas info    : Function properties for _ZN10tramontane4cuda11EmbedKernelENS0_17EmbedKernelParamsE\n"
      "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Used 33 registers, used 1 barriers, 16 bytes smem, 384 bytes cmem[0]\n");
  Usages used;
  AddUsages(log, &used);
  const KernelOnArchitecture kernel = {"EmbedKernel", "sm_80"};
  ASSERT_TRUE(used.count(kernel));
  const Usage whole = {33, 8, 8, 16};
  EXPECT_EQ(FirstUsageBeyond(used, {{kernel, whole}}), "");
  for (int Usage::* field : {&Usage::registers, &Usage::spilled, &Usage::stack, &Usage::shared}) {
    Usage less = whole;
    less.*field -= 1;
    EXPECT_NE(FirstUsageBeyond(used, {{kernel, less}}).find("EmbedKernel on sm_80: "), std::string::npos);
  }
  EXPECT_EQ(FirstUsageBeyond(used, {}), "EmbedKernel on sm_80 has no budget");
}

}  // namespace
}  // namespace tramontane
