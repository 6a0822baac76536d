#include "server/http/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr size_t kLengthBytes = 4;  // at the end, behind the checksum
constexpr size_t kStepBytes = 64 << 10;
constexpr int kGzipWithAnyWindow = 16 + MAX_WBITS;

// zlib's state, for as long as this is there.
struct Inflation {
  Inflation() { TM_CHECK(inflateInit2(&at, kGzipWithAnyWindow) == Z_OK, "zlib has no memory"); }
  ~Inflation() { inflateEnd(&at); }
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;

  z_stream at{};
};

HttpRefusal Fault(const std::string& what) { return {.message = "the body is not gzip: " + what}; }

HttpRefusal TooLong(int64_t max_bytes) {
  return {
      .status = 413,
      .message = "the body is longer than " + std::to_string(max_bytes) + " bytes when it is decompressed"};
}

}  // namespace

int64_t GunzippedBytes(std::string_view bytes) {
  int64_t length = 0;  // little-endian
  for (size_t i = 1; i <= std::min(bytes.size(), kLengthBytes); ++i) {
    length = length << 8 | static_cast<unsigned char>(bytes[bytes.size() - i]);
  }
  return length;
}

std::optional<HttpRefusal> Gunzip(std::string_view bytes, int64_t max_bytes, HeldBytes& held,
                                  std::string* text) {
  Inflation inflation;
  z_stream& at = inflation.at;
  at.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib's type; it only reads
  at.avail_in = static_cast<uInt>(bytes.size());
  const int64_t length = GunzippedBytes(bytes);
  const auto step = std::make_unique<std::array<Bytef, kStepBytes>>();
  text->clear();
  int state = Z_OK;
  while (state != Z_STREAM_END) {
    at.next_out = step->data();
    at.avail_out = static_cast<uInt>(step->size());
    state = inflate(&at, Z_NO_FLUSH);
    const std::string_view inflated(reinterpret_cast<const char*>(step->data()), step->size() - at.avail_out);
    if (state != Z_STREAM_END && (state != Z_OK || inflated.empty())) {
      return Fault(at.msg != nullptr ? at.msg : "it is cut short");
    }
    const auto size = static_cast<int64_t>(text->size() + inflated.size());
    if (size > max_bytes) return TooLong(max_bytes);
    if (size > length) return Fault("its length is another one");
    if (!held.TrySet(size)) return TooManyBodyBytes(held.budget().max_bytes());
    AppendArrived(inflated, max_bytes, text);
  }
  if (at.avail_in > 0) return Fault("something follows it");
  return std::nullopt;
}

}  // namespace tramontane
