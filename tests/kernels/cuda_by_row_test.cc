// Attention whose rows see more than a window, against the definition in double precision: on the emulator in
// every build, on a GPU in bench/gpu_check.
//
// Tolerance: that of cuda_attention_test: P and the output are rounded to bf16 once each, a split's part once
// more, so |error| <= 4.5 u * max |v| with u = 2^-9.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "kernels/cuda/device_pages.h"
#include "kernels/masks.h"
#include "tests/support/cuda_device.h"
#include "tests/support/paged_kv_fixture.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

constexpr double kTolerance = 2.25 * 0x1p-8;
constexpr double kLseTolerance = 2e-4;
// Quantised keys and values are rounded to bf16 once more. Of values that is u; a score, whose products are
// off by u / sqrt(3) at random, is off by as much of the size of a score, which is 1, and hardly ever by ten
// times that, which moves weights by 2 u and the lse by 4 u * log2(e).
constexpr double kQuantisedTolerance = kTolerance + 3 * 0x1p-9;
constexpr double kQuantisedLseTolerance = kLseTolerance + 6 * 0x1p-9;

std::vector<uint16_t> RandomBf16(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  for (uint16_t& b : bits) b = FloatToBf16(normal(random));
  return bits;
}

// One row of the step: its own position and its numbers.
struct RowSinks {
  int32_t len = 0, left = 0, query_position = 0;
};

struct ByRowBatch {
  PagedKvShape shape;
  int32_t group = 1;
  int32_t window = 0;
  bool windowed = false;
  std::vector<int64_t> ends;     // [sequences]
  std::vector<int32_t> queries;  // [sequences]
  std::vector<RowSinks> rows;    // [tokens]; none: without sinks
  std::vector<int64_t> rolled;   // [sequences] positions from n_keep to here have left the table; 0: none
  std::vector<float> fp8_scales = {};  // [2, kv_heads] of pages in fp8; none: 1
  PackedMask mask = {};                // of all keys; empty: none
  RaggedMask sees = {};                // the same
  int32_t n_keep = 0;                  // sinks whose pages stay, where some have left
  // Sequences in front without sinks or a mask, as the call says, if there are any.
  int32_t plain = 0;
  bool hopper = false;   // a device of compute capability 9.0
  bool decodes = false;  // there is room for quantised pages that are decoded, where rows are many
};

// Whether row i of sequence b sees a key, and by which of its queries.
enum class Sight { kNot, kByQuery, kBySinkQuery };

class ByRow {
 public:
  explicit ByRow(const ByRowBatch& batch) : batch_(batch), kv_(batch.shape, Spans(batch)) {
    kv_.FillRandom(3);
    kv_.SetQueries(batch.queries);
    const int64_t numbers = int64_t{kv_.tokens()} * Columns();
    query_ = RandomBf16(numbers, 7);
    sink_query_ = RandomBf16(numbers, 8);
    MakeTable();
  }

  int64_t Columns() const { return int64_t{batch_.group} * batch_.shape.kv_heads * batch_.shape.head_dim; }
  const PagedKvFixture& kv() const { return kv_; }
  // Pages that sequence b lists apart, for its sinks.
  int32_t sink_pages(size_t b) const {
    return first_entry_[b] + kv_base_[b] / batch_.shape.page_size - sink_entry_[b];
  }

  // Runs on the device's backend, and compares.
  void ExpectAsDefined() {
    Run();
    Compare();
  }

