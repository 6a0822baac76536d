// Quantised pages that are decoded for calls of many rows: which pages, what they hold then, and that
// attention has the bits that it has over pages of bf16 with the same numbers. On the emulator in every
// build, on a GPU in bench/gpu_check. That it is near its definition is cuda_by_row_test's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/decode_pages.h"
#include "tests/support/cuda_device.h"
#include "tests/support/paged_kv_fixture.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

constexpr uint16_t kNan = 0x7fff;
constexpr DType kQuantised[] = {DType::kInt8, DType::kInt4, DType::kFp8E4M3};

struct PagesCase {
  PagedKvShape shape;
  std::vector<PagedSpan> spans;
  std::vector<int32_t> queries;
  int32_t group = 2;
  int32_t window = 0;
  std::vector<float> fp8_scales = {};  // [2, kv_heads]; none: 1
  int64_t shared = 0;                  // all list the first one's pages up to there
};

std::unique_ptr<PagedKvFixture> MakeKv(const PagesCase& c) {
  auto kv = std::make_unique<PagedKvFixture>(c.shape, c.spans);
  kv->FillRandom(3);
  for (int32_t b = 1; b < kv->batch(); ++b) kv->ShareUpTo(c.shared, b, 0);
  kv->SetQueries(c.queries);
  return kv;
}

// A number of the pages as attention takes it: times its scale in f32, rounded to bf16.
float NumberAt(const PagesCase& c, const PagedKvFixture& kv, KvHalf half, int32_t b, int64_t position,
               int32_t head, int32_t d) {
  auto number = static_cast<float>(kv.Get(half, b, position, head, d));
  if (!c.fp8_scales.empty()) {
    number *= c.fp8_scales[static_cast<size_t>((half == KvHalf::kKey ? 0 : c.shape.kv_heads) + head)];
  }
  return Bf16ToFloat(FloatToBf16(number));
}

