#include "server/http/connection_thread.h"

#include <utility>

#include "server/http/connection.h"

namespace tramontane {

ConnectionThread::ConnectionThread() = default;
ConnectionThread::~ConnectionThread() = default;

void ConnectionThread::Add(std::shared_ptr<Connection> connection) {
  connections_.insert(std::move(connection));
}

void ConnectionThread::Remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
}

std::vector<std::shared_ptr<Connection>> ConnectionThread::Connections() const {
  return {connections_.begin(), connections_.end()};
}

void ConnectionThread::Sweep() {
  for (const auto& connection : Connections()) connection->Sweep();
}

void ConnectionThread::StopAll() {
  for (const auto& connection : Connections()) connection->Stop();
}

void ConnectionThread::CloseAll() {
  for (const auto& connection : Connections()) connection->Close();
}

ConnectionThread::Place ConnectionThread::Join(Line line, Connection& connection) {
  LineOf(line).emplace(next_place_, &connection);
  return next_place_++;
}

bool ConnectionThread::CloseFirst(Line line) {
  if (LineOf(line).empty()) return false;
  LineOf(line).begin()->second->Close();
  return true;
}

}  // namespace tramontane
