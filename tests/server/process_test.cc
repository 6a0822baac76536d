// The process of a server: how it begins where the system gives it too little, how it ends, and that nothing
// which happens to its standard error stops it.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/program.h"
#include "tests/support/http_test_client.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"
#include "tests/support/tls_test_client.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kNeedsAddressSpace = true;  // of the sanitizer's own, terabytes of it
#else
constexpr bool kNeedsAddressSpace = false;
#endif

std::vector<std::string> Story(const std::string& address, const std::string& tokens) {
  return {"generate", "Tell me a story", "--address", address, "--max-tokens", tokens, "--ignore-eos"};
}

// ---- beginning ----------------------------------------------------------------------------------

void SetLimit(decltype(RLIMIT_NOFILE) resource, rlim_t value) {
  const rlimit limit = {value, value};
  if (setrlimit(resource, &limit) != 0) _exit(99);
}

void ExpectASentence(Program& program, const std::string& which) {
  EXPECT_EQ(program.Wait(), 1) << which << ": " << program.err();
  EXPECT_EQ(program.out(), "") << which;
  EXPECT_THAT(program.err(), ContainsRegex("[Mm]emory|threads|may open|no memory")) << which;
}

TEST(Process, WithTooFewFilesItSaysSoAndEnds) {
  for (const rlim_t files : {8, 12, 31}) {
    Program program(Served::Arguments(), {.in_child = [files] { SetLimit(RLIMIT_NOFILE, files); }});
    ExpectASentence(program, std::to_string(files) + " files");
  }
}

