#include "server/grpc/raw_message.h"

#include <google/protobuf/io/gzip_stream.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/core/inference_core.h"
#include "server/core/wire_check.h"

namespace tramontane {
namespace {

constexpr size_t kLargeMessageBytes = 1 << 20;  // above: looked over before it is parsed
// No message of ours begins like that: 0x1f is no tag.
constexpr std::string_view kGzipMagic = "\x1f\x8b";

std::string Flat(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!bytes.Dump(&slices).ok()) return flat;
  flat.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

bool IsGzip(const std::vector<grpc::Slice>& slices) {
  std::string head;
  for (size_t i = 0; i < slices.size() && head.size() < kGzipMagic.size(); ++i) {
    head.append(reinterpret_cast<const char*>(slices[i].begin()), std::min<size_t>(slices[i].size(), 2));
  }
  return head.starts_with(kGzipMagic);
}

// The last four bytes of a gzip: the length of what is in it.
int64_t LengthInside(const std::vector<grpc::Slice>& slices) {
  std::string tail;
  for (size_t i = slices.size(); i-- > 0 && tail.size() < 4;) {
    const size_t taken = std::min<size_t>(slices[i].size(), 4);
    tail.insert(0, reinterpret_cast<const char*>(slices[i].end()) - taken, taken);
  }
  uint32_t length = 0;
  for (size_t i = 1; i <= 4 && i <= tail.size(); ++i) {
    length = length << 8 | static_cast<uint8_t>(tail[tail.size() - i]);
  }
  return length;
}

// Not more than it says of itself. Nothing: it is not what it says.
std::optional<std::string> Unpacked(const grpc::ByteBuffer& packed, size_t length) {
  grpc::ByteBuffer consumed(packed);  // shares the slices
  grpc::ProtoBufferReader reader(&consumed);
  google::protobuf::io::GzipInputStream inflated(&reader, google::protobuf::io::GzipInputStream::GZIP);
  std::string text;
  const void* data = nullptr;
  int size = 0;
  while (inflated.Next(&data, &size)) {
    if (text.size() + static_cast<size_t>(size) > length) return std::nullopt;
    text.append(static_cast<const char*>(data), static_cast<size_t>(size));
  }
  const bool is_whole = inflated.ZlibErrorCode() == Z_STREAM_END && text.size() == length;
  return is_whole ? std::optional(std::move(text)) : std::nullopt;
}

RpcError ParsePacked(const grpc::ByteBuffer& packed, int64_t length, google::protobuf::Message* message) {
  if (length > kMaxMessageBytes) {
    RpcError error =
        BusyError("MESSAGE_TOO_LARGE", "Received message larger than max (" + std::to_string(length) +
                                           " vs. " + std::to_string(kMaxMessageBytes) + ")");
    error.retry_after_ms = 0;  // it would again
    return error;
  }
  const std::optional<std::string> bytes = Unpacked(packed, static_cast<size_t>(length));
  if (!bytes) return ToRpcError(InvalidArgument("the message is not the gzip that it says it is"));
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  if (bytes->size() > kLargeMessageBytes) {
    if (RpcError error = CheckWireFields(type, *bytes); !error.ok()) return error;
  }
  if (message->ParseFromString(*bytes)) return {};
  return ExplainParseFailure(type, *bytes);
}

}  // namespace

int64_t UnpackedBytes(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return 0;
  return IsGzip(slices) ? LengthInside(slices) : static_cast<int64_t>(bytes.Length());
}

RpcError ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  if (bytes.Dump(&slices).ok() && IsGzip(slices)) {
    return ParsePacked(bytes, LengthInside(slices), message);
  }
  if (bytes.Length() > kLargeMessageBytes) {
    if (RpcError error = CheckWireFields(*message->GetDescriptor(), Flat(bytes)); !error.ok()) return error;
  }
  grpc::ByteBuffer consumed(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&consumed);
  if (message->ParseFromZeroCopyStream(&reader)) return {};
  return ExplainParseFailure(*message->GetDescriptor(), Flat(bytes));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  const grpc::Status status = grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(
      message, &bytes, &own_buffer);
  TM_CHECK(status.ok(), "serialising a %s: %s", message.GetTypeName().c_str(),
           status.error_message().c_str());
  return bytes;
}

}  // namespace tramontane
