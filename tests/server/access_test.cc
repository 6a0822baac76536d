// Keys, and who asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/access/doorkeeper.h"
#include "server/access/key_charge.h"
#include "server/access/key_file.h"
#include "server/access/key_use.h"
#include "server/access/keyed_client.h"
#include "server/access/rate_bucket.h"
#include "server/access/tls_files.h"
#include "server/base/peer_address.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"

namespace tramontane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kAliceKey[] = "secret-of-alice";

std::string FaultOf(const std::string& json) { return ParseKeyFile(json).status().message(); }
std::string WithFields(const std::string& fields) {
  return R"({"keys":[{"name":"a","key":"k")" + (fields.empty() ? "" : "," + fields) + "}]}";
}

// ---- the file -----------------------------------------------------------------------------------

TEST(KeyFile, AnEntryIsADigestOrAPlainKey) {
  const KeyDigest digest = DigestOfKey(kAliceKey);
  const auto file = ParseKeyFile(R"({"keys":[)" + KeyFileEntry("a", digest) + R"(,{"name":"b","key":"x"}]})");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)[0].digest, digest);
  EXPECT_EQ((*file)[1].digest, DigestOfKey("x"));
}

TEST(KeyFile, RightsAndTimesAreRead) {
  const auto file = ParseKeyFile(WithFields(
      R"("models":["m"],"admin":true,"expires":"1970-01-01T01:00:10.5+01:00","salt":true,"max_concurrent":3)"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const ApiKey& key = (*file)[0];
  EXPECT_TRUE(key.MayUse("m"));
  EXPECT_FALSE(key.MayUse("n"));
  EXPECT_TRUE(key.admin);
  EXPECT_FALSE(key.gateway);
  EXPECT_TRUE(key.IsValidAt(9));
  EXPECT_FALSE(key.IsValidAt(10));
  EXPECT_NE(key.salt, "");
  EXPECT_EQ(key.max_concurrent, 3);
}

TEST(KeyFile, AFaultNamesTheEntryAndTheFieldAndQuotesNoKey) {
  EXPECT_THAT(FaultOf("x"), HasSubstr("not JSON"));
  EXPECT_THAT(FaultOf("[]"), HasSubstr("\"keys\""));
  EXPECT_THAT(FaultOf(R"({"keys":[{"name":"a"}]})"), HasSubstr("keys[0].sha256"));
  EXPECT_THAT(FaultOf(R"({"keys":[{"name":"a","sha256":"12"}]})"), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(FaultOf(R"({"keys":[{"name":"a b","key":"k"}]})"), HasSubstr("keys[0].name must have 1 to 64"));
  for (const char* address : {"10.0.0.1", "unix"}) {
    EXPECT_THAT(FaultOf(R"({"keys":[{"name":")" + std::string(address) + R"(","key":"k"}]})"),
                HasSubstr("keys[0].name must not be an address"));
  }
  for (const char* row : {"-", "other"}) {
    EXPECT_THAT(FaultOf(R"({"keys":[{"name":")" + std::string(row) + R"(","key":"k"}]})"),
                HasSubstr("keys[0].name must not be - or other"));
  }
  EXPECT_THAT(FaultOf(WithFields(R"("modles":[])")), HasSubstr("the nearest is \"models\""));
  EXPECT_THAT(FaultOf(WithFields(R"("admin":1)")), HasSubstr("keys[0].admin must be a JSON boolean"));
  EXPECT_THAT(FaultOf(WithFields(R"("expires":"2026-02-30T00:00:00Z")")), HasSubstr("RFC 3339"));
  EXPECT_THAT(FaultOf(WithFields(R"("max_concurrent":-1)")), HasSubstr("whole number"));
  const std::string twice = R"({"keys":[{"name":"a","key":"hush-hush"},{"name":"b","key":"hush-hush"}]})";
  EXPECT_THAT(FaultOf(twice), HasSubstr("has the key of another entry"));
  EXPECT_THAT(FaultOf(twice), Not(HasSubstr("hush-hush")));
  EXPECT_THAT(FaultOf(R"({"keys":[{"name":"a","key":"k"},{"name":"a","key":"l"}]})"),
              HasSubstr("another entry has"));
}

TEST(KeyFile, PriorityWeightAndTheBoundsOfAMinuteAreRead) {
  const auto key_with = [](const std::string& fields) {
    const auto keys = ParseKeyFile(WithFields(fields));
    EXPECT_TRUE(keys.ok()) << keys.status();
    return keys.ok() ? (*keys)[0] : ApiKey();
  };
  const ApiKey key =
      key_with(R"("priority":-1000,"weight":1000,"requests_per_minute":60,"tokens_per_minute":2147483647)");
  EXPECT_EQ(key.priority, -1000);
  EXPECT_EQ(key.weight, 1000);
  EXPECT_EQ(key.requests_per_minute, 60);
  EXPECT_EQ(key.tokens_per_minute, 2147483647);
  const ApiKey plain = key_with("");
  EXPECT_EQ(std::tuple(plain.priority, plain.weight), std::tuple(0, 1));
  EXPECT_EQ(std::tuple(plain.requests_per_minute, plain.tokens_per_minute), std::tuple(0, 0));
  EXPECT_EQ(key_with(R"("gateway":true)").priority, -1000) << "it has held its own callers to theirs";
  EXPECT_EQ(key_with(R"("gateway":true,"priority":5)").priority, 5);
}

TEST(KeyFile, ANumberOutOfItsRangeIsNamedWithItsValueAndTheLimits) {
  for (const auto& [fields, said] : std::vector<std::pair<std::string, std::string>>{
           {R"("priority":-1001)", "keys[0].priority is -1001; it must be a whole number from -1000 to 1000"},
           {R"("priority":18446744073709551615)", "from -1000 to 1000"},
           {R"("weight":0)", "keys[0].weight is 0; it must be a whole number from 1 to 1000"},
           {R"("weight":1001)", "keys[0].weight is 1001"},
           {R"("weight":1.5)", "keys[0].weight is 1.5"},
           {R"("weight":"3")", "keys[0].weight must be a whole number"},
           {R"("requests_per_minute":-1)", "keys[0].requests_per_minute is -1"},
           {R"("tokens_per_minute":2147483648)", "keys[0].tokens_per_minute is 2147483648"}}) {
    EXPECT_THAT(FaultOf(WithFields(fields)), HasSubstr(said));
  }
}

// ---- bounds of a minute -------------------------------------------------------------------------

constexpr int64_t kSecond = 1'000'000'000;

TEST(RateBucket, WhatIsTakenComesBackContinuously) {
  RateBucket bucket(60);  // one a second
  int64_t now = 100 * kSecond;
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(bucket.TryTake(now)) << i;
  EXPECT_EQ(bucket.Left(now), 0);
  EXPECT_FALSE(bucket.IsBelowZero(now));
  EXPECT_FALSE(bucket.TryTake(now));
  EXPECT_EQ(bucket.NsUntil(1, now), kSecond);
  EXPECT_EQ(bucket.NsUntil(60, now), 60 * kSecond);
  now += kSecond;
  EXPECT_TRUE(bucket.TryTake(now));
  EXPECT_FALSE(bucket.TryTake(now));
  now += 1000 * kSecond;
  EXPECT_EQ(bucket.Left(now), 60) << "no more than a minute's";
}

TEST(RateBucket, MoreThanThereIsMayBeTakenAndIsOwed) {
  RateBucket bucket(60);
  const int64_t now = 100 * kSecond;
  bucket.Take(90, now);
  EXPECT_TRUE(bucket.IsBelowZero(now));
  EXPECT_EQ(bucket.Left(now), -30);
  EXPECT_EQ(bucket.NsUntil(0, now), 30 * kSecond);
  EXPECT_TRUE(bucket.IsBelowZero(now + 30 * kSecond - 1));
  EXPECT_FALSE(bucket.IsBelowZero(now + 30 * kSecond));
  bucket.Take(-30, now);
  EXPECT_EQ(bucket.Left(now), 0);
  bucket.Take(INT32_MAX, now);
  bucket.Take(INT32_MAX, now);
  EXPECT_EQ(bucket.NsUntil(60, now), 24 * 3600 * kSecond) << "a day's is the most that is owed";
}

TEST(RateBucket, AnotherBoundKeepsWhatWasTaken) {
  RateBucket bucket(60);
  const int64_t now = 100 * kSecond;
  bucket.Take(30, now);
  bucket.SetBound(120, now);
  EXPECT_EQ(bucket.Left(now), 90);
  bucket.SetBound(20, now);
  EXPECT_EQ(bucket.Left(now), -10);
  bucket.SetBound(0, now);
  EXPECT_TRUE(bucket.TryTake(now));
  EXPECT_FALSE(bucket.IsBelowZero(now));
  bucket.SetBound(60, now);
  EXPECT_EQ(bucket.Left(now), 60) << "nothing is counted without a bound";
}

class OneKey : public ::testing::Test {
 protected:
  explicit OneKey(ApiKey key = {.name = "one"}) : key_(std::move(key)) {
    key_.use = std::make_shared<KeyUse>(key_, [this] { return now_; });
  }
  void Bound(int64_t requests, int64_t tokens) {
    key_.requests_per_minute = requests;
    key_.tokens_per_minute = tokens;
    key_.use->SetBounds(key_);
  }
  std::string Header(const std::string& name) const {
    for (const auto& [key, value] : RateLimitHeaders(&key_)) {
      if (key == "x-ratelimit-" + name) return value;
    }
    return "";
  }
  std::unique_ptr<KeyCharge> NewCharge(bool continues = false) const {
    return std::make_unique<KeyCharge>(std::make_shared<const ApiKey>(key_), continues);
  }

  int64_t now_ = 100 * kSecond;
  ApiKey key_;
};

TEST_F(OneKey, TheRequestThatIsOneTooManyIsToldWhenTheNextOneIsFree) {
  Bound(2, 0);
  for (int i = 0; i < 2; ++i) {
    auto charge = NewCharge();
    EXPECT_TRUE(charge->Begin().ok());
    charge->NotePrompt(1000);
  }
  EXPECT_EQ(Header("remaining-requests"), "0");
  const RpcError error = NewCharge()->Begin();
  EXPECT_EQ(error.reason, "KEY_REQUESTS");
  EXPECT_EQ(error.code, StatusCode::kResourceExhausted);
  EXPECT_EQ(error.retry_after_ms, 30'000);
  EXPECT_THAT(error.message(), HasSubstr("its 2 requests of a minute, its own limit, requests_per_minute"));
  now_ += 30 * kSecond;
  EXPECT_TRUE(NewCharge()->Begin().ok());
}

TEST_F(OneKey, ARequestThatWasNotAdmittedCostsNone) {
  Bound(1, 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(NewCharge()->Begin().ok()) << i;
}

TEST_F(OneKey, TokensAreTakenAsTheyComeOfEachChoiceAndWhatIsOwedIsWaitedFor) {
  Bound(0, 600);
  auto charge = NewCharge();
  ASSERT_TRUE(charge->Begin().ok());
  charge->NotePrompt(500);
  charge->NotePrompt(500);  // a Started in parts
  EXPECT_EQ(Header("remaining-tokens"), "100");
  charge->NoteCompletion(0, 20);
  charge->NoteCompletion(0, 50);
  charge->NoteCompletion(1, 50);
  EXPECT_EQ(Header("remaining-tokens"), "0");
  EXPECT_TRUE(NewCharge()->Begin().ok()) << "all of it is taken, and nothing is owed";
  charge->NoteCompletion(1, 55);
  const RpcError error = NewCharge()->Begin();
  EXPECT_EQ(error.reason, "KEY_TOKENS");
  EXPECT_EQ(error.retry_after_ms, 500);
  EXPECT_THAT(error.message(), HasSubstr("its 600 tokens of a minute, its own limit, tokens_per_minute"));
  auto later = NewCharge(/*continues=*/true);
  EXPECT_TRUE(later->Begin().ok()) << "of a request that was taken";
  later->NotePrompt(5);
  EXPECT_EQ(NewCharge()->Begin().retry_after_ms, 1000) << "which costs all the same";
}

TEST_F(OneKey, ItsHeadersHaveOpenAisFormats) {
  Bound(0, 0);
  EXPECT_THAT(RateLimitHeaders(&key_), IsEmpty());
  EXPECT_THAT(RateLimitHeaders(nullptr), IsEmpty());
  Bound(0, 600);
  EXPECT_EQ(RateLimitHeaders(&key_).size(), 3u) << "of the bound that there is";
  EXPECT_EQ(Header("limit-tokens"), "600");
  EXPECT_EQ(Header("reset-tokens"), "0s");
  const auto reset_after = [this](int64_t tokens) {
    key_.use->NoteTokens(tokens);
    std::string reset = Header("reset-tokens");
    key_.use->NoteTokens(-tokens);
    return reset;
  };
  EXPECT_EQ(reset_after(1), "100ms");
  EXPECT_EQ(reset_after(10), "1s");
  EXPECT_EQ(reset_after(11), "2s");
  EXPECT_EQ(reset_after(3600), "6m0s");
  EXPECT_EQ(reset_after(36'610), "1h1m1s");
  EXPECT_EQ(Header("remaining-tokens"), "600");
  key_.use->NoteTokens(3600);
  EXPECT_EQ(Header("remaining-tokens"), "0");
}

TEST_F(OneKey, OneTooManyAtOnceIsToldWhenOneOfThoseInProgressIsExpectedToEnd) {
  key_.max_concurrent = 2;
  std::vector<std::unique_ptr<KeyCharge>> running;
  const auto begin = [&] {
    running.push_back(NewCharge());
    EXPECT_TRUE(running.back()->Begin().ok());
  };
  begin();
  begin();
  for (int i = 0; i < 40; ++i) {  // one ends each 200 ms
    now_ += kSecond / 5;
    running.erase(running.begin());
    begin();
  }
  const RpcError error = NewCharge()->Begin();
  EXPECT_EQ(error.reason, "KEY_CONCURRENCY");
  EXPECT_NEAR(static_cast<double>(error.retry_after_ms), 200, 20);
}

// ---- the ring -----------------------------------------------------------------------------------

class Keys : public ::testing::Test {
 protected:
  Keys() : path_(folder_.PathOf("keys.json")) { Write(WithKey(kAliceKey)); }

  static std::string WithKey(const std::string& key, const std::string& fields = "") {
    return R"({"keys":[{"name":"alice","key":")" + key + "\"" + fields + "}]}";
  }
  void Write(const std::string& content) { std::ofstream(path_) << content; }
  std::shared_ptr<KeyRing> Open() {
    auto ring = KeyRing::Open(path_, &warnings_);
    EXPECT_TRUE(ring.ok()) << ring.status().message();
    return *std::move(ring);
  }

  TempFolder folder_;
  const std::string path_;
  std::vector<std::string> warnings_;
};

TEST_F(Keys, OnlyAKeyThatIsValidIsFound) {
  const auto ring = Open();
  ASSERT_NE(ring->Find(kAliceKey), nullptr);
  EXPECT_EQ(ring->Find(kAliceKey)->name, "alice");
  EXPECT_EQ(ring->Find(""), nullptr);
  EXPECT_EQ(ring->Find("secret-of-alicf"), nullptr);
  EXPECT_EQ(ring->Find(std::string(kMostKeyBytes + 1, 'x')), nullptr);
  for (const char* fields : {R"(,"disabled":true)", R"(,"expires":"2020-01-01T00:00:00Z")"}) {
    Write(WithKey(kAliceKey, fields));
    std::string fault;
    EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kTaken) << fault;
    EXPECT_EQ(ring->Find(kAliceKey), nullptr) << fields;
  }
}

TEST_F(Keys, AFileWithAFaultChangesNothingAndIsToldOnce) {
  const auto ring = Open();
  const auto held = ring->Find(kAliceKey);
  Write("{");
  std::string fault;
  EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kFailed);
  EXPECT_THAT(fault, HasSubstr("not JSON"));
  EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kUnchanged);
  EXPECT_NE(ring->Find(kAliceKey), nullptr);
  std::filesystem::remove(path_);
  EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kFailed);
  EXPECT_NE(ring->Find(kAliceKey), nullptr);
  Write(WithKey("another"));
  EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kTaken);
  EXPECT_EQ(ring->Find(kAliceKey), nullptr);
  EXPECT_EQ(held->name, "alice") << "a request that has it keeps it";
}

TEST_F(Keys, WhateverStandsInTheFilesPlaceKeepsNobodyWaitingAndChangesNothing) {
  const auto ring = Open();
  const std::vector<std::pair<std::function<void()>, const char*>> others = {
      {[this] { mkfifo(path_.c_str(), 0600); }, "not JSON"},
      {[this] { std::filesystem::create_directory(path_); }, "Is a directory"},
      {[this] { std::filesystem::create_symlink("/dev/zero", path_); }, "the most is"},
      {[this] { std::filesystem::create_symlink(path_, path_); }, "symbolic links"},
      {[this] { Write(""), std::filesystem::resize_file(path_, int64_t{10} << 30); },
       "has 10737418240 bytes or more"},
  };
  for (const auto& [put, said] : others) {
    std::filesystem::remove(path_);
    put();
    std::string fault;
    EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kFailed) << said;
    EXPECT_THAT(fault, HasSubstr(said));
    EXPECT_NE(ring->Find(kAliceKey), nullptr) << said;
  }
}

