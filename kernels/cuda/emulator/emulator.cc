#include "kernels/cuda/emulator/emulator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/cuda/emulator/fiber.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace tramontane::emulator {

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr int kPoison = 0xFF;       // every float of it is a NaN
constexpr size_t kPassBytes = 128;  // of shared memory, in one pass: 32 banks of 4 bytes

// Happens-before edges of a race detector: from a launch to its threads, through barriers, and from the
// threads' ends to what comes after. Shuffles and matrix loads give none.
void PublishOrder([[maybe_unused]] void* tag) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(tag);
#endif
}
void ReceiveOrder([[maybe_unused]] void* tag) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(tag);
#endif
}

// While one lives, a race detector takes no notice of what this fiber does: the emulator's own bookkeeping,
// which all fibers share and a GPU does not have. The kernel's own accesses stay outside.
class Bookkeeping {
 public:
  Bookkeeping() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
#endif
  }
  ~Bookkeeping() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  Bookkeeping(const Bookkeeping&) = delete;
  Bookkeeping& operator=(const Bookkeeping&) = delete;
};

enum class Waiting { kNo, kBarrier, kCollective, kCountingBarrier, kNamedBarrier };

const char* NameOf(Waiting waiting) {
  switch (waiting) {
    case Waiting::kBarrier:
      return "barrier";
    case Waiting::kCollective:
      return "warp collective";
    case Waiting::kCountingBarrier:
      return "wait for a phase";
    case Waiting::kNamedBarrier:
      return "named barrier";
    default:
      return "turn of its own";
  }
}

// Sums of products that are under way, and where they go.
struct Sums {
  float* registers = nullptr;
  std::vector<float> values;
  int group = 0;  // of the last product that adds to them
};

// What a product read of shared memory.
struct OperandPiece {
  const std::byte* at = nullptr;
  std::array<std::byte, 16> bytes;
  int group = 0;
};

struct Thread {
  std::unique_ptr<Fiber> fiber;
  Dim3 index;
  int lane = 0;
  int warp = 0;
  Waiting waiting = Waiting::kNo;
  bool awaited = false;  // the kernels before this one
  Site site;
  std::vector<std::vector<AsyncCopy>> copy_groups;  // committed, oldest first
  std::vector<AsyncCopy> open_copies;
  std::map<std::pair<const char*, int>, int> shared_accesses;  // made so far, by site
  const void* waits_at = nullptr;                              // the counting or named barrier
  bool products_fenced = false;
  int product_group = 0;  // the open one
  int warp_syncs = 0;
  std::list<Sums> sums;
  std::vector<OperandPiece> operands;
  std::vector<size_t> unfenced_pieces;  // of shared memory, written without FenceAsyncProxy since
};

// Lanes of one warp on their way into one collective.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  unsigned unread = 0;  // lanes that have not taken their result; > 0: complete
  Site site;
  size_t operand_bytes = 0;
  alignas(16) std::array<std::array<std::byte, 64>, kWarp> operands;
};

struct PendingBox {
  std::byte* to = nullptr;
  BoxedTensor tensor;
  std::array<int32_t, BoxedTensor::kDimensions> at;
};

// A barrier in shared memory. `order` and `issued` are for their addresses: neighbouring phases order threads
// through different ones.
struct CountingBarrier {
  explicit CountingBarrier(int count) : arrivals(count), missing(count) {}

  int arrivals;       // of a phase
  int missing;        // of this one
  int64_t bytes = 0;  // announced and not landed
  unsigned phase = 0;
  std::vector<PendingBox> boxes;
  char order[2] = {};
  char issued = 0;
};

struct NamedBarrier {
  int threads = 0;
  int arrived = 0;
  int generation = 0;
  char order[2] = {};
};

// As a device has it.
constexpr size_t kSharedAlignment = 1024;
struct FreeShared {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t{kSharedAlignment});
  }
};

// One access of a warp to shared memory.
struct SharedAccess {
  static constexpr size_t kNone = SIZE_MAX;

  size_t bytes = 0;                  // of a lane
  std::array<size_t, kWarp> places;  // of each lane, in pieces of `bytes`; kNone: it does not take part

  SharedAccess() { places.fill(kNone); }
};

