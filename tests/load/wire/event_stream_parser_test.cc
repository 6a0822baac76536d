// Server-sent events by the HTML standard's own examples, and its corners.
#include "bench/load/wire/event_stream_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tramontane::load {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Events = std::vector<std::pair<std::string, std::string>>;  // name, data

Events AllEvents(std::string_view bytes, std::string* fault = nullptr) {
  EventStreamParser parser;
  Events events;
  while (const auto event = parser.Next(&bytes)) events.emplace_back(event->name, event->data);
  parser.End();
  if (fault != nullptr) {
    *fault = parser.fault();
  } else {
    EXPECT_EQ(parser.fault(), "");
  }
  return events;
}

TEST(EventStreamParser, ReadsTheStandardsExamples) {
  EXPECT_THAT(AllEvents("data: YHOO\ndata: +2\ndata: 10\n\n"), ElementsAre(Pair("", "YHOO\n+2\n10")));
  EXPECT_THAT(
      AllEvents(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event"),
      ElementsAre(Pair("", "first event"), Pair("", "second event")));
  EXPECT_THAT(AllEvents("data\n\ndata\ndata\n\ndata:"), ElementsAre(Pair("", ""), Pair("", "\n")));
  EXPECT_THAT(AllEvents("data:test\n\ndata: test\n\n"), ElementsAre(Pair("", "test"), Pair("", "test")));
  EXPECT_THAT(AllEvents("event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\n"),
              ElementsAre(Pair("add", "73857293"), Pair("remove", "2153")));
}

TEST(EventStreamParser, LinesEndInThreeWays) {
  EXPECT_THAT(AllEvents("data: a\r\n\r\ndata: b\r\rdata: c\n\ndata: d\r\n\n"),
              ElementsAre(Pair("", "a"), Pair("", "b"), Pair("", "c"), Pair("", "d")));
}

TEST(EventStreamParser, AnEventWithoutDataIsNone) {
  EXPECT_THAT(AllEvents("event: ping\n\n\n\ndata: x\n\n"), ElementsAre(Pair("", "x")));
  EXPECT_THAT(AllEvents(": keep-alive\n\nretry: 10\n\nother_field: 1\n\n"), IsEmpty());
}

TEST(EventStreamParser, AFieldCalledErrorIsAnEventOfThatName) {
  EXPECT_THAT(AllEvents("error: {\"code\": 500}\n\ndata: x\n\n"),
              ElementsAre(Pair("error", "{\"code\": 500}"), Pair("", "x")));
}

TEST(EventStreamParser, AByteOrderMarkMayLeadTheStream) {
  EXPECT_THAT(AllEvents("\xEF\xBB\xBF"
                        "data: x\n\n"),
              ElementsAre(Pair("", "x")));
  EXPECT_THAT(AllEvents("\xEF\xBB\xBF\n"
                        "data: x\n\n"),
              ElementsAre(Pair("", "x")));
}

TEST(EventStreamParser, WhatIsNoEventStreamIsAFault) {
  for (const char* text : {"<html>\n", "{\"id\": 1}\n", "{\"id\": 1}", "hello world\n", "data : x\n\n",
                           " data: x\n", "data: x\n\n\x01\n"}) {
    std::string fault;
    AllEvents(text, &fault);
    EXPECT_NE(fault, "") << text;
  }
}

TEST(EventStreamParser, AnEventHasABound) {
  EventStreamParser parser;
  const std::string line = "data: " + std::string(1 << 16, 'x') + "\n";
  for (int i = 0; i < 40 && parser.fault().empty(); ++i) {
    std::string_view bytes = line;
    EXPECT_FALSE(parser.Next(&bytes).has_value());
  }
  EXPECT_EQ(parser.fault(), "an event of more than 1048576 bytes");
}

}  // namespace
}  // namespace tramontane::load
