#include "tests/kernels/cuda_attention_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/hopper_attention.h"
#include "tests/support/cuda_device.h"

namespace tramontane {
namespace {

template <typename T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b, int32_t count) {
  return std::memcmp(a.data(), b.data(), sizeof(T) * static_cast<size_t>(count)) == 0;
}

std::vector<int32_t> Copied(const int32_t* values, int32_t count) { return {values, values + count}; }

AttentionOutcome Run(const AttentionCase& c, const PagedKvFixture& kv, const std::vector<uint16_t>& query,
                     KvLayerView view) {
  const int32_t width = c.heads() * c.kv.head_dim, batch = kv.batch();
  const PageTableView table = kv.Table();
  const DeviceArray<int32_t> page_indices(Copied(table.page_indices, kv.listed_pages())),
      first_entry(Copied(table.first_entry, batch)), kv_base(Copied(table.kv_base, batch)),
      kv_end(Copied(table.kv_end, batch)),
      page_mask(table.page_mask == nullptr ? std::vector<int32_t>() : Copied(table.page_mask, batch)),
      qo_indptr(Copied(kv.qo_indptr(), batch + 1));

  AttentionOutcome outcome;
  outcome.max_items =
      cuda::AttentionItemBound(kv.tokens(), batch, c.group, c.tile_rows, c.kv.kv_heads, c.target_blocks);
  const bool sharing = c.least_tiles_saved > 0;
  if (sharing) outcome.max_items = cuda::SharingItemBound(outcome.max_items, batch, c.window);
  const auto bound = static_cast<size_t>(outcome.max_items);
  const DeviceArray<cuda::AttentionItem> items{std::vector<cuda::AttentionItem>(bound)};
  const DeviceArray<cuda::AttentionMerge> merges{std::vector<cuda::AttentionMerge>(bound)};
  const DeviceArray<cuda::AttentionWork> work{std::vector<cuda::AttentionWork>(1)};
  std::vector<int32_t> host_len, host_left, host_position;
  for (const RowOfSinks& row : c.sinks) {
    host_len.push_back(row.len);
    host_left.push_back(row.left);
    host_position.push_back(row.query_position);
  }
  const DeviceArray<int32_t> sink_len(host_len), left(host_left), query_position(host_position);
  cuda::AttentionPlanParams plan{.kv_base = kv_base.data(),
                                 .kv_end = kv_end.data(),
                                 .qo_indptr = qo_indptr.data(),
                                 .batch = batch,
                                 .window = c.window,
                                 .group = c.group,
                                 .tile_rows = c.tile_rows,
                                 .kv_heads = c.kv.kv_heads,
                                 .target_blocks = c.target_blocks,
                                 .max_items = outcome.max_items,
                                 .items = items.data(),
                                 .merges = merges.data(),
                                 .work = work.data()};
  if (!c.sinks.empty()) plan.left = left.data();
  plan.by_mask = !c.mask.empty();
  const PageTableView device_table = {.page_indices = page_indices.data(),
                                      .first_entry = first_entry.data(),
                                      .page_mask = c.kv.rings ? page_mask.data() : nullptr,
                                      .kv_base = kv_base.data(),
                                      .kv_end = kv_end.data()};
  const auto sequences = static_cast<size_t>(sharing ? batch : 0);
  const DeviceArray<cuda::AttentionSharers> sharers{std::vector<cuda::AttentionSharers>(sequences)};
  const DeviceArray<cuda::AttentionShare> shares{std::vector<cuda::AttentionShare>(sequences)};
  cuda::AttentionSharersParams find{.table = device_table,
                                    .qo_indptr = qo_indptr.data(),
                                    .batch = batch,
                                    .page_size = c.kv.page_size,
                                    .window = c.window,
                                    .group = c.group,
                                    .least_tiles = c.least_tiles_saved,
                                    .sharers = sharers.data()};
  if (sharing) {
    EXPECT_EQ(cuda::FindAttentionSharers(find, nullptr), 0);
    outcome.sharers = sharers.Get();
    plan.sharers = sharers.data();
    plan.shares = shares.data();
  }
  EXPECT_EQ(cuda::PlanAttention(plan, nullptr), 0);
  outcome.work = work.Get().front();
  outcome.items = items.Get();
  outcome.merges = merges.Get();

  // The host twin gives identical lists.
  cuda::AttentionWork twin{};
  std::vector<cuda::AttentionItem> twin_items(bound);
  std::vector<cuda::AttentionMerge> twin_merges(bound);
  plan.kv_base = table.kv_base;
  plan.kv_end = table.kv_end;
  plan.qo_indptr = kv.qo_indptr();
  plan.items = twin_items.data();
  plan.merges = twin_merges.data();
  plan.work = &twin;
  if (!c.sinks.empty()) plan.left = host_left.data();
  std::vector<cuda::AttentionSharers> twin_sharers(sequences);
  std::vector<cuda::AttentionShare> twin_shares(sequences);
  if (sharing) {
    find.table = table;
    find.qo_indptr = kv.qo_indptr();
    find.sharers = twin_sharers.data();
    cuda::FindAttentionSharersOnHost(find);
    EXPECT_TRUE(SameBytes(outcome.sharers, twin_sharers, batch));
    plan.sharers = twin_sharers.data();
    plan.shares = twin_shares.data();
  }
  cuda::PlanAttentionOnHost(plan);
  EXPECT_EQ(std::memcmp(&twin, &outcome.work, sizeof(twin)), 0);
  EXPECT_LE(twin.items, outcome.max_items);
  int32_t max_merges = cuda::AttentionMergeBound(
      c.kv.kv_heads, c.target_blocks,
      c.mask.empty() ? cuda::AttentionKeyBound(c.window, c.group, c.tile_rows) : INT64_MAX);
  if (sharing) {
    max_merges = cuda::SharingMergeBound(max_merges, batch);
    EXPECT_LE(twin.partials, cuda::SharingPartialBound(c.kv.kv_heads, c.target_blocks, c.group, batch));
    EXPECT_TRUE(SameBytes(shares.Get(), twin_shares, batch));
  }
  EXPECT_LE(twin.merges, max_merges);
  EXPECT_TRUE(SameBytes(outcome.items, twin_items, twin.items));
  EXPECT_TRUE(SameBytes(outcome.merges, twin_merges, twin.merges));
  outcome.items.resize(static_cast<size_t>(twin.items));
  outcome.merges.resize(static_cast<size_t>(twin.merges));

  const float nan = std::nanf("");
  const auto slots = static_cast<size_t>(twin.partials) * static_cast<size_t>(c.kv.kv_heads * c.tile_rows);
  const auto tokens = static_cast<size_t>(kv.tokens());
  const DeviceArray<uint16_t> device_query(query),
      out(std::vector<uint16_t>(tokens * static_cast<size_t>(width), 0x7FFF));
  const DeviceArray<float> partial_out(std::vector<float>(slots * static_cast<size_t>(c.kv.head_dim), nan)),
      partial_lse(std::vector<float>(slots, nan)),
      lse(std::vector<float>(tokens * static_cast<size_t>(c.heads()), nan));
  const DeviceArray<int32_t> parts_done(std::vector<int32_t>(
      static_cast<size_t>(cuda::AttentionCountBound(c.kv.kv_heads, c.target_blocks, batch)) *
      (c.tile_rows == cuda::kHopperPrefillRows ? 2 : 1)));
  cuda::AttentionRunParams run{};
  run.query = device_query.data();
  run.out = out.data();
  run.query_stride = run.out_stride = width;
  run.kv = view;
  run.table = device_table;
  run.qo_indptr = qo_indptr.data();
  run.items = items.data();
  run.merges = merges.data();
  run.work = work.data();
  run.shares = sharing ? shares.data() : nullptr;
  run.partial_out = partial_out.data();
  run.partial_lse = partial_lse.data();
  run.parts_done = parts_done.data();
  run.lse = lse.data();
  run.window = c.window;
  run.group = c.group;
  run.tile_rows = c.tile_rows;
  run.max_items = outcome.max_items;
  run.scale = 1.0f / std::sqrt(static_cast<float>(c.kv.head_dim));
  const bool quantised = Format(c.kv.dtype).in_groups() || c.kv.dtype == DType::kFp8E4M3;
  if (c.hopper) {
    cuda::HopperAttentionParams hopper{};
    hopper.run = run;
    hopper.blocks = kHopperBlocks;
    EXPECT_EQ(cuda::MakePoolMap(view, &hopper.pool), 0);
    EXPECT_EQ(c.tile_rows == cuda::kHopperPrefillRows ? cuda::RunHopperPrefill(hopper, nullptr)
                                                      : cuda::RunHopperDecode(hopper, nullptr),
              0);
  } else if (c.sinks.empty() && c.mask.empty() && !quantised) {
    EXPECT_EQ(cuda::RunAttention(run, nullptr), 0);
  } else {
    const DeviceArray<uint8_t> mask(c.mask);
    const DeviceArray<int32_t> mask_indptr(std::vector<int32_t>{0, static_cast<int32_t>(c.mask.size())});
    const Tensor sink_query = MakeTensor(device_query.data(), DType::kBf16, kv.tokens(), width);
    cuda::AttentionByRowParams by_row{};
    by_row.run = run;
    if (!c.mask.empty()) by_row.mask = {.bits = mask.data(), .indptr = mask_indptr.data()};
    if (!c.sinks.empty()) {
      by_row.sinks = {.len = sink_len.data(),
                      .left = left.data(),
                      .query_position = query_position.data(),
                      .query = sink_query,
                      .windowed = c.sinks_windowed ? 1 : 0};
    }
    EXPECT_EQ(cuda::RunAttentionByRow(by_row, nullptr), 0);
  }
  for (const int32_t parts : parts_done.Get()) EXPECT_EQ(parts, 0) << "the next step would count from there";
  outcome.out = out.Get();
  outcome.lse = lse.Get();
  outcome.partial_out = partial_out.Get();
  outcome.partial_lse = partial_lse.Get();
  return outcome;
}

}  // namespace