struct Block {
  const Launch* launch = nullptr;
  const Settings* settings = nullptr;
  Dim3 index;
  std::vector<Thread>* threads = nullptr;
  std::vector<std::list<Meeting>> meetings;     // [warps]
  std::vector<std::array<char, 2>> warp_order;  // [warps] as barrier_order, of SyncWarp
  std::unique_ptr<std::byte[], FreeShared> shared;
  int alive = 0;
  int at_barrier = 0;
  Site barrier_site;
  char barrier_order[2] =
      {};  // for their addresses: neighbouring barriers order threads through different ones
  // Accesses of a warp by (warp, file, line, number).
  std::map<std::tuple<int, const char*, int, int>, SharedAccess> shared_accesses;
  std::map<const void*, CountingBarrier> counting_barriers;  // by address
  std::array<NamedBarrier, 16> named_barriers;
  // Of 16 bytes of shared memory each: written by a plain store that no FenceAsyncProxy followed. Kept where
  // there are counting barriers.
  std::vector<bool> unfenced;
  LaunchStats stats;
};

thread_local Block* current_block = nullptr;
thread_local Thread* current_thread = nullptr;

bool IsSame(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
bool IsSame(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && IsSame(a.file_name(), b.file_name()) &&
         IsSame(a.function_name(), b.function_name());
}

[[noreturn]] void Broken(const char* rule, Site site) {
  const Dim3 t = current_thread != nullptr ? current_thread->index : Dim3{0, 0, 0};
  std::fprintf(stderr, "emulator: %s at %s:%d, block (%u,%u,%u) thread (%u,%u,%u)\n", rule, site.file_name(),
               static_cast<int>(site.line()), current_block->index.x, current_block->index.y,
               current_block->index.z, t.x, t.y, t.z);
  std::fflush(stderr);
  std::abort();
}

void OpenBarrierIfComplete(Block& block) {
  if (block.at_barrier == 0 || block.at_barrier < block.alive) return;
  for (Thread& thread : *block.threads) {
    if (thread.waiting == Waiting::kBarrier) thread.waiting = Waiting::kNo;
  }
  block.at_barrier = 0;
  ++block.stats.barriers;
}

void RunThread(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  Block& block = *current_block;
  ReceiveOrder(&block);
  block.launch->kernel();
  PublishOrder(&block.alive);
  const Bookkeeping bookkeeping;
  if (!thread->open_copies.empty())
    Broken("a thread ended with copies that were never committed", thread->site);
  thread->copy_groups.clear();
  if (!thread->sums.empty()) Broken("a thread ended with products that were never waited for", thread->site);
  --block.alive;
  OpenBarrierIfComplete(block);
}

[[noreturn]] void Deadlock(const Block& block) {
  std::fprintf(stderr, "emulator: deadlock in block (%u,%u,%u)\n", block.index.x, block.index.y,
               block.index.z);
  for (const Thread& thread : *block.threads) {
    if (thread.fiber->finished()) continue;
    std::fprintf(stderr, "  thread (%u,%u,%u) waits in a %s at %s:%d\n", thread.index.x, thread.index.y,
                 thread.index.z, NameOf(thread.waiting), thread.site.file_name(),
                 static_cast<int>(thread.site.line()));
  }
  std::fflush(stderr);
  std::abort();
}

// A turn for each thread that can go on and that `takes_part`; whether there was one.
template <typename TakesPart>
bool GiveTurns(std::vector<Thread>& threads, const std::vector<int>& order, TakesPart takes_part) {
  bool progress = false;
  for (const int i : order) {
    Thread& thread = threads[static_cast<size_t>(i)];
    if (thread.fiber->finished() || thread.waiting != Waiting::kNo || !takes_part(thread)) continue;
    current_thread = &thread;
    thread.fiber->Resume();
    current_thread = nullptr;
    progress = true;
  }
  return progress;
}

// Gives every thread its turns until all have ended.
void RunBlock(Block& block, std::mt19937_64& random) {
  std::vector<Thread>& threads = *block.threads;
  std::vector<int> order(threads.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t at = block.settings->order == LaneOrder::kReverse ? order.size() - 1 - i : i;
    order[at] = static_cast<int>(i);
  }
  for (Thread& thread : threads) {
    thread.waiting = Waiting::kNo;
    thread.awaited = false;
    thread.products_fenced = false;
    thread.warp_syncs = 0;
    thread.unfenced_pieces.clear();
    thread.fiber->Start(&RunThread, &thread);
  }
  block.alive = static_cast<int>(threads.size());
  while (block.alive > 0) {
    if (block.settings->order == LaneOrder::kRandom) std::shuffle(order.begin(), order.end(), random);
    const int last_warp = block.settings->last_warp;
    if (!GiveTurns(threads, order, [&](const Thread& thread) { return thread.warp != last_warp; }) &&
        !GiveTurns(threads, order, [&](const Thread& thread) { return thread.warp == last_warp; })) {
      Deadlock(block);
    }
  }
}

// As many lanes go together as ask for 128 bytes: 32, 16 or 8. Each piece that stands in the same banks as
// another one is a pass more; lanes that ask for the same piece share it.
int64_t ExtraPasses(const SharedAccess& access) {
  const size_t lanes = kPassBytes / access.bytes;
  int64_t extra = 0;
  for (size_t first = 0; first < kWarp; first += lanes) {
    std::array<std::set<size_t>, kWarp> pieces;  // by the banks that they stand in
    for (size_t lane = first; lane < first + lanes; ++lane) {
      const size_t place = access.places[lane];
      if (place != SharedAccess::kNone) pieces[place % lanes].insert(place);
    }
    size_t most = 1;
    for (const std::set<size_t>& rivals : pieces) most = std::max(most, rivals.size());
    extra += static_cast<int64_t>(most) - 1;
  }
  return extra;
}

void CountPlainConflicts(Block& block) {
  for (const auto& [at, access] : block.shared_accesses) block.stats.plain_conflicts += ExtraPasses(access);
  block.stats.plain_accesses += static_cast<int64_t>(block.shared_accesses.size());
  block.shared_accesses.clear();
  for (Thread& thread : *block.threads) thread.shared_accesses.clear();
}

std::vector<Dim3> OrderOfBlocks(Dim3 grid, const Settings& settings, std::mt19937_64& random) {
  std::vector<Dim3> order;
  order.reserve(size_t{grid.x} * grid.y * grid.z);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) order.push_back({x, y, z});
    }
  }
  if (settings.blocks == BlockOrder::kAscending) return order;
  const auto half = settings.blocks == BlockOrder::kRandom
                        ? order.begin()
                        : order.begin() + static_cast<ptrdiff_t>(order.size() / 2);
  std::shuffle(order.begin(), half, random);
  std::shuffle(half, order.end(), random);
  std::rotate(order.begin(), half, order.end());
  return order;
}

