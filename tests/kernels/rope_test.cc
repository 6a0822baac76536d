// RopeTable and RopeAppend on the CPU backend.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/backend.h"
#include "tests/reference/rope.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/paged_kv_fixture.h"

namespace tramontane {
namespace {

class RopeTest : public CpuVariantTest {
 protected:
  BackendPtr MakeRopeBackend(int32_t threads = 2) { return MakeBackend(GetParam(), threads, {.tokens = 64}); }

  static std::vector<float> Table(Backend& backend, const std::vector<int32_t>& positions,
                                  const std::vector<double>& inverse_frequency) {
    std::vector<float> cos_sin(positions.size() * inverse_frequency.size() * 2);
    RopeTableParams params;
    params.positions = positions.data();
    params.tokens = static_cast<int32_t>(positions.size());
    params.inverse_frequency = inverse_frequency.data();
    params.half_dim = static_cast<int32_t>(inverse_frequency.size());
    params.cos_sin = cos_sin.data();
    EXPECT_EQ(backend.RopeTable(params), OpCode::kOk);
    return cos_sin;
  }
};
TM_INSTANTIATE_FOR_CPU_VARIANTS(RopeTest);

TEST_P(RopeTest, TableIsRightToOneRoundingFarFromTheOrigin) {
  const BackendPtr backend = MakeRopeBackend();
  const std::vector<int32_t> positions = {0, 1, 2, 4095, 4096, 32767, 131071, 1 << 20};
  for (const double theta : {10000.0, 1000000.0}) {
    const std::vector<double> inverse_frequency = reference::InverseFrequencies(theta, 128);
    const std::vector<float> table = Table(*backend, positions, inverse_frequency);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < 64; ++i) {
        // The unit vector turned by the angle is (cos, sin). One rounding to f32, half a unit in the last
        // place of 1, and the angle's own rounding in f64 (2^20 radians: 2^-33) below it.
        const std::vector<double> turned = reference::Rotate({1.0, 0.0}, positions[t], {inverse_frequency[i]},
                                                             reference::RotaryPairs::kHalfSplit);
        EXPECT_NEAR(table[(t * 64 + i) * 2], turned[0], 0x1p-24);
        EXPECT_NEAR(table[(t * 64 + i) * 2 + 1], turned[1], 0x1p-24);
      }
    }
  }
}

// The attention factor of a scaled rotary embedding stands on cos and sin; a query's own factor is the
// table of Ministral 3: 1 below 16384 positions, then 1 + 0.1 ln(1 + floor(position / 16384)).
TEST_P(RopeTest, TheTableTakesAMagnitudeAndScalesQueriesByTheirPositions) {
  const BackendPtr backend = MakeRopeBackend();
  const std::vector<int32_t> positions = {0, 16383, 16384, 32767, 32768, 262143};
  const std::vector<double> wanted = {1.0, 1.0, 1.0693147, 1.0693147, 1.1098612, 1.2772589};
  const std::vector<double> inverse_frequency = reference::InverseFrequencies(10000.0, 8);
  const std::vector<float> plain = Table(*backend, positions, inverse_frequency);
  std::vector<float> cos_sin(plain.size()), query_scale(positions.size());
  RopeTableParams params;
  params.positions = positions.data();
  params.tokens = static_cast<int32_t>(positions.size());
  params.inverse_frequency = inverse_frequency.data();
  params.half_dim = 4;
  params.cos_sin = cos_sin.data();
  params.magnitude = 1.25;
  params.query_scale = query_scale.data();
  params.query_scale_beta = 0.1;
  params.query_scale_positions = 16384;
  ASSERT_EQ(backend->RopeTable(params), OpCode::kOk);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(cos_sin[i], 1.25 * plain[i], 1.25 * 0x1p-23);
  for (size_t t = 0; t < positions.size(); ++t) EXPECT_NEAR(query_scale[t], wanted[t], 1e-7) << positions[t];
}

struct AppendCase {
  int32_t query_heads = 4;
  PagedKvShape shape;
  RotaryStyle style = RotaryStyle::kHalfSplit;
};

// A step of three sequences (one of them without a token) and a padded row at the end.
class AppendStep {
 public:
  explicit AppendStep(const AppendCase& c)
      : case_(c),
        kv_(c.shape, {{0, 21}, {0, 0}, {32, 50}}),
        columns_((c.query_heads + 2 * c.shape.kv_heads) * c.shape.head_dim),
        stride_(columns_ + 16) {
    kv_.SetQueries({5, 0, 3});
    slots_.assign(kv_.Table().slots, kv_.Table().slots + kv_.tokens());
    slots_.push_back(-1);
    for (int32_t i = 0; i < 5; ++i) positions_.push_back(16 + i);
    for (int32_t i = 0; i < 3; ++i) positions_.push_back(47 + i);
    positions_.push_back(0);
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    qkv_.resize(slots_.size() * static_cast<size_t>(stride_));
    for (float& x : qkv_) x = normal(random);
    before_ = qkv_;
  }

