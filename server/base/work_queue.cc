#include "server/base/work_queue.h"

#include <algorithm>
#include <tuple>

#include "server/base/held_bytes.h"

namespace tramontane {

bool WorkQueue::ComesBefore::operator()(const Member* a, const Member* b) const {
  const Share &one = a->second, &other = b->second;
  return std::tie(one.running, one.used_ns, one.since) < std::tie(other.running, other.used_ns, other.since);
}

// A member changes its place while it stands in no line.
template <typename Change>
void WorkQueue::Update(Member& member, const Change& change) {
  for (auto& turns : turns_) turns.erase(&member);
  change(member.second);
  const Share& share = member.second;
  for (const Length length : kLengths) {
    if (!share.lines[length].empty()) turns_[length].insert(&member);
  }
  if (share.waiting == 0 && share.running == 0) members_.erase(members_.find(member.first));
}

// ---- what comes ---------------------------------------------------------------------------------

bool WorkQueue::Push(WorkPiece piece, std::vector<WorkPiece>* given_way) {
  Member& own = *members_.try_emplace(piece.caller).first;
  const bool has_room = MakeRoom(piece.bytes, own.second, given_way);
  Update(own, [&](Share& share) {
    if (!has_room) return;
    if (share.waiting == 0 && share.running == 0) {
      share.since = ++moment_;
      share.used_ns = least_used_ns_;
    }
    ++share.waiting, ++waiting_;
    share.waiting_bytes += piece.bytes;
    pending_bytes_ += piece.bytes;
    share.lines[IsLong(piece) ? kLong : kShort].push_back({++moment_, std::move(piece)});
  });
  return has_room;
}

// Where another's bytes give way there is room for one more piece, too: nothing gives way in vain.
bool WorkQueue::MakeRoom(int64_t bytes, const Share& share, std::vector<WorkPiece>* given_way) {
  if (options_.keeps_room) {
    if (share.waiting == 0) return waiting_ < options_.max_queued;
    return FitsShare(share.waiting + 1, waiting_ + 1, options_.max_queued);
  }
  if (IsBeyondHalf(bytes, share)) return false;
  const auto make = [&](int64_t Share::* amount, int64_t own, const auto& is_full) {
    if (!is_full()) return true;
    Member* const most = MemberWithMost(amount);
    if (most == nullptr || most->second.*amount <= own) return false;
    while (is_full()) given_way->push_back(TakeNewest(*most));
    return true;
  };
  return make(&Share::waiting_bytes, share.waiting_bytes + bytes,
              [&] { return pending_bytes_ + bytes > options_.max_queued_bytes; }) &&
         make(&Share::waiting, share.waiting + 1, [&] { return waiting_ >= options_.max_queued; });
}

bool WorkQueue::IsBeyondHalf(int64_t bytes, const Share& share) const {
  const bool others_wait = waiting_ > share.waiting;
  return others_wait && (share.waiting + 1 > std::max(1, options_.max_queued / 2) ||
                         share.waiting_bytes + bytes > options_.max_queued_bytes / 2);
}

WorkQueue::Member* WorkQueue::MemberWithMost(int64_t Share::* amount) {
  const auto most = std::max_element(members_.begin(), members_.end(), [&](const Member& a, const Member& b) {
    return a.second.*amount < b.second.*amount;
  });
  return most == members_.end() ? nullptr : &*most;
}

WorkPiece WorkQueue::TakeNewest(Member& member) {
  WorkPiece piece;
  Update(member, [&](Share& share) {
    const auto order = [&](Length length) {
      return share.lines[length].empty() ? 0 : share.lines[length].back().order;
    };
    piece = Take(share, order(kLong) > order(kShort) ? kLong : kShort, /*newest=*/true);
  });
  pending_bytes_ -= piece.bytes;
  return piece;
}

WorkPiece WorkQueue::Take(Share& share, Length length, bool newest) {
  std::deque<Waiting>& line = share.lines[length];
  WorkPiece piece = std::move((newest ? line.back() : line.front()).piece);
  newest ? line.pop_back() : line.pop_front();
  --share.waiting, --waiting_;
  share.waiting_bytes -= piece.bytes;
  return piece;
}

// ---- whose turn it is ---------------------------------------------------------------------------

std::optional<WorkPiece> WorkQueue::Begin(bool may_be_long) {
  Member* next = nullptr;
  Length length = kShort;
  for (const Length each : kLengths) {
    if (turns_[each].empty() || (each == kLong && !may_be_long)) continue;
    Member* const first = *turns_[each].begin();
    const Share& share = first->second;
    if (share.running >= options_.max_running_of_caller) continue;
    const bool is_sooner = next == nullptr || (next == first ? share.lines[kLong].front().order <
                                                                   share.lines[kShort].front().order
                                                             : ComesBefore()(first, next));
    if (!is_sooner) continue;
    next = first;
    length = each;
  }
  if (next == nullptr) return std::nullopt;
  std::optional<WorkPiece> piece;
  Update(*next, [&](Share& share) {
    least_used_ns_ = std::max(least_used_ns_, share.used_ns);
    piece = Take(share, length, /*newest=*/false);
    ++share.running, ++running_;
    share.since = ++moment_;
  });
  return piece;
}

void WorkQueue::End(const WorkPiece& begun, int64_t took_ns) {
  pending_bytes_ -= begun.bytes;
  --running_;
  Update(*members_.find(begun.caller), [&](Share& share) {
    --share.running;
    share.since = ++moment_;
    if (options_.by_time) share.used_ns += std::max<int64_t>(1, took_ns);  // so that turns change
  });
}

}  // namespace tramontane