// A kernel may begin before the ones it depends on are done.
void CheckAwaited() {
  if (current_block->launch->must_await && !current_thread->awaited)
    Broken("global memory is touched before AwaitPriorKernels", current_thread->site);
}

void LandCopy(const AsyncCopy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(copy.to + copy.bytes, 0, copy.zero_bytes);
}

}  // namespace

void LaunchStats::Add(const LaunchStats& other) {
  shared_bytes = std::max(shared_bytes, other.shared_bytes);
  global_read_bytes += other.global_read_bytes;
  global_written_bytes += other.global_written_bytes;
  barriers += other.barriers;
  matrix_loads += other.matrix_loads;
  bank_conflicts += other.bank_conflicts;
  plain_accesses += other.plain_accesses;
  plain_conflicts += other.plain_conflicts;
  boxes += other.boxes;
  exponentials += other.exponentials;
  joined_parts += other.joined_parts;
}

LaunchStats Run(const Launch& launch, const Settings& settings) {
  TM_CHECK(current_block == nullptr, "a launch from inside a kernel");
  const size_t count = size_t{launch.block.x} * launch.block.y * launch.block.z;
  TM_CHECK(count >= 1 && count <= 1024, "%zu threads in a block, the limit is 1024", count);
  if (!settings.runs) return {};
  const Bookkeeping bookkeeping;
  // Fibers and their stacks are kept from launch to launch.
  thread_local std::vector<Thread> pool;
  while (pool.size() < count) {
    pool.emplace_back();
    pool.back().fiber = std::make_unique<Fiber>(kStackBytes);
  }
  std::vector<Thread> threads(std::make_move_iterator(pool.begin()),
                              std::make_move_iterator(pool.begin() + static_cast<ptrdiff_t>(count)));
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    thread.index = {static_cast<unsigned>(i % launch.block.x),
                    static_cast<unsigned>(i / launch.block.x % launch.block.y),
                    static_cast<unsigned>(i / launch.block.x / launch.block.y)};
    thread.lane = static_cast<int>(i % kWarp);
    thread.warp = static_cast<int>(i / kWarp);
  }
  std::mt19937_64 random(settings.seed);
  Block block;
  block.launch = &launch;
  block.settings = &settings;
  block.threads = &threads;
  block.meetings.resize((count + kWarp - 1) / kWarp);
  block.warp_order.resize(block.meetings.size());
  block.stats.shared_bytes = static_cast<int64_t>(launch.shared_bytes);
  current_block = &block;
  PublishOrder(&block);
  for (const Dim3 index : OrderOfBlocks(launch.grid, settings, random)) {
    block.index = index;
    // Fresh memory per block, of the exact size: an address sanitizer sees what lies beyond.
    block.shared.reset(new (std::align_val_t{kSharedAlignment}) std::byte[launch.shared_bytes]);
    std::memset(block.shared.get(), kPoison, launch.shared_bytes);
    RunBlock(block, random);
    ReceiveOrder(&block.alive);
    for (const auto& [at, barrier] : block.counting_barriers) {
      if (!barrier.boxes.empty()) Broken("a block ended with boxes that nobody waited for", {});
    }
    block.counting_barriers.clear();
    block.named_barriers = {};
    block.unfenced.clear();
    CountPlainConflicts(block);
  }
  current_block = nullptr;
  std::move(threads.begin(), threads.end(), pool.begin());
  return block.stats;
}