  void Run(Backend& backend, const std::vector<float>& cos_sin, const float* query_scale = nullptr,
           const KvScaleView* kv_scale = nullptr) {
    RopeAppendParams params;
    params.qkv = {qkv_.data(), DType::kF32, static_cast<int64_t>(slots_.size()), columns_, stride_};
    params.cos_sin = cos_sin.data();
    params.style = case_.style;
    params.query_heads = case_.query_heads;
    params.kv = kv_.View();
    if (kv_scale != nullptr) params.kv.scale = *kv_scale;
    params.slots = slots_.data();
    params.query_scale = query_scale;
    EXPECT_EQ(backend.RopeAppend(params), OpCode::kOk);
  }

  // One head of q, k or v of a token, before the op. Heads count through q, k and v.
  std::vector<double> Before(size_t token, int32_t head) const {
    const float* from =
        &before_[token * static_cast<size_t>(stride_) + static_cast<size_t>(head * case_.shape.head_dim)];
    return {from, from + case_.shape.head_dim};
  }
  const float* After(size_t token, int32_t head) const {
    return &qkv_[token * static_cast<size_t>(stride_) + static_cast<size_t>(head * case_.shape.head_dim)];
  }
  std::vector<double> Rotated(size_t token, int32_t head,
                              const std::vector<double>& inverse_frequency) const {
    return reference::Rotate(Before(token, head), positions_[token], inverse_frequency,
                             case_.style == RotaryStyle::kHalfSplit ? reference::RotaryPairs::kHalfSplit
                                                                    : reference::RotaryPairs::kInterleaved);
  }

  const AppendCase case_;
  PagedKvFixture kv_;
  const int64_t columns_, stride_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> positions_;
  std::vector<float> qkv_, before_;
};

// Two products and a sum in f32 over a table rounded once: five roundings of magnitudes up to |x| + |y|.
double RotationTolerance(double largest) { return 5 * 0x1p-24 * 2 * largest; }

TEST_P(RopeTest, AppendRotatesQueriesInPlaceAndKeysIntoTheirPages) {
  const BackendPtr backend = MakeRopeBackend();
  for (const RotaryStyle style : {RotaryStyle::kHalfSplit, RotaryStyle::kInterleaved}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
        for (const int32_t head_dim : {8, 64, 96}) {
          SCOPED_TRACE(testing::Message()
                       << DTypeName(dtype) << " style " << static_cast<int>(style) << " order "
                       << static_cast<int>(order) << " head_dim " << head_dim);
          const PagedKvShape shape = {
              .dtype = dtype, .kv_heads = 2, .head_dim = head_dim, .page_size = 16, .order = order};
          AppendStep step({.query_heads = 4, .shape = shape, .style = style});
          const std::vector<double> inverse_frequency = reference::InverseFrequencies(10000.0, head_dim);
          step.Run(*backend, Table(*backend, step.positions_, inverse_frequency));

          // Half a unit in the last place of 1 in the page's dtype: 8 and 11 significant bits.
          const double rounding = dtype == DType::kF32 ? 0 : dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
          const double tolerance = RotationTolerance(6.0);  // normal numbers
          for (size_t token = 0; token < 8; ++token) {
            for (int32_t head = 0; head < 4; ++head) {
              const std::vector<double> expected = step.Rotated(token, head, inverse_frequency);
              for (int32_t d = 0; d < head_dim; ++d) {
                ASSERT_NEAR(step.After(token, head)[d], expected[static_cast<size_t>(d)], tolerance);
              }
            }
            const int32_t sequence = token < 5 ? 0 : 2;
            for (int32_t head = 0; head < 2; ++head) {
              const std::vector<double> key = step.Rotated(token, 4 + head, inverse_frequency);
              const std::vector<double> value = step.Before(token, 6 + head);
              for (int32_t d = 0; d < head_dim; ++d) {
                const double k = key[static_cast<size_t>(d)], v = value[static_cast<size_t>(d)];
                const int32_t position = step.positions_[token];
                ASSERT_NEAR(step.kv_.Get(KvHalf::kKey, sequence, position, head, d), k,
                            tolerance + rounding * (std::abs(k) + tolerance) + 0x1p-25);
                ASSERT_NEAR(step.kv_.Get(KvHalf::kValue, sequence, position, head, d), v,
                            rounding * std::abs(v) + (dtype == DType::kF16 ? 0x1p-25 : 0));
              }
            }
          }
        }
      }
    }
  }
}

