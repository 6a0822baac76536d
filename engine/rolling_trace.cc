#include "engine/rolling_trace.h"

#include <algorithm>
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
  TM_RETURN_IF_ERROR(CheckWithin("window", options.window, 1, kMaxTracedWindow));
  TM_RETURN_IF_ERROR(CheckWithin("chunk", options.chunk, 1, kMaxTracedTokens));
  TM_RETURN_IF_ERROR(CheckWithin("decode_steps", options.decode_steps, 0, kMaxTracedTokens));
  TM_RETURN_IF_ERROR(CheckWithin("page_size", options.page_size, 1, kMaxPageSize));
  if (options.prompt_tokens.empty()) {
    return InvalidArgument("is empty").WithField("seqlens", FieldForm::kSubject);
  }
  int64_t tokens = 0;
  for (size_t b = 0; b < options.prompt_tokens.size(); ++b) {
    TM_RETURN_IF_ERROR(
        CheckWithin(FieldElement("seqlens", b).c_str(), options.prompt_tokens[b], 1, kMaxTracedTokens));
    tokens += options.prompt_tokens[b] + int64_t{options.decode_steps};
  }
  return CheckWithin("all sequences' tokens", tokens, 1, kMaxTracedTokens);
}

// The newest stored position of each slot, read out of a table that holds positions below `end`.
std::vector<int64_t> RingOf(const PageTable& table, int64_t end, int32_t window) {
  std::vector<int64_t> ring(static_cast<size_t>(window), -1);
  for (int64_t position = std::max(table.kv_base, end - window); position < end; ++position) {
    ring[static_cast<size_t>(RingSlot(position, window, 0))] = position;
  }
  return ring;
}

// The sequences on their way through the iterations.
class Trace {
 public:
  explicit Trace(const RollingTraceOptions& options)
      : options_(options), store_(LayoutOf(options), PagesFor(options), PrefixCache::kOff) {
    for (size_t b = 0; b < options.prompt_tokens.size(); ++b) {
      sequences_.push_back({store_.NewLease(), 0, RingOf({}, 0, options.window)});
    }
  }

  std::vector<RollingStep> Run() {
    std::vector<RollingStep> steps;
    const int64_t longest = *std::max_element(options_.prompt_tokens.begin(), options_.prompt_tokens.end());
    for (int64_t begin = 0; begin < longest; begin += options_.chunk) {
      RollingStep& step = steps.emplace_back();
      step.phase = begin == 0 ? RollingPhase::kFirstPrefill : RollingPhase::kSubsequentPrefill;
      std::vector<int64_t> new_tokens;
      for (size_t b = 0; b < sequences_.size(); ++b) {
        const int64_t left = options_.prompt_tokens[b] - sequences_[b].seen;
        new_tokens.push_back(std::clamp<int64_t>(left, 0, options_.chunk));
      }
      Take(new_tokens, &step);
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
    int64_t seen = 0;
    std::vector<int64_t> ring;
  };

  static KvLayout LayoutOf(const RollingTraceOptions& options) {
    return MakeKvLayout({options.window}, {.kv_heads = 1, .head_dim = 2, .page_size = options.page_size});
  }
  static int64_t PagesFor(const RollingTraceOptions& options) {
    const KvLayout layout = LayoutOf(options);
    int64_t pages = 0;
    for (const int32_t prompt : options.prompt_tokens) {
      pages += layout.PagesForSequence(int64_t{prompt} + options.decode_steps, options.chunk);
    }
    return pages;
  }

  // One iteration. Tables roll when all sequences have run: a page that one lets go must not be written by
  // another of the same step.
  void Take(const std::vector<int64_t>& new_tokens, RollingStep* step) {
    for (size_t b = 0; b < sequences_.size(); ++b) {
      step->rows.push_back(Extend(sequences_[b], static_cast<int64_t>(b), step->phase, new_tokens[b]));
    }
    for (size_t b = 0; b < sequences_.size(); ++b) {
      sequences_[b].seen += new_tokens[b];
      if (new_tokens[b] > 0) store_.Roll(sequences_[b].lease, sequences_[b].seen);
      step->rows[b].rolled_kv_base = sequences_[b].lease.tables[0].kv_base;
    }
  }

  RollingRow Extend(Sequence& sequence, int64_t b, RollingPhase phase, int64_t new_tokens) {
    RollingRow row;
    row.seen = sequence.seen;
    const std::vector<int64_t> before = sequence.ring;
    if (new_tokens > 0) {
      const int64_t end = sequence.seen + new_tokens;
      std::vector<PageCopy> copies;  // none: no page is shared
      store_.Extend(sequence.lease, sequence.seen, end, &copies);
      sequence.ring = RingOf(sequence.lease.tables[0], end, options_.window);
      for (int64_t p = std::max(sequence.seen, end - options_.window); p < end; ++p) {
        row.cache_slots.push_back(RingSlot(p, options_.window, b));
      }
    }
    row.table = sequence.lease.tables[0];
    row.ring = sequence.ring;
    row.block =
        MakeRollingBlock(phase, row.seen, new_tokens, phase == RollingPhase::kDecode ? row.ring : before);
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

}  // namespace tramontane
