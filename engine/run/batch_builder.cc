#include "engine/run/batch_builder.h"

#include <algorithm>
#include <array>
#include <string>

#include "engine/kv/names/paging.h"
#include "kernels/core/check.h"

namespace tramontane {
namespace {

// How much room the parts of a block get.
struct Room {
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t copies = 0;
  int64_t in_flight = 0;
  int64_t table_changes = 0;
  bool sinks = false;   // some row sees other positions than its windows say
  bool padded = false;  // for a recorded step
};

// Of one layer group.
struct GroupParts {
  PackedArray<int32_t> first_entry, page_mask, kv_base, kv_end, sink_entry;
  PackedArray<int64_t> slots;
};

struct Parts {
  PackedArray<int32_t> token_ids, positions, qo_indptr;
  std::array<GroupParts, kMaxKvGroups> groups;
  PackedArray<int32_t> sink_len, sink_left, sink_positions, sink_limits;
  PackedArray<int32_t> plain_qo_indptr, others_qo_indptr;  // AttentionPlain
  PackedArray<int32_t> copies, in_flight, table_changes;
};

// Says which parts a block has, in which order and how large: to whoever measures, and to whoever packs.
Parts Lay(const Room& room, size_t groups, PackedBlock& block) {
  Parts parts;
  parts.token_ids = block.Take<int32_t>(room.tokens);
  parts.positions = block.Take<int32_t>(room.tokens);
  parts.qo_indptr = block.Take<int32_t>(room.rows + 1);
  for (GroupParts& group : std::span(parts.groups).first(groups)) {
    for (auto* array : {&group.first_entry, &group.page_mask, &group.kv_base, &group.kv_end})
      *array = block.Take<int32_t>(room.rows);
    group.slots = block.Take<int64_t>(room.tokens);
    if (room.sinks) group.sink_entry = block.Take<int32_t>(room.rows);
  }
  if (room.sinks) {
    for (auto* array : {&parts.sink_len, &parts.sink_left, &parts.sink_positions, &parts.sink_limits})
      *array = block.Take<int32_t>(room.tokens);
  }
  if (room.sinks && room.padded) {
    parts.plain_qo_indptr = block.Take<int32_t>(room.rows + 1);
    parts.others_qo_indptr = block.Take<int32_t>(room.rows + 1);
  }
  parts.copies = block.Take<int32_t>(2 * room.copies);
  parts.in_flight = block.Take<int32_t>(2 * room.in_flight);
  parts.table_changes = block.Take<int32_t>(2 * room.table_changes);
  return parts;
}

// Of a step in which all that a block may hold comes together: a sequence copies at most the page it writes
// next, one in each group, and has one token in flight.
int64_t MaxBytes(const KvLayout& layout, const EngineLimits& limits, int64_t max_changes) {
  PackedBlock measured;
  Lay({.rows = limits.max_sequences,
       .tokens = limits.max_tokens(),
       .copies = limits.max_sequences * std::ssize(layout.groups),
       .in_flight = limits.max_sequences,
       .table_changes = max_changes,
       .sinks = true,
       .padded = true},
      layout.groups.size(), measured);
  return measured.bytes();
}

// The tables of the longest text, and what a step of all rows writes beside it.
int64_t MaxTableChanges(const KvLayout& layout, const EngineLimits& limits, int64_t context) {
  const Paging paging = layout.format;
  return std::ssize(layout.groups) * (2 * paging.PagesFor(context) + paging.PagesFor(limits.max_tokens()) +
                                      2 * int64_t{limits.max_sequences});
}

bool StartsInFlight(const StepRow& row) {
  return row.start == static_cast<int64_t>(row.sequence->tokens.size());
}

// No more than the plan needs.
Room RoomOf(const StepPlan& plan) {
  return {.rows = std::ssize(plan.rows),
          .tokens = plan.tokens,
          .copies = std::ssize(plan.copies),
          .in_flight = std::count_if(plan.rows.begin(), plan.rows.end(), StartsInFlight),
          .sinks = BatchBuilder::HasSinks(plan)};
}

// Calls visit(row, position, index of the token in the step), for all tokens.
template <typename Visit>
void ForEachToken(const StepPlan& plan, const Visit& visit) {
  int64_t token = 0;
  for (const StepRow& row : plan.rows) {
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token)
      visit(row, position, token);
  }
}

// Rows and tokens beyond the plan's are padding, zeros: no sequence has the tokens, and nothing is written
// for them.
void PackTokens(const StepPlan& plan, const Room& room, const Parts& parts, ForwardBatch& batch) {
  int32_t begin = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const int64_t known = static_cast<int64_t>(row.sequence->tokens.size()) + (StartsInFlight(row) ? 1 : 0);
    TM_CHECK(EndOf(row) <= known, "request %s: position %lld is planned before its token is known",
             row.sequence->request->id.c_str(), static_cast<long long>(EndOf(row) - 1));
    parts.qo_indptr.host[r] = begin;
    begin += row.count;
  }
  ForEachToken(plan, [&](const StepRow& row, int64_t position, int64_t token) {
    const SequenceTokens& known = row.sequence->tokens;
    parts.token_ids.host[token] = StartsInFlight(row) ? 0 : known[static_cast<size_t>(position)];
    parts.positions.host[token] = static_cast<int32_t>(position);
  });
  std::fill(parts.qo_indptr.host + plan.rows.size(), parts.qo_indptr.host + room.rows + 1, begin);
  batch.sequences = static_cast<int32_t>(room.rows);
  batch.tokens = static_cast<int32_t>(room.tokens);
  batch.token_ids = parts.token_ids.device;
  batch.positions = parts.positions.device;
  batch.qo_indptr = parts.qo_indptr.device;
}

