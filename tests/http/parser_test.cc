#include "server/http/parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace tramontane {
namespace {

// Feeds as a connection does: what was not taken comes again with more behind it, `step` bytes at a time.
size_t FeedInSteps(HttpRequestParser& parser, std::string_view bytes, size_t step) {
  size_t taken = 0, available = 0;
  while (available < bytes.size() && !parser.done() && !parser.failed()) {
    available = std::min(bytes.size(), available + step);
    taken += parser.Feed(bytes.substr(taken, available - taken));
  }
  return taken;
}

constexpr std::string_view kPost =
    "POST /v1/completions?a=b HTTP/1.1\r\nHost: x\r\nX-Request-ID: r-1\r\nContent-Length: 5\r\n\r\nhello";

TEST(HttpParser, ReadsARequestCutAnywhere) {
  for (size_t step = 1; step <= kPost.size(); ++step) {
    HttpRequestParser parser({});
    EXPECT_EQ(FeedInSteps(parser, kPost, step), kPost.size()) << "step " << step;
    ASSERT_TRUE(parser.done()) << "step " << step;
    EXPECT_TRUE(parser.keep_alive());
    const HttpRequest request = parser.Take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.target, "/v1/completions?a=b");
    EXPECT_EQ(request.path, "/v1/completions");
    EXPECT_EQ(request.body, "hello");
    ASSERT_NE(request.Header("x-request-id"), nullptr);
    EXPECT_EQ(*request.Header("x-request-id"), "r-1");
    EXPECT_EQ(request.Header("x-absent"), nullptr);
  }
}

TEST(HttpParser, LeavesWhatFollowsARequest) {
  HttpRequestParser parser({});
  const std::string two = std::string(kPost) + "GET / HTTP/1.1\r\n";
  EXPECT_EQ(parser.Feed(two), kPost.size());
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(parser.Feed("more"), 0u);
}

TEST(HttpParser, JoinsChunks) {
  HttpRequestParser parser({});
  const std::string request =
      "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3;name=value\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: "
      "t\r\n\r\n";
  EXPECT_EQ(FeedInSteps(parser, request, 7), request.size());
  ASSERT_TRUE(parser.done());
  EXPECT_EQ(parser.Take().body, "hello");
}

TEST(HttpParser, TellsThatAClientWaitsForContinue) {
  HttpRequestParser parser({});
  parser.Feed("POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(parser.header_done());
  EXPECT_FALSE(parser.done());
  EXPECT_TRUE(parser.expects_continue());
}

TEST(HttpParser, HoldsWhatHasComeAndNotWhatIsAnnounced) {
  HttpRequestParser parser({});
  const std::string header = "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n";
  parser.Feed(header);
  EXPECT_EQ(parser.held_bytes(), static_cast<int64_t>(header.size()));
  parser.Feed("abc");
  EXPECT_EQ(parser.body_bytes(), 3);
  EXPECT_EQ(parser.held_bytes(), static_cast<int64_t>(header.size()) + 3);
}

TEST(HttpParser, FieldsBehindABodyAreNoHeaders) {
  HttpRequestParser parser({});
  const std::string request =
      "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "0\r\nContent-Encoding: gzip\r\nX-Request-Id: late\r\nExpect: 100-continue\r\nConnection: "
      "close\r\n\r\n";
  EXPECT_EQ(FeedInSteps(parser, request, 7), request.size());
  ASSERT_TRUE(parser.done());
  EXPECT_FALSE(parser.expects_continue());
  EXPECT_TRUE(parser.keep_alive());
  const HttpRequest taken = parser.Take();
  EXPECT_EQ(taken.Header("content-encoding"), nullptr);
  EXPECT_EQ(taken.Header("x-request-id"), nullptr);
}

constexpr std::string_view kChunked = "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(HttpParser, AChunksLineAtTheLimitIsReadHoweverItIsCut) {
  HttpLimits limits;
  limits.max_header_bytes = 1000;
  const std::string line = "1;" + std::string(996, 'a') + "\r\n";
  for (const size_t step : {1u, 999u, 1000u, 1001u, 5000u}) {
    HttpRequestParser parser(limits), strict(limits);
    FeedInSteps(parser, std::string(kChunked) + line + "x\r\n0\r\n\r\n", step);
    EXPECT_TRUE(parser.done()) << step;
    FeedInSteps(strict, std::string(kChunked) + "1;a" + line.substr(2) + "x\r\n0\r\n\r\n", step);
    EXPECT_TRUE(strict.failed()) << step;
  }
}