// The bytes of the definition, of what the same append stores in f32: whatever the variant, and whoever else
// is in the step.
TEST_P(RopeTest, QuantisedPagesHoldTheBytesOfTheDefinition) {
  struct Shape {
    DType dtype;
    int32_t head_dim, group_log2;
  };
  for (const Shape& shape :
       {Shape{DType::kInt8, 64, 5}, Shape{DType::kInt8, 8, 3}, Shape{DType::kInt4, 96, 4},
        Shape{DType::kInt4, 128, 7}, Shape{DType::kFp8E4M3, 24, 0}}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      SCOPED_TRACE(testing::Message() << DTypeName(shape.dtype) << " x " << shape.head_dim);
      AppendCase exact_case = {.query_heads = 4,
                               .shape = {.kv_heads = 2, .head_dim = shape.head_dim, .order = order}};
      AppendCase quantised_case = exact_case;
      exact_case.shape.dtype = DType::kF32;
      quantised_case.shape.dtype = shape.dtype;
      quantised_case.shape.group_log2 = shape.group_log2;
      AppendStep exact(exact_case), quantised(quantised_case), written(quantised_case);
      const BackendPtr backend = MakeRopeBackend();
      const std::vector<float> table =
          Table(*backend, exact.positions_, reference::InverseFrequencies(10000.0, shape.head_dim));
      exact.Run(*backend, table);
      quantised.Run(*backend, table);
      for (size_t token = 0; token < 8; ++token) {
        const int32_t sequence = token < 5 ? 0 : 2;
        for (int32_t head = 0; head < 2; ++head) {
          for (const KvHalf half : {KvHalf::kKey, KvHalf::kValue}) {
            std::vector<float> vector;
            for (int32_t d = 0; d < shape.head_dim; ++d) {
              vector.push_back(
                  static_cast<float>(exact.kv_.Get(half, sequence, exact.positions_[token], head, d)));
            }
            written.kv_.SetVector(half, sequence, written.positions_[token], head, vector);
          }
        }
      }
      EXPECT_EQ(std::memcmp(quantised.kv_.pool(), written.kv_.pool(),
                            static_cast<size_t>(written.kv_.pool_bytes())),
                0);
    }
  }
}

TEST_P(RopeTest, Fp8IsTakenOverTheScaleOfItsHead) {
  const BackendPtr backend = MakeRopeBackend();
  const AppendCase c = {.query_heads = 2, .shape = {.dtype = DType::kFp8E4M3, .kv_heads = 2, .head_dim = 8}};
  AppendStep plain(c), scaled(c);
  const std::vector<float> table =
      Table(*backend, plain.positions_, reference::InverseFrequencies(10000.0, 8));
  plain.Run(*backend, table);
  std::vector<float> scales = {1.0f, 2.0f, 0.25f, 1.0f};
  const KvScaleView view = KvScaleView::OfFp8(scales.data(), 2);
  scaled.Run(*backend, table, nullptr, &view);
  for (int32_t d = 0; d < 8; ++d) {  // by powers of two, nothing that is no subnormal rounds anew
    const auto same = [&](KvHalf half, int32_t head, double scale) {
      EXPECT_NEAR(scaled.kv_.Get(half, 0, 16, head, d) * scale, plain.kv_.Get(half, 0, 16, head, d),
                  scale * 0x1p-10);
    };
    same(KvHalf::kKey, 0, 1.0);
    same(KvHalf::kKey, 1, 2.0);
    same(KvHalf::kValue, 0, 0.25);
    same(KvHalf::kValue, 1, 1.0);
  }
}

TEST_P(RopeTest, AppendWritesTheStepsSlotsAndNothingElse) {
  const BackendPtr backend = MakeRopeBackend();
  AppendStep step({.query_heads = 2, .shape = {.kv_heads = 2, .head_dim = 8, .page_size = 16}});
  const std::vector<std::byte> before(step.kv_.pool(), step.kv_.pool() + step.kv_.pool_bytes());
  step.Run(*backend, Table(*backend, step.positions_, reference::InverseFrequencies(10000.0, 8)));
  int64_t changed_bytes = 0;
  for (size_t i = 0; i < before.size(); ++i) changed_bytes += step.kv_.pool()[i] != before[i] ? 1 : 0;
  // Poison is 0xff everywhere, and no finite bf16 has two such bytes; one of the two may stay.
  const int64_t written_halves = 8 * 2 * 2 * 8;  // tokens, keys and values, heads, head_dim
  EXPECT_LE(changed_bytes, 2 * written_halves);
  EXPECT_GE(changed_bytes, written_halves);
  for (int32_t position = 16; position < 21; ++position) {
    EXPECT_FALSE(std::isnan(step.kv_.Get(KvHalf::kKey, 0, position, 1, 7)));
  }
  EXPECT_TRUE(std::isnan(step.kv_.Get(KvHalf::kKey, 0, 15, 0, 0)));
  EXPECT_TRUE(std::isnan(step.kv_.Get(KvHalf::kValue, 2, 46, 1, 7)));
}

