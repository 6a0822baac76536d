#include "engine/step_trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

TEST(StepTrace, IsOnWhileSomebodyReads) {
  StepTrace trace;
  EXPECT_FALSE(trace.on());
  trace.Start();
  trace.Start();
  trace.Stop();
  EXPECT_TRUE(trace.on());
  trace.Stop();
  EXPECT_FALSE(trace.on());
}

TEST(StepTrace, KeepsTheLastSteps) {
  StepTrace trace;
  trace.Start();
  constexpr auto kKept = static_cast<int64_t>(StepTrace::kSteps);
  for (int64_t step = 0; step < kKept + 3; ++step) trace.Add({.step = 10 * step});
  EXPECT_EQ(trace.added(), kKept + 3);
  StepRecord record;
  EXPECT_FALSE(trace.Get(2, &record)) << "overwritten";
  ASSERT_TRUE(trace.Get(3, &record));
  EXPECT_EQ(record.step, 30);
  ASSERT_TRUE(trace.Get(kKept + 2, &record));
  EXPECT_EQ(record.step, 10 * (kKept + 2));
}

// The engine adds while another thread looks: each record is whole, or known to be lost.
TEST(StepTrace, IsReadWhileItIsWritten) {
  StepTrace trace;
  trace.Start();
  const int64_t steps = ScaledCount(200'000);
  std::thread writer([&] {
    for (int64_t step = 0; step < steps; ++step) {
      trace.Add({.step = step, .begin_ns = 2 * step, .end_ns = 3 * step});
    }
  });
  int64_t seen = 0;
  for (int64_t next = 0; next < steps;) {
    const int64_t end = trace.added();
    for (; next < end; ++next) {
      StepRecord record;
      if (!trace.Get(next, &record)) continue;
      ++seen;
      ASSERT_EQ(record.step, next);
      ASSERT_EQ(record.begin_ns, 2 * next);
      ASSERT_EQ(record.end_ns, 3 * next);
    }
  }
  writer.join();
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace tramontane
