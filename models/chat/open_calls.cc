#include "models/chat/open_calls.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "models/chat/chat_check.h"

namespace tramontane {
namespace {

constexpr char kNoResult[] = R"({"error": "no result"})";

bool IsResult(const SaidMessage& said) { return said.message->role == ChatRole::kTool; }

// Of `calls`, those that none of `results` belongs to, in their order.
std::vector<const ToolCall*> OpenCalls(std::span<const ToolCall> calls,
                                       std::span<const SaidMessage> results) {
  std::unordered_map<std::string_view, size_t> by_id;
  for (const SaidMessage& result : results) {
    const std::optional<std::string>& id = result.message->tool_call_id;
    ++by_id[id ? std::string_view(*id) : ""];
  }
  std::vector<const ToolCall*> open;
  size_t matched = 0;
  for (const ToolCall& call : calls) {
    const auto found = by_id.find(call.id);
    const bool has_result = found != by_id.end() && found->second > 0;
    if (!has_result) {
      open.push_back(&call);
      continue;
    }
    --found->second;
    ++matched;
  }
  const size_t by_order = std::min(results.size() - matched, open.size());
  open.erase(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(by_order));
  return open;
}

// Calls without a result, and the index in the request behind which their results go.
struct Gap {
  size_t index;
  std::vector<const ToolCall*> calls;
};

std::vector<Gap> FindGaps(std::span<const SaidMessage> said) {
  std::vector<Gap> gaps;
  for (size_t i = 0; i < said.size();) {
    const std::vector<ToolCall>& calls = said[i].message->tool_calls;
    const bool has_calls =
        said[i].index > 0 && said[i].message->role == ChatRole::kAssistant && !calls.empty();
    if (!has_calls) {
      ++i;
      continue;
    }
    size_t begin = i + 1;
    while (begin < said.size() && said[begin].message->role == ChatRole::kAssistant &&
           IsBesideCalls(said, begin))
      ++begin;
    size_t end = begin;
    while (end < said.size() && IsResult(said[end])) ++end;
    const bool is_last = begin == said.size();
    if (!is_last) {
      Gap gap{said[end - 1].index, OpenCalls(calls, said.subspan(begin, end - begin))};
      if (!gap.calls.empty()) gaps.push_back(std::move(gap));
    }
    i = end;
  }
  return gaps;
}

}  // namespace

std::optional<AnsweredChat> AnswerOpenCalls(std::span<const ChatMessage> messages) {
  const std::vector<SaidMessage> said = WhatIsSaid(messages);
  const std::vector<Gap> gaps = FindGaps(said);
  if (gaps.empty()) return std::nullopt;
  AnsweredChat chat;
  auto gap = gaps.begin();
  for (size_t i = 0; i < messages.size(); ++i) {
    chat.messages.push_back(messages[i]);
    chat.index.push_back(i);
    if (gap == gaps.end() || gap->index != i) continue;
    for (const ToolCall* call : gap->calls) {
      chat.messages.push_back(
          {.role = ChatRole::kTool, .content = kNoResult, .tool_call_id = call->id, .name = call->name});
      chat.index.push_back(i);
    }
    ++gap;
  }
  return chat;
}

}  // namespace tramontane
