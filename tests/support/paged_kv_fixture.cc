#include "tests/support/paged_kv_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int kNanByte = 0xff;  // a run of these is NaN as f32, bf16, f16 and fp8, and as a scale

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

PagedKvFixture::PagedKvFixture(const PagedKvShape& shape, std::vector<PagedSpan> sequences)
    : shape_(shape), sequences_(std::move(sequences)) {
  const int64_t os_page = sysconf(_SC_PAGESIZE);
  page_bytes_ = shape_.layers * LayerBytes();
  if (shape_.whole_os_pages) page_bytes_ = RoundUp(page_bytes_, os_page);

  int32_t used_pages = 0;
  for (const PagedSpan& span : sequences_) {
    TM_CHECK(span.kv_base % shape_.page_size == 0 && span.kv_end >= span.kv_base, "bad span of a sequence");
    used_pages += static_cast<int32_t>(PagesFor(span.kv_end - span.kv_base, shape_.page_size));
  }
  std::vector<int32_t> pages(Index(used_pages + shape_.spare_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(shape_.seed));
  const int32_t* page = pages.data();
  for (const PagedSpan& span : sequences_) {
    const int64_t first = span.kv_base / shape_.page_size;
    const int64_t count = PagesFor(span.kv_end - span.kv_base, shape_.page_size);
    const auto begin = static_cast<int64_t>(page_indices_.size());
    const auto width =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
    first_entry_.push_back(static_cast<int32_t>(shape_.rings ? begin : begin - first));
    page_mask_.push_back(shape_.rings ? static_cast<int32_t>(width - 1) : -1);
    page_indices_.resize(Index(begin + (shape_.rings ? width : count)), pages.back());
    kv_base_.push_back(static_cast<int32_t>(span.kv_base));
    kv_end_.push_back(static_cast<int32_t>(span.kv_end));
    for (int64_t i = 0; i < count; ++i) {
      page_indices_[EntryOf(static_cast<int32_t>(kv_end_.size()) - 1, span.kv_base + i * shape_.page_size)] =
          *page++;
    }
  }

  pool_bytes_ = RoundUp((used_pages + shape_.spare_pages) * page_bytes_, os_page);
  void* memory =
      mmap(nullptr, Index(pool_bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TM_CHECK(memory != MAP_FAILED, "no memory for a pool of %lld bytes", static_cast<long long>(pool_bytes_));
  pool_ = static_cast<std::byte*>(memory);
  std::memset(pool_, kNanByte, Index(pool_bytes_));
  SetQueries(std::vector<int32_t>(sequences_.size(), 0));
}

PagedKvFixture::~PagedKvFixture() { munmap(pool_, Index(pool_bytes_)); }

void PagedKvFixture::SetQueries(const std::vector<int32_t>& counts) {
  TM_CHECK(counts.size() == sequences_.size(), "%zu counts for %zu sequences", counts.size(),
           sequences_.size());
  qo_indptr_ = {0};
  slots_.clear();
  for (size_t b = 0; b < counts.size(); ++b) {
    qo_indptr_.push_back(qo_indptr_.back() + counts[b]);
    for (int64_t position = sequences_[b].kv_end - counts[b]; position < sequences_[b].kv_end; ++position) {
      slots_.push_back(Slot(static_cast<int32_t>(b), position));
    }
  }
}

void PagedKvFixture::FillRandom(uint64_t seed) {
  for (int32_t b = 0; b < batch(); ++b) {
    for (int64_t position = sequences_[Index(b)].kv_base; position < sequences_[Index(b)].kv_end;
         ++position) {
      std::mt19937_64 random(seed * 1000003 + Index(b) * 1000000007 + Index(position));
      std::normal_distribution<double> normal;
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        std::vector<float> key(Index(shape_.head_dim)), value(Index(shape_.head_dim));
        for (size_t d = 0; d < key.size(); ++d) {
          key[d] = static_cast<float>(normal(random));
          value[d] = static_cast<float>(normal(random));
        }
        SetVector(KvHalf::kKey, b, position, head, key);
        SetVector(KvHalf::kValue, b, position, head, value);
      }
    }
  }
}

void PagedKvFixture::Set(KvHalf half, int32_t b, int64_t position, int32_t head, int32_t d, double value) {
  TM_CHECK(!InGroups(), "a number of a group has no bytes of its own");
  std::byte* element = pool_ + VectorByte(half, b, position, head) + Element().Bytes(d);
  const float single = static_cast<float>(value);
  if (shape_.dtype == DType::kFp8E4M3) {
    *element = static_cast<std::byte>(FloatToFp8E4M3(single));
    return;
  }
  if (shape_.dtype == DType::kF32) {
    std::memcpy(element, &single, sizeof(single));
    return;
  }
  const uint16_t bits = shape_.dtype == DType::kBf16 ? FloatToBf16(single) : FloatToF16(single);
  std::memcpy(element, &bits, sizeof(bits));
}

void PagedKvFixture::SetVector(KvHalf half, int32_t b, int64_t position, int32_t head,
                               const std::vector<float>& vector) {
  if (InGroups()) {
    return QuantizeKvRow(Element(), vector.data(), shape_.head_dim,
                         pool_ + VectorByte(half, b, position, head),
                         pool_ + ScaleByte(half, b, position, head));
  }
  for (int32_t d = 0; d < shape_.head_dim; ++d) Set(half, b, position, head, d, double{vector[Index(d)]});
}

double PagedKvFixture::Get(KvHalf half, int32_t b, int64_t position, int32_t head, int32_t d) const {
  const std::byte* vector = pool_ + VectorByte(half, b, position, head);
  if (InGroups()) {
    std::vector<float> row(Index(shape_.head_dim));
    DequantizeKvRow(Element(), vector, pool_ + ScaleByte(half, b, position, head), shape_.head_dim,
                    row.data());
    return double{row[Index(d)]};
  }
  const std::byte* element = vector + Element().Bytes(d);
  if (shape_.dtype == DType::kFp8E4M3) return double{Fp8E4M3ToFloat(static_cast<uint8_t>(*element))};
  if (shape_.dtype == DType::kF32) {
    float single;
    std::memcpy(&single, element, sizeof(single));
    return single;
  }
  uint16_t bits;
  std::memcpy(&bits, element, sizeof(bits));
  return shape_.dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

std::vector<double> PagedKvFixture::All(KvHalf half, int32_t b, int64_t from) const {
  std::vector<double> all;
  for (int64_t position = from; position < sequences_[Index(b)].kv_end; ++position) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      for (int32_t d = 0; d < shape_.head_dim; ++d) all.push_back(Get(half, b, position, head, d));
    }
  }
  return all;
}

void PagedKvFixture::ShareUpTo(int64_t end, int32_t b, int32_t from) {
  const PagedSpan &span = sequences_[Index(b)], &other = sequences_[Index(from)];
  end = std::min({end, span.kv_end, other.kv_end}) / shape_.page_size * shape_.page_size;
  const auto page = [&](int32_t sequence, int64_t position) -> int32_t& {
    return page_indices_[EntryOf(sequence, position)];
  };
  for (int64_t at = std::max(span.kv_base, other.kv_base); at < end; at += shape_.page_size) {
    page(b, at) = page(from, at);
  }
}

void PagedKvFixture::ListStrangePage(int32_t b, int64_t position) {
  int32_t strange = 0;
  while (std::count(page_indices_.begin(), page_indices_.end(), strange) > 0) ++strange;
  page_indices_[EntryOf(b, position)] = strange;
}

void PagedKvFixture::ForbidAllBut(const std::vector<int64_t>& first) {
  const int64_t os_page = sysconf(_SC_PAGESIZE);
  std::vector<bool> live(Index(pool_bytes_ / os_page), false);
  for (int32_t b = 0; b < batch(); ++b) {
    for (int64_t position = first[Index(b)]; position < sequences_[Index(b)].kv_end; ++position) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        for (const KvHalf half : {KvHalf::kKey, KvHalf::kValue}) {
          const int64_t vector = VectorByte(half, b, position, head);
          const int64_t scales = ScaleByte(half, b, position, head);
          for (const auto& [begin, end] :
               {std::pair{vector, vector + VectorBytes()}, std::pair{scales, scales + ScaleBytes()}}) {
            for (int64_t page = begin / os_page; page * os_page < end; ++page) live[Index(page)] = true;
          }
        }
      }
    }
  }
  for (size_t page = 0; page < live.size(); ++page) {
    if (live[page]) continue;
    const int result = mprotect(pool_ + static_cast<int64_t>(page) * os_page, Index(os_page), PROT_NONE);
    TM_CHECK(result == 0, "mprotect of the pool failed");
    forbidden_bytes_ += os_page;
  }
}

