#include "engine/kv/lease.h"

namespace tramontane {
namespace {

// Of a text that goes by, one window in so many is kept as if a hit could end there: prefix_bench.
constexpr int64_t kWindowsPerKept = 8;

bool ChangesWhatIsSeen(const ContextPolicy& policy) {
  return policy.type == ContextPolicyType::kSinks || policy.type == ContextPolicyType::kShift;
}

}  // namespace

// After a discard of `shift` the newest query
// stands at n_ctx - n_discard or later: a window that ends before the sinks there never meets them again.
int64_t SinksOf(const ContextPolicy& policy, int32_t window) {
  if (!ChangesWhatIsSeen(policy)) return 0;
  const bool out_of_sight = policy.type == ContextPolicyType::kShift && window > 0 &&
                            policy.n_keep + window < policy.n_ctx - policy.n_discard + 2;
  return out_of_sight ? 0 : policy.n_keep;
}

// Where the context is full, or where a window leaves the sinks, which then stay.
int64_t PlainLength(const ContextPolicy& policy, const KvLayout& layout) {
  if (!ChangesWhatIsSeen(policy)) return INT64_MAX;
  int64_t length = policy.n_ctx;
  if (policy.type != ContextPolicyType::kSinks || policy.n_keep == 0) return length;
  for (const KvGroupSpec& group : layout.groups) length = std::min(length, Reach(group.window));
  return length;
}

int64_t PagesOfGroupUnderPolicy(const KvLayout& layout, size_t group, const ContextPolicy& policy,
                                int64_t ahead) {
  return Paging(layout.format).PagesFor(SinksOf(policy, layout.groups[group].window)) +
         PagesInSight(layout, group, policy.n_ctx - policy.n_keep, ahead);
}

int64_t PagesInSight(const KvLayout& layout, size_t group, int64_t most, int64_t ahead) {
  return Paging(layout.format).PagesFor(std::min(Reach(layout.groups[group].window), most) - 1 + ahead) + 1;
}

int64_t PlainBlocksEnd(const ContextPolicy& policy, const KvLayout& layout) {
  const int64_t length = PlainLength(policy, layout);
  return length == INT64_MAX ? INT64_MAX : Paging(layout.format).RoundDown(length);
}

RowView SeenAt(const Lease& lease, int64_t position) {
  if (position < lease.plain_len) return {.sink_position = position};
  const ContextView view = ViewAt(lease.policy, position);
  return {.sink_len = view.sink_len,
          .left = view.left,
          .sink_position = view.sink_query_position,
          .sink_limit = lease.policy.type == ContextPolicyType::kShift ? view.sink_query_position : 0};
}

bool EndsNear(const Lease& lease, const KvLayout& layout, int64_t begin, size_t group) {
  const Paging paging = layout.format;
  const bool under_policy = begin >= PlainBlocksEnd(lease.policy, layout);
  const auto is_seen = [&](int64_t least_end, int64_t most_end) {
    const int64_t left = under_policy ? SeenAt(lease, least_end).left : 0;
    return begin < most_end &&
           begin + paging.tokens() > FirstSeen(least_end, layout.groups[group].window, left);
  };
  const int64_t asked = lease.asked_tokens;
  int64_t interval = 0;  // from one place on the way to the next: by the widest window
  for (const KvGroupSpec& of : layout.groups)
    interval = std::max(interval, paging.RoundUp(kWindowsPerKept * of.window));
  // The first of them that is not in front of the page's end.
  const int64_t next = interval == 0 ? 0 : (begin + paging.tokens() + interval - 1) / interval * interval;
  return is_seen(lease.hit_tokens, lease.hit_tokens) || is_seen(lease.known_tokens, lease.known_tokens) ||
         is_seen(next, next) || (asked > 0 && is_seen(paging.RoundDown(asked - 1), paging.RoundDown(asked)));
}

std::vector<PrefixGroup> PrefixGroupsOf(const KvLayout& layout, const ContextPolicy& policy) {
  std::vector<PrefixGroup> groups;
  for (const KvGroupSpec& group : layout.groups) {
    groups.push_back({.window = group.window, .n_keep = SinksOf(policy, group.window)});
  }
  return groups;
}

int64_t LeftAt(const KvLayout& layout, const ContextPolicy& policy, int64_t position) {
  return position < PlainLength(policy, layout) ? 0 : ViewAt(policy, position).left;
}

int64_t SinkPages(const Lease& lease, const KvLayout& layout, size_t group) {
  return Paging(layout.format).PagesFor(SinksOf(lease.policy, layout.groups[group].window));
}

int64_t PagesUnderPolicy(const KvLayout& layout, const ContextPolicy& policy, int64_t ahead) {
  int64_t pages = 0;
  for (size_t group = 0; group < layout.groups.size(); ++group)
    pages += PagesOfGroupUnderPolicy(layout, group, policy, ahead);
  return pages;
}

}  // namespace tramontane
