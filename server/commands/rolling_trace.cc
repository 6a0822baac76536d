#include "server/commands/rolling_trace.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "models/kv_layout.h"

namespace tramontane {
namespace {

// Every iteration is kept, and each holds a ring for every sequence.
constexpr int64_t kMaxTracedTokens = 1 << 14;  // of all sequences
constexpr int64_t kMaxTracedWindow = 1 << 12;

Status CheckWithin(const char* option, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return InvalidArgument("is " + std::to_string(value) + ", allowed are " + std::to_string(least) + " to " +
                         std::to_string(most))
      .WithField(option, FieldForm::kSubject);
}

Status CheckOptions(const RollingTraceOptions& options) {
  TM_RETURN_IF_ERROR(CheckWithin("window", options.window, 0, kMaxTracedWindow));
  TM_RETURN_IF_ERROR(CheckWithin("chunk", options.chunk, 1, kMaxTracedTokens));
  TM_RETURN_IF_ERROR(CheckWithin("decode_steps", options.decode_steps, 0, kMaxTracedTokens));
  TM_RETURN_IF_ERROR(CheckWithin("page_size", options.page_size, 1, kMaxPageSize));
  if (options.prompt_tokens.empty()) {
    return InvalidArgument("is empty").WithField("seqlens", FieldForm::kSubject);
  }
  TM_RETURN_IF_ERROR(CheckContextPolicy(options.policy));
  if (options.policy.type == ContextPolicyType::kReevaluate) {
    return InvalidArgument("is reevaluate, whose sequences begin again")
        .WithField("policy", FieldForm::kSubject);
  }
  int64_t tokens = 0;
  for (size_t b = 0; b < options.prompt_tokens.size(); ++b) {
    TM_RETURN_IF_ERROR(
        CheckWithin(FieldElement("seqlens", b).c_str(), options.prompt_tokens[b], 1, kMaxTracedTokens));
    tokens += options.prompt_tokens[b] + int64_t{options.decode_steps};
  }
  TM_RETURN_IF_ERROR(CheckWithin("all sequences' tokens", tokens, 1, kMaxTracedTokens));
  const int32_t shortest = *std::min_element(options.prompt_tokens.begin(), options.prompt_tokens.end());
  return CheckWithin("shared_prefix", options.shared_prefix, 0, shortest);
}

// The first of the positions below `end` that a ring still has. No window is no ring: none.
int64_t FirstInRing(int64_t end, int32_t window) { return window > 0 ? FirstVisible(end - 1, window) : end; }

// The newest stored position of each slot, read out of a table that holds positions below `end`.
std::vector<int64_t> RingOf(const PageTable& table, int64_t end, int32_t window) {
  std::vector<int64_t> ring(static_cast<size_t>(window), -1);
  for (int64_t position = std::max(table.kv_base, FirstInRing(end, window)); position < end; ++position) {
    ring[static_cast<size_t>(RingSlot(position, window, 0))] = position;
  }
  return ring;
}

// Page ids that `before` lists and `after` does not.
std::vector<PageId> Missing(const PageTable& before, const PageTable& after) {
  std::vector<PageId> missing;
  for (const PageId page : before.pages) {
    const bool stays = std::count(after.pages.begin(), after.pages.end(), page) > 0 ||
                       std::count(after.sinks.begin(), after.sinks.end(), page) > 0;
    if (!stays) missing.push_back(page);
  }
  return missing;
}

// The sequences on their way through the iterations.
class Trace {
 public:
  explicit Trace(const RollingTraceOptions& options)
      : options_(options),
        store_(LayoutOf(options), PagesFor(options),
               options.shared_prefix > 0 ? PrefixCache::kOn : PrefixCache::kOff) {
    for (size_t b = 0; b < options.prompt_tokens.size(); ++b) {
      sequences_.push_back({.lease = store_.NewLease(options.policy),
                            .prompt = options.prompt_tokens[b],
                            .tokens = TokensOf(b),
                            .ring = RingOf({}, 0, options.window)});
    }
  }

  std::vector<RollingStep> Run() {
    std::vector<RollingStep> steps;
    while (std::any_of(sequences_.begin(), sequences_.end(), InPrompt)) {
      RollingStep step;
      step.phase = steps.empty() ? RollingPhase::kFirstPrefill : RollingPhase::kSubsequentPrefill;
      bool may_run = true;
      std::vector<int64_t> new_tokens, hits;
      for (Sequence& sequence : sequences_) {
        hits.push_back(may_run ? Start(sequence) : 0);
        const int64_t left = may_run ? sequence.prompt - sequence.seen : 0;
        new_tokens.push_back(std::clamp<int64_t>(left, 0, options_.chunk));
        // Those behind wait, where they may find what this one is still to fill.
        may_run = may_run && (options_.shared_prefix == 0 || !InPrompt(sequence));
      }
      Take(new_tokens, &step);
      for (size_t b = 0; b < hits.size(); ++b) step.rows[b].hit_tokens = hits[b];
      steps.push_back(std::move(step));
    }
    for (int32_t i = 0; i < options_.decode_steps; ++i) {
      RollingStep& step = steps.emplace_back();
      step.phase = RollingPhase::kDecode;
      Take(std::vector<int64_t>(sequences_.size(), 1), &step);
    }
    return steps;
  }

 private:
  struct Sequence {
    Lease lease;
    int64_t prompt = 0;
    std::vector<int32_t> tokens;  // ids, up to the last decode step
    std::vector<int64_t> ring;
    int64_t seen = 0;
    bool started = false;
  };

  static bool InPrompt(const Sequence& sequence) { return sequence.seen < sequence.prompt; }

