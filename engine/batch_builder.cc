#include "engine/batch_builder.h"

#include <algorithm>
#include <vector>

#include "engine/packed_block.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// How much room the parts of a step get.
struct BatchBuilder::Room {
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t copies = 0;
  int64_t in_flight = 0;
  std::vector<int64_t> pages = {};  // [groups]
  bool sinks = false;               // some row sees other positions than its windows say
  bool masks = false;               // some row has a mask
};

namespace {

using Room = BatchBuilder::Room;

// A sequence copies at most the page it writes next, one in each group, and has one token in flight.
// `sinks`: and its tables may be those of sequences without an end, whose windows are not wider than a
// context.
Room RoomFor(int64_t rows, int64_t tokens, const KvLayout& layout, int64_t context, int64_t ahead,
             bool sinks) {
  Room room = {.rows = rows, .tokens = tokens, .in_flight = rows, .sinks = sinks};
  const auto groups = static_cast<int32_t>(layout.groups.size());
  room.copies = rows * groups;
  const int32_t page_size = layout.format.page_size;
  const int64_t endless = sinks ? PagesFor(context, page_size) + PagesFor(ahead, page_size) + 2 : 0;
  for (int32_t g = 0; g < groups; ++g) {
    room.pages.push_back(rows * std::max(layout.PagesForGroup(g, context, ahead), endless));
  }
  return room;
}

int64_t BytesOf(const Room& room) {
  int64_t bytes = 2 * PackedBlock::Bytes<int32_t>(room.tokens) + PackedBlock::Bytes<int32_t>(room.rows + 1) +
                  PackedBlock::Bytes<int32_t>(2 * room.copies) +
                  PackedBlock::Bytes<int32_t>(2 * room.in_flight);
  for (const int64_t pages : room.pages) {
    bytes += PackedBlock::Bytes<int32_t>(room.rows + 1) + PackedBlock::Bytes<int32_t>(pages) +
             2 * PackedBlock::Bytes<int32_t>(room.rows) + PackedBlock::Bytes<int64_t>(room.tokens);
  }
  if (room.sinks) {
    bytes += 4 * PackedBlock::Bytes<int32_t>(room.tokens) +
             static_cast<int64_t>(room.pages.size()) * PackedBlock::Bytes<int32_t>(room.rows);
  }
  return bytes;
}

// Position after the row's last one, and the table entries that hold positions below it. (With steps in
// flight a table may already reach further.)
int64_t EndOf(const StepRow& row) { return row.start + row.count; }

// Whether attention needs a mask for what the row sees.
bool IsMasked(const StepRow& row) {
  return row.sequence->tree != nullptr && EndOf(row) > row.sequence->tree->plain_len();
}
BranchListing ListingOf(const StepRow& row, const PageTable& table, int32_t page_size) {
  return {*row.sequence->tree, table.kv_base, row.start, EndOf(row), page_size};
}

int64_t EntriesOf(const StepRow& row, const PageTable& table, int32_t page_size) {
  if (IsMasked(row)) return ListingOf(row, table, page_size).pages();
  return PagesFor(EndOf(row) - table.kv_base, page_size);
}

// In front of those, where a row of the step sees sinks.
int64_t SinkEntries(const PageTable& table, const Room& room) {
  return room.sinks ? static_cast<int64_t>(table.sinks.size()) : 0;
}

bool StartsInFlight(const StepRow& row) {
  return row.start == static_cast<int64_t>(row.sequence->tokens.size());
}

bool SeesSinks(const StepRow& row) { return EndOf(row) > row.sequence->lease.plain_len; }

// No more than the plan needs.
Room RoomOf(const StepPlan& plan, const KvLayout& layout) {
  Room room = {.rows = static_cast<int64_t>(plan.rows.size()),
               .tokens = plan.tokens,
               .copies = static_cast<int64_t>(plan.copies.size())};
  room.in_flight = std::count_if(plan.rows.begin(), plan.rows.end(), StartsInFlight);
  room.sinks = BatchBuilder::HasSinks(plan);
  room.masks = std::any_of(plan.rows.begin(), plan.rows.end(), IsMasked);
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    int64_t& pages = room.pages.emplace_back(0);
    for (const StepRow& row : plan.rows) {
      const PageTable& table = row.sequence->lease.tables[g];
      pages += SinkEntries(table, room) + EntriesOf(row, table, layout.format.page_size);
    }
  }
  return room;
}

