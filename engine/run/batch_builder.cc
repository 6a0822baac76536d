#include "engine/run/batch_builder.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/packed_block.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// How much room the parts of a step get.
struct BatchBuilder::Room {
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t copies = 0;
  int64_t in_flight = 0;
  int64_t table_changes = 0;
  bool sinks = false;   // some row sees other positions than its windows say
  bool masks = false;   // some row has a mask
  bool padded = false;  // for a recorded step
};

namespace {

using Room = BatchBuilder::Room;

// Without what masks take.
int64_t BytesOf(const Room& room, int64_t groups) {
  int64_t bytes =
      2 * PackedBlock::Bytes<int32_t>(room.tokens) + PackedBlock::Bytes<int32_t>(room.rows + 1) +
      PackedBlock::Bytes<int32_t>(2 * room.copies) + PackedBlock::Bytes<int32_t>(2 * room.in_flight) +
      PackedBlock::Bytes<int32_t>(2 * room.table_changes) +
      groups * (4 * PackedBlock::Bytes<int32_t>(room.rows) + PackedBlock::Bytes<int64_t>(room.tokens));
  if (room.sinks) {
    bytes += 4 * PackedBlock::Bytes<int32_t>(room.tokens) + groups * PackedBlock::Bytes<int32_t>(room.rows) +
             2 * PackedBlock::Bytes<int32_t>(room.rows + 1);
  }
  return bytes;
}

// Of a step in which all that a block may hold comes together: a sequence copies at most the page it writes
// next, one in each group, and has one token in flight.
Room LargestRoom(const KvLayout& layout, const EngineLimits& limits, int64_t max_changes) {
  return {.rows = limits.max_sequences,
          .tokens = limits.max_tokens(),
          .copies = limits.max_sequences * std::ssize(layout.groups),
          .in_flight = limits.max_sequences,
          .table_changes = max_changes,
          .sinks = true};
}

// The tables of the longest text, and what a step of all rows writes beside it.
int64_t MaxTableChanges(const KvLayout& layout, const EngineLimits& limits, int64_t context) {
  const int32_t page_size = layout.format.page_size;
  return std::ssize(layout.groups) *
         (2 * PagesFor(context, page_size) + PagesFor(limits.max_tokens(), page_size) +
          2 * int64_t{limits.max_sequences});
}

BranchListing ListingOf(const StepRow& row, const PageTable& table, int32_t page_size) {
  return {*row.sequence->tree, table.kv_base, row.start, EndOf(row), page_size};
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
          .sinks = BatchBuilder::HasSinks(plan),
          .masks = std::any_of(plan.rows.begin(), plan.rows.end(), IsMasked)};
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

// One layer group's page tables. Rows with masks have none of their own yet: PackMasks.
struct GroupArrays {
  PackedArray<int32_t> first_entry, page_mask, kv_base, kv_end;
  PackedArray<int64_t> slots;

  PageTableView View(const int32_t* page_indices) const {
    return {.page_indices = page_indices,
            .first_entry = first_entry.device,
            .page_mask = page_mask.device,
            .kv_base = kv_base.device,
            .kv_end = kv_end.device,
            .slots = slots.device};
  }
};

GroupArrays PackGroup(const StepPlan& plan, size_t group, int32_t page_size, const SlotTables& tables,
                      const Room& room, PackedBlock& block) {
  const GroupArrays packed = {
      .first_entry = block.Take<int32_t>(room.rows),
      .page_mask = block.Take<int32_t>(room.rows),
      .kv_base = block.Take<int32_t>(room.rows),
      .kv_end = block.Take<int32_t>(room.rows),
      .slots = block.Take<int64_t>(room.tokens),
  };
  int64_t token = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const PageTable& table = row.sequence->lease().tables[group];
    packed.first_entry.host[r] = tables.FirstEntry(group, row.sequence->slot());
    packed.page_mask.host[r] = tables.PageMask(group);
    packed.kv_base.host[r] = static_cast<int32_t>(table.kv_base);
    packed.kv_end.host[r] = static_cast<int32_t>(EndOf(row));
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      const PageId page = table.pages[static_cast<size_t>(PageOf(position, table.kv_base, page_size))];
      packed.slots.host[token] = SlotOf(page, position, page_size);
    }
  }
  const auto rows = std::ssize(plan.rows);
  for (const PackedArray<int32_t>& array :
       {packed.first_entry, packed.page_mask, packed.kv_base, packed.kv_end}) {
    std::fill(array.host + rows, array.host + room.rows, 0);
  }
  std::fill(packed.slots.host + token, packed.slots.host + room.tokens, -1);
  return packed;
}

