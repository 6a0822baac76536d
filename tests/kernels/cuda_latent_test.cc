// Latent pages on the device, appended and attended over, against the definition in double precision: on the
// emulator in every build, on a GPU in bench/gpu_check.
//
// Tolerance: P and the output are rounded to bf16 once each, a split's part is f32, so |error| <= 4.5 u * max
// |v| with u = 2^-9, as in cuda_attention_test. The lse is f32 over scores of size 1.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/masks.h"
#include "tests/support/cuda_device.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

constexpr double kTolerance = 2.25 * 0x1p-8;
constexpr double kLseTolerance = 2e-4;

struct LatentCase {
  int32_t dim = 576;
  int32_t value_dim = 512;
  int32_t heads = 4;
  int32_t page_size = 16;
  int32_t window = 0;
  std::vector<int64_t> ends;       // [sequences] tokens
  std::vector<int32_t> queries;    // [sequences]
  std::vector<int64_t> base = {};  // [sequences] first position that is listed; none: 0
  double sees = 1.0;               // below 1: a mask shows each key with this chance
  bool rings = false;              // tables
};

class Latent {
 public:
  explicit Latent(const LatentCase& of) : of_(of), random_(TestSeed()) {
    const auto sequences = static_cast<int32_t>(of.ends.size());
    qo_indptr_ = {0};
    kv_indptr_ = {0};
    std::vector<int32_t> free(static_cast<size_t>(kSpare));
    for (int32_t b = 0; b < sequences; ++b) {
      qo_indptr_.push_back(qo_indptr_.back() + of.queries[Index(b)]);
      kv_base_.push_back(of.base.empty() ? 0 : static_cast<int32_t>(of.base[Index(b)]));
      const int64_t listed = of.ends[Index(b)] - kv_base_.back();
      kv_indptr_.push_back(kv_indptr_.back() + static_cast<int32_t>(PagesFor(listed, of.page_size)));
    }
    page_indices_.resize(static_cast<size_t>(kv_indptr_.back() + kSpare));
    std::iota(page_indices_.begin(), page_indices_.end(), 0);
    std::shuffle(page_indices_.begin(), page_indices_.end(), random_);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>* numbers, int64_t count) {
      for (int64_t i = 0; i < count; ++i) numbers->push_back(FloatToBf16(normal(random_)));
    };
    fill(&query_, int64_t{tokens()} * of.heads * of.dim);
    for (int32_t b = 0; b < sequences; ++b) fill(&rows_.emplace_back(), of.ends[Index(b)] * of.dim);
    if (of.sees >= 1.0) return;
    for (int32_t b = 0; b < sequences; ++b) {
      mask_indptr_.push_back(static_cast<int32_t>(bits_.size()));
      const int64_t pairs = of.queries[Index(b)] * (of.ends[Index(b)] - kv_base_[Index(b)]);
      bits_.resize(bits_.size() + Index((pairs + 7) / 8));
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const bool seen = std::uniform_real_distribution<>()(random_) < of.sees;
        if (seen) bits_[Index(mask_indptr_.back() + pair / 8)] |= static_cast<uint8_t>(1 << pair % 8);
      }
    }
    mask_indptr_.push_back(static_cast<int32_t>(bits_.size()));
  }

  // Appends every row, attends, and compares both.
  void ExpectAsDefined() {
    const BackendPtr backend = MakeCudaTestBackend();
    StepMaxima maxima;
    maxima.tokens = static_cast<int32_t>(std::max<int64_t>(tokens(), AllRows()));
    maxima.sequences = batch();
    maxima.query_heads = of_.heads;
    maxima.kv_heads = 1;
    maxima.head_dim = of_.dim;
    maxima.context = *std::max_element(of_.ends.begin(), of_.ends.end());
    ASSERT_EQ(backend->Reserve(maxima), OpCode::kOk) << backend->last_error();
    const KvFormat format = {.element = DType::kBf16,
                             .kv_heads = 1,
                             .head_dim = of_.dim,
                             .page_size = of_.page_size,
                             .latent_value_dim = of_.value_dim};
    // Two layers in a page, of which the second is used; what nobody writes is NaN.
    const int64_t page_bytes = format.PageBytes(2);
    const std::vector<uint16_t> nans(Index(static_cast<int64_t>(page_indices_.size()) * page_bytes / 2),
                                     0x7fff);
    const DeviceArray<uint16_t> pool(nans);
    const KvLayerView view(format, reinterpret_cast<std::byte*>(pool.data()), page_bytes,
                           format.LayerBytes());
    Append(*backend, view);
    ExpectRows(pool.Get(), page_bytes, format);

    const DeviceArray<uint16_t> query(query_);
    const DeviceArray<uint16_t> out(
        std::vector<uint16_t>(Index(int64_t{tokens()} * of_.heads * of_.value_dim)));
    const DeviceArray<float> lse(std::vector<float>(Index(int64_t{tokens()} * of_.heads), 77.0f));
    std::vector<int32_t> entries, first_entry, page_mask, kv_end;
    for (int32_t b = 0; b < batch(); ++b) {
      const int32_t pages = kv_indptr_[Index(b) + 1] - kv_indptr_[Index(b)];
      const int32_t first_page = kv_base_[Index(b)] / of_.page_size;
      const auto begin = static_cast<int32_t>(entries.size());
      page_mask.push_back(of_.rings ? static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(pages))) - 1
                                    : -1);
      first_entry.push_back(of_.rings ? begin : begin - first_page);
      entries.resize(entries.size() + Index(of_.rings ? page_mask.back() + 1 : pages), -1);
      for (int32_t i = 0; i < pages; ++i) {
        entries[Index(first_entry.back() + ((first_page + i) & page_mask.back()))] =
            page_indices_[Index(kv_indptr_[Index(b)] + i)];
      }
      kv_end.push_back(static_cast<int32_t>(of_.ends[Index(b)]));
    }
    const DeviceArray<int32_t> page_indices(entries), first_entries(first_entry), page_masks(page_mask),
        kv_ends(kv_end), kv_base(kv_base_), qo_indptr(qo_indptr_), mask_indptr(mask_indptr_);
    const DeviceArray<uint8_t> bits(bits_);
    AttentionParams params;
    params.query = MakeTensor(query.data(), DType::kBf16, tokens(), int64_t{of_.heads} * of_.dim);
    params.out = MakeTensor(out.data(), DType::kBf16, tokens(), int64_t{of_.heads} * of_.value_dim);
    params.kv = view;
    params.table = {.page_indices = page_indices.data(),
                    .first_entry = first_entries.data(),
                    .page_mask = of_.rings ? page_masks.data() : nullptr,
                    .kv_base = kv_base.data(),
                    .kv_end = kv_ends.data()};
    params.qo_indptr = qo_indptr.data();
    params.batch = batch();
    params.query_heads = of_.heads;
    params.window = of_.window;
    params.scale = Scale();
    if (!bits_.empty()) params.mask = {.bits = bits.data(), .indptr = mask_indptr.data()};
    params.lse = lse.data();
    ASSERT_EQ(backend->Attention(params), OpCode::kOk) << backend->last_error();
    ASSERT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
    Compare(out.Get(), lse.Get());
  }

 private:
  static constexpr int64_t kSpare = 3;
  static size_t Index(int64_t i) { return static_cast<size_t>(i); }
  int32_t batch() const { return static_cast<int32_t>(of_.ends.size()); }
  int32_t tokens() const { return qo_indptr_.back(); }
  int64_t AllRows() const { return std::accumulate(of_.ends.begin(), of_.ends.end(), int64_t{0}); }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(of_.dim)); }
  int64_t SlotOfRow(int32_t b, int64_t position) const {
    const int64_t index = position - kv_base_[Index(b)];
    const int32_t page = page_indices_[Index(kv_indptr_[Index(b)] + index / of_.page_size)];
    return int64_t{page} * of_.page_size + index % of_.page_size;
  }

  // Each token's row behind two query heads, which are turned by nothing and stay as they are.
  void Append(Backend& backend, const KvLayerView& view) const {
    constexpr int32_t kHeads = 2;
    std::vector<uint16_t> qkv;
    std::vector<int64_t> slots;
    for (int32_t b = 0; b < batch(); ++b) {
      for (int64_t p = 0; p < of_.ends[Index(b)]; ++p) {
        qkv.insert(qkv.end(), Index(kHeads * of_.dim), FloatToBf16(0.5f));
        const auto row = rows_[Index(b)].begin() + p * of_.dim;
        qkv.insert(qkv.end(), row, row + of_.dim);
        slots.push_back(p < kv_base_[Index(b)] ? -1 : SlotOfRow(b, p));
      }
    }
    const DeviceArray<uint16_t> device_qkv(qkv);
    const DeviceArray<int64_t> device_slots(slots);
    RopeAppendParams params;
    params.qkv = MakeTensor(device_qkv.data(), DType::kBf16, std::ssize(slots), (kHeads + 1) * of_.dim);
    params.query_heads = kHeads;
    params.kv = view;
    params.slots = device_slots.data();
    ASSERT_EQ(backend.RopeAppend(params), OpCode::kOk) << backend.last_error();
    ASSERT_EQ(backend.WaitFence(backend.RecordFence()), OpCode::kOk);
    EXPECT_EQ(device_qkv.Get(), qkv);
  }

  // The bytes of the rows, and not one more.
  void ExpectRows(const std::vector<uint16_t>& pool, int64_t page_bytes, const KvFormat& format) const {
    std::vector<uint16_t> expected(pool.size(), 0x7fff);
    for (int32_t b = 0; b < batch(); ++b) {
      for (int64_t p = kv_base_[Index(b)]; p < of_.ends[Index(b)]; ++p) {
        const int64_t slot = SlotOfRow(b, p);
        const int64_t byte =
            slot / of_.page_size * page_bytes + format.LayerBytes() + slot % of_.page_size * of_.dim * 2;
        std::copy_n(rows_[Index(b)].begin() + p * of_.dim, of_.dim, expected.begin() + byte / 2);
      }
    }
    EXPECT_EQ(pool, expected);
  }

  bool Sees(int32_t b, int32_t i, int64_t key) const {
    if (!bits_.empty()) {
      const int64_t listed = of_.ends[Index(b)] - kv_base_[Index(b)];
      const int64_t pair = i * listed + key - kv_base_[Index(b)];
      return (bits_[Index(mask_indptr_[Index(b)] + pair / 8)] >> (pair % 8) & 1) != 0;
    }
    const int64_t position = of_.ends[Index(b)] - of_.queries[Index(b)] + i;
    return key <= position && (of_.window == 0 || key > position - of_.window);
  }

  void Compare(const std::vector<uint16_t>& out, const std::vector<float>& lse) const {
    for (int32_t b = 0; b < batch(); ++b) {
      const std::vector<uint16_t>& rows = rows_[Index(b)];
      const auto at = [&](int64_t key, int32_t d) {
        return double{Bf16ToFloat(rows[Index(key * of_.dim + d)])};
      };
      double most_value = 0;
      for (const uint16_t number : rows)
        most_value = std::max(most_value, std::abs(double{Bf16ToFloat(number)}));
      for (int32_t i = 0; i < of_.queries[Index(b)]; ++i) {
        for (int32_t head = 0; head < of_.heads; ++head) {
          const int64_t row = int64_t{qo_indptr_[Index(b)] + i} * of_.heads + head;
          std::vector<double> scores;
          std::vector<int64_t> seen;
          for (int64_t key = kv_base_[Index(b)]; key < of_.ends[Index(b)]; ++key) {
            if (!Sees(b, i, key)) continue;
            double score = 0;
            for (int32_t d = 0; d < of_.dim; ++d) {
              score += double{Bf16ToFloat(query_[Index(row * of_.dim + d)])} * at(key, d);
            }
            scores.push_back(score * double{Scale()});
            seen.push_back(key);
          }
          const double most = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
          double sum = 0;
          std::vector<double> expected(Index(of_.value_dim));
          for (size_t k = 0; k < scores.size(); ++k) {
            const double weight = std::exp(scores[k] - most);
            sum += weight;
            for (int32_t d = 0; d < of_.value_dim; ++d) expected[Index(d)] += weight * at(seen[k], d);
          }
          for (int32_t d = 0; d < of_.value_dim; ++d) {
            ASSERT_NEAR(Bf16ToFloat(out[Index(row * of_.value_dim + d)]),
                        scores.empty() ? 0 : expected[Index(d)] / sum, kTolerance * most_value)
                << "sequence " << b << " query " << i << " head " << head << " lane " << d;
          }
          if (scores.empty()) {
            ASSERT_EQ(lse[Index(row)], -INFINITY);
          } else {
            ASSERT_NEAR(lse[Index(row)], (most + std::log(sum)) / std::log(2.0), kLseTolerance);
          }
        }
      }
    }
  }

  const LatentCase of_;
  std::mt19937 random_;
  std::vector<int32_t> qo_indptr_, kv_indptr_, page_indices_, kv_base_, mask_indptr_;
  std::vector<uint16_t> query_;              // [tokens, heads, dim]
  std::vector<std::vector<uint16_t>> rows_;  // [sequences][end, dim]
  std::vector<uint8_t> bits_;
};

