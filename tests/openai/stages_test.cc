// Who may ask: hosts and origins, on loopback and elsewhere.
#include "server/api/stages.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

namespace tramontane {
namespace {

class Stages : public ::testing::Test {
 protected:
  // The status that a GET of a path that is there ends with; 200 when it reaches its endpoint.
  int StatusOf(HttpHeaders headers, std::string target = "/health") {
    HttpRequest request;
    request.method = "GET";
    request.target = std::move(target);
    request.path = "/health";
    request.headers = std::move(headers);
    request.on_loopback = on_loopback_;
    const RouteMatch match = FindRoute(request.method, request.path);
    const auto answer = PassStages({.request = request, .match = match, .options = options_});
    return answer ? answer->status : 200;
  }
  int StatusOfHost(const std::string& host) { return StatusOf({{"host", host}}); }
  int StatusOfOrigin(const std::string& origin) {
    return StatusOf({{"host", "localhost"}, {"origin", origin}});
  }

  GatewayOptions options_;
  bool on_loopback_ = true;
};

TEST_F(Stages, OnLoopbackOnlyLocalNamesAreAnswered) {
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "a.localhost.", "127.0.0.1", "127.9.9.9:1", "[::1]:80"}) {
    EXPECT_EQ(StatusOfHost(host), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "0.0.0.0:8000", "",
        "127.0.0.1:80:80", "user@localhost", "evil.example#localhost"}) {
    EXPECT_EQ(StatusOfHost(host), 403) << host;
  }
  EXPECT_EQ(StatusOf({}), 200) << "HTTP/1.0 knows no Host";
  EXPECT_EQ(StatusOf({{"host", "localhost"}, {"host", "evil.example"}}), 403) << "each of them counts";
}

TEST_F(Stages, TheNameInATargetCountsAsTheHostDoes) {
  EXPECT_EQ(StatusOf({{"host", "localhost"}}, "http://localhost:8000/health"), 200);
  EXPECT_EQ(StatusOf({{"host", "localhost"}}, "http://evil.example/health"), 403);
  EXPECT_EQ(StatusOf({{"host", "localhost"}}, "http://evil.example?localhost/health"), 403);
  EXPECT_EQ(StatusOf({{"host", "localhost"}}, "/health?to=http://evil.example/"), 200);
}

TEST_F(Stages, NamesThatAreGivenAreAnsweredToo) {
  options_.hosts = {"api.example", "Other.Example"};
  EXPECT_EQ(StatusOfHost("api.example:8000"), 200);
  EXPECT_EQ(StatusOfHost("OTHER.example."), 200);
  EXPECT_EQ(StatusOfHost("evil.example"), 403);
  EXPECT_EQ(StatusOfHost("10.0.0.1"), 403) << "an address that is not this one's";
  options_.hosts = {"*"};
  EXPECT_EQ(StatusOfHost("evil.example"), 200);
}

TEST_F(Stages, ElsewhereNamesAreCheckedWhereTheyAreGiven) {
  on_loopback_ = false;
  EXPECT_EQ(StatusOfHost("anything.example"), 200);
  options_.hosts = {"api.example"};
  EXPECT_EQ(StatusOfHost("api.example"), 200);
  EXPECT_EQ(StatusOfHost("localhost:8000"), 200);
  EXPECT_EQ(StatusOfHost("10.1.2.3:8000"), 200) << "probes ask for addresses, and no rebound name is one";
  EXPECT_EQ(StatusOfHost("[fd00::1]:8000"), 200);
  EXPECT_EQ(StatusOfHost("evil.example"), 403);
}

TEST_F(Stages, PagesOfOtherSitesMayNotCall) {
  for (const char* origin : {"http://localhost", "http://localhost:3000", "https://127.0.0.1:8443",
                             "http://[::1]:1", "http://ui.localhost"}) {
    EXPECT_EQ(StatusOfOrigin(origin), 200) << origin;
  }
  for (const char* origin : {"http://evil.example", "https://localhost.evil.example", "null", "", "localhost",
                             "http://localhost@evil.example"}) {
    EXPECT_EQ(StatusOfOrigin(origin), 403) << origin;
  }
  on_loopback_ = false;
  EXPECT_EQ(StatusOfOrigin("http://evil.example"), 403) << "wherever this server listens";
}

TEST_F(Stages, ATimeThatIsNoneIsRefused) {
  EXPECT_EQ(StatusOf({{"host", "localhost"}, {"grpc-timeout", "1500m"}}), 200);
  EXPECT_EQ(StatusOf({{"host", "localhost"}, {"grpc-timeout", "1.5 s"}}), 400);
}

TEST_F(Stages, OriginsThatAreGivenMayCallAndRead) {
  options_.cors_origins = {"https://a.example", "https://b.example:8443"};
  EXPECT_EQ(StatusOfOrigin("https://a.example"), 200);
  EXPECT_EQ(StatusOfOrigin("https://b.example:8443"), 200);
  EXPECT_EQ(StatusOfOrigin("https://b.example"), 403) << "another port is another origin";
  EXPECT_EQ(StatusOfOrigin("http://a.example"), 403) << "and so is another scheme";
  options_.cors_origins = {"*"};
  EXPECT_EQ(StatusOfOrigin("null"), 200);
}

}  // namespace
}  // namespace tramontane
