// Attention over OpenPPL's cache where it lies: rows appended to views of a foreign buffer, in each of its
// four layouts and both modes, and attended to by the same kernels as rows in our own pages, on the CPU and
// on the emulated devices. What they give is the same, bit for bit; the buffer holds the bytes of our pages'
// rows where its shape says, and everywhere else the poison that it held before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include "kernels/foreign_kv.h"
#include "tests/kv_vectors/machine.h"
#include "tests/kv_vectors/paged_run.h"
#include "tests/support/cuda_device.h"

namespace tramontane::kv_vectors {
namespace {

constexpr int32_t kKvHeads = 2, kQueryHeads = 6, kHeadDim = 64;
constexpr int32_t kPageSize = 16;
constexpr int64_t kCacheTokens = 256;
constexpr int32_t kLayers = 3, kLayer = 1;
// Of each sequence: one of several chunks of keys, one that is all queries, two in decode, one of which has
// filled its last page.
constexpr int32_t kLengths[] = {70, 5, 37, 48};
constexpr int32_t kQueries[] = {3, 5, 1, 1};
constexpr int32_t kBatch = std::size(kLengths);

// How OpenPPL's operator keeps numbers.
struct RowKind {
  const char* name;
  DType plain;  // where quant_bit is 0
  int32_t quant_bit = 0, quant_group = 0;
  DType scales = DType::kF16;
};

// Standard normal rows of all sequences, and the queries.
struct Rows {
  std::vector<double> keys, values, queries;
  std::vector<int32_t> qo_indptr = {0};
};

Rows DrawRows() {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  const auto some = [&](int64_t count) {
    std::vector<double> numbers(static_cast<size_t>(count));
    for (double& number : numbers) number = normal(random);
    return numbers;
  };
  Rows rows;
  int64_t tokens = 0;
  for (const int32_t length : kLengths) tokens += length;
  for (const int32_t queries : kQueries) rows.qo_indptr.push_back(rows.qo_indptr.back() + queries);
  rows.keys = some(tokens * kKvHeads * kHeadDim);
  rows.values = some(tokens * kKvHeads * kHeadDim);
  rows.queries = some(int64_t{rows.qo_indptr.back()} * kQueryHeads * kHeadDim);
  return rows;
}

// Bytes that are no number in any of the types, scales included.
std::vector<std::byte> Poison(int64_t bytes) {
  return std::vector<std::byte>(static_cast<size_t>(bytes), std::byte{0xff});
}

// Where a view's rows lie, and which slots the sequences have there.
struct Place {
  KvLayerView view;
  HostPageTables tables;
};

StatusOr<AttentionResult> AppendAndAttend(Machine& machine, const Place& place, const Rows& rows,
                                          int32_t window) {
  AppendRows append;
  append.keys = rows.keys;
  append.values = rows.values;
  append.slots = place.tables.slots;
  TM_RETURN_IF_ERROR(Append(machine, place.view, append));
  AttentionCase attention;
  attention.query_heads = kQueryHeads;
  attention.queries = rows.queries;
  attention.qo_indptr = rows.qo_indptr;
  attention.window = window;
  attention.scale = 0.125;
  return Attend(machine, place.view, place.tables, attention);
}

OpenPplAttributes AttributesOf(const RowKind& kind, int32_t layout, int32_t mode) {
  OpenPplAttributes attributes = {.num_layer = kLayers,
                                  .layer_idx = kLayer,
                                  .quant_bit = kind.quant_bit,
                                  .cache_mode = mode,
                                  .cache_layout = layout,
                                  .page_size = kPageSize};
  if (kind.quant_bit != 0) attributes.quant_group = kind.quant_group;
  return attributes;
}

OpenPplShape ShapeOf(const RowKind& kind) {
  OpenPplShape shape = {.cache_tokens = kCacheTokens,
                        .kv_heads = kKvHeads,
                        .head_dim = kHeadDim,
                        .has_scale = kind.quant_bit != 0};
  for (const int32_t length : kLengths) shape.current_rows += length;
  return shape;
}

// All tokens are current ones. Mode 0: extents in another order than the sequences, with room between. Mode
// 1: pages that begin at slots which are no multiples of the page size; one that is not full is cut by the
// buffer's end.
OpenPplInputs InputsOf(int32_t mode) {
  OpenPplInputs inputs;
  inputs.seqstarts = {0};
  inputs.start_pos.resize(kBatch);
  inputs.max_seqlen = inputs.max_kvlen = kLengths[0];  // the longest
  for (const int32_t length : kLengths) inputs.seqstarts.push_back(inputs.seqstarts.back() + length);
  inputs.kvstarts = inputs.seqstarts;
  if (mode == 0) {
    inputs.cachestarts = {186, 3, 130, 71};
    return inputs;
  }
  inputs.cachestarts = {33,  101, 1,   67, 250,  //
                        50,  -1,  -1,  -1, -1,   //
                        17,  85,  120, -1, -1,   //
                        137, 200, 160, -1, -1};
  return inputs;
}

// Our own pages of one layer, in a scattered order.
StatusOr<Place> OwnPages(const Format& element, std::byte* pool) {
  const KvFormat format = {
      .element = element, .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = kPageSize};
  Place place = {.view = KvLayerView(format, pool, format.LayerBytes()), .tables = {}};
  std::vector<int32_t> pages, ends, all;
  std::vector<int32_t> starts = {0};
  int32_t next = 0;
  for (const int32_t length : kLengths) {
    for (int32_t page = 0; page * kPageSize < length; ++page) pages.push_back((next++ * 5 + 3) % 16);
    starts.push_back(static_cast<int32_t>(pages.size()));
    ends.push_back((length - 1) % kPageSize + 1);
    all.push_back(length);
  }
  TM_ASSIGN_OR_RETURN(place.tables, FlashInferTables(starts, pages, ends, kPageSize, /*num_pages=*/16));
  std::vector<int32_t> append = {0};
  for (const int32_t length : all) append.push_back(append.back() + length);
  TM_RETURN_IF_ERROR(AddAppendSlots(append, kPageSize, &place.tables));
  return place;
}

// Slot of a sequence's position, as the operator's inputs say it.
int64_t SlotAt(const OpenPplInputs& inputs, int32_t mode, int32_t b, int32_t position) {
  if (mode == 0) return inputs.cachestarts[static_cast<size_t>(b)] + position;
  const size_t columns = inputs.cachestarts.size() / kBatch;
  return inputs.cachestarts[static_cast<size_t>(b) * columns + static_cast<size_t>(position / kPageSize)] +
         position % kPageSize;
}

// The vector of a half (0: keys), slot and head of the layer, by the layout's shape.
int64_t VectorAt(int32_t layout, int64_t half, int64_t slot, int64_t head) {
  switch (layout) {
    case 0:  // (T, L, 2, H)
      return ((slot * kLayers + kLayer) * 2 + half) * kKvHeads + head;
    case 1:  // (L, T, 2, H)
      return ((kLayer * kCacheTokens + slot) * 2 + half) * kKvHeads + head;
    case 2:  // (L, 2, T, H)
      return ((kLayer * 2 + half) * kCacheTokens + slot) * kKvHeads + head;
    default:  // (L, 2, H, T)
      return ((kLayer * 2 + half) * kKvHeads + head) * kCacheTokens + slot;
  }
}

// Our own pages of one layer as the host has them, after the append.
struct OwnRows {
  KvLayerView view;
  HostPageTables tables;

