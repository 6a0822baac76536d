// Global bytes of each launch, counted by the emulator, equal the formula at the head of its .cu file: the
// same words as there, in C++. A loop that fetches what it should not fails here, and where pages cannot be
// touched, at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/decode_pages.h"
#include "kernels/cuda/decode_weight.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/sampling.h"
#include "tests/kernels/cuda_attention_case.h"
#include "tests/support/random_blocks.h"
#include "tests/support/sampling_rows.h"

namespace tramontane {
namespace {

struct Bytes {
  int64_t read = 0;
  int64_t written = 0;
  friend bool operator==(const Bytes&, const Bytes&) = default;
  friend Bytes operator+(const Bytes& a, const Bytes& b) { return {a.read + b.read, a.written + b.written}; }
  friend std::ostream& operator<<(std::ostream& out, const Bytes& b) {
    return out << b.read << " bytes read, " << b.written << " written";
  }
};

void ForgetCounts(const emulator::Settings& settings = {}) {
  emulator::CurrentSettings() = settings;
  emulator::TotalStats() = {};
}
Bytes Counted() {
  return {emulator::TotalStats().global_read_bytes, emulator::TotalStats().global_written_bytes};
}

// ---- attention: attention_plan.cu and attention.cu ----------------------------------------------

// Of tiles no more than the plan has threads: each has a thread of its own.
Bytes PlanBytes(const AttentionCase& c, const PagedKvFixture& kv, const AttentionOutcome& outcome) {
  int64_t tiles = 0;
  for (int32_t i = 0; i < kv.batch(); ++i)
    tiles += (int64_t{kv.QueryCount(i)} * c.group + c.tile_rows - 1) / c.tile_rows;
  Bytes bytes;
  bytes.read = 12 * kv.batch() + (12 + 3 * 12) * tiles;
  bytes.written = 24 * outcome.work.items + 16 * outcome.work.merges + 16;
  return bytes;
}

int64_t KeyTiles(int64_t keys) { return (keys + cuda::kKeyTile - 1) / cuda::kKeyTile; }

int64_t RowsOfTile(const AttentionCase& c, const PagedKvFixture& kv, int32_t sequence, int32_t row_begin) {
  return std::min<int64_t>(c.tile_rows, int64_t{kv.QueryCount(sequence)} * c.group - row_begin);
}

// attention_join.cuh. `groups` of four warps have the rows of a tile.
Bytes JoinBytes(const AttentionCase& c, const PagedKvFixture& kv, const AttentionOutcome& outcome,
                int64_t groups = 1) {
  const int64_t d = c.kv.head_dim;
  Bytes of_a_head;
  for (const cuda::AttentionItem& item : outcome.items) {
    if (item.partial == -1) continue;
    of_a_head.read += 12 * groups * cuda::MembersOf(item.partial);
    of_a_head.written += 4 * groups * cuda::MembersOf(item.partial);
  }
  for (const cuda::AttentionMerge& merge : outcome.merges) {
    const int64_t rows = RowsOfTile(c, kv, merge.sequence, merge.row_begin);
    of_a_head.read += 112 * groups + rows * merge.splits * (4 * d + 8);
    of_a_head.written += 4 * groups + rows * 2 * d + rows * 4;
  }
  return {of_a_head.read * c.kv.kv_heads, of_a_head.written * c.kv.kv_heads};
}

// `window` is the one whose keys may be read.
Bytes AttentionBytes(const AttentionCase& c, const PagedKvFixture& kv, const AttentionOutcome& outcome,
                     int32_t window) {
  const int64_t d = c.kv.head_dim;
  Bytes of_a_head;
  for (const cuda::AttentionItem& item : outcome.items) {
    const int64_t rows = RowsOfTile(c, kv, item.sequence, item.row_begin);
    const int64_t first_query = kv.QueryBegin(item.sequence) + item.row_begin / c.group;
    const int64_t keys = item.key_end - std::max<int64_t>(item.key_begin, FirstVisible(first_query, window));
    of_a_head.read += 44 + rows * 2 * d + keys * 4 * d + KeyTiles(item.key_end - item.key_begin) * 256;
    of_a_head.written += item.partial < 0 ? rows * 2 * d + rows * 4 : rows * (4 * d + 4);
  }
  of_a_head.read += 4 * (int64_t{outcome.max_items} - outcome.work.items);
  if (c.kv.rings) of_a_head.read += 4 * outcome.work.items;
  return Bytes{of_a_head.read * c.kv.kv_heads, of_a_head.written * c.kv.kv_heads} + JoinBytes(c, kv, outcome);
}

// Pages in which some row of the item sees a key.
int64_t PagesOfItem(const AttentionCase& c, const PagedKvFixture& kv, const cuda::AttentionItem& item) {
  const int64_t first_query = kv.QueryBegin(item.sequence) + item.row_begin / c.group;
  const int64_t first = std::max<int64_t>(item.key_begin, FirstVisible(first_query, c.window));
  return (item.key_end - 1) / c.kv.page_size - first / c.kv.page_size + 1;
}

// hopper_attention.cu.
Bytes HopperPrefillBytes(const AttentionCase& c, const PagedKvFixture& kv, const AttentionOutcome& outcome) {
  const int64_t d = c.kv.head_dim;
  Bytes of_a_head;
  for (const cuda::AttentionItem& item : outcome.items) {
    const int64_t rows = RowsOfTile(c, kv, item.sequence, item.row_begin);
    of_a_head.read += 40 + rows * 2 * d + PagesOfItem(c, kv, item) * (4 + c.kv.page_size * 4 * d);
    of_a_head.written += item.partial < 0 ? rows * 2 * d + rows * 4 : rows * (4 * d + 4);
  }
  if (c.kv.rings) of_a_head.read += 4 * outcome.work.items;
  const int64_t blocks = std::min<int64_t>(kHopperBlocks, int64_t{outcome.max_items} * c.kv.kv_heads);
  return Bytes{of_a_head.read * c.kv.kv_heads + 4 * blocks, of_a_head.written * c.kv.kv_heads} +
         JoinBytes(c, kv, outcome, 2);
}

// hopper_decode.cu.
Bytes HopperDecodeBytes(const AttentionCase& c, const PagedKvFixture& kv, const AttentionOutcome& outcome) {
  const int64_t d = c.kv.head_dim;
  Bytes of_a_head;
  for (const cuda::AttentionItem& item : outcome.items) {
    const int64_t rows = RowsOfTile(c, kv, item.sequence, item.row_begin);
    of_a_head.read += 44 + rows * 2 * d + PagesOfItem(c, kv, item) * (4 + c.kv.page_size * 4 * d);
    of_a_head.written += item.partial < 0 ? rows * 2 * d + rows * 4 : rows * (4 * d + 4);
  }
  of_a_head.read += 4 * (int64_t{outcome.max_items} - outcome.work.items);
  if (c.kv.rings) of_a_head.read += 4 * outcome.work.items;
  return Bytes{of_a_head.read * c.kv.kv_heads, of_a_head.written * c.kv.kv_heads} + JoinBytes(c, kv, outcome);
}

struct CountedRun {
  PagedKvFixture kv;
  AttentionOutcome outcome;
  Bytes bytes;

