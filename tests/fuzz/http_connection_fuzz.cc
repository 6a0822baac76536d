// Clients of a server that do any things in any order, at any pace, and a handler that answers late, in parts
// or not at all. After each step the bytes that are held, and those that are really allocated, stay below
// their bounds; in the end nothing is left.
//
// The input is a program: one letter of each step, one byte of how much, and for `t` that many bytes to send.
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "tests/support/connection_stage.h"

#ifdef __has_feature  // Clang's way to say what GCC says with __SANITIZE_ADDRESS__
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // GCC has it without the header
#endif

namespace tramontane {
namespace {

constexpr HttpLimits kLimits = {
    .max_header_bytes = 2000, .max_body_bytes = 20'000, .max_held_body_bytes = 100'000};
constexpr size_t kMaxPeers = 8;
constexpr size_t kMaxSteps = 200;
// Of one connection: its header, whose fields take more than their bytes, behind it half a line, its body,
// and what is read ahead.
constexpr int64_t kMaxHeldOfOne =
    3 * 2000 + 128 * kLimits.max_header_fields + 20'000 + static_cast<int64_t>(kReadAheadBytes);
// Besides what is held: strings have up to twice the room that they need, and each client has its objects.
constexpr int64_t kAllocatedOfOne = 100'000;

int64_t AllocatedBytes() {
#ifdef __SANITIZE_ADDRESS__
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  const auto info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
#endif
}

HttpResponse Answer(size_t bytes) {
  HttpResponse response;
  response.body.assign(bytes, 'x');
  return response;
}

class Listener final : public HttpListener {
 public:
  void OnHangUp() override { TM_CHECK(!std::exchange(hung_up_, true), "hung up twice"); }

 private:
  bool hung_up_ = false;
};

class Program {
 public:
  explicit Program(std::string_view steps)
      : steps_(steps),
        stage_(kLimits, [this](const std::shared_ptr<HttpExchange>& exchange) { Take(exchange); }) {
    stage_.Connect();
    allocated_before_ = AllocatedBytes();
  }
  ~Program() {
    stage_.CloseAll();
    exchanges_.clear();
    stage_.Run();
  }

  void Run() {
    for (size_t steps = 0; steps < kMaxSteps && steps_.size() >= 2; ++steps) {
      const char kind = steps_[0];
      const size_t amount = static_cast<unsigned char>(steps_[1]);
      steps_.remove_prefix(2);
      Step(kind, amount);
      stage_.Run();
      CheckBounds();
    }
  }

 private:
  // GET is answered at once, POST on a handler thread, anything else later.
  void Take(const std::shared_ptr<HttpExchange>& exchange) {
    const std::string& method = exchange->request().method;
    if (method == "GET") return exchange->Respond(Answer(100));
    exchange->Listen(std::make_shared<Listener>());
    if (method != "POST") return exchanges_.push_back(exchange);
    exchange->RunOnHandler([this, exchange] {
      TM_CHECK(exchange->request().body.size() <= kLimits.max_body_bytes, "a body over the limit");
      exchanges_.push_back(exchange);
    });
  }

  void Step(char kind, size_t amount) {
    StagePeer& peer = stage_.peer(peer_);
    switch (kind) {
      case 't':
        peer.Send(steps_.substr(0, amount));
        steps_.remove_prefix(std::min(amount, steps_.size()));
        break;
      case 'f':  // the last byte, by the kilobyte
        Flood(peer, amount);
        break;
      case 'w':
        stage_.Advance(static_cast<int64_t>(amount) * 250);
        break;
      case 'm':
        peer.MakeRoom(amount * amount);
        break;
      case 'e':
        peer.ShutdownSend();
        break;
      case 'r':
        peer.Reset();
        break;
      case 'c':
        if (stage_.peers() < kMaxPeers) stage_.Connect(amount * 4);
        break;
      case 'o':
        if (stage_.peers() < kMaxPeers) stage_.ConnectOverLimit();
        break;
      case 'p':
        peer_ = amount % stage_.peers();
        break;
      case 'l':
        stage_.thread().CloseFirst(static_cast<ConnectionThread::Line>(amount % 3),
                                   amount % 2 == 0 ? "" : "127.0.0.1");
        break;
      case 'h':
        stage_.handlers_run = amount % 2 != 0;
        break;
      case 'd':
        stage_.state().closing = true;
        break;
      default:
        AnswerSomehow(kind, amount);
    }
  }

  void Flood(StagePeer& peer, size_t kilobytes) {
    const char last = steps_.empty() ? 'a' : steps_[0];
    for (size_t i = 0; i < kilobytes; ++i) {
      peer.Send(std::string(1 << 10, last));
      stage_.Run();
    }
  }

  void AnswerSomehow(char kind, size_t amount) {
    if (exchanges_.empty()) return;
    const std::shared_ptr<HttpExchange> exchange = exchanges_.back();
    switch (kind) {
      case 'a':
        exchange->Respond(Answer(amount * 100));
        answered_bytes_ += static_cast<int64_t>(amount) * 100;
        exchanges_.pop_back();
        break;
      case 's':
        exchange->StartStream(Answer(amount));
        break;
      case 'b':
        exchange->Write(std::string(amount * 100, 'y'));
        answered_bytes_ += static_cast<int64_t>(amount) * 100;
        break;
      case 'n':
        exchange->End("end");
        exchanges_.pop_back();
        break;
      case 'g':
        exchanges_.pop_back();
        break;
      default:
        break;
    }
  }

  void CheckBounds() {
    const auto clients = static_cast<int64_t>(stage_.peers());
    const int64_t held = stage_.held_bytes();
    TM_CHECK(held >= 0 && held <= clients * kMaxHeldOfOne, "%lld bytes held", static_cast<long long>(held));
    const int64_t allocated = AllocatedBytes() - allocated_before_ - OursBytes();
    const int64_t most = 2 * (held + answered_bytes_) + clients * kAllocatedOfOne;
    TM_CHECK(allocated <= most, "%lld bytes held, %lld allocated", static_cast<long long>(held),
             static_cast<long long>(allocated));
  }
  // What the clients have and have not sent yet, and what was written to them.
  int64_t OursBytes() {
    int64_t bytes = 0;
    for (size_t i = 0; i < stage_.peers(); ++i) bytes += stage_.peer(i).allocated_bytes();
    return bytes;
  }

  std::string_view steps_;
  std::vector<std::shared_ptr<HttpExchange>> exchanges_;  // that wait for their answer
  ConnectionStage stage_;
  size_t peer_ = 0;             // who acts
  int64_t answered_bytes_ = 0;  // nobody bounds what an endpoint says but the endpoint
  int64_t allocated_before_ = 0;
};

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tramontane::Program(std::string_view(reinterpret_cast<const char*>(data), size)).Run();
  return 0;
}
