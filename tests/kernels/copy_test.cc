// CopyPages, MovePages and Scatter on the CPU backend.
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

// A page leaves the place that another one comes to.
TEST(MovePagesTest, PagesGoAndComeInTheirOrderAndNoOtherIsTouched) {
  constexpr size_t kPageBytes = 96;
  std::vector<std::byte> pool(4 * kPageBytes);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<std::byte>(i * 7 % 251);
  const std::vector<std::byte> before = pool;
  std::vector<std::byte> out(kPageBytes), in(kPageBytes, std::byte{9});
  const PageMove moves[] = {{.way = PageMove::Way::kOut, .page = 2, .image = out.data()},
                            {.way = PageMove::Way::kIn, .page = 2, .image = in.data()}};
  const BackendPtr backend = CpuBackendWith(1);
  ASSERT_EQ(backend->MovePages({.pool = pool.data(), .page_bytes = kPageBytes, .moves = moves, .count = 2}),
            OpCode::kOk);
  ASSERT_EQ(backend->AwaitMoves(), OpCode::kOk);
  for (size_t page = 0; page < 4; ++page) {
    const std::byte* expected = page == 2 ? in.data() : &before[page * kPageBytes];
    EXPECT_EQ(std::memcmp(&pool[page * kPageBytes], expected, kPageBytes), 0) << page;
  }
  EXPECT_EQ(std::memcmp(out.data(), &before[2 * kPageBytes], kPageBytes), 0);
}

TEST(CopyPagesTest, NoPairsIsNoWork) { EXPECT_EQ(CpuBackendWith(1)->CopyPages({}), OpCode::kOk); }

}  // namespace
}  // namespace tramontane
