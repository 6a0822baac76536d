// Races inside a block: every CUDA thread of the emulator is a fiber of ThreadSanitizer, and only barriers
// order what threads of a block do, so a missing barrier is reported whatever order the threads happened to
// run in. Built with ThreadSanitizer only; shapes are tiny, since it slows everything by a factor of thirty.
// Values are checked elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/decode_pages.h"
#include "kernels/cuda/decode_weight.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/sampling.h"

extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace tramontane::cuda {
namespace {

using emulator::LaneOrder;
constexpr LaneOrder kOrders[] = {LaneOrder::kForward, LaneOrder::kReverse, LaneOrder::kRandom};

void InOrder(LaneOrder order) { emulator::CurrentSettings() = {.order = order, .seed = 5}; }

// ---- what must be reported ----------------------------------------------------------------------

// The thread before writes what the thread behind reads.
template <bool kBarrier>
TM_KERNEL void PassOn(float* out) {
  auto* shared = reinterpret_cast<float*>(SharedBytes());
  shared[ThreadX()] = static_cast<float>(ThreadX());
  if (kBarrier) SyncThreads();
  if (ThreadX() > 0) StoreGlobal(out + ThreadX(), shared[ThreadX() - 1]);
}

// Two tiles through one buffer, without a barrier before the second overwrites the first.
template <bool kBarrier>
TM_KERNEL void Refill(const float* in, float* out) {
  auto* shared = reinterpret_cast<float*>(SharedBytes());
  float sum = 0.0f;
  for (int tile = 0; tile < 2; ++tile) {
    if (ThreadX() < 16) CopyAsync16(shared + ThreadX() * 4, in + tile * 64 + ThreadX() * 4, 16);
    CopyCommit();
    CopyWait<0>();
    SyncThreads();
    sum += shared[63 - ThreadX()];
    if (kBarrier) SyncThreads();
  }
  StoreGlobal(out + ThreadX(), sum);
}

// A shuffle moves values between lanes, and orders no memory.
TM_KERNEL void OrderedByAShuffleOnly(float* out) {
  auto* shared = reinterpret_cast<float*>(SharedBytes());
  shared[LaneId()] = 1.0f;
  const float value = ShuffleXor(2.0f, 1);
  StoreGlobal(out + ThreadX(), value + shared[LaneId() ^ 1]);
}

template <typename Kernel, typename... Arguments>
void Launch64(LaneOrder order, Kernel kernel, Arguments... arguments) {
  InOrder(order);
  EXPECT_EQ(TM_LAUNCH(kernel, Dim3(), Dim3{64}, 64 * sizeof(float), nullptr, arguments...), 0);
}

// A fork of a process with fibers would be blind: the detector stops looking there. So the planted faults
// start anew.
class CudaRaceDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(CudaRaceDeathTest, AMissingBarrierIsReportedInEveryOrder) {
  std::vector<float> out(64);
  for (const LaneOrder order : kOrders) {
    Launch64(order, PassOn<true>, out.data());
    EXPECT_DEATH(Launch64(order, PassOn<false>, out.data()), "data race(.|\n)*PassOn");
  }
}

TEST_F(CudaRaceDeathTest, ATileOverwrittenWhileOthersReadItIsReported) {
  const std::vector<float> in(128, 1.0f);
  std::vector<float> out(64);
  for (const LaneOrder order : kOrders) {
    Launch64(order, Refill<true>, in.data(), out.data());
    EXPECT_DEATH(Launch64(order, Refill<false>, in.data(), out.data()), "data race(.|\n)*Refill");
  }
}

TEST_F(CudaRaceDeathTest, AShuffleIsNoBarrier) {
  std::vector<float> out(64);
  EXPECT_DEATH(
      {
        InOrder(LaneOrder::kForward);
        (void)TM_LAUNCH(OrderedByAShuffleOnly, Dim3(), Dim3{32}, 32 * sizeof(float), nullptr, out.data());
      },
      "data race(.|\n)*OrderedByAShuffleOnly");
}

// ---- what must be silent: every kernel ----------------------------------------------------------

class CudaRaceTest : public testing::TestWithParam<LaneOrder> {
 protected:
  void SetUp() override { InOrder(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaRaceTest, testing::ValuesIn(kOrders),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

// Two sequences: one whose keys are split, one short; `tokens` queries each. `sinks`: of each row, which go
// by the kernel by row, as do quantised pages. `latent`: lanes of a value, in latent pages. `sharing`: the
// short one is nearly as long, and lists the other's pages.
void RunAttentionOf(int32_t tokens, int32_t tile_rows, int32_t window, int32_t sinks = 0,
                    const Format& element = DType::kBf16, bool hopper = false, int32_t latent = 0,
                    bool sharing = false) {
  constexpr int32_t kPage = 16, kGroup = 2;
  // A few more than of a tile that stays whole.
  const int32_t keys = (kMinSplitTiles + SplitCost(tile_rows)) * kKeyTile + kPage, pages = keys / kPage + 1;
  const int32_t dim = hopper || tile_rows == kWideTileRows ? 64 : 32;
  KvLayerView kv;
  const KvFormat format = {
      .element = element, .kv_heads = 1, .head_dim = dim, .page_size = kPage, .latent_value_dim = latent};
  std::vector<std::byte> pool(static_cast<size_t>(pages * format.PageBytes(1)));
  kv = KvLayerView(format, pool.data(), format.PageBytes(1));
  std::vector<int32_t> page_indices(static_cast<size_t>(pages));
  for (int32_t i = 0; i < pages; ++i) page_indices[static_cast<size_t>(i)] = pages - 1 - i;
  const std::vector<int32_t> first_entry = {0, sharing ? 0 : pages - 1}, kv_base = {0, 0},
                             kv_end = {keys, sharing ? keys - 1 : 9}, qo_indptr = {0, tokens, 2 * tokens};
  constexpr int32_t kTarget = 8;
  const int32_t bound =
      SharingItemBound(AttentionItemBound(2 * tokens, 2, kGroup, tile_rows, 1, kTarget), 2, window);
  std::vector<AttentionSharers> sharers(2);
  std::vector<AttentionShare> shares(2);
  if (sharing) {
    ASSERT_EQ(FindAttentionSharers({.table = {.page_indices = page_indices.data(),
                                              .first_entry = first_entry.data(),
                                              .kv_base = kv_base.data(),
                                              .kv_end = kv_end.data()},
                                    .qo_indptr = qo_indptr.data(),
                                    .batch = 2,
                                    .page_size = kPage,
                                    .window = window,
                                    .group = kGroup,
                                    .least_tiles = 1,
                                    .sharers = sharers.data()},
                                   nullptr),
              0);
    ASSERT_EQ(sharers[0].count, 2);
  }
  std::vector<AttentionItem> items(static_cast<size_t>(bound));
  std::vector<AttentionMerge> merges(items.size());
  AttentionWork work{};
  ASSERT_EQ(PlanAttention({.kv_base = kv_base.data(),
                           .kv_end = kv_end.data(),
                           .qo_indptr = qo_indptr.data(),
                           .batch = 2,
                           .window = window,
                           .group = kGroup,
                           .tile_rows = tile_rows,
                           .kv_heads = 1,
                           .target_blocks = kTarget,
                           .max_items = bound,
                           .items = items.data(),
                           .merges = merges.data(),
                           .work = &work,
                           .sharers = sharing ? sharers.data() : nullptr,
                           .shares = shares.data()},
                          nullptr),
            0);
  ASSERT_EQ(work.merges > 0, window == 0);
  const std::vector<uint16_t> query(static_cast<size_t>(2 * tokens * kGroup * dim));
  std::vector<uint16_t> out(query.size());
  const auto slots = static_cast<size_t>(work.partials * tile_rows);
  std::vector<float> partial_out(slots * static_cast<size_t>(dim)), partial_lse(slots),
      lse(static_cast<size_t>(2 * tokens * kGroup));
  AttentionRunParams run{};
  run.query = query.data();
  run.out = out.data();
  run.query_stride = run.out_stride = kGroup * dim;
  run.kv = kv;
  run.table = {.page_indices = page_indices.data(),
               .first_entry = first_entry.data(),
               .kv_base = kv_base.data(),
               .kv_end = kv_end.data()};
  run.qo_indptr = qo_indptr.data();
  run.items = items.data();
  run.merges = merges.data();
  run.work = &work;
  run.shares = shares.data();
  run.partial_out = partial_out.data();
  run.partial_lse = partial_lse.data();
  run.lse = lse.data();
  run.window = window;
  run.group = kGroup;
  run.tile_rows = tile_rows;
  run.max_items = bound;
  std::vector<int32_t> parts_done(static_cast<size_t>(2 * AttentionCountBound(1, kTarget, 2)));
  run.parts_done = parts_done.data();
  run.scale = 0.2f;
  if (latent > 0) {
    ASSERT_EQ(RunLatentAttention({.run = run, .mask = {}}, nullptr), 0);
    return;
  }
  if (hopper) {
    HopperAttentionParams params{};
    params.run = run;
    params.blocks = 2;
    ASSERT_EQ(MakePoolMap(kv, &params.pool), 0);
    ASSERT_EQ(tile_rows == kHopperPrefillRows ? RunHopperPrefill(params, nullptr)
                                              : RunHopperDecode(params, nullptr),
              0);
    return;
  }
  if (sinks == 0 && element == DType::kBf16) {
    ASSERT_EQ(RunAttention(run, nullptr), 0);
    return;
  }
  const std::vector<int32_t> len(static_cast<size_t>(2 * tokens), sinks), left(len.size());
  AttentionByRowParams by_row{};
  by_row.run = run;
  if (sinks > 0) {
    by_row.sinks = {.len = len.data(),
                    .left = left.data(),
                    .query_position = left.data(),
                    .query = MakeTensor(const_cast<uint16_t*>(query.data()), DType::kBf16, 2 * tokens,
                                        int64_t{kGroup} * dim)};
  }
  ASSERT_EQ(RunAttentionByRow(by_row, nullptr), 0);
}

TEST_P(CudaRaceTest, AttentionByRowIsSilent) {
  RunAttentionOf(1, 16, 0, 4);
  RunAttentionOf(9, 16, 20, 70);
  RunAttentionOf(9, 16, 20, 4, Format::WithScalesApart(DType::kInt8, 3));
  RunAttentionOf(1, 16, 0, 0, Format::BareFp8());
}

// Two sequences of several pages, listed and decoded; the first one's rows see its last page alone.
TEST_P(CudaRaceTest, PagesThatAreDecodedAreSilent) {
  for (const Format& element : {Format::WithScalesApart(DType::kInt4, 3), Format::BareFp8()}) {
    constexpr int32_t kPages = 7;
    const KvFormat format = {.element = element, .kv_heads = 2, .head_dim = 32, .page_size = 4};
    const KvFormat bf16 = DecodedFormat(format);
    std::vector<std::byte> pool(static_cast<size_t>(kPages * format.PageBytes(1)));
    std::vector<std::byte> decoded(static_cast<size_t>(kPages * bf16.PageBytes(1)));
    const std::vector<int32_t> page_indices = {6, 5, 4, 3, 2, 1, 0}, first_entry = {0, 3}, kv_base = {0, 0},
                               kv_end = {12, 15}, qo_indptr = {0, 2, 11};
    std::vector<int32_t> sources(kPages), entries(kPages), firsts(2), count(1);
    const PageListing listing = {sources.data(), entries.data(), firsts.data(), count.data()};
    ASSERT_EQ(LaunchListPages({.table = {.page_indices = page_indices.data(),
                                         .first_entry = first_entry.data(),
                                         .kv_base = kv_base.data(),
                                         .kv_end = kv_end.data()},
                               .qo_indptr = qo_indptr.data(),
                               .batch = 2,
                               .window = 2,
                               .listing = listing,
                               .divisor = PageDivisor(format.page_size)},
                              nullptr),
              0);
    ASSERT_EQ(count[0], 1 + 3);
    ASSERT_EQ(LaunchDecodePages({.kv = KvLayerView(format, pool.data(), format.PageBytes(1)),
                                 .decoded = KvLayerView(bf16, decoded.data(), bf16.PageBytes(1)),
                                 .listing = listing,
                                 .most_pages = kPages,
                                 .multiprocessors = 1},
                                nullptr),
              0);
  }
}

TEST_P(CudaRaceTest, LatentAttentionIsSilent) {
  RunAttentionOf(1, 16, 0, 0, DType::kBf16, false, 24);
  RunAttentionOf(9, 16, 20, 0, DType::kBf16, false, 32);
}

TEST_P(CudaRaceTest, AttentionIsSilent) {
  RunAttentionOf(1, 16, 0);
  RunAttentionOf(1, 16, 20);
  RunAttentionOf(9, kLargeTileRows, 0);
  RunAttentionOf(9, kWideTileRows, 0);
}

TEST_P(CudaRaceTest, AttentionOfSharersIsSilent) {
  RunAttentionOf(1, 16, 0, 0, DType::kBf16, false, 0, true);
  RunAttentionOf(1, 16, 0, 0, Format::BareFp8(), false, 0, true);
  RunAttentionOf(1, kHopperDecodeRows, 0, 0, DType::kBf16, true, 0, true);
}

TEST_P(CudaRaceTest, HopperPrefillIsSilent) {
  RunAttentionOf(9, kHopperPrefillRows, 0, 0, DType::kBf16, true);
  RunAttentionOf(9, kHopperPrefillRows, 20, 0, DType::kBf16, true);
}

TEST_P(CudaRaceTest, HopperDecodeIsSilent) {
  RunAttentionOf(1, kHopperDecodeRows, 0, 0, DType::kBf16, true);
  RunAttentionOf(1, kHopperDecodeRows, 20, 0, DType::kBf16, true);
}

TEST_P(CudaRaceTest, SmallLinearIsSilent) {
  constexpr int32_t kIn = 296, kOut = 16;  // blocks of 32, and part of one
  const std::vector<uint16_t> x(16 * kIn), weight(kOut * kIn);
  const std::vector<float> norm(kIn, 1.0f);
  std::vector<uint16_t> out(16 * kOut);
  for (const int32_t rows : {3, 16}) {
    for (const auto& [prologue, epilogue] :
         {std::pair{Prologue::kNone, Epilogue::kAddResidual}, {Prologue::kRmsNorm, Epilogue::kSwiGlu}}) {
      SmallLinearParams p{};
      p.x = x.data();
      p.norm_weight = norm.data();
      p.weight = weight.data();
      p.out = out.data();
      p.x_stride = kIn;
      p.out_stride = kOut;
      p.rows = rows;
      p.in_features = kIn;
      p.out_features = kOut;
      p.prologue = prologue;
      p.epilogue = epilogue;
      p.out_dtype = DType::kBf16;
      ASSERT_EQ(LaunchSmallLinear(p, nullptr), 0);
    }
  }
}

// A type of each kind of scales and bits: few rows with and without the norm, tiles of several steps, the
// embedding.
TEST_P(CudaRaceTest, WeightsInBlocksAreSilent) {
  for (const DType type : {DType::kQ8_0, DType::kQ5_1, DType::kQ6K}) {
    const int32_t in = type == DType::kQ6K ? 256 : 224;
    constexpr int32_t kOut = 32;
    const std::vector<std::byte> weight(static_cast<size_t>(UnitsBytes(type, kOut, in)));
    const std::vector<uint16_t> x(static_cast<size_t>(20 * in));
    const std::vector<float> norm(static_cast<size_t>(in), 1.0f);
    std::vector<uint16_t> out(20 * 256);
    SmallLinearParams few{};
    few.x = x.data();
    few.norm_weight = norm.data();
    few.weight = weight.data();
    few.out = out.data();
    few.x_stride = in;
    few.out_stride = kOut;
    few.rows = 3;
    few.in_features = in;
    few.out_features = kOut;
    few.prologue = Prologue::kRmsNorm;
    few.epilogue = Epilogue::kSwiGlu;
    few.out_dtype = DType::kBf16;
    few.weight_format = type;
    ASSERT_EQ(LaunchSmallLinear(few, nullptr), 0);
    TileLinearParams many{};
    many.weights[0] = weight.data();
    many.x = x.data();
    many.out = out.data();
    many.x_stride = in;
    many.out_stride = kOut;
    many.rows = 20;
    many.places_of_a_row = 1;
    many.in_features = in;
    many.out_features = kOut;
    many.epilogue = Epilogue::kAddResidual;
    many.out_dtype = DType::kBf16;
    many.weight_format = type;
    ASSERT_EQ(LaunchTileLinear(many, nullptr), 0);
    std::vector<uint16_t> decoded(static_cast<size_t>(kOut * in));
    ASSERT_EQ(
        LaunchDecodeWeight(
            {.weight = weight.data(), .out = decoded.data(), .rows = kOut, .in_features = in, .format = type},
            nullptr),
        0);
    const std::vector<int32_t> ids = {17, 0};
    ASSERT_EQ(LaunchEmbed({ids.data(), weight.data(), out.data(), 256, 2, in, type}, nullptr), 0);
  }
}

// Each form of the products: by pair, by expert, by tiles with several steps of k.
TEST_P(CudaRaceTest, MoeIsSilent) {
  constexpr int32_t kHidden = 288, kInner = 32, kExperts = 3, kPerToken = 2;
  const std::vector<float> norm(kHidden, 1.0f);
  std::vector<float> router(kExperts * kHidden);
  for (size_t i = 0; i < router.size(); ++i) router[i] = static_cast<float>(i * 7919 % 101) * 0.01f;
  const std::vector<uint16_t> gate_up(2 * kInner * kHidden), down(kHidden * kInner);
  for (const int32_t rows : {3, 9, 20}) {
    const auto count = static_cast<size_t>(rows);
    std::vector<uint16_t> x(count * kHidden, 0x3f80), normalised(x.size()), inner(count * kPerToken * kInner);
    std::vector<float> shares(count * kPerToken), outer(shares.size() * kHidden);
    std::vector<int32_t> chosen(shares.size()), order(shares.size());
    const int32_t pairs = rows * kPerToken, max_tiles = MoeTileBound(pairs, kExperts);
    std::vector<MoeTile> tiles(static_cast<size_t>(max_tiles));
    ASSERT_EQ(LaunchMoeRoute({x.data(), norm.data(), router.data(), normalised.data(), chosen.data(),
                              shares.data(), nullptr, kHidden, rows, kHidden, kExperts, kPerToken, 1e-5f},
                             nullptr),
              0);
    ASSERT_EQ(
        LaunchMoeGroup({chosen.data(), order.data(), tiles.data(), pairs, kExperts, max_tiles}, nullptr), 0);
    // Columns in another order, rows where they lie.
    std::vector<int32_t> columns(kHidden);
    std::iota(columns.rbegin(), columns.rend(), 0);
    MoeOrderParams reorder{};
    std::fill_n(reorder.orders, kExperts, columns.data());
    reorder.x = outer.data();
    reorder.y = outer.data();
    reorder.chosen = chosen.data();
    reorder.pairs = pairs;
    reorder.pairs_of_a_row = 1;
    reorder.width = kHidden;
    ASSERT_EQ(LaunchMoeOrder(reorder, nullptr), 0);
    MoeGemmParams p{};
    std::fill_n(p.weights, kExperts, static_cast<const void*>(gate_up.data()));
    p.x = normalised.data();
    p.out = inner.data();
    p.chosen = chosen.data();
    if (!MoeIsSmall(rows, kHidden, kInner)) {
      p.order = order.data();
      p.tiles = tiles.data();
      p.max_tiles = max_tiles;
    }
    p.rows = rows;
    p.pairs = pairs;
    p.pairs_of_a_row = kPerToken;
    p.experts = kExperts;
    p.in_features = kHidden;
    p.out_features = 2 * kInner;
    p.out_kind = MoeOut::kSwiGlu;
    ASSERT_EQ(LaunchMoeGemm(p, nullptr), 0);
    std::fill_n(p.weights, kExperts, static_cast<const void*>(down.data()));
    p.x = inner.data();
    p.out = outer.data();
    p.pairs_of_a_row = 1;
    p.in_features = kInner;
    p.out_features = kHidden;
    p.out_kind = MoeOut::kF32;
    ASSERT_EQ(LaunchMoeGemm(p, nullptr), 0);
    ASSERT_EQ(LaunchMoeCombine(
                  {outer.data(), shares.data(), x.data(), nullptr, kHidden, rows, kHidden, kPerToken, true},
                  nullptr),
              0);
  }
}

TEST_P(CudaRaceTest, PointwiseKernelsAreSilent) {
  constexpr int32_t kWidth = 264, kHeadDim = 8;
  const std::vector<uint16_t> x(2 * kWidth);
  std::vector<uint16_t> y(2 * kWidth);
  const std::vector<float> weight(kWidth);
  const std::vector<int32_t> ids = {1, 0}, positions = {5, 6}, pairs = {0, 1};
  ASSERT_EQ(LaunchEmbed({ids.data(), x.data(), y.data(), kWidth, 2, kWidth}, nullptr), 0);
  ASSERT_EQ(LaunchRmsNorm({x.data(), nullptr, weight.data(), y.data(), kWidth, 2, kWidth, 1e-5f}, nullptr),
            0);
  ASSERT_EQ(LaunchSwiGlu({x.data(), y.data(), kWidth, 1, kWidth}, nullptr), 0);
  const std::vector<double> frequency(kHeadDim / 2, 0.5);
  std::vector<float> cos_sin(2 * kHeadDim);
  ASSERT_EQ(LaunchRopeTable({positions.data(), 2, frequency.data(), kHeadDim / 2, cos_sin.data()}, nullptr),
            0);
  KvLayerView kv;
  kv = KvLayerView({.element = DType::kBf16, .kv_heads = 2, .head_dim = kHeadDim, .page_size = 4});
  kv.page_bytes = kv.format.PageBytes(1);
  std::vector<std::byte> pool(static_cast<size_t>(2 * kv.page_bytes));
  kv.pool = pool.data();
  std::vector<uint16_t> qkv(2 * 8 * kHeadDim);
  const std::vector<int64_t> slots = {3, -1};
  ASSERT_EQ(LaunchRopeAppend({MakeTensor(qkv.data(), DType::kBf16, 2, 8 * kHeadDim), cos_sin.data(),
                              RotaryStyle::kHalfSplit, 4, kv, slots.data()},
                             nullptr),
            0);
  ASSERT_EQ(LaunchCopyPages({pool.data(), kv.page_bytes, pairs.data(), 1}, nullptr), 0);
  std::vector<int32_t> scattered(2);
  ASSERT_EQ(LaunchScatter({pairs.data(), 1, scattered.data()}, nullptr), 0);
}

// A greedy row, one with every filter, mask and adjustment and one of which more stay than are listed, by one
// block a row and by several, and then the first two's tokens handed on.
TEST_P(CudaRaceTest, SamplingIsSilent) {
  constexpr int32_t kVocab = 700;
  std::vector<float> logits(3 * kVocab), adjusted(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 101) * 0.1f;
  std::vector<SamplingRow> rows(3);
  rows[0].temperature = 0.0f;
  rows[1].top_k = 50;
  rows[1].top_p = 0.8f;
  rows[1].min_p = 0.01f;
  rows[1].top_logprobs = 3;
  rows[1].adjust_end = 1;
  rows[1].mask_row = 0;
  rows[2].top_p = 0.9f;
  const std::vector<LogitAdjust> adjusts = {{.token = 5, .bias = 1.0f}};
  const std::vector<uint32_t> masks((kVocab + 31) / 32, 0xfffffff0u);
  std::vector<SampleRecord> records(3);
  std::vector<TokenLogprob> top(3 * kMaxTopLogprobs);
  SampleParams call;
  call.logits = MakeTensor(logits.data(), DType::kF32, 3, kVocab);
  call.rows = rows.data();
  call.adjusts = adjusts.data();
  call.masks = masks.data();
  call.records = records.data();
  call.top = top.data();
  ASSERT_EQ(LaunchSample({call, adjusted.data()}, nullptr), 0);
  std::vector<std::byte> split(static_cast<size_t>(SplitSampleBytes()));
  ASSERT_EQ(LaunchSample({call, adjusted.data(), 3, split.data()}, nullptr), 0);
  const std::vector<int32_t> pairs = {0, 1, 1, 0};
  std::vector<int32_t> token_ids(2);
  ASSERT_EQ(LaunchAdvance({records.data(), pairs.data(), 2, token_ids.data()}, nullptr), 0);
}

}  // namespace
}  // namespace tramontane::cuda