  explicit CountedRun(const AttentionCase& c, const emulator::Settings& settings = {}) : kv(c.kv, c.spans) {
    FillCase(c, &kv);
    ForgetCounts(settings);
    outcome = RunAttentionCase(c, kv, RandomQuery(c, kv.tokens()));
    bytes = Counted();
  }
};

const AttentionCase kCases[] = {
    {"Decode", KvOf(2, 64, 16), {{0, 1}, {0, 77}, {0, 0}, {0, 300}}, {1, 1, 0, 1}, 4, 0},
    {"DecodeWindow", KvOf(2, 128, 16), {{0, 31}, {0, 33}, {96, 420}}, {1, 1, 1}, 4, 32},
    {"DecodeWindowAcrossTiles", KvOf(1, 32, 16), {{0, 700}}, {1}, 8, 150},
    {"DecodeSplit", KvOf(2, 64, 16), {{0, 1100}, {0, 40}}, {1, 1}, 4, 0, 16, 32},
    {"DecodeSplitWindow", KvOf(1, 32, 16), {{0, 2000}}, {1}, 3, 900, 16, 16},
    {"Prefill", KvOf(1, 64, 32), {{0, 100}, {0, 30}}, {100, 30}, 3, 0, 64},
    {"PrefillChunkInWindow", KvOf(2, 32, 16), {{64, 250}}, {50}, 4, 48, 64},
    {"PrefillSplit", KvOf(1, 32, 16), {{0, 900}}, {20}, 4, 0, 64, 16},
    {"PrefillWide", KvOf(1, 64, 32), {{0, 100}, {0, 30}}, {100, 30}, 3, 0, 128},
    {"PrefillWideChunkInWindow", KvOf(2, 64, 16), {{64, 250}}, {50}, 4, 48, 128},
    {"PrefillWideSplit", KvOf(1, 64, 16), {{0, 900}}, {40}, 4, 0, 128, 16},
    {"Mixture", KvOf(1, 64, 16, DType::kF16, KvOrder::kNhd), {{0, 70}, {0, 200}}, {9, 1}, 4, 60, 16}};

TEST(CudaAttentionBytesTest, EqualTheFormulaAtTheHeadOfTheKernel) {
  for (AttentionCase c : kCases) {
    for (const bool rings : {false, true}) {
      c.kv.rings = rings;
      const CountedRun run(c);
      EXPECT_EQ(run.bytes,
                PlanBytes(c, run.kv, run.outcome) + AttentionBytes(c, run.kv, run.outcome, c.window))
          << c.name << (rings ? " in rings" : "");
    }
  }
}

// Sequences that list the pages of the first one for so many keys, on pages of 16, and have 20 more each.
AttentionCase SharingDecode(int32_t sequences, int64_t shared, int32_t group, int32_t kv_heads) {
  AttentionCase c = {"Sharing", KvOf(kv_heads, 64, 16), {}, {}, group};
  c.target_blocks = 32;
  c.least_tiles_saved = 1;
  for (int32_t b = 0; b < sequences; ++b) {
    c.spans.push_back({0, shared + 20});
    c.queries.push_back(1);
    if (b > 0) c.shared.push_back({b, 0, shared});
  }
  return c;
}

// attention_sharers.cu, of neighbours that share pages of 16 in lists: their tables are compared from the
// first page to the last whole tile of keys.
Bytes SharersBytes(const AttentionCase& c) {
  const auto batch = static_cast<int64_t>(c.spans.size());
  int64_t entries = 0;
  for (size_t b = 0; b + 1 < c.spans.size(); ++b) {
    const int64_t both = std::min(c.spans[b].kv_end, c.spans[b + 1].kv_end) - 1;
    entries += both / cuda::kKeyTile * cuda::kKeyTile / c.kv.page_size;
  }
  return {(batch - 1) * 28 + entries * 8, batch * 16};
}

// attention_sharers.cu, and attention_plan.cu where sequences share.
Bytes SharingPlanBytes(const AttentionCase& c, const CountedRun& run) {
  const int64_t batch = run.kv.batch();
  return PlanBytes(c, run.kv, run.outcome) + SharersBytes(c) + Bytes{3 * 16 * batch, 8 * batch};
}

// attention.cu where sequences share.
TEST(CudaAttentionBytesTest, OfSharersEqualTheFormulaAtTheHeadOfTheirKernels) {
  const AttentionCase c = SharingDecode(6, 640, 4, 2);
  const CountedRun run(c);
  const int64_t d = c.kv.head_dim;
  Bytes bytes = SharingPlanBytes(c, run);
  Bytes of_a_head;
  int64_t shared_keys = 0;
  for (const cuda::AttentionItem& item : run.outcome.items) {
    const int64_t rows = int64_t{c.group} * cuda::MembersOf(item.partial),
                  keys = item.key_end - item.key_begin;
    of_a_head.read += 44 + rows * 2 * d + keys * 4 * d + KeyTiles(keys) * 256;
    of_a_head.written += rows * (4 * d + 4);
    if (!cuda::IsOfSharers(item.partial)) continue;
    of_a_head.read += rows * 4;
    shared_keys += keys;
  }
  EXPECT_EQ(shared_keys, 2 * 640);  // four sequences to a tile, and two
  of_a_head.read += 4 * (int64_t{run.outcome.max_items} - run.outcome.work.items);
  bytes = bytes + Bytes{of_a_head.read * c.kv.kv_heads, of_a_head.written * c.kv.kv_heads} +
          JoinBytes(c, run.kv, run.outcome);
  EXPECT_EQ(run.bytes, bytes);
}

// hopper_decode.cu.
TEST(CudaAttentionBytesTest, OfSharersOnHopperEqualTheFormulaAtTheHeadOfTheirKernel) {
  AttentionCase c = SharingDecode(6, 640, 4, 2);
  c.hopper = true;
  const CountedRun run(c);
  const int64_t d = c.kv.head_dim;
  Bytes bytes = SharingPlanBytes(c, run);
  Bytes of_a_head;
  for (const cuda::AttentionItem& item : run.outcome.items) {
    const int64_t rows = int64_t{c.group} * cuda::MembersOf(item.partial);
    const int64_t pages = (item.key_end - 1) / c.kv.page_size - item.key_begin / c.kv.page_size + 1;
    of_a_head.read += 44 + rows * 2 * d + pages * (4 + c.kv.page_size * 4 * d);
    of_a_head.written += rows * (4 * d + 4);
    if (cuda::IsOfSharers(item.partial)) of_a_head.read += rows * 4;
  }
  of_a_head.read += 4 * (int64_t{run.outcome.max_items} - run.outcome.work.items);
  bytes = bytes + Bytes{of_a_head.read * c.kv.kv_heads, of_a_head.written * c.kv.kv_heads} +
          JoinBytes(c, run.kv, run.outcome);
  EXPECT_EQ(run.bytes, bytes);
}

// The figure of README.md: all bytes of a layer's decode of 32 rows over a prefix of 8k keys, with search,
// plan and parts, beside the keys and values alone of plain decode.
TEST(CudaAttentionBytesTest, Of32RowsOverAPrefixOf8kAreAFractionOfTheKeysThatPlainDecodeReads) {
  constexpr int64_t kRows = 32, kPrefix = 8192;
  for (const auto& [group, least, most] : {std::tuple{1, 1.0 / 16, 0.074}, {4, 1.0 / 4, 0.265}}) {
    const AttentionCase c = SharingDecode(kRows, kPrefix, group, 1);
    const CountedRun run(c);
    const auto bytes = static_cast<double>(run.bytes.read + run.bytes.written);
    const double ratio = bytes / static_cast<double>(kRows * (kPrefix + 20) * 4 * c.kv.head_dim);
    RecordProperty("ratio_in_groups_of_" + std::to_string(group), std::to_string(ratio));
    EXPECT_GT(ratio, least) << group;
    EXPECT_LT(ratio, most) << group;
  }
}

// Whole pages, whatever the window hides of them.
TEST(CudaAttentionBytesTest, OfHopperPrefillEqualTheFormulaAtTheHeadOfItsKernel) {
  for (AttentionCase c : std::vector<AttentionCase>{
           {"Prefill", KvOf(1, 64, 32), {{0, 100}, {0, 30}}, {100, 30}, 3, 0},
           {"ChunkInWindow", KvOf(2, 128, 16), {{64, 450}}, {50}, 4, 200},
           {"PagesOf128", KvOf(2, 64, 128, DType::kBf16, KvOrder::kNhd), {{128, 450}}, {50}, 4, 100},
           {"Split", KvOf(1, 64, 8), {{0, 900}, {0, 20}}, {20, 1}, 4, 0, 128, 16}}) {
    c.tile_rows = cuda::kHopperPrefillRows;
    c.hopper = true;
    const CountedRun run(c);
    EXPECT_EQ(run.bytes, PlanBytes(c, run.kv, run.outcome) + HopperPrefillBytes(c, run.kv, run.outcome))
        << c.name;
  }
}

TEST(CudaAttentionBytesTest, OfHopperDecodeEqualTheFormulaAtTheHeadOfItsKernel) {
  for (AttentionCase c : std::vector<AttentionCase>{
           {"Whole", KvOf(2, 64, 16), {{0, 1}, {0, 77}, {0, 0}, {0, 300}}, {1, 1, 0, 1}, 4, 0},
           {"Window", KvOf(1, 128, 64), {{64, 450}, {0, 33}}, {1, 2}, 3, 200},
           {"Split", KvOf(2, 64, 8), {{0, 1100}, {0, 900}, {0, 20}}, {1, 1, 1}, 4, 0, 16, 32}}) {
    c.hopper = true;
    const CountedRun run(c);
    EXPECT_EQ(run.bytes, PlanBytes(c, run.kv, run.outcome) + HopperDecodeBytes(c, run.kv, run.outcome))
        << c.name;
  }
}

// A decode of three sequences whose keys are not split: one with sinks behind its window, one whose sinks are
// too far away, one without.
TEST(CudaAttentionBytesTest, OfSinksEqualTheFormulaAtTheHeadOfTheirKernel) {
  constexpr int32_t kDim = 64, kGroup = 4, kWindow = 50;
  const AttentionCase c = {.name = "Sinks",
                           .kv = KvOf(1, kDim, 16),
                           .spans = {{0, 200}, {0, 300}, {0, 30}},
                           .queries = {1, 1, 1},
                           .group = kGroup,
                           .window = kWindow,
                           .sinks = {{4, 160, 40}, {4, 260, 90}, {0, 0, 29}},
                           .sinks_windowed = true};
  const CountedRun run(c);
  // Of the first all four; of the second those from 90 - 50 + 1 on, which are none.
  struct Seen {
    int64_t keys, tiles, sinks;
  };
  const Seen seen[] = {{200 - 160, 2, 4}, {300 - 260, 1, 0}, {30, 1, 0}};
  Bytes bytes = PlanBytes(c, run.kv, run.outcome);
  bytes.read += 3 * 3 * 4;  // `left` of each tile
  for (const auto& [keys, tiles, sinks] : seen) {
    bytes.read += 48 + kGroup * (8 + 4 + 2 * kDim) + keys * 4 * kDim + tiles * 256;
    if (sinks > 0) bytes.read += kGroup * 2 * kDim + sinks * 4 * kDim + 256;
    bytes.written += kGroup * 2 * kDim + kGroup * 4;
  }
  bytes.read += 4 * (run.outcome.max_items - 3);
  EXPECT_EQ(run.bytes, bytes);
}

// All keys are read whatever the mask hides, and a byte of it for each pair.
TEST(CudaAttentionBytesTest, OfAMaskEqualTheFormulaAtTheHeadOfItsKernel) {
  constexpr int32_t kDim = 32, kGroup = 3, kKeys = 130, kQueries = 4;
  const AttentionCase c = {.name = "Mask",
                           .kv = KvOf(1, kDim, 16),
                           .spans = {{0, kKeys}},
                           .queries = {kQueries},
                           .group = kGroup,
                           .mask = std::vector<uint8_t>((kKeys * kQueries + 7) / 8, 0x5a)};
  const CountedRun run(c);
  constexpr int64_t kRows = kQueries * kGroup;
  Bytes bytes = PlanBytes(c, run.kv, run.outcome);
  bytes.read += 3 * 4;  // where its keys begin
  bytes.read += 48 + kRows * 2 * kDim + kKeys * 4 * kDim + KeyTiles(kKeys) * 256 + 8 + kRows * kKeys;
  bytes.read += 4 * (run.outcome.max_items - 1);
  bytes.written += kRows * 2 * kDim + kRows * 4;
  EXPECT_EQ(run.bytes, bytes);
}

// A decode of one sequence and one layer: each number and scale is read once.
TEST(CudaAttentionBytesTest, OfQuantisedPagesEqualTheFormulaAtTheHeadOfTheirKernel) {
  constexpr int64_t kDim = 128, kGroup = 4, kKeys = 200;
  for (const auto& [dtype, numbers, scales] : {std::tuple{DType::kInt8, 2 * kDim, 2 * kDim / 32 * 2},
                                               {DType::kInt4, kDim, 2 * kDim / 32 * 2},
                                               {DType::kFp8E4M3, 2 * kDim, int64_t{0}}}) {
    AttentionCase c = {
        .name = "Quantised", .kv = KvOf(1, kDim, 16, dtype), .spans = {{0, kKeys}}, .queries = {1}};
    c.kv.group_log2 = 5;
    const CountedRun run(c);
    Bytes bytes = PlanBytes(c, run.kv, run.outcome);
    bytes.read += 48 + kGroup * 2 * kDim + kKeys * (numbers + scales) + KeyTiles(kKeys) * 256;
    bytes.read += 4 * (run.outcome.max_items - 1);
    bytes.written += kGroup * 2 * kDim + kGroup * 4;
    EXPECT_EQ(run.bytes, bytes) << DTypeName(dtype);
  }
}

// decode_pages.cu: sequences whose rows see so many pages of those that they list. The bytes of a listing,
// and of what it makes decoding read and write.
struct CountedPages {
  Bytes listing, decoding;
  int64_t pages = 0;
};

CountedPages CountPages(const Format& element, KvScaleView scale, int32_t head_dim,
                        const std::vector<PagedSpan>& spans, const std::vector<int32_t>& queries,
                        bool rings) {
  constexpr int32_t kHeads = 2, kPage = 16, kWindow = 40;
  PagedKvFixture tables({.kv_heads = 1, .page_size = kPage, .rings = rings}, spans);
  tables.SetQueries(queries);
  const KvFormat format = {.element = element, .kv_heads = kHeads, .head_dim = head_dim, .page_size = kPage};
  const KvFormat bf16 = cuda::DecodedFormat(format);
  CountedPages counted;
  for (int32_t b = 0; b < tables.batch(); ++b) {
    const PagedSpan& span = spans[static_cast<size_t>(b)];
    const int64_t first = std::max(span.kv_base, FirstVisible(tables.QueryBegin(b), kWindow));
    if (tables.QueryCount(b) > 0) counted.pages += PagesFor(span.kv_end, kPage) - first / kPage;
  }
  const auto pool_pages = static_cast<int64_t>(tables.held_pages()) + 5;  // the fixture's spare ones
  std::vector<std::byte> pool(static_cast<size_t>(pool_pages * format.PageBytes(1)));
  std::vector<std::byte> decoded(static_cast<size_t>(counted.pages * bf16.PageBytes(1)));
  std::vector<int32_t> sources(static_cast<size_t>(counted.pages)), entries(sources.size()),
      firsts(spans.size()), count(1);
  const cuda::PageListing listing = {sources.data(), entries.data(), firsts.data(), count.data()};
  ForgetCounts();
  EXPECT_EQ(cuda::LaunchListPages({.table = tables.Table(),
                                   .qo_indptr = tables.qo_indptr(),
                                   .batch = tables.batch(),
                                   .window = kWindow,
                                   .listing = listing,
                                   .divisor = cuda::PageDivisor(kPage)},
                                  nullptr),
            0);
  counted.listing = Counted();
  EXPECT_EQ(count.front(), counted.pages);
  KvLayerView kv(format, pool.data(), format.PageBytes(1));
  if (scale.scales != nullptr) kv.scale = scale;
  ForgetCounts();
  EXPECT_EQ(cuda::LaunchDecodePages({.kv = kv,
                                     .decoded = KvLayerView(bf16, decoded.data(), bf16.PageBytes(1)),
                                     .listing = listing,
                                     .most_pages = tables.held_pages(),
                                     .multiprocessors = 1},
                                    nullptr),
            0);
  counted.decoding = Counted();
  return counted;
}

TEST(CudaDecodedPagesBytesTest, EqualTheFormulasAtTheHeadOfTheKernels) {
  constexpr int64_t kHeads = 2, kPage = 16, kDim = 96, kBlocks = 6;
  constexpr int64_t kNumbers = 2 * kHeads * kPage * kDim;  // of a page
  const std::vector<PagedSpan> spans = {{0, 100}, {0, 0}, {16, 90}, {0, 33}};
  std::vector<float> fp8_scales(2 * kHeads, 1.0f);
  for (const bool rings : {false, true}) {
    for (const auto& [element, number_bits, scale_bytes, scale] :
         {std::tuple{Format::WithScalesApart(DType::kInt8, 5), 8, 2, KvScaleView()},
          {Format::WithScalesApart(DType::kInt4, 3), 4, 2, KvScaleView()},
          {Format::WithScalesApart(DType::kInt8, 4, DType::kF32), 8, 4, KvScaleView()},
          {Format::BareFp8(), 8, 0, KvScaleView()},
          {Format::BareFp8(), 8, 4, KvScaleView::OfFp8(fp8_scales.data(), kHeads)}}) {
      SCOPED_TRACE(FormatName(element) + (rings ? " in rings" : ""));
      const CountedPages counted = CountPages(element, scale, kDim, spans, {5, 0, 30, 33}, rings);
      // Each block looks at the lengths of those before it.
      const int64_t before = 16 * (0 + 1 + 2 + 3), own = 4 * (20 + (rings ? 4 : 0));
      EXPECT_EQ(counted.listing, (Bytes{before + own + 4 * counted.pages, 4 * 4 + 8 * counted.pages + 4}));
      EXPECT_EQ(counted.decoding, (Bytes{4 * kBlocks + counted.pages * (2 * 4 + kNumbers * number_bits / 8 +
                                                                        kNumbers / 8 * scale_bytes),
                                         counted.pages * kNumbers * 2}));
    }
  }
}

// The figure of README.md: all bytes of a layer's decode of one sequence over 4,096 keys, with plan and
// joins, beside the same over bf16.
TEST(CudaAttentionBytesTest, ADecodeStepOverQuantisedPagesReadsAFractionOfThatOverBf16) {
  const auto decode = [](DType dtype) {
    AttentionCase c = {.name = "Decode", .kv = KvOf(1, 128, 16, dtype), .spans = {{0, 4096}}, .queries = {1}};
    c.kv.group_log2 = 5;
    const Bytes bytes = CountedRun(c).bytes;
    return static_cast<double>(bytes.read + bytes.written);
  };
  const double bf16 = decode(DType::kBf16);
  for (const auto& [dtype, expected] :
       {std::pair{DType::kInt8, 0.544}, {DType::kInt4, 0.301}, {DType::kFp8E4M3, 0.514}}) {
    const double ratio = decode(dtype) / bf16;
    RecordProperty(std::string("ratio_of_") + DTypeName(dtype), std::to_string(ratio));
    EXPECT_NEAR(ratio, expected, 0.002) << DTypeName(dtype);
  }
}

// One sequence of so many keys with one query of 20 heads, in two tiles of rows.
struct LatentRun {
  Bytes bytes;
  cuda::AttentionWork work{};
  std::vector<cuda::AttentionItem> items;
};

constexpr int32_t kLatentDim = 72, kLatentValueDim = 40, kLatentGroup = 20, kLatentPage = 16;

LatentRun CountLatent(int32_t keys, int32_t window, const emulator::Settings& settings = {}) {
  const KvFormat format = {.element = DType::kBf16,
                           .kv_heads = 1,
                           .head_dim = kLatentDim,
                           .page_size = kLatentPage,
                           .latent_value_dim = kLatentValueDim};
  const auto pages = static_cast<int32_t>(PagesFor(keys, kLatentPage));
  std::vector<std::byte> pool(static_cast<size_t>(pages * format.PageBytes(1)));
  std::vector<int32_t> page_indices(static_cast<size_t>(pages));
  std::iota(page_indices.begin(), page_indices.end(), 0);
  const std::vector<int32_t> first_entry = {0}, kv_base = {0}, kv_end = {keys}, qo_indptr = {0, 1};
  constexpr int32_t kTarget = 8;
  const int32_t bound = cuda::AttentionItemBound(1, 1, kLatentGroup, 16, 1, kTarget);
  LatentRun run;
  run.items.resize(static_cast<size_t>(bound));
  std::vector<cuda::AttentionMerge> merges(run.items.size());
  EXPECT_EQ(cuda::PlanAttention({.kv_base = kv_base.data(),
                                 .kv_end = kv_end.data(),
                                 .qo_indptr = qo_indptr.data(),
                                 .batch = 1,
                                 .window = window,
                                 .group = kLatentGroup,
                                 .tile_rows = 16,
                                 .kv_heads = 1,
                                 .target_blocks = kTarget,
                                 .max_items = bound,
                                 .items = run.items.data(),
                                 .merges = merges.data(),
                                 .work = &run.work},
                                nullptr),
            0);
  const std::vector<uint16_t> query(kLatentGroup * kLatentDim);
  std::vector<uint16_t> out(kLatentGroup * kLatentValueDim);
  std::vector<float> partial_out(static_cast<size_t>(run.work.partials) * 16 * kLatentValueDim),
      partial_lse(static_cast<size_t>(run.work.partials) * 16);
  cuda::AttentionRunParams params{};
  params.query = query.data();
  params.out = out.data();
  params.query_stride = kLatentGroup * kLatentDim;
  params.out_stride = kLatentGroup * kLatentValueDim;
  params.kv = KvLayerView(format, pool.data(), format.PageBytes(1));
  params.table = {.page_indices = page_indices.data(),
                  .first_entry = first_entry.data(),
                  .kv_base = kv_base.data(),
                  .kv_end = kv_end.data()};
  params.qo_indptr = qo_indptr.data();
  params.items = run.items.data();
  params.merges = merges.data();
  params.work = &run.work;
  params.partial_out = partial_out.data();
  params.partial_lse = partial_lse.data();
  params.window = window;
  params.group = kLatentGroup;
  params.tile_rows = 16;
  params.max_items = bound;
  std::vector<int32_t> parts_done(static_cast<size_t>(cuda::AttentionCountBound(1, kTarget, 1)));
  params.parts_done = parts_done.data();
  params.scale = 0.1f;
  ForgetCounts(settings);
  EXPECT_EQ(cuda::RunLatentAttention({.run = params, .mask = {}}, nullptr), 0);
  run.bytes = Counted();
  return run;
}

TEST(CudaAttentionBytesTest, OfLatentPagesEqualTheFormulaAtTheHeadOfTheirKernel) {
  for (const auto& [keys, window] : std::vector<std::pair<int32_t, int32_t>>{{70, 0}, {900, 0}, {900, 100}}) {
    const LatentRun run = CountLatent(keys, window);
    ASSERT_EQ(run.work.merges > 0, keys == 900 && window == 0);
    const int64_t first_seen = window == 0 ? 0 : keys - window;
    Bytes expected;
    const auto bound = static_cast<int64_t>(run.items.size());
    expected.read += 4 * (bound - run.work.items);
    for (int32_t i = 0; i < run.work.items; ++i) {
      const cuda::AttentionItem& item = run.items[static_cast<size_t>(i)];
      const int64_t rows = std::min(16, kLatentGroup - item.row_begin);
      const int64_t seen = item.key_end - std::max<int64_t>(item.key_begin, first_seen);
      // A step is 32 keys from the item's first on; those in front of what is seen are left out.
      const int64_t first_step = std::max<int64_t>(0, first_seen - item.key_begin) / 32;
      const int64_t steps = (item.key_end - item.key_begin + 31) / 32 - first_step;
      expected.read += 44 + rows * 2 * kLatentDim + seen * 2 * kLatentDim + steps * 128;
      expected.written += rows * (item.partial >= 0 ? 4 * kLatentValueDim + 4 : 2 * kLatentValueDim);
    }
    const int64_t splits = run.work.merges == 0 ? 0 : run.work.partials / run.work.merges;
    expected.read += 12 * run.work.partials + 112 * run.work.merges;
    expected.written += 4 * run.work.partials + 4 * run.work.merges;
    if (splits > 0) {
      expected.read += kLatentGroup * splits * (4 * kLatentValueDim + 8);
      expected.written += kLatentGroup * 2 * kLatentValueDim;
    }
    EXPECT_EQ(run.bytes, expected) << keys << " keys, window " << window;
  }
}

// attention_plan.cu, of a prompt of 8,192 tokens: each of 256 threads has two of its tiles.
TEST(CudaAttentionBytesTest, OfThePlanOfALongPromptAreThoseOfAllItsThreads) {
  const std::vector<int32_t> kv_end = {8192}, qo_indptr = {0, 8192};
  const int32_t bound = cuda::AttentionItemBound(8192, 1, 4, 64, 8, 264);
  std::vector<cuda::AttentionItem> items(static_cast<size_t>(bound));
  std::vector<cuda::AttentionMerge> merges(items.size());
  cuda::AttentionWork work{};
  ForgetCounts();
  ASSERT_EQ(cuda::PlanAttention({.kv_base = nullptr,
                                 .kv_end = kv_end.data(),
                                 .qo_indptr = qo_indptr.data(),
                                 .batch = 1,
                                 .window = 0,
                                 .group = 4,
                                 .tile_rows = 64,
                                 .kv_heads = 8,
                                 .target_blocks = 264,
                                 .max_items = bound,
                                 .items = items.data(),
                                 .merges = merges.data(),
                                 .work = &work},
                                nullptr),
            0);
  EXPECT_GE(work.items, 512);
  EXPECT_EQ(Counted(), (Bytes{12 + 256 * (12 + 3 * 12), 24 * work.items + 16 * work.merges + 16}));
}

// The planted fault: the loop goes over all keys, as if there were no window, where the window's bytes are
// allowed.
TEST(CudaAttentionBytesTest, ALoopThatIgnoresTheWindowDoesNotEqualIt) {
  AttentionCase c = {"", KvOf(1, 64, 16), {{0, 420}}, {1}, 4, 32};
  const CountedRun right(c);
  EXPECT_EQ(right.bytes,
            PlanBytes(c, right.kv, right.outcome) + AttentionBytes(c, right.kv, right.outcome, 32));
  c.window = 0;
  const CountedRun faulty(c);
  EXPECT_GT(
      faulty.bytes.read,
      (PlanBytes(c, faulty.kv, faulty.outcome) + AttentionBytes(c, faulty.kv, faulty.outcome, 32)).read);
}

TEST(CudaAttentionBytesTest, ReadByDecodeDoNotDependOnTheContextBeyondTheWindow) {
  auto bytes_at = [](int64_t context) {
    return CountedRun({"", KvOf(2, 64, 16), {{0, context}}, {1}, 4, 200}).bytes;
  };
  EXPECT_EQ(bytes_at(4 * 64 + 200), bytes_at(30 * 64 + 200));
}

// Pages that no query sees are memory that cannot be touched; dead slots of the others are NaN.
AttentionCase Forbidden(int32_t window) {
  AttentionCase c = {"", KvOf(1, 64, 16), {{0, 333}, {0, 900}}, {1, 30}, 4, window, 16};
  c.kv.whole_os_pages = true;
  return c;
}

void RunOverForbiddenPages(const AttentionCase& c) {
  PagedKvFixture kv(c.kv, c.spans);
  kv.FillRandom(3);
  kv.SetQueries(c.queries);
  std::vector<int64_t> first;
  for (int32_t b = 0; b < kv.batch(); ++b) first.push_back(FirstVisible(kv.QueryBegin(b), 48));
  kv.ForbidAllBut(first);
  EXPECT_GT(kv.forbidden_bytes(), 0);
  emulator::CurrentSettings() = {};
  const AttentionOutcome outcome = RunAttentionInPlace(c, kv, RandomQuery(c, kv.tokens()));
  for (const uint16_t bits : outcome.out) ASSERT_FALSE(std::isnan(AttentionDouble(c.kv.dtype, bits)));
}

TEST(CudaAttentionWindowTest, PagesOutsideTheWindowAreNeverTouched) { RunOverForbiddenPages(Forbidden(48)); }

TEST(CudaAttentionWindowDeathTest, ALoopOverPagesOutsideTheWindowDies) {
  EXPECT_DEATH(RunOverForbiddenPages(Forbidden(0)), "");
}

// The planted fault: a page table that names a page of nobody.
void RunOverAStrangePage() {
  const AttentionCase c = Forbidden(48);
  PagedKvFixture kv(c.kv, c.spans);
  kv.FillRandom(3);
  kv.SetQueries(c.queries);
  kv.ForbidAllBut({FirstVisible(kv.QueryBegin(0), 48), FirstVisible(kv.QueryBegin(1), 48)});
  kv.ListStrangePage(1, 890);
  RunAttentionInPlace(c, kv, RandomQuery(c, kv.tokens()));
}

TEST(CudaAttentionWindowDeathTest, APageThatNobodyHoldsIsNotReadUnseen) {
  emulator::CurrentSettings() = {};
  EXPECT_DEATH(RunOverAStrangePage(), "");
}

// Splits count keys inside the window: a long context makes no more of them than a short one.
TEST(CudaAttentionWindowTest, SplitsKnowTheWindow) {
  auto work_at = [](int64_t context, int32_t window) {
    return CountedRun({"", KvOf(1, 32, 16), {{0, context}}, {1}, 4, window, 16, 16}).outcome.work;
  };
  const cuda::AttentionWork near = work_at(640, 512), far = work_at(64 * 64 + 640, 512),
                            none = work_at(64 * 64 + 640, 0);
  EXPECT_GT(near.items, 1);
  EXPECT_EQ(near.items, far.items);
  EXPECT_EQ(near.split_tiles, far.split_tiles);
  EXPECT_GT(none.items, far.items);
}

TEST(CudaAttentionBanksTest, MatricesAreLoadedWithoutConflicts) {
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    for (const int32_t rows : {16, 64, 128}) {
      if (rows == cuda::kWideTileRows && !cuda::HasWideTile(head_dim)) continue;
      const CountedRun run({"", KvOf(1, head_dim, 16), {{0, 100}}, {5}, 4, 0, rows});
      EXPECT_GT(emulator::TotalStats().matrix_loads, 0);
      EXPECT_EQ(emulator::TotalStats().bank_conflicts, 0) << head_dim << " " << rows;
    }
  }
}

// Tiles of 16 rows, of which every warp has a part of the keys.
TEST(CudaAttentionBanksTest, StatesOfWarpsAreJoinedWithoutConflicts) {
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    const CountedRun run({"", KvOf(1, head_dim, 16), {{0, 100}}, {4}, 4, 0, 16},
                         {.count_shared_conflicts = true});
    EXPECT_GT(emulator::TotalStats().plain_accesses, 0);
    EXPECT_EQ(emulator::TotalStats().plain_conflicts, 0) << head_dim;
  }
  emulator::CurrentSettings() = {};
}

