// Strings of JSON Schema: patterns, formats and lengths, alone and beside each other.

#include <gtest/gtest.h>

#include <string>

#include "tests/models/grammar_case.h"

namespace tramontane {
namespace {

class StringConstraints : public GrammarCase {
 protected:
  static Texts Quoted(const Texts& texts) {
    Texts quoted;
    for (const std::string& text : texts) quoted.push_back('"' + text + '"');
    return quoted;
  }
  // `keywords`: what stands beside "type": "string". The texts come without their quotes.
  void Strings(const std::string& keywords, const Texts& taken, const Texts& refused) {
    Expect(Kind::kJsonSchema, R"({"type": "string", )" + keywords + "}", Quoted(taken), Quoted(refused));
  }
  std::string Refused(const std::string& keywords) {
    return Refusal(Kind::kJsonSchema, R"({"type": "string", )" + keywords + "}");
  }
};

// ---- formats ------------------------------------------------------------------------------------

// Python's date has no year 0, and years of four digits are what all read.
TEST_F(StringConstraints, DatesAreDaysThatThereAre) {
  Strings(R"("format": "date")", {"2024-02-29", "2000-02-29", "1999-12-31"},
          {"0000-01-01", "0999-01-01", "2023-02-29", "1900-02-29", "2024-04-31", "2024-00-10"});
  Strings(R"("format": "date-time")", {"2024-02-29T23:59:59Z", "2024-01-01T00:00:00.123+01:00"},
          {"0000-01-01T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01 00:00:00Z"});
}

// As email-validator says: a name with a dot, no special use, no two hyphens that announce another alphabet.
TEST_F(StringConstraints, EmailsAreWhatMailGoesTo) {
  Strings(R"("format": "email")", {"a.b@c.de", "x+y@mail.example.com", "a@b.info", "a@b-c.tech"},
          {"a@b", "a@b.c", "a@b.c1", "a@1.2", "a@b--c.de", "a@xn--a.de", "a@b.local", "a@b.test", "a@b.onion",
           "a@b.invalid", "a@localhost", "a@b.arpa", ".a@b.de", "a..b@c.de", "a@-b.de", "a@b-.de"});
}

// As pydantic's AnyUrl and rfc3987 say: a host that no reader takes for an address.
TEST_F(StringConstraints, UrisHaveHostsThatAreNames) {
  Strings(R"("format": "uri")", {"https://a.b/c", "http://example.com", "https://x.example.com/~a/b.html"},
          {"https://1.2", "https://0", "https://a.0x1", "https://xn--0", "https://a--b.c", "https://-a.b",
           "https://a.b/c d", "ftp://a.b"});
  Strings(R"("format": "hostname")", {"a", "a-b.example.com", "1.a"}, {"1.2", "a--b", "-a", "a.", "xn--a"});
}

TEST_F(StringConstraints, AHostIsNoLongerThanAHostMayBe) {
  const std::string most = "a" + std::string(15, '0');
  std::string host = most;
  for (int i = 0; i < 3; ++i) host += "." + most;
  Strings(R"("format": "hostname")", {host}, {host + ".a", "a." + most + "0"});
}

TEST_F(StringConstraints, TheOtherFormatsOfTheStandardAreKnown) {
  Strings(R"("format": "uuid4")", {"0b1d7c4e-1111-4222-8333-444455556666"},
          {"0b1d7c4e-1111-1222-8333-444455556666", "0b1d7c4e-1111-4222-7333-444455556666"});
  Strings(R"("format": "json-pointer")", {"", "/a/0"}, {"a"});
  Strings(R"("format": "relative-json-pointer")", {"0", "1#", "2/a"}, {"", "01", "/a"});
  Strings(R"("format": "regex")", {"^[a-z]+$", "(a|b)*c{2}"}, {"(a", "[a", "*"});
  Strings(R"("format": "iri")", {"https://a.b"}, {"a b"});
  Strings(R"("format": "duration")", {"P3DT4H30M", "PT5S", "P1D"}, {"P", "PT", "P1Y1S", "1D"});
}

TEST_F(StringConstraints, AFormatThatIsNotKnownSaysNothing) {
  Strings(R"("format": "color")", {"", "red", "anything"}, {});
  Strings(R"("format": "color", "maxLength": 3)", {"", "red"}, {"blue"});
  EXPECT_EQ(Refused(R"("format": 3)"), ".format: is not a string");
}

// ---- patterns and formats -----------------------------------------------------------------------

TEST_F(StringConstraints, APatternHoldsBesideAFormatThatIsNotKnown) {
  Strings(R"("format": "ulid", "pattern": "^[0-9A-HJKMNP-TV-Z]{4}$")", {"01AZ"}, {"01AI", "01AZ0"});
  Strings(R"("format": "cuid2", "pattern": "^[0-9a-z]+$")", {"a0"}, {"", "A"});
}

TEST_F(StringConstraints, APatternWithinAFormatHoldsAsItIs) {
  const std::string hex = "[0-9a-fA-F]";
  const std::string versions =
      hex + "{8}-" + hex + "{4}-[1-8]" + hex + "{3}-[89abAB]" + hex + "{3}-" + hex + "{12}";
  Strings("\"format\": \"uuid\", \"pattern\": \"^(" + versions + "|00000000-0000-0000-0000-000000000000)$\"",
          {"0b1d7c4e-1111-4222-8333-444455556666", "0B1D7C4E-1111-4222-A333-444455556666",
           "00000000-0000-0000-0000-000000000000"},
          {"0b1d7c4e-1111-9222-8333-444455556666", "0b1d7c4e11114222833344445555666"});
}

TEST_F(StringConstraints, AFormatWithinAPatternHoldsAsItIs) {
  Strings(R"("format": "ipv4", "pattern": "^[0-9.]+$")", {"192.168.0.1"}, {"256.1.1.1", "1.2"});
  Strings(R"("format": "date", "pattern": "^\\d{4}-\\d\\d-\\d\\d$")", {"2024-02-28"}, {"2024-02-30"});
}

// Offsets other than Z are left out, and the rest of the format stays as it is.
TEST_F(StringConstraints, AlternativesOfAFormatThatThePatternForbidsAreLeftOut) {
  Strings(R"("format": "date-time", "pattern": "Z$")", {"2024-02-28T10:00:00Z", "2024-02-28T10:00:00.5Z"},
          {"2024-02-28T10:00:00+01:00", "2024-02-30T10:00:00Z"});
  Strings(R"("format": "uri", "pattern": "^https://")", {"https://a.b/c"}, {"http://a.b/c", "https://1.2"});
}

TEST_F(StringConstraints, PatternAndFormatThatOverlapMeet) {
  Strings(R"("format": "date", "pattern": "^2024-0[1-3]")", {"2024-02-29", "2024-03-31"},
          {"2024-02-30", "2024-04-01", "2023-01-01"});
  Strings(R"("format": "email", "pattern": "^[a-z.]+@example\\.com$")", {"a.b@example.com"},
          {"a..b@example.com", ".a@example.com", "a@example.org", "A@example.com"});
  Strings(R"("format": "uri", "pattern": "^s3://[a-z]+/")", {"s3://bucket/key"},
          {"https://bucket/key", "s3://b/k k"});
  Strings(R"("format": "ipv4", "pattern": "^10\\.")", {"10.0.0.255"}, {"11.0.0.1", "10.0.0.256"});
}

TEST_F(StringConstraints, PatternAndFormatThatDoNotMeetAreRefused) {
  EXPECT_EQ(Refused(R"("format": "ipv4", "pattern": "[a-z]")"),
            ".pattern: beside the other patterns and formats there is no text that is so");
}

// ---- lookaheads ---------------------------------------------------------------------------------

TEST_F(StringConstraints, ALookaheadIsWorkedIntoWhatFollows) {
  Strings(R"("pattern": "^(?!-)(?!.*--)[a-z-]+$")", {"a", "a-b", "ab-"}, {"", "-a", "a--b"});
  Strings(R"("pattern": "^(?=.*[0-9])(?=.*[a-z])[0-9a-z]{2,6}$")", {"a1", "1abcde"},
          {"ab", "12", "a", "1abcdef"});
  Strings(R"("pattern": "^P(?!$)([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?)?$")", {"P1D", "PT1M", "P1DT2H3M"},
          {"P", "PT", "P1DT"});
  Strings(R"("pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$")", {"1", "-0.5", "+007."}, {"", "-", ".", "+."});
  Strings(R"("pattern": "^(?=.{1,4}$)[a-z]+(\\.[a-z]+)*$")", {"a", "a.b", "abcd"}, {"abcde", "a.b.c", ""});
  Expect(Kind::kRegex, "(?!ab)[a-c]{2}", {"aa", "ba", "ac"}, {"ab", "a"});
}

// What one reader matches may not come: \d of another alphabet is no digit here, but may be one there.
TEST_F(StringConstraints, WhatALookaheadDeniesIsDeniedForEveryReader) {
  Strings(R"("pattern": "^(?!\\d).$")", {"a", "-"}, {"1", "٣", "é"});
  Strings(R"("pattern": "^(?!a$)[a\\n]{1,2}$")", {"aa", "\\n"}, {"a", "a\\n"});
}

TEST_F(StringConstraints, ALookaheadBesideAFormatHoldsToo) {
  Strings(R"("format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)[\\w.+-]+@([\\w-]+\\.)+[A-Za-z]{2,}$")",
          {"a.b@c.de", "x_y@example.com"}, {".a@b.de", "a@b", "a..b@c.de"});
}

TEST_F(StringConstraints, LookaheadsThatAreNotWorkedInAreNamed) {
  EXPECT_EQ(Refusal(Kind::kRegex, "((?=a)b)*"),
            "at byte 8: a repetition of a lookahead, more than 16 times, is not supported");
  EXPECT_EQ(Refusal(Kind::kRegex, "(?!a)*b"), "at byte 5: nothing to repeat in front of the count");
  EXPECT_EQ(Refusal(Kind::kRegex, "(?=a)b"), "there is no text that is so");
}

// ---- lengths ------------------------------------------------------------------------------------

TEST_F(StringConstraints, LengthsThatAFormatHasAnywayAreTaken) {
  Strings(R"("format": "uri", "minLength": 1, "maxLength": 2083)", {"https://a.b"}, {""});
  Strings(R"("format": "uri", "minLength": 1)", {"https://a.b"}, {""});
  Strings(R"("format": "uuid", "minLength": 36, "maxLength": 36)", {"00000000-1111-2222-3333-444444444444"},
          {""});
  Strings(R"("format": "email", "maxLength": 254)", {"a@b.de"}, {""});
}

TEST_F(StringConstraints, LengthsBoundThePartsOfAFormat) {
  Strings(R"("format": "uri", "maxLength": 24)", {"https://a.de/b"},
          {"https://aaaaaaaaa.aaaaaaa/", "https://a.de/aaaaaaaaaaaaaaa"});
  Strings(R"("format": "email", "minLength": 9, "maxLength": 12)", {"abcd@b.com"},
          {"a@b.de", "abcdefgh@ab.com", "a@abcdefg.com"});
  Strings(R"("format": "date-time", "maxLength": 20)", {"2024-01-01T00:00:00Z"},
          {"2024-01-01T00:00:00.5Z", "2024-01-01T00:00:00+01:00"});
  Strings(R"("format": "hostname", "minLength": 5)", {"abcde", "abcdefg"}, {"abcd", "a.b"});
}

TEST_F(StringConstraints, LengthsHoldBesideAPattern) {
  Strings(R"("pattern": "^[a-z0-9-]+$", "minLength": 2, "maxLength": 4)", {"ab", "a-b1"},
          {"a", "abcde", "AB"});
  Strings(R"("pattern": "^[a-z]+-[0-9]+$", "maxLength": 5)", {"a-1", "abc-1", "a-123"}, {"abcd-1", "a-1234"});
  Strings(R"("pattern": "^[a-z]+-[0-9]+$", "minLength": 5)", {"abc-1", "a-123", "abcdef-1234"},
          {"a-1", "ab-1"});
  Strings(R"("pattern": "a", "maxLength": 3)", {"a", "xa", "axx", "xax"}, {"x", "xxxa", "aaaa"});
  Strings(R"("pattern": "^(ab?|c{2,4})*$", "minLength": 1, "maxLength": 4)", {"a", "cc", "abcc", "aaaa"},
          {"", "ababa", "c"});
}

TEST_F(StringConstraints, ManyLengthsShortenTheParts) {
  const std::string a(30, 'a');
  Strings(R"("pattern": "^[a-z]+ [a-z]+ [a-z]+$", "maxLength": 100)", {"a b c", a + " b " + a},
          {a + a + a + " b " + a, "a b"});
  Strings(R"("pattern": "^.+ .+$", "maxLength": 60)", {"a b", a.substr(2) + " " + a.substr(2)},
          {a + " " + a, "ab"});
}

TEST_F(StringConstraints, LengthsThatLeaveNothingAreRefused) {
  EXPECT_EQ(Refused(R"("format": "uuid", "maxLength": 35)"), ".maxLength: leaves no text under format");
  EXPECT_EQ(Refused(R"("pattern": "^a{3}$", "minLength": 4)"), ".minLength: leaves no text under pattern");
  EXPECT_EQ(Refused(R"("pattern": "^a+$", "maxLength": 5000)"),
            ".maxLength: is 5000; at most 4096 is supported");
  EXPECT_EQ(Refused(R"("pattern": "a", "maxLength": -1)"), ".maxLength: is not a whole number from 0");
}

// ---- repetitions --------------------------------------------------------------------------------

// As Python reads them. ECMAScript takes them for text, or for no expression at all.
TEST_F(StringConstraints, ARepetitionMayLeaveItsLeastOut) {
  Expect(Kind::kRegex, "[0-9]{,3}", {"", "0", "123"}, {"1234", "0{,3}"});
  Expect(Kind::kRegex, "a{,2}?b", {"b", "aab"}, {"aaab"});
  Expect(Kind::kRegex, "(ab){,}", {"", "ababab"}, {"a"});
  Expect(Kind::kRegex, "x{a}x{x{}x{,a}x{1", {"x{a}x{x{}x{,a}x{1"}, {"x"});
  Strings(R"("pattern": "^[0-9]{,3}$")", {"", "123"}, {"1234", "0{,3}"});
  Expect(Kind::kJsonSchema, R"({"type": "object", "propertyNames": {"pattern": "^a{,2}$"}})",
         {R"({"aa": 1})"}, {R"({"aaa": 1})", R"({"a{,2}": 1})"});
  EXPECT_EQ(Refusal(Kind::kRegex, "{,3}"), "at byte 0: nothing to repeat in front of {");
  EXPECT_EQ(Refusal(Kind::kRegex, "a{,4097}"), "at byte 1: a repetition of more than 4096");
  EXPECT_EQ(Refusal(Kind::kGrammar, "root ::= [0-9]{,3}"),
            "at byte 14: braces hold {m}, {m,} or {m,n}; up to n is {0,n}");
}

}  // namespace
}  // namespace tramontane
