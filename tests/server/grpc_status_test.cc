#include "server/grpc/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/core/utf8.h"
#include "server/remote/from_grpc_status.h"

namespace tramontane {
namespace {

using testing::EndsWith;

// What every client of gRPC does with the details; false where a string in them is not UTF-8.
google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  return details;
}

google::rpc::BadRequest::FieldViolation ViolationOf(const grpc::Status& status) {
  google::rpc::BadRequest bad_request;
  const google::rpc::Status details = DetailsOf(status);
  if (details.details().empty() || !details.details(0).UnpackTo(&bad_request) ||
      bad_request.field_violations_size() != 1) {
    ADD_FAILURE() << details.ShortDebugString();
    return {};
  }
  return bad_request.field_violations(0);
}

RpcError EngineError() {
  return ToRpcError(
      InvalidArgument("is 1.5; the most is 1").WithField("sampling.top_p", FieldForm::kSubject));
}

TEST(GrpcStatus, AFieldIsNamedInTheMessageAndHasAPlaceOfItsOwn) {
  const grpc::Status label = ToGrpcStatus(FieldError("add_bos", "goes with text only"));
  EXPECT_EQ(label.error_message(), "add_bos: goes with text only");
  EXPECT_EQ(ViolationOf(label).field(), "add_bos");
  EXPECT_EQ(ViolationOf(label).description(), "goes with text only");
  EXPECT_EQ(ViolationOf(label).reason(), "INVALID_FIELD");

  const grpc::Status subject = ToGrpcStatus(EngineError());
  EXPECT_EQ(subject.error_message(), "sampling.top_p is 1.5; the most is 1");
  EXPECT_EQ(ViolationOf(subject).field(), "sampling.top_p");
  EXPECT_EQ(ViolationOf(subject).description(), "sampling.top_p is 1.5; the most is 1");
}

TEST(GrpcStatus, AnErrorOfNoFieldHasNoViolation) {
  const google::rpc::Status details = DetailsOf(ToGrpcStatus(BusyError("FULL", "no room")));
  EXPECT_EQ(details.details_size(), 2);  // why, and when to try again
  for (const google::protobuf::Any& detail : details.details()) {
    EXPECT_FALSE(detail.Is<google::rpc::BadRequest>());
  }
}

TEST(GrpcStatus, WhatGoesOutComesBack) {
  RpcError missing;
  missing.code = StatusCode::kNotFound;
  missing.field = "model";
  missing.sentence = "\"x\" is not served here";
  missing.field_description = "is not served here";
  missing.reason = "MODEL_NOT_FOUND";
  missing.missing_model = "x";
  missing.info = {{"served", "breeze"}};
  const RpcError unnamed =
      ToRpcError(FailedPrecondition("there are no tools").WithField("chat.tool_choice", FieldForm::kUnnamed));
  for (const RpcError& error :
       {FieldError("add_bos", "goes with text only"), EngineError(), missing, unnamed,
        BusyError("QUEUE_FULL", "the queue is full: 5 wait"), UnavailableError("DRAINING", "it stops")}) {
    const RpcError back = FromGrpcStatus(ToGrpcStatus(error));
    EXPECT_EQ(back.code, error.code);
    EXPECT_EQ(back.field, error.field);
    EXPECT_EQ(back.sentence, error.sentence);
    EXPECT_EQ(back.message(), error.message());
    EXPECT_EQ(back.field_text(), error.field_text());
    EXPECT_EQ(back.reason, error.reason);
    EXPECT_EQ(back.info, error.info);
    EXPECT_EQ(back.missing_model, error.missing_model);
    EXPECT_EQ(back.retry_after_ms, error.retry_after_ms);
    EXPECT_EQ(ToStatus(back).field(), error.field);
    EXPECT_EQ(ToStatus(back).message(), error.message());
  }
}

// A chat's error quotes the name of a function, whatever its bytes are.
TEST(GrpcStatus, DetailsAreUtf8WhateverTheErrorQuotes) {
  RpcError error = FieldError("chat.tools[0].\xff", "function name '\xff\xe2\x82' is not a name");
  error.info = {{"name", "\xff"}};
  error.missing_model = "\xc0";
  const grpc::Status status = ToGrpcStatus(error);
  EXPECT_TRUE(IsUtf8(status.error_message())) << status.error_message();
  EXPECT_EQ(ViolationOf(status).field(), "chat.tools[0].\uFFFD");
  EXPECT_EQ(ViolationOf(status).description(), "function name '\uFFFD\uFFFD' is not a name");
  const RpcError back = FromGrpcStatus(status);
  EXPECT_EQ(back.missing_model, "\uFFFD");
  EXPECT_EQ(back.info.at("name"), "\uFFFD");
}

TEST(GrpcStatus, ALongTextIsCutBetweenTwoCharacters) {
  for (size_t shift = 0; shift < 3; ++shift) {
    std::string text(shift, 'a');
    while (text.size() < 4000) text += "\u20AC";  // three bytes
    const grpc::Status status = ToGrpcStatus(FieldError("f", text));
    EXPECT_TRUE(IsUtf8(status.error_message()));
    EXPECT_LE(status.error_message().size(), 1024u + 3);
    EXPECT_THAT(status.error_message(), EndsWith("\u20AC..."));
    EXPECT_THAT(ViolationOf(status).description(), EndsWith("\u20AC..."));
  }
}

}  // namespace
}  // namespace tramontane
