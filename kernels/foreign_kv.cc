#include "kernels/foreign_kv.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/kv_quantize.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Status Wrong(std::string field, int64_t value, const std::string& limit) {
  return InvalidArgument("is " + std::to_string(value) + ", " + limit)
      .WithField(std::move(field), FieldForm::kSubject);
}

Status WrongSize(const char* name, size_t size, int64_t wanted) {
  return InvalidArgument("has " + std::to_string(size) + " elements, not " + std::to_string(wanted))
      .WithField(name, FieldForm::kSubject);
}

Status CheckWithin(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return Wrong(name, value, "allowed are " + std::to_string(least) + " to " + std::to_string(most));
}

// From 0, monotone, of `size` elements and within 32 bits.
template <typename T>
Status CheckStarts(const char* name, const std::vector<T>& starts, int64_t size) {
  if (static_cast<int64_t>(starts.size()) != size) return WrongSize(name, starts.size(), size);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t start = starts[i], least = i == 0 ? 0 : int64_t{starts[i - 1]};
    if (i == 0 && start != 0) return Wrong(FieldElement(name, i), start, "not 0");
    if (start < least) {
      return Wrong(FieldElement(name, i), start, "less than the " + std::to_string(least) + " before it");
    }
    if (start > kMaxInt32) {
      return Wrong(FieldElement(name, i), start, "the most is " + std::to_string(kMaxInt32));
    }
  }
  return Status::Ok();
}

// Slots that are written, each once.
class WrittenSlots {
 public:
  // `name` and `element` are of the argument that gave the slot.
  Status Add(const char* name, size_t element, int64_t slot) {
    if (slots_.insert(slot).second) return Status::Ok();
    return Wrong(FieldElement(name, element), slot, "a slot that this call writes already");
  }

 private:
  std::unordered_set<int64_t> slots_;
};

Status CheckAttributes(const OpenPplAttributes& attributes, const OpenPplShape& shape) {
  TM_RETURN_IF_ERROR(CheckWithin("num_layer", attributes.num_layer, 1, kMaxInt32));
  TM_RETURN_IF_ERROR(CheckWithin("layer_idx", attributes.layer_idx, 0, attributes.num_layer - 1));
  TM_RETURN_IF_ERROR(CheckWithin("cache_mode", attributes.cache_mode, 0, 1));
  TM_RETURN_IF_ERROR(CheckWithin("cache_layout", attributes.cache_layout, 0, 3));
  TM_RETURN_IF_ERROR(CheckWithin("num_repeat", attributes.num_repeat, 1, kMaxInt32));
  if (attributes.cache_mode == 1) {
    TM_RETURN_IF_ERROR(CheckWithin("page_size", attributes.page_size, 1, kMaxInt32));
  }
  return CheckWithin("cache", shape.cache_tokens, 1, kMaxInt32);
}

// Strides of a layout whose rows, X of one head and token, take `row` bytes.
KvStrides OpenPplStrides(int32_t layout, int64_t layers, int64_t tokens, int64_t heads, int64_t row) {
  KvStrides strides;
  switch (layout) {
    case 0:  // (T, L, 2, H, X)
      strides = {.kv = heads * row, .layer = 2 * heads * row, .head = row, .token = layers * 2 * heads * row};
      break;
    case 1:  // (L, T, 2, H, X)
      strides = {.kv = heads * row, .layer = tokens * 2 * heads * row, .head = row, .token = 2 * heads * row};
      break;
    case 2:  // (L, 2, T, H, X)
      strides = {
          .kv = tokens * heads * row, .layer = 2 * tokens * heads * row, .head = row, .token = heads * row};
      break;
    default:  // (L, 2, H, T, X)
      strides = {
          .kv = heads * tokens * row, .layer = 2 * heads * tokens * row, .head = tokens * row, .token = row};
      break;
  }
  strides.page = strides.token;
  return strides;
}

}  // namespace

int32_t HostPageTables::Length(int32_t b) const {
  const auto at = static_cast<size_t>(b);
  return kv_end[at] - kv_base[at];
}

void HostPageTables::Add(std::span<const int32_t> pages, int64_t base, int64_t end, int32_t page_size) {
  first_entry.push_back(static_cast<int32_t>(std::ssize(page_indices) - PageOf(base, 0, page_size)));
  page_indices.insert(page_indices.end(), pages.begin(), pages.end());
  kv_base.push_back(static_cast<int32_t>(base));
  kv_end.push_back(static_cast<int32_t>(end));
}

PageTableView HostPageTables::View() const {
  return {.page_indices = page_indices.data(),
          .first_entry = first_entry.data(),
          .kv_base = kv_base.data(),
          .kv_end = kv_end.data(),
          .slots = slots.data()};
}

KvLayerView FlashInferView(const KvFormat& format, std::byte* keys, std::byte* values) {
  const int64_t half = format.HalfLayerBytes();
  KvStrides strides = StridesOfPool(format, values == nullptr ? format.LayerBytes() : half);
  if (values != nullptr) strides.kv = values - keys;
  return KvLayerView(format, strides, keys);
}

