// Texts as a client compresses them. Pure functions; any thread.
#pragma once

#include <boost/beast/zlib/deflate_stream.hpp>
#include <boost/crc.hpp>
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
  namespace zlib = boost::beast::zlib;
  zlib::deflate_stream deflate;
  std::string bytes(deflate.upper_bound(text.size()) + 64, '\0');
  zlib::z_params at{};
  at.next_in = text.data();
  at.avail_in = text.size();
  at.next_out = bytes.data();
  at.avail_out = bytes.size();
  boost::beast::error_code state;
  deflate.write(at, zlib::Flush::finish, state);
  TM_CHECK(state == zlib::error::end_of_stream, "deflate ended early");
  bytes.resize(at.total_out);
  return bytes;
}

// One gzip member (RFC 1952); `flags` say which `optional_parts` its header has.
inline std::string Gzipped(std::string_view text, unsigned char flags = 0,
                           const std::string& optional_parts = "") {
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  return std::string("\x1f\x8b\x08", 3) + static_cast<char>(flags) + std::string(6, '\0') + optional_parts +
         Deflated(text) + LittleEndian(crc.checksum()) + LittleEndian(static_cast<uint32_t>(text.size()));
}

}  // namespace tramontane
