// CopyPages on the CPU backend.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/backend.h"
#include "tests/support/cpu_variants.h"

namespace tramontane {
namespace {

TEST(CopyPagesTest, WholePagesAreCopiedAndNoOtherIsTouched) {
  constexpr int64_t kPageBytes = 96;
  constexpr size_t kPages = 9;
  std::vector<std::byte> pool(kPages * kPageBytes);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<std::byte>(i * 7 % 251);
  const std::vector<std::byte> before = pool;
  const std::vector<int32_t> pairs = {0, 5, 0, 8, 7, 2};  // one page to two places
  const BackendPtr backend = CpuBackendWith(3);
  ASSERT_EQ(backend->CopyPages({pool.data(), kPageBytes, pairs.data(), 3}), OpCode::kOk);

  const std::vector<size_t> source = {0, 1, 7, 3, 4, 0, 6, 7, 0};  // whose bytes each page has now
  for (size_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(std::memcmp(&pool[page * kPageBytes], &before[source[page] * kPageBytes], kPageBytes), 0)
        << page;
  }
}

TEST(ScatterTest, EachNumberGoesToItsPlaceAndNoOtherIsTouched) {
  const BackendPtr backend = CpuBackendWith(1);
  std::vector<int32_t> out(9, 7);
  const std::vector<int32_t> pairs = {8, -1, 0, 5, 3, INT32_MIN};
  ASSERT_EQ(backend->Scatter({pairs.data(), 3, out.data()}), OpCode::kOk);
  EXPECT_EQ(out, (std::vector<int32_t>{5, 7, 7, INT32_MIN, 7, 7, 7, 7, -1}));
}

TEST(CopyPagesTest, NoPairsIsNoWork) { EXPECT_EQ(CpuBackendWith(1)->CopyPages({}), OpCode::kOk); }

}  // namespace
}  // namespace tramontane