Settings& CurrentSettings() {
  thread_local Settings settings;
  return settings;
}

LaunchStats& TotalStats() {
  thread_local LaunchStats stats;
  return stats;
}

// ---- launches

namespace {

constexpr size_t kSharedBytesByItself = 48 * 1024;
constexpr size_t kMostParameterBytes = 4096;
constexpr unsigned kMostBlocksAcross = 65'535;  // of y and z; of x 2^31 - 1

std::mutex shared_limits_mutex;
std::unordered_map<const void*, size_t>& SharedLimits() {
  static std::unordered_map<const void*, size_t> limits;
  return limits;
}

}  // namespace

void AllowSharedBytes(const void* kernel, size_t bytes) {
  const std::lock_guard lock(shared_limits_mutex);
  SharedLimits()[kernel] = bytes;
}

void CheckLaunch(const void* kernel, Dim3 grid, size_t shared_bytes, size_t parameter_bytes) {
  TM_CHECK(grid.x >= 1 && grid.y >= 1 && grid.z >= 1, "a grid of %u by %u by %u", grid.x, grid.y, grid.z);
  TM_CHECK(grid.x < 1u << 31 && grid.y <= kMostBlocksAcross && grid.z <= kMostBlocksAcross,
           "a grid of %u by %u by %u", grid.x, grid.y, grid.z);
  TM_CHECK(parameter_bytes <= kMostParameterBytes, "%zu bytes of parameters, the limit is %zu",
           parameter_bytes, kMostParameterBytes);
  const std::lock_guard lock(shared_limits_mutex);
  const auto found = SharedLimits().find(kernel);
  const size_t limit = found == SharedLimits().end() ? kSharedBytesByItself : found->second;
  TM_CHECK(shared_bytes <= limit, "%zu bytes of shared memory, the kernel is allowed %zu", shared_bytes,
           limit);
}

// ---- what a running thread calls

void CheckAligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  char rule[64];
  std::snprintf(rule, sizeof(rule), "an access of %zu bytes at no multiple of them", bytes);
  Broken(rule, current_thread->site);
}

Dim3 ThreadIndex() { return current_thread->index; }
Dim3 BlockIndex() { return current_block->index; }
Dim3 BlockDimension() { return current_block->launch->block; }
Dim3 GridDimension() { return current_block->launch->grid; }
int Lane() { return current_thread->lane; }
std::byte* SharedMemory() { return current_block->shared.get(); }

void SyncThreads(Site site) {
  const Bookkeeping bookkeeping;
  Block& block = *current_block;
  Thread& self = *current_thread;
  if (block.at_barrier > 0 && !IsSame(block.barrier_site, site)) {
    Broken("threads of a block meet at different barriers", site);
  }
  block.barrier_site = site;
  self.site = site;
  self.waiting = Waiting::kBarrier;
  char* order = &block.barrier_order[block.stats.barriers % 2];
  PublishOrder(order);
  ++block.at_barrier;
  OpenBarrierIfComplete(block);
  while (self.waiting == Waiting::kBarrier) self.fiber->Suspend();
  ReceiveOrder(order);
}