  void Run() {
    const BackendPtr backend = batch_.hopper ? MakeHopperCudaTestBackend() : MakeCudaTestBackend();
    StepMaxima maxima = kv_.Maxima(batch_.group * batch_.shape.kv_heads);
    if (!batch_.decodes) maxima.quantised_pages = 0;
    ASSERT_EQ(backend->Reserve(maxima), OpCode::kOk) << backend->last_error();
    const auto upload = [&](const auto& values) {
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
      void* memory = backend->Allocate(bytes);
      EXPECT_EQ(backend->Upload(memory, values.data(), bytes), OpCode::kOk);
      EXPECT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);  // before `values` goes
      memory_.push_back(memory);
      return memory;
    };
    const auto ints = [&](const std::vector<int32_t>& values) {
      return static_cast<int32_t*>(upload(values));
    };
    const int32_t heads = batch_.group * batch_.shape.kv_heads;
    std::vector<int32_t> len, left, position;
    for (const RowSinks& row : batch_.rows) {
      len.push_back(row.len);
      left.push_back(row.left);
      position.push_back(row.query_position);
    }
    std::vector<uint16_t> out(query_.size(), kNan);
    std::vector<float> lse(static_cast<size_t>(kv_.tokens() * heads), std::nanf(""));
    AttentionParams params;
    params.query = MakeTensor(upload(query_), DType::kBf16, kv_.tokens(), Columns());
    params.out = MakeTensor(upload(out), DType::kBf16, kv_.tokens(), Columns());
    const std::vector<std::byte> pool(kv_.pool(), kv_.pool() + kv_.pool_bytes());
    params.kv = kv_.View(static_cast<std::byte*>(upload(pool)));
    if (!batch_.fp8_scales.empty()) {
      params.kv.scale =
          KvScaleView::OfFp8(static_cast<float*>(upload(batch_.fp8_scales)), batch_.shape.kv_heads);
    }
    params.table = {.page_indices = ints(page_indices_),
                    .first_entry = ints(first_entry_),
                    .kv_base = ints(kv_base_),
                    .kv_end = ints(kv_end_),
                    .listed_pages = kv_.held_pages()};
    if (batch_.n_keep > 0) params.table.sink_entry = ints(sink_entry_);
    params.qo_indptr = ints({kv_.qo_indptr(), kv_.qo_indptr() + kv_.batch() + 1});
    params.batch = kv_.batch();
    params.query_heads = heads;
    params.window = batch_.window;
    params.scale = 1.0f / std::sqrt(static_cast<float>(batch_.shape.head_dim));
    params.lse = static_cast<float*>(upload(lse));
    if (!batch_.rows.empty()) {
      params.sinks = {.len = ints(len),
                      .left = ints(left),
                      .query_position = ints(position),
                      .query = MakeTensor(upload(sink_query_), DType::kBf16, kv_.tokens(), Columns()),
                      .windowed = batch_.windowed ? 1 : 0};
    }
    if (!batch_.mask.bits.empty()) {
      params.mask = {.bits = static_cast<const uint8_t*>(upload(batch_.mask.bits)),
                     .indptr = ints(batch_.mask.indptr)};
    }
    params.plain = {.sequences = batch_.plain, .tokens = kv_.qo_indptr()[batch_.plain]};
    ASSERT_EQ(backend->Attention(params), OpCode::kOk) << backend->last_error();
    out_.resize(out.size());
    lse_.resize(lse.size());
    backend->Download(out_.data(), params.out.data, static_cast<int64_t>(out.size() * sizeof(uint16_t)));
    backend->Download(lse_.data(), params.lse, static_cast<int64_t>(lse.size() * sizeof(float)));
    ASSERT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
    if (batch_.plain > 0) {
      ExpectPlainAsAlone(*backend, params, static_cast<uint16_t*>(upload(std::vector(out.size(), kNan))));
    }
    for (void* memory : memory_) backend->Free(memory);
    memory_.clear();
  }

 private:
  static constexpr uint16_t kNan = 0x7fff;

  // The bits of a call of these sequences alone, without sinks and masks, into `out`: nothing behind them is
  // written.
  void ExpectPlainAsAlone(Backend& backend, AttentionParams params, uint16_t* out) const {
    params.batch = batch_.plain;
    params.query.rows = params.plain.tokens;
    params.out.data = out;
    params.sinks = {};
    params.mask = {};
    params.plain = {};
    params.lse = nullptr;
    ASSERT_EQ(backend.Attention(params), OpCode::kOk) << backend.last_error();
    std::vector<uint16_t> alone(out_.size());
    backend.Download(alone.data(), out, static_cast<int64_t>(alone.size() * sizeof(uint16_t)));
    ASSERT_EQ(backend.WaitFence(backend.RecordFence()), OpCode::kOk);
    const auto numbers = static_cast<size_t>(params.query.rows * Columns());
    for (size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(alone[i], i < numbers ? out_[i] : kNan) << i;
  }

  static std::vector<PagedSpan> Spans(const ByRowBatch& batch) {
    std::vector<PagedSpan> spans;
    for (const int64_t end : batch.ends) spans.push_back({0, end});
    return spans;
  }

  // The fixture's, with the pages of sinks in front where others have left.
  void MakeTable() {
    const PageTableView whole = kv_.Table();
    const int32_t page_size = batch_.shape.page_size;
    for (int32_t b = 0; b < kv_.batch(); ++b) {
      const int32_t* pages = whole.page_indices + whole.first_entry[b];
      const auto count = static_cast<int32_t>(PagesFor(whole.kv_end[b], page_size));
      const int64_t rolled = batch_.rolled.empty() ? 0 : batch_.rolled[static_cast<size_t>(b)];
      const auto gone = static_cast<int32_t>(rolled / page_size);
      const auto kept = gone == 0 ? 0 : static_cast<int32_t>(PagesFor(batch_.n_keep, page_size));
      sink_entry_.push_back(static_cast<int32_t>(page_indices_.size()));
      page_indices_.insert(page_indices_.end(), pages, pages + kept);
      first_entry_.push_back(static_cast<int32_t>(page_indices_.size()) - gone);
      page_indices_.insert(page_indices_.end(), pages + gone, pages + count);
      kv_base_.push_back(gone * page_size);
      kv_end_.push_back(whole.kv_end[b]);
    }
  }

  bool HasMask(size_t b) const {
    return !batch_.mask.bits.empty() && batch_.mask.indptr[b] < batch_.mask.indptr[b + 1];
  }

  // The definition: every key, one after the other.
  Sight SightOf(int32_t b, int32_t query, int64_t key, bool as_sink) const {
    if (HasMask(static_cast<size_t>(b))) {
      return !as_sink && batch_.sees.Sees(static_cast<size_t>(b), query, key) ? Sight::kByQuery : Sight::kNot;
    }
    const auto token = static_cast<size_t>(kv_.qo_indptr()[b] + query);
    const int64_t position = kv_.QueryBegin(b) + query;
    const auto within = [&](int64_t at) { return batch_.window == 0 || key > at - batch_.window; };
    if (key > position) return Sight::kNot;
    if (batch_.rows.empty()) return !as_sink && within(position) ? Sight::kByQuery : Sight::kNot;
    const RowSinks& row = batch_.rows[token];
    if (!as_sink) return key >= row.left && within(position) ? Sight::kByQuery : Sight::kNot;
    const bool near = !batch_.windowed || within(row.query_position);
    return key < row.len && near ? Sight::kBySinkQuery : Sight::kNot;
  }

  // Of a half of a kv head's vectors.
  double Fp8Scale(KvHalf half, int32_t kv_head) const {
    if (batch_.fp8_scales.empty()) return 1.0;
    return batch_
        .fp8_scales[static_cast<size_t>((half == KvHalf::kKey ? 0 : batch_.shape.kv_heads) + kv_head)];
  }

  void Compare() const {
    const int32_t dim = batch_.shape.head_dim, heads = batch_.group * batch_.shape.kv_heads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    const bool quantised = batch_.shape.dtype != DType::kBf16;
    const double tolerance = quantised ? kQuantisedTolerance : kTolerance;
    const double lse_tolerance = quantised ? kQuantisedLseTolerance : kLseTolerance;
    for (int32_t b = 0; b < kv_.batch(); ++b) {
      const std::vector<double> keys = kv_.All(KvHalf::kKey, b, 0), values = kv_.All(KvHalf::kValue, b, 0);
      const int64_t end = batch_.ends[static_cast<size_t>(b)];
      double most_value = 0;
      for (const double v : values) most_value = std::max(most_value, std::abs(v));
      for (int32_t i = 0; i < kv_.QueryCount(b); ++i) {
        const auto token = static_cast<size_t>(kv_.qo_indptr()[b] + i);
        for (int32_t head = 0; head < heads; ++head) {
          const size_t row = (token * static_cast<size_t>(heads) + static_cast<size_t>(head));
          const auto vector_of = [&](int64_t key) {
            return static_cast<size_t>((key * batch_.shape.kv_heads + head / batch_.group) * dim);
          };
          std::vector<double> scores;
          std::vector<int64_t> seen;
          for (const bool as_sink : {true, false}) {
            for (int64_t key = 0; key < end; ++key) {
              const Sight sight = SightOf(b, i, key, as_sink);
              if (sight == Sight::kNot) continue;
              const std::vector<uint16_t>& query = sight == Sight::kByQuery ? query_ : sink_query_;
              double score = 0;
              for (int32_t d = 0; d < dim; ++d) {
                const auto at = static_cast<size_t>(d);
                score += double{Bf16ToFloat(query[row * static_cast<size_t>(dim) + at])} *
                         keys[vector_of(key) + at];
              }
              scores.push_back(score * scale * Fp8Scale(KvHalf::kKey, head / batch_.group));
              seen.push_back(key);
            }
          }
          std::vector<double> expected(static_cast<size_t>(dim));
          double sum = 0;
          const double most = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
          for (size_t k = 0; k < scores.size(); ++k) {
            const double weight = std::exp(scores[k] - most);
            sum += weight;
            for (size_t d = 0; d < expected.size(); ++d)
              expected[d] += weight * values[vector_of(seen[k]) + d];
          }
          for (size_t d = 0; d < expected.size(); ++d) {
            const double value_scale = Fp8Scale(KvHalf::kValue, head / batch_.group);
            const double want = scores.empty() ? 0 : value_scale * expected[d] / sum;
            ASSERT_NEAR(Bf16ToFloat(out_[row * static_cast<size_t>(dim) + d]), want,
                        tolerance * value_scale * most_value)
                << "sequence " << b << " query " << i << " head " << head << " element " << d;
          }
          if (scores.empty()) {
            ASSERT_EQ(lse_[row], -INFINITY);
          } else {
            ASSERT_NEAR(lse_[row], (most + std::log(sum)) / std::log(2.0), lse_tolerance);
          }
        }
      }
    }
  }

  const ByRowBatch batch_;
  PagedKvFixture kv_;
  std::vector<uint16_t> query_, sink_query_, out_;
  std::vector<float> lse_;
  std::vector<int32_t> page_indices_, first_entry_, kv_base_, kv_end_, sink_entry_;
  std::vector<void*> memory_;
};

