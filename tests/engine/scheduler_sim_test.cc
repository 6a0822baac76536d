// Random and adversarial arrivals over many steps: nothing is lost, everything finishes, and the bounds that
// engine/schedule/README.md states hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/fake_serving.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t From(int64_t low, int64_t high) {  // both included
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool OneIn(int64_t n) { return From(1, n) == 1; }

 private:
  std::mt19937 engine_;
};

// ---- bounds -------------------------------------------------------------------------------------

// The bounds of engine/schedule/README.md, computed from the definition, token by token. They hold where the
// pool and the slots suffice and a token costs at most half a step.
class BoundWatch {
 public:
  // `longest_output`: the most tokens that any request gives. `half_beside_decode`: tokens of half of the
  // least step.
  BoundWatch(FakeServing& serving, const EngineLimits& limits, const KvLayout& layout, int64_t longest_output,
             int64_t half_beside_decode = INT64_MAX)
      : serving_(serving),
        limits_(limits),
        layout_(layout),
        longest_output_(longest_output),
        half_beside_decode_(half_beside_decode) {
    serving_.on_plan = [this](const StepPlan& plan) { See(plan); };
  }

  // Call right after Submit.
  void Watch(const Ask& ask) {
    Waiting waiting;
    const bool fits_one_chunk = Chunks(ask.prompt_tokens, limits_.max_step_tokens / 2, Half(false)) == 1;
    int64_t in_front = 0;
    int64_t short_in_front = 0;
    for (const auto& [id, prompt] : prompts_) {
      in_front += prompt.chunks;
      short_in_front += prompt.fits_one_chunk ? prompt.short_chunks : 0;
    }
    const int64_t half_tokens = limits_.max_step_tokens - limits_.max_step_tokens / 2;
    const int64_t short_tokens = std::min<int64_t>(limits_.max_step_tokens / 2, half_beside_decode_);
    prompts_[ask.id] = {
        ask.prompt_tokens, Chunks(ask.prompt_tokens, std::min(half_tokens, half_beside_decode_), Half(true)),
        Chunks(ask.prompt_tokens, std::max<int64_t>(short_tokens, 1), Half(false)), fits_one_chunk};
    waiting.prefill_steps = 1 + in_front;
    // A short prompt that needs several steps beside decode needs a place, and one alone goes by age.
    const bool may_need_place = half_beside_decode_ != INT64_MAX && limits_.max_partial_prefills == 1;
    if (fits_one_chunk && !may_need_place)
      waiting.prefill_steps = std::min(waiting.prefill_steps, 1 + short_in_front);
    waiting.steps = StepsOfBothLanes(waiting.prefill_steps);
    waiting_[ask.id] = waiting;
  }

  int64_t longest_gap() const { return longest_gap_; }

 private:
  struct Prompt {
    int64_t tokens;
    int64_t chunks;        // of half a step
    int64_t short_chunks;  // of the other half, which may be a token less
    bool fits_one_chunk;
  };
  struct Waiting {
    int64_t prefill_steps = 0;  // until its first chunk, at most
    int64_t steps = 0;
  };

  // Within so many prefill steps.
  int64_t StepsOfBothLanes(int64_t prefill_steps) const {
    switch (limits_.lane_policy) {
      case LanePolicy::kFair:
        return prefill_steps + (prefill_steps + limits_.max_prefill_steps - 1) / limits_.max_prefill_steps;
      case LanePolicy::kPrefillFirst:
        return prefill_steps;
      case LanePolicy::kDecodeFirst:
        return prefill_steps * longest_output_;
    }
    return 0;
  }

  // Prefill steps that a sequence in decode may have waited for by now.
  int64_t LongestWait() const {
    switch (limits_.lane_policy) {
      case LanePolicy::kFair:
        return limits_.max_prefill_steps;
      case LanePolicy::kPrefillFirst:
        return chunks_in_gap_;
      case LanePolicy::kDecodeFirst:
        return 0;
    }
    return 0;
  }

  double Half(bool rounded_up) const {
    // The cost is split in parts of a token equivalent, where rounding is below the doubles' care.
    return static_cast<double>(limits_.step_cost()) / 2 + (rounded_up ? 1e-9 : -1e-9);
  }

