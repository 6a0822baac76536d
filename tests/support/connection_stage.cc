#include "tests/support/connection_stage.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int64_t kSweepMs = 500;

}  // namespace

// ---- StagePeer -------------------------------------------------------------------------------------

bool StagePeer::RunOne() {
  const bool readable = !sent_.empty() || has_ended_ || is_broken_ || closed_;
  const bool writable = room_ > 0 || is_broken_ || closed_;
  std::function<void()> call;
  if (readable && when_readable_) {
    call = std::exchange(when_readable_, nullptr);
  } else if (writable && when_writable_) {
    call = std::exchange(when_writable_, nullptr);
  }
  if (!call) return false;
  call();
  return true;
}

class StageSocket final : public ByteSocket {
 public:
  explicit StageSocket(std::shared_ptr<StagePeer> peer) : peer_(std::move(peer)) {}
  ~StageSocket() override { peer_->closed_ = true; }

  const std::string& peer() const override { return peer_->address; }

  Progress Read(std::span<char> room) override {
    std::string& sent = peer_->sent_;
    if (peer_->is_broken_) return {0, State::kBroken};
    if (sent.empty()) return {0, peer_->has_ended_ ? State::kEnded : State::kLater};
    const size_t bytes = std::min(room.size(), sent.size());
    std::copy_n(sent.begin(), bytes, room.begin());
    sent.erase(0, bytes);
    return {bytes, State::kOpen};
  }

  Progress Write(std::span<const std::string_view> texts) override {
    if (peer_->is_broken_) return {0, State::kBroken};
    const size_t room = peer_->room_;
    for (const std::string_view text : texts) {
      const size_t taken = std::min(peer_->room_, text.size());
      peer_->room_ -= taken;
      peer_->received_.append(text.substr(0, taken));
    }
    return {room - peer_->room_, room > peer_->room_ ? State::kOpen : State::kLater};
  }

  void WhenReadable(std::function<void()> call) override {
    TM_CHECK(!peer_->when_readable_, "two reads wait");
    peer_->when_readable_ = std::move(call);
  }
  void WhenWritable(std::function<void()> call) override {
    TM_CHECK(!peer_->when_writable_, "two writes wait");
    peer_->when_writable_ = std::move(call);
  }
  bool HasHungUp() override { return peer_->has_ended_ || peer_->is_broken_; }
  void ShutdownSend() override { peer_->sender_shut_ = true; }
  void Close() override { peer_->closed_ = true; }

 private:
  const std::shared_ptr<StagePeer> peer_;
};

// ---- ConnectionStage -------------------------------------------------------------------------------

class ConnectionStage::Thread final : public ConnectionThread {
 public:
  bool Post(std::function<void()> work) override {
    mailbox_.push_back(std::move(work));
    return true;
  }
  bool is_current() const override { return is_current_; }
  int64_t NowNs() const override { return now_ms_ * 1'000'000; }

  bool RunOne() {
    if (mailbox_.empty()) return false;
    const std::function<void()> work = std::move(mailbox_.front());
    mailbox_.pop_front();
    work();
    return true;
  }
  void RunElsewhere(const std::function<void()>& work) {
    is_current_ = false;
    work();
    is_current_ = true;
  }
  void Wait(int64_t ms) { now_ms_ += ms; }

 private:
  std::deque<std::function<void()>> mailbox_;
  bool is_current_ = true;
  int64_t now_ms_ = 1'000'000;
};

ConnectionStage::ConnectionStage(const HttpLimits& limits, HttpServer::Handler handler,
                                 ByteBudget* unread_answers)
    : thread_(std::make_shared<Thread>()) {
  HttpServerOptions options;
  options.limits = limits;
  options.unread_answers = unread_answers;
  state_ = std::make_shared<HttpServerState>(options, std::move(handler), [this](WorkPiece piece) {
    return handlers_.Push(std::move(piece), nullptr);
  });
}

ConnectionStage::~ConnectionStage() {
  CloseAll();
  TM_CHECK(state_->held_bytes.bytes() == 0 && state_->unread_answers.bytes() == 0 &&
               open_connections() == 0 && state_->open_exchanges == 0,
           "%lld bytes, %lld connections, %lld exchanges are left",
           static_cast<long long>(state_->held_bytes.bytes()), static_cast<long long>(open_connections()),
           static_cast<long long>(state_->open_exchanges));
}

ConnectionThread& ConnectionStage::thread() { return *thread_; }

StagePeer& ConnectionStage::Connect(size_t room, const std::string& address) {
  return Connect(room, address, false);
}
StagePeer& ConnectionStage::ConnectOverLimit() { return Connect(SIZE_MAX / 2, "127.0.0.1", true); }

StagePeer& ConnectionStage::Connect(size_t room, const std::string& address, bool is_over_limit) {
  const auto& peer = peers_.emplace_back(std::make_shared<StagePeer>());
  peer->address = address;
  peer->MakeRoom(room);
  const auto connection = std::make_shared<Connection>(state_, thread_, std::make_unique<StageSocket>(peer));
  if (is_over_limit) {
    connection->BeginOverLimit();
  } else {
    connection->Begin();
  }
  return *peer;
}

bool ConnectionStage::RunHandler() {
  if (!handlers_run) return false;
  std::optional<WorkPiece> piece = handlers_.Begin(long_work_runs);
  if (!piece) return false;
  thread_->RunElsewhere(std::exchange(piece->run, nullptr));
  handlers_.End(*piece, 0);
  return true;
}

void ConnectionStage::Run() {
  for (bool moves = true; moves;) {
    moves = thread_->RunOne() || RunHandler();
    for (const auto& peer : peers_) moves = peer->RunOne() || moves;
  }
}

void ConnectionStage::Advance(int64_t ms) {
  for (Run(); ms > 0; ms -= kSweepMs) {
    thread_->Wait(std::min(ms, kSweepMs));
    thread_->Sweep();
    Run();
  }
}

void ConnectionStage::CloseAll() {
  thread_->CloseAll();
  handlers_run = long_work_runs = true;
  Run();
}

}  // namespace tramontane
