#include "server/http/gzip.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

#include "tests/support/gzip_writer.h"

namespace tramontane {
namespace {

constexpr int64_t kMany = 1 << 30;

// Where there is room for everything.
std::optional<HttpRefusal> Gunzip(std::string_view bytes, int64_t max_bytes, std::string* text) {
  ByteBudget budget(kMany);
  HeldBytes held(budget);
  return tramontane::Gunzip(bytes, max_bytes, held, text);
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
      std::string("\x03\x00xyz", 5) + std::string("name\0", 5) + std::string("comment\0", 8);
  EXPECT_FALSE(Gunzip(Gzipped("text", 2 | 4 | 8 | 16, parts), kMany, &read));
  EXPECT_EQ(read, "text");
}

TEST(Gunzip, StopsAtTheLimit) {
  std::string read;
  const std::string bomb = Gzipped(std::string(16 << 20, '\0'));
  EXPECT_LT(bomb.size(), 100'000u);
  const auto fault = Gunzip(bomb, 1'000'000, &read);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->status, 413);
  EXPECT_LT(read.size(), 1'100'000u) << "and reads no further";
  EXPECT_FALSE(Gunzip(Gzipped(std::string(1000, 'a')), 1000, &read));
  EXPECT_TRUE(Gunzip(Gzipped(std::string(1001, 'a')), 1000, &read));
}

TEST(Gunzip, HoldsTheTextBeforeItIsThereAndStopsWhereThereIsNoRoom) {
  constexpr int64_t kRoom = 1'000'000;
  ByteBudget budget(kRoom);
  HeldBytes other(budget);
  other.Set(600'000);
  std::string read;
  {
    HeldBytes held(budget);
    const auto fault = tramontane::Gunzip(Gzipped(std::string(16 << 20, '\0')), kMany, held, &read);
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->status, 503);
    EXPECT_EQ(fault->reason, "too_many_body_bytes");
    EXPECT_GT(fault->retry_after_ms, 0);
    EXPECT_LE(static_cast<int64_t>(read.size()), 400'000);
    EXPECT_EQ(held.bytes(), static_cast<int64_t>(read.size()));
  }
  EXPECT_EQ(budget.bytes(), 600'000);
  HeldBytes held(budget);
  EXPECT_FALSE(tramontane::Gunzip(Gzipped(std::string(400'000, 'a')), kMany, held, &read));
  EXPECT_EQ(budget.bytes(), kRoom);
}

TEST(Gunzip, ALengthThatIsAnotherOneIsRefused) {
  std::string bytes = Gzipped("some text");
  bytes[bytes.size() - 4] = 8;
  std::string read;
  const auto fault = Gunzip(bytes, kMany, &read);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->status, 400);
  EXPECT_NE(fault->message.find("length"), std::string::npos) << fault->message;
}

TEST(Gunzip, NoMoreIsMadeThanTheLastBytesSay) {
  std::string bytes = Gzipped(std::string(16 << 20, ' '));
  EXPECT_EQ(GunzippedBytes(bytes), 16 << 20);
  bytes.replace(bytes.size() - 4, 4, LittleEndian(1000));
  EXPECT_EQ(GunzippedBytes(bytes), 1000);
  std::string read;
  const auto fault = Gunzip(bytes, kMany, &read);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->status, 400);
  EXPECT_LE(read.size(), 1000u);
  EXPECT_EQ(GunzippedBytes("abc"), 0x636261);
}

TEST(Gunzip, ATextAsLongAsTheLimitTakesNoMoreRoomThanTheLimit) {
  constexpr int64_t kLimit = 5'000'000;
  std::string read;
  EXPECT_FALSE(Gunzip(Gzipped(std::string(kLimit, 'a')), kLimit, &read));
  EXPECT_EQ(static_cast<int64_t>(read.capacity()), kLimit);
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
