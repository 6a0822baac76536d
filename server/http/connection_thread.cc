#include "server/http/connection_thread.h"

#include <utility>

#include "server/http/connection.h"

namespace tramontane {

ConnectionThread::ConnectionThread() = default;
ConnectionThread::~ConnectionThread() = default;

void ConnectionThread::Add(std::shared_ptr<Connection> connection) {
  if (is_visiting_) {
    came_.push_back(std::move(connection));
  } else {
    connections_.insert(std::move(connection));
  }
}

void ConnectionThread::Remove(const std::shared_ptr<Connection>& connection) {
  if (is_visiting_) {
    went_.push_back(connection);
  } else {
    connections_.erase(connection);
  }
}

template <typename Visit>
void ConnectionThread::ForConnections(const Visit& visit) {
  is_visiting_ = true;
  for (const auto& connection : connections_) visit(*connection);
  is_visiting_ = false;
  for (auto& connection : came_) connections_.insert(std::move(connection));
  for (const auto& connection : went_) connections_.erase(connection);
  came_.clear();
  went_.clear();
}

void ConnectionThread::Sweep() {
  ForConnections([](Connection& connection) { connection.Sweep(); });
}

void ConnectionThread::StopAll() {
  ForConnections([](Connection& connection) { connection.Stop(); });
}

void ConnectionThread::CloseAll() {
  ForConnections([](Connection& connection) { connection.Close(); });
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