PagesCase DrawCase(std::mt19937& random) {
  const auto draw = [&random](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  PagesCase c;
  c.shape.dtype = kQuantised[draw(0, 2)];
  c.shape.kv_heads = draw(1, 3);
  c.shape.head_dim = 32 * draw(1, 4);
  c.shape.page_size = std::array{1, 4, 8, 16, 32}[static_cast<size_t>(draw(0, 4))];
  c.shape.order = draw(0, 1) == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  c.shape.group_log2 = draw(3, c.shape.head_dim == 128 ? 7 : 5);
  c.shape.rings = draw(0, 1) == 0;
  c.window = draw(0, 1) == 0 ? 0 : draw(1, 60);
  if (c.shape.dtype == DType::kFp8E4M3 && draw(0, 1) == 0) {
    for (int32_t i = 0; i < 2 * c.shape.kv_heads; ++i) c.fp8_scales.push_back(0.3f + 0.11f * draw(0, 7));
  }
  for (int32_t sequences = draw(1, 5); sequences > 0; --sequences) {
    const int64_t end = draw(1, 200);
    const auto count = static_cast<int32_t>(std::min<int64_t>(end, draw(0, 2) == 0 ? draw(0, 1) : 60));
    const int64_t seen = FirstVisible(end - count, c.window);
    c.spans.push_back({seen - seen % c.shape.page_size, end});
    c.queries.push_back(count);
  }
  // A table may list more than is seen: with a step in flight pages leave a step later.
  if (draw(0, 1) == 0) c.spans[0].kv_base = 0;
  return c;
}

std::string NameOf(const PagesCase& c) {
  return std::string(DTypeName(c.shape.dtype)) + ", " + std::to_string(c.shape.kv_heads) + " heads of " +
         std::to_string(c.shape.head_dim) + ", pages of " + std::to_string(c.shape.page_size) +
         (c.shape.order == KvOrder::kHnd ? "" : " (nhd)") + (c.shape.rings ? " in rings" : "") + ", window " +
         std::to_string(c.window);
}

class CudaDecodedPagesTest : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaDecodedPagesTest, testing::ValuesIn(ThreadOrders()),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

// A call's tables on the device.
struct DeviceTables {
  DeviceArray<int32_t> page_indices, first_entry, kv_base, kv_end, page_mask, qo_indptr;
  PageTableView view;

  explicit DeviceTables(const PagedKvFixture& kv)
      : DeviceTables(kv.Table(), static_cast<size_t>(kv.listed_pages()), kv.qo_indptr(),
                     static_cast<size_t>(kv.batch())) {}
  DeviceTables(const PageTableView& table, size_t entries, const int32_t* indptr, size_t batch)
      : page_indices({table.page_indices, table.page_indices + entries}),
        first_entry({table.first_entry, table.first_entry + batch}),
        kv_base({table.kv_base, table.kv_base + batch}),
        kv_end({table.kv_end, table.kv_end + batch}),
        page_mask(table.page_mask == nullptr
                      ? std::vector<int32_t>()
                      : std::vector<int32_t>(table.page_mask, table.page_mask + batch)),
        qo_indptr({indptr, indptr + batch + 1}),
        view{.page_indices = page_indices.data(),
             .first_entry = first_entry.data(),
             .page_mask = table.page_mask == nullptr ? nullptr : page_mask.data(),
             .kv_base = kv_base.data(),
             .kv_end = kv_end.data(),
             .listed_pages = table.listed_pages} {}
};

// The pages of each sequence from the first that a row sees, one behind the other; and in them, found by the
// tables that attention gets, every number from there to the sequence's end.
TEST_P(CudaDecodedPagesTest, HoldTheNumbersThatTheyStandForInTheOrderOfTheList) {
  std::mt19937 random(TestSeed());
  for (int64_t round = ScaledCount(60, 10); round > 0; --round) {
    const PagesCase c = DrawCase(random);
    SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(TestSeed()) + ": " + NameOf(c));
    const auto kv = MakeKv(c);
    const DeviceTables tables(*kv);
    const auto most_pages = static_cast<size_t>(kv->held_pages());
    const std::vector<int32_t> unlisted(most_pages, -1), of_sequences(static_cast<size_t>(kv->batch()), -1);
    const DeviceArray<int32_t> sources(unlisted), page_indices(unlisted), first_entry(of_sequences),
        count(std::vector<int32_t>{-1});
    const cuda::PageListing listing = {.sources = sources.data(),
                                       .page_indices = page_indices.data(),
                                       .first_entry = first_entry.data(),
                                       .count = count.data()};
    ASSERT_EQ(cuda::LaunchListPages({.table = tables.view,
                                     .qo_indptr = tables.qo_indptr.data(),
                                     .batch = kv->batch(),
                                     .window = c.window,
                                     .listing = listing,
                                     .divisor = cuda::PageDivisor(c.shape.page_size)},
                                    nullptr),
              0);
    int32_t pages = 0;
    const std::vector<int32_t> first_entries = first_entry.Get(), listed_sources = sources.Get(),
                               entries = page_indices.Get();
    for (int32_t b = 0; b < kv->batch(); ++b) {
      const PagedSpan& span = c.spans[static_cast<size_t>(b)];
      const int64_t first = std::max(span.kv_base, FirstVisible(kv->QueryBegin(b), c.window));
      if (kv->QueryCount(b) == 0) continue;
      for (int64_t number = first / c.shape.page_size; number <= (span.kv_end - 1) / c.shape.page_size;
           ++number) {
        const int64_t position = std::max(number * c.shape.page_size, span.kv_base);
        ASSERT_EQ(first_entries[static_cast<size_t>(b)] + number, pages);
        ASSERT_EQ(entries[static_cast<size_t>(pages)], pages);
        ASSERT_EQ(listed_sources[static_cast<size_t>(pages)], kv->Slot(b, position) / c.shape.page_size);
        ++pages;
      }
    }
    ASSERT_EQ(count.Get().front(), pages);

    const DeviceArray<std::byte> pool(std::vector<std::byte>(kv->pool(), kv->pool() + kv->pool_bytes()));
    const DeviceArray<float> fp8_scales(c.fp8_scales);
    KvLayerView view = kv->View(pool.data());
    if (!c.fp8_scales.empty()) view.scale = KvScaleView::OfFp8(fp8_scales.data(), c.shape.kv_heads);
    // As a buffer that others laid out, whose strides alone say where rows lie.
    if (random() % 3 == 0) {
      view.format.order = c.shape.order == KvOrder::kHnd ? KvOrder::kNhd : KvOrder::kHnd;
    }
    const KvFormat format = cuda::DecodedFormat(view.format);
    const auto numbers = most_pages * static_cast<size_t>(format.LayerBytes()) / sizeof(uint16_t);
    const DeviceArray<uint16_t> decoded(std::vector<uint16_t>(numbers, kNan));
    const KvLayerView to(format, reinterpret_cast<std::byte*>(decoded.data()), format.LayerBytes());
    ASSERT_EQ(cuda::LaunchDecodePages({.kv = view,
                                       .decoded = to,
                                       .listing = listing,
                                       .most_pages = kv->held_pages(),
                                       .multiprocessors = 1},
                                      nullptr),
              0);
    std::vector<uint16_t> got = decoded.Get();
    const KvLayerView here(format, reinterpret_cast<std::byte*>(got.data()), format.LayerBytes());
    for (int32_t b = 0; b < kv->batch(); ++b) {
      if (kv->QueryCount(b) == 0) continue;
      const PagedSpan& span = c.spans[static_cast<size_t>(b)];
      int64_t position = std::max(span.kv_base, FirstVisible(kv->QueryBegin(b), c.window));
      for (; position < span.kv_end; ++position) {
        const int64_t page = first_entries[static_cast<size_t>(b)] + position / c.shape.page_size;
        const int32_t offset = OffsetInPage(position, c.shape.page_size);
        for (int32_t head = 0; head < c.shape.kv_heads; ++head) {
          for (const KvHalf half : {KvHalf::kKey, KvHalf::kValue}) {
            const auto* const vector = reinterpret_cast<const uint16_t*>(
                half == KvHalf::kKey ? here.Key(page, head, offset) : here.Value(page, head, offset));
            for (int32_t d = 0; d < c.shape.head_dim; ++d) {
              ASSERT_EQ(Bf16ToFloat(vector[d]), NumberAt(c, *kv, half, b, position, head, d))
                  << "sequence " << b << " position " << position << " head " << head << " number " << d;
            }
          }
        }
      }
    }
    for (size_t i = static_cast<size_t>(pages * format.LayerBytes()) / sizeof(uint16_t); i < numbers; ++i) {
      ASSERT_EQ(got[i], kNan) << "a page that nobody lists";
    }
  }
}

