#include "server/gateway/gzip.h"

#include <gtest/gtest.h>

#include <boost/beast/zlib/deflate_stream.hpp>
#include <boost/crc.hpp>
#include <string>

namespace tramontane {
namespace {

constexpr int64_t kMany = 1 << 30;

std::string Word(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

std::string Deflated(std::string_view text) {
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
  EXPECT_EQ(state, zlib::error::end_of_stream);
  bytes.resize(at.total_out);
  return bytes;
}

std::string Gzipped(std::string_view text, unsigned char flags = 0, const std::string& optional_parts = "") {
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  return std::string("\x1f\x8b\x08", 3) + static_cast<char>(flags) + std::string(6, '\0') + optional_parts +
         Deflated(text) + Word(crc.checksum()) + Word(static_cast<uint32_t>(text.size()));
}

TEST(Gunzip, ReadsWhatWasCompressed) {
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string(1 << 20, 'a'), std::string("\0\xff\x80", 3),
        std::string(65536, 'b'), std::string(65537, 'c')}) {
    std::string read = "what was there before";
    const auto fault = Gunzip(Gzipped(text), kMany, &read);
    ASSERT_FALSE(fault) << fault->message;
    EXPECT_EQ(read, text);
  }
}

// printf '{"prompt":"hi"}' | gzip -n
TEST(Gunzip, ReadsWhatGzipWrites) {
  const std::string bytes(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x2a\x28\xca\xcf\x2d\x28\x51\xb2\x52\xca\xc8\x54\xaa"
      "\x05"
      "\x00\x56\x05\x28\x18\x0f\x00\x00\x00",
      35);
  std::string read;
  const auto fault = Gunzip(bytes, kMany, &read);
  ASSERT_FALSE(fault) << fault->message;
  EXPECT_EQ(read, R"({"prompt":"hi"})");
}

TEST(Gunzip, SkipsTheOptionalPartsOfTheHeader) {
  std::string read;
  const std::string parts =
      std::string("\x03\x00xyz", 5) + std::string("name\0", 5) + std::string("comment\0", 8) + "CC";
  EXPECT_FALSE(Gunzip(Gzipped("text", 2 | 4 | 8 | 16, parts), kMany, &read));
  EXPECT_EQ(read, "text");
}

TEST(Gunzip, StopsAtTheLimit) {
  std::string read;
  const std::string bomb = Gzipped(std::string(64 << 20, '\0'));
  EXPECT_LT(bomb.size(), 100'000u);
  const auto fault = Gunzip(bomb, 1'000'000, &read);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->status, 413);
  EXPECT_LT(read.size(), 1'100'000u) << "and reads no further";
  EXPECT_FALSE(Gunzip(Gzipped(std::string(1000, 'a')), 1000, &read));
  EXPECT_TRUE(Gunzip(Gzipped(std::string(1001, 'a')), 1000, &read));
}

TEST(Gunzip, RefusesWhatIsCutChangedOrFollowed) {
  const std::string whole = Gzipped("some text that is compressed, some text", 8, std::string("n\0", 2));
  std::string read;
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto fault = Gunzip(whole.substr(0, length), kMany, &read);
    ASSERT_TRUE(fault) << length;
    EXPECT_EQ(fault->status, 400);
  }
  EXPECT_TRUE(Gunzip(whole + "x", kMany, &read));
  // Bytes 4 to 9 hold a time and a system, and then comes the name: nothing depends on them.
  for (size_t at = 12; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    const auto fault = Gunzip(changed, kMany, &read);
    EXPECT_TRUE(fault || read == "some text that is compressed, some text") << at;
  }
}

}  // namespace
}  // namespace tramontane
