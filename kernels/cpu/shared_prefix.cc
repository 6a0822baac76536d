#include "kernels/cpu/shared_prefix.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/cpu/attention_kernels.h"

namespace tramontane {
namespace {

// Rows from which on those of several sequences are served faster from copies of keys and values in f32 than
// each sequence's from the pages: attention_bench --only shared.
constexpr int64_t kRowsWorthCopies = 32;

// A sequence and its pages from the first segment on that its query sees whole.
struct Candidate {
  PagesOfSequence pages = {};
  int64_t first_page = 0;  // its absolute number
  int64_t page_count = 0;
  int32_t sequence = 0;
  int64_t first_segment = 0;
  int64_t end = 0;  // position after its last key

  const int32_t* At(int64_t index) const { return &pages.entries[(first_page + index) & pages.mask]; }
  // Pages from `index` on that lie side by side.
  int64_t RunAt(int64_t index) const {
    const int64_t left = page_count - index;
    return pages.mask < 0 ? left : std::min(left, pages.mask + 1 - ((first_page + index) & pages.mask));
  }

  bool operator<(const Candidate& other) const;
};

// How many pages both begin with.
int64_t CommonPages(const Candidate& a, const Candidate& b) {
  int64_t common = 0;
  while (common < a.page_count && common < b.page_count) {
    const int64_t run = std::min(a.RunAt(common), b.RunAt(common));
    const int32_t* const begin = a.At(common);
    const int64_t alike = std::mismatch(begin, begin + run, b.At(common)).first - begin;
    common += alike;
    if (alike < run) break;
  }
  return common;
}

bool Candidate::operator<(const Candidate& other) const {
  if (first_segment != other.first_segment) return first_segment < other.first_segment;
  const int64_t common = CommonPages(*this, other);
  if (common == page_count || common == other.page_count) {
    return page_count != other.page_count ? page_count < other.page_count : sequence < other.sequence;
  }
  return *At(common) < *other.At(common);
}

int64_t AlignTo8(int64_t bytes) { return (bytes + 7) / 8 * 8; }

Candidate CandidateOf(const AttentionParams& params, int32_t sequence) {
  const AttentionTile tile = {.params = &params, .sequence = sequence};
  const int32_t page_size = params.kv.format.page_size;
  const PositionRange seen = tile.Seen(0);
  const int64_t segment = (seen.begin + kAttentionSegmentKeys - 1) / kAttentionSegmentKeys;
  const int64_t first = PageOf(segment * kAttentionSegmentKeys, 0, page_size);
  const int64_t end = PagesFor(params.table.kv_end[sequence], page_size);
  return {.pages = PagesOf(params.table, sequence),
          .first_page = first,
          .page_count = std::max<int64_t>(end - first, 0),
          .sequence = sequence,
          .first_segment = segment,
          .end = seen.end};
}

// The segment after the last one that both have in the same pages.
int64_t EndOfShared(const Candidate& a, const Candidate& b, int32_t page_size) {
  if (a.first_segment != b.first_segment) return a.first_segment;
  const int64_t begin = a.first_segment * kAttentionSegmentKeys;
  const int64_t first_page_begin = begin - OffsetInPage(begin, page_size);
  const int64_t common =
      IsBroken(KvRule::kSharedPages) ? std::min(a.page_count, b.page_count) : CommonPages(a, b);
  const int64_t end = std::min({first_page_begin + common * page_size, a.end, b.end});
  return std::max(end / kAttentionSegmentKeys, a.first_segment);
}

int64_t LengthsBytes(int64_t batch) { return AlignTo8((5 * batch + 1) * int64_t{sizeof(int32_t)}); }

// Calls visit(array, count) for what says where the sequences' pages are listed, how long they are and how
// many queries they have.
template <typename Visit>
void ForLengths(const AttentionParams& params, const Visit& visit) {
  visit(params.qo_indptr, params.batch + 1);
  visit(params.table.first_entry, params.batch);
  visit(params.table.kv_end, params.batch);
  visit(params.table.kv_base, params.batch);
  if (params.table.page_mask != nullptr) visit(params.table.page_mask, params.batch);
}

// Whether the sharers see all of their segments, and their tables list the same pages for them.
bool StillShare(const AttentionParams& params, const PrefixSharers& sharers) {
  for (int32_t s = 0; s < sharers.count; ++s) {
    if (!IsPlain(params, sharers.sequences[s])) return false;
  }
  const int32_t page_size = params.kv.format.page_size;
  const int64_t first = PageOf(sharers.first_segment * kAttentionSegmentKeys, 0, page_size);
  const int64_t last = PageOf(sharers.end_segment * kAttentionSegmentKeys - 1, 0, page_size);
  const auto candidate_of = [&](int32_t s) {
    return Candidate{.pages = PagesOf(params.table, sharers.sequences[s]),
                     .first_page = first,
                     .page_count = last + 1 - first};
  };
  const Candidate leader = candidate_of(0);
  for (int32_t s = 1; s < sharers.count; ++s) {
    if (CommonPages(leader, candidate_of(s)) < leader.page_count) return false;
  }
  return true;
}

}  // namespace

SharerLimits SharersAllowed(int64_t tiles, int32_t group, int32_t threads) {
  const int64_t for_threads = tiles / (kAttentionTilesPerThread * threads);
  return {.most = std::min<int64_t>(kAttentionTileRows / group, for_threads),
          .many = kRowsWorthCopies / group,
          .few = kAttentionFewRows / group};
}

int64_t SharedPrefixBytes(int64_t batch) {
  return batch * static_cast<int64_t>(sizeof(Candidate) + sizeof(PrefixSharers)) +
         AlignTo8(batch * static_cast<int64_t>(sizeof(int32_t)));
}

SharedPrefixes FindSharedPrefixes(const AttentionParams& params, const SharerLimits& limits,
                                  std::byte* memory) {
  if (limits.most < 2) return {};
  const int32_t page_size = params.kv.format.page_size;
  auto* const candidates = reinterpret_cast<Candidate*>(memory);
  auto* const groups = reinterpret_cast<PrefixSharers*>(candidates + params.batch);
  auto* sequences = reinterpret_cast<int32_t*>(groups + params.batch);
  int32_t count = 0;
  for (int32_t b = 0; b < params.batch; ++b) {
    if (params.qo_indptr[b + 1] - params.qo_indptr[b] != 1 || !IsPlain(params, b)) continue;
    const Candidate candidate = CandidateOf(params, b);
    if (candidate.end < (candidate.first_segment + 1) * kAttentionSegmentKeys) continue;
    new (&candidates[count++]) Candidate(candidate);
  }
  // Those that share most become neighbours.
  std::sort(candidates, candidates + count);
  SharedPrefixes found = {.groups = groups};
  for (int32_t leader = 0; leader + 1 < count;) {
    const Candidate& first = candidates[leader];
    const auto shared_by = [&](int64_t i) {  // segments of neighbours i and i + 1
      if (i + 1 >= count) return int64_t{0};
      return EndOfShared(candidates[i], candidates[i + 1], page_size) - candidates[i].first_segment;
    };
    if (shared_by(leader + 1) > 2 * shared_by(leader)) {  // the next two save more without it
      ++leader;
      continue;
    }
    int64_t end_segment = 0;
    int64_t members = 1;
    // Another sequence is taken as long as so many walks of segments are saved.
    for (; leader + members < count && members < limits.most; ++members) {
      const int64_t end = EndOfShared(first, candidates[leader + members], page_size);
      const int64_t length = end - first.first_segment;
      if (length == 0 || length * members < (end_segment - first.first_segment) * (members - 1)) break;
      end_segment = members == 1 ? end : std::min(end, end_segment);
    }
    if (members < limits.many) members = std::min(members, std::max<int64_t>(limits.few, 1));
    if (members > 1) {
      new (&groups[found.count++]) PrefixSharers{.sequences = sequences,
                                                 .count = static_cast<int32_t>(members),
                                                 .first_segment = first.first_segment,
                                                 .end_segment = end_segment};
      for (int64_t i = 0; i < members; ++i) *sequences++ = candidates[leader + i].sequence;
    }
    leader += static_cast<int32_t>(members);
  }
  return found;
}

int64_t SharedPrefixMemo::Bytes(int64_t batch) {
  return kTables * (LengthsBytes(batch) + SharedPrefixBytes(batch));
}

void SharedPrefixMemo::Reset(std::byte* memory, int64_t batch) {
  memory_ = memory;
  max_batch_ = batch;
  for (Table& table : tables_) table = {};
}

int32_t* SharedPrefixMemo::LengthsOf(int64_t table) const {
  return reinterpret_cast<int32_t*>(memory_ + table * LengthsBytes(max_batch_));
}

std::byte* SharedPrefixMemo::FoundOf(int64_t table) const {
  return memory_ + kTables * LengthsBytes(max_batch_) + table * SharedPrefixBytes(max_batch_);
}

bool SharedPrefixMemo::Holds(int64_t index, const AttentionParams& params, const SharerLimits& limits) const {
  const Table& table = tables_[index];
  if (table.page_indices != params.table.page_indices || table.batch != params.batch ||
      table.has_rings != (params.table.page_mask != nullptr) ||
      table.page_size != params.kv.format.page_size || table.window != params.window ||
      table.limits != limits) {
    return false;
  }
  const int32_t* lengths = LengthsOf(index);
  bool same = true;
  ForLengths(params, [&](const int32_t* array, int32_t count) {
    same = same && std::equal(array, array + count, lengths);
    lengths += count;
  });
  return same && std::all_of(table.found.groups, table.found.groups + table.found.count,
                             [&](const PrefixSharers& sharers) { return StillShare(params, sharers); });
}

SharedPrefixes SharedPrefixMemo::Find(const AttentionParams& params, const SharerLimits& limits) {
  if (limits.most < 2) return {};
  TM_CHECK(params.batch <= max_batch_, "attention of %d sequences, reserved for %lld", params.batch,
           static_cast<long long>(max_batch_));
  for (int64_t i = 0; i < kTables; ++i) {
    if (Holds(i, params, limits)) return tables_[i].found;
  }
  const int64_t index = std::exchange(next_, (next_ + 1) % kTables);
  int32_t* lengths = LengthsOf(index);
  ForLengths(params,
             [&](const int32_t* array, int32_t count) { lengths = std::copy_n(array, count, lengths); });
  ++searches_;
  tables_[index] = {.page_indices = params.table.page_indices,
                    .batch = params.batch,
                    .has_rings = params.table.page_mask != nullptr,
                    .page_size = params.kv.format.page_size,
                    .window = params.window,
                    .limits = limits,
                    .found = FindSharedPrefixes(params, limits, FoundOf(index))};
  return tables_[index].found;
}

}  // namespace tramontane