// Keys and values that are decoded into shared memory lie as ldmatrix wants them.
TEST(CudaAttentionBanksTest, WhatIsDecodedIsStoredWithoutConflicts) {
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    for (const DType element : {DType::kInt8, DType::kInt4, DType::kFp8E4M3}) {
      AttentionCase c = {
          .name = "Quantised", .kv = KvOf(1, head_dim, 16, element), .spans = {{0, 128}}, .queries = {1}};
      c.kv.group_log2 = 5;
      const CountedRun run(c, {.count_shared_conflicts = true});
      EXPECT_GT(emulator::TotalStats().matrix_loads, 0);
      EXPECT_GT(emulator::TotalStats().plain_accesses, 0);
      EXPECT_EQ(emulator::TotalStats().plain_conflicts, 0) << head_dim << " " << DTypeName(element);
      EXPECT_EQ(emulator::TotalStats().bank_conflicts, 0) << head_dim << " " << DTypeName(element);
    }
  }
  emulator::CurrentSettings() = {};
}

// Rows of pages and queries, and the scores that pass between warps; edges and whole steps of keys.
TEST(CudaAttentionBanksTest, LatentRowsAndTheirScoresAreStoredAndLoadedWithoutConflicts) {
  for (const auto& [keys, window] : std::vector<std::pair<int32_t, int32_t>>{{70, 0}, {900, 0}, {900, 100}}) {
    CountLatent(keys, window, {.count_shared_conflicts = true});
    EXPECT_GT(emulator::TotalStats().matrix_loads, 0);
    EXPECT_GT(emulator::TotalStats().plain_accesses, 0);
    EXPECT_EQ(emulator::TotalStats().bank_conflicts, 0) << keys << " keys, window " << window;
    EXPECT_EQ(emulator::TotalStats().plain_conflicts, 0) << keys << " keys, window " << window;
  }
  emulator::CurrentSettings() = {};
}

