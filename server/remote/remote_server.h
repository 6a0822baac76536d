// RemoteServer: one server behind the separate gateway, and RemoteServers: which of several gets the next
// call. Any thread.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "server/remote/remote_client.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {

// The calls in progress, so that the end can cancel them and wait.
class OpenCalls {
 public:
  bool Add(grpc::ClientContext* context);     // false: at the end; the call must not start
  void Remove(grpc::ClientContext* context);  // it has ended, and is cancelled no more
  void CountDown();                           // once for each Add that was taken, when its context is gone
  // No call starts any more. Returns when every context is gone: what they hold of gRPC's must not outlive
  // its channels.
  void CancelAndWait();

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::unordered_set<grpc::ClientContext*> contexts_;
  int64_t not_gone_ = 0;
  bool closed_ = false;
};

// Declared in front of a context, it goes after it: what counts a call down.
struct OpenCallCount {
  OpenCallCount() = default;
  ~OpenCallCount() {
    if (calls != nullptr) calls->CountDown();
  }
  OpenCallCount(const OpenCallCount&) = delete;
  OpenCallCount& operator=(const OpenCallCount&) = delete;

  OpenCalls* calls = nullptr;  // set once the context was taken
};

class RemoteServer {
 public:
  // `api_key`: "": none.
  RemoteServer(const std::string& address, std::string api_key, const ClientTls& tls);

  const std::string& address() const { return address_; }
  // For calls by their path, whose answers come as bytes.
  using RawStub = grpc::TemplatedGenericStub<google::protobuf::Message, grpc::ByteBuffer>;
  RawStub& raw_stub() { return raw_stub_; }

  // Says with our key whose call it is, of which weight and trace; of no identity: our own.
  void Sign(const Caller& caller, grpc::ClientContext* context) const;

  // Connected and, by its health service, serving. Asks for a connection where there is none.
  bool up() const { return channel_->GetState(true) == GRPC_CHANNEL_READY; }
  int64_t load() const { return open_calls_ + others_calls_; }

  // It has refused a call for want of room, and has told of no room since, nor ended a call of ours.
  bool full() const { return full_; }

  void CallStarted();
  void CallEnded(bool lost, bool served);
  void NoteFull() { full_ = true; }

  // Tells the log whether it is up, if that is news.
  void LogChange();

  // Asks for the load in the background, unless that is still going on.
  void Poll(OpenCalls& open, int64_t timeout_ms);

  BackendState state() const;
  v1::GetLoadResponse last_load() const;

 private:
  struct LoadQuestion;
  void OnLoad(const grpc::Status& status, const v1::GetLoadResponse& load, bool was_full);

  const std::string api_key_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  RawStub raw_stub_;
  std::atomic<int64_t> open_calls_{0};
  std::atomic<int64_t> others_calls_{0};
  std::atomic<int64_t> started_calls_{0};
  std::atomic<int64_t> lost_calls_{0};
  std::atomic<bool> full_{false};
  std::atomic<bool> polling_{false};
  std::atomic<bool> was_up_{false};  // as the log was told last
  mutable std::mutex mutex_;         // guards last_load_
  v1::GetLoadResponse last_load_;
};

class RemoteServers {
 public:
  explicit RemoteServers(const RemoteClientOptions& options);
  ~RemoteServers();  // as Close

  // The one that is up, not `tried`, not full if one is not, and has the least to do; null: none.
  RemoteServer* Choose(const std::vector<RemoteServer*>& tried);
  // The one that keeps the session of that name, if it is up; null: it is down. Always the same one, so that
  // every turn of a conversation finds it.
  RemoteServer* HomeOf(const std::string& session) const;
  const std::vector<std::unique_ptr<RemoteServer>>& all() const { return backends_; }
  OpenCalls& open_calls() { return open_calls_; }
  int64_t max_answer_bytes() const { return max_answer_bytes_; }  // 0: any

  void Close();  // stops asking, cancels every call, waits for their end

 private:
  void PollLoop();

  const int64_t poll_interval_ms_;
  const int64_t max_answer_bytes_;
  std::vector<std::unique_ptr<RemoteServer>> backends_;
  std::atomic<uint64_t> choices_{0};
  OpenCalls open_calls_;

  std::mutex mutex_;  // guards stopping_
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread poller_;  // last: it uses all of the above
};

}  // namespace tramontane