void AwaitPriorKernels() {
  const Bookkeeping bookkeeping;
  current_thread->awaited = true;
}

void CountRead(int64_t bytes) {
  const Bookkeeping bookkeeping;
  CheckAwaited();
  current_block->stats.global_read_bytes += bytes;
}
void CountConstantRead(int64_t bytes) {
  const Bookkeeping bookkeeping;
  current_block->stats.global_read_bytes += bytes;
}
void CountExponential() {
  const Bookkeeping bookkeeping;
  ++current_block->stats.exponentials;
}
void CountJoinedParts(int parts) {
  const Bookkeeping bookkeeping;
  current_block->stats.joined_parts += parts;
}
void CountWritten(int64_t bytes) {
  const Bookkeeping bookkeeping;
  CheckAwaited();
  current_block->stats.global_written_bytes += bytes;
}

void IssueCopy(const AsyncCopy& copy) {
  CountRead(static_cast<int64_t>(copy.bytes));
  if (current_block->settings->eager_copies) {
    LandCopy(copy);
    return;
  }
  std::memset(copy.to, kPoison, copy.bytes + copy.zero_bytes);  // a read before the wait sees NaN
  const Bookkeeping bookkeeping;
  current_thread->open_copies.push_back(copy);
}

void CommitCopies() {
  const Bookkeeping bookkeeping;
  current_thread->copy_groups.push_back(std::move(current_thread->open_copies));
  current_thread->open_copies.clear();
}

void WaitCopies(int groups_left) {
  auto& groups = current_thread->copy_groups;
  while (static_cast<int>(groups.size()) > groups_left) {
    for (const AsyncCopy& copy : groups.front()) {
      LandCopy(copy);
      CountSharedWrite(copy.to, copy.bytes + copy.zero_bytes);
    }
    const Bookkeeping bookkeeping;
    groups.erase(groups.begin());
  }
}

void WarpCollective(unsigned mask, Site site, void* operand, size_t operand_bytes,
                    void (*combine)(void* const operands[kWarp], unsigned mask)) {
  const Bookkeeping bookkeeping;
  Block& block = *current_block;
  Thread& self = *current_thread;
  auto& meetings = block.meetings[static_cast<size_t>(self.warp)];
  const unsigned own_bit = 1u << self.lane;
  if ((mask & own_bit) == 0) Broken("a lane calls a warp collective whose mask leaves it out", site);
  auto meeting = std::find_if(meetings.begin(), meetings.end(),
                              [mask](const Meeting& m) { return m.unread == 0 && (m.mask & mask) != 0; });
  if (meeting == meetings.end()) {
    meeting = meetings.emplace(meetings.end());
    meeting->mask = mask;
    meeting->site = site;
    meeting->operand_bytes = operand_bytes;
    TM_CHECK(operand_bytes <= meeting->operands[0].size(), "an operand of %zu bytes", operand_bytes);
  } else if (meeting->mask != mask || !IsSame(meeting->site, site)) {
    Broken("lanes of a warp meet in different collectives or with different masks", site);
  }
  const auto lane = static_cast<size_t>(self.lane);
  std::memcpy(meeting->operands[lane].data(), operand, operand_bytes);
  meeting->arrived |= own_bit;
  self.site = site;
  if (meeting->arrived != mask) {
    self.waiting = Waiting::kCollective;
    while (self.waiting == Waiting::kCollective) self.fiber->Suspend();
  } else {
    std::array<void*, kWarp> operands{};
    for (size_t i = 0; i < kWarp; ++i) {
      if ((mask >> i & 1u) != 0) operands[i] = meeting->operands[i].data();
    }
    combine(operands.data(), mask);
    meeting->unread = mask;
    for (Thread& thread : *block.threads) {
      if (thread.warp == self.warp && thread.waiting == Waiting::kCollective &&
          (mask >> thread.lane & 1u) != 0) {
        thread.waiting = Waiting::kNo;
      }
    }
  }
  // The meeting stays until its last lane has read its result; faster lanes may meet again meanwhile.
  std::memcpy(operand, meeting->operands[lane].data(), operand_bytes);
  meeting->unread &= ~own_bit;
  if (meeting->unread == 0) meetings.erase(meeting);
}