  // Greedy chunks of at most `tokens` tokens and `cost`.
  int64_t Chunks(int64_t prompt_tokens, int64_t tokens, double cost) const {
    int64_t layers = 0;
    for (const KvGroupSpec& group : layout_.groups) layers += static_cast<int64_t>(group.layers.size());
    int64_t chunks = 1;
    int64_t chunk_tokens = 0;
    double chunk_cost = 0;
    for (int64_t p = 0; p < prompt_tokens; ++p) {
      double keys = 0;
      for (const KvGroupSpec& group : layout_.groups) {
        const int64_t seen = group.window == 0 ? p + 1 : std::min<int64_t>(p + 1, group.window);
        keys += static_cast<double>(seen * static_cast<int64_t>(group.layers.size())) /
                static_cast<double>(layers);
      }
      const double token_cost = 1 + keys / static_cast<double>(limits_.attended_keys_per_token);
      if (chunk_tokens + 1 > tokens || chunk_cost + token_cost > cost + 1e-6) {
        ++chunks;
        chunk_tokens = 0;
        chunk_cost = 0;
      }
      ++chunk_tokens;
      chunk_cost += token_cost;
    }
    return chunks;
  }

  void See(const StepPlan& plan) {
    for (auto& [id, waiting] : waiting_) {
      if (plan.lane == Lane::kPrefill) --waiting.prefill_steps;
      --waiting.steps;
    }
    // The gap between two decode steps, while a sequence that was in decode before waits.
    if (plan.lane == Lane::kDecode || !decode_waited_) {
      gap_ = 0;
      chunks_in_gap_ = 0;
      in_gap_.clear();
    } else {
      ++gap_;
      for (const StepRow& row : plan.rows) {
        const std::string& id = row.sequence->request->id;
        if (in_gap_.insert(id).second) chunks_in_gap_ += prompts_.at(id).chunks;
      }
    }
    longest_gap_ = std::max(longest_gap_, gap_);
    EXPECT_LE(gap_, LongestWait()) << ToString(plan);
    for (const StepRow& row : plan.rows) {
      const std::string& id = row.sequence->request->id;
      if (plan.lane == Lane::kPrefill && row.start + row.count == row.sequence->prefill_len())
        prompts_.erase(id);
      const auto first_chunk = waiting_.find(id);
      if (first_chunk == waiting_.end()) continue;
      EXPECT_GE(first_chunk->second.prefill_steps, 0) << id << " starts too late, in " << ToString(plan);
      EXPECT_GE(first_chunk->second.steps, 0) << id << " starts too late, in " << ToString(plan);
      waiting_.erase(first_chunk);
    }
    for (const auto& [id, waiting] : waiting_) {
      EXPECT_GT(waiting.prefill_steps, 0) << id << " still waits in " << ToString(plan);
    }
    for (const StepRow& row : plan.rows) {
      const int64_t end = row.start + row.count;
      if (end >= row.sequence->prefill_len() && end < row.sequence->max_len - 1) {
        decoding_[row.sequence] = true;
      } else {
        decoding_.erase(row.sequence);
      }
    }
    decode_waited_ = !decoding_.empty();
  }

  FakeServing& serving_;
  const EngineLimits limits_;
  const KvLayout layout_;
  const int64_t longest_output_;
  const int64_t half_beside_decode_;
  std::map<std::string, Prompt> prompts_;  // not fully prefilled
  std::map<std::string, Waiting> waiting_;
  std::map<const Sequence*, bool> decoding_;
  bool decode_waited_ = false;
  int64_t gap_ = 0;
  int64_t chunks_in_gap_ = 0;     // of the prompts that had a part of it
  std::set<std::string> in_gap_;  // their ids
  int64_t longest_gap_ = 0;
};

constexpr LanePolicy kPolicies[] = {LanePolicy::kFair, LanePolicy::kPrefillFirst, LanePolicy::kDecodeFirst};

std::vector<std::pair<int32_t, LanePolicy>> WithEachPolicy(const std::vector<int32_t>& values) {
  std::vector<std::pair<int32_t, LanePolicy>> pairs;
  for (const int32_t value : values) {
    for (const LanePolicy policy : kPolicies) pairs.emplace_back(value, policy);
  }
  return pairs;
}