KvLayerView PagedKvFixture::View(std::byte* pool) const {
  return KvLayerView({Element(), shape_.kv_heads, shape_.head_dim, shape_.page_size, shape_.order}, pool,
                     page_bytes_, shape_.layer * LayerBytes());
}

PageTableView PagedKvFixture::Table() const {
  PageTableView table;
  table.page_indices = page_indices_.data();
  table.first_entry = first_entry_.data();
  if (shape_.rings) table.page_mask = page_mask_.data();
  table.kv_base = kv_base_.data();
  table.kv_end = kv_end_.data();
  table.slots = slots_.data();
  table.listed_pages = held_pages();
  return table;
}

int64_t PagedKvFixture::held_pages() const {
  int64_t pages = 0;
  for (const PagedSpan& span : sequences_) pages += PagesFor(span.kv_end - span.kv_base, shape_.page_size);
  return pages;
}

size_t PagedKvFixture::EntryOf(int32_t b, int64_t position) const {
  return Index(first_entry_[Index(b)] + (position / shape_.page_size & page_mask_[Index(b)]));
}

int64_t PagedKvFixture::Slot(int32_t b, int64_t position) const {
  const int32_t page = page_indices_[EntryOf(b, position)];
  return int64_t{page} * shape_.page_size + position % shape_.page_size;
}