// Rows and tokens beyond the plan's are padding: no sequence has the tokens, and nothing is written for them.
// Returns where the device has the token ids.
int32_t* PackTokens(const StepPlan& plan, const Room& room, PackedBlock& block, ForwardBatch& batch) {
  const PackedArray<int32_t> token_ids = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> positions = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> qo_indptr = block.Take<int32_t>(room.rows + 1);
  int32_t token = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const int64_t known = static_cast<int64_t>(row.sequence->tokens.size()) + (StartsInFlight(row) ? 1 : 0);
    TM_CHECK(EndOf(row) <= known, "request %s: position %lld is planned before its token is known",
             row.sequence->request->id.c_str(), static_cast<long long>(EndOf(row) - 1));
    qo_indptr.host[r] = token;
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      token_ids.host[token] = StartsInFlight(row) ? 0 : row.sequence->tokens[static_cast<size_t>(position)];
      const CandidateTree* tree = row.sequence->tree;
      positions.host[token] = static_cast<int32_t>(tree == nullptr ? position : tree->PositionOf(position));
    }
  }
  std::fill(qo_indptr.host + plan.rows.size(), qo_indptr.host + room.rows + 1, token);
  std::fill(token_ids.host + token, token_ids.host + room.tokens, 0);
  std::fill(positions.host + token, positions.host + room.tokens, 0);
  batch.sequences = static_cast<int32_t>(room.rows);
  batch.tokens = static_cast<int32_t>(room.tokens);
  batch.token_ids = token_ids.device;
  batch.positions = positions.device;
  batch.qo_indptr = qo_indptr.device;
  return token_ids.device;
}

// One layer group's page tables, but for the pages.
struct GroupArrays {
  PackedArray<int32_t> kv_indptr, last_page_len, kv_base;
  PackedArray<int64_t> slots;
};

GroupArrays PackGroup(const StepPlan& plan, size_t group, int32_t page_size, const Room& room,
                      PackedBlock& block) {
  const GroupArrays packed = {
      .kv_indptr = block.Take<int32_t>(room.rows + 1),
      .last_page_len = block.Take<int32_t>(room.rows),
      .kv_base = block.Take<int32_t>(room.rows),
      .slots = block.Take<int64_t>(room.tokens),
  };
  int32_t entry = 0;
  int64_t token = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const PageTable& table = row.sequence->lease.tables[group];
    packed.kv_indptr.host[r] = entry;
    entry += static_cast<int32_t>(SinkEntries(table, room) + EntriesOf(row, table, page_size));
    packed.last_page_len.host[r] = IsMasked(row) ? page_size : OffsetInPage(EndOf(row) - 1, page_size) + 1;
    packed.kv_base.host[r] = static_cast<int32_t>(table.kv_base);
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      const PageId page = table.pages[static_cast<size_t>(PageOf(position, table.kv_base, page_size))];
      packed.slots.host[token] = SlotOf(page, position, page_size);
    }
  }
  const auto rows = static_cast<int64_t>(plan.rows.size());
  std::fill(packed.kv_indptr.host + rows, packed.kv_indptr.host + room.rows + 1, entry);
  std::fill(packed.last_page_len.host + rows, packed.last_page_len.host + room.rows, 0);
  std::fill(packed.kv_base.host + rows, packed.kv_base.host + room.rows, 0);
  std::fill(packed.slots.host + token, packed.slots.host + room.tokens, -1);
  return packed;
}