TEST_P(RopeTest, AScaleIsOfTheQueriesAlone) {
  const BackendPtr backend = MakeRopeBackend();
  const AppendCase c = {.query_heads = 4, .shape = {.dtype = DType::kF32, .kv_heads = 2, .head_dim = 8}};
  AppendStep plain(c), scaled(c);
  const std::vector<float> table =
      Table(*backend, plain.positions_, reference::InverseFrequencies(10000.0, 8));
  std::vector<float> query_scale;
  for (size_t t = 0; t < plain.slots_.size(); ++t) query_scale.push_back(1.0f + static_cast<float>(t));
  plain.Run(*backend, table);
  scaled.Run(*backend, table, query_scale.data());
  for (size_t t = 0; t < plain.slots_.size(); ++t) {
    for (int32_t d = 0; d < 4 * 8; ++d) {
      ASSERT_EQ(scaled.After(t, 0)[d], plain.After(t, 0)[d] * query_scale[t]) << "token " << t;
    }
  }
  EXPECT_EQ(std::memcmp(scaled.kv_.pool(), plain.kv_.pool(), plain.kv_.pool_bytes()), 0);
}

TEST_P(RopeTest, APaddedRowWritesNothing) {
  const BackendPtr backend = MakeRopeBackend();
  AppendStep step({.query_heads = 2, .shape = {.kv_heads = 1, .head_dim = 8}});
  for (int64_t& slot : step.slots_) slot = -1;
  const std::vector<std::byte> before(step.kv_.pool(), step.kv_.pool() + step.kv_.pool_bytes());
  step.Run(*backend, Table(*backend, step.positions_, reference::InverseFrequencies(10000.0, 8)));
  EXPECT_EQ(std::memcmp(step.kv_.pool(), before.data(), before.size()), 0);
}

// Rotation keeps a pair's length and turns position p + 1 from p by one angle: q.k depends on the distance
// only.
TEST_P(RopeTest, ScoresDependOnTheDistanceOnly) {
  const BackendPtr backend = MakeRopeBackend();
  const std::vector<double> inverse_frequency = reference::InverseFrequencies(10000.0, 64);
  for (const RotaryStyle style : {RotaryStyle::kHalfSplit, RotaryStyle::kInterleaved}) {
    std::vector<double> dots;
    for (const int32_t base : {0, 1000, 30000}) {
      const PagedKvShape shape = {.dtype = DType::kF32, .kv_heads = 1, .head_dim = 64};
      AppendStep step({.query_heads = 1, .shape = shape, .style = style});
      step.positions_[0] = base + 7;  // the query of token 0
      step.positions_[1] = base;      // the key of token 1
      step.Run(*backend, Table(*backend, step.positions_, inverse_frequency));
      double dot = 0;
      for (int32_t d = 0; d < 64; ++d)
        dot += double{step.After(0, 0)[d]} * step.kv_.Get(KvHalf::kKey, 0, 17, 0, d);
      dots.push_back(dot);
    }
    // 64 products of numbers up to 6, each off by the rotation's tolerance.
    EXPECT_NEAR(dots[1], dots[0], 64 * 2 * 6 * RotationTolerance(6.0));
    EXPECT_NEAR(dots[2], dots[0], 64 * 2 * 6 * RotationTolerance(6.0));
  }
}

TEST_P(RopeTest, TheSameBitsOnAnyNumberOfThreads) {
  const PagedKvShape shape = {.kv_heads = 2, .head_dim = 64};
  const std::vector<double> inverse_frequency = reference::InverseFrequencies(10000.0, 64);
  std::vector<float> first;
  for (const int32_t threads : {1, 2, 3, 4}) {
    const BackendPtr backend = MakeRopeBackend(threads);
    AppendStep step({.query_heads = 4, .shape = shape});
    step.Run(*backend, Table(*backend, step.positions_, inverse_frequency));
    if (first.empty()) first = step.qkv_;
    EXPECT_EQ(std::memcmp(first.data(), step.qkv_.data(), first.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace tramontane