EngineLimits Plenty(const KvLayout& layout) {
  EngineLimits limits = TestLimits(layout, 40000);
  limits.max_sequences = 1000;
  limits.max_step_tokens = 32;
  limits.context = 4096;
  return limits;
}

TEST(SchedulerBoundsTest, HoldForRandomArrivals) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  const int64_t rounds = ScaledCount(60, 6);
  int64_t gaps = 0;
  int64_t hits = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    const KvLayout layout =
        TestLayout(random.OneIn(2) ? std::vector<int32_t>{0} : std::vector<int32_t>{0, 24, 24}, 16);
    EngineLimits limits = Plenty(layout);
    limits.max_partial_prefills = static_cast<int32_t>(random.From(1, 5));
    limits.max_prefill_steps = static_cast<int32_t>(random.From(1, 4));
    limits.max_step_tokens = static_cast<int32_t>(random.From(2, 48));
    limits.lane_policy = kPolicies[round % 3];
    limits.prefix_cache = random.OneIn(2);
    // A token at position 600 costs at most half a step: 1 + 600 / kappa <= max_step_tokens.
    limits.attended_keys_per_token = random.OneIn(2) ? 4096 : random.From(601, 1200);
    SCOPED_TRACE("round " + std::to_string(round) + "\n" + limits.ToString());
    // Every third round a prefill token takes a millisecond, and steps beside decode fit a few of them.
    int64_t half_beside_decode = INT64_MAX;
    StepCosts costs;
    if (random.OneIn(3)) {
      costs.prefill = TaughtModel(0, 1e6, 0);
      const int64_t tokens = random.From(1, limits.max_step_tokens);
      limits.decode_gap_ns = limits.max_prefill_steps * (tokens * 1'000'000 + 500'000);
      limits.least_step_tokens = static_cast<int32_t>(random.From(2, limits.max_step_tokens));
      half_beside_decode = std::max<int64_t>(tokens, limits.least_step_tokens) / 2;
    }
    FakeServing serving(limits, layout, costs);
    constexpr int64_t kLongestOutput = 20;
    BoundWatch watch(serving, limits, layout, kLongestOutput, half_beside_decode);
    const int64_t requests = random.From(5, 60);
    const int64_t patience = random.From(1, 6);  // steps between arrivals, in the mean
    for (int64_t submitted = 0; submitted < requests || serving.unfinished() > 0;) {
      while (submitted < requests && random.OneIn(patience)) {
        const int64_t longest = random.OneIn(3) ? 600 : 20;
        const Ask ask = {.id = "r" + std::to_string(submitted++),
                         .prompt_tokens = random.From(1, longest),
                         .max_tokens = random.From(1, kLongestOutput),
                         .same_tokens = random.From(0, 1) * random.From(0, 600),
                         .same_text = random.From(0, 2)};
        serving.Submit(ask);
        watch.Watch(ask);
      }
      serving.Step();
      if (HasFailure()) return;
    }
    EXPECT_EQ(serving.scheduler().preemptions(), 0);
    hits += serving.scheduler().prefix_hits();
    gaps += watch.longest_gap();
  }
  EXPECT_GT(gaps, rounds) << "decode never had to wait";
  EXPECT_GT(hits, rounds) << "nothing was found";
}