// PageTableView::listed_pages: plain rows stand in front.
int64_t ListedPages(const StepPlan& plan, size_t group, int32_t page_size) {
  int64_t pages = 0;
  for (auto row = plan.rows.begin(); row != plan.rows.end() && IsPlain(*row); ++row) {
    pages += PagesFor(EndOf(*row) - row->sequence->lease().tables[group].kv_base, page_size);
  }
  return pages;
}

// Of every row of the step, where one of them sees sinks. Padding sees none.
SinkRows PackSinks(const StepPlan& plan, const SlotTables& tables, const Room& room, PackedBlock& block,
                   std::vector<PageTableView>* groups) {
  const PackedArray<int32_t> len = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> left = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> positions = block.Take<int32_t>(room.tokens);
  const PackedArray<int32_t> limits = block.Take<int32_t>(room.tokens);
  int64_t token = 0;
  for (const StepRow& row : plan.rows) {
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      const RowView view = SeenAt(row.sequence->lease(), position);
      len.host[token] = static_cast<int32_t>(view.sink_len);
      left.host[token] = static_cast<int32_t>(view.left);
      // Also where its query stands among the tokens held, whatever it sees: a model may scale by that.
      const CandidateTree* tree = row.sequence->tree;
      positions.host[token] =
          static_cast<int32_t>(tree == nullptr ? view.sink_position : tree->PositionOf(position));
      limits.host[token] = static_cast<int32_t>(view.sink_limit);
    }
  }
  for (const PackedArray<int32_t>& array : {len, left, positions, limits}) {
    std::fill(array.host + token, array.host + room.tokens, 0);
  }
  for (size_t g = 0; g < groups->size(); ++g) {
    const PackedArray<int32_t> sink_entry = block.Take<int32_t>(room.rows);
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      sink_entry.host[r] = tables.SinkEntry(g, plan.rows[r].sequence->slot());
    }
    std::fill(sink_entry.host + plan.rows.size(), sink_entry.host + room.rows, 0);
    (*groups)[g].sink_entry = sink_entry.device;
  }
  return {.len = len.device, .left = left.device, .positions = positions.device, .limits = limits.device};
}