class CudaByRowTest : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaByRowTest, testing::ValuesIn(ThreadOrders()),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

ByRowBatch DrawShape(std::mt19937& random) {
  const auto draw = [&random](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  ByRowBatch batch;
  batch.shape.kv_heads = draw(1, 2);
  batch.shape.head_dim = 32 * draw(1, 4);
  batch.shape.page_size = std::array{1, 4, 16, 64}[static_cast<size_t>(draw(0, 3))];
  batch.shape.order = draw(0, 1) == 0 ? KvOrder::kHnd : KvOrder::kNhd;
  if (draw(0, 1) == 0) {
    batch.shape.dtype =
        std::array{DType::kFp8E4M3, DType::kInt8, DType::kInt4}[static_cast<size_t>(draw(0, 2))];
    batch.shape.group_log2 = draw(3, batch.shape.head_dim == 128 ? 7 : 5);
    if (batch.shape.dtype == DType::kFp8E4M3 && draw(0, 1) == 0) {
      for (int32_t i = 0; i < 2 * batch.shape.kv_heads; ++i)
        batch.fp8_scales.push_back(0.3f + 0.1f * static_cast<float>(draw(0, 7)));
    }
  }
  batch.group = draw(1, 5);
  for (int32_t sequences = draw(1, 3); sequences > 0; --sequences) {
    const int64_t end = draw(0, 3) == 0 ? draw(300, 900) : draw(1, 90);
    batch.ends.push_back(end);
    batch.queries.push_back(static_cast<int32_t>(std::min<int64_t>(end, draw(0, 1) == 0 ? 1 : draw(0, 30))));
  }
  return batch;
}

// A sequence from its position `after` on sees n_keep sinks and the newest of the others, with its sink query
// somewhere at or behind its own place.
void AddSinks(std::mt19937& random, ByRowBatch& batch) {
  batch.n_keep = static_cast<int32_t>(random() % 2 == 0 ? random() % 8 : random() % 150);
  batch.windowed = random() % 2 == 0;
  batch.window = std::array{0, 5, 40, 200}[random() % 4];
  const auto newest = static_cast<int32_t>(1 + random() % 100);
  const bool roll = batch.n_keep > 0 && random() % 2 == 0;
  for (size_t b = 0; b < batch.ends.size(); ++b) {
    const auto end = static_cast<int32_t>(batch.ends[b]);
    int32_t least_seen = end;
    for (int32_t position = end - batch.queries[b]; position < end; ++position) {
      const int32_t left = std::max(batch.n_keep, position - newest + 1);
      // Rows that everything is visible to have no sinks apart.
      const RowSinks row =
          position < batch.n_keep + newest
              ? RowSinks{0, 0, position}
              : RowSinks{batch.n_keep, left,
                         std::max(batch.n_keep, position - static_cast<int32_t>(random() % 9))};
      batch.rows.push_back(row);
      least_seen = std::min(least_seen, row.left);
    }
    const bool has_left = roll && batch.queries[b] > 0 && least_seen > batch.n_keep;
    batch.rolled.push_back(has_left ? least_seen / batch.shape.page_size * batch.shape.page_size : 0);
  }
}

TEST_P(CudaByRowTest, SinksAreWhatTheDefinitionSays) {
  std::mt19937 random(TestSeed());
  for (int64_t round = ScaledCount(40, 6); round > 0; --round) {
    SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << TestSeed() << " round " << round);
    ByRowBatch batch = DrawShape(random);
    AddSinks(random, batch);
    ByRow(batch).ExpectAsDefined();
    if (HasFatalFailure()) return;
  }
}