TEST_F(Keys, AFileThatOthersCanReadIsWarnedOf) {
  chmod(path_.c_str(), 0600);
  Open();
  EXPECT_THAT(warnings_, IsEmpty());
  chmod(path_.c_str(), 0644);
  Open();
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(Keys, ABoundOfRequestsIsAKeysOwn) {
  Write(
      R"({"keys":[{"name":"one","key":"1","max_concurrent":1},{"name":"two","key":"2","max_concurrent":1}]})");
  const auto ring = Open();
  const auto charge_of = [](std::shared_ptr<const ApiKey> key) {
    return std::make_unique<KeyCharge>(std::move(key), /*continues=*/false);
  };
  auto first = charge_of(ring->Find("1"));
  EXPECT_TRUE(first->Begin().ok());
  EXPECT_EQ(charge_of(ring->Find("1"))->Begin().reason, "KEY_CONCURRENCY");
  EXPECT_TRUE(charge_of(ring->Find("2"))->Begin().ok());
  first = nullptr;
  EXPECT_TRUE(charge_of(ring->Find("1"))->Begin().ok());
  EXPECT_TRUE(charge_of(nullptr)->Begin().ok());
}

TEST_F(Keys, WhatWasUsedOfAKeyStaysUsedWhenItsFileIsReadAgain) {
  Write(WithKey(kAliceKey, R"(,"tokens_per_minute":100)"));
  const auto ring = Open();
  ring->Find(kAliceKey)->use->NoteTokens(90);
  const auto after = [&](const std::string& key, const std::string& fields) {
    Write(WithKey(key, fields));
    std::string fault;
    EXPECT_EQ(ring->LookAgain(&fault), Reloaded::kTaken) << fault;
    return RateLimitHeaders(ring->Find(key).get());
  };
  auto headers = after("another", R"(,"tokens_per_minute":1000)");
  ASSERT_EQ(headers.size(), 3u);
  EXPECT_EQ(headers[0].second, "1000");
  EXPECT_THAT(std::stoi(headers[1].second), ::testing::AllOf(::testing::Ge(910), ::testing::Lt(1000)));
  EXPECT_THAT(after("another", ""), IsEmpty()) << "without a bound";
}

TEST(KeyedCalls, LaterOnesOfARequestArePartOfItAndThoseOfTheNextWait) {
  FakeInferenceClient inner;
  KeyedClient keyed(inner);
  Caller caller;
  ApiKey key = {.name = "one", .max_concurrent = 1};
  key.use = std::make_shared<KeyUse>(key);
  caller.key = std::make_shared<const ApiKey>(key);
  RpcError refusal;
  const auto generate = [&](bool continues) {
    return keyed.Generate(caller, {}, {.continues = continues}, [] {}, &refusal);
  };
  auto first = generate(false), later = generate(true);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(later, nullptr);
  later = nullptr;
  EXPECT_EQ(generate(false), nullptr) << "the end of a later one frees nothing";
  EXPECT_EQ(refusal.reason, "KEY_CONCURRENCY");
  first = nullptr;
  EXPECT_NE(generate(false), nullptr);
}

class KeyedOneKey : public OneKey {
 protected:
  KeyedOneKey() : keyed_(inner_) {}

  std::shared_ptr<InferenceCall> Generate(std::optional<int32_t> priority) {
    caller_.key = std::make_shared<const ApiKey>(key_);
    v1::GenerateRequest request;
    if (priority) request.set_priority(*priority);
    return keyed_.Generate(caller_, request, {}, [] {}, &refusal_);
  }
  int32_t PrioritySent() const { return inner_.calls().back()->request().priority(); }

  FakeInferenceClient inner_;
  KeyedClient keyed_;
  Caller caller_;
  RpcError refusal_;
};

TEST_F(KeyedOneKey, TokensAreTakenByWhatAnAnswerTells) {
  Bound(0, 100);
  const auto call = Generate(std::nullopt);
  FakeInferenceCall& said = *inner_.calls()[0];
  said.Put(StartedEvent(40));
  said.Put(DeltaEvent(0, "a", 3));
  call->Take();
  EXPECT_EQ(Header("remaining-tokens"), "57");
  said.Put(DeltaEvent(0, "b", 5));
  said.Put(FinishedEvent(0, v1::FINISH_REASON_STOP, 40, 70));
  said.End();
  call->Take();
  EXPECT_EQ(Header("remaining-tokens"), "0");
  EXPECT_EQ(Generate(std::nullopt), nullptr);
  EXPECT_EQ(refusal_.reason, "KEY_TOKENS");
}

TEST_F(KeyedOneKey, ABetterPriorityThanTheKeysIsTheKeysAndToldOnce) {
  key_.priority = -5;
  const auto ignored = [](InferenceCall& call) {
    std::vector<std::string> names;
    for (const auto& event : call.Take().events)
      names.insert(names.end(), event.started().ignored().begin(), event.started().ignored().end());
    return names;
  };
  const auto held = Generate(-6);
  EXPECT_EQ(PrioritySent(), -5);
  for (int i = 0; i < 2; ++i) inner_.calls()[0]->Put(StartedEvent(1));
  EXPECT_THAT(ignored(*held), ::testing::ElementsAre("priority"));
  const auto fits = Generate(-5);
  EXPECT_EQ(PrioritySent(), -5);
  inner_.calls()[1]->Put(StartedEvent(1));
  EXPECT_THAT(ignored(*fits), IsEmpty());
  Generate(std::nullopt);
  EXPECT_EQ(PrioritySent(), 0);
  key_.priority = 7;
  const auto silent = Generate(std::nullopt);
  EXPECT_EQ(PrioritySent(), 7);
  inner_.calls()[3]->Put(StartedEvent(1));
  EXPECT_THAT(ignored(*silent), IsEmpty()) << "it asked for none";
}

TEST(KeyedCalls, TheSaltOfAKeyGoesWithTheRequestsOwn) {
  FakeInferenceClient inner;
  KeyedClient keyed(inner);
  Caller caller;
  RpcError refusal;
  const auto salt_sent = [&](const std::string& own) {
    v1::GenerateRequest request;
    request.set_cache_salt(own);
    keyed.Generate(caller, request, {}, [] {}, &refusal);
    return inner.calls().back()->request().cache_salt();
  };
  EXPECT_EQ(salt_sent("own"), "own");
  caller.key_salt = "key alice";
  EXPECT_EQ(salt_sent("own"), PageSalt(caller, "own"));
  EXPECT_NE(salt_sent(""), "") << "nobody else's pages";
}

// ---- who asks -----------------------------------------------------------------------------------

TEST_F(Keys, ACallerIsItsKey) {
  Write(WithKey(kAliceKey, R"(,"salt":true)"));
  const Doorkeeper doors(Open(), {});
  Caller caller;
  for (const Credentials& good :
       {Credentials{.address = "10.0.0.1", .authorization = "Bearer secret-of-alice"},
        Credentials{.address = "10.0.0.1", .authorization = "bearer  secret-of-alice "},
        Credentials{.address = "10.0.0.1", .api_key = "secret-of-alice"}}) {
    ASSERT_TRUE(doors.Identify(good, Caller::Door::kHttp, &caller).ok());
    EXPECT_EQ(caller.identity, "alice");
    EXPECT_EQ(caller.key_name, "alice");
    EXPECT_EQ(caller.key_salt, "key alice");
    EXPECT_EQ(caller.address, "10.0.0.1");
  }
  for (const Credentials& bad :
       {Credentials{}, Credentials{.authorization = "Basic secret-of-alice"}, Credentials{.api_key = "guess"},
        Credentials{.authorization = "Bearer guess", .api_key = "secret-of-alice"},
        Credentials{.authorization = "Basic guess", .api_key = "secret-of-alice"}}) {
    const RpcError error = doors.Identify(bad, Caller::Door::kHttp, &caller);
    EXPECT_EQ(error.code, StatusCode::kUnauthenticated);
    EXPECT_EQ(error.reason, "INVALID_API_KEY");
    EXPECT_EQ(error.message(), "the API key is missing or not valid") << "the same for all";
  }
}

TEST_F(Keys, WhatAGatewaySaysOfItsCallersIsBelievedOfAGatewaysKey) {
  const Credentials credentials = {.address = "127.0.0.1", .api_key = kAliceKey, .tramontane_caller = "bob"};
  Caller caller;
  const Doorkeeper plain(Open(), {});
  ASSERT_TRUE(plain.Identify(credentials, Caller::Door::kGrpc, &caller).ok());
  EXPECT_EQ(caller.identity, "alice");
  Write(WithKey(kAliceKey, R"(,"gateway":true)"));
  const Doorkeeper gateways(Open(), {});
  ASSERT_TRUE(gateways.Identify(credentials, Caller::Door::kGrpc, &caller).ok());
  EXPECT_EQ(caller.identity, "bob");
  EXPECT_EQ(caller.key_name, "bob");
}

TEST_F(Keys, WhatAGatewaySaysIsAKeysNameUnlessItIsAnAddress) {
  Write(WithKey(kAliceKey, R"(,"gateway":true)"));
  for (const auto& ring : {Open(), std::shared_ptr<KeyRing>()}) {
    const Doorkeeper doors(ring, {});
    const auto key_name = [&](std::string_view said) {
      Caller caller;
      const Credentials given = {.address = "127.0.0.1", .api_key = kAliceKey, .tramontane_caller = said};
      EXPECT_TRUE(doors.Identify(given, Caller::Door::kGrpc, &caller).ok());
      return caller.key_name;
    };
    EXPECT_EQ(key_name("bob"), "bob");
    for (const char* address : {"10.0.0.1", "2001:db8:0:1::/64", "unix"}) EXPECT_EQ(key_name(address), "");
    EXPECT_EQ(key_name(""), ring == nullptr ? "" : "alice");
  }
}

TEST_F(Keys, ACallersWeightIsItsKeysOrWhatABelievedGatewaySays) {
  Write(
      R"({"keys":[{"name":"alice","key":"a","weight":3},{"name":"gate","key":"g","weight":9,"gateway":true}]})");
  const Doorkeeper doors(Open(), {});
  const auto weight = [&doors](const Credentials& credentials) {
    Caller caller;
    EXPECT_TRUE(doors.Identify(credentials, Caller::Door::kGrpc, &caller).ok());
    return caller.weight;
  };
  EXPECT_EQ(weight({.api_key = "a"}), 3);
  EXPECT_EQ(weight({.api_key = "a", .tramontane_caller = "x", .caller_weight = "7"}), 3)
      << "nobody believes it";
  EXPECT_EQ(weight({.api_key = "g"}), 9);
  EXPECT_EQ(weight({.api_key = "g", .tramontane_caller = "x", .caller_weight = "7"}), 7);
  EXPECT_EQ(weight({.api_key = "g", .tramontane_caller = "alice", .caller_weight = "7"}), 7);
  EXPECT_EQ(weight({.api_key = "g", .tramontane_caller = "alice"}), 3) << "as its key has it here";
  for (const char* none : {"", "0", "1001", "-1", "7x", "x"}) {
    EXPECT_EQ(weight({.api_key = "g", .tramontane_caller = "x", .caller_weight = none}), 1) << none;
  }
  const Doorkeeper open(nullptr, {});
  Caller caller = open.ByAddress({.address = "127.0.0.1", .tramontane_caller = "x", .caller_weight = "7"},
                                 Caller::Door::kGrpc);
  EXPECT_EQ(caller.weight, 7);
  caller = open.ByAddress({.address = "10.0.0.1", .tramontane_caller = "x", .caller_weight = "7"},
                          Caller::Door::kGrpc);
  EXPECT_EQ(caller.weight, 1);
}

TEST_F(Keys, OnlyAGatewaysOwnCallsTakeNobodysPart) {
  Write(WithKey(kAliceKey, R"(,"gateway":true)"));
  const auto is_exempt = [](const Doorkeeper& doors, const Credentials& credentials) {
    Caller caller;
    EXPECT_TRUE(doors.Identify(credentials, Caller::Door::kGrpc, &caller).ok());
    return caller.is_exempt;
  };
  const Doorkeeper gateways(Open(), {});
  EXPECT_TRUE(is_exempt(gateways, {.api_key = kAliceKey}));
  EXPECT_FALSE(is_exempt(gateways, {.api_key = kAliceKey, .tramontane_caller = "bob"}));
  EXPECT_FALSE(is_exempt(gateways, {.api_key = kAliceKey, .tramontane_caller = "b b"})) << "it said one";
  Write(WithKey(kAliceKey));
  EXPECT_FALSE(is_exempt(Doorkeeper(Open(), {}), {.api_key = kAliceKey}));
  EXPECT_FALSE(is_exempt(Doorkeeper(nullptr, {}), {.address = "127.0.0.1"}));
}

TEST(DoorsWithoutKeys, ACallerIsItsAddressOrWhatAGatewayOfThisMachineSays) {
  const Doorkeeper doors(nullptr, {});
  const auto identity = [&doors](const Credentials& credentials) {
    Caller caller;
    EXPECT_TRUE(doors.Identify(credentials, Caller::Door::kGrpc, &caller).ok());
    return caller.identity;
  };
  EXPECT_EQ(identity({.address = "10.0.0.1", .tramontane_caller = "bob"}), "10.0.0.1");
  EXPECT_EQ(identity({.address = "2001:db8:0:1:a::b"}), "2001:db8:0:1::/64");
  EXPECT_EQ(identity({.address = "127.0.0.1", .tramontane_caller = "bob"}), "bob");
  EXPECT_EQ(identity({.address = "unix", .tramontane_caller = "bob"}), "bob");
  EXPECT_EQ(identity({.address = "127.0.0.1", .tramontane_caller = "b\nb"}), "127.0.0.1");
  EXPECT_EQ(identity({.address = "127.0.0.1", .forwarded_for = "1.2.3.4"}), "127.0.0.1")
      << "no proxy is trusted";
}

TEST(DoorsWithoutKeys, ATrustedProxySaysTheLastAddressThatIsNotOneOfItsOwn) {
  const Doorkeeper doors(nullptr, {*AddressRange::Parse("10.0.0.0/8"), *AddressRange::Parse("unix")});
  const auto address = [&doors](std::string_view peer, std::string_view list) {
    return doors.ByAddress({.address = peer, .forwarded_for = list}, Caller::Door::kHttp).address;
  };
  EXPECT_EQ(address("10.0.0.1", "6.6.6.6, 1.2.3.4"), "1.2.3.4");
  EXPECT_EQ(address("10.0.0.1", "1.2.3.4, 10.9.9.9"), "1.2.3.4");
  EXPECT_EQ(address("10.0.0.1", "2001:db8::1"), "2001:db8::1");
  EXPECT_EQ(address("10.0.0.1", "[2001:db8::1]:443"), "2001:db8::1");
  EXPECT_EQ(address("10.0.0.1", "1.2.3.4:443"), "1.2.3.4");
  EXPECT_EQ(address("10.0.0.1", "nobody"), "10.0.0.1");
  EXPECT_EQ(address("10.0.0.1", ""), "10.0.0.1");
  EXPECT_EQ(address("11.0.0.1", "1.2.3.4"), "11.0.0.1");
  EXPECT_EQ(address("unix", "1.2.3.4"), "1.2.3.4");
}

// ---- addresses ----------------------------------------------------------------------------------

TEST(Addresses, ThoseOfAPeerAreTakenOutOfGrpcsName) {
  EXPECT_EQ(AddressOfGrpcPeer("ipv4:10.0.0.1:443"), "10.0.0.1");
  EXPECT_EQ(AddressOfGrpcPeer("ipv6:%5B::1%5D:443"), "::1");
  EXPECT_EQ(AddressOfGrpcPeer("ipv6:%5B::ffff:10.0.0.1%5D:443"), "10.0.0.1");
  EXPECT_EQ(AddressOfGrpcPeer("unix:"), "unix");
  EXPECT_EQ(AddressOfGrpcPeer("unix:/run/s"), "unix");
}

TEST(Addresses, ARangeHoldsWhatItsBitsSay) {
  EXPECT_TRUE(AddressRange::Parse("10.0.0.0/8")->Contains("10.255.0.1"));
  EXPECT_FALSE(AddressRange::Parse("10.0.0.0/8")->Contains("11.0.0.1"));
  EXPECT_FALSE(AddressRange::Parse("::/0")->Contains("unix"));
  EXPECT_TRUE(AddressRange::Parse("0.0.0.0/0")->Contains("9.9.9.9"));
  EXPECT_FALSE(AddressRange::Parse("0.0.0.0/0")->Contains("::1"));
  EXPECT_TRUE(AddressRange::Parse("fd00::/8")->Contains("fd12::1"));
  EXPECT_TRUE(AddressRange::Parse("1.2.3.4")->Contains("1.2.3.4"));
  for (const char* bad : {"", "x", "1.2.3.4/33", "::1/129", "1.2.3.4/", "1.2.3.4/-1", "1.2.3/8"}) {
    EXPECT_FALSE(AddressRange::Parse(bad).ok()) << bad;
  }
}

// ---- certificates -------------------------------------------------------------------------------

class Certificates : public ::testing::Test {
 protected:
  Certificates() { Write(authority_.Issue("first")); }

  void Write(const TestPair& pair) {
    folder_.Write("cert.pem", pair.cert);
    folder_.Write("key.pem", pair.key);
  }
  StatusOr<std::unique_ptr<TlsFiles>> Open(const std::string& client_ca = "") {
    return TlsFiles::Open({folder_.PathOf("cert.pem"), folder_.PathOf("key.pem"),
                           client_ca.empty() ? "" : folder_.PathOf(client_ca)});
  }
  std::string FaultOfOpen(const std::string& client_ca = "") { return Open(client_ca).status().message(); }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static int64_t ModifiedSeconds(const std::string& path) {
    struct stat file{};
    EXPECT_EQ(stat(path.c_str(), &file), 0);
    return file.st_mtime;
  }

  const TestAuthority authority_{"an authority"};
  TempFolder folder_;
};

TEST_F(Certificates, APairWithAFaultIsRefusedByTheSettingThatHasIt) {
  const TestPair pair = authority_.Issue("first"), other = authority_.Issue("other");
  EXPECT_TRUE(Open().ok());
  Write({pair.cert, other.key});
  EXPECT_THAT(FaultOfOpen(), AllOf(HasSubstr("tls_key: "), HasSubstr("key.pem is not the key of the first")));
  Write({"", pair.key});  // none yet
  EXPECT_THAT(FaultOfOpen(), AllOf(HasSubstr("tls_cert: "), HasSubstr("has no certificate in PEM")));
  Write({pair.cert.substr(0, pair.cert.size() / 2), pair.key});
  EXPECT_THAT(FaultOfOpen(), HasSubstr("tls_cert: "));
  std::string broken = pair.cert;
  broken[60] = broken[60] == '!' ? '?' : '!';
  Write({pair.cert + broken, pair.key});
  EXPECT_THAT(FaultOfOpen(), HasSubstr("has a certificate that cannot be read"));
  Write({pair.cert, pair.cert});
  EXPECT_THAT(FaultOfOpen(), HasSubstr("has no private key in PEM"));
  const std::string sealed =
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3\n"
      "-----END ENCRYPTED PRIVATE KEY-----\n";
  Write({pair.cert, sealed});
  EXPECT_THAT(FaultOfOpen(), HasSubstr("tls_key: "));
  std::filesystem::remove(folder_.PathOf("key.pem"));
  EXPECT_THAT(FaultOfOpen(), HasSubstr("key.pem cannot be read: No such file"));
  Write(pair);
  folder_.Write("ca.pem", "none");
  EXPECT_THAT(FaultOfOpen("ca.pem"),
              AllOf(HasSubstr("tls_client_ca: "), HasSubstr("ca.pem has no certificate")));
  folder_.Write("ca.pem", authority_.pem());
  EXPECT_TRUE(Open("ca.pem").ok());
}

TEST_F(Certificates, FilesWithAFaultChangeNothingAndAreToldOnce) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto context = (*files)->context();
  const std::string held = Read((*files)->pair_path());
  const TestPair second = authority_.Issue("second");
  folder_.Write("cert.pem", second.cert);
  std::string fault;
  EXPECT_EQ((*files)->LookAgain(&fault), Reloaded::kFailed);
  EXPECT_THAT(fault, HasSubstr("tls_key"));
  EXPECT_EQ((*files)->LookAgain(&fault), Reloaded::kUnchanged);
  EXPECT_EQ((*files)->context(), context);
  EXPECT_EQ(Read((*files)->pair_path()), held);
  folder_.Write("key.pem", second.key);
  EXPECT_EQ((*files)->LookAgain(&fault), Reloaded::kTaken) << fault;
  EXPECT_NE((*files)->context(), context);
}