struct Refused {
  const char* name;
  std::string request;
  int status;
  const char* word;  // in the message
};

class HttpParserRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(HttpParserRefuses, WithAStatusAndAReason) {
  HttpLimits limits;
  limits.max_header_bytes = 1000;
  limits.max_body_bytes = 100;
  HttpRequestParser parser(limits);
  FeedInSteps(parser, GetParam().request, 10);
  ASSERT_TRUE(parser.failed());
  EXPECT_FALSE(parser.done());
  EXPECT_EQ(parser.refusal().status, GetParam().status) << parser.refusal().message;
  EXPECT_NE(parser.refusal().message.find(GetParam().word), std::string::npos) << parser.refusal().message;
}

INSTANTIATE_TEST_SUITE_P(
    Requests, HttpParserRefuses,
    ::testing::Values(
        Refused{"NoHttp", "hello there\r\n\r\n", 400, "not an HTTP request"},
        Refused{"Tls",
                std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(1100, 'x'), 400,
                "not an HTTP request"},
        Refused{"Http2", "GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505, "HTTP/1.1"},
        Refused{"NoHost", "GET / HTTP/1.1\r\n\r\n", 400, "Host"},
        Refused{"LongTarget", "GET /" + std::string(1100, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 431, "1000"},
        Refused{"LongHeader", "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(1100, 'a') + "\r\n\r\n", 431,
                "1000"},
        Refused{"EndlessHeader", "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(5000, 'a'), 431, "1000"},
        Refused{"AnnouncedBody", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n", 413, "100"},
        Refused{
            "ChunkedBody",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'a'),
            413, "100"},
        Refused{"NoChunkSize", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400,
                "HTTP"},
        Refused{"TwoLengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                400, "HTTP"},
        Refused{"LengthAndChunks",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
                "HTTP"},
        Refused{"NegativeLength", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "HTTP"},
        Refused{"AChunksLineThatNeverEnds", std::string(kChunked) + "1;" + std::string(5000, 'a'), 431,
                "1000 bytes"},
        Refused{"FieldsBehindTheBodyThatNeverEnd",
                std::string(kChunked) + "1\r\nx\r\n0\r\nA: " + std::string(5000, 'a'), 431, "1000 bytes"},
        Refused{"ManyFieldsBehindTheBody",
                std::string(kChunked) + "0\r\n" +
                    [] {
                      std::string fields;
                      for (int i = 0; i < 1000; ++i) fields += "a: b\r\n";
                      return fields;
                    }() +
                    "\r\n",
                431, "1000 bytes"},
        Refused{"TwoEncodings",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501,
                "chunked"},
        Refused{"TwoEncodingFields",
                "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: "
                "chunked\r\n\r\n0\r\n\r\n",
                501, "chunked"},
        Refused{"OtherEncoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501,
                "chunked"},
        Refused{"OtherExpectation", "POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n",
                417, "100-continue"}),
    [](const auto& info) { return info.param.name; });

TEST(PathOf, IsTheTargetWithoutWhatIsNoPath) {
  for (const char* target :
       {"/v1/models", "/v1/models?x=/v1/", "http://host:80/v1/models", "/v1/models#part"}) {
    EXPECT_EQ(PathOf(target), "/v1/models") << target;
  }
  for (const char* target : {"/", "///", "*", "/%6detrics", "//v1//models/", "/models/a%20b%zz%4"}) {
    EXPECT_EQ(PathOf(target), target) << "nothing is decoded";
  }
  EXPECT_EQ(PathOf("http://host"), "/");
}

}  // namespace
}  // namespace tramontane