void CountSharedAccess(const void* address, size_t bytes, Site site) {
  if (!current_block->settings->count_shared_conflicts) return;
  const Bookkeeping bookkeeping;
  Thread& self = *current_thread;
  const auto line = static_cast<int>(site.line());
  const int number = self.shared_accesses[{site.file_name(), line}]++;
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(address) - current_block->shared.get());
  SharedAccess& access = current_block->shared_accesses[{self.warp, site.file_name(), line, number}];
  access.bytes = bytes;
  access.places[static_cast<size_t>(self.lane)] = offset / bytes;
}

void CountMatrixLoad(const void* const rows[kWarp], int row_count) {
  LaunchStats& stats = current_block->stats;
  ++stats.matrix_loads;
  // Eight rows of 16 bytes make one pass when they fall into different groups of four banks.
  for (int first = 0; first < row_count; first += 8) {
    std::array<int, 8> users{};
    for (int i = first; i < first + 8; ++i) {
      const auto offset = static_cast<const std::byte*>(rows[i]) - current_block->shared.get();
      ++users[static_cast<size_t>(offset / 16 % 8)];
    }
    stats.bank_conflicts += *std::max_element(users.begin(), users.end()) - 1;
  }
}

// ---- sm_90a

namespace {

CountingBarrier& BarrierAt(const void* at, Site site) {
  const auto found = current_block->counting_barriers.find(at);
  if (found == current_block->counting_barriers.end()) Broken("a barrier that was never initialised", site);
  return found->second;
}

// Lets those who wait at a barrier look again.
void WakeWaiting(Waiting kind, const void* at) {
  for (Thread& thread : *current_block->threads) {
    if (thread.waiting == kind && thread.waits_at == at) thread.waiting = Waiting::kNo;
  }
}

void EndPhaseIfComplete(const void* at, CountingBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  WakeWaiting(Waiting::kCountingBarrier, at);
}

size_t SharedOffset(const void* at) {
  return static_cast<size_t>(static_cast<const std::byte*>(at) - current_block->shared.get());
}

// PTX ISA, swizzling modes: of an address in shared memory, bits 4 to 6 are xored with bits 7 to 9.
std::byte* Swizzled(std::byte* at) {
  const size_t offset = SharedOffset(at);
  return at - offset + (offset ^ (offset >> 3 & 0x70));
}

// Calls visit(16 bytes of shared memory, their source or null) for each piece of a box, in its order.
template <typename Visit>
void ForEachPiece(const PendingBox& box, Visit visit) {
  const BoxedTensor& tensor = box.tensor;
  std::byte* to = box.to;
  std::array<int32_t, BoxedTensor::kDimensions> i{};
  const int32_t pieces = tensor.box[0] * 2 / 16;
  for (;;) {
    for (int32_t piece = 0; piece < pieces; ++piece, to += 16) {
      const std::byte* from = tensor.base + (box.at[0] + piece * 8) * int64_t{2};
      bool inside = box.at[0] + piece * 8 >= 0 && box.at[0] + piece * 8 < tensor.sizes[0];
      for (size_t d = 1; d < i.size(); ++d) {
        const int64_t at = int64_t{box.at[d]} + i[d];
        inside = inside && at >= 0 && at < tensor.sizes[d];
        from += at * tensor.stride_bytes[d];
      }
      visit(Swizzled(to), inside ? from : nullptr);
    }
    size_t d = 1;
    while (d < i.size() && ++i[d] == tensor.box[d]) i[d++] = 0;
    if (d == i.size()) return;
  }
}

int64_t BoxBytes(const BoxedTensor& tensor) {
  int64_t bytes = 2;
  for (const int32_t size : tensor.box) bytes *= size;
  return bytes;
}

void LandBoxes(const void* at, CountingBarrier& barrier) {
  std::vector<PendingBox> boxes;
  {
    const Bookkeeping bookkeeping;
    boxes = std::exchange(barrier.boxes, {});
  }
  ReceiveOrder(&barrier.issued);
  for (const PendingBox& box : boxes) {
    ForEachPiece(box, [](std::byte* to, const std::byte* from) {
      from != nullptr ? std::memcpy(to, from, 16) : std::memset(to, 0, 16);
    });
  }
  PublishOrder(&barrier.order[barrier.phase % 2]);
  const Bookkeeping bookkeeping;
  for (const PendingBox& box : boxes) barrier.bytes -= BoxBytes(box.tensor);
  EndPhaseIfComplete(at, barrier);
}

}  // namespace