// What a client gets that asks alone: 0 where it got nothing.
int HealthOf(const Served& served) {
  return Fetch(served.http, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status;
}

TEST(Process, MoreSocketsThanFilesDoNotSilenceHealth) {
  const Served served({}, {.in_child = [] { SetLimit(RLIMIT_NOFILE, 64); }});
  for (const char* first_words : {"", "GET /v1/models HTTP/1.1\r\nHost: "}) {
    std::vector<std::unique_ptr<HttpTestClient>> clients;
    for (int i = 0; i < 300; ++i) {
      clients.push_back(std::make_unique<HttpTestClient>(served.http));
      clients.back()->Send(first_words);
    }
    for (int i = 0; i < 10; ++i) EXPECT_EQ(HealthOf(served), 200) << "after: " << first_words;
  }
}

TEST(Process, WithoutThreadsItSaysSoAndEnds) {
  // The limit does not bind root, so the program is somebody else's.
  const auto in_child = [] {
    SetLimit(RLIMIT_NPROC, 1);
    if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
  };
  Program program(Served::Arguments(), {.in_child = in_child});
  const int status = program.Wait();
  if (status == 127 || status == 99)
    GTEST_SKIP() << "nobody else may run the program here: want of threads is not shown";
  EXPECT_EQ(status, 1);
  EXPECT_THAT(program.err(), HasSubstr("thread"));
}

TEST(Process, WithTooLittleAddressSpaceItSaysSoAndEndsWhereverThatStrikes) {
  if (kNeedsAddressSpace)
    GTEST_SKIP() << "a sanitizer takes the whole address space: want of it is not shown";
  for (rlim_t mib = 96; mib <= 480; mib += 32) {
    Program program(Served::Arguments(), {.in_child = [mib] { SetLimit(RLIMIT_AS, mib << 20); }});
    if (program.FirstLine().starts_with("ready")) break;
    ExpectASentence(program, std::to_string(mib) + " MiB");
  }
}

TEST(Process, ACopyOfTheBinaryAloneServesTheEmbeddedModel) {
  const TempFolder folder;
  const std::string copy = folder.PathOf("elsewhere");
  std::filesystem::copy_file(TramontaneBinary(), copy);
  Served served({}, {.binary = copy});
  Program generate({"generate", "What is the KV cache?", "--address", served.address, "--temperature", "0"});
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  EXPECT_THAT(generate.out(), HasSubstr("keys and values"));
}

// ---- under attack -------------------------------------------------------------------------------

// Of a line of the log, "NAME 1.50 MiB"; -1: there is none.
int64_t BytesSaid(const std::string& log, const std::string& name) {
  std::smatch found;
  const std::regex bytes(name + " ([0-9.]+) ([KMG])iB");
  if (!std::regex_search(log, found, bytes)) return -1;
  const std::map<std::string, int> shifts = {{"K", 10}, {"M", 20}, {"G", 30}};
  return static_cast<int64_t>(std::stod(found[1]) * static_cast<double>(int64_t{1} << shifts.at(found[2])));
}

int64_t MostResidentBytes(const Program& program) {
  std::ifstream status("/proc/" + std::to_string(program.pid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  return -1;
}

// A call of gRPC that announces a message of 7 MB, and as much of it as a new connection may send.
std::string HalfAMessage() {
  const auto frame = [](size_t bytes, uint8_t kind, uint8_t flags, uint8_t stream) {
    const auto length = [bytes](int shift) { return static_cast<char>(bytes >> shift); };
    return std::string{length(16), length(8), length(0), static_cast<char>(kind),  static_cast<char>(flags),
                       0,          0,         0,         static_cast<char>(stream)};
  };
  const auto literal = [](const std::string& name, const std::string& value) {
    return std::string{0, static_cast<char>(name.size())} + name + static_cast<char>(value.size()) + value;
  };
  constexpr uint8_t kData = 0, kHeaders = 1, kSettings = 4, kEndHeaders = 4;
  const std::string header = literal(":method", "POST") + literal(":scheme", "http") +
                             literal(":path", "/tramontane.v1.Inference/Tokenize") +
                             literal("te", "trailers") + literal("content-type", "application/grpc");
  std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(0, kSettings, 0, 0) +
                      frame(header.size(), kHeaders, kEndHeaders, 1) + header;
  constexpr size_t kFrameBytes = 16'000;
  std::string message = {0, 0, 0x70, 0, 0};
  message.resize(4 * kFrameBytes, 'x');
  for (size_t at = 0; at < message.size(); at += kFrameBytes) {
    bytes += frame(kFrameBytes, kData, 0, 1) + message.substr(at, kFrameBytes);
  }
  return bytes;
}

// Clients that read nothing, and keep their ends open.
class Attackers {
 public:
  void Send(const std::string& address, int64_t count, const std::string& bytes) {
    for (int64_t i = 0; i < count; ++i) {
      constexpr int32_t kReceiveBytes = 4096;
      clients_.push_back(std::make_unique<HttpTestClient>(
          address, HttpTestClient::Options{.receive_buffer_bytes = kReceiveBytes}));
      clients_.back()->Send(bytes);
    }
  }

 private:
  std::vector<std::unique_ptr<HttpTestClient>> clients_;
};

TEST(Process, WhatItHoldsUnderAttackIsBelowTheSumOfTheBoundsThatItSaid) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps what is freed: what is held is not shown";
  Served served({"--http-max-connections", "400", "--http-max-body-bytes", "4MiB", "--http-handler-threads",
                 "1", "--http-max-held-body-bytes", "16MiB", "--max-unread-answer-bytes", "8MiB",
                 "--max-answer-bytes", "8MiB", "--grpc-memory", "16MiB", "--grpc-max-connections", "100",
                 "--max-streams", "16"});
  ASSERT_TRUE(served.program.HasSaid("memory of gRPC beyond that: "));
  const std::string log = served.program.err();
  EXPECT_THAT(log, HasSubstr("memory beside the plan: at most "));
  const auto sum_of = [&log](const std::vector<std::string>& names) {
    int64_t sum = 0;
    for (const std::string& name : names) {
      const int64_t bytes = BytesSaid(log, name);
      EXPECT_GT(bytes, 0) << name << " is not in: " << log;
      sum += bytes;
    }
    return sum;
  };
  const int64_t of_http = sum_of({"http_max_held_body_bytes", "http_handler_threads", "http_max_connections",
                                  "max_unread_answer_bytes", "max_answer_bytes"});
  const int64_t of_grpc =
      sum_of({"grpc_memory", "grpc_max_connections", "max_streams", "memory of gRPC beyond that:"});
  const int64_t at_rest = MostResidentBytes(served.program);

  Attackers attackers;
  const std::string post = HttpPost("/v1/completions", std::string(4'000'000, ' '));
  attackers.Send(served.http, 60, post.substr(0, post.size() - 1));
  attackers.Send(served.http, 200,
                 "GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(8'000, 'x'));
  nlohmann::json prompts = {{"model", "breeze"}, {"max_tokens", 1}};
  for (int i = 0; i < 100; ++i) prompts["prompt"].push_back(std::string(30'000, 'a'));
  attackers.Send(served.http, 10, HttpPost("/v1/completions", prompts.dump()));
  nlohmann::json words = {{"prompt", std::string(100'000, 'a')}, {"return_token_strs", true}};
  attackers.Send(served.http, 20, HttpPost("/tokenize", words.dump()));
  EXPECT_EQ(HealthOf(served), 200);
  EXPECT_LT(MostResidentBytes(served.program) - at_rest, of_http);

  attackers.Send(served.address, 100, HalfAMessage());
  EXPECT_EQ(HealthOf(served), 200);
  const int64_t most = MostResidentBytes(served.program) - at_rest;
  EXPECT_LT(most, of_http + of_grpc);
  std::printf("%lld of %lld MB\n", static_cast<long long>(most / 1'000'000),
              static_cast<long long>((of_http + of_grpc) / 1'000'000));
}

// ---- ending -------------------------------------------------------------------------------------

// A model whose load takes a second at least: 1.3 GB of zeros, none of them on the disk.
class LongLoad {
 public:
  LongLoad() {
    namespace fs = std::filesystem;
    const fs::path breeze = "models/breeze/weights", folder = folder_.path();
    fs::copy(breeze / "tokenizer.model.v3", folder / "tokenizer.model.v3");
    nlohmann::json config = nlohmann::json::parse(std::ifstream(breeze / "config.json"));
    config["hidden_size"] = kHidden;
    config["intermediate_size"] = kIntermediate;
    config["num_hidden_layers"] = 3;
    folder_.Write("config.json", config.dump());
    const int64_t vocab = config["vocab_size"], kv = 2 * 32, query = 8 * 32;
    Add("lm_head.weight", {vocab, kHidden});
    Add("model.embed_tokens.weight", {vocab, kHidden});
    Add("model.norm.weight", {kHidden});
    for (int layer = 0; layer < 3; ++layer) {
      const std::string in = "model.layers." + std::to_string(layer) + ".";
      Add(in + "input_layernorm.weight", {kHidden});
      Add(in + "post_attention_layernorm.weight", {kHidden});
      Add(in + "self_attn.q_proj.weight", {query, kHidden});
      Add(in + "self_attn.k_proj.weight", {kv, kHidden});
      Add(in + "self_attn.v_proj.weight", {kv, kHidden});
      Add(in + "self_attn.o_proj.weight", {kHidden, query});
      Add(in + "mlp.gate_proj.weight", {kIntermediate, kHidden});
      Add(in + "mlp.up_proj.weight", {kIntermediate, kHidden});
      Add(in + "mlp.down_proj.weight", {kHidden, kIntermediate});
    }
    const std::string head = SafetensorsWriter::FileOf(header_.dump(), "");
    folder_.Write("model.safetensors", head);
    fs::resize_file(folder / "model.safetensors", head.size() + static_cast<size_t>(bytes_));
  }
  const std::string& path() const { return folder_.path(); }

 private:
  static constexpr int64_t kHidden = 4096, kIntermediate = 16384;

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t end = bytes_ + 2;
    for (const int64_t size : shape) end = bytes_ + (end - bytes_) * size;
    header_[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {bytes_, end}}};
    bytes_ = end;
  }

  TempFolder folder_;
  nlohmann::json header_;
  int64_t bytes_ = 0;
};

TEST(Process, ASignalEndsALoadWhereverItIs) {
  const LongLoad model;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    Program program(Served::Arguments({model.path()}));
    ASSERT_TRUE(program.HasSaid(" on cpu (")) << program.err();
    program.Signal(signal);
    EXPECT_EQ(program.Wait(), 0) << program.err();
    EXPECT_EQ(program.out(), "");
    EXPECT_THAT(program.err(), HasSubstr("stopping: the model was still loading"));
  }
}

TEST(Process, AHangUpOfTheTerminalDrains) {
  Served served;
  Program generate(Story(served.address, "400"));
  EXPECT_TRUE(generate.HasBegun());
  served.program.Signal(SIGHUP);
  ASSERT_TRUE(served.program.HasSaid("stopping: new requests are refused"));
  served.program.Signal(SIGHUP);  // a terminal that goes away may send two
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
}

TEST(Process, RequestsAreTakenWhileBalancersAreToldThatTheServerGoes) {
  Served served({"--drain-delay", "600"});
  served.program.Signal(SIGTERM);
  ASSERT_TRUE(served.program.HasSaid("stopping: requests are taken for 600 s more"));
  Program generate(Story(served.address, "4"));
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 1) << "a second signal waits for nobody";
}

TEST(Process, AHangUpThatIsIgnoredStaysIgnored) {
  Served served({}, {.in_child = [] { signal(SIGHUP, SIG_IGN); }});
  served.program.Signal(SIGHUP);
  Program generate(Story(served.address, "4"));
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
}

TEST(Process, ReadsItsKeysAgainOnAHangUpAndWritesNoneOfThem) {
  const TempFolder folder;
  const auto write_key = [&folder](const std::string& key) {
    folder.Write("keys.json", R"({"keys":[{"name":"alice","key":")" + key + "\"}]}");
  };
  write_key("first-secret");
  Served served({"--api-keys", folder.PathOf("keys.json"), "--log-level", "trace"});
  const auto status_with = [&served](const std::string& key) {
    return Fetch(served.http, HttpGet("/v1/models", {"Authorization: Bearer " + key})).status;
  };
  EXPECT_EQ(status_with("first-secret"), 200);
  EXPECT_EQ(status_with("guessed-secret"), 401);
  write_key("second-secret");
  served.program.Signal(SIGHUP);
  ASSERT_TRUE(served.program.HasSaid("its new content is in force"));
  EXPECT_EQ(status_with("second-secret"), 200);
  EXPECT_EQ(status_with("first-secret"), 401);
  folder.Write("keys.json", "{\"keys\":[{\"key\":\"third-secret\"");
  served.program.Signal(SIGHUP);
  ASSERT_TRUE(served.program.HasSaid("was not taken: is not JSON"));
  EXPECT_EQ(status_with("second-secret"), 200);
  folder.Write("key", "second-secret\n");
  std::vector<std::string> with_key = Story(served.address, "4");
  with_key.insert(with_key.end(), {"--api-key-file", folder.PathOf("key")});
  Program generate(with_key);
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  Program without(Story(served.address, "4"));
  EXPECT_EQ(without.Wait(), 1);
  EXPECT_THAT(without.err(), HasSubstr("UNAUTHENTICATED: the API key is missing or not valid"));
  const HttpReply metrics = Fetch(served.http, HttpGet("/metrics"));
  EXPECT_THAT(metrics.body, HasSubstr("tramontane_reload_total{what=\"keys\",outcome=\"ok\"} 1"));
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  for (const std::string& text : {served.program.out(), served.program.err(), metrics.body, without.err()}) {
    EXPECT_THAT(text, Not(HasSubstr("-secret")));
  }
}

TEST(Process, ACrashTellsNeitherKeysNorTexts) {
  const TempFolder folder;
  folder.Write("keys.json", R"({"keys":[{"name":"alice","key":"key-secret"}]})");
  Served served({"--api-keys", folder.PathOf("keys.json"), "--log-level", "trace"});
  const HttpReply reply =
      Fetch(served.http,
            HttpPost("/v1/completions", R"({"model":"breeze","prompt":"prompt-secret","max_tokens":4})",
                     {"Authorization: Bearer key-secret"}));
  EXPECT_EQ(reply.status, 200);
  served.program.Signal(SIGABRT);
  EXPECT_EQ(served.program.Wait(), -SIGABRT);
  EXPECT_NE(served.program.err(), "");
  for (const std::string& text : {served.program.out(), served.program.err()}) {
    EXPECT_THAT(text, Not(HasSubstr("-secret")));
  }
}

TEST(Process, AFaultOfItsKeysIsASentenceThatQuotesNone) {
  const TempFolder folder;
  folder.Write("keys.json", R"({"keys":[{"name":"a b","key":"hidden-secret"}]})");
  std::vector<std::string> arguments = Served::Arguments();
  arguments.insert(arguments.end(), {"--api-keys", folder.PathOf("keys.json")});
  Program program(arguments);
  EXPECT_EQ(program.Wait(), 1);
  EXPECT_THAT(program.err(), HasSubstr("keys[0].name must have 1 to 64 of"));
  EXPECT_THAT(program.err(), Not(HasSubstr("hidden-secret")));
}

// ---- TLS ----------------------------------------------------------------------------------------

// A server whose clients need certificates, and one of them.
class ProcessTls : public ::testing::Test {
 protected:
  ProcessTls() {
    // A handshake of gRPC that the end of a program cuts off leaves a little of OpenSSL's behind.
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
    const TestPair pair = first_.Issue("first");
    folder_.Write("cert.pem", pair.cert);
    folder_.Write("key.pem", pair.key);
    folder_.Write("ca.pem", first_.pem());
    folder_.Write("second.pem", second_.pem());
    folder_.Write("client_cert.pem", client_.cert);
    folder_.Write("client_key.pem", client_.key);
  }

  ~ProcessTls() override { unsetenv("LSAN_OPTIONS"); }

  // As a whole.
  void Place(const std::string& name, const std::string& text) {
    folder_.Write("next", text);
    std::filesystem::rename(folder_.PathOf("next"), folder_.PathOf(name));
  }
  std::vector<std::string> ServerFlags() const {
    return {"--tls-cert",      folder_.PathOf("cert.pem"), "--tls-key", folder_.PathOf("key.pem"),
            "--tls-client-ca", folder_.PathOf("ca.pem")};
  }
  std::vector<std::string> ClientFlags(const std::string& ca) const {
    return {"--ca",   folder_.PathOf(ca),
            "--cert", folder_.PathOf("client_cert.pem"),
            "--key",  folder_.PathOf("client_key.pem")};
  }
  static int StatusOf(std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Program(arguments).Wait();
  }
  static std::vector<std::string> Health(const std::string& address) {
    return {"health", "--ready", "--address", address};
  }
  HttpReply Get(const std::string& address, const std::string& path) const {
    TlsTestClient client(address, {.ca = first_.pem(), .pair = client_});
    return client.Ask(HttpGet(path, {"connection: close"}));
  }

  const TestAuthority first_{"first authority"}, second_{"second authority"};
  const TestPair client_ = first_.Issue("client");
  TempFolder folder_;
};

TEST_F(ProcessTls, BothDoorsAreForClientsWithACertificate) {
  Served served(ServerFlags());
  EXPECT_EQ(Get(served.http, "/health").status, 200);
  EXPECT_EQ(
      TlsTestClient(served.http, {.ca = first_.pem()}).Ask(HttpGet("/health", {"connection: close"})).status,
      0);
  EXPECT_EQ(StatusOf(Story(served.address, "4"), ClientFlags("ca.pem")), 0);
  EXPECT_EQ(StatusOf(Story(served.address, "4"), {"--ca", folder_.PathOf("ca.pem")}), 1);
  EXPECT_EQ(StatusOf(Story(served.address, "4"), ClientFlags("second.pem")), 1);
  const std::vector<std::string> trusting = {"--insecure", "--cert", folder_.PathOf("client_cert.pem"),
                                             "--key", folder_.PathOf("client_key.pem")};
  for (const std::string& door : {served.http, served.address}) {
    // A busy machine may take longer than its two seconds.
    WaitFor([&] { return StatusOf(Health(door), ClientFlags("ca.pem")) == 0; });
    WaitFor([&] { return StatusOf(Health(door), trusting) == 0; });
    EXPECT_EQ(StatusOf(Health(door), ClientFlags("second.pem")), 1) << door;
    EXPECT_EQ(StatusOf(Health(door), {"--ca", folder_.PathOf("ca.pem")}), 1) << door;
    EXPECT_EQ(StatusOf(Health(door), {}), 1) << door;
  }
  std::vector<std::string> gateway_words = {"gateway", "--backend", served.address, "--http-address",
                                            "127.0.0.1:0"};
  for (const auto& flags : {ServerFlags(), ClientFlags("ca.pem")}) {
    gateway_words.insert(gateway_words.end(), flags.begin(), flags.end());
  }
  Program gateway(gateway_words);
  const std::string line = gateway.FirstLine();
  ASSERT_THAT(line, HasSubstr("ready {")) << gateway.err();
  const std::string address = nlohmann::json::parse(line.substr(6)).value("http", "");
  WaitFor([&] { return Get(address, "/v1/models").status == 200; });
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_THAT(served.program.err(), Not(HasSubstr("warning: grpc")));  // of clients without a certificate
}

TEST_F(ProcessTls, ANewCertificateIsTakenAndOneWithAFaultIsNot) {
  Served served(ServerFlags());
  std::vector<std::string> words = Story(served.address, "3000");
  for (const std::string& word : ClientFlags("ca.pem")) words.push_back(word);
  Program open(words);
  ASSERT_TRUE(open.HasBegun()) << open.err();

  const TestPair fresh = second_.Issue("second");
  Place("cert.pem", fresh.cert);
  served.program.Signal(SIGHUP);
  ASSERT_TRUE(served.program.HasSaid("tls: the file has changed, and was not taken: tls_key"));
  EXPECT_EQ(Get(served.http, "/health").status, 200);
  Place("key.pem", fresh.key);
  ASSERT_TRUE(served.program.HasSaid("tls: the file has changed, and its new content is in force"));
  TlsTestClient client(served.http, {.ca = second_.pem(), .pair = client_});
  EXPECT_EQ(client.server_name(), "second");
  const HttpReply metrics = client.Ask(HttpGet("/metrics", {"connection: close"}));
  EXPECT_THAT(metrics.body, HasSubstr(R"(what="tls",outcome="failed"} 1)"));
  // gRPC looks into its copy each second.
  WaitFor([&] { return StatusOf(Health(served.address), ClientFlags("second.pem")) == 0; });
  EXPECT_EQ(open.Wait(), 0) << open.err();
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  for (const std::string& key : {client_.key, fresh.key}) {
    EXPECT_THAT(served.program.err(), Not(HasSubstr(key.substr(30, 60)))) << "no key is in a log";
  }
}

TEST_F(ProcessTls, APairWithAFaultIsAnErrorAtStart) {
  folder_.Write("key.pem", client_.key);
  for (const std::vector<std::string>& flags : {ServerFlags(),
                                                {"--tls-cert", folder_.PathOf("cert.pem")},
                                                {"--tls-key", folder_.PathOf("key.pem")},
                                                {"--tls-client-ca", folder_.PathOf("ca.pem")}}) {
    Program program(Served::Arguments(flags));
    EXPECT_EQ(program.Wait(), 1);
    EXPECT_EQ(program.out(), "");
    EXPECT_THAT(program.err(), HasSubstr("tls_key"));
  }
}

// ---- standard error -----------------------------------------------------------------------------

TEST(Process, AStandardErrorThatNobodyReadsStopsNothing) {
  Served served({"--log-level", "trace"}, {.reads_err = false});
  for (int i = 0; i < 20; ++i) {
    Program generate(Story(served.address, "4"));
    EXPECT_EQ(generate.Wait(), 0) << generate.err();
  }
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
}

}  // namespace
}  // namespace tramontane