// One layer group's page tables.
PageTableView PackGroup(const StepPlan& plan, size_t g, Paging paging, const SlotTables& tables,
                        const Room& room, const GroupParts& group) {
  if (room.padded) std::fill_n(group.slots.host, room.tokens, -1);
  ForEachToken(plan, [&](const StepRow& row, int64_t position, int64_t token) {
    const PageId page = row.sequence->lease().tables[g].At(position, paging);
    group.slots.host[token] = paging.BeginOf(page) + paging.OffsetOf(position);
  });
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const Sequence& sequence = *plan.rows[r].sequence;
    group.first_entry.host[r] = tables.FirstEntry(g, sequence.slot());
    group.page_mask.host[r] = tables.PageMask(g);
    group.kv_base.host[r] = static_cast<int32_t>(sequence.lease().tables[g].kv_base);
    group.kv_end.host[r] = static_cast<int32_t>(EndOf(plan.rows[r]));
    if (room.sinks) group.sink_entry.host[r] = tables.SinkEntry(g, sequence.slot());
  }
  return {.first_entry = group.first_entry.device,
          .page_mask = group.page_mask.device,
          .kv_base = group.kv_base.device,
          .kv_end = group.kv_end.device,
          .sink_entry = group.sink_entry.device,
          .slots = group.slots.device};
}

// PageTableView::listed_pages: plain rows stand in front.
int64_t ListedPages(const StepPlan& plan, size_t group, Paging paging) {
  int64_t pages = 0;
  for (auto row = plan.rows.begin(); row != plan.rows.end() && IsPlain(*row); ++row) {
    pages += paging.PagesFor(EndOf(*row) - row->sequence->lease().tables[group].kv_base);
  }
  return pages;
}

// Of every row of the step, where one of them sees sinks. Padding sees none.
SinkRows PackSinks(const StepPlan& plan, const Parts& parts) {
  ForEachToken(plan, [&](const StepRow& row, int64_t position, int64_t token) {
    const RowView view = SeenAt(row.sequence->lease(), position);
    parts.sink_len.host[token] = static_cast<int32_t>(view.sink_len);
    parts.sink_left.host[token] = static_cast<int32_t>(view.left);
    // Also where its query stands among the tokens held, whatever it sees: a model may scale by that.
    parts.sink_positions.host[token] = static_cast<int32_t>(view.sink_position);
    parts.sink_limits.host[token] = static_cast<int32_t>(view.sink_limit);
  });
  return {.len = parts.sink_len.device,
          .left = parts.sink_left.device,
          .positions = parts.sink_positions.device,
          .limits = parts.sink_limits.device};
}

// Those in front of the first that is not.
AttentionPlain CountPlain(const StepPlan& plan) {
  AttentionPlain plain;
  for (auto row = plan.rows.begin(); row != plan.rows.end() && IsPlain(*row); ++row) {
    ++plain.sequences;
    plain.tokens += row->count;
  }
  return plain;
}