  // What a buffer of poison is when the rows are in it: numbers, or their scales.
  std::vector<std::byte> InLayout(int32_t layout, int32_t mode, bool scales) const {
    const int64_t bytes = scales ? view.format.element.CompanionBytes(kHeadDim) : view.format.VectorBytes();
    std::vector<std::byte> buffer = Poison(kLayers * 2 * kCacheTokens * kKvHeads * bytes);
    const OpenPplInputs inputs = InputsOf(mode);
    size_t row = 0;
    for (int32_t b = 0; b < kBatch; ++b) {
      for (int32_t position = 0; position < kLengths[b]; ++position, ++row) {
        const int64_t page = tables.slots[row] / kPageSize, slot = SlotAt(inputs, mode, b, position);
        const auto offset = static_cast<int32_t>(tables.slots[row] % kPageSize);
        for (int32_t head = 0; head < kKvHeads; ++head) {
          const std::byte* const halves[] = {
              scales ? view.scale.Key(page, head, offset) : view.Key(page, head, offset),
              scales ? view.scale.Value(page, head, offset) : view.Value(page, head, offset)};
          for (int64_t half = 0; half < 2; ++half)
            std::copy_n(halves[half], bytes, buffer.data() + VectorAt(layout, half, slot, head) * bytes);
        }
      }
    }
    return buffer;
  }
};

std::vector<std::byte> Downloaded(const DeviceBytes& memory, int64_t bytes) {
  std::vector<std::byte> host(static_cast<size_t>(bytes));
  memory.Download(host.data(), bytes);
  return host;
}

struct MachineKind {
  const char* name;
  Machine (*make)();
  Machine (
      *make_own)();  // that attends over our own pages by the kernels that the other has for foreign ones
  std::vector<RowKind> rows;
};

Machine OnTheCpu() { return MakeMachine("cpu").value(); }
Machine OnTheEmulator() { return MakeMachine("emulator").value(); }
// Whose own kernels take no such views: those of all devices do.
Machine OnAnEmulatedHopper() {
  Machine machine = MakeMachine("emulator").value();
  machine.backend = MakeHopperCudaTestBackend();
  return machine;
}

constexpr RowKind kBf16Rows = {"bf16", DType::kBf16};
constexpr RowKind kInt8Rows = {"int8", DType::kF32, 8, 16}, kInt4Rows = {"int4", DType::kF32, 4, 32};
constexpr RowKind kInt8RowsByF32 = {"int8, f32 scales", DType::kF32, 8, 64, DType::kF32};

class OpenPplAttention : public testing::TestWithParam<MachineKind> {};
INSTANTIATE_TEST_SUITE_P(
    Machines, OpenPplAttention,
    testing::Values(
        MachineKind{
            "Cpu",
            OnTheCpu,
            OnTheCpu,
            {{"f32", DType::kF32}, {"f16", DType::kF16}, kBf16Rows, kInt8Rows, kInt8RowsByF32, kInt4Rows}},
        MachineKind{
            "Emulator", OnTheEmulator, OnTheEmulator, {kBf16Rows, kInt8Rows, kInt8RowsByF32, kInt4Rows}},
        MachineKind{"EmulatedHopper", OnAnEmulatedHopper, OnTheEmulator, {kBf16Rows, kInt8Rows}}),
    [](const auto& info) { return info.param.name; });

TEST_P(OpenPplAttention, GivesThroughEachLayoutWhatItGivesOverOurOwnPages) {
  Machine machine = GetParam().make(), own_machine = GetParam().make_own();
  const Rows rows = DrawRows();
  for (const RowKind& kind : GetParam().rows) {
    for (const int32_t window : {0, 20}) {
      const StatusOr<Format> row =
          OpenPplRowFormat(AttributesOf(kind, 0, 0), ShapeOf(kind), kind.plain, kind.scales);
      ASSERT_TRUE(row.ok()) << row.status();
      const KvFormat own_format = {
          .element = *row, .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = kPageSize};
      const std::vector<std::byte> own_poison = Poison(16 * own_format.LayerBytes());
      const DeviceBytes own_bytes(own_machine, own_poison.data(), std::ssize(own_poison));
      const StatusOr<Place> own = OwnPages(*row, own_bytes.data());
      ASSERT_TRUE(own.ok()) << own.status();
      const StatusOr<AttentionResult> want = AppendAndAttend(own_machine, *own, rows, window);
      ASSERT_TRUE(want.ok()) << want.status();
      std::vector<std::byte> own_host = Downloaded(own_bytes, std::ssize(own_poison));
      const OwnRows own_rows = {.view = KvLayerView(own_format, own_host.data(), own_format.LayerBytes()),
                                .tables = own->tables};

      for (int32_t layout = 0; layout < 4; ++layout) {
        for (const int32_t mode : {0, 1}) {
          SCOPED_TRACE(testing::Message() << kind.name << ", window " << window << ", cache_layout " << layout
                                          << ", cache_mode " << mode);
          const OpenPplAttributes attributes = AttributesOf(kind, layout, mode);
          const OpenPplShape shape = ShapeOf(kind);
          const int64_t vectors = kLayers * 2 * kCacheTokens * kKvHeads;
          const std::vector<std::byte> numbers = Poison(vectors * row->Bytes(kHeadDim)),
                                       companions = Poison(vectors * row->CompanionBytes(kHeadDim));
          const DeviceBytes cache(machine, numbers.data(), std::ssize(numbers));
          std::optional<DeviceBytes> scale;
          if (shape.has_scale) scale.emplace(machine, companions.data(), std::ssize(companions));
          const StatusOr<KvLayerView> view =
              OpenPplView(attributes, shape, *row, cache.data(), scale ? scale->data() : nullptr);
          ASSERT_TRUE(view.ok()) << view.status();
          const StatusOr<HostPageTables> tables = OpenPplTables(attributes, InputsOf(mode), shape);
          ASSERT_TRUE(tables.ok()) << tables.status();
          const StatusOr<AttentionResult> got =
              AppendAndAttend(machine, {.view = *view, .tables = *tables}, rows, window);
          ASSERT_TRUE(got.ok()) << got.status();
          EXPECT_EQ(got->out, want->out);
          EXPECT_EQ(got->lse, want->lse);
          EXPECT_TRUE(Downloaded(cache, std::ssize(numbers)) == own_rows.InLayout(layout, mode, false));
          if (!scale) continue;
          EXPECT_TRUE(Downloaded(*scale, std::ssize(companions)) == own_rows.InLayout(layout, mode, true));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tramontane::kv_vectors