// One block's share of a weight, with the norm by which rows come to shared memory, and in tiles.
TEST(CudaLinearBanksTest, RowsOfXAndPartialSumsAreStoredAndLoadedWithoutConflicts) {
  constexpr int32_t kIn = 512, kOut = 32, kTileRows = 64;
  const std::vector<uint16_t> x(kTileRows * kIn), weight(kOut * kIn);
  const std::vector<float> norm(kIn);
  std::vector<float> out(kTileRows * kOut);
  for (const auto& [rows, epilogue] : {std::pair{1, Epilogue::kNone},
                                       {8, Epilogue::kNone},
                                       {16, Epilogue::kNone},
                                       {16, Epilogue::kSwiGlu}}) {
    cuda::SmallLinearParams p{};
    p.x = x.data();
    p.norm_weight = norm.data();
    p.weight = weight.data();
    p.out = out.data();
    p.x_stride = kIn;
    p.out_stride = kOut;
    p.rows = rows;
    p.in_features = kIn;
    p.out_features = kOut;
    p.prologue = Prologue::kRmsNorm;
    p.epilogue = epilogue;
    ForgetCounts({.count_shared_conflicts = true});
    ASSERT_EQ(cuda::LaunchSmallLinear(p, nullptr), 0);
    EXPECT_GT(emulator::TotalStats().plain_accesses, 0) << rows;
    EXPECT_EQ(emulator::TotalStats().plain_conflicts, 0) << rows;
  }
  for (const Format type : {Format(DType::kQ8_0), Format(DType::kQ4K), Format(DType::kFp8E4M3)}) {
    cuda::TileLinearParams p{};
    p.weights[0] = weight.data();
    p.x = x.data();
    p.out = out.data();
    p.x_stride = kIn;
    p.out_stride = kOut;
    p.rows = kTileRows;
    p.places_of_a_row = 1;
    p.in_features = kIn;
    p.out_features = kOut;
    p.weight_format = type;
    ForgetCounts({.count_shared_conflicts = true});
    ASSERT_EQ(cuda::LaunchTileLinear(p, nullptr), 0);
    EXPECT_GT(emulator::TotalStats().plain_accesses, 0) << FormatName(type);
    EXPECT_EQ(emulator::TotalStats().plain_conflicts, 0) << FormatName(type);
  }
  emulator::CurrentSettings() = {};
}

// ---- linear_small.cu ----------------------------------------------------------------------------

struct LinearCase {
  int32_t rows, in, out;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype;
  bool gathered;
};

TEST(CudaSmallLinearBytesTest, EqualTheFormulaAtTheHeadOfTheKernel) {
  for (const LinearCase& c :
       {LinearCase{1, 1056, 40, Prologue::kNone, Epilogue::kNone, DType::kBf16, false},
        LinearCase{8, 704, 32, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16, true},
        LinearCase{3, 256, 50, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32, true},
        LinearCase{5, 1064, 24, Prologue::kNone, Epilogue::kNone, DType::kBf16, false},
        LinearCase{12, 312, 32, Prologue::kRmsNorm, Epilogue::kNone, DType::kBf16, false},
        LinearCase{16, 288, 64, Prologue::kRmsNorm, Epilogue::kSwiGlu, DType::kBf16, false},
        LinearCase{9, 96, 48, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16, true}}) {
    const std::vector<uint16_t> x(static_cast<size_t>(c.rows * c.in)),
        weight(static_cast<size_t>(c.out * c.in));
    const std::vector<float> norm(static_cast<size_t>(c.in));
    std::vector<int32_t> x_rows(static_cast<size_t>(c.rows));
    std::iota(x_rows.begin(), x_rows.end(), 0);
    std::vector<float> out(static_cast<size_t>(c.rows * c.out));
    cuda::SmallLinearParams p{};
    p.x = x.data();
    p.x_rows = c.gathered ? x_rows.data() : nullptr;
    p.norm_weight = norm.data();
    p.weight = weight.data();
    p.out = out.data();
    p.x_stride = c.in;
    p.out_stride = c.out;
    p.rows = c.rows;
    p.in_features = c.in;
    p.out_features = c.out;
    p.prologue = c.prologue;
    p.epilogue = c.epilogue;
    p.out_dtype = c.out_dtype;
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchSmallLinear(p, nullptr), 0);

    const int64_t k = c.in, rows = c.rows, blocks = (c.out + 15) / 16;
    const int64_t outputs = c.epilogue == Epilogue::kSwiGlu ? c.out / 2 : c.out;
    Bytes bytes;
    bytes.written = rows * outputs * (c.out_dtype == DType::kF32 ? 4 : 2);
    bytes.read = blocks * 16 * k * 2 + blocks * rows * k * (c.prologue == Prologue::kRmsNorm ? 8 : 2) +
                 (c.gathered ? blocks * rows * (c.prologue == Prologue::kRmsNorm ? 8 : 128) : 0) +
                 (c.epilogue == Epilogue::kAddResidual ? bytes.written : 0);
    EXPECT_EQ(Counted(), bytes) << c.rows << " rows of " << c.in << " to " << c.out;
  }
}