  static KvLayout LayoutOf(const RollingTraceOptions& options) {
    return MakeKvLayout({options.window}, {.kv_heads = 1, .head_dim = 2, .page_size = options.page_size});
  }
  static int64_t PagesFor(const RollingTraceOptions& options) {
    const KvLayout layout = LayoutOf(options);
    const bool endless = options.policy.type != ContextPolicyType::kNone;
    int64_t pages = 0;
    for (const int32_t prompt : options.prompt_tokens) {
      pages += endless ? PagesUnderPolicy(layout, options.policy, options.chunk)
                       : layout.PagesForSequence(int64_t{prompt} + options.decode_steps, options.chunk);
    }
    return pages;
  }

  // Ids of sequence b: the same in all up to shared_prefix, and in no other from there on.
  std::vector<int32_t> TokensOf(size_t b) const {
    std::vector<int32_t> tokens;
    const int32_t count = options_.prompt_tokens[b] + options_.decode_steps;
    for (int32_t p = 0; p < count; ++p) {
      const bool shared = p < options_.shared_prefix;
      tokens.push_back(shared ? p
                              : static_cast<int32_t>((static_cast<int64_t>(b) + 1) * kMaxTracedTokens) + p);
    }
    return tokens;
  }

  // Tokens that it need not compute.
  int64_t Start(Sequence& sequence) {
    if (std::exchange(sequence.started, true)) return 0;
    const std::span<const int32_t> tokens(sequence.tokens);
    const int64_t hit =
        store_.Acquire(sequence.lease, {.tokens = tokens.first(static_cast<size_t>(sequence.prompt))});
    sequence.seen = hit;
    sequence.ring = RingOf(sequence.lease.tables[0], hit, options_.window);
    return hit;
  }

  // One iteration. Tables roll when all sequences have run: a page that one lets go must not be written by
  // another of the same step.
  void Take(const std::vector<int64_t>& new_tokens, RollingStep* step) {
    for (size_t b = 0; b < sequences_.size(); ++b) {
      step->rows.push_back(Extend(sequences_[b], static_cast<int64_t>(b), step->phase, new_tokens[b]));
    }
    for (size_t b = 0; b < sequences_.size(); ++b) {
      Sequence& sequence = sequences_[b];
      RollingRow& row = step->rows[b];
      sequence.seen += new_tokens[b];
      if (new_tokens[b] > 0) {
        store_.Seal(sequence.lease, sequence.tokens, sequence.seen);
        store_.Roll(sequence.lease, sequence.seen);
      }
      row.rolled_kv_base = sequence.lease.tables[0].kv_base;
      row.let_go = Missing(row.table, sequence.lease.tables[0]);
    }
    step->free_pages = store_.free_pages();
    step->cached_pages = store_.cached_pages();
    step->held_pages = store_.held_pages();
  }

  RollingRow Extend(Sequence& sequence, int64_t b, RollingPhase phase, int64_t new_tokens) {
    RollingRow row;
    row.seen = sequence.seen;
    const std::vector<int64_t> before = sequence.ring;
    if (new_tokens > 0) {
      const int64_t end = sequence.seen + new_tokens;
      std::vector<PageCopy> copies;  // none: a page that is shared is full
      store_.Extend(sequence.lease, sequence.seen, end, &copies);
      sequence.ring = RingOf(sequence.lease.tables[0], end, options_.window);
      for (int64_t p = std::max(sequence.seen, FirstInRing(end, options_.window)); p < end; ++p) {
        row.cache_slots.push_back(RingSlot(p, options_.window, b));
      }
    }
    row.table = sequence.lease.tables[0];
    row.ring = sequence.ring;
    row.block =
        MakeRollingBlock(phase, row.seen, new_tokens, phase == RollingPhase::kDecode ? row.ring : before);
    const bool has_ring = options_.window > 0 && options_.policy.type == ContextPolicyType::kNone;
    if (!has_ring) row.block.keys = PositionsOf(row.table, options_.page_size, row.end());
    return row;
  }

  const RollingTraceOptions& options_;
  KvStore store_;
  std::vector<Sequence> sequences_;
};

}  // namespace

StatusOr<std::vector<RollingStep>> TraceRolling(const RollingTraceOptions& options) {
  TM_RETURN_IF_ERROR(CheckOptions(options));
  return Trace(options).Run();
}

std::vector<RollingBlock> BlocksOf(const RollingStep& step) {
  std::vector<RollingBlock> blocks;
  for (const RollingRow& row : step.rows) blocks.push_back(row.block);
  return blocks;
}

StatusOr<RaggedMask> MaskOf(const RollingTraceOptions& options, const RollingStep& step) {
  return ContextMask(BlocksOf(step), options.policy, options.window);
}

std::vector<int64_t> PositionsOf(const PageTable& table, int32_t page_size, int64_t end) {
  std::vector<int64_t> positions;
  const auto sinks_end = static_cast<int64_t>(table.sinks.size()) * page_size;
  for (int64_t position = 0; position < sinks_end; ++position) positions.push_back(position);
  for (int64_t position = table.kv_base; position < end; ++position) positions.push_back(position);
  return positions;
}

int64_t PoolSlotOf(const PageTable& table, int32_t page_size, int64_t position) {
  const bool among_sinks = position < static_cast<int64_t>(table.sinks.size()) * page_size;
  const std::vector<PageId>& pages = among_sinks ? table.sinks : table.pages;
  if (position < 0 || (!among_sinks && position < table.kv_base)) return -1;
  const auto index = static_cast<size_t>(PageOf(position, among_sinks ? 0 : table.kv_base, page_size));
  return index < pages.size() ? SlotOf(pages[index], position, page_size) : -1;
}

}  // namespace tramontane
