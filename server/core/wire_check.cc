#include "server/core/wire_check.h"

#include <google/protobuf/io/coded_stream.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxWireFields = 1 << 20;  // of a message, nested ones included; a packed list is one

// Walks the wire form of a message without building it. Depth is bounded by the types, none of which contains
// itself.
class WireWalk {
 public:
  // False at the first fault: error() says which, and is OK where `bytes` are simply no `type`.
  bool Walk(const google::protobuf::Descriptor& type, std::string_view bytes, const std::string& prefix);
  const RpcError& error() const { return error_; }

 private:
  bool WalkLengthDelimited(const google::protobuf::FieldDescriptor& field, std::string_view bytes,
                           const std::string& path);

  int64_t fields_ = 0;
  RpcError error_;
};

bool WireWalk::Walk(const google::protobuf::Descriptor& type, std::string_view bytes,
                    const std::string& prefix) {
  enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  std::map<int, size_t> seen;  // field number -> entries so far
  while (const uint32_t tag = in.ReadTag()) {
    if (++fields_ > kMaxWireFields) {
      error_ = ToRpcError(
          InvalidArgument("the request has more than " + std::to_string(kMaxWireFields) + " fields"));
      return false;
    }
    uint64_t varint = 0;
    uint32_t size = 0;
    switch (tag & 7) {
      case kVarint:
        if (!in.ReadVarint64(&varint)) return false;
        break;
      case kFixed64:
        if (!in.Skip(8)) return false;
        break;
      case kFixed32:
        if (!in.Skip(4)) return false;
        break;
      case kLengthDelimited: {
        if (!in.ReadVarint32(&size)) return false;
        const std::string_view content = bytes.substr(static_cast<size_t>(in.CurrentPosition()), size);
        if (content.size() < size || !in.Skip(static_cast<int>(size))) return false;
        const auto* field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
        if (field == nullptr) break;
        const std::string path = prefix + field->name();
        const size_t index = seen[field->number()]++;
        if (!WalkLengthDelimited(*field, content, field->is_repeated() ? FieldElement(path, index) : path))
          return false;
        break;
      }
      default:
        return false;  // groups: none of our messages has any
    }
  }
  return in.ConsumedEntireMessage();
}

bool WireWalk::WalkLengthDelimited(const google::protobuf::FieldDescriptor& field, std::string_view bytes,
                                   const std::string& path) {
  if (field.type() == google::protobuf::FieldDescriptor::TYPE_MESSAGE) {
    return Walk(*field.message_type(), bytes, path + ".");
  }
  if (field.type() != google::protobuf::FieldDescriptor::TYPE_STRING) return true;
  const std::optional<size_t> bad = FirstInvalidUtf8(bytes);
  if (!bad) return true;
  error_ = FieldError(path, "is not UTF-8 at byte " + std::to_string(*bad));
  error_.reason = "INVALID_UTF8";
  return false;
}

}  // namespace

RpcError CheckWireFields(const google::protobuf::Descriptor& type, const std::string& bytes) {
  WireWalk walk;
  walk.Walk(type, bytes, "");
  return walk.error();
}

RpcError ExplainParseFailure(const google::protobuf::Descriptor& type, const std::string& bytes) {
  WireWalk walk;
  walk.Walk(type, bytes, "");
  if (!walk.error().ok()) return walk.error();
  RpcError error;
  error.code = StatusCode::kInvalidArgument;
  error.sentence =
      "the " + std::to_string(bytes.size()) + " bytes of the request are not a " + type.full_name();
  error.reason = "MALFORMED_MESSAGE";
  return error;
}

}  // namespace tramontane
