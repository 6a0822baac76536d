#include "bench/gpu/random_weights.h"

#include <random>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace tramontane::gpu {
namespace {

constexpr int64_t kBlockElements = int64_t{24} << 20;
constexpr int64_t kRowAlignment = 32;  // elements

// Rows of each part begin anywhere in the block.
class RandomRows final : public RowFeed {
 public:
  RandomRows(const LinearSource& source, const std::vector<uint16_t>& block)
      : in_features_(source.in_features), block_(block) {}

  const void* Rows(int32_t part, int64_t begin, int64_t count) override {
    const int64_t elements = count * in_features_, room = static_cast<int64_t>(block_.size()) - elements;
    TM_CHECK(room >= 0, "%lld random numbers at once", static_cast<long long>(elements));
    const auto first = static_cast<uint64_t>(begin * in_features_ + part) * 0x9e3779b97f4a7c15ull;
    const auto places = static_cast<uint64_t>(room / kRowAlignment + 1);
    return block_.data() + static_cast<int64_t>((first >> 20) % places) * kRowAlignment;
  }

 private:
  const int64_t in_features_;
  const std::vector<uint16_t>& block_;
};

}  // namespace

std::vector<uint16_t> RandomBf16(int64_t count, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> some(1 << 16), numbers(static_cast<size_t>(count));
  for (uint16_t& bits : some) bits = FloatToBf16(normal(random));
  for (uint16_t& bits : numbers) bits = some[random() % some.size()];
  return numbers;
}

RandomWeights::RandomWeights(BackendPtr inner, float scale)
    : CountingBackend(*inner), inner_(std::move(inner)), block_(RandomBf16(kBlockElements, scale, 23)) {}

OpCode RandomWeights::PackLinear(const LinearSource& source, WeightHandle* out) {
  std::vector<WeightRows> parts(source.parts, source.parts + source.part_count);
  for (WeightRows& part : parts) {
    TM_CHECK(part.format == DType::kBf16, "random numbers for %s", FormatName(part.format).c_str());
    part.row_stride = source.in_features;
  }
  RandomRows rows(source, block_);
  LinearSource random = source;
  random.parts = parts.data();
  random.feed = &rows;
  return CountingBackend::PackLinear(random, out);
}

}  // namespace tramontane::gpu
