#include "server/commands/kv_page_listing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backends/cpu_backend.h"
#include "kernels/core/kv_quantize.h"
#include "models/kv_layout.h"
#include "models/opened_model.h"
#include "server/setup/host_options.h"

namespace tramontane {
namespace {

constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 16;

// What is written: eighths from -1 to 7/8, other ones in every row; values are halves of what keys are.
float WrittenNumber(int32_t half, int32_t token, int32_t head, int32_t lane) {
  const int32_t eighths = (5 * lane + 3 * head + 7 * token) % 16 - 8;
  return static_cast<float>(eighths) / (half == 0 ? 8.0f : 16.0f);
}

std::string Shown(float number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", static_cast<double>(number));
  return text;
}

// A run of bytes that belong together, and what they say.
struct Piece {
  int64_t offset = 0;  // in the page
  int64_t bytes = 0;
  std::string name;
  std::string meaning;
};

class Page {
 public:
  explicit Page(const KvFormat& format) : format_(format), bytes_(static_cast<size_t>(format.PageBytes(1))) {}

  // Every token, by the op that a step runs: no angle turns its keys.
  Status Write(Backend& backend) {
    const int32_t tokens = format_.page_size;
    std::vector<float> rows;
    std::vector<int64_t> slots;
    for (int32_t token = 0; token < tokens; ++token) {
      for (int32_t half = 0; half < 2; ++half) {
        for (int32_t head = 0; head < kKvHeads; ++head) {
          for (int32_t lane = 0; lane < kHeadDim; ++lane)
            rows.push_back(WrittenNumber(half, token, head, lane));
        }
      }
      slots.push_back(token);
    }
    const int64_t columns = int64_t{2} * kKvHeads * kHeadDim;
    RopeAppendParams params;
    params.qkv = MakeTensor(rows.data(), DType::kF32, tokens, columns);
    params.kv = View();
    params.slots = slots.data();
    if (backend.RopeAppend(params) == OpCode::kOk) return Status::Ok();
    return Internal(std::string("RopeAppend: ") + backend.last_error());
  }

  // All of the page, in the order of its bytes.
  std::vector<Piece> Pieces() {
    std::vector<Piece> pieces;
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        for (int32_t token = 0; token < format_.page_size; ++token) AddRow(half, head, token, &pieces);
      }
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    return pieces;
  }

  std::span<const std::byte> Bytes(const Piece& piece) const {
    return std::span(bytes_).subspan(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.bytes));
  }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

  // A key as it reads back.
  std::vector<float> ReadKey(int32_t head, int32_t token) {
    const KvLayerView view = View();
    return Read(view.Key(0, head, token), view.scale.Key(0, head, token));
  }

 private:
  KvLayerView View() { return KvLayerView(format_, bytes_.data(), size()); }

  std::vector<float> Read(const std::byte* numbers, const std::byte* scales) const {
    std::vector<float> row(kHeadDim);
    const auto* const halves = reinterpret_cast<const uint16_t*>(numbers);
    switch (format_.element.dtype) {
      case DType::kF32:
        std::memcpy(row.data(), numbers, kHeadDim * sizeof(float));
        break;
      case DType::kBf16:
        std::transform(halves, halves + kHeadDim, row.begin(), Bf16ToFloat);
        break;
      case DType::kFp8E4M3:
        WidenKvRowOfFp8(numbers, kHeadDim, KvFp8Scale(nullptr), row.data());
        break;
      default:
        DequantizeKvRow(format_.element, numbers, scales, kHeadDim, row.data());
    }
    return row;
  }

  void AddRow(int32_t half, int32_t head, int32_t token, std::vector<Piece>* pieces) {
    const KvLayerView view = View();
    const std::byte* const numbers = half == 0 ? view.Key(0, head, token) : view.Value(0, head, token);
    const std::byte* const scales =
        half == 0 ? view.scale.Key(0, head, token) : view.scale.Value(0, head, token);
    const std::string name = std::string(half == 0 ? "K" : "V") + " head " + std::to_string(head) +
                             " token " + std::to_string(token);
    const bool quantised = format_.element.companion_bytes > 0;
    pieces->push_back({.offset = numbers - bytes_.data(),
                       .bytes = format_.VectorBytes(),
                       .name = name,
                       .meaning = quantised ? Codes(numbers) : Numbers(Read(numbers, scales))});
    if (!quantised) return;
    pieces->push_back({.offset = scales - bytes_.data(),
                       .bytes = format_.element.CompanionBytes(kHeadDim),
                       .name = name + ", scales",
                       .meaning = Scales(scales)});
  }

