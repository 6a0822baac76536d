#include "kernels/cuda/emulator/emulator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <random>

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
constexpr int kPoison = 0xFF;  // every float of it is a NaN

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

enum class Waiting { kNo, kBarrier, kCollective };

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

struct Block {
  const Launch* launch = nullptr;
  const Settings* settings = nullptr;
  Dim3 index;
  std::vector<Thread>* threads = nullptr;
  std::vector<std::list<Meeting>> meetings;  // [warps]
  std::unique_ptr<std::byte[]> shared;
  int alive = 0;
  int at_barrier = 0;
  Site barrier_site;
  char barrier_order[2] =
      {};  // for their addresses: neighbouring barriers order threads through different ones
  LaunchStats stats;
};

thread_local Block* current_block = nullptr;
thread_local Thread* current_thread = nullptr;

[[noreturn]] void Broken(const char* rule, Site site) {
  const Dim3 t = current_thread != nullptr ? current_thread->index : Dim3{0, 0, 0};
  std::fprintf(stderr, "emulator: %s at %s:%d, block (%u,%u,%u) thread (%u,%u,%u)\n", rule, site.file,
               site.line, current_block->index.x, current_block->index.y, current_block->index.z, t.x, t.y,
               t.z);
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
  --block.alive;
  OpenBarrierIfComplete(block);
}

[[noreturn]] void Deadlock(const Block& block) {
  std::fprintf(stderr, "emulator: deadlock in block (%u,%u,%u)\n", block.index.x, block.index.y,
               block.index.z);
  for (const Thread& thread : *block.threads) {
    if (thread.fiber->finished()) continue;
    std::fprintf(stderr, "  thread (%u,%u,%u) waits in a %s at %s:%d\n", thread.index.x, thread.index.y,
                 thread.index.z, thread.waiting == Waiting::kBarrier ? "barrier" : "warp collective",
                 thread.site.file, thread.site.line);
  }
  std::fflush(stderr);
  std::abort();
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
    thread.fiber->Start(&RunThread, &thread);
  }
  block.alive = static_cast<int>(threads.size());
  while (block.alive > 0) {
    if (block.settings->order == LaneOrder::kRandom) std::shuffle(order.begin(), order.end(), random);
    bool progress = false;
    for (const int i : order) {
      Thread& thread = threads[static_cast<size_t>(i)];
      if (thread.fiber->finished() || thread.waiting != Waiting::kNo) continue;
      current_thread = &thread;
      thread.fiber->Resume();
      current_thread = nullptr;
      progress = true;
    }
    if (!progress) Deadlock(block);
  }
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
}

LaunchStats Run(const Launch& launch, const Settings& settings) {
  TM_CHECK(current_block == nullptr, "a launch from inside a kernel");
  const Bookkeeping bookkeeping;
  const size_t count = size_t{launch.block.x} * launch.block.y * launch.block.z;
  TM_CHECK(count >= 1 && count <= 1024, "%zu threads in a block, the limit is 1024", count);
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
  block.stats.shared_bytes = static_cast<int64_t>(launch.shared_bytes);
  current_block = &block;
  PublishOrder(&block);
  for (unsigned z = 0; z < launch.grid.z; ++z) {
    for (unsigned y = 0; y < launch.grid.y; ++y) {
      for (unsigned x = 0; x < launch.grid.x; ++x) {
        block.index = {x, y, z};
        // Fresh memory per block, of the exact size: an address sanitizer sees what lies beyond.
        block.shared = std::make_unique<std::byte[]>(launch.shared_bytes);
        std::memset(block.shared.get(), kPoison, launch.shared_bytes);
        RunBlock(block, random);
        ReceiveOrder(&block.alive);
      }
    }
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
  if (block.at_barrier > 0 &&
      (block.barrier_site.line != site.line || std::strcmp(block.barrier_site.file, site.file) != 0)) {
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
    for (const AsyncCopy& copy : groups.front()) LandCopy(copy);
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
  } else if (meeting->mask != mask || meeting->site.line != site.line ||
             std::strcmp(meeting->site.file, site.file) != 0) {
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

}  // namespace tramontane::emulator