// The same in seconds, on machines that are known from their first steps on: a sequence in decode waits for
// its next token no longer than decode_gap_ns, or where that is too short for K steps of least_step_tokens,
// for those; and no prefill step beside decode is smaller than they are while there is more to do.
TEST(SchedulerBoundsTest, TheGapHoldsInSeconds) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  int64_t cut_steps = 0;
  for (int64_t round = 0; round < ScaledCount(40, 6); ++round) {
    const KvLayout layout = TestLayout({0, 24}, 16);
    EngineLimits limits = Plenty(layout);
    limits.max_step_tokens = 256;
    limits.max_prefill_steps = static_cast<int32_t>(random.From(1, 3));
    limits.decode_gap_ns = random.From(5, 200) * 1'000'000;
    limits.least_step_tokens = static_cast<int32_t>(random.From(1, 64));
    SCOPED_TRACE("round " + std::to_string(round) + "\n" + limits.ToString());
    const double fixed_ns = 1e6 * static_cast<double>(random.From(0, 20));
    const double token_ns = 1e5 * static_cast<double>(random.From(1, 20));
    const double key_ns = 10 * static_cast<double>(random.From(0, 20));
    const double decode_ns = 1e6 * static_cast<double>(random.From(1, 10));
    const StepCosts costs = {.prefill = TaughtModel(fixed_ns, token_ns, key_ns),
                             .decode = TaughtModel(decode_ns, 0, 0)};
    FakeServing serving(limits, layout, costs);
    const PrefillCost keys(layout, 1);
    serving.step_ns = [&](const StepPlan& plan) {
      if (plan.lane == Lane::kDecode) return static_cast<int64_t>(decode_ns);
      double ns = fixed_ns;
      for (const StepRow& row : plan.rows) {
        ns += token_ns * row.count +
              key_ns * static_cast<double>(keys.AttendedKeys(row.start, row.start + row.count));
      }
      return static_cast<int64_t>(ns);
    };
    int64_t to_prefill = 0;  // tokens that are not planned
    bool decodes = false;
    int64_t gap_ns = 0;
    double most_ns = decode_ns;  // of this gap
    std::set<const Sequence*> decoding;
    serving.on_plan = [&](const StepPlan& plan) {
      gap_ns = decodes ? gap_ns + serving.step_ns(plan) : 0;
      if (plan.lane == Lane::kPrefill && decodes) {
        EXPECT_GE(plan.tokens, std::min<int64_t>(to_prefill, limits.least_step_tokens)) << ToString(plan);
        cut_steps += plan.tokens < std::min<int64_t>(to_prefill, limits.max_step_tokens);
        // No token stands deeper than 600.
        const double least_ns =
            fixed_ns + token_ns * limits.least_step_tokens +
            key_ns * static_cast<double>(keys.AttendedKeys(600, 600 + limits.least_step_tokens));
        most_ns = decode_ns + limits.max_prefill_steps * least_ns;
      }
      if (plan.lane == Lane::kDecode) {
        EXPECT_LE(static_cast<double>(gap_ns),
                  1.01 * std::max(most_ns, static_cast<double>(limits.decode_gap_ns)))
            << ToString(plan);
        gap_ns = 0;
        most_ns = decode_ns;
      } else {
        to_prefill -= plan.tokens;
      }
      for (const StepRow& row : plan.rows) {
        const int64_t end = row.start + row.count;
        if (end >= row.sequence->prefill_len() && end < row.sequence->max_len - 1) {
          decoding.insert(row.sequence);
        } else {
          decoding.erase(row.sequence);
        }
      }
      decodes = !decoding.empty();
    };
    const int64_t requests = random.From(5, 40);
    for (int64_t submitted = 0; submitted < requests || serving.unfinished() > 0;) {
      while (submitted < requests && random.OneIn(3)) {
        const Ask ask = {.id = "r" + std::to_string(submitted++),
                         .prompt_tokens = random.From(1, random.OneIn(2) ? 600 : 20),
                         .max_tokens = random.From(1, 20)};
        to_prefill += ask.prompt_tokens;
        serving.Submit(ask);
      }
      serving.Step();
      if (HasFailure()) return;
    }
    EXPECT_EQ(to_prefill, 0);
  }
  EXPECT_GT(cut_steps, 40) << "the gap was never short";
}

