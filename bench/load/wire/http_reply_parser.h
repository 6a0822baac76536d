// An HTTP/1.1 reply as it comes off a socket, in pieces of any size.
// One thread at a time. Memory is bounded: of the head kMaxReplyHeadBytes are held, of the body nothing.
//
// Not Beast's parser: it refuses what servers send and clients take (lines that end with LF, a status without
// a reason), and behind this interface an event took 16 % longer in it (75 ns where ours takes 64; the client
// as a whole 8 %).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tramontane::load {

// Of all heads of one reply (interim ones too) or of its trailers; more is a fault.
inline constexpr size_t kMaxReplyHeadBytes = 64 * 1024;

// What a load tool reads in the head of a reply.
struct ReplyHead {
  int32_t status = 0;  // 0: the last byte of the head has not come
  bool keep_alive = true;
  std::string retry_after;       // as sent; empty: none
  std::string retry_after_ms;    // as OpenAI's own clients read it
  std::string content_encoding;  // as sent
};

class HttpReplyParser {
 public:
  // Takes bytes from the front of `bytes`. True: `body` is the next piece of the body, never empty, a view
  // into what `bytes` was. False: all bytes are taken, or the reply has ended, or it has a fault; what is
  // then left in `bytes` stands behind the end.
  bool Next(std::string_view* bytes, std::string_view* body);

  // The connection was closed. True where that is the end that the head announced, or comes after it.
  bool Close();

  bool has_head() const { return head_.status != 0; }
  const ReplyHead& head() const { return head_; }
  bool ended() const { return stage_ == Stage::kEnded; }
  // What is not HTTP, with the beginning of what the server wrote, as it is; empty: nothing. For people only
  // through ServerText.
  const std::string& fault() const { return fault_; }

 private:
  enum class Stage {
    kStatusLine,
    kHeader,
    kLengthBody,
    kBodyToClose,
    kChunkSize,
    kChunk,
    kChunkEnd,
    kTrailer,
    kEnded,
    kFault,
  };

  bool TakeBody(std::string_view* bytes, std::string_view* body);
  bool TakeLine(std::string_view* bytes);
  void ReadLine();
  void ReadStatusLine();
  void ReadHeader();
  void EndHead();
  void ReadChunkSize();
  void Fail(const std::string& what);

  Stage stage_ = Stage::kStatusLine;
  std::string line_;       // without its end, once it is whole
  size_t head_bytes_ = 0;  // lines since the reply, or its trailers, began
  ReplyHead head_;
  int32_t status_ = 0;  // of the head that is being read
  bool chunked_ = false;
  int64_t length_ = -1;  // -1: not told
  int64_t left_ = 0;     // of the body, or of the chunk
  std::string fault_;
};

}  // namespace tramontane::load
