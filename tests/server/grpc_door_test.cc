// What the gRPC door bounds by itself: connections, calls that are open, messages that come and go, however
// slow or false their clients are; and gRPC's own services, which are calls like others.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <initializer_list>
#include <thread>

#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/base/file_descriptor.h"
#include "server/core/candidate_scores.h"
#include "server/grpc/connections.h"
#include "server/grpc/raw_message.h"
#include "server/grpc/reflection.h"
#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using namespace std::chrono_literals;
using grpc::health::v1::HealthCheckResponse;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kInfo[] = "/tramontane.v1.Inference/GetServerInfo";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

std::string Gzip(const std::string& text) {
  std::string packed;
  google::protobuf::io::StringOutputStream out(&packed);
  google::protobuf::io::GzipOutputStream gzip(&out);
  google::protobuf::io::CodedOutputStream(&gzip).WriteString(text);
  gzip.Close();
  return packed;
}

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// One call by hand: what is not asked for is not done.
class HandCall {
 public:
  HandCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
      : call_(grpc::GenericStub(channel).PrepareCall(&context_, method, &queue_)) {
    call_->StartCall(nullptr);
    Wait();
  }
  ~HandCall() {
    context_.TryCancel();
    if (!finished_) Finish();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool Write(const std::string& bytes) {
    call_->WriteLast(BytesOf(bytes), grpc::WriteOptions(), nullptr);
    return Wait();
  }
  bool Read(google::protobuf::Message* message) {
    grpc::ByteBuffer bytes;
    call_->Read(&bytes, nullptr);
    return Wait() && ParseMessage(bytes, message).ok();
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    finished_ = true;
    return status;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false;
};

std::string LongTokenize() {
  v1::TokenizeRequest request;
  for (int i = 0; i < 60'000; ++i) request.mutable_text()->append("a b ");
  return request.SerializeAsString();
}

// Of which a message that nobody reads takes 64 KiB, and not what the client guesses that the network holds.
std::shared_ptr<grpc::Channel> NarrowChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// ---- connections --------------------------------------------------------------------------------

// A connection of an address, as the door has it, and the client's end.
struct Pair {
  explicit Pair(const char* address, uint16_t port) {
    std::array<int, 2> files{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files.data()), 0);
    server = std::make_unique<FileDescriptor>(files[0]);
    client = std::make_unique<FileDescriptor>(files[1]);
    auto& in = reinterpret_cast<sockaddr_in&>(peer);
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    inet_pton(AF_INET, address, &in.sin_addr);
    name = std::string("ipv4:") + address + ":" + std::to_string(port);
  }
  bool IsClosed() const {
    char byte = 0;
    return recv(client->get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  std::unique_ptr<FileDescriptor> server, client;
  sockaddr_storage peer{};
  std::string name;
};

TEST(GrpcConnections, WhereAllAreTakenTheOneWithoutACallForLongestMakesRoom) {
  GrpcConnections table({.max_connections = 3});
  std::array pairs = {Pair("10.0.0.1", 1), Pair("10.0.0.2", 1), Pair("10.0.0.3", 1)};
  for (const Pair& pair : pairs) EXPECT_TRUE(table.Add(pair.server->get(), pair.peer));
  table.Find(pairs[0].name)->CallBegan();
  const Pair fourth("10.0.0.4", 1);
  EXPECT_TRUE(table.Add(fourth.server->get(), fourth.peer));
  EXPECT_FALSE(pairs[0].IsClosed()) << "it has a call";
  EXPECT_TRUE(pairs[1].IsClosed());
  EXPECT_FALSE(pairs[2].IsClosed());
  EXPECT_EQ(table.size(), 3);
  for (const Pair* pair : {static_cast<const Pair*>(&pairs[2]), &fourth}) table.Find(pair->name)->CallBegan();
  const Pair fifth("10.0.0.5", 1);
  EXPECT_FALSE(table.Add(fifth.server->get(), fifth.peer)) << "all have calls";
  table.Find(fourth.name)->CallEnded();
  EXPECT_TRUE(table.Add(fifth.server->get(), fifth.peer));
  EXPECT_TRUE(fourth.IsClosed());
}

TEST(GrpcConnections, AnAddressWithMoreThanHalfGivesWayToOthersWithItsCallsToo) {
  GrpcConnections table({.max_connections = 4});
  std::array greedy = {Pair("10.0.0.1", 1), Pair("10.0.0.1", 2), Pair("10.0.0.1", 3)};
  const Pair idle("10.0.0.2", 1);
  for (const Pair& pair : greedy) EXPECT_TRUE(table.Add(pair.server->get(), pair.peer));
  for (const Pair& pair : greedy) table.Find(pair.name)->CallBegan();
  EXPECT_TRUE(table.Add(idle.server->get(), idle.peer)) << "there is room: nobody has to go";
  const Pair other("10.0.0.3", 1);
  EXPECT_TRUE(table.Add(other.server->get(), other.peer));
  EXPECT_TRUE(greedy[0].IsClosed());
  EXPECT_FALSE(idle.IsClosed());
  const Pair third("10.0.0.4", 1);
  EXPECT_TRUE(table.Add(third.server->get(), third.peer));
  EXPECT_TRUE(idle.IsClosed()) << "nobody has more than half any more";
  EXPECT_FALSE(greedy[1].IsClosed());
}

TEST(GrpcConnections, WhatIsClosedCountsNoLonger) {
  GrpcConnections table({.max_connections = 1});
  auto first = std::make_unique<Pair>("10.0.0.1", 1);
  EXPECT_TRUE(table.Add(first->server->get(), first->peer));
  table.Find(first->name)->CallBegan();
  EXPECT_EQ(table.Find("ipv4:10.0.0.1:2"), nullptr);
  first = nullptr;
  const Pair second("10.0.0.2", 1);  // most likely with the file's number of the first
  EXPECT_TRUE(table.Add(second.server->get(), second.peer));
  table.Sweep();
  EXPECT_EQ(table.size(), 1);
}

// The door's end of a connection over TCP, and the client's.
struct TcpPair {
  TcpPair() {
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own;
    auto* any = reinterpret_cast<sockaddr*>(&own);
    EXPECT_EQ(bind(listener.get(), any, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
    EXPECT_EQ(connect(client.get(), any, size), 0);
    size = sizeof peer;
    server =
        std::make_unique<FileDescriptor>(accept(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size));
  }
  // Read at the other end, too.
  void Send(size_t bytes) const {
    std::string piece(16 << 10, 'x');
    for (size_t sent = 0; sent < bytes; sent += piece.size()) {
      EXPECT_EQ(send(client.get(), piece.data(), piece.size(), 0), std::ssize(piece));
      EXPECT_EQ(recv(server->get(), piece.data(), piece.size(), MSG_WAITALL), std::ssize(piece));
    }
  }
  bool IsClosed() const {
    char byte = 0;
    return recv(client.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  const FileDescriptor client{socket(AF_INET, SOCK_STREAM, 0)};
  std::unique_ptr<FileDescriptor> server;
  sockaddr_storage peer{};
};

TEST(GrpcConnections, WhatArrivesForNoCallHasABoundForEachAndForAll) {
  GrpcConnections table({.max_arriving_bytes = 3 << 19});  // of each 1 MiB
  const TcpPair less, more;
  for (const TcpPair* pair : {&less, &more}) EXPECT_TRUE(table.Add(pair->server->get(), pair->peer));
  less.Send(640 << 10);
  more.Send(800 << 10);
  table.Sweep();
  EXPECT_FALSE(less.IsClosed() || more.IsClosed());
  less.Send(128 << 10);
  table.Sweep();
  EXPECT_FALSE(less.IsClosed());
  EXPECT_TRUE(more.IsClosed()) << "together it is too much, and this one has most";
  less.Send(400 << 10);
  table.Sweep();
  EXPECT_TRUE(less.IsClosed());
}

TEST(GrpcConnections, NoLimitIsNone) {
  GrpcConnections table({.max_connections = 0});
  std::array pairs = {Pair("10.0.0.1", 1), Pair("10.0.0.1", 2)};
  for (const Pair& pair : pairs) EXPECT_TRUE(table.Add(pair.server->get(), pair.peer));
  EXPECT_EQ(table.size(), 2);
}

// A client of sockets, since one of gRPC's would not do this.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address, const char* from = "127.0.0.1")
      : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from, &own.sin_addr);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    SendFrame(4, 0, 0, "");
  }
  bool Send(const std::string& bytes) {
    return send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool SendFrame(char type, char flags, int stream, const std::string& bytes) {
    const auto size = static_cast<uint32_t>(bytes.size());
    const std::string head = {static_cast<char>(size >> 16),
                              static_cast<char>(size >> 8),
                              static_cast<char>(size),
                              type,
                              flags,
                              0,
                              0,
                              static_cast<char>(stream >> 8),
                              static_cast<char>(stream)};
    return Send(head + bytes);
  }
  // Of a call whose message does not come.
  bool BeginCall(int stream, const std::string& method) {
    const auto text = [](const std::string& value) { return static_cast<char>(value.size()) + value; };
    const std::string headers = "\x83\x86\x04" + text(method) + "\x01" + text("a") +  // POST, http, path
                                '\0' + text("content-type") + text("application/grpc") + '\0' + text("te") +
                                text("trailers");
    return SendFrame(1, /*flags: whole headers*/ 4, stream, headers);
  }
  bool EndsWithin(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      pollfd file = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
      poll(&file, 1, static_cast<int>(std::min<int64_t>(time.count(), 100)));
      std::array<char, 4096> bytes;
      if (file.revents != 0 && recv(socket_.get(), bytes.data(), bytes.size(), 0) <= 0) return true;
    }
    return false;
  }

 private:
  FileDescriptor socket_;
};

TEST(GrpcDoor, IdleConnectionsKeepNobodyOut) {
  ScriptedServerOptions options;
  options.server.grpc_max_connections = 3;
  ScriptedServer server(std::move(options));
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(std::make_unique<RawConnection>(server.address()));
  EXPECT_TRUE(idle[0]->EndsWithin(10s));
  EXPECT_TRUE(server.client().GetServerInfo().ok());
}

// Frames of an unknown type, which go to no call. That a call was here before, whose message never came, does
// not help.
TEST(GrpcDoor, WhoSendsWhatBelongsToNoCallIsCutOff) {
  ScriptedServerOptions options;
  options.server.grpc_read_timeout = 0.05;
  ScriptedServer server(std::move(options));
  RawConnection sender(server.address());
  EXPECT_TRUE(sender.BeginCall(1, kTokenize));
  bool is_cut = false;
  for (int i = 0; i < 4000 && !is_cut; ++i)
    is_cut = !sender.SendFrame(0x40, 0, 0, std::string(16'000, 'x')) || sender.EndsWithin(1ms);
  EXPECT_TRUE(is_cut);
}

// ---- calls --------------------------------------------------------------------------------------

TEST(GrpcDoor, AMessageThatDoesNotComeEndsItsCall) {
  ScriptedServerOptions options;
  options.server.grpc_read_timeout = 0.05;
  ScriptedServer server(std::move(options));
  for (const char* method : {kTokenize, "/tramontane.v1.Inference/Generate", kWatch}) {
    const grpc::Status status = HandCall(server.channel(), method).Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("grpc_read_timeout"));
  }
}

TEST(GrpcDoor, CallsOfAnAddressAreBoundedBeforeTheirMessagesCome) {
  ScriptedServerOptions options;
  options.server.max_streams = 1;
  ScriptedServer server(std::move(options));
  std::vector<std::unique_ptr<HandCall>> open;
  for (int i = 0; i < 256; ++i) open.push_back(std::make_unique<HandCall>(server.channel(), kWatch));
  // One connection may have 257, says gRPC itself; others of this address have none then.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto other =
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments);
  open.push_back(std::make_unique<HandCall>(other, kInfo));
  grpc::Status status;  // until the server has all of them
  for (int i = 0; i < 1000 && status.ok(); ++i) status = CallWithBytes(other, kInfo, "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("may have 257"));
  open.clear();
  EXPECT_TRUE(server.client().GetServerInfo().ok());
}

TEST(GrpcDoor, CallsOfAllAddressesAreTwiceThoseOfOneAtMost) {
  ScriptedServerOptions options;
  options.server.max_streams = 1;
  ScriptedServer server(std::move(options));
  RawConnection one(server.address(), "127.0.0.2"), other(server.address(), "127.0.0.3");
  for (int call = 0; call < 257; ++call) {
    for (RawConnection* connection : {&one, &other}) EXPECT_TRUE(connection->BeginCall(2 * call + 1, kWatch));
  }
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = server.client().GetServerInfo().status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("all together twice as many"));
}

TEST(GrpcDoor, UnreadAnswersHaveABudget) {
  ScriptedServerOptions options;
  options.server.max_unread_answer_bytes = 1 << 20;
  ScriptedServer server(std::move(options));
  const std::string request = LongTokenize();
  const auto narrow = NarrowChannel(server.address());
  std::vector<std::unique_ptr<HandCall>> unread;
  for (int i = 0; i < 7; ++i) {
    unread.push_back(std::make_unique<HandCall>(narrow, kTokenize));
    unread.back()->Write(request);
  }
  grpc::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = CallWithBytes(server.channel(), kTokenize, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("max_unread_answer_bytes"), HasSubstr("1048576")));
  unread.clear();  // their client hangs up
  status = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "");
  for (int i = 0; i < 1000 && !status.ok(); ++i) status = CallWithBytes(server.channel(), kTokenize, request);
  EXPECT_TRUE(status.ok()) << "what nobody waits for is free again";
}

TEST(GrpcDoor, SmallUnreadAnswersTakeNoneOfTheBudget) {
  ScriptedServerOptions options;
  options.server.max_unread_answer_bytes = 128 << 10;
  ScriptedServer server(std::move(options));
  const auto question = [](int words) {
    v1::TokenizeRequest request;
    request.set_pieces(true);
    for (int i = 0; i < words; ++i) request.mutable_text()->append("a ");
    return request;
  };
  RawConnection unread(server.address());
  EXPECT_TRUE(unread.SendFrame(4, 0, 0, std::string("\0\4\0\0\0\0", 6))) << "answers have no window";
  const std::string bytes = question(400).SerializeAsString();  // answered by 3 KB
  const std::string message = {0, 0, 0, static_cast<char>(bytes.size() >> 8),
                               static_cast<char>(bytes.size())};
  for (int stream = 1; stream < 140; stream += 2) {
    EXPECT_TRUE(unread.BeginCall(stream, kTokenize));
    EXPECT_TRUE(unread.SendFrame(0, /*flags: the last*/ 1, stream, message + bytes));
  }
  for (int i = 0; i < 20; ++i) {
    const auto answer = server.client().Tokenize(question(4000));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(answer->ByteSizeLong(), 24u << 10);
  }
}

TEST(GrpcDoor, AnAnswerThatIsNotTakenEndsItsCallInTime) {
  ScriptedServerOptions options;
  options.server.grpc_write_timeout = 0.05;
  ScriptedServer server(std::move(options));
  const auto narrow = NarrowChannel(server.address());
  bool is_cut = false;
  for (auto wait = 200ms; !is_cut && wait < 60s; wait *= 2) {
    HandCall call(narrow, kTokenize);
    call.Write(LongTokenize());
    std::this_thread::sleep_for(wait);
    v1::TokenizeResponse answer;
    is_cut = !call.Read(&answer) && call.Finish().error_code() == grpc::StatusCode::CANCELLED;
  }
  EXPECT_TRUE(is_cut);
}

// ---- compressed messages ------------------------------------------------------------------------

TEST(RawMessages, OneThatIsCompressedIsReadUpToItsBound) {
  v1::TokenizeRequest request, read;
  request.set_text(std::string(100'000, 'x'));
  const std::string packed = Gzip(request.SerializeAsString());
  EXPECT_LT(packed.size(), 1000u);
  EXPECT_TRUE(ParseMessage(BytesOf(packed), &read).ok());
  EXPECT_EQ(read.text(), request.text());
  EXPECT_EQ(UnpackedBytes(BytesOf(packed)), static_cast<int64_t>(request.ByteSizeLong()));

  const RpcError too_large = ParseMessage(BytesOf(Gzip(std::string(9 << 20, '\0'))), &read);
  EXPECT_EQ(too_large.code, StatusCode::kResourceExhausted);
  EXPECT_THAT(too_large.message(), HasSubstr("8388608"));

  std::string lying = packed;
  lying[lying.size() - 4] = 1;
  lying[lying.size() - 3] = lying[lying.size() - 2] = lying[lying.size() - 1] = 0;
  EXPECT_EQ(ParseMessage(BytesOf(lying), &read).code, StatusCode::kInvalidArgument);
  EXPECT_FALSE(ParseMessage(BytesOf(packed.substr(0, 20)), &read).ok());
}

TEST(GrpcDoor, CompressedCallsAreAnswered) {
  ScriptedServer server;
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::TokenizeRequest request;
  request.set_text(std::string(5000, 'x'));
  v1::TokenizeResponse packed;
  const grpc::Status status = server.stub().Tokenize(&context, request, &packed);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(packed.SerializeAsString(), server.client().Tokenize(request)->SerializeAsString());
}

// ---- gRPC's own services ------------------------------------------------------------------------

TEST(GrpcDoor, WhoWatchesHealthIsToldOfEachChange) {
  ScriptedServerOptions options;
  options.serve = false;
  ScriptedServer server(std::move(options));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("tramontane.v1.Inference");
  HandCall watch(server.channel(), kWatch);
  watch.Write(request.SerializeAsString());
  HealthCheckResponse told;
  ASSERT_TRUE(watch.Read(&told));
  EXPECT_EQ(told.status(), HealthCheckResponse::NOT_SERVING);
  server.Serve();
  ASSERT_TRUE(watch.Read(&told));
  EXPECT_EQ(told.status(), HealthCheckResponse::SERVING);
  request.set_service("nobody");
  HandCall unknown(server.channel(), kWatch);
  unknown.Write(request.SerializeAsString());
  ASSERT_TRUE(unknown.Read(&told));
  EXPECT_EQ(told.status(), HealthCheckResponse::SERVICE_UNKNOWN);
}

TEST(Reflection, TellsServicesAndTheirFiles) {
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("");
  std::vector<std::string> names;
  const auto services = Reflect(request);
  for (const auto& service : services.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, ElementsAre("tramontane.v1.Inference", "grpc.health.v1.Health",
                                 "grpc.reflection.v1alpha.ServerReflection"));
  request.set_file_containing_symbol("tramontane.v1.GenerateRequest");
  const auto by_symbol = Reflect(request).file_descriptor_response();
  ASSERT_GE(by_symbol.file_descriptor_proto_size(), 1);
  EXPECT_THAT(by_symbol.file_descriptor_proto(0), HasSubstr("tramontane/v1/inference.proto"));
  request.set_file_by_filename("nobody.proto");
  EXPECT_EQ(Reflect(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
}

// ---- scores -------------------------------------------------------------------------------------

TEST(CandidateScores, SumTheLogprobsOfEachCandidate) {
  CandidateScores scores;
  scores.lengths = {2, 1};
  v1::GenerateResponse event;
  for (const int id : {7, 8, 9}) {
    v1::TokenLogprob* token = event.mutable_started()->add_prompt_logprobs();
    token->set_token_id(id);
    token->set_logprob(-static_cast<float>(id));
  }
  scores.Note(event);
  ASSERT_EQ(scores.answer.candidates_size(), 2);
  EXPECT_EQ(scores.answer.candidate_tokens(), 3);
  EXPECT_EQ(scores.answer.candidates(0).logprob_sum(), -15);
  EXPECT_THAT(scores.answer.candidates(0).token_ids(), ElementsAre(7, 8));
  EXPECT_EQ(scores.answer.candidates(1).logprob_sum(), -9);
  event.mutable_started()->mutable_prompt_logprobs()->RemoveLast();
  CandidateScores failed;
  failed.lengths = {2, 1};
  failed.Note(event);
  EXPECT_EQ(failed.answer.candidates_size(), 0);
}

}  // namespace
}  // namespace tramontane