// Of one group: none for rows whose windows decide. Rows with masks get the pages that these are of, listed
// in the block.
AttentionMaskView PackMasks(const StepPlan& plan, size_t group, const KvLayout& layout,
                            const int32_t* page_indices, const GroupArrays& arrays, PackedBlock& block) {
  const int32_t page_size = layout.format.page_size;
  const auto rows = std::ssize(plan.rows);
  const PackedArray<int32_t> indptr = block.Take<int32_t>(rows + 1);
  const auto listing_of = [&](const StepRow& row) {
    return ListingOf(row, row.sequence->lease().tables[group], page_size);
  };
  int64_t bytes = 0, pages = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const StepRow& row = plan.rows[static_cast<size_t>(r)];
    indptr.host[r] = static_cast<int32_t>(bytes);
    if (!IsMasked(row)) continue;
    bytes += listing_of(row).mask_bytes();
    pages += listing_of(row).pages();
  }
  indptr.host[rows] = static_cast<int32_t>(bytes);
  const PackedArray<uint8_t> bits = block.Take<uint8_t>(bytes);
  const PackedArray<int32_t> listed = block.Take<int32_t>(pages);
  std::fill_n(bits.host, bytes, uint8_t{0});
  int64_t entry = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const StepRow& row = plan.rows[static_cast<size_t>(r)];
    if (!IsMasked(row)) continue;
    const PageTable& table = row.sequence->lease().tables[group];
    const BranchListing listing = listing_of(row);
    listing.ShowKeys(layout.groups[group].window, bits.host + indptr.host[r]);
    listing.ListPages(table, listed.host + entry);
    const int64_t first = listed.device - page_indices + entry - PageOf(table.kv_base, 0, page_size);
    arrays.first_entry.host[r] = static_cast<int32_t>(first);
    arrays.page_mask.host[r] = -1;
    arrays.kv_end.host[r] = static_cast<int32_t>(table.kv_base + listing.keys());
    entry += listing.pages();
  }
  return {.bits = bits.device, .indptr = indptr.device};
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
AttentionPlain PackPlain(const StepPlan& plan, const Room& room, PackedBlock& block) {
  const AttentionPlain plain = CountPlain(plan);
  const PackedArray<int32_t> qo_indptr = block.Take<int32_t>(room.rows + 1);
  const PackedArray<int32_t> others = block.Take<int32_t>(room.rows + 1);
  int32_t token = 0;
  for (int64_t r = 0; r <= room.rows; ++r) {
    qo_indptr.host[r] = std::min(token, plain.tokens);
    others.host[r] = std::max(token, plain.tokens);
    if (r < std::ssize(plan.rows)) token += plan.rows[static_cast<size_t>(r)].count;
  }
  return {.qo_indptr = qo_indptr.device, .others_qo_indptr = others.device};
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
      max_changes_(MaxTableChanges(layout, limits, context)),
      max_bytes_(BytesOf(LargestRoom(layout, limits, max_changes_), std::ssize(layout.groups)) +
                 MaxTreeBytes(layout, context) +
                 std::ssize(layout.groups) * PackedBlock::Bytes<int32_t>(limits.max_sequences + 1)),
      tables_(layout, limits, context),
      groups_(layout.groups.size()) {}

int64_t BatchBuilder::table_bytes() const { return PackedBlock::Bytes<int32_t>(tables_.entries()); }

Status BatchBuilder::CheckSize() const {
  const int64_t entries = (table_bytes() + max_bytes_) / static_cast<int64_t>(sizeof(int32_t));
  if (entries <= INT32_MAX) return {};
  return ResourceExhausted("page tables of all sequences are " + std::to_string(entries) +
                           " page ids, the limit is " + std::to_string(INT32_MAX) +
                           ": max_sequences or the context is too large");
}

PackedBatch BatchBuilder::Build(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                                std::byte* host, std::byte* device) {
  return Pack(plan, records_in_flight, RoomOf(plan), host, device);
}

PackedBatch BatchBuilder::BuildPadded(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                                      const RecordedShape& shape, std::byte* host, std::byte* device) {
  Room room = RoomOf(plan);
  TM_CHECK(room.rows <= shape.rows && room.tokens <= shape.rows && room.sinks <= shape.sinks && !room.masks,
           "%lld rows padded to %d, or rows that see sinks or have masks", static_cast<long long>(room.rows),
           shape.rows);
  room.rows = room.tokens = shape.rows;
  room.sinks = shape.sinks;
  room.padded = true;
  return Pack(plan, records_in_flight, room, host, device);
}

PackedBatch BatchBuilder::Pack(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                               const Room& room, std::byte* host, std::byte* device) {
  PackedBlock block(host, device + table_bytes(), max_bytes_);
  auto* const page_indices = reinterpret_cast<int32_t*>(device);
  PackedBatch packed;
  int32_t* token_ids = PackTokens(plan, room, block, packed.forward);
  std::array<GroupArrays, kMaxKvGroups> arrays;
  for (size_t g = 0; g < groups_.size(); ++g) {
    arrays[g] = PackGroup(plan, g, layout_.format.page_size, tables_, room, block);
    groups_[g] = arrays[g].View(page_indices);
    // What a recorded step lists is known when it is replayed.
    if (!room.padded) groups_[g].listed_pages = ListedPages(plan, g, layout_.format.page_size);
  }
  packed.forward.groups = groups_.data();
  if (room.sinks) packed.forward.sinks = PackSinks(plan, tables_, room, block, &groups_);
  if (room.sinks || room.masks) {
    packed.forward.plain = room.padded ? PackPlain(plan, room, block) : CountPlain(plan);
  }
  PackCopies(plan, room, block, packed);
  packed.advance = PackAdvance(plan, records_in_flight, room, block, token_ids);
  if (room.masks) {
    masks_.clear();
    for (size_t g = 0; g < groups_.size(); ++g) {
      masks_.push_back(PackMasks(plan, g, layout_, page_indices, arrays[g], block));
    }
    packed.forward.masks = masks_.data();
  }
  PackTableChanges(plan, page_indices, block, packed);
  packed.bytes = block.bytes();
  return packed;
}

void BatchBuilder::PackTableChanges(const StepPlan& plan, int32_t* page_indices, PackedBlock& block,
                                    PackedBatch& packed) {
  changes_.clear();
  for (const StepRow& row : plan.rows) {
    if (!IsMasked(row)) tables_.Update(row, &changes_);
  }
  const std::span<const int32_t> all(changes_);
  const size_t early = all.size() - std::min(all.size(), static_cast<size_t>(2 * max_changes_));
  packed.early_changes = all.first(early);
  const PackedArray<int32_t> pairs = block.Take<int32_t>(static_cast<int64_t>(all.size() - early));
  std::copy(all.begin() + static_cast<std::ptrdiff_t>(early), all.end(), pairs.host);
  packed.table_changes = {
      .pairs = pairs.device, .count = static_cast<int32_t>((all.size() - early) / 2), .out = page_indices};
}

}  // namespace tramontane