void FillCase(const AttentionCase& c, PagedKvFixture* kv) {
  kv->FillRandom(3);
  for (const SharedPages& pages : c.shared) kv->ShareUpTo(pages.end, pages.sequence, pages.from);
  kv->SetQueries(c.queries);
}

double AttentionDouble(DType dtype, uint16_t bits) {
  return dtype == DType::kF16 ? F16ToFloat(bits) : Bf16ToFloat(bits);
}

std::vector<uint16_t> RandomQuery(const AttentionCase& c, int32_t tokens) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> query(static_cast<size_t>(tokens) * static_cast<size_t>(c.heads() * c.kv.head_dim));
  for (uint16_t& bits : query) {
    const float value = normal(random);
    bits = c.kv.dtype == DType::kF16 ? FloatToF16(value) : FloatToBf16(value);
  }
  return query;
}

AttentionOutcome RunAttentionCase(const AttentionCase& c, const PagedKvFixture& kv,
                                  const std::vector<uint16_t>& query) {
  const DeviceArray<std::byte> pool(std::vector<std::byte>(kv.pool(), kv.pool() + kv.pool_bytes()));
  return Run(c, kv, query, kv.View(pool.data()));
}

AttentionOutcome RunAttentionInPlace(const AttentionCase& c, const PagedKvFixture& kv,
                                     const std::vector<uint16_t>& query) {
  return Run(c, kv, query, kv.View());
}

PagedKvShape KvOf(int32_t kv_heads, int32_t head_dim, int32_t page_size, DType dtype, KvOrder order) {
  PagedKvShape shape;
  shape.dtype = dtype;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.page_size = page_size;
  shape.order = order;
  return shape;
}

}  // namespace tramontane