StepMaxima PagedKvFixture::Maxima(int32_t query_heads) const {
  StepMaxima maxima;
  maxima.tokens = std::max(tokens(), 1);
  maxima.sequences = batch();
  maxima.query_heads = query_heads;
  maxima.kv_heads = shape_.kv_heads;
  maxima.head_dim = shape_.head_dim;
  for (const PagedSpan& span : sequences_) maxima.context = std::max(maxima.context, span.kv_end);
  if (InGroups() || shape_.dtype == DType::kFp8E4M3) maxima.quantised_pages = held_pages();
  maxima.page_size = shape_.page_size;
  return maxima;
}

Format PagedKvFixture::Element() const {
  if (InGroups()) return Format::WithScalesApart(shape_.dtype, shape_.group_log2);
  return shape_.dtype == DType::kFp8E4M3 ? Format::BareFp8() : Format(shape_.dtype);
}

int64_t PagedKvFixture::LayerBytes() const {
  return int64_t{2} * shape_.kv_heads * shape_.page_size * (VectorBytes() + ScaleBytes());
}

int64_t PagedKvFixture::VectorIndex(int32_t b, int64_t position, int32_t head) const {
  const int64_t offset = Slot(b, position) % shape_.page_size;
  return shape_.order == KvOrder::kHnd ? head * shape_.page_size + offset : offset * shape_.kv_heads + head;
}

int64_t PagedKvFixture::HalfByte(KvHalf half, int32_t b, int64_t position) const {
  const PagedSpan& span = sequences_[Index(b)];
  TM_CHECK(position >= span.kv_base && position < span.kv_end, "position %lld is not held",
           static_cast<long long>(position));
  const int64_t half_bytes = half == KvHalf::kKey ? 0 : LayerBytes() / 2;
  return Slot(b, position) / shape_.page_size * page_bytes_ + shape_.layer * LayerBytes() + half_bytes;
}

int64_t PagedKvFixture::VectorByte(KvHalf half, int32_t b, int64_t position, int32_t head) const {
  return HalfByte(half, b, position) + VectorIndex(b, position, head) * VectorBytes();
}

int64_t PagedKvFixture::ScaleByte(KvHalf half, int32_t b, int64_t position, int32_t head) const {
  return HalfByte(half, b, position) + int64_t{shape_.kv_heads} * shape_.page_size * VectorBytes() +
         VectorIndex(b, position, head) * ScaleBytes();
}

}  // namespace tramontane
