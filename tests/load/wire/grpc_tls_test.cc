// The gRPC transport over TLS: the same cases as over HTTP (tls_test.cc).
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "bench/load/connect.h"
#include "tests/load/wire/identity.h"
#include "tests/load/wire/recorded_requests.h"
#include "tests/support/temp_folder.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane::load {
namespace {

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class OneToken final : public v1::Inference::Service {
  grpc::Status Generate(grpc::ServerContext* /*context*/, const v1::GenerateRequest* /*request*/,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    v1::GenerateResponse response;
    response.mutable_delta()->add_token_ids(7);
    writer->Write(response);
    response.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    writer->Write(response);
    return grpc::Status::OK;
  }
};

class GrpcTls : public ::testing::Test {
 protected:
  GrpcTls() : identity_("DNS:localhost,IP:127.0.0.1") { identity_.WriteCertificate(File("ca.pem")); }
  ~GrpcTls() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  std::string File(const std::string& name) const { return folder_.path() + "/" + name; }

  // `client_ca`: who signed what a client must show; empty: none is asked for. REQUIRES: called once.
  void Serve(const Identity& identity, const std::string& client_ca = "") {
    identity.WriteCertificate(File("server.pem"));
    identity.WriteKey(File("server.key"));
    grpc::SslServerCredentialsOptions options(
        client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                          : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = client_ca;
    options.pem_key_cert_pairs.push_back({TextOf(File("server.key")), TextOf(File("server.pem"))});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  // By address: for names gRPC asks c-ares, whose lookups leak 10 bytes.
  TargetOptions Options() const {
    TargetOptions options;
    options.url = "grpcs://127.0.0.1:" + std::to_string(port_);
    options.model = "m";
    options.ca_file = File("ca.pem");
    return options;
  }

  static RequestRecord RecordOf(const TargetOptions& options) {
    auto transport = Connect(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    RecordedRequests requests(**transport);
    requests.Send("one");
    return requests.WaitFor("one");
  }

  TempFolder folder_;
  Identity identity_;
  OneToken service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(GrpcTls, ATrustedCertificateCarriesTheStream) {
  Serve(identity_);
  const RequestRecord record = RecordOf(Options());
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  EXPECT_EQ(record.content_ns.size(), 1u);
}

TEST_F(GrpcTls, AnUntrustedCertificateIsRefusedUnlessNoneIsLookedAt) {
  Serve(identity_);
  TargetOptions options = Options();
  options.ca_file.clear();
  EXPECT_EQ(RecordOf(options).outcome, Outcome::kRefused);
  options.insecure = true;
  const RequestRecord record = RecordOf(options);
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
}

TEST_F(GrpcTls, ACertificateOfAnotherHostIsRefused) {
  const Identity other("DNS:elsewhere.example");
  other.WriteCertificate(File("ca.pem"));
  Serve(other);
  EXPECT_EQ(RecordOf(Options()).outcome, Outcome::kRefused);
}

TEST_F(GrpcTls, AServerThatAsksForACertificateIsShownOne) {
  const Identity client("DNS:client");
  client.WriteCertificate(File("client.pem"));
  client.WriteKey(File("client.key"));
  Serve(identity_, TextOf(File("client.pem")));
  TargetOptions options = Options();
  EXPECT_NE(RecordOf(options).outcome, Outcome::kOk);
  options.cert_file = File("client.pem");
  options.key_file = File("client.key");
  for (const bool insecure : {false, true}) {
    options.insecure = insecure;
    const RequestRecord record = RecordOf(options);
    EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  }
}

}  // namespace
}  // namespace tramontane::load