void SyncWarp(Site site) {
  char* order = nullptr;
  {
    const Bookkeeping bookkeeping;
    Thread& self = *current_thread;
    order = &current_block->warp_order[static_cast<size_t>(self.warp)][self.warp_syncs++ % 2];
  }
  PublishOrder(order);
  int nothing = 0;
  WarpCollective(0xffffffffu, site, &nothing, sizeof(nothing), [](void* const[kWarp], unsigned) {});
  ReceiveOrder(order);
}

void InitBarrier(const void* at, int arrivals, Site site) {
  const Bookkeeping bookkeeping;
  CheckAligned(at, 8);
  Block& block = *current_block;
  if (arrivals < 1) Broken("a barrier of no arrivals", site);
  if (!block.counting_barriers.try_emplace(at, arrivals).second)
    Broken("a barrier that is initialised twice", site);
  block.unfenced.resize(block.launch->shared_bytes / 16);
}

void ArriveAtBarrier(const void* at, int64_t announced_bytes, Site site) {
  const Bookkeeping bookkeeping;
  CountingBarrier& barrier = BarrierAt(at, site);
  if (barrier.missing == 0) Broken("more arrive at a barrier than a phase has", site);
  PublishOrder(&barrier.order[barrier.phase % 2]);
  barrier.bytes += announced_bytes;
  --barrier.missing;
  EndPhaseIfComplete(at, barrier);
}

void WaitAtBarrier(const void* at, unsigned parity, Site site) {
  CountingBarrier* barrier = nullptr;
  {
    const Bookkeeping bookkeeping;
    barrier = &BarrierAt(at, site);
    current_thread->site = site;
  }
  const auto over = [&] {
    const Bookkeeping bookkeeping;
    return barrier->phase % 2 != parity;
  };
  const auto has_boxes = [&] {
    const Bookkeeping bookkeeping;
    return !barrier->boxes.empty();
  };
  while (!over()) {
    if (has_boxes()) {
      LandBoxes(at, *barrier);
      continue;
    }
    const Bookkeeping bookkeeping;
    current_thread->waits_at = at;
    current_thread->waiting = Waiting::kCountingBarrier;
    while (current_thread->waiting != Waiting::kNo) current_thread->fiber->Suspend();
  }
  ReceiveOrder(&barrier->order[parity]);
}

void MeetAtNamedBarrier(int id, int threads, bool waits, Site site) {
  const Bookkeeping bookkeeping;
  Block& block = *current_block;
  Thread& self = *current_thread;
  if (id < 1 || id >= static_cast<int>(block.named_barriers.size()) || threads % kWarp != 0)
    Broken("a named barrier is one of 1 to 15, for whole warps", site);
  NamedBarrier& barrier = block.named_barriers[static_cast<size_t>(id)];
  if (barrier.arrived > 0 && barrier.threads != threads)
    Broken("threads disagree how many meet at a named barrier", site);
  barrier.threads = threads;
  char* order = &barrier.order[barrier.generation % 2];
  PublishOrder(order);
  self.site = site;
  const int generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    WakeWaiting(Waiting::kNamedBarrier, &barrier);
  } else if (waits) {
    self.waits_at = &barrier;
    while (barrier.generation == generation) {
      self.waiting = Waiting::kNamedBarrier;
      self.fiber->Suspend();
    }
  }
  if (waits) ReceiveOrder(order);
}