// ---- weights in blocks --------------------------------------------------------------------------

// Bits of a number as the heads of the kernels state them, and in a run without its unit's scales.
struct BlockBits {
  Format type;
  double bits, run_bits;
  int64_t run;         // numbers of a run
  double scale_bytes;  // of a row's scales in a unit
};
const BlockBits kBlockBits[] = {{DType::kQ8_0, 8.5, 8, 32, 2},
                                {DType::kQ4_0, 4.5, 4, 32, 2},
                                {DType::kQ4_1, 5, 4, 32, 4},
                                {DType::kQ5_0, 5.5, 5, 32, 2},
                                {DType::kQ5_1, 6, 5, 32, 4},
                                {DType::kQ4K, 4.5, 4, 64, 16},
                                {DType::kQ5K, 5.5, 5, 64, 16},
                                {DType::kQ6K, 6.5625, 6, 64, 18},
                                {DType::kInt4, 4.125, 4, 32, 2},
                                {Format::InGroups(DType::kInt4, 5, DType::kBf16, true), 4.625, 4, 32, 2.5},
                                {Format::InGroups(DType::kInt4, 8, DType::kF32), 4.125, 4, 32, 4},
                                {Format::InGroups(DType::kInt8, 6, DType::kF16, true), 8.375, 8, 32, 3},
                                {DType::kFp8E4M3, 8.25, 8, 32, 4}};

// [rows filled up to sixteens, k]
int64_t WeightBytes(const BlockBits& of, int64_t rows, int64_t k) {
  const int64_t numbers = (rows + 15) / 16 * 16 * k;
  return static_cast<int64_t>(static_cast<double>(numbers) * of.bits / 8);
}

class CudaBlocksBytesTest : public testing::TestWithParam<BlockBits> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaBlocksBytesTest, testing::ValuesIn(kBlockBits),
                         [](const auto& info) { return BlockFormatId(info.param.type); });

TEST_P(CudaBlocksBytesTest, OfLinearLayersEqualTheFormulas) {
  const int64_t block = GetParam().type.block_size();
  for (const LinearCase& c :
       {LinearCase{1, 9, 40, Prologue::kNone, Epilogue::kNone, DType::kBf16, false},
        LinearCase{1, 1, 16, Prologue::kNone, Epilogue::kNone, DType::kF32, true},
        LinearCase{8, 3, 32, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16, true},
        LinearCase{3, 2, 50, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32, true},
        LinearCase{16, 3, 48, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16, false},
        LinearCase{17, 1, 40, Prologue::kNone, Epilogue::kNone, DType::kF32, false},
        LinearCase{20, 3, 50, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16, false},
        LinearCase{70, 2, 96, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16, false}}) {
    const int64_t k = c.in * block, rows = c.rows, weight_bytes = WeightBytes(GetParam(), c.out, k);
    const std::vector<uint16_t> x(static_cast<size_t>(rows * k));
    const std::vector<std::byte> weight(static_cast<size_t>(weight_bytes));  // and not one more is there
    const std::vector<float> norm(static_cast<size_t>(k));
    std::vector<int32_t> x_rows(static_cast<size_t>(rows));
    std::iota(x_rows.begin(), x_rows.end(), 0);
    std::vector<float> out(static_cast<size_t>(rows * c.out));
    const int64_t outputs = c.epilogue == Epilogue::kSwiGlu ? c.out / 2 : c.out;
    Bytes bytes;
    bytes.written = rows * outputs * (c.out_dtype == DType::kF32 ? 4 : 2);
    bytes.read = c.epilogue == Epilogue::kAddResidual ? bytes.written : 0;
    ForgetCounts();
    if (rows <= cuda::kSmallLinearRows) {
      cuda::SmallLinearParams p{};
      p.x = x.data();
      p.x_rows = c.gathered ? x_rows.data() : nullptr;
      p.norm_weight = norm.data();
      p.weight = weight.data();
      p.out = out.data();
      p.x_stride = k;
      p.out_stride = c.out;
      p.rows = c.rows;
      p.in_features = static_cast<int32_t>(k);
      p.out_features = c.out;
      p.prologue = c.prologue;
      p.epilogue = c.epilogue;
      p.out_dtype = c.out_dtype;
      p.weight_format = GetParam().type;
      ASSERT_TRUE(cuda::SmallLinearSupported(p));
      ASSERT_EQ(cuda::LaunchSmallLinear(p, nullptr), 0);
      const int64_t blocks = (c.out + 15) / 16;
      bytes.read += weight_bytes + blocks * rows * k * (c.prologue == Prologue::kRmsNorm ? 8 : 2) +
                    (c.gathered ? blocks * rows * (c.prologue == Prologue::kRmsNorm ? 8 : 128) : 0);
    } else {
      cuda::TileLinearParams p{};
      p.weights[0] = weight.data();
      p.x = x.data();
      p.out = out.data();
      p.x_stride = k;
      p.out_stride = c.out;
      p.rows = c.rows;
      p.places_of_a_row = 1;
      p.in_features = static_cast<int32_t>(k);
      p.out_features = c.out;
      p.epilogue = c.epilogue;
      p.out_dtype = c.out_dtype;
      p.weight_format = GetParam().type;
      ASSERT_EQ(cuda::LaunchTileLinear(p, nullptr), 0);
      const int64_t tiles = (rows + 63) / 64, wide = 16 * cuda::TileLinearWarps(p);
      bytes.read += tiles * weight_bytes + (c.out + wide - 1) / wide * rows * k * 2;
    }
    EXPECT_EQ(Counted(), bytes) << c.rows << " rows of " << k << " to " << c.out;
  }
}

// Rows that end within sixteen, which are filled up; K that ends within a span of four tiles.
TEST_P(CudaBlocksBytesTest, OfADecodedWeightEqualTheFormula) {
  const BlockBits& of = GetParam();
  for (const int64_t blocks : {1, 3, 5}) {
    const int64_t k = blocks * of.type.block_size(), rows = 40;
    const std::vector<std::byte> weight(static_cast<size_t>(WeightBytes(of, rows, k)));
    std::vector<uint16_t> out(static_cast<size_t>(48 * k));  // and not one more is there
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchDecodeWeight({.weight = weight.data(),
                                        .out = out.data(),
                                        .rows = static_cast<int32_t>(rows),
                                        .in_features = static_cast<int32_t>(k),
                                        .format = of.type},
                                       nullptr),
              0);
    const int64_t tiles_of_unit = cuda::LayoutOf(of.type).tiles,
                  spans_of_unit = of.type.in_groups() ? std::max<int64_t>(tiles_of_unit / 4, 1) : 1;
    const auto scales = static_cast<int64_t>(of.scale_bytes * 48) * blocks * (spans_of_unit - 1);
    EXPECT_EQ(Counted(), (Bytes{WeightBytes(of, rows, k) + scales, 48 * k * 2})) << blocks;
  }
}

TEST(CudaFp8RowsBytesTest, OfADecodedWeightEqualTheFormula) {
  for (const int64_t k : {32, 128, 288}) {
    const int64_t rows = 48, spans = (k / 32 + 3) / 4;
    const std::vector<std::byte> weight(static_cast<size_t>(rows * k));
    std::vector<uint16_t> out(static_cast<size_t>(rows * k));
    const std::vector<float> scales(static_cast<size_t>(rows));
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchDecodeWeight({.weight = weight.data(),
                                        .out = out.data(),
                                        .rows = static_cast<int32_t>(rows),
                                        .in_features = static_cast<int32_t>(k),
                                        .format = Format::InGroups(DType::kFp8E4M3, 5, DType::kF32),
                                        .row_scales = scales.data()},
                                       nullptr),
              0);
    EXPECT_EQ(Counted(), (Bytes{rows * k + rows / 16 * spans * 64, rows * k * 2})) << k;
  }
}

// Of fp8 in rows: a byte a number, the scales of its sixteen rows for each warp, and nothing of groups.
TEST(CudaFp8RowsBytesTest, OfLinearLayersEqualTheFormulas) {
  for (const LinearCase& c :
       {LinearCase{1, 96, 48, Prologue::kNone, Epilogue::kNone, DType::kBf16, false},
        LinearCase{16, 1056, 32, Prologue::kNone, Epilogue::kSwiGlu, DType::kBf16, false},
        LinearCase{5, 256, 16, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32, false},
        LinearCase{70, 288, 64, Prologue::kNone, Epilogue::kNone, DType::kBf16, false}}) {
    const int64_t k = c.in, rows = c.rows;
    const std::vector<uint16_t> x(static_cast<size_t>(rows * k));
    const std::vector<std::byte> weight(static_cast<size_t>(c.out * k));  // and not one more is there
    const std::vector<float> norm(static_cast<size_t>(k)), scales(static_cast<size_t>(c.out));
    std::vector<float> out(static_cast<size_t>(rows * c.out));
    Bytes bytes;
    bytes.written =
        rows * (c.epilogue == Epilogue::kSwiGlu ? c.out / 2 : c.out) * (c.out_dtype == DType::kF32 ? 4 : 2);
    ForgetCounts();
    if (rows <= cuda::kSmallLinearRows) {
      cuda::SmallLinearParams p{};
      p.x = x.data();
      p.norm_weight = norm.data();
      p.weight = weight.data();
      p.out = out.data();
      p.x_stride = k;
      p.out_stride = c.out;
      p.rows = c.rows;
      p.in_features = c.in;
      p.out_features = c.out;
      p.prologue = c.prologue;
      p.epilogue = c.epilogue;
      p.out_dtype = c.out_dtype;
      p.weight_format = Format::InGroups(DType::kFp8E4M3, 5, DType::kF32);
      p.row_scales = scales.data();
      ASSERT_TRUE(cuda::SmallLinearSupported(p));
      ASSERT_EQ(cuda::LaunchSmallLinear(p, nullptr), 0);
      const int64_t blocks = c.out / 16;
      bytes.read = c.out * k + blocks * (512 + rows * k * (c.prologue == Prologue::kRmsNorm ? 8 : 2));
    } else {
      cuda::TileLinearParams p{};
      p.weights[0] = weight.data();
      p.x = x.data();
      p.out = out.data();
      p.x_stride = k;
      p.out_stride = c.out;
      p.rows = c.rows;
      p.places_of_a_row = 1;
      p.in_features = c.in;
      p.out_features = c.out;
      p.epilogue = c.epilogue;
      p.out_dtype = c.out_dtype;
      p.weight_format = Format::InGroups(DType::kFp8E4M3, 5, DType::kF32);
      p.row_scales = scales.data();
      ASSERT_EQ(cuda::LaunchTileLinear(p, nullptr), 0);
      const int64_t tiles = (rows + 63) / 64, wide = 16 * cuda::TileLinearWarps(p);
      bytes.read = tiles * (c.out * k + c.out / 16 * 64) + (c.out + wide - 1) / wide * rows * k * 2;
    }
    EXPECT_EQ(Counted(), bytes) << c.rows << " rows of " << k << " to " << c.out;
  }
}