// Returns the entries written.
int64_t PackPages(const StepPlan& plan, size_t group, int32_t page_size, const Room& room, int32_t* entries) {
  int32_t* entry = entries;
  for (const StepRow& row : plan.rows) {
    const PageTable& table = row.sequence->lease.tables[group];
    entry = std::copy_n(table.sinks.begin(), SinkEntries(table, room), entry);
    const int64_t entries_of_row = EntriesOf(row, table, page_size);
    if (IsMasked(row)) {
      ListingOf(row, table, page_size).ListPages(table, entry);
    } else {
      std::copy_n(table.pages.begin(), entries_of_row, entry);
    }
    entry += entries_of_row;
  }
  return entry - entries;
}

// Of every row of the step, where one of them sees sinks.
SinkRows PackSinks(const StepPlan& plan, const Room& room, PackedBlock& block,
                   std::vector<PageTableView>* groups) {
  const PackedArray<int32_t> len = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> left = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> positions = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> limits = block.Take<int32_t>(room.tokens);
  int64_t token = 0;
  for (const StepRow& row : plan.rows) {
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      const RowView view = SeenAt(row.sequence->lease, position);
      len.host[token] = static_cast<int32_t>(view.sink_len);
      left.host[token] = static_cast<int32_t>(view.left);
      // Also where its query stands among the tokens held, whatever it sees: a model may scale by that.
      const CandidateTree* tree = row.sequence->tree;
      positions.host[token] =
          static_cast<int32_t>(tree == nullptr ? view.sink_position : tree->PositionOf(position));
      limits.host[token] = static_cast<int32_t>(view.sink_limit);
    }
  }
  for (size_t g = 0; g < groups->size(); ++g) {
    const PackedArray<int32_t> sink_pages = block.Take<int32_t>(room.rows);
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      sink_pages.host[r] = static_cast<int32_t>(SinkEntries(plan.rows[r].sequence->lease.tables[g], room));
    }
    (*groups)[g].sink_pages = sink_pages.device;
  }
  return {.len = len.device, .left = left.device, .positions = positions.device, .limits = limits.device};
}

// Of one group: none for rows whose windows decide.
AttentionMaskView PackMasks(const StepPlan& plan, size_t group, const KvLayout& layout, PackedBlock& block) {
  const auto rows = static_cast<int64_t>(plan.rows.size());
  const PackedArray<int32_t> indptr = block.Take<int32_t>(rows + 1);
  const auto listing_of = [&](const StepRow& row) {
    return ListingOf(row, row.sequence->lease.tables[group], layout.format.page_size);
  };
  int64_t bytes = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const StepRow& row = plan.rows[static_cast<size_t>(r)];
    indptr.host[r] = static_cast<int32_t>(bytes);
    if (IsMasked(row)) bytes += listing_of(row).mask_bytes();
  }
  indptr.host[rows] = static_cast<int32_t>(bytes);
  const PackedArray<uint8_t> bits = block.Take<uint8_t>(bytes);
  std::fill_n(bits.host, bytes, uint8_t{0});
  for (int64_t r = 0; r < rows; ++r) {
    const StepRow& row = plan.rows[static_cast<size_t>(r)];
    if (IsMasked(row)) listing_of(row).ShowKeys(layout.groups[group].window, bits.host + indptr.host[r]);
  }
  return {.bits = bits.device, .indptr = indptr.device};
}

void PackCopies(const StepPlan& plan, const Room& room, PackedBlock& block, PackedBatch& packed) {
  packed.copy_count = static_cast<int32_t>(plan.copies.size());
  const PackedArray<int32_t> pairs = block.Take<int32_t>(2 * room.copies);
  for (int32_t i = 0; i < packed.copy_count; ++i) {
    pairs.host[2 * i] = plan.copies[static_cast<size_t>(i)].from;
    pairs.host[2 * i + 1] = plan.copies[static_cast<size_t>(i)].to;
  }
  packed.copy_pairs = pairs.device;
}