// More sinks than a tile of keys holds, their pages in front, beside a sequence without any; and keys that
// are split, of which the first alone takes them.
TEST_P(CudaByRowTest, ManySinksBesideASplitWindow) {
  ByRowBatch batch;
  batch.shape.kv_heads = 1;
  batch.shape.head_dim = 64;
  batch.group = 4;
  batch.ends = {1500, 20};
  batch.queries = {1, 3};
  batch.n_keep = 150;
  batch.rolled = {400, 0};
  batch.rows = {{150, 410, 1400}, {0, 0, 17}, {0, 0, 18}, {0, 0, 19}};
  ByRow run(batch);
  EXPECT_EQ(run.sink_pages(0), 10);
  run.ExpectAsDefined();
}

// Quantised pages under a window alone.
TEST_P(CudaByRowTest, QuantisedPagesAreWhatTheyStandFor) {
  std::mt19937 random(TestSeed() + 2);
  for (int64_t round = ScaledCount(40, 6); round > 0; --round) {
    SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << TestSeed() << " round " << round);
    ByRowBatch batch = DrawShape(random);
    if (batch.shape.dtype == DType::kBf16) continue;
    batch.decodes = random() % 2 == 0;
    batch.window = std::array{0, 1, 30, 200}[random() % 4];
    ByRow(batch).ExpectAsDefined();
    if (HasFatalFailure()) return;
  }
}

