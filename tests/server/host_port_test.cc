#include "server/base/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tramontane {
namespace {

using ::testing::HasSubstr;

TEST(HostPort, ReadsWhereToListen) {
  EXPECT_EQ(*ParseHostPort("127.0.0.1:8000"), (HostPort{"127.0.0.1", 8000}));
  EXPECT_EQ(*ParseHostPort("[::1]:0"), (HostPort{"::1", 0}));
  EXPECT_EQ(*ParseHostPort("my-host.example:65535"), (HostPort{"my-host.example", 65535}));
  for (const char* text : {"127.0.0.1:8000", "[::1]:0", "localhost:65535"}) {
    EXPECT_EQ(ToString(*ParseHostPort(text)), text);
  }
}

TEST(HostPort, NamesWhatIsNotAnAddressAndItsLimit) {
  for (const char* text : {"a:65536", "a:99999", "127.0.0.1: 80", "a:", "a:+80", "a:-1", "a:80x", "a:0x50",
                           "a:4294967376", "a:80 ", "http://a:80"}) {
    const Status status = ParseHostPort(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("\"" + std::string(text) + "\"")) << "the value";
    EXPECT_THAT(status.message(), HasSubstr("0 to 65535")) << "the limit";
  }
  for (const char* text :
       {"", "8000", ":8000", "::1:8000", "[::1]", "[::1", "[x]:80", " a:80", "a/b:80", "a b:80"}) {
    const Status status = ParseHostPort(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("HOST:PORT")) << text;
  }
}

TEST(HostOf, IsTheSameForEverySpelling) {
  for (const char* authority :
       {"localhost", "LocalHost", "localhost.", "localhost:8000", "LOCALHOST.:1", "localhost:"}) {
    EXPECT_EQ(HostOf(authority), "localhost") << authority;
  }
  EXPECT_EQ(HostOf("[::1]:8000"), "::1");
  EXPECT_EQ(HostOf("127.0.0.1:8000"), "127.0.0.1");
}

TEST(HostOf, IsNothingForWhatIsNoHost) {
  for (const char* authority :
       {"", ".", ":80", "localhost:80:80", "localhost:x", "localhost:70000", "::1", "[::1", "[::1]x",
        "a@localhost", "localhost/", "local host", "localhost\t", "[localhost]", "localhost,evil"}) {
    EXPECT_FALSE(HostOf(authority)) << authority;
  }
}

TEST(HostOfOrigin, NeedsASchemeAndNothingBehindThePort) {
  EXPECT_EQ(HostOfOrigin("http://localhost:3000"), "localhost");
  EXPECT_EQ(HostOfOrigin("https://A.Example"), "a.example");
  EXPECT_EQ(HostOfOrigin("tauri://localhost"), "localhost");
  for (const char* origin : {"null", "", "localhost", "://localhost", "http://", "http://localhost/path",
                             "http://localhost http://evil.example", "http://evil.example#localhost"}) {
    EXPECT_FALSE(HostOfOrigin(origin)) << origin;
  }
}

TEST(IsLoopback, HoldsForThisMachineOnly) {
  for (const char* host : {"localhost", "a.localhost", "127.0.0.1", "127.255.0.3", "::1", "0:0:0:0:0:0:0:1",
                           "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host :
       {"", "evil.example", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example", "127.1",
        "128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:10.0.0.1", "10.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace tramontane