AdvanceParams PackAdvance(const StepPlan& plan, std::span<const int32_t> records_in_flight, const Room& room,
                          PackedBlock& block, int32_t* token_ids) {
  const PackedArray<int32_t> pairs = block.Take<int32_t>(2 * room.in_flight);
  int32_t count = 0;
  int32_t token = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    if (StartsInFlight(row)) {
      TM_CHECK(r < records_in_flight.size() && records_in_flight[r] >= 0,
               "request %s: the token at %lld is in flight in no step", row.sequence->request->id.c_str(),
               static_cast<long long>(row.start));
      pairs.host[2 * count] = records_in_flight[r];
      pairs.host[2 * count + 1] = token;
      ++count;
    }
    token += row.count;
  }
  return {.pairs = pairs.device, .count = count, .token_ids = token_ids};
}

}  // namespace

bool BatchBuilder::HasSinks(const StepPlan& plan) {
  return std::any_of(plan.rows.begin(), plan.rows.end(), SeesSinks);
}

BatchBuilder::BatchBuilder(const KvLayout& layout, const EngineLimits& limits, int64_t context)
    : layout_(layout),
      context_(context),
      ahead_(int64_t{limits.max_tokens()} * limits.steps_in_flight),
      max_bytes_(BytesOf(RoomFor(limits.max_sequences, limits.max_tokens(), layout, context, ahead_,
                                 /*sinks=*/true)) +
                 MaxTreeBytes(layout, context) +
                 static_cast<int64_t>(layout.groups.size()) *
                     PackedBlock::Bytes<int32_t>(limits.max_sequences + 1)),
      groups_(layout.groups.size()) {}

PackedBatch BatchBuilder::Build(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                                std::byte* host, std::byte* device) {
  return Pack(plan, records_in_flight, RoomOf(plan, layout_), host, device);
}

PackedBatch BatchBuilder::BuildPadded(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                                      int32_t rows, std::byte* host, std::byte* device) {
  TM_CHECK(static_cast<int64_t>(plan.rows.size()) <= rows && plan.tokens <= rows && !HasSinks(plan),
           "%zu rows padded to %d, or rows that see sinks", plan.rows.size(), rows);
  return Pack(plan, records_in_flight, RoomFor(rows, rows, layout_, context_, ahead_, /*sinks=*/false), host,
              device);
}

PackedBatch BatchBuilder::Pack(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                               const Room& room, std::byte* host, std::byte* device) {
  PackedBlock block(host, device, max_bytes_);
  PackedBatch packed;
  const int32_t page_size = layout_.format.page_size;
  int32_t* token_ids = PackTokens(plan, room, block, packed.forward);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupArrays arrays = PackGroup(plan, g, page_size, room, block);
    groups_[g] = {.kv_indptr = arrays.kv_indptr.device,
                  .last_page_len = arrays.last_page_len.device,
                  .kv_base = arrays.kv_base.device,
                  .slots = arrays.slots.device};
  }
  packed.forward.groups = groups_.data();
  PackCopies(plan, room, block, packed);
  packed.advance = PackAdvance(plan, records_in_flight, room, block, token_ids);
  // Of the pages' room only what is written is uploaded, with what lies in front of it.
  pieces_.clear();
  int64_t begin = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t at = block.bytes();
    const PackedArray<int32_t> pages = block.Take<int32_t>(room.pages[g]);
    groups_[g].page_indices = pages.device;
    const int64_t end = at + PackedBlock::Bytes<int32_t>(PackPages(plan, g, page_size, room, pages.host));
    if (end == block.bytes() && g + 1 < groups_.size()) continue;  // the next one begins right behind
    if (end > begin) pieces_.push_back({begin, end - begin});
    begin = block.bytes();
  }
  if (room.sinks) {
    packed.forward.sinks = PackSinks(plan, room, block, &groups_);
    pieces_ = {{0, block.bytes()}};  // a step of no more than it needs is one piece
  }
  if (room.masks) {
    masks_.clear();
    for (size_t g = 0; g < groups_.size(); ++g) masks_.push_back(PackMasks(plan, g, layout_, block));
    packed.forward.masks = masks_.data();
    pieces_ = {{0, block.bytes()}};
  }
  packed.pieces = pieces_;
  return packed;
}

}  // namespace tramontane
