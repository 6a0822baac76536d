// Keys, and who asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "server/access/doorkeeper.h"
#include "server/access/key_concurrency.h"
#include "server/access/key_file.h"
#include "server/access/keyed_client.h"
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
  EXPECT_EQ(file->keys[0].digest, digest);
  EXPECT_EQ(file->keys[1].digest, DigestOfKey("x"));
}

TEST(KeyFile, RightsAndTimesAreRead) {
  const auto file = ParseKeyFile(WithFields(
      R"("models":["m"],"admin":true,"expires":"1970-01-01T01:00:10.5+01:00","salt":true,"max_concurrent":3)"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const ApiKey& key = file->keys[0];
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

TEST(KeyFile, WhatDoesNothingYetIsTakenWithAWarning) {
  const auto file = ParseKeyFile(WithFields(R"("priority":1,"tokens_per_minute":100)"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->warnings.size(), 2u);
  EXPECT_THAT(file->warnings[0], HasSubstr("does nothing yet"));
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
  KeyConcurrency counts;
  const ApiKey one = {.name = "one", .max_concurrent = 1}, other = {.name = "other", .max_concurrent = 1};
  EXPECT_TRUE(counts.Begin(&one).ok());
  EXPECT_EQ(counts.Begin(&one).reason, "KEY_CONCURRENCY");
  EXPECT_TRUE(counts.Begin(&other).ok());
  counts.End(&one);
  EXPECT_TRUE(counts.Begin(&one).ok());
  EXPECT_TRUE(counts.Begin(nullptr).ok());
}

TEST(KeyedCalls, LaterOnesOfARequestArePartOfItAndThoseOfTheNextWait) {
  FakeInferenceClient inner;
  KeyedClient keyed(inner);
  Caller caller;
  caller.key = std::make_shared<const ApiKey>(ApiKey{.name = "one", .max_concurrent = 1});
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