  static std::string Numbers(const std::vector<float>& row) {
    std::string text;
    for (const float number : row) text += (text.empty() ? "" : " ") + Shown(number);
    return text;
  }

  // The integers of a row: of int4 two a byte, the even one low.
  std::string Codes(const std::byte* numbers) const {
    std::string text;
    for (int32_t lane = 0; lane < kHeadDim; ++lane) {
      const auto bits = static_cast<int32_t>(8 * format_.VectorBytes() / kHeadDim);
      const int32_t at = lane * bits;
      const int32_t code = std::to_integer<int32_t>(numbers[at / 8]) >> at % 8 & ((1 << bits) - 1);
      const int32_t sign = code >> (bits - 1);
      text += (lane == 0 ? "" : " ") + std::to_string(code - (sign << bits));
    }
    return text;
  }

  std::string Scales(const std::byte* scales) const {
    std::string text;
    for (int64_t at = 0; at < format_.element.CompanionBytes(kHeadDim); at += 2) {
      uint16_t bits;
      std::memcpy(&bits, scales + at, sizeof(bits));
      text += (text.empty() ? "" : " ") + Shown(F16ToFloat(bits));
    }
    return text;
  }

  const KvFormat format_;
  std::vector<std::byte> bytes_;
};

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char two[4];
    std::snprintf(two, sizeof(two), "%02x", std::to_integer<unsigned>(byte));
    text += (text.empty() ? "" : " ") + std::string(two);
  }
  return text;
}

std::string Padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string PiecesText(const Page& page, const std::vector<Piece>& pieces) {
  size_t names = 0, hex = 0;
  for (const Piece& piece : pieces) {
    names = std::max(names, piece.name.size());
    hex = std::max(hex, static_cast<size_t>(piece.bytes) * 3 - 1);
  }
  std::string text;
  for (const Piece& piece : pieces) {
    const std::string offset = std::to_string(piece.offset);
    text += "  " + std::string(5 - std::min<size_t>(5, offset.size()), ' ') + offset + "  " +
            Padded(piece.name, names) + "  " + Padded(Hex(page.Bytes(piece)), hex) + "  = " + piece.meaning +
            "\n";
  }
  return text;
}

}  // namespace

StatusOr<std::string> ListKvPage(const ServeConfig& config, int32_t page_size) {
  KvOptions options = KvOptionsOf(config);
  options.page_size = page_size;
  KvFormat format = {
      .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = page_size, .order = options.order};
  TM_ASSIGN_OR_RETURN(format.element, KvElementOf(options, kHeadDim));
  CpuBackendOptions one_thread;
  one_thread.threads = 1;
  TM_ASSIGN_OR_RETURN(const BackendPtr backend, MakeCpuBackend(one_thread));
  Page page(format);
  TM_RETURN_IF_ERROR(page.Write(*backend));
  std::string text = "a page of " + FormatName(format.element) + ", " + config.kv_layout + ": page size " +
                     std::to_string(page_size) + ", one layer, " + std::to_string(kKvHeads) + " heads of " +
                     std::to_string(kHeadDim) + " lanes; " + std::to_string(page.size()) + " bytes\n";
  text += PiecesText(page, page.Pieces());
  text += "K of head 0, token 0, as it was written and as it reads back:\n ";
  for (int32_t lane = 0; lane < kHeadDim; ++lane) text += " " + Shown(WrittenNumber(0, 0, 0, lane));
  text += "\n ";
  for (const float number : page.ReadKey(0, 0)) text += " " + Shown(number);
  return text + "\n";
}

}  // namespace tramontane
