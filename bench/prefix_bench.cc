// prefix_bench: how much of a trace's prompts the prefix cache finds, by the size of the pool.
//
//   build/release/bin/prefix_bench TRACE.jsonl [REQUESTS]
//
// TRACE: lines with `hash_ids`, one id for each block of 512 tokens of a prompt (Mooncake's traces). Requests
// come one after another, in the order of the lines, through the server's own KvStore: here a block is a
// token and a page, so a window of 4096 tokens is 8 blocks. An answer adds one block of its own.
//
// Rates are shares of the prompts' blocks. The pool `live` holds the windows at the ends of all prompts.
// Beside the store: `lru`, one list over the pages of all groups, whatever else is gone; `full`, the same
// store and bytes for a model whose layers have no windows.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/kv/names/prefix_hit.h"

namespace tramontane {
namespace {

using Blocks = std::vector<int32_t>;

constexpr int32_t kWindow = 9;  // 8 blocks behind the one that is computed

struct Trace {
  std::vector<Blocks> prompts;
  int64_t blocks = 0;
  size_t longest = 0;
};

Blocks HashIdsOf(const std::string& line) {
  Blocks ids;
  const size_t at = line.find("\"hash_ids\"");
  if (at == std::string::npos) return ids;
  const char* text = line.c_str() + line.find('[', at) + 1;
  for (char* end = nullptr; *text != ']' && *text != '\0'; text = *end == ',' ? end + 1 : end) {
    const long id = std::strtol(text, &end, 10);
    if (end == text) return {};
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Trace ReadTrace(const char* path, int64_t most) {
  Trace trace;
  std::ifstream file(path);
  for (std::string line; static_cast<int64_t>(trace.prompts.size()) < most && std::getline(file, line);) {
    Blocks ids = HashIdsOf(line);
    if (ids.empty()) continue;
    trace.blocks += static_cast<int64_t>(ids.size());
    trace.longest = std::max(trace.longest, ids.size() + 1);
    trace.prompts.push_back(std::move(ids));
  }
  return trace;
}

KvLayout LayoutOf(const std::vector<int32_t>& windows) {
  KvFormat format;
  format.kv_heads = format.head_dim = format.page_size = 1;
  return MakeKvLayout(windows, format);
}

// Prompt, and a block that no other text has.
Blocks WithAnswer(const Blocks& prompt, size_t number) {
  Blocks text = prompt;
  text.push_back(INT32_MAX - static_cast<int32_t>(number));
  return text;
}

int64_t HitsOfStore(const Trace& trace, const KvLayout& layout, int64_t pages) {
  KvStore store(layout, pages, PrefixCache::kOn);
  int64_t hits = 0;
  std::vector<PageCopy> copies;
  for (size_t r = 0; r < trace.prompts.size(); ++r) {
    const Blocks text = WithAnswer(trace.prompts[r], r);
    Lease lease = store.NewLease();
    int64_t at = store.Acquire(lease, {.tokens = std::span(text).first(text.size() - 1)});
    hits += at;
    for (; at < static_cast<int64_t>(text.size()); ++at) {
      store.Extend(lease, at, at + 1, &copies);
      store.Seal(lease, text, at + 1);
      store.Roll(lease, at + 1);
    }
    store.Release(lease);
  }
  return hits;
}

// The plainest of caches: pages go in the order in which they were used last.
class OneLru {
 public:
  OneLru(const KvLayout& layout, int64_t pages) : pages_(static_cast<size_t>(pages)) {
    for (const KvGroupSpec& group : layout.groups) groups_.push_back({.window = group.window});
  }

  int64_t Serve(const Blocks& prompt, const Blocks& text) {
    std::vector<int64_t> nodes;  // which prefix each block ends
    int64_t above = 0;
    for (const int32_t block : text) {
      above = nodes_.try_emplace({above, block}, static_cast<int64_t>(nodes_.size()) + 1).first->second;
      nodes.push_back(above);
    }
    const int64_t hit = LongestPrefixHit(
        static_cast<int64_t>(prompt.size()), Paging(1), groups_,
        [&](size_t group, int64_t block) {
          return at_.count({nodes[static_cast<size_t>(block)], group}) > 0;
        },
        [](int64_t) { return 0; });  // windows decide alone
    for (auto block = static_cast<int64_t>(nodes.size()) - 1; block >= 0; --block) {
      for (size_t group = 0; group < groups_.size(); ++group) {
        const bool is_used = block >= FirstVisible(hit, groups_[group].window);
        if (is_used) Use({nodes[static_cast<size_t>(block)], group});
      }
    }
    return hit;
  }

 private:
  using Key = std::pair<int64_t, size_t>;  // prefix, group

  void Use(const Key& key) {
    const auto found = at_.find(key);
    if (found != at_.end()) order_.erase(found->second);
    order_.push_back(key);
    at_[key] = std::prev(order_.end());
    if (order_.size() <= pages_) return;
    at_.erase(order_.front());
    order_.pop_front();
  }

  const size_t pages_;
  std::vector<PrefixGroup> groups_;
  std::map<std::pair<int64_t, int32_t>, int64_t> nodes_;
  std::list<Key> order_;  // oldest first
  std::map<Key, std::list<Key>::iterator> at_;
};

int64_t HitsOfOneLru(const Trace& trace, const KvLayout& layout, int64_t pages) {
  OneLru lru(layout, pages);
  int64_t hits = 0;
  for (size_t r = 0; r < trace.prompts.size(); ++r) {
    hits += lru.Serve(trace.prompts[r], WithAnswer(trace.prompts[r], r));
  }
  return hits;
}

// Of a pool that holds what hits at the ends of all prompts need, to the last of them, and nothing else.
int64_t LivePages(const Trace& trace, const KvLayout& layout) {
  std::map<std::pair<int64_t, int32_t>, int64_t> nodes;
  std::set<std::pair<int64_t, size_t>> live;  // prefix, group
  for (const Blocks& prompt : trace.prompts) {
    const auto length = static_cast<int64_t>(prompt.size());
    int64_t node = 0;
    for (int64_t block = 0; block < length; ++block) {
      const std::pair<int64_t, int32_t> key = {node, prompt[static_cast<size_t>(block)]};
      node = nodes.try_emplace(key, static_cast<int64_t>(nodes.size()) + 1).first->second;
      for (size_t group = 0; group < layout.groups.size(); ++group) {
        if (block >= FirstVisible(length, layout.groups[group].window)) live.emplace(node, group);
      }
    }
  }
  return static_cast<int64_t>(live.size());
}

void Print(const Trace& trace, const char* name, const std::vector<int32_t>& windows) {
  const KvLayout layout = LayoutOf(windows);
  const KvLayout full = LayoutOf(std::vector<int32_t>(windows.size(), 0));
  const auto groups = static_cast<int64_t>(layout.groups.size());
  const auto percent = [&](int64_t hits) {
    return 100.0 * static_cast<double>(hits) / static_cast<double>(trace.blocks);
  };
  const auto longest = static_cast<int64_t>(trace.longest);
  const int64_t unlimited = (trace.blocks + static_cast<int64_t>(trace.prompts.size())) * groups;
  // The same model without windows has all its layers in one group, and pages of as many bytes more.
  const auto row = [&](const char* pool, int64_t pages) {
    const int64_t full_pages = pages / groups;
    std::printf("%-8s %9s %9lld  %6.2f  %6.2f  %6.2f\n", name, pool, static_cast<long long>(pages),
                percent(HitsOfStore(trace, layout, pages)), percent(HitsOfOneLru(trace, layout, pages)),
                full_pages >= longest ? percent(HitsOfStore(trace, full, full_pages)) : 0.0);
  };
  for (const int64_t times : {2, 4, 8, 16, 32, 64, 128}) {
    row(("x" + std::to_string(times)).c_str(), longest * groups * times);
  }
  row("live", LivePages(trace, layout));
  row("unlimited", unlimited);
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: prefix_bench TRACE.jsonl [REQUESTS]\n");
    return 2;
  }
  const tramontane::Trace trace = tramontane::ReadTrace(argv[1], argc > 2 ? std::atol(argv[2]) : INT64_MAX);
  if (trace.prompts.empty()) {
    std::fprintf(stderr, "%s has no line with hash_ids\n", argv[1]);
    return 1;
  }
  std::printf("%zu prompts, %lld blocks; pool: pages for so many of the longest without a window\n",
              trace.prompts.size(), static_cast<long long>(trace.blocks));
  std::printf("model         pool     pages   store     lru    full   (%% of the prompts' blocks found)\n");
  tramontane::Print(trace, "window", {tramontane::kWindow});
  tramontane::Print(trace, "mixed", {0, tramontane::kWindow, tramontane::kWindow, tramontane::kWindow});
  return 0;
}
