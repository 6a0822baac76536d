#include "engine/batch_builder.h"

#include <algorithm>

#include "engine/packed_block.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

int64_t MaxBytes(const KvLayout& layout, const EngineLimits& limits, int64_t context) {
  const int64_t tokens = std::max(limits.max_step_tokens, limits.max_sequences);
  const int64_t sequences = limits.max_sequences;
  const auto groups = static_cast<int32_t>(layout.groups.size());
  const int64_t ahead = tokens * limits.steps_in_flight;
  int64_t bytes = 2 * PackedBlock::Bytes<int32_t>(tokens) + PackedBlock::Bytes<int32_t>(sequences + 1);
  for (int32_t g = 0; g < groups; ++g) {
    bytes += PackedBlock::Bytes<int32_t>(sequences + 1) +
             PackedBlock::Bytes<int32_t>(sequences * layout.PagesForGroup(g, context, ahead)) +
             2 * PackedBlock::Bytes<int32_t>(sequences) + PackedBlock::Bytes<int64_t>(tokens);
  }
  // A sequence copies at most the page it writes next, one in each group, and has one token in flight.
  return bytes + PackedBlock::Bytes<int32_t>(2 * sequences * groups) +
         PackedBlock::Bytes<int32_t>(2 * sequences);
}

// Position after the row's last one, and the table entries that hold positions below it. (With steps in
// flight a table may already reach further.)
int64_t EndOf(const StepRow& row) { return row.start + row.count; }
int64_t EntriesOf(const StepRow& row, const PageTable& table, int32_t page_size) {
  return PagesFor(EndOf(row) - table.kv_base, page_size);
}

bool StartsInFlight(const StepRow& row) {
  return row.start == static_cast<int64_t>(row.sequence->tokens.size());
}

// Returns where the device has the token ids.
int32_t* PackTokens(const StepPlan& plan, PackedBlock& block, ForwardBatch& batch) {
  const PackedArray<int32_t> token_ids = block.Take<int32_t>(plan.tokens);
  const PackedArray<int32_t> positions = block.Take<int32_t>(plan.tokens);
  const PackedArray<int32_t> qo_indptr = block.Take<int32_t>(batch.sequences + 1);
  int32_t token = 0;
  for (int32_t r = 0; r < batch.sequences; ++r) {
    const StepRow& row = plan.rows[static_cast<size_t>(r)];
    const int64_t known = static_cast<int64_t>(row.sequence->tokens.size()) + (StartsInFlight(row) ? 1 : 0);
    TM_CHECK(EndOf(row) <= known, "request %s: position %lld is planned before its token is known",
             row.sequence->request->id.c_str(), static_cast<long long>(EndOf(row) - 1));
    qo_indptr.host[r] = token;
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      token_ids.host[token] = StartsInFlight(row) ? 0 : row.sequence->tokens[static_cast<size_t>(position)];
      positions.host[token] = static_cast<int32_t>(position);
    }
  }
  qo_indptr.host[batch.sequences] = token;
  batch.tokens = token;
  batch.token_ids = token_ids.device;
  batch.positions = positions.device;
  batch.qo_indptr = qo_indptr.device;
  return token_ids.device;
}

PageTableView PackGroup(const StepPlan& plan, size_t group, int32_t page_size, PackedBlock& block) {
  const auto rows = static_cast<int64_t>(plan.rows.size());
  int64_t entries = 0;
  for (const StepRow& row : plan.rows) entries += EntriesOf(row, row.sequence->tables[group], page_size);

  const PackedArray<int32_t> kv_indptr = block.Take<int32_t>(rows + 1);
  const PackedArray<int32_t> page_indices = block.Take<int32_t>(entries);
  const PackedArray<int32_t> last_page_len = block.Take<int32_t>(rows);
  const PackedArray<int32_t> kv_base = block.Take<int32_t>(rows);
  const PackedArray<int64_t> slots = block.Take<int64_t>(plan.tokens);
  int32_t entry = 0;
  int64_t token = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const StepRow& row = plan.rows[static_cast<size_t>(r)];
    const PageTable& table = row.sequence->tables[group];
    const int64_t listed = EntriesOf(row, table, page_size);
    kv_indptr.host[r] = entry;
    std::copy_n(table.pages.begin(), listed, page_indices.host + entry);
    entry += static_cast<int32_t>(listed);
    last_page_len.host[r] = OffsetInPage(EndOf(row) - 1, page_size) + 1;
    kv_base.host[r] = static_cast<int32_t>(table.kv_base);
    for (int64_t position = row.start; position < EndOf(row); ++position, ++token) {
      const PageId page = table.pages[static_cast<size_t>(PageOf(position, table.kv_base, page_size))];
      slots.host[token] = SlotOf(page, position, page_size);
    }
  }
  kv_indptr.host[rows] = entry;
  return {.kv_indptr = kv_indptr.device,
          .page_indices = page_indices.device,
          .last_page_len = last_page_len.device,
          .kv_base = kv_base.device,
          .slots = slots.device};
}

void PackCopies(const StepPlan& plan, PackedBlock& block, PackedBatch& packed) {
  packed.copy_count = static_cast<int32_t>(plan.copies.size());
  const PackedArray<int32_t> pairs = block.Take<int32_t>(2 * int64_t{packed.copy_count});
  for (int32_t i = 0; i < packed.copy_count; ++i) {
    pairs.host[2 * i] = plan.copies[static_cast<size_t>(i)].from;
    pairs.host[2 * i + 1] = plan.copies[static_cast<size_t>(i)].to;
  }
  packed.copy_pairs = pairs.device;
}

AdvanceParams PackAdvance(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                          PackedBlock& block, int32_t* token_ids) {
  const auto rows = static_cast<int32_t>(std::count_if(plan.rows.begin(), plan.rows.end(), StartsInFlight));
  const PackedArray<int32_t> pairs = block.Take<int32_t>(2 * int64_t{rows});
  int32_t pair = 0;
  int32_t token = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    if (StartsInFlight(row)) {
      TM_CHECK(r < records_in_flight.size() && records_in_flight[r] >= 0,
               "request %s: the token at %lld is in flight in no step", row.sequence->request->id.c_str(),
               static_cast<long long>(row.start));
      pairs.host[2 * pair] = records_in_flight[r];
      pairs.host[2 * pair + 1] = token;
      ++pair;
    }
    token += row.count;
  }
  return {.pairs = pairs.device, .count = rows, .token_ids = token_ids};
}

}  // namespace

BatchBuilder::BatchBuilder(const KvLayout& layout, const EngineLimits& limits, int64_t context)
    : layout_(layout), max_bytes_(MaxBytes(layout, limits, context)), groups_(layout.groups.size()) {}

PackedBatch BatchBuilder::Build(const StepPlan& plan, std::span<const int32_t> records_in_flight,
                                std::byte* host, std::byte* device) {
  PackedBlock block(host, device, max_bytes_);
  PackedBatch packed;
  packed.forward.sequences = static_cast<int32_t>(plan.rows.size());
  int32_t* token_ids = PackTokens(plan, block, packed.forward);
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g] = PackGroup(plan, g, layout_.format.page_size, block);
  }
  packed.forward.groups = groups_.data();
  PackCopies(plan, block, packed);
  packed.advance = PackAdvance(plan, records_in_flight, block, token_ids);
  packed.bytes = block.bytes();
  return packed;
}

}  // namespace tramontane
