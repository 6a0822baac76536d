#include "server/http/handler_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/base/held_bytes.h"

namespace tramontane {

bool HandlerQueue::ComesBefore::operator()(const Client* a, const Client* b) const {
  return std::tie(a->running, a->used_ns, a->number) < std::tie(b->running, b->used_ns, b->number);
}

// A client changes its place while it stands in no line.
template <typename Change>
void HandlerQueue::Update(Client& client, const Change& change) {
  for (size_t line = 0; line < kLines; ++line) turns_[line].erase(&client);
  change();
  for (size_t line = 0; line < kLines; ++line) {
    if (!client.lines[line].empty()) turns_[line].insert(&client);
  }
}

bool HandlerQueue::Push(HandlerWork work) {
  const auto known = clients_.find(work.client);
  const int64_t waiting = known == clients_.end() ? 0 : known->second.waiting;
  if (!FitsShare(waiting + 1, waiting_ + 1, max_waiting_)) return false;
  const uint64_t number = ++came_;
  const auto [member, is_new] = clients_.try_emplace(work.client);
  Client& client = member->second;
  if (is_new) {
    client.used_ns = least_used_ns_;
    client.number = number;
  }
  Update(client, [&] {
    client.lines[work.is_long() ? kLong : kShort].push_back({number, std::move(work)});
    ++client.waiting;
  });
  ++waiting_;
  return true;
}

std::optional<HandlerWork> HandlerQueue::Pop(bool may_be_long) {
  size_t line = kShort;
  if (may_be_long && !turns_[kLong].empty()) {
    Client* const with_long = *turns_[kLong].begin();
    Client* const with_short = turns_[kShort].empty() ? nullptr : *turns_[kShort].begin();
    const bool is_older = with_long == with_short &&
                          with_long->lines[kLong].front().number < with_long->lines[kShort].front().number;
    if (with_short == nullptr || is_older || ComesBefore()(with_long, with_short)) line = kLong;
  }
  if (turns_[line].empty()) return std::nullopt;
  Client& client = **turns_[line].begin();
  least_used_ns_ = std::max(least_used_ns_, client.used_ns);
  HandlerWork work = std::move(client.lines[line].front().work);
  Update(client, [&] {
    client.lines[line].pop_front();
    --client.waiting;
    ++client.running;
  });
  --waiting_;
  return work;
}

void HandlerQueue::Done(const HandlerWork& work, int64_t took_ns) {
  Client& client = clients_.at(work.client);
  Update(client, [&] {
    --client.running;
    client.used_ns += std::max<int64_t>(1, took_ns);  // so that turns change
  });
  if (client.running == 0 && client.waiting == 0) clients_.erase(work.client);
}

}  // namespace tramontane