void IssueBox(std::byte* to, const BoxedTensor& tensor,
              const int32_t (&coordinates)[BoxedTensor::kDimensions], const void* at, Site site) {
  CountingBarrier* barrier = nullptr;
  PendingBox box{to, tensor, {}};
  {
    const Bookkeeping bookkeeping;
    barrier = &BarrierAt(at, site);
    current_thread->site = site;
    CheckAligned(to, 128);
    if (tensor.box[0] != 64) Broken("a box whose rows are not 128 bytes", site);
    std::copy_n(coordinates, box.at.size(), box.at.begin());
    int64_t bytes = 0;
    ForEachPiece(box, [&](std::byte* piece, const std::byte* from) {
      if (current_block->unfenced[SharedOffset(piece) / 16])
        Broken("a box overwrites what was stored without a proxy fence", site);
      if (from != nullptr) bytes += 16;
    });
    CountRead(bytes);
    ++current_block->stats.boxes;
  }
  ForEachPiece(box, [](std::byte* piece, const std::byte*) { std::memset(piece, kPoison, 16); });
  PublishOrder(&barrier->issued);
  const Bookkeeping bookkeeping;
  barrier->boxes.push_back(box);
  WakeWaiting(Waiting::kCountingBarrier, at);  // somebody has to land it
}

void CountSharedWrite(const void* to, size_t bytes) {
  const Bookkeeping bookkeeping;
  Block& block = *current_block;
  if (block.unfenced.empty()) return;
  for (size_t piece = SharedOffset(to) / 16; piece < (SharedOffset(to) + bytes + 15) / 16; ++piece) {
    block.unfenced[piece] = true;
    current_thread->unfenced_pieces.push_back(piece);
  }
}

void FenceAsyncProxy() {
  const Bookkeeping bookkeeping;
  for (const size_t piece : current_thread->unfenced_pieces) current_block->unfenced[piece] = false;
  current_thread->unfenced_pieces.clear();
}

void FenceProducts() {
  const Bookkeeping bookkeeping;
  current_thread->products_fenced = true;
}

float* BeginProduct(float* registers, int count, bool accumulate, Site site) {
  const Bookkeeping bookkeeping;
  Thread& self = *current_thread;
  self.site = site;
  if (!self.products_fenced) Broken("the first product of a group without a fence before it", site);
  auto sums = std::find_if(self.sums.begin(), self.sums.end(),
                           [registers](const Sums& s) { return s.registers == registers; });
  if (sums == self.sums.end()) {
    sums = self.sums.insert(self.sums.end(), {registers, {registers, registers + count}, 0});
    std::memset(registers, kPoison, sizeof(float) * static_cast<size_t>(count));
  }
  sums->group = self.product_group;
  if (!accumulate) sums->values.assign(static_cast<size_t>(count), 0.0f);
  return sums->values.data();
}

void KeepRegisters(const uint32_t (&registers)[4]) {
  const Bookkeeping bookkeeping;
  OperandPiece& kept = current_thread->operands.emplace_back();
  kept.at = reinterpret_cast<const std::byte*>(registers);
  std::copy_n(kept.at, kept.bytes.size(), kept.bytes.begin());
  kept.group = current_thread->product_group;
}

void ReadOperand(const std::byte* at, std::byte (&piece)[16], Site site) {
  std::memcpy(piece, at, 16);
  const Bookkeeping bookkeeping;
  if (SharedOffset(at) + 16 > current_block->launch->shared_bytes)
    Broken("an operand outside of shared memory", site);
  if (!current_block->unfenced.empty() && current_block->unfenced[SharedOffset(at) / 16])
    Broken("a product reads what was stored without a proxy fence", site);
  OperandPiece& kept = current_thread->operands.emplace_back();
  kept.at = at;
  std::copy_n(piece, kept.bytes.size(), kept.bytes.begin());
  kept.group = current_thread->product_group;
}

void CommitProducts() {
  const Bookkeeping bookkeeping;
  ++current_thread->product_group;
  current_thread->products_fenced = false;
}

void WaitProducts(int groups_left, Site site) {
  Thread& self = *current_thread;
  self.fiber->Suspend();                              // others go first: the operands have to last until here
  const int last = self.product_group - groups_left;  // the first group that need not be done
  for (const OperandPiece& piece : self.operands) {
    if (piece.group < last && std::memcmp(piece.at, piece.bytes.data(), piece.bytes.size()) != 0)
      Broken("an operand was overwritten before its product was waited for", site);
  }
  const Bookkeeping bookkeeping;
  std::erase_if(self.operands, [last](const OperandPiece& piece) { return piece.group < last; });
  for (const Sums& sums : self.sums) {
    if (sums.group < last) std::copy(sums.values.begin(), sums.values.end(), sums.registers);
  }
  self.sums.remove_if([last](const Sums& sums) { return sums.group < last; });
}

}  // namespace tramontane::emulator