// Each pattern is played for a few hundred steps before and while the others are there.
TEST(SchedulerBoundsTest, HoldForAdversarialArrivals) {
  struct Pattern {
    const char* name;
    int64_t every;       // steps between arrivals
    int64_t at_once;     // requests each time
    int64_t prompt;      // tokens
    int64_t odd_every;   // every so many arrivals ...
    int64_t odd_prompt;  // ... one of these
  };
  const Pattern patterns[] = {
      {"short prompts against a long one", 1, 2, 16, 40, 2000},
      {"short prompts just too long for half a step", 2, 1, 17, 40, 500},
      {"long prompts against short ones", 4, 1, 1500, 3, 5},
      {"equal long prompts", 30, 4, 400, 1000, 1},
      {"everything at once", 1000, 60, 90, 7, 700},
      {"single tokens", 1, 6, 1, 9, 300},
  };
  for (const Pattern& pattern : patterns) {
    for (const auto& [partial, policy] : WithEachPolicy({1, 2, 4})) {
      SCOPED_TRACE(std::string(pattern.name) + ", max_partial_prefills " + std::to_string(partial) + ", " +
                   LanePolicyName(policy));
      const KvLayout layout = TestLayout({0, 24}, 16);
      EngineLimits limits = Plenty(layout);
      limits.max_partial_prefills = partial;
      limits.max_prefill_steps = 2;
      limits.lane_policy = policy;
      constexpr int64_t kOutput = 5;
      FakeServing serving(limits, layout);
      BoundWatch watch(serving, limits, layout, kOutput);
      int64_t arrivals = 0;
      for (int64_t step = 0; step < 160; ++step) {
        for (int64_t i = 0; step % pattern.every == 0 && i < pattern.at_once; ++i, ++arrivals) {
          const bool odd = arrivals % pattern.odd_every == pattern.odd_every - 1;
          const Ask ask = {.id = "r" + std::to_string(arrivals),
                           .prompt_tokens = odd ? pattern.odd_prompt : pattern.prompt,
                           .max_tokens = kOutput};
          serving.Submit(ask);
          watch.Watch(ask);
        }
        serving.Step();
        if (HasFailure()) return;
      }
      serving.RunUntilIdle(20000);
    }
  }
}

// ---- shares -------------------------------------------------------------------------------------

// A caller that has so many requests alive all the while: as soon as one ends comes the next.
struct Load {
  ShareParams share;
  int64_t outstanding = 1;
  int64_t least_prompt = 1, most_prompt = 1;
  int64_t most_output = 1;
  int64_t same_tokens = 0;  // that its prompts begin with, all alike
};

// What each caller was given, and what it waited, while others were there, too.
class SharedServing {
 public:
  SharedServing(const EngineLimits& limits, const KvLayout& layout, Random& random)
      : serving_(limits, layout), random_(random) {
    serving_.always_check_keys = 16;
    serving_.on_plan = [this](const StepPlan& plan) {
      for (const StepRow& row : plan.rows) {
        const std::string& caller = row.sequence->request->share.caller;
        if (plan.lane == Lane::kPrefill) prefilled_[caller] += row.count;
      }
    };
  }

  void Add(const Load& load) { loads_.push_back({load, {}}); }
  void Steps(int64_t count) {
    for (; count > 0; --count) {
      for (auto& [load, alive] : loads_) {
        std::erase_if(alive, [this](const std::string& id) { return serving_.has_ended(id); });
        while (std::ssize(alive) < load.outstanding) alive.push_back(Submit(load));
      }
      serving_.Step();
      if (::testing::Test::HasFailure()) return;
    }
  }
  void Stop() {
    loads_.clear();
    serving_.RunUntilIdle(1'000'000);
  }
  int64_t TakePrefilled(const std::string& caller) { return std::exchange(prefilled_[caller], 0); }
  FakeServing& serving() { return serving_; }

 private:
  std::string Submit(const Load& load) {
    std::string id = load.share.caller + std::to_string(submitted_++);
    serving_.Submit({.id = id,
                     .prompt_tokens = random_.From(load.least_prompt, load.most_prompt),
                     .max_tokens = random_.From(1, load.most_output),
                     .same_tokens = load.same_tokens,
                     .share = load.share});
    return id;
  }

  FakeServing serving_;
  Random& random_;
  std::vector<std::pair<Load, std::vector<std::string>>> loads_;
  std::map<std::string, int64_t> prefilled_;
  int64_t submitted_ = 0;
};

// An eighth of the sizes of a server on a CPU: steps of 64 tokens, short prompts of 12 and long ones of
// 1,000.
EngineLimits SharedLimits(const KvLayout& layout) {
  EngineLimits limits = TestLimits(layout, 8000);
  limits.max_step_tokens = 64;
  limits.max_sequences = 48;
  limits.context = 1100;
  return limits;
}

