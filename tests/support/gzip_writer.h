// Texts as a client compresses them. Pure functions; any thread.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace tramontane {

inline std::string LittleEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

inline std::string Deflated(std::string_view text) {
  z_stream at{};
  TM_CHECK(deflateInit2(&at, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK,
           "no deflate");
  std::string bytes(deflateBound(&at, text.size()), '\0');
  at.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  at.avail_in = static_cast<uInt>(text.size());
  at.next_out = reinterpret_cast<Bytef*>(bytes.data());
  at.avail_out = static_cast<uInt>(bytes.size());
  TM_CHECK(deflate(&at, Z_FINISH) == Z_STREAM_END, "deflate ended early");
  bytes.resize(at.total_out);
  deflateEnd(&at);
  return bytes;
}

inline uint32_t CrcOf(std::string_view text) {
  return static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

// One gzip member (RFC 1952); `flags` say which `optional_parts` its header has.
inline std::string Gzipped(std::string_view text, unsigned char flags = 0,
                           const std::string& optional_parts = "") {
  std::string header =
      std::string("\x1f\x8b\x08", 3) + static_cast<char>(flags) + std::string(6, '\0') + optional_parts;
  constexpr unsigned char kHasHeaderCrc = 2;
  if ((flags & kHasHeaderCrc) != 0) header += LittleEndian(CrcOf(header)).substr(0, 2);
  return header + Deflated(text) + LittleEndian(CrcOf(text)) +
         LittleEndian(static_cast<uint32_t>(text.size()));
}

}  // namespace tramontane
