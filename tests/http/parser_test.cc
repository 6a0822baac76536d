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
  EXPECT_LT(parser.header_bytes(), 1000);
  parser.Feed("abc");
  EXPECT_EQ(parser.body_bytes(), 3);
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

std::string Fields(int64_t count, const std::string& field = "a:b\r\n") {
  std::string fields;
  for (int64_t i = 0; i < count; ++i) fields += field;
  return fields;
}

TEST(HttpParser, FieldsHaveANumberWhereverTheyStandAndHoweverTheyCome) {
  for (const size_t step : {1u, 5u, 100'000u}) {
    for (const bool is_one_too_many : {false, true}) {
      const int64_t rest = HttpLimits().max_header_fields - (is_one_too_many ? 1 : 2);
      HttpRequestParser before({}), behind({});
      FeedInSteps(before, "GET / HTTP/1.1\r\nHost: x\r\n" + Fields(rest + 1) + "\r\n", step);
      EXPECT_EQ(before.failed(), is_one_too_many);
      EXPECT_EQ(before.done(), !is_one_too_many);
      FeedInSteps(behind, std::string(kChunked) + "0\r\n" + Fields(rest) + "\r\n", step);
      EXPECT_EQ(behind.failed(), is_one_too_many);
      EXPECT_EQ(behind.done(), !is_one_too_many);
    }
  }
}

TEST(HttpParser, AHeaderIsHeldForWhatItTakesAndNotForItsBytesAlone) {
  HttpRequestParser parser({});
  parser.Feed("GET / HTTP/1.1\r\nHost: x\r\n" + Fields(90) + "\r\n");
  ASSERT_TRUE(parser.done());
  const int64_t held = parser.header_bytes();
  const HttpRequest request = parser.Take();
  EXPECT_GE(held, static_cast<int64_t>(request.headers.size() * sizeof(request.headers[0])));
}

TEST(HttpParser, FieldsThatAreListsAreShortTogether) {
  const std::string values = Fields(300, "a,") + "b\r\n";
  for (const std::string name :
       {"Connection: ", "proxy-connection:", "Content-Length: ", "transfer-encoding: "}) {
    for (const size_t step : {7u, 700u, 100'000u}) {
      HttpRequestParser one({}), two({}), other({});
      FeedInSteps(one, "GET / HTTP/1.1\r\nHost: x\r\nConnection: " + values + "\r\n", step);
      EXPECT_TRUE(one.done()) << one.refusal().message;
      FeedInSteps(two, "GET / HTTP/1.1\r\nHost: x\r\nConnection: " + values + name + values + "\r\n", step);
      EXPECT_EQ(two.refusal().status, 431) << name << step;
      EXPECT_NE(two.refusal().message.find("together"), std::string::npos) << two.refusal().message;
      FeedInSteps(
          other, "GET / HTTP/1.1\r\nHost: x\r\nAccept: " + values + "Via: " + values + "\r\n" + name + values,
          step);
      EXPECT_TRUE(other.done());
    }
  }
}

TEST(HttpParser, AHeaderThatComesLineByLineHasTheSameBound) {
  HttpLimits limits;
  limits.max_header_fields = 1 << 20;
  for (const size_t step : {4u, 28u, 4096u}) {
    HttpRequestParser parser(limits);
    const std::string header = "GET / HTTP/1.1\r\nHost: xx\r\n" + Fields(limits.max_header_bytes, "a:\r\n");
    const size_t taken = FeedInSteps(parser, header, step);
    EXPECT_TRUE(parser.failed()) << step;
    EXPECT_LE(taken, static_cast<size_t>(limits.max_header_bytes) + step) << step;
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
                std::string(kChunked) + "0\r\n" + Fields(20, "a: " + std::string(50, 'b') + "\r\n") + "\r\n",
                431, "1000 bytes"},
        Refused{"ManyFields", "GET / HTTP/1.1\r\nHost: x\r\n" + Fields(150) + "\r\n", 431,
                "more than 100 header fields"},
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