TEST_P(CudaBlocksBytesTest, OfTheEmbeddingEqualTheFormula) {
  const BlockBits& of = GetParam();
  const int64_t width = 3 * of.type.block_size();
  const std::vector<std::byte> table(static_cast<size_t>(WeightBytes(of, 20, width)));
  const std::vector<int32_t> ids = {19, 0, 15};
  std::vector<uint16_t> out(static_cast<size_t>(3 * width));
  std::vector<int32_t> order(static_cast<size_t>(width));
  std::iota(order.rbegin(), order.rend(), 0);
  // Of two rows: a run, and the scales of its unit.
  const auto two_rows =
      static_cast<int64_t>(static_cast<double>(of.run) * of.run_bits / 4 + 2 * of.scale_bytes);
  for (const int32_t* columns : {static_cast<const int32_t*>(nullptr), std::as_const(order).data()}) {
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchEmbed({ids.data(), table.data(), out.data(), width, 3, static_cast<int32_t>(width),
                                 of.type, columns},
                                nullptr),
              0);
    const int64_t of_order = columns == nullptr ? 0 : width * 4;
    EXPECT_EQ(Counted(), (Bytes{3 * (4 + width / of.run * two_rows + of_order), 3 * width * 2}));
  }
}

// ---- pointwise.cu

TEST(CudaPointwiseBytesTest, OfColumnsInAnotherOrderEqualTheFormula) {
  constexpr int32_t kRows = 3, kWidth = 264;
  const std::vector<uint16_t> x(5 * kWidth);
  std::vector<uint16_t> y(kRows * kWidth);
  const std::vector<float> weight(kWidth, 1.0f);
  const std::vector<int32_t> x_rows = {4, 0, 2};
  std::vector<int32_t> order(kWidth);
  std::iota(order.rbegin(), order.rend(), 0);
  const int32_t elements = kRows * kWidth;
  for (const int32_t* gathered : {static_cast<const int32_t*>(nullptr), x_rows.data()}) {
    const int32_t of_rows = gathered == nullptr ? 0 : 4 * kRows;
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchGatherColumns({x.data(), gathered, order.data(), y.data(), kWidth, kRows, kWidth},
                                        nullptr),
              0);
    EXPECT_EQ(Counted(), (Bytes{elements * 6 + of_rows, elements * 2}));
    for (const int32_t* columns : {static_cast<const int32_t*>(nullptr), std::as_const(order).data()}) {
      ForgetCounts();
      ASSERT_EQ(
          cuda::LaunchRmsNorm(
              {x.data(), gathered, weight.data(), y.data(), kWidth, kRows, kWidth, 1e-5f, columns}, nullptr),
          0);
      EXPECT_EQ(Counted(), (Bytes{elements * (columns == nullptr ? 6 : 12) + of_rows, elements * 2}));
    }
  }
}

// ---- moe.cu -------------------------------------------------------------------------------------

// Random choices: [rows][experts_per_token], ascending in a row.
std::vector<int32_t> RandomChoices(int32_t rows, int32_t experts, int32_t experts_per_token, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> chosen, ids(static_cast<size_t>(experts));
  std::iota(ids.begin(), ids.end(), 0);
  for (int32_t row = 0; row < rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    std::vector<int32_t> few(ids.begin(), ids.begin() + experts_per_token);
    std::sort(few.begin(), few.end());
    chosen.insert(chosen.end(), few.begin(), few.end());
  }
  return chosen;
}

struct MoeGemmCase {
  int32_t rows, experts, experts_per_token, in, out;
  cuda::MoeOut kind;
  const BlockBits* blocks = nullptr;  // bf16

  int64_t ExpertBytes() const {
    return blocks == nullptr ? int64_t{in} * out * 2 : WeightBytes(*blocks, out, in);
  }
  bool of_gates() const { return kind != cuda::MoeOut::kF32; }
  int64_t OutBytes() const {  // of a pair
    return kind == cuda::MoeOut::kF32 ? out * 4 : kind == cuda::MoeOut::kSwiGlu ? out : out * 2;
  }
};

// One product over given choices, counted; lists are made before.
struct CountedMoeGemm {
  std::vector<int32_t> chosen;
  std::vector<int64_t> rows_of;  // [experts]
  int64_t distinct = 0;          // experts that a row chose
  int64_t pairs = 0;
  bool small = false;
  int32_t max_tiles = 0;
  int32_t warps = 0;  // of a block of linear_tile.cu
  Bytes bytes;

  explicit CountedMoeGemm(const MoeGemmCase& c)
      : chosen(RandomChoices(c.rows, c.experts, c.experts_per_token, 5)),
        rows_of(static_cast<size_t>(c.experts)),
        pairs(static_cast<int64_t>(chosen.size())),
        small(cuda::MoeIsSmall(c.rows, c.in, c.out)),
        max_tiles(cuda::MoeTileBound(static_cast<int32_t>(pairs), c.experts)) {
    for (const int32_t expert : chosen) ++rows_of[static_cast<size_t>(expert)];
    distinct = std::count_if(rows_of.begin(), rows_of.end(), [](int64_t rows) { return rows > 0; });
    const std::vector<uint16_t> weight(static_cast<size_t>(c.ExpertBytes() / 2)),
        x(static_cast<size_t>(pairs * c.in));
    std::vector<float> out(static_cast<size_t>(pairs * c.out));
    std::vector<int32_t> order(chosen.size());
    std::vector<cuda::MoeTile> tiles(static_cast<size_t>(max_tiles));
    cuda::MoeGemmParams p{};
    for (int32_t e = 0; e < c.experts; ++e) p.weights[e] = weight.data();
    p.x = x.data();
    p.out = out.data();
    p.chosen = chosen.data();
    p.rows = c.rows;
    p.pairs = static_cast<int32_t>(pairs);
    p.pairs_of_a_row = c.of_gates() ? c.experts_per_token : 1;
    p.experts = c.experts;
    p.in_features = c.in;
    p.out_features = c.out;
    p.out_kind = c.kind;
    if (c.blocks != nullptr) p.weight_format = c.blocks->type;
    if (!small) {
      p.order = order.data();
      p.tiles = tiles.data();
      p.max_tiles = max_tiles;
      EXPECT_EQ(cuda::LaunchMoeGroup(
                    {chosen.data(), order.data(), tiles.data(), p.pairs, c.experts, max_tiles}, nullptr),
                0);
    }
    cuda::TileLinearParams tile_linear{};
    tile_linear.order = order.data();
    tile_linear.max_tiles = max_tiles;
    tile_linear.out_features = c.out;
    warps = cuda::TileLinearWarps(tile_linear);
    ForgetCounts();
    EXPECT_EQ(cuda::LaunchMoeGemm(p, nullptr), 0);
    bytes = Counted();
  }
};

Bytes SmallMoeBytes(const MoeGemmCase& c, const CountedMoeGemm& run) {
  const int64_t blocks = (c.out + 15) / 16, k = c.in;
  const bool by_pair = c.rows <= cuda::kMoePairRows;
  const int64_t groups = by_pair ? run.pairs : c.experts;
  Bytes bytes;
  // A pair whose expert an earlier one has ends its search there.
  for (int64_t group = 0; group < groups; ++group) {
    int64_t looked_at = run.pairs;
    if (by_pair) {
      const auto first =
          std::find(run.chosen.begin(), run.chosen.end(), run.chosen[static_cast<size_t>(group)]);
      if (first - run.chosen.begin() < group) looked_at = first - run.chosen.begin() + 1;
    }
    bytes.read += blocks * (looked_at * 4 + (by_pair ? 4 : 0));
  }
  bytes.written = run.pairs * c.OutBytes();
  const int64_t expert_bytes = c.blocks == nullptr ? blocks * 16 * k * 2 : c.ExpertBytes();
  bytes.read += run.distinct * expert_bytes + blocks * run.pairs * k * 2 +
                (c.kind == cuda::MoeOut::kUp ? bytes.written : 0);
  return bytes;
}

// Blocks of 128 outputs, or over weights in blocks of as many warps as such a launch has.
Bytes TileMoeBytes(const MoeGemmCase& c, const CountedMoeGemm& run) {
  const int64_t wide = c.blocks == nullptr ? 128 : 16 * run.warps;
  const int64_t blocks = (c.out + wide - 1) / wide, k = c.in;
  Bytes bytes;
  bytes.read = blocks * run.max_tiles * 12 + blocks * run.pairs * (4 + k * 2);
  for (const int64_t rows : run.rows_of) {
    bytes.read += (rows + cuda::kMoeTileRows - 1) / cuda::kMoeTileRows * c.ExpertBytes();
  }
  bytes.written = run.pairs * c.OutBytes();
  if (c.kind == cuda::MoeOut::kUp) bytes.read += bytes.written;
  return bytes;
}

TEST(CudaMoeBytesTest, OfTheProductsEqualTheFormulas) {
  using cuda::MoeOut;
  for (const MoeGemmCase& c :
       {MoeGemmCase{1, 8, 2, 96, 64, MoeOut::kSwiGlu}, MoeGemmCase{3, 8, 2, 64, 96, MoeOut::kF32},
        MoeGemmCase{4, 3, 2, 32, 32, MoeOut::kSwiGlu}, MoeGemmCase{16, 8, 2, 64, 96, MoeOut::kF32},
        MoeGemmCase{9, 5, 3, 96, 160, MoeOut::kSwiGlu}, MoeGemmCase{20, 8, 2, 72, 136, MoeOut::kF32},
        MoeGemmCase{100, 3, 2, 64, 160, MoeOut::kSwiGlu}, MoeGemmCase{3, 3, 2, 64, 40, MoeOut::kGate},
        MoeGemmCase{9, 3, 2, 64, 40, MoeOut::kUp}, MoeGemmCase{40, 3, 2, 64, 136, MoeOut::kGate},
        MoeGemmCase{40, 3, 2, 64, 136, MoeOut::kUp}}) {
    const CountedMoeGemm run(c);
    EXPECT_EQ(run.bytes, run.small ? SmallMoeBytes(c, run) : TileMoeBytes(c, run)) << c.rows << " rows";
  }
}

