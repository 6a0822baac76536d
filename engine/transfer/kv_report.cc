#include "engine/transfer/kv_report.h"

#include <algorithm>

namespace tramontane {
namespace {

KvReport::Table ReportTable(const PageTable& table) {
  KvReport::Table report;
  report.kv_base = table.kv_base;
  const size_t sinks = std::min(table.sinks.size(), KvReport::kPagesOfTable);
  const size_t pages = std::min(table.pages.size(), KvReport::kPagesOfTable - sinks);
  report.sinks.assign(table.sinks.begin(), table.sinks.begin() + static_cast<std::ptrdiff_t>(sinks));
  report.pages.assign(table.pages.begin(), table.pages.begin() + static_cast<std::ptrdiff_t>(pages));
  report.pages_left_out = static_cast<int64_t>(table.sinks.size() + table.pages.size() - sinks - pages);
  return report;
}

KvReport::OfSequence ReportSequence(const Sequence& sequence) {
  KvReport::OfSequence report = {.id = sequence.request->id,
                                 .choice = sequence.choice,
                                 .state = sequence.state(),
                                 .tokens = sequence.accepted_len(),
                                 .prefix_tokens = sequence.lease().hit_tokens,
                                 .policy = sequence.policy(),
                                 .identity = *sequence.identity,
                                 .tables = {}};
  for (const PageTable& table : sequence.lease().tables) report.tables.push_back(ReportTable(table));
  return report;
}

}  // namespace

KvReport ReportKv(const KvStore& store, std::span<const Sequence* const> sequences) {
  KvReport report;
  report.page_size = store.paging().tokens();
  report.page_bytes = store.layout().page_bytes();
  report.total_pages = store.total_pages();
  report.free_pages = store.free_pages();
  report.cached_pages = store.cached_pages();
  report.held_pages = store.held_pages();
  std::vector<KvTier::Contents> beyond(store.layout().groups.size());
  if (const KvTier* tier = store.tier(); tier != nullptr) {
    tier->Count(beyond);
    const int64_t page_bytes = tier->page_bytes();
    report.host = {
        .pages = tier->host_pages(), .taken = tier->host_bytes() / page_bytes, .page_bytes = page_bytes};
    report.disk = {.pages = tier->disk_pages(),
                   .taken = tier->disk_bytes() / page_bytes,
                   .page_bytes = page_bytes,
                   .works = tier->disk_works()};
  }
  for (size_t group = 0; group < store.layout().groups.size(); ++group) {
    const KvGroupSpec& spec = store.layout().groups[group];
    report.groups.push_back({.window = spec.window,
                             .layers = static_cast<int64_t>(spec.layers.size()),
                             .held_pages = store.pool().held_pages_of_group()[group],
                             .cached_pages = store.pool().cached_pages_of_group()[group],
                             .beyond = beyond[group]});
  }
  for (const Sequence* sequence : sequences) {
    if (sequence->lease().pages() == 0) continue;
    if (report.sequences.size() < KvReport::kSequences) {
      report.sequences.push_back(ReportSequence(*sequence));
    } else {
      ++report.sequences_left_out;
    }
  }
  return report;
}

}  // namespace tramontane