// Pages whose rows are copied asynchronously, and such as are not: scales of a whole head are 2 bytes, and in
// a page of one token numbers begin behind them.
TEST_P(CudaByRowTest, QuantisedRowsLieAtAnyMultipleOfTwoBytes) {
  struct Layout {
    int32_t page_size;
    int32_t group_log2;
    bool numbers_in_pieces, scales_in_words;
  };
  for (const Layout& layout :
       {Layout{16, 5, true, true}, {16, 7, true, false}, {1, 7, false, false}, {1, 5, false, true}}) {
    for (const DType dtype : {DType::kInt8, DType::kInt4}) {
      ByRowBatch batch;
      batch.shape.kv_heads = 1;
      batch.shape.head_dim = 128;
      batch.shape.page_size = layout.page_size;
      batch.shape.dtype = dtype;
      batch.shape.group_log2 = layout.group_log2;
      batch.group = 4;
      batch.ends = {150, 20};
      batch.queries = {1, 3};
      ByRow run(batch);
      const cuda::CodedRows rows = cuda::CodedRowsOf(run.kv().View());
      EXPECT_EQ(rows.numbers_in_pieces, layout.numbers_in_pieces) << DTypeName(dtype);
      EXPECT_EQ(rows.scales_in_words, layout.scales_in_words) << DTypeName(dtype);
      run.ExpectAsDefined();
    }
  }
}