TEST_P(CudaBlocksBytesTest, OfExpertsEqualTheFormulas) {
  const auto block = static_cast<int32_t>(GetParam().type.block_size());
  using cuda::MoeOut;
  for (const MoeGemmCase& c : {MoeGemmCase{3, 8, 2, block, 96, MoeOut::kF32, &GetParam()},
                               MoeGemmCase{9, 5, 3, 3 * block, 64, MoeOut::kSwiGlu, &GetParam()},
                               MoeGemmCase{20, 8, 2, block, 136, MoeOut::kF32, &GetParam()},
                               MoeGemmCase{20, 8, 2, block, 136, MoeOut::kGate, &GetParam()},
                               MoeGemmCase{20, 8, 2, block, 136, MoeOut::kUp, &GetParam()},
                               MoeGemmCase{100, 3, 2, 2 * block, 160, MoeOut::kSwiGlu, &GetParam()}}) {
    const CountedMoeGemm run(c);
    EXPECT_EQ(run.bytes, run.small ? SmallMoeBytes(c, run) : TileMoeBytes(c, run)) << c.rows << " rows";
  }
}

// What a step must read of its experts is read, and no more: with 1, 8 and 32 rows of Mixtral's experts.
TEST(CudaMoeBytesTest, EachExpertThatARowChoseIsReadOnce) {
  for (const int32_t rows : {1, 4, 8, 32}) {
    const MoeGemmCase c = {rows, 8, 2, 1024, 64, cuda::MoeOut::kF32};
    const CountedMoeGemm run(c);
    const int64_t weights = run.distinct * c.in * c.out * 2;
    const int64_t activations = (c.out + 15) / 16 * run.pairs * c.in * 2;  // from the caches but once
    EXPECT_GE(run.bytes.read, weights);
    EXPECT_LE(run.bytes.read, weights + activations + 4096)
        << rows << " rows, " << run.distinct << " experts";
  }
}

// Pairs of an expert that has an order, of one that has none, and of nobody.
TEST(CudaMoeBytesTest, OfColumnsInAnotherOrderEqualTheFormula) {
  constexpr int32_t kPairs = 6, kWidth = 2056;
  const std::vector<int32_t> chosen = {0, 1, 0, 1, -1, -1};
  std::vector<int32_t> order(kWidth);
  std::iota(order.rbegin(), order.rend(), 0);
  std::vector<uint16_t> x(kPairs * kWidth);
  cuda::MoeOrderParams p{};
  p.orders[0] = order.data();
  p.x = p.y = x.data();
  p.chosen = chosen.data();
  p.pairs = kPairs;
  p.pairs_of_a_row = 1;
  p.width = kWidth;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchMoeOrder(p, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kPairs * 4 + 4 * kWidth * 2 + 2 * kWidth * 4, 4 * kWidth * 2}));
}

TEST(CudaMoeBytesTest, OfRouteGroupAndCombineEqualTheirFormulas) {
  constexpr int64_t kRows = 5, kHidden = 264, kExperts = 6, kPerToken = 2, kPairs = kRows * kPerToken;
  const std::vector<uint16_t> x(kRows * kHidden);
  const std::vector<float> norm(kHidden), router(kExperts * kHidden), y(kPairs * kHidden);
  std::vector<uint16_t> normalised(kRows * kHidden), out(kRows * kHidden);
  std::vector<int32_t> chosen(kPairs), order(kPairs);
  std::vector<float> shares(kPairs);
  cuda::MoeRouteParams route{};
  route.x = x.data();
  route.norm_weight = norm.data();
  route.router = router.data();
  route.normalised = normalised.data();
  route.chosen = chosen.data();
  route.shares = shares.data();
  route.x_stride = kHidden;
  route.rows = kRows;
  route.hidden = kHidden;
  route.experts = kExperts;
  route.experts_per_token = kPerToken;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchMoeRoute(route, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * (kHidden * (2 * 2 + 4) + kExperts * kHidden * 4),
                              kRows * (kHidden * 2 + kPerToken * 8)}));

  const int32_t max_tiles = cuda::MoeTileBound(kPairs, kExperts);
  std::vector<cuda::MoeTile> tiles(static_cast<size_t>(max_tiles));
  ForgetCounts();
  ASSERT_EQ(
      cuda::LaunchMoeGroup({chosen.data(), order.data(), tiles.data(), kPairs, kExperts, max_tiles}, nullptr),
      0);
  EXPECT_EQ(Counted().written, kPairs * 4 + max_tiles * 12);
  EXPECT_GT(Counted().read, kExperts * kPairs * 2 * 4);
  EXPECT_LE(Counted().read, kExperts * kPairs * 3 * 4);

  for (const bool add : {false, true}) {
    ForgetCounts();
    ASSERT_EQ(
        cuda::LaunchMoeCombine(
            {y.data(), shares.data(), out.data(), nullptr, kHidden, kRows, kHidden, kPerToken, add}, nullptr),
        0);
    // Shares are read by each turn of a block's loop, 2048 elements.
    EXPECT_EQ(Counted(), (Bytes{kRows * (kPerToken * (kHidden * 4 + 4) + (add ? kHidden * 2 : 0)),
                                kRows * kHidden * 2}));
  }
  // Two rows of padding.
  constexpr int64_t kLive = kRows - 2;
  const int32_t live = kLive;
  route.live_rows = &live;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchMoeRoute(route, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kLive * (kHidden * (2 * 2 + 4) + kExperts * kHidden * 4) + kRows * 4,
                              kLive * (kHidden * 2 + kPerToken * 8) + 2 * kPerToken * 4}));
  ForgetCounts();
  ASSERT_EQ(
      cuda::LaunchMoeCombine(
          {y.data(), shares.data(), out.data(), &live, kHidden, kRows, kHidden, kPerToken, false}, nullptr),
      0);
  EXPECT_EQ(Counted(), (Bytes{kLive * (kPerToken * (kHidden * 4 + 4)) + kRows * 4, kLive * kHidden * 2}));
}

// ---- pointwise.cu -------------------------------------------------------------------------------

TEST(CudaPointwiseBytesTest, OfEmbeddingNormRowsInFp8AndSwiGluEqualTheirFormulas) {
  constexpr int64_t kRows = 3, kWidth = 264, kLongWidth = 5000;
  const std::vector<uint16_t> x(kRows * kLongWidth);
  std::vector<uint16_t> y(kRows * kLongWidth);
  const std::vector<float> weight(kLongWidth);
  const std::vector<int32_t> ids = {2, 0, 1};
  cuda::EmbedKernelParams embed{};
  embed.token_ids = ids.data();
  embed.table = x.data();
  embed.out = y.data();
  embed.out_stride = kWidth;
  embed.tokens = kRows;
  embed.width = kWidth;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchEmbed(embed, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * (kWidth * 2 + 4), kRows * kWidth * 2}));

  cuda::RmsNormKernelParams norm{};
  norm.x = x.data();
  norm.weight = weight.data();
  norm.y = y.data();
  norm.x_stride = kWidth;
  norm.rows = kRows;
  norm.width = kWidth;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchRmsNorm(norm, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * kWidth * (2 + 4), kRows * kWidth * 2}));
  norm.x_rows = ids.data();
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchRmsNorm(norm, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * kWidth * (2 + 4) + kRows * 4, kRows * kWidth * 2}));
  norm.x_rows = nullptr;
  norm.x_stride = norm.width = kLongWidth;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchRmsNorm(norm, nullptr), 0);
  EXPECT_EQ(Counted(),
            (Bytes{kRows * (kLongWidth * (2 + 4) + (kLongWidth - 4096) * 2), kRows * kLongWidth * 2}));

  std::vector<float> scales(kRows);
  cuda::QuantiseRowsParams quantise{};
  quantise.x = x.data();
  quantise.y = y.data();
  quantise.scales = scales.data();
  quantise.x_stride = kWidth;
  quantise.rows = kRows;
  quantise.width = kWidth;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchQuantiseRows(quantise, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * kWidth * 2 * 2, kRows * (kWidth + 4)}));
  quantise.norm_weight = weight.data();
  quantise.x_rows = ids.data();
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchQuantiseRows(quantise, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * kWidth * (2 * 3 + 4 * 2) + kRows * 4, kRows * (kWidth + 4)}));

  cuda::SwiGluKernelParams swiglu{};
  swiglu.gate_up = x.data();
  swiglu.h = y.data();
  swiglu.h_stride = kWidth;
  swiglu.rows = kRows;
  swiglu.width = kWidth;
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchSwiGlu(swiglu, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kRows * kWidth * 4, kRows * kWidth * 2}));
}

TEST(CudaPointwiseBytesTest, OfRopeAndPageCopiesEqualTheirFormulas) {
  constexpr int64_t kTokens = 3, kQuery = 6, kKv = 2, kDim = 16;
  const std::vector<int32_t> positions(kTokens, 9);
  const std::vector<double> frequency(kDim / 2);
  std::vector<float> cos_sin(kTokens * kDim);
  ForgetCounts();
  ASSERT_EQ(
      cuda::LaunchRopeTable({positions.data(), kTokens, frequency.data(), kDim / 2, cos_sin.data()}, nullptr),
      0);
  EXPECT_EQ(Counted(), (Bytes{kTokens * (4 + kDim / 2 * 8), kTokens * kDim / 2 * 8}));

  KvLayerView kv;
  kv = KvLayerView({.element = DType::kBf16, .kv_heads = kKv, .head_dim = kDim, .page_size = 4});
  kv.page_bytes = kv.format.PageBytes(1);
  std::vector<std::byte> pool(static_cast<size_t>(4 * kv.page_bytes));
  kv.pool = pool.data();
  std::vector<uint16_t> qkv(kTokens * (kQuery + 2 * kKv) * kDim);
  const std::vector<int64_t> slots = {3, -1, 7};  // the second is padding: its queries only
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchRopeAppend({MakeTensor(qkv.data(), DType::kBf16, kTokens, (kQuery + 2 * kKv) * kDim),
                                    cos_sin.data(), RotaryStyle::kHalfSplit, kQuery, kv, slots.data()},
                                   nullptr),
            0);
  const Bytes token = {8 + (kQuery + kKv) * 6 * kDim + kKv * 2 * kDim, (kQuery + 2 * kKv) * 2 * kDim};
  const Bytes padded = {8 + kQuery * 6 * kDim, kQuery * 2 * kDim};
  EXPECT_EQ(Counted(), token + token + padded);

  std::vector<uint16_t> sink_query(kTokens * kQuery * kDim);
  RopeAppendParams sinks{};
  sinks.qkv = MakeTensor(qkv.data(), DType::kBf16, kTokens, (kQuery + 2 * kKv) * kDim);
  sinks.query_heads = kQuery;
  sinks.kv = kv;
  sinks.sink_cos_sin = cos_sin.data();
  sinks.sink_query = MakeTensor(sink_query.data(), DType::kBf16, kTokens, kQuery * kDim);
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchRopeSinkQuery(sinks, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{kTokens * kQuery * 6 * kDim, kTokens * kQuery * 2 * kDim}));

  const std::vector<int32_t> pairs = {0, 2, 1, 3};
  for (const int64_t page_bytes : {kv.page_bytes, kv.page_bytes - 6}) {  // whole pieces of 16 bytes, and not
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchCopyPages({pool.data(), page_bytes, pairs.data(), 2}, nullptr), 0);
    EXPECT_EQ(Counted(), (Bytes{2 * page_bytes + 2 * 16 * 8, 2 * page_bytes}));
  }

  std::vector<int32_t> scattered(200), changes;
  for (int32_t i = 0; i < 200; ++i) changes.insert(changes.end(), {199 - i, i});
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchScatter({changes.data(), 200, scattered.data()}, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{200 * 8, 200 * 4}));
  for (int32_t i = 0; i < 200; ++i) EXPECT_EQ(scattered[static_cast<size_t>(199 - i)], i);

  RopeAppendParams quantised{};
  quantised.qkv = MakeTensor(qkv.data(), DType::kBf16, kTokens, (kQuery + 2 * kKv) * kDim);
  quantised.cos_sin = cos_sin.data();
  quantised.query_heads = kQuery;
  quantised.kv = KvLayerView({.element = Format::WithScalesApart(DType::kInt8, 3),
                              .kv_heads = kKv,
                              .head_dim = kDim,
                              .page_size = 4},
                             pool.data(), kv.page_bytes);
  quantised.slots = slots.data();
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchRopeAppendQuantised(quantised, nullptr), 0);
  const Bytes small_token = {8 + kQuery * 6 * kDim + kKv * 14 * kDim,
                             kQuery * 2 * kDim + quantised.kv.format.TokenBytes()};
  EXPECT_EQ(Counted(), small_token + small_token + padded);
}

