// RpcError: why a call was refused or ended, in full, before it becomes a grpc::Status with details.
// A plain value. Any thread. No gRPC in here, so that conversion is tested without it.
//
// The field at fault and what is said of it stay apart until somebody prints them: each door says the field
// in the words of its own requests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/core/status.h"

namespace tramontane {

// Metadata of a gRPC call: how many bytes its caller takes in one message.
inline constexpr char kMaxMessageBytesKey[] = "x-max-message-bytes";

struct RpcError {
  StatusCode code = StatusCode::kOk;
  std::string field;     // path in the request: "sampling.top_p"; "": the fault is of none
  std::string sentence;  // of the field, without its path: "is 1.5; the most is 1"
  FieldForm form = FieldForm::kLabel;
  std::string field_description;            // BadRequest; "": what field_text() makes of the rest
  std::string reason;                       // ErrorInfo: a constant for programs, "CONTEXT_LENGTH_EXCEEDED"
  std::map<std::string, std::string> info;  // ErrorInfo: numbers behind the reason
  std::string missing_model;                // NOT_FOUND: the name that was asked for
  int64_t retry_after_ms = 0;               // above 0: a retry can help after this time

  bool ok() const { return code == StatusCode::kOk; }
  // For people: the sentence, with the field where it is named.
  std::string message() const { return FieldText(field, form, sentence); }
  // What is said where the field has a place of its own: a sentence whose subject is the field keeps it.
  std::string field_text() const;
  // The other way: `text` as message() made it of `field`. REQUIRES: field is set.
  void set_message(std::string_view text);
};

// An error from below the server; where a retry can help, it says so.
RpcError ToRpcError(const Status& status);
// How a request ended that was taken: RESOURCE_EXHAUSTED is not the queue, which it has passed, but what it
// took itself, and would take again.
RpcError ToOutcome(const Status& status);
// What of an error a Status holds.
Status ToStatus(const RpcError& error);

// One refused field. `path` as in the .proto.
RpcError FieldError(std::string path, std::string description);

// RESOURCE_EXHAUSTED: a bound of the server was reached; trying again later can help.
RpcError BusyError(std::string reason, std::string message);
// UNAVAILABLE: this server cannot, another one or the same one later can.
RpcError UnavailableError(std::string reason, std::string message);

}  // namespace tramontane