// Outputs and lse of one call on a device's backend.
struct Attended {
  std::vector<uint16_t> out;
  std::vector<float> lse;
};

Attended Attend(const PagesCase& c, const PagedKvFixture& kv, bool hopper) {
  const BackendPtr backend = hopper ? MakeHopperCudaTestBackend() : MakeCudaTestBackend();
  const int32_t heads = c.group * c.shape.kv_heads, width = heads * c.shape.head_dim;
  EXPECT_EQ(backend->Reserve(kv.Maxima(heads)), OpCode::kOk) << backend->last_error();
  std::vector<void*> memory;
  const auto upload = [&](const auto* values, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(*values));
    memory.push_back(backend->Allocate(bytes));
    EXPECT_EQ(backend->Upload(memory.back(), values, bytes), OpCode::kOk);
    EXPECT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
    return memory.back();
  };
  const auto ints = [&](const int32_t* values, int64_t count) {
    return static_cast<int32_t*>(upload(values, count));
  };
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> query(static_cast<size_t>(kv.tokens() * width));
  for (uint16_t& bits : query) bits = FloatToBf16(normal(random));
  Attended attended = {std::vector<uint16_t>(query.size(), kNan),
                       std::vector<float>(static_cast<size_t>(kv.tokens() * heads), std::nanf(""))};
  const PageTableView table = kv.Table();
  AttentionParams params;
  params.query = MakeTensor(upload(query.data(), std::ssize(query)), DType::kBf16, kv.tokens(), width);
  params.out =
      MakeTensor(upload(attended.out.data(), std::ssize(attended.out)), DType::kBf16, kv.tokens(), width);
  params.lse = static_cast<float*>(upload(attended.lse.data(), std::ssize(attended.lse)));
  params.kv = kv.View(static_cast<std::byte*>(upload(kv.pool(), kv.pool_bytes())));
  if (!c.fp8_scales.empty() && params.kv.format.element == Format::BareFp8()) {
    params.kv.scale = KvScaleView::OfFp8(
        static_cast<float*>(upload(c.fp8_scales.data(), std::ssize(c.fp8_scales))), c.shape.kv_heads);
  }
  params.table = {.page_indices = ints(table.page_indices, kv.listed_pages()),
                  .first_entry = ints(table.first_entry, kv.batch()),
                  .page_mask = table.page_mask == nullptr ? nullptr : ints(table.page_mask, kv.batch()),
                  .kv_base = ints(table.kv_base, kv.batch()),
                  .kv_end = ints(table.kv_end, kv.batch()),
                  .listed_pages = table.listed_pages};
  params.qo_indptr = ints(kv.qo_indptr(), kv.batch() + 1);
  params.batch = kv.batch();
  params.query_heads = heads;
  params.window = c.window;
  params.scale = 1.0f / std::sqrt(static_cast<float>(c.shape.head_dim));
  EXPECT_EQ(backend->Attention(params), OpCode::kOk) << backend->last_error();
  backend->Download(attended.out.data(), params.out.data,
                    std::ssize(attended.out) * static_cast<int64_t>(sizeof(uint16_t)));
  backend->Download(attended.lse.data(), params.lse,
                    std::ssize(attended.lse) * static_cast<int64_t>(sizeof(float)));
  EXPECT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
  for (void* allocated : memory) backend->Free(allocated);
  return attended;
}