// Whatever the lengths of their prompts and however many they have alive, as long as each has always one to
// compute.
TEST(SchedulerSharesTest, PrefillTokensGoByWeight) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  const KvLayout layout = TestLayout({0}, 16);
  struct Lengths {
    const char* name;
    int64_t least, most;
  };
  constexpr Lengths kShort = {"short", 12, 12}, kLong = {"long", 1000, 1000}, kMixed = {"mixed", 1, 1000};
  const std::vector<std::pair<Lengths, Lengths>> mixes = {
      {kShort, kLong}, {kLong, kShort}, {kMixed, kMixed}, {kMixed, kShort}, {kShort, kShort}, {kLong, kLong}};
  for (int64_t mix = 0; mix < ScaledCount(6, 2); ++mix) {
    const auto& [light, heavy] = mixes[static_cast<size_t>(mix)];
    for (const int32_t weight : {3, 1}) {
      if (weight == 1 && ScaledCount(2, 1) == 1) continue;
      const auto outstanding = [&](const Lengths& of) {
        return of.most == 12 ? random.From(30, 300) : random.From(2, 100);
      };
      const Load light_load = {.share = {"light", 1, 0},
                               .outstanding = outstanding(light),
                               .least_prompt = light.least,
                               .most_prompt = light.most,
                               .most_output = random.From(1, 3)};
      const Load heavy_load = {.share = {"heavy", weight, 0},
                               .outstanding = outstanding(heavy),
                               .least_prompt = heavy.least,
                               .most_prompt = heavy.most,
                               .most_output = random.From(1, 3)};
      SCOPED_TRACE(std::string(light.name) + " x " + std::to_string(light_load.outstanding) + " against " +
                   heavy.name + " x " + std::to_string(heavy_load.outstanding) + " of weight " +
                   std::to_string(weight));
      SharedServing shared(SharedLimits(layout), layout, random);
      shared.Add(light_load);
      shared.Add(heavy_load);
      shared.Steps(200);
      shared.TakePrefilled("light");
      shared.TakePrefilled("heavy");
      shared.Steps(2000);
      if (HasFailure()) return;
      const auto of_light = static_cast<double>(shared.TakePrefilled("light"));
      const auto of_heavy = static_cast<double>(shared.TakePrefilled("heavy"));
      EXPECT_NEAR(of_heavy / of_light, weight, 0.1 * weight);
      shared.Stop();
    }
  }
}

// What the cache knows is nobody's part: it is tokens computed that are shared.
TEST(SchedulerSharesTest, TokensFromTheCacheAreNotCounted) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  const KvLayout layout = TestLayout({0}, 16);
  EngineLimits limits = SharedLimits(layout);
  limits.prefix_cache = true;
  SharedServing shared(limits, layout, random);
  shared.Add({.share = {.caller = "same"},
              .outstanding = 30,
              .least_prompt = 850,
              .most_prompt = 950,
              .same_tokens = 800});
  shared.Add({.share = {.caller = "other"}, .outstanding = 30, .least_prompt = 1, .most_prompt = 100});
  shared.Steps(300);
  shared.TakePrefilled("same");
  shared.TakePrefilled("other");
  shared.Steps(1000);
  const auto of_same = static_cast<double>(shared.TakePrefilled("same"));
  EXPECT_NEAR(of_same / static_cast<double>(shared.TakePrefilled("other")), 1, 0.1);
  EXPECT_GT(shared.serving().scheduler().prefix_hits(), 100'000);
  shared.Stop();
}

// A newcomer's first prompt, long or short, beside callers that have had all of the machine and all slots:
// until its first chunk they are given no more than a prompt each, and two steps' tokens.
TEST(SchedulerSharesTest, ANewcomerWaitsForOneTurnOfEachCaller) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  const KvLayout layout = TestLayout({0}, 16);
  for (int64_t round = 0; round < ScaledCount(20, 6); ++round) {
    const EngineLimits limits = SharedLimits(layout);
    SharedServing shared(limits, layout, random);
    std::map<std::string, int64_t> longest;
    for (int64_t c = random.From(1, 4); c > 0; --c) {
      const bool is_short = random.OneIn(2);
      const Load load = {.share = {"c" + std::to_string(c), static_cast<int32_t>(random.From(1, 5)), 0},
                         .outstanding = random.From(2, 200),
                         .least_prompt = is_short ? 1 : random.From(1, 1000),
                         .most_prompt = is_short ? 20 : 1000,
                         .most_output = random.From(1, 4)};
      longest[load.share.caller] = load.most_prompt;
      shared.Add(load);
    }
    shared.Steps(random.From(100, 300));
    for (const auto& [caller, prompt] : longest) shared.TakePrefilled(caller);
    const int64_t prompt = random.OneIn(2) ? 12 : 1000;
    shared.serving().Submit({.id = "new", .prompt_tokens = prompt, .max_tokens = 1, .share = {"new"}});
    int64_t steps = 0;
    while (!shared.serving().has_ended("new") && shared.serving().sequence("new").scheduled_len() == 0) {
      shared.Steps(1);
      ASSERT_LT(++steps, 1000);
    }
    int64_t given = 0, most = 2 * int64_t{limits.max_step_tokens};
    for (const auto& [caller, prompt_of] : longest) {
      given += shared.TakePrefilled(caller);
      most += prompt_of;
    }
    EXPECT_LE(given, most) << "round " << round << ", a prompt of " << prompt;
    shared.Stop();
    if (HasFailure()) return;
  }
}

