#include "server/http/gzip.h"

#include <array>
#include <boost/beast/zlib/inflate_stream.hpp>
#include <boost/crc.hpp>
#include <memory>
#include <utility>

namespace tramontane {
namespace {

namespace zlib = boost::beast::zlib;

constexpr size_t kHeaderBytes = 10;
constexpr size_t kTrailerBytes = 8;  // CRC-32 and length of the text
constexpr size_t kStepBytes = 64 << 10;
constexpr int kWindowBits = 15;  // the largest there is

// Flags of the header: which optional parts follow it.
constexpr unsigned kHasHeaderCrc = 2, kHasExtra = 4, kHasName = 8, kHasComment = 16, kReserved = 0xe0;

unsigned ByteAt(std::string_view bytes, size_t at) { return static_cast<unsigned char>(bytes[at]); }

uint32_t Word(std::string_view bytes) {  // little-endian
  return ByteAt(bytes, 0) | ByteAt(bytes, 1) << 8 | ByteAt(bytes, 2) << 16 | ByteAt(bytes, 3) << 24;
}

HttpRefusal Fault(const std::string& what) { return {.message = "the body is not gzip: " + what}; }

HttpRefusal TooLong(int64_t max_bytes) {
  return {
      .status = 413,
      .message = "the body is longer than " + std::to_string(max_bytes) + " bytes when it is decompressed"};
}

// Takes `count` bytes from the front. False: there are fewer.
bool Skip(std::string_view* bytes, size_t count) {
  if (bytes->size() < count) return false;
  bytes->remove_prefix(count);
  return true;
}

bool SkipText(std::string_view* bytes) {
  const size_t end = bytes->find('\0');
  return end != std::string_view::npos && Skip(bytes, end + 1);
}

bool SkipHeader(std::string_view* bytes) {
  if (bytes->size() < kHeaderBytes || !bytes->starts_with("\x1f\x8b\x08")) return false;
  const unsigned flags = ByteAt(*bytes, 3);
  bytes->remove_prefix(kHeaderBytes);
  if ((flags & kReserved) != 0) return false;
  if ((flags & kHasExtra) != 0) {
    if (bytes->size() < 2 || !Skip(bytes, 2 + ByteAt(*bytes, 0) + (ByteAt(*bytes, 1) << 8))) return false;
  }
  if ((flags & kHasName) != 0 && !SkipText(bytes)) return false;
  if ((flags & kHasComment) != 0 && !SkipText(bytes)) return false;
  return (flags & kHasHeaderCrc) == 0 || Skip(bytes, 2);
}

// Of the eight bytes behind the text.
std::optional<HttpRefusal> TrailerFault(std::string_view trailer, std::string_view text) {
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  if (crc.checksum() != Word(trailer)) return Fault("its checksum is another one");
  if (static_cast<uint32_t>(text.size()) != Word(trailer.substr(4)))
    return Fault("its length is another one");
  return std::nullopt;
}

}  // namespace

std::optional<HttpRefusal> Gunzip(std::string_view bytes, int64_t max_bytes, HeldBytes& held,
                                  std::string* text) {
  if (!SkipHeader(&bytes)) return Fault("its header is damaged");
  zlib::inflate_stream inflate;
  inflate.reset(kWindowBits);
  zlib::z_params at{};
  at.next_in = bytes.data();
  at.avail_in = bytes.size();
  const auto step = std::make_unique<std::array<char, kStepBytes>>();
  boost::beast::error_code state;
  text->clear();
  while (state != zlib::error::end_of_stream) {
    at.next_out = step->data();
    at.avail_out = step->size();
    inflate.write(at, zlib::Flush::sync, state);
    const std::string_view inflated(step->data(), step->size() - at.avail_out);
    const bool goes_on = !state && !inflated.empty();
    if (!goes_on && state != zlib::error::end_of_stream) return Fault("it is damaged or cut short");
    const auto size = static_cast<int64_t>(text->size() + inflated.size());
    if (size > max_bytes) return TooLong(max_bytes);
    if (!held.TrySet(size)) return TooManyBodyBytes(held.budget().max_bytes());
    AppendArrived(inflated, max_bytes, text);
  }
  bytes.remove_prefix(bytes.size() - at.avail_in);
  if (bytes.size() != kTrailerBytes) return Fault("it is cut short, or something follows it");
  return TrailerFault(bytes, *text);
}

}  // namespace tramontane
