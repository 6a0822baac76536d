#include "server/call/trace_context.h"

#include <algorithm>

namespace tramontane {
namespace {

constexpr size_t kVersionBytes = 2, kTraceIdBytes = 32, kParentIdBytes = 16, kFlagsBytes = 2;
constexpr size_t kParentBytes = kVersionBytes + kTraceIdBytes + kParentIdBytes + kFlagsBytes + 3;
constexpr size_t kMaxMemberBytes = 128;  // longer ones go first

bool IsLowerHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

// "": it is none.
std::string ReadParent(std::string_view text) {
  if (text.size() < kParentBytes) return {};
  const std::string_view version = text.substr(0, 2), trace_id = text.substr(3, kTraceIdBytes);
  const std::string_view parent_id = text.substr(36, kParentIdBytes), flags = text.substr(53, kFlagsBytes);
  const bool has_dashes = text[2] == '-' && text[35] == '-' && text[52] == '-';
  const bool is_hex =
      IsLowerHex(version) && IsLowerHex(trace_id) && IsLowerHex(parent_id) && IsLowerHex(flags);
  if (!has_dashes || !is_hex || version == "ff" || IsZero(trace_id) || IsZero(parent_id)) return {};
  if (version == "00") return text.size() == kParentBytes ? std::string(text) : "";
  if (text.size() > kParentBytes && text[kParentBytes] != '-') return {};
  const bool is_sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  return "00" + std::string(text.substr(2, kParentBytes - 4)) + (is_sampled ? "01" : "00");
}

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// key "=" value: a key of a system, or of a tenant "@" a system; a value of printable ASCII without ',' and
// '='.
bool IsMember(std::string_view member) {
  constexpr std::string_view kKeyCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_-*/@";
  const size_t equals = member.find('=');
  if (equals == 0 || equals == std::string_view::npos || equals > 256) return false;
  const std::string_view key = member.substr(0, equals), value = member.substr(equals + 1);
  const bool begins_well = kKeyCharacters.find(key[0]) < 36;
  if (!begins_well || key.find_first_not_of(kKeyCharacters) != std::string_view::npos) return false;
  if (std::count(key.begin(), key.end(), '@') > 1 || value.empty() || value.size() > 256) return false;
  return std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~' && c != '='; });
}

std::string ReadState(const std::vector<std::string_view>& states) {
  std::vector<std::string_view> members;
  size_t bytes = 0;  // of them, each with a comma
  for (std::string_view list : states) {
    while (!list.empty()) {
      const size_t comma = std::min(list.find(','), list.size());
      const std::string_view member = WithoutBlanks(list.substr(0, comma));
      list.remove_prefix(std::min(comma + 1, list.size()));
      if (member.empty()) continue;
      if (!IsMember(member)) return {};
      members.push_back(member);
      bytes += member.size() + 1;
    }
  }
  const auto drop = [&](size_t i) {
    bytes -= members[i].size() + 1;
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
  };
  const auto is_over = [&] {
    return bytes > kMaxTraceStateBytes + 1 || members.size() > kMaxTraceStateMembers;
  };
  for (size_t i = members.size(); i-- > 0 && is_over();) {
    if (members[i].size() > kMaxMemberBytes) drop(i);
  }
  while (is_over()) drop(members.size() - 1);
  std::string state;
  for (const std::string_view member : members) state.append(state.empty() ? "" : ",").append(member);
  return state;
}

}  // namespace

TraceContext ReadTraceContext(const std::vector<std::string_view>& parents,
                              const std::vector<std::string_view>& states) {
  TraceContext context;
  if (parents.size() == 1) context.parent = ReadParent(parents[0]);
  if (!context.parent.empty()) context.state = ReadState(states);
  return context;
}

}  // namespace tramontane