class CudaLatentTest : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }
  void TearDown() override { UseThreadOrder(ThreadOrder::kForward); }
  static void Expect(const LatentCase& of) {
    SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(TestSeed()) + ", rows of " +
                 std::to_string(of.dim) + ", heads " + std::to_string(of.heads));
    Latent(of).ExpectAsDefined();
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, CudaLatentTest, testing::ValuesIn(ThreadOrders()));

TEST_P(CudaLatentTest, DecodeAndPrefillAreAsDefined) {
  Expect({.ends = {1, 31, 32, 70}, .queries = {1, 1, 1, 1}});
  Expect({.heads = 3, .ends = {5, 37}, .queries = {5, 9}});
  Expect({.heads = 16, .page_size = 5, .ends = {33}, .queries = {2}});
}

TEST_P(CudaLatentTest, RowsOfOtherWidthsAreAsDefined) {
  for (const auto& [dim, value_dim] : std::vector<std::pair<int32_t, int32_t>>{
           {8, 8}, {48, 32}, {40, 24}, {72, 8}, {320, 256}, {512, 512}}) {
    Expect(
        {.dim = dim, .value_dim = value_dim, .heads = 5, .page_size = 4, .ends = {9, 40}, .queries = {9, 3}});
  }
}

TEST_P(CudaLatentTest, ManyHeadsOfOneRowAreAsDefined) {
  Expect({.dim = 96, .value_dim = 64, .heads = 128, .ends = {35, 3}, .queries = {1, 2}});
}