Status CheckIndptr(const char* name, const std::vector<int32_t>& indptr, int64_t batch) {
  return CheckStarts(name, indptr, batch + 1);
}

StatusOr<HostPageTables> FlashInferTables(std::vector<int32_t> kv_indptr, std::vector<int32_t> page_indices,
                                          std::vector<int32_t> last_page_len, int32_t page_size,
                                          int32_t num_pages) {
  const size_t batch = last_page_len.size();
  TM_RETURN_IF_ERROR(CheckWithin("page_size", page_size, 1, kMaxInt32));
  TM_RETURN_IF_ERROR(CheckIndptr("kv_indptr", kv_indptr, static_cast<int64_t>(batch)));
  if (static_cast<int64_t>(page_indices.size()) != kv_indptr.back()) {
    return WrongSize("kv_page_indices", page_indices.size(), kv_indptr.back());
  }
  for (size_t i = 0; i < page_indices.size(); ++i) {
    if (page_indices[i] >= 0 && page_indices[i] < num_pages) continue;
    return Wrong(FieldElement("kv_page_indices", i), page_indices[i],
                 "the pool's pages are 0 to " + std::to_string(num_pages - 1));
  }
  HostPageTables tables;
  for (size_t b = 0; b < batch; ++b) {
    const int32_t pages = kv_indptr[b + 1] - kv_indptr[b];
    const bool has_pages = pages > 0;
    const int32_t least = has_pages ? 1 : 0, most = has_pages ? page_size : 0;
    if (last_page_len[b] < least || last_page_len[b] > most) {
      return Wrong(FieldElement("kv_last_page_len", b), last_page_len[b],
                   has_pages ? "allowed are 1 to " + std::to_string(most) : "not 0, and it has no page");
    }
    const int64_t tokens = has_pages ? int64_t{pages - 1} * page_size + last_page_len[b] : 0;
    tables.Add(std::span(page_indices).subspan(static_cast<size_t>(kv_indptr[b]), static_cast<size_t>(pages)),
               /*base=*/0, tokens, page_size);
  }
  return tables;
}

Status AddAppendSlots(const std::vector<int32_t>& append_indptr, int32_t page_size, HostPageTables* tables) {
  TM_RETURN_IF_ERROR(CheckIndptr("append_indptr", append_indptr, tables->batch()));
  WrittenSlots written;
  for (int32_t b = 0; b < tables->batch(); ++b) {
    const auto at = static_cast<size_t>(b);
    const int64_t rows = append_indptr[at + 1] - append_indptr[at];
    const int64_t length = tables->Length(b);
    if (rows > length) {
      return Wrong(
          FieldElement("append_indptr", at + 1), append_indptr[at + 1],
          "more rows than the " + std::to_string(length) + " that sequence " + std::to_string(b) + " holds");
    }
    for (int64_t position = length - rows; position < length; ++position) {
      const auto entry = static_cast<size_t>(tables->first_entry[at] + PageOf(position, 0, page_size));
      const int64_t slot = SlotOf(tables->page_indices[entry], position, page_size);
      TM_RETURN_IF_ERROR(written.Add("kv_page_indices", entry, slot));
      tables->slots.push_back(slot);
    }
  }
  return Status::Ok();
}

StatusOr<Format> OpenPplRowFormat(const OpenPplAttributes& attributes, const OpenPplShape& shape,
                                  const Format& plain, DType scales) {
  const int32_t bits = attributes.quant_bit, group = attributes.quant_group;
  if (bits != 0 && bits != 8 && bits != 4) return Wrong("quant_bit", bits, "allowed are 0, 8 and 4");
  if (shape.has_scale != (bits != 0)) {
    return InvalidArgument(shape.has_scale ? "is given, and quant_bit is 0"
                                           : "is missing, and quant_bit is " + std::to_string(bits))
        .WithField("scale", FieldForm::kSubject);
  }
  if (bits == 0) return plain;
  if (plain == kBareInt8) {
    return Wrong("quant_bit", bits, "keys and values come in int8, which only 0 takes: as they are");
  }
  constexpr int32_t kLeast = 2, kMost = 1 << kMaxKvGroupLog2;
  if (group < kLeast || group > kMost || !std::has_single_bit(static_cast<uint32_t>(group)) ||
      shape.head_dim % group != 0) {
    return Wrong("quant_group", group,
                 "no power of two from " + std::to_string(kLeast) + " to " + std::to_string(kMost) +
                     " that divides head_dim " + std::to_string(shape.head_dim));
  }
  return Format::WithScalesApart(bits == 8 ? DType::kInt8 : DType::kInt4,
                                 std::countr_zero(static_cast<uint32_t>(group)), scales);
}

int32_t OpenPplPageSize(const OpenPplAttributes& attributes, const OpenPplShape& shape) {
  return attributes.cache_mode == 1 ? attributes.page_size : static_cast<int32_t>(shape.cache_tokens);
}