// A link that is turned to another folder, as volumes of secrets are.
TEST_F(Certificates, ALinkThatTurnsIsSeen) {
  const TestPair second = authority_.Issue("second");
  for (const char* name : {"one", "two"}) std::filesystem::create_directory(folder_.PathOf(name));
  const TestPair first = authority_.Issue("first");
  folder_.Write("one/cert.pem", first.cert);
  folder_.Write("one/key.pem", first.key);
  folder_.Write("two/cert.pem", second.cert);
  folder_.Write("two/key.pem", second.key);
  std::filesystem::create_symlink("one", folder_.PathOf("now"));
  auto files = TlsFiles::Open({folder_.PathOf("now/cert.pem"), folder_.PathOf("now/key.pem"), ""});
  ASSERT_TRUE(files.ok()) << files.status().message();
  std::filesystem::create_symlink("two", folder_.PathOf("next"));
  std::filesystem::rename(folder_.PathOf("next"), folder_.PathOf("now"));
  std::string fault;
  EXPECT_EQ((*files)->LookAgain(&fault), Reloaded::kTaken) << fault;
  EXPECT_THAT(Read((*files)->pair_path()), HasSubstr(second.cert));
}

TEST_F(Certificates, CopiesHoldWhatWasCheckedAloneAndAreNewerEachTime) {
  const TestPair first = authority_.Issue("first");
  // Both files hold both, and more: a copy has the key, then the certificates of tls_cert.
  folder_.Write("cert.pem", "a remark\n" + first.cert + first.key);
  folder_.Write("key.pem", authority_.pem() + first.key);
  folder_.Write("ca.pem", "another\n" + authority_.pem());
  const auto files = Open("ca.pem");
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(Read((*files)->pair_path()), first.key + first.cert);
  EXPECT_EQ(Read((*files)->client_ca_path()), authority_.pem());
  const int64_t then = ModifiedSeconds((*files)->pair_path());
  const TestPair second = authority_.Issue("second");
  Write(second);
  std::string fault;
  ASSERT_EQ((*files)->LookAgain(&fault), Reloaded::kTaken) << fault;
  EXPECT_EQ(Read((*files)->pair_path()), second.key + second.cert);
  EXPECT_EQ(ModifiedSeconds((*files)->pair_path()), then + 1);
  EXPECT_EQ(ModifiedSeconds((*files)->client_ca_path()), then + 1);
  const std::string another = TestAuthority("another").pem();
  folder_.Write("ca.pem", another);
  EXPECT_EQ((*files)->LookAgain(&fault), Reloaded::kTaken) << "an authority alone is news, too";
  EXPECT_EQ(Read((*files)->client_ca_path()), another);
}

}  // namespace
}  // namespace tramontane