TEST_P(CudaLatentTest, AWindowAndATableThatHasRolledAreAsDefined) {
  Expect({.dim = 64, .value_dim = 48, .window = 7, .ends = {90, 20}, .queries = {6, 1}, .base = {64, 0}});
  Expect({.dim = 64,
          .value_dim = 48,
          .window = 7,
          .ends = {90, 23},
          .queries = {6, 1},
          .base = {64, 16},
          .rings = true});
  Expect({.dim = 64, .value_dim = 48, .window = 40, .ends = {130}, .queries = {33}});
}

TEST_P(CudaLatentTest, SplitsOfLongTextsAreJoined) {
  Expect({.dim = 32, .value_dim = 24, .heads = 2, .ends = {1500, 300}, .queries = {1, 1}});
}

TEST_P(CudaLatentTest, AMaskDecidesAlone) {
  Expect({.dim = 56, .value_dim = 40, .ends = {70, 9}, .queries = {4, 9}, .sees = 0.5});
  Expect({.dim = 56, .value_dim = 40, .ends = {9}, .queries = {9}, .sees = 0.05});  // some rows see nothing
}

TEST(CudaLatentLimits, AreToldByName) {
  const BackendPtr backend = MakeCudaTestBackend();
  StepMaxima maxima;
  maxima.tokens = maxima.sequences = maxima.query_heads = maxima.kv_heads = 1;
  maxima.context = 1;
  maxima.head_dim = 584;
  EXPECT_EQ(backend->Reserve(maxima), OpCode::kUnsupported);
  maxima.head_dim = 64;
  ASSERT_EQ(backend->Reserve(maxima), OpCode::kOk);
  alignas(16) uint16_t number = 0;
  int32_t len = 0;
  AttentionParams params;
  params.query = MakeTensor(&number, DType::kBf16, 1, 64);
  params.out = MakeTensor(&number, DType::kBf16, 1, 48);
  params.batch = params.query_heads = 1;
  KvFormat format = {.element = DType::kF16, .kv_heads = 1, .head_dim = 64, .latent_value_dim = 48};
  params.kv = KvLayerView(format, nullptr, format.PageBytes(1));
  EXPECT_EQ(backend->Attention(params), OpCode::kUnsupported);
  EXPECT_EQ(std::string(backend->last_error()), "latent pages of f16; the CUDA backend has those of bf16");
  format.element = DType::kBf16;
  params.kv = KvLayerView(format, nullptr, format.PageBytes(1));
  params.sinks.len = &len;
  EXPECT_EQ(backend->Attention(params), OpCode::kUnsupported);
  EXPECT_EQ(std::string(backend->last_error()), "rows that see sinks in latent pages have no kernel");
  for (const auto& [dim, value_dim] :
       std::vector<std::pair<int32_t, int32_t>>{{584, 512}, {576, 520}, {20, 16}, {24, 20}}) {
    format.head_dim = dim;
    format.latent_value_dim = value_dim;
    params.kv = KvLayerView(format, nullptr, format.PageBytes(1));
    EXPECT_EQ(backend->Attention(params), OpCode::kUnsupported);
    EXPECT_EQ(std::string(backend->last_error()),
              "latent rows of " + std::to_string(dim) + " lanes with values of " + std::to_string(value_dim) +
                  "; the CUDA backend takes multiples of 8 up to 576 and 512");
  }
  // What a lone kv head was reserved for is seen by its pages.
  params.sinks.len = nullptr;
  format.head_dim = 80;
  format.latent_value_dim = 0;
  params.query = MakeTensor(&number, DType::kBf16, 1, 80);
  params.out = MakeTensor(&number, DType::kBf16, 1, 80);
  params.kv = KvLayerView(format, nullptr, format.PageBytes(1));
  EXPECT_EQ(backend->Attention(params), OpCode::kUnsupported);
  EXPECT_EQ(
      std::string(backend->last_error()),
      "attention with heads of 80 and 1 query heads a kv head; the CUDA backend has 32, 64, 96 and 128, "
      "and 1 to 16");
}

}  // namespace
}  // namespace tramontane
