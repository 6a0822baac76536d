#include "server/gateway/connection_thread.h"

#include <utility>
#include <vector>

#include "server/gateway/http_connection.h"

namespace tramontane {

ConnectionThread::ConnectionThread() = default;
ConnectionThread::~ConnectionThread() = default;

void ConnectionThread::Add(std::shared_ptr<Connection> connection) {
  connections_.insert(std::move(connection));
}

void ConnectionThread::Remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
}

// Connections that close are removed meanwhile.
void ConnectionThread::Sweep() {
  const std::vector<std::shared_ptr<Connection>> connections(connections_.begin(), connections_.end());
  for (const auto& connection : connections) connection->Sweep();
}

void ConnectionThread::CloseAll() {
  const std::vector<std::shared_ptr<Connection>> connections(connections_.begin(), connections_.end());
  for (const auto& connection : connections) connection->Close();
}

ConnectionThread::Place ConnectionThread::WaitInLine(Connection& connection) {
  line_.emplace(next_place_, &connection);
  return next_place_++;
}

bool ConnectionThread::CloseLongestWaiting() {
  if (line_.empty()) return false;
  line_.begin()->second->Close();
  return true;
}

}  // namespace tramontane