// The same for the device to read.
AttentionPlain PackPlain(const StepPlan& plan, const Room& room, const Parts& parts) {
  const AttentionPlain plain = CountPlain(plan);
  for (int64_t r = 0; r <= room.rows; ++r) {
    const int32_t token = parts.qo_indptr.host[r];
    parts.plain_qo_indptr.host[r] = std::min(token, plain.tokens);
    parts.others_qo_indptr.host[r] = std::max(token, plain.tokens);
  }
  return {.qo_indptr = parts.plain_qo_indptr.device, .others_qo_indptr = parts.others_qo_indptr.device};
}

AdvanceParams PackAdvance(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                          const Parts& parts) {
  int32_t* pair = parts.in_flight.host;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    if (!StartsInFlight(row)) continue;
    TM_CHECK(r < records_in_flight.size() && records_in_flight[r] >= 0,
             "request %s: the token at %lld is in flight in no step", row.sequence->request->id.c_str(),
             static_cast<long long>(row.start));
    *pair++ = records_in_flight[r];
    *pair++ = parts.qo_indptr.host[r];
  }
  return {.pairs = parts.in_flight.device,
          .count = static_cast<int32_t>((pair - parts.in_flight.host) / 2),
          .token_ids = parts.token_ids.device};
}

}  // namespace

BatchBuilder::BatchBuilder(const KvLayout& layout, const EngineLimits& limits, int64_t context)
    : layout_(layout),
      max_changes_(MaxTableChanges(layout, limits, context)),
      max_bytes_(MaxBytes(layout, limits, max_changes_)),
      tables_(layout, limits, context),
      groups_(layout.groups.size()) {}

Status BatchBuilder::CheckSize() const {
  const int64_t entries = (table_bytes() + max_bytes_) / static_cast<int64_t>(sizeof(int32_t));
  if (entries <= INT32_MAX) return {};
  return ResourceExhausted("page tables of all sequences are " + std::to_string(entries) +
                           " page ids, the limit is " + std::to_string(INT32_MAX) +
                           ": max_sequences or the context is too large");
}

PackedBatch BatchBuilder::Build(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                                std::byte* host, std::byte* device, const RecordedShape* shape) {
  changes_.clear();
  for (const StepRow& row : plan.rows) tables_.Update(row, &changes_);
  Room room = RoomOf(plan);
  room.table_changes = std::min(std::ssize(changes_) / 2, max_changes_);
  if (shape != nullptr) {
    TM_CHECK(room.rows <= shape->rows && room.tokens <= shape->rows && room.sinks <= shape->sinks,
             "%lld rows padded to %d, or rows that see sinks", static_cast<long long>(room.rows),
             shape->rows);
    room.rows = room.tokens = shape->rows;
    room.sinks = shape->sinks;
    room.padded = true;
  }
  PackedBlock block(host, device + table_bytes(), max_bytes_);
  const Parts parts = Lay(room, groups_.size(), block);
  if (room.padded) std::fill_n(host, block.bytes(), std::byte{0});
  auto* const page_indices = reinterpret_cast<int32_t*>(device);
  PackedBatch packed;
  packed.bytes = block.bytes();
  PackTokens(plan, room, parts, packed.forward);
  packed.advance = PackAdvance(plan, records_in_flight, parts);
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g] = PackGroup(plan, g, layout_.format, tables_, room, parts.groups[g]);
    groups_[g].page_indices = page_indices;
    // What a recorded step lists is known when it is replayed.
    if (!room.padded) groups_[g].listed_pages = ListedPages(plan, g, layout_.format);
  }
  packed.forward.groups = groups_.data();
  if (room.sinks) {
    packed.forward.sinks = PackSinks(plan, parts);
    packed.forward.plain = room.padded ? PackPlain(plan, room, parts) : CountPlain(plan);
  }
  packed.copy_count = static_cast<int32_t>(plan.copies.size());
  packed.copy_pairs = parts.copies.device;
  int32_t* pair = parts.copies.host;
  for (const PageCopy& copy : plan.copies) {
    *pair++ = copy.from;
    *pair++ = copy.to;
  }
  // The last of them, as many as have room.
  const auto early = changes_.size() - static_cast<size_t>(2 * room.table_changes);
  packed.early_changes = std::span(changes_).first(early);
  std::copy(changes_.begin() + static_cast<std::ptrdiff_t>(early), changes_.end(), parts.table_changes.host);
  packed.table_changes = {.pairs = parts.table_changes.device,
                          .count = static_cast<int32_t>(room.table_changes),
                          .out = page_indices};
  return packed;
}

}  // namespace tramontane