// Pages of bf16 that hold what those of the case stand for, at other places of a pool.
std::unique_ptr<PagedKvFixture> AsBf16(const PagesCase& c, const PagedKvFixture& kv) {
  PagesCase plain = c;
  plain.shape.dtype = DType::kBf16;
  plain.shape.seed = 9;
  auto as_bf16 = MakeKv(plain);
  for (int32_t b = 0; b < kv.batch(); ++b) {
    const PagedSpan& span = c.spans[static_cast<size_t>(b)];
    for (int64_t position = span.kv_base; position < span.kv_end; ++position) {
      for (int32_t head = 0; head < c.shape.kv_heads; ++head) {
        for (const KvHalf half : {KvHalf::kKey, KvHalf::kValue}) {
          std::vector<float> vector;
          for (int32_t d = 0; d < c.shape.head_dim; ++d) {
            vector.push_back(NumberAt(c, kv, half, b, position, head, d));
          }
          as_bf16->SetVector(half, b, position, head, vector);
        }
      }
    }
  }
  return as_bf16;
}

void ExpectTheBitsOfBf16Pages(const PagesCase& c, bool hopper) {
  SCOPED_TRACE(NameOf(c) + (hopper ? " on Hopper" : ""));
  const auto kv = MakeKv(c);
  const auto as_bf16 = AsBf16(c, *kv);
  const auto boxes = BoxesCopied();
  const Attended got = Attend(c, *kv, hopper);
  const bool boxed = c.shape.head_dim % 64 == 0 && c.shape.page_size >= 8;
  if (boxes) {
    EXPECT_EQ(*BoxesCopied() > *boxes, hopper && boxed) << "other kernels ran";
  }
  const Attended want = Attend(c, *as_bf16, hopper);
  for (size_t i = 0; i < want.out.size(); ++i) {
    ASSERT_EQ(got.out[i], want.out[i]) << "element " << i;
    ASSERT_FALSE(std::isnan(Bf16ToFloat(got.out[i]))) << "element " << i;
  }
  for (size_t i = 0; i < want.lse.size(); ++i) ASSERT_EQ(got.lse[i], want.lse[i]) << "lse " << i;
}

// Prompts and chunks behind others, alone and beside decodes, sequences without a token, and pages that two
// of them list.
TEST_P(CudaDecodedPagesTest, GiveAttentionTheBitsOfBf16Pages) {
  PagesCase c;
  c.spans = {{0, 150}, {0, 41}, {0, 0}, {0, 300}, {0, 130}};
  c.queries = {60, 41, 0, 40, 1};
  c.shared = 32;
  c.shape.kv_heads = 2;
  int turn = 0;
  for (const DType dtype : kQuantised) {
    c.shape.dtype = dtype;
    c.fp8_scales = dtype == DType::kFp8E4M3 ? std::vector{0.5f, 0.7f, 1.1f, 0.9f} : std::vector<float>();
    for (const auto& [head_dim, window] : {std::pair{64, 0}, {128, 50}}) {
      c.shape.head_dim = head_dim;
      c.shape.order = turn % 2 == 0 ? KvOrder::kHnd : KvOrder::kNhd;
      c.shape.rings = turn++ % 3 == 0;
      c.shape.group_log2 = 5;
      c.window = window;
      c.spans[3].kv_base = window > 0 ? 64 : 0;
      for (const bool hopper : {false, true}) {
        if (hopper && !DeviceIsHopper()) continue;
        ExpectTheBitsOfBf16Pages(c, hopper);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(CudaDecodedPagesTest, GiveAttentionTheBitsOfBf16PagesWhateverIsDrawn) {
  std::mt19937 random(TestSeed() + 1);
  for (int64_t round = ScaledCount(30, 5); round > 0; --round) {
    PagesCase c = DrawCase(random);
    const auto sequences = static_cast<int64_t>(c.spans.size());
    // More than tiles of 16 rows hold.
    c.spans.push_back({0, 40 * sequences + 40});
    c.queries.push_back(static_cast<int32_t>(20 * sequences + 20));
    c.group = static_cast<int32_t>(1 + random() % 4);
    SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(TestSeed()) + " round " + std::to_string(round));
    ExpectTheBitsOfBf16Pages(c, DeviceIsHopper() && random() % 2 == 0);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tramontane
