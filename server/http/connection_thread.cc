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
  LineUp& line_up = LineOf(line);
  const int64_t now_ns = NowNs();
  if (line_up.places.empty()) line_up.first_since_ns = now_ns;
  line_up.places.emplace(next_place_, Waiting{.connection = &connection, .since_ns = now_ns});
  return {line, next_place_++};
}

void ConnectionThread::Leave(Place place) {
  LineUp& line_up = LineOf(place.line);
  line_up.places.erase(place.number);
  line_up.first_since_ns = line_up.places.empty() ? kNobody : line_up.places.begin()->second.since_ns;
}

bool ConnectionThread::CloseFirst(Line line, const std::string& client) {
  LineUp& line_up = LineOf(line);
  auto first = line_up.places.begin();
  if (!client.empty()) {
    if (std::exchange(line_up.looked_for, client) != client) line_up.looked_to = 0;
    first = line_up.places.lower_bound(line_up.looked_to);
    while (first != line_up.places.end() && first->second.connection->client() != client) ++first;
    line_up.looked_to = first == line_up.places.end() ? next_place_ : first->first;
  }
  if (first == line_up.places.end()) return false;
  first->second.connection->Close();
  return true;
}

}  // namespace tramontane