// ---- storms -------------------------------------------------------------------------------------

// Tiny pools, small chunks, up to three steps in flight, choices, prompts that begin alike with the prefix
// cache on or off, cancellations at any moment: everything finishes, every page and slot comes back, and
// FakeServing checks every key of every step on the way.
TEST(SchedulerSimTest, EverythingFinishesInAStormOverTinyPools) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  const std::vector<std::vector<int32_t>> models = {{0}, {24}, {0, 24}, {0, 16, 16, 16}, {0, 24, 7}};
  const int64_t storms = ScaledCount(300, 20);
  int64_t preemptions = 0;
  int64_t set_aside = 0;
  int64_t hits = 0;
  for (int64_t storm = 0; storm < storms; ++storm) {
    const KvLayout layout =
        TestLayout(models[random.From(0, 4)], static_cast<int32_t>(1 << random.From(0, 4)));
    const int64_t least_pages = layout.PagesForSequence(40, layout.format.page_size);
    EngineLimits limits = TestLimits(layout, random.From(least_pages, least_pages * 4));
    limits.steps_in_flight = static_cast<int32_t>(random.From(1, kMaxStepsInFlight));
    limits.max_step_tokens = static_cast<int32_t>(random.From(1, 64));
    limits.context =
        std::min<int64_t>(200, ContextThatFits(layout, limits.pool_pages, limits.max_step_tokens));
    limits.max_sequences = static_cast<int32_t>(random.From(3, 12));
    limits.max_choices = 3;
    limits.max_partial_prefills = static_cast<int32_t>(random.From(1, 4));
    limits.max_prefill_steps = static_cast<int32_t>(random.From(1, 3));
    limits.attended_keys_per_token = random.From(1, 200);
    limits.max_step_cost = random.From(0, 2) * random.From(1, 200);
    limits.lane_policy = kPolicies[random.From(0, 2)];
    limits.prefix_cache = random.OneIn(2);
    limits.decode_gap_ns = random.From(0, 1) * random.From(1, 100);  // a step takes its cost in nanoseconds
    limits.least_step_tokens = static_cast<int32_t>(random.From(0, 8));
    SCOPED_TRACE("storm " + std::to_string(storm) + "\n" + limits.ToString());
    limits.priority_ageing_ns = random.From(1, 200);
    FakeServing serving(limits, layout);
    serving.step_ns = [](const StepPlan& plan) { return plan.cost; };
    const int64_t callers = random.From(0, 3);
    const int32_t priorities = static_cast<int32_t>(random.From(0, 1) * random.From(0, 4));
    const int64_t requests = random.From(1, 30);
    int64_t submitted = 0;
    for (int64_t step = 0; submitted < requests || serving.unfinished() > 0; ++step) {
      ASSERT_LT(step, 100000) << "still running: " << serving.last_plan();
      while (submitted < requests && random.OneIn(5)) {
        const int64_t longest = limits.context - 1;
        const int64_t prompt = random.From(1, random.OneIn(2) ? longest : std::min<int64_t>(10, longest));
        const int64_t output = random.OneIn(8)
                                   ? limits.context - prompt
                                   : random.From(0, std::min<int64_t>(30, limits.context - prompt));
        serving.Submit({.id = "r" + std::to_string(submitted++),
                        .prompt_tokens = prompt,
                        .max_tokens = output,
                        .choices = static_cast<int32_t>(random.From(1, 3)),
                        .prompt_logprobs = random.OneIn(4),
                        .stops_after = random.OneIn(3) ? random.From(1, 20) : -1,
                        .same_tokens = random.From(0, 1) * random.From(0, longest),
                        .same_text = random.From(0, 2),
                        .share = {.caller = std::string(static_cast<size_t>(random.From(0, callers)), 'c'),
                                  .weight = static_cast<int32_t>(random.From(1, 4)),
                                  .priority = static_cast<int32_t>(random.From(0, priorities))}});
      }
      if (submitted > 0 && random.OneIn(40))
        serving.Cancel("r" + std::to_string(random.From(0, submitted - 1)));
      serving.Step();
      if (HasFailure()) return;
    }
    serving.RunUntilIdle(10);
    preemptions += serving.scheduler().preemptions();
    set_aside += serving.scheduler().set_aside();
    hits += serving.scheduler().prefix_hits();
  }
  EXPECT_GT(preemptions, storms) << "the pools were not tiny";
  EXPECT_GT(set_aside, storms / 10) << "no slots moved";
  EXPECT_GT(hits, 0) << "nothing was found";
}