// Of any density, rows that see nothing among them.
TEST_P(CudaByRowTest, AMaskAloneDecides) {
  std::mt19937 random(TestSeed() + 1);
  for (int64_t round = ScaledCount(40, 6); round > 0; --round) {
    SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << TestSeed() << " round " << round);
    ByRowBatch batch = DrawShape(random);
    const uint32_t density = std::array{0u, 1u, 50u, 100u}[random() % 4];
    batch.window = static_cast<int32_t>(random() % 3);  // says nothing
    const std::vector<int32_t> keys(batch.ends.begin(), batch.ends.end());
    batch.sees = MakeRaggedMask(batch.queries, keys, [&](size_t, int64_t query, int64_t) {
                   return query % 5 != 1 && random() % 100 < density;
                 }).value();
    batch.mask = PackSegments(batch.sees);
    if (batch.mask.bits.empty()) continue;  // no query
    ByRow(batch).ExpectAsDefined();
    if (HasFatalFailure()) return;
  }
}

// One sequence or two in front of others that see sinks, have a mask, or of which some have either, over
// pages of any kind, in decode, prompts and mixtures.
TEST_P(CudaByRowTest, PlainSequencesInFrontAreAttendedAsAlone) {
  std::mt19937 random(TestSeed() + 3);
  for (int64_t round = ScaledCount(60, 8); round > 0; --round) {
    SCOPED_TRACE(testing::Message() << "TRAMONTANE_TEST_SEED=" << TestSeed() << " round " << round);
    ByRowBatch batch = DrawShape(random);
    batch.plain = static_cast<int32_t>(1 + random() % 2);
    batch.hopper = DeviceIsHopper() && random() % 2 == 0;
    batch.decodes = random() % 2 == 0;
    const auto plain = static_cast<size_t>(batch.plain);
    for (size_t b = 0; b < plain; ++b) {
      const auto end = static_cast<int64_t>(random() % 3 == 0 ? 300 + random() % 400 : 1 + random() % 90);
      batch.ends.insert(batch.ends.begin(), end);
      batch.queries.insert(batch.queries.begin(),
                           static_cast<int32_t>(std::min<int64_t>(end, random() % 2 == 0 ? 1 : 20)));
    }
    const bool sinks = random() % 3 > 0, masks = !sinks || random() % 2 == 0;
    batch.window = std::array{0, 5, 40, 200}[random() % 4];
    if (sinks) {
      AddSinks(random, batch);
      size_t token = 0;
      for (size_t b = 0; b < plain; ++b) {
        batch.rolled[b] = 0;
        for (int32_t i = 0; i < batch.queries[b]; ++i) batch.rows[token++] = {};
      }
    }
    if (masks) {
      // Beside sinks of the last sequence alone: no pair, no mask.
      std::vector<int32_t> keys(batch.ends.begin(), batch.ends.end());
      const size_t first = sinks ? keys.size() - 1 : plain;
      std::fill_n(keys.begin(), first, 0);
      batch.sees = MakeRaggedMask(batch.queries, keys, [&](size_t, int64_t, int64_t) {
                     return random() % 2 == 0;
                   }).value();
      batch.mask = PackSegments(batch.sees);
      if (sinks && !batch.rolled.empty()) batch.rolled.back() = 0;
    }
    if (batch.rows.empty() && batch.mask.bits.empty()) continue;  // the others have no query
    ByRow(batch).ExpectAsDefined();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tramontane
