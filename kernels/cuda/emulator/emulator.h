// Emulator: runs a CUDA kernel's own source on the host, one fiber per CUDA thread. Tests only.
//
// What it models: blocks one after another, in their order or in another; threads of a block in a chosen
// order, switched at barriers and warp collectives; shared memory poisoned with 0xFF (NaN) before each block;
// asynchronous copies that land only when waited for; warp collectives that check mask and call site; exact
// bank conflicts of ldmatrix; bytes moved through the global load and store primitives; the alignment that an
// access needs; the limits of a launch; of sm_90a barriers in shared memory that count arrivals and bytes,
// boxes of a tensor that land only when their barrier is waited for, and products whose sums land only when
// waited for. What it cannot model: the weak memory model between blocks, registers, occupancy, time. See
// ../README.md.
//
// One launch at a time per host thread. A broken rule (deadlock, lanes in different collectives, a wrong
// mask) prints where and aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <vector>

namespace tramontane::emulator {

inline constexpr int kWarp = 32;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// The order in which threads of a block get their turn.
enum class LaneOrder { kForward, kReverse, kRandom };

// The order in which blocks of a grid run, each to its end. By halves: first those of the second half of the
// grid, then those of the first, in a random order each.
enum class BlockOrder { kAscending, kLaterHalfFirst, kRandom };

struct Settings {
  LaneOrder order = LaneOrder::kForward;
  uint64_t seed = 1;   // of random orders
  int last_warp = -1;  // gets a turn only when no other warp of its block can go on; -1: none
  BlockOrder blocks = BlockOrder::kAscending;
  bool count_shared_conflicts = false;  // of LoadShared and StoreShared, of any width; takes time
  bool runs = true;                     // false: a launch is checked and does nothing, for what a host does
  bool eager_copies = false;            // asynchronous copies land at once (what hides a missing wait)
};

struct LaunchStats {
  int64_t shared_bytes = 0;  // of a block; of several launches the most
  int64_t global_read_bytes = 0;
  int64_t global_written_bytes = 0;
  int64_t barriers = 0;         // __syncthreads, per block
  int64_t matrix_loads = 0;     // ldmatrix, per warp
  int64_t bank_conflicts = 0;   // extra shared-memory passes of those loads
  int64_t plain_accesses = 0;   // of 4, 8 or 16 bytes a lane, per warp, where Settings asks for them
  int64_t plain_conflicts = 0;  // extra passes of those
  int64_t boxes = 0;            // of tensors, copied by the TMA unit
  int64_t exponentials = 0;     // in f64
  int64_t joined_parts = 0;     // of attention over keys that were split: of each tile of rows and kv head

  void Add(const LaunchStats& other);
};

// Where a thread is in the kernel's source: line, column, and the function with what its template was made
// of.
using Site = std::source_location;

struct Launch {
  Dim3 grid, block;
  size_t shared_bytes = 0;
  std::function<void()> kernel;  // run once per thread
  bool must_await = false;       // a thread calls AwaitPriorKernels before it touches global memory
};

LaunchStats Run(const Launch& launch, const Settings& settings);

// The settings that launches through TM_LAUNCH use, and the sum of their stats. This host thread only.
Settings& CurrentSettings();
LaunchStats& TotalStats();

// ---- called by whoever launches, through primitives_host.h: what the runtime would refuse aborts

// What AllowSharedBytes said of a kernel; without it a block has at most 48 KiB.
void AllowSharedBytes(const void* kernel, size_t bytes);
void CheckLaunch(const void* kernel, Dim3 grid, size_t shared_bytes, size_t parameter_bytes);

// ---- called by a running thread, through primitives_host.h --------------------------------------

struct AsyncCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;       // read from `from`
  size_t zero_bytes = 0;  // written as zero behind them
};

Dim3 ThreadIndex();
Dim3 BlockIndex();
Dim3 BlockDimension();
Dim3 GridDimension();
int Lane();
std::byte* SharedMemory();

// An access of so many bytes at once aborts where the address is no multiple of them, as on a device.
void CheckAligned(const void* address, size_t bytes);
void AwaitPriorKernels();
void SyncThreads(Site site);
void CountRead(int64_t bytes);
void CountConstantRead(int64_t bytes);  // of what no kernel writes: needs not wait for those before
void CountWritten(int64_t bytes);
void CountExponential();
void CountJoinedParts(int parts);
void IssueCopy(const AsyncCopy& copy);
void CommitCopies();
void WaitCopies(int groups_left);  // until at most `groups_left` of the thread's latest groups are under way

// All lanes of `mask` meet; `operand` [operand_bytes] of each is handed to `combine`, called once with the
// operands of every lane (null for lanes outside the mask). What combine writes to an operand, its lane gets.
void WarpCollective(unsigned mask, Site site, void* operand, size_t operand_bytes,
                    void (*combine)(void* const operands[kWarp], unsigned mask));
// One of the accesses to shared memory, of 4, 8 or 16 bytes each, that the lanes of a warp make together: the
// n-th of each lane at a site are taken for one.
void CountSharedAccess(const void* address, size_t bytes, Site site);
// Counts one ldmatrix over rows at these shared-memory addresses.
void CountMatrixLoad(const void* const rows[kWarp], int row_count);

// ---- the same, of sm_90a

// All lanes of a warp meet, and what each did before is before what any does behind it.
void SyncWarp(Site site);

// A barrier in shared memory (mbarrier): a phase ends when `arrivals` have come and all bytes that were
// announced have landed. `at` is only its name; its state lies outside of what a kernel can reach.
void InitBarrier(const void* at, int arrivals, Site site);
void ArriveAtBarrier(const void* at, int64_t announced_bytes, Site site);
// Until the phase of this parity is over: at once where the phase under way is of the other one.
void WaitAtBarrier(const void* at, unsigned parity, Site site);

// `threads` meet at one of 16 barriers; whoever does not wait goes on at once.
void MeetAtNamedBarrier(int id, int threads, bool waits, Site site);

// A tensor of 2-byte elements that boxes are copied from, and the box: what a TensorMap holds here.
struct BoxedTensor {
  static constexpr int kDimensions = 5;
  const std::byte* base = nullptr;
  int64_t sizes[kDimensions] = {};
  int64_t stride_bytes[kDimensions] = {};
  int32_t box[kDimensions] = {};  // box[0] elements are 128 bytes
};
// Copies the box at `coordinates` to shared memory, its 16-byte pieces swizzled (SWIZZLE_128B), zero where it
// lies outside of the tensor. Lands when somebody waits at the barrier; NaN until then.
void IssueBox(std::byte* to, const BoxedTensor& tensor,
              const int32_t (&coordinates)[BoxedTensor::kDimensions], const void* barrier, Site site);

// What this thread wrote to shared memory by plain stores can be read by products and overwritten by boxes
// only after its fence.
void CountSharedWrite(const void* to, size_t bytes);
void FenceAsyncProxy();

// A product under way. BeginProduct gives memory for the sums: what they are so far, or zero; the registers
// themselves are NaN until the product's group has been waited for.
void FenceProducts();  // before the first product of a group
float* BeginProduct(float* registers, int count, bool accumulate, Site site);
// This lane's part of an operand in shared memory, 16 bytes, or in registers: must be the same when the
// product is waited for.
void ReadOperand(const std::byte* at, std::byte (&piece)[16], Site site);
void KeepRegisters(const uint32_t (&registers)[4]);
void CommitProducts();
void WaitProducts(int groups_left, Site site);

}  // namespace tramontane::emulator