TEST(CudaGatherBytesTest, EqualTheFormulaAtTheHeadOfTheKernel) {
  constexpr int64_t kTokens = 40, kHeads = 2, kRepeat = 3, kDim = 16, kBlocks = 32;
  constexpr int64_t kNumbers = kTokens * kHeads * kRepeat * kDim * 2;
  for (const auto& [element, number] :
       {std::pair{Format(DType::kBf16), 2}, {Format::WithScalesApart(DType::kInt4, 3), 1 + 2}}) {
    const KvFormat format = {.element = element, .kv_heads = kHeads, .head_dim = kDim, .page_size = 4};
    std::vector<std::byte> pool(static_cast<size_t>(kTokens / 4 * format.PageBytes(1)));
    std::vector<int32_t> pages(kTokens / 4);
    std::iota(pages.begin(), pages.end(), 0);
    const std::vector<int32_t> first_entry = {0}, kv_base = {0}, kv_end = {kTokens},
                               out_indptr = {0, kTokens};
    std::vector<float> key(kNumbers / 2), value(kNumbers / 2);
    GatherKvParams params;
    params.kv = KvLayerView(format, pool.data(), format.PageBytes(1));
    params.table = {.page_indices = pages.data(),
                    .first_entry = first_entry.data(),
                    .kv_base = kv_base.data(),
                    .kv_end = kv_end.data()};
    params.out_indptr = out_indptr.data();
    params.batch = 1;
    params.repeat = kRepeat;
    params.key = MakeTensor(key.data(), DType::kF32, kTokens, kHeads * kRepeat * kDim);
    params.value = MakeTensor(value.data(), DType::kF32, kTokens, kHeads * kRepeat * kDim);
    ForgetCounts();
    ASSERT_EQ(cuda::LaunchGatherKv(params, nullptr), 0);
    EXPECT_EQ(Counted(), (Bytes{kBlocks * 16 + kTokens * 4 + kNumbers * number, kNumbers * 4}))
        << FormatName(element);
  }
}

// ---- sampling.cu ---------------------------------------------------------------------------------

struct SamplingCase {
  const char* name;
  int passes;
  void (*ask)(SampledRow*);
};

TEST(CudaSamplingBytesTest, EqualTheFormulaAtTheHeadOfTheKernel) {
  constexpr int64_t kVocab = 1500;
  const SamplingCase cases[] = {
      {"greedy", 3, [](SampledRow* r) { r->row.temperature = 0.0f; }},
      {"temperature", 4, [](SampledRow*) {}},
      {"nobody reads the logprob", 2, [](SampledRow* r) { r->row.wants_logprob = 0; }},
      {"top_k", 6, [](SampledRow* r) { r->row.top_k = 40; }},
      {"top_p", 6, [](SampledRow* r) { r->row.top_p = 0.9f; }},
      {"both", 8,
       [](SampledRow* r) {
         r->row.top_k = 40;
         r->row.top_p = 0.9f;
       }},
      {"top_logprobs", 6,
       [](SampledRow* r) {
         r->row.temperature = 0.0f;
         r->row.top_logprobs = 5;
       }},
      {"adjusted", 6,
       [](SampledRow* r) {
         r->row.presence_penalty = 0.5f;
         r->adjusts = {{.token = 7, .bias = 1.0f}, {.token = 90, .output_count = 2}};
       }},
      {"masked", 6, [](SampledRow* r) { r->allowed.assign(kVocab, true); }}};
  for (const SamplingCase& c : cases) {
    SampledRow row;
    row.logits = RandomLogits(kVocab, 3);
    row.row.seed = 9;
    c.ask(&row);
    std::vector<float> adjusted(kVocab);
    ForgetCounts();
    RunSample([&](const SampleParams& p) { EXPECT_EQ(cuda::LaunchSample({p, adjusted.data()}, nullptr), 0); },
              {row});

    const auto adjusts = static_cast<int64_t>(row.adjusts.size());
    const bool copied = adjusts > 0 || !row.allowed.empty();
    Bytes bytes;
    bytes.read = c.passes * 4 * kVocab + 72 + (row.row.NeedsLogprob() ? 4 : 0) +
                 (row.allowed.empty() ? 0 : 4 * kVocab) + 20 * adjusts;
    bytes.written = 20 + 8 * row.row.top_logprobs + (copied ? 4 * kVocab + 4 * adjusts : 0);
    EXPECT_EQ(Counted(), bytes) << c.name;
  }
}

// Blocks divide the passes, and what they say to each other is little beside them.
TEST(CudaSamplingBytesTest, OfSeveralBlocksAreThePassesOverTheLogits) {
  constexpr int64_t kVocab = 80000, kPass = 4 * kVocab;
  constexpr int32_t kBlocks = 5;
  std::vector<std::byte> split(static_cast<size_t>(cuda::SplitSampleBytes()));
  std::vector<float> adjusted(kVocab);
  const auto count = [&](const SamplingRow& asked) {
    SampledRow row;
    row.logits = RandomLogits(kVocab, 3);
    row.row = asked;
    ForgetCounts();
    RunSample(
        [&](const SampleParams& p) {
          EXPECT_EQ(cuda::LaunchSample({p, adjusted.data(), kBlocks, split.data()}, nullptr), 0);
        },
        {row});
    return Counted();
  };
  // A greedy row is settled by the scan: parts of 16 and counts of 4 are written, read by the last block and
  // set to zero; the other two launches ask whether there is anything to do.
  EXPECT_EQ(
      count({.temperature = 0.0f, .wants_logprob = 0}),
      (Bytes{.read = kPass + kBlocks * (72 + 16 + 4 + 2 * 4), .written = kBlocks * (16 + 4) + 4 + 80 + 20}));
  struct Case {
    const char* name;
    SamplingRow row;
    int passes;
  };
  const Case cases[] = {{"greedy", {.temperature = 0.0f}, 3},
                        {"temperature", {}, 4},
                        {"nobody reads the logprob", {.wants_logprob = 0}, 2},
                        {"top_k", {.top_k = 40}, 4},
                        {"top_p", {.top_p = 0.5f}, 5},
                        {"top_p in the first bucket", {.top_p = 0.2f}, 4},
                        {"top_p leaves thousands", {.top_p = 0.9f, .wants_logprob = 0}, 3},
                        {"top_k leaves thousands", {.top_k = 5000, .wants_logprob = 0}, 3},
                        {"both leave thousands", {.top_p = 0.9f, .top_k = 5000, .wants_logprob = 0}, 4},
                        {"top_logprobs", {.temperature = 0.0f, .top_logprobs = 5}, 5}};
  for (const Case& c : cases) {
    const Bytes bytes = count(c.row);
    EXPECT_GE(bytes.read, c.passes * kPass) << c.name;
    EXPECT_LT(bytes.read, c.passes * kPass + kPass / 2) << c.name;
    EXPECT_LT(bytes.written, kPass / 2) << c.name;
  }
}

// Those of a bucket and of who may win; a logprob takes none.
TEST(CudaSamplingExponentials, InDoublePrecisionAreThoseOfFinalists) {
  constexpr size_t kVocab = 40000;
  const auto exponentials = [&](const SamplingRow& asked) {
    SampledRow row;
    row.logits = RandomLogits(kVocab, 5);
    row.row = asked;
    std::vector<float> adjusted(kVocab);
    ForgetCounts();
    const SampleAnswers answers = RunSample(
        [&](const SampleParams& p) { EXPECT_EQ(cuda::LaunchSample({p, adjusted.data()}, nullptr), 0); },
        {row});
    ExpectAnswersOfTheDefinition({row}, answers, cuda::kMostLogprobError);
    return emulator::TotalStats().exponentials;
  };
  for (const float temperature : {0.3f, 1.0f, 1.5f}) {
    SCOPED_TRACE(testing::Message() << "temperature " << temperature);
    SamplingRow asked;
    asked.seed = 4;
    asked.temperature = temperature;
    asked.top_p = 0.9f;
    const int64_t with_logprob = exponentials(asked);
    asked.wants_logprob = 0;
    const int64_t without = exponentials(asked);
    EXPECT_EQ(with_logprob, without);
    EXPECT_GT(without, 0);
    EXPECT_LT(without, static_cast<int64_t>(kVocab / 40));
  }
  EXPECT_EQ(exponentials(Greedy()), 0);
}

// A token at the cut is a hundred-thousandth of all, and what sums of estimates are off by is far less.
TEST(CudaSamplingExponentials, OfFlatRowsAreThoseOfFinalistsToo) {
  constexpr size_t kVocab = 131072;
  constexpr uint64_t kRows = 8;
  std::vector<float> adjusted(kRows * kVocab);
  std::vector<SampledRow> rows(kRows);
  for (uint64_t r = 0; r < kRows; ++r) {
    rows[r].logits = RandomLogits(kVocab, r);
    rows[r].row.top_p = 0.9f;
    rows[r].row.wants_logprob = 0;
  }
  ForgetCounts();
  RunSample([&](const SampleParams& p) { EXPECT_EQ(cuda::LaunchSample({p, adjusted.data()}, nullptr), 0); },
            rows);
  EXPECT_LT(emulator::TotalStats().exponentials, static_cast<int64_t>(kRows * kVocab / 40));
}

TEST(CudaSamplingBytesTest, OfAdvanceEqualTheirFormula) {
  const std::vector<SampleRecord> records(3);
  const std::vector<int32_t> pairs = {0, 1, 2, 0};
  std::vector<int32_t> token_ids(2);
  ForgetCounts();
  ASSERT_EQ(cuda::LaunchAdvance({records.data(), pairs.data(), 2, token_ids.data()}, nullptr), 0);
  EXPECT_EQ(Counted(), (Bytes{2 * (8 + 4), 2 * 4}));
}

}  // namespace
}  // namespace tramontane