// What preemption costs when four times more wants to run than the pool holds: no more than half of the
// computed positions are computed again.
TEST(SchedulerSimTest, AnOverloadedPoolDoesNotThrash) {
  const KvLayout layout = TestLayout({0}, 16);
  EngineLimits limits = TestLimits(layout, 64);  // 1,024 tokens
  limits.max_step_tokens = 128;
  FakeServing serving(limits, layout);
  int64_t computed = 0;
  serving.on_plan = [&](const StepPlan& plan) { computed += plan.tokens; };
  int64_t asked = 0;
  for (int i = 0; i < 40; ++i) {
    const Ask ask = {.id = "r" + std::to_string(i), .prompt_tokens = 40 + 3 * i, .max_tokens = 100};
    asked += ask.prompt_tokens + ask.max_tokens - 1;
    serving.Submit(ask);
  }
  serving.RunUntilIdle(20000);
  EXPECT_GT(serving.scheduler().preemptions(), 0);
  RecordProperty("computed_per_asked_percent", static_cast<int>(100 * computed / asked));
  EXPECT_LT(computed, 2 * asked);
}

// ---- long runs ----------------------------------------------------------------------------------

// 20,000 tokens of decode on a mixed model, window 64: the windowed groups stay at ceil(64 / 16) + 1 pages
// while the full one grows. FakeServing checks the bound and the visible keys at every step.
TEST(SchedulerSimTest, AWindowedGroupHoldsTheSamePagesAfterTwentyThousandTokens) {
  const int64_t tokens = ScaledCount(20000, 1000);
  const KvLayout layout = TestLayout({0, 64, 64, 64}, 16);
  ASSERT_EQ(layout.groups.size(), 4u);
  for (int32_t steps_in_flight : {1, 2}) {
    EngineLimits limits = TestLimits(layout, layout.PagesForSequence(tokens + 100, 128) + 1);
    limits.max_step_tokens = 32;
    limits.steps_in_flight = steps_in_flight;
    FakeServing serving(limits, layout);
    serving.always_check_keys = 256;
    serving.Submit({.id = "a", .prompt_tokens = 100, .max_tokens = tokens});
    int64_t most = 0;
    for (int64_t step = 0; serving.unfinished() > 0; ++step) {
      ASSERT_LT(step, tokens + 100);
      serving.Step();
      if (HasFailure()) return;
      if (serving.unfinished() == 0) break;
      const Sequence& sequence = serving.sequence("a");
      if (sequence.state() != SequenceState::kDecode || sequence.accepted_len() < 101) continue;
      for (int group = 1; group < 4; ++group) {
        most = std::max(most, static_cast<int64_t>(sequence.lease().tables[group].pages.size()));
      }
    }
    EXPECT_EQ(most, 5) << steps_in_flight << " steps in flight";
    EXPECT_EQ(serving.ended("a").completion_tokens[0], tokens);
    EXPECT_EQ(serving.scheduler().store().free_pages(), limits.pool_pages);
  }
}

}  // namespace
}  // namespace tramontane