StatusOr<KvLayerView> OpenPplView(const OpenPplAttributes& attributes, const OpenPplShape& shape, Format row,
                                  std::byte* cache, std::byte* scale) {
  TM_RETURN_IF_ERROR(CheckAttributes(attributes, shape));
  const KvFormat format = {.element = row,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .page_size = OpenPplPageSize(attributes, shape)};
  const auto strides_of = [&](int64_t row_bytes) {
    return OpenPplStrides(attributes.cache_layout, attributes.num_layer, shape.cache_tokens, shape.kv_heads,
                          row_bytes);
  };
  KvLayerView view(format, strides_of(format.VectorBytes()), cache, attributes.layer_idx);
  if (scale != nullptr) {
    const KvStrides strides = strides_of(row.CompanionBytes(shape.head_dim));
    view.scale = {.scales = scale + attributes.layer_idx * strides.layer, .strides = strides};
  }
  return view;
}

StatusOr<HostPageTables> OpenPplTables(const OpenPplAttributes& attributes, const OpenPplInputs& inputs,
                                       const OpenPplShape& shape) {
  TM_RETURN_IF_ERROR(CheckAttributes(attributes, shape));
  const auto batch = static_cast<int64_t>(inputs.start_pos.size());
  TM_RETURN_IF_ERROR(CheckStarts("seqstarts", inputs.seqstarts, batch + 1));
  TM_RETURN_IF_ERROR(CheckStarts("kvstarts", inputs.kvstarts, batch + 1));
  if (inputs.seqstarts.back() != shape.current_rows) {
    return Wrong(FieldElement("seqstarts", static_cast<size_t>(batch)), inputs.seqstarts.back(),
                 "current_key has " + std::to_string(shape.current_rows) + " rows");
  }
  const bool paged = attributes.cache_mode == 1;
  const int64_t columns =
      batch == 0 ? 0 : static_cast<int64_t>(inputs.cachestarts.size()) / batch;  // of cachestarts
  const bool sized = paged ? static_cast<int64_t>(inputs.cachestarts.size()) == columns * batch
                           : static_cast<int64_t>(inputs.cachestarts.size()) == batch;
  if (!sized) return WrongSize("cachestarts", inputs.cachestarts.size(), paged ? columns * batch : batch);

  const int32_t page_size = OpenPplPageSize(attributes, shape);
  HostPageTables tables;
  WrittenSlots written;
  for (int64_t b = 0; b < batch; ++b) {
    const auto at = static_cast<size_t>(b);
    const int64_t seqlen = inputs.seqstarts[at + 1] - inputs.seqstarts[at];
    const int64_t kvlen = inputs.kvstarts[at + 1] - inputs.kvstarts[at];
    const int64_t start = inputs.start_pos[at];
    if (start < 0 || start > kMaxInt32) {
      return Wrong(FieldElement("start_pos", at), start, "allowed are 0 to " + std::to_string(kMaxInt32));
    }
    if (kvlen != start + seqlen) {
      return Wrong(FieldElement("kvstarts", at + 1), inputs.kvstarts[at + 1],
                   "a kvlen of " + std::to_string(kvlen) + "; start_pos + seqlen is " +
                       std::to_string(start + seqlen));
    }
    if (seqlen > inputs.max_seqlen) {
      return Wrong("max_seqlen", inputs.max_seqlen,
                   "sequence " + std::to_string(b) + " has " + std::to_string(seqlen) + " tokens");
    }
    if (kvlen > inputs.max_kvlen) {
      return Wrong("max_kvlen", inputs.max_kvlen,
                   "sequence " + std::to_string(b) + " has " + std::to_string(kvlen) + " keys");
    }
    if (!paged && kvlen > shape.cache_tokens) {
      return Wrong("cache", shape.cache_tokens,
                   "sequence " + std::to_string(b) + " has " + std::to_string(kvlen) + " keys");
    }
    const int64_t pages = PagesFor(kvlen, page_size);
    if (paged && pages > columns) {
      return InvalidArgument("has " + std::to_string(columns) + " pages of each sequence; sequence " +
                             std::to_string(b) + " needs " + std::to_string(pages))
          .WithField("cachestarts", FieldForm::kSubject);
    }
    std::vector<int32_t> indices;
    for (int64_t page = 0; page < pages; ++page) {
      const auto element = static_cast<size_t>(paged ? b * columns + page : b);
      const int64_t first = inputs.cachestarts[element];
      const int64_t begin = page * page_size;
      const int64_t end = std::min<int64_t>(kvlen, begin + page_size);
      if (first < 0 || first > shape.cache_tokens - (end - begin)) {
        return Wrong(FieldElement("cachestarts", element), first,
                     std::to_string(end - begin) + " slots from there are not in the cache's " +
                         std::to_string(shape.cache_tokens));
      }
      indices.push_back(static_cast<int32_t>(first));
      for (int64_t position = std::max(begin, start); position < end; ++position) {
        TM_RETURN_IF_ERROR(written.Add("cachestarts", element, first + position - begin));
        tables.slots.push_back(SlotOf(first, position, page_size));
      }
    }
    tables.Add(indices, /*base=*/0, kvlen, page_size);
  }
  return tables;
}

}  // namespace tramontane
