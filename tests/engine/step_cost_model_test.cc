// The cost model against machines whose terms are known.
#include "engine/schedule/costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

// A machine of 40 ms a step, 5 ms a token and 50 ns a key, with noise of its own.
struct Machine {
  double fixed_ns = 40e6;
  double token_ns = 5e6;
  double key_ns = 50;
  double noise = 0;  // a step takes up to so much, as a share, longer or shorter
  std::mt19937 random{TestSeed()};

  double Truth(const StepWork& work) const {
    return fixed_ns + token_ns * static_cast<double>(work.tokens) +
           key_ns * static_cast<double>(work.attended_keys);
  }
  int64_t Take(const StepWork& work) {
    const double off = noise * std::uniform_real_distribution<double>(-1.0, 1.0)(random);
    return static_cast<int64_t>(Truth(work) * (1.0 + off));
  }
  // A chunk of 1 to 512 tokens somewhere in a prompt of up to 20,000, in a model of 22 layers.
  StepWork AnyWork() {
    const int64_t tokens = std::uniform_int_distribution<int64_t>(1, 512)(random);
    const int64_t start = std::uniform_int_distribution<int64_t>(0, 20'000)(random);
    return {tokens, 22 * tokens * (start + tokens / 2)};
  }
};

double RelativeError(const StepCostModel& model, const Machine& machine, const StepWork& work) {
  return std::abs(model.Ns(work) / machine.Truth(work) - 1.0);
}

constexpr StepWork kShallow = {64, 22 * 64 * 32};
constexpr StepWork kDeep = {64, 22 * 64 * 15'000};
constexpr StepWork kLarge = {512, 22 * 512 * 256};

TEST(StepCostModelTest, KnowsNothingBeforeTheFirstStep) {
  StepCostModel model;
  EXPECT_FALSE(model.known());
  EXPECT_EQ(model.Ns(kShallow), 0);
  model.Learn(kShallow, 0);
  EXPECT_FALSE(model.known()) << "a step of no time, on a clock that stands, teaches nothing";
}

TEST(StepCostModelTest, OneStepPredictsItself) {
  StepCostModel model;
  model.Learn(kShallow, 400'000'000);
  EXPECT_TRUE(model.known());
  EXPECT_NEAR(model.Ns(kShallow), 400e6, 8e6);
  EXPECT_GT(model.Ns(kLarge), model.Ns(kShallow));
}

TEST(StepCostModelTest, FindsTheTermsOfAMachine) {
  Machine machine;
  StepCostModel model;
  for (int i = 0; i < 300; ++i) {
    const StepWork work = machine.AnyWork();
    model.Learn(work, machine.Take(work));
  }
  EXPECT_NEAR(model.fixed_ns(), machine.fixed_ns, 0.05 * machine.fixed_ns);
  EXPECT_NEAR(model.token_ns(), machine.token_ns, 0.02 * machine.token_ns);
  EXPECT_NEAR(model.key_ns(), machine.key_ns, 0.02 * machine.key_ns);
}

TEST(StepCostModelTest, NoiseOfAFifthLeavesPredictionsWithinASixth) {
  Machine machine;
  machine.noise = 0.2;
  StepCostModel model;
  for (int i = 0; i < 400; ++i) {
    const StepWork work = machine.AnyWork();
    model.Learn(work, machine.Take(work));
  }
  for (const StepWork& work : {kLarge, kDeep}) EXPECT_LT(RelativeError(model, machine, work), 0.17);
}

// One step in ten takes ten times as long: somebody else had the machine. The mean would be 1.9 times too
// high.
TEST(StepCostModelTest, StepsThatWereDisturbedMoveItLittle) {
  Machine machine;
  StepCostModel model;
  for (int i = 0; i < 400; ++i) {
    const StepWork work = machine.AnyWork();
    model.Learn(work, (i % 10 == 9 ? 10 : 1) * machine.Take(work));
  }
  for (const StepWork& work : {kShallow, kLarge, kDeep}) {
    EXPECT_LT(RelativeError(model, machine, work), 0.35) << work.tokens << " " << work.attended_keys;
  }
}

// The machine becomes four times slower, and fast again.
TEST(StepCostModelTest, ForgetsAMachineThatIsNoMore) {
  Machine machine;
  StepCostModel model;
  for (const double factor : {1.0, 4.0, 0.25}) {
    machine.fixed_ns *= factor;
    machine.token_ns *= factor;
    machine.key_ns *= factor;
    for (int i = 0; i < 150; ++i) {
      const StepWork work = machine.AnyWork();
      model.Learn(work, machine.Take(work));
    }
    for (const StepWork& work : {kShallow, kLarge, kDeep}) {
      EXPECT_LT(RelativeError(model, machine, work), 0.15)
          << "after the factor " << factor << ": " << work.tokens << " " << work.attended_keys;
    }
  }
}

// What lately never varied is kept: a long time of equal steps does not blur what a token costs.
TEST(StepCostModelTest, EqualStepsForgetNothingOfTheOthers) {
  Machine machine;
  StepCostModel model;
  for (int i = 0; i < 200; ++i) {
    const StepWork work = machine.AnyWork();
    model.Learn(work, machine.Take(work));
  }
  for (int i = 0; i < 2'000; ++i) model.Learn(kShallow, machine.Take(kShallow));
  for (const StepWork& work : {kShallow, kLarge, kDeep}) {
    EXPECT_LT(RelativeError(model, machine, work), 0.1) << work.tokens << " " << work.attended_keys;
  }
}

// Attention that costs nothing, and times that fall with tokens by chance: no term goes below 0.
TEST(StepCostModelTest, NoTermIsBelowNought) {
  StepCostModel model;
  for (int i = 0; i < 100; ++i) {
    model.Learn({32, 32 * 16}, 100'000'000);
    model.Learn({64, 64 * 32}, 90'000'000);
    EXPECT_GE(model.fixed_ns(), 0);
    EXPECT_GE(model.token_ns(), 0);
    EXPECT_GE(model.key_ns(), 0);
  }
  EXPECT_NEAR(model.Ns({48, 48 * 24}), 95e6, 10e6);
}

}  // namespace
}  // namespace tramontane
