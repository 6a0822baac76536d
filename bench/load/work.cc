#include "bench/load/work.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/load/json_text.h"
#include "bench/load/parse.h"
#include "bench/load/record.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxClasses = 100;
constexpr double kMaxWeight = 1e9;

// A value of a class as the command line would have it: 512 and "512" are the same.
std::string AsText(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

Status SetKey(const std::string& key, const Json& value, WorkClass* work) {
  const std::string text = AsText(value);
  if (key == "name") {
    constexpr size_t kMaxNameBytes = 64;
    const bool fits =
        value.is_string() && !text.empty() && text.size() <= kMaxNameBytes && VisibleText(text) == text;
    if (!fits) return BadValue(key, text, "a text of 1 to 64 bytes without control characters");
    work->name = text;
    return Status::Ok();
  }
  if (key == "weight") {
    TM_ASSIGN_OR_RETURN(work->weight, ParseNumber(key, text, {0, kMaxWeight}));
    return Status::Ok();
  }
  if (key == "prompt_tokens") {
    TM_ASSIGN_OR_RETURN(work->prompt_tokens, LengthDistribution::Parse(key, text));
    return Status::Ok();
  }
  if (key == "output_tokens") {
    TM_ASSIGN_OR_RETURN(work->output_tokens, LengthDistribution::Parse(key, text));
    return Status::Ok();
  }
  if (key == "shared_prefix") {
    TM_ASSIGN_OR_RETURN(work->shared_prefix, ParseSharedPrefix(key, text));
    return Status::Ok();
  }
  if (key == "turns") {
    TM_ASSIGN_OR_RETURN(work->turns, ParseTurns(key, text));
    return Status::Ok();
  }
  return BadValue("a key", key, "name, weight, prompt_tokens, output_tokens, shared_prefix or turns");
}

StatusOr<WorkClass> ParseClass(const Json& object, const WorkClass& defaults) {
  if (!object.is_object()) return BadValue("the class", object.dump(), "a JSON object");
  WorkClass work = defaults;
  work.name.clear();
  for (const auto& [key, value] : object.items()) TM_RETURN_IF_ERROR(SetKey(key, value, &work));
  if (work.name.empty()) return InvalidArgument("name is missing; it must be a text of 1 to 64 bytes");
  return work;
}

}  // namespace

StatusOr<SharedPrefix> ParseSharedPrefix(std::string_view flag, std::string_view text) {
  const auto parts = SplitAt(text, ':');
  if (parts.size() != 2) return BadValue(flag, text, "N:P, P prefixes of N tokens");
  TM_ASSIGN_OR_RETURN(const int64_t tokens, ParseWhole(flag, parts[0], {0, kMaxTokens}));
  TM_ASSIGN_OR_RETURN(const int64_t count, ParseWhole(flag, parts[1], {1, kMaxTokens}));
  return SharedPrefix{static_cast<int32_t>(tokens), static_cast<int32_t>(count)};
}

StatusOr<IdRange> ParseIdRange(std::string_view flag, std::string_view text) {
  constexpr double kMaxId = 1 << 30;
  const auto parts = SplitAt(text, ':');
  if (parts.size() != 2) return BadValue(flag, text, "A:B, ids from A to B - 1");
  TM_ASSIGN_OR_RETURN(const int64_t begin, ParseWhole(flag, parts[0], {0, kMaxId}));
  TM_ASSIGN_OR_RETURN(const int64_t end, ParseWhole(flag, parts[1], {0, kMaxId}));
  if (end - begin < 2)
    return BadValue(flag, text, "A:B with B at least A + 2: of one id all prompts are equal");
  return IdRange{static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

StatusOr<int32_t> ParseTurns(std::string_view flag, std::string_view text) {
  constexpr double kMaxTurns = 1000;
  TM_ASSIGN_OR_RETURN(const int64_t turns, ParseWhole(flag, text, {1, kMaxTurns}));
  return static_cast<int32_t>(turns);
}

StatusOr<std::vector<WorkClass>> ParseMix(const std::string& name, std::string_view text,
                                          const WorkClass& defaults) {
  if (IsNestedTooDeep(text)) return InvalidArgument("is nested more than 32 deep").WithField(name);
  const Json list = JsonOf(text);
  if (!list.is_array() || list.empty() || list.size() > kMaxClasses) {
    return InvalidArgument("must be a JSON list of 1 to " + std::to_string(kMaxClasses) + " classes")
        .WithField(name);
  }
  std::vector<WorkClass> classes;
  double weights = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    auto work = ParseClass(list[i], defaults);
    if (!work.ok()) return std::move(work).status().InField(FieldElement(name, i));
    const auto same = [&](const WorkClass& other) { return other.name == work->name; };
    if (std::any_of(classes.begin(), classes.end(), same)) {
      return BadValue("name", work->name, "another than those before").InField(FieldElement(name, i));
    }
    weights += work->weight;
    classes.push_back(*std::move(work));
  }
  if (weights <= 0) return InvalidArgument("has weights whose sum is 0; it must be above").WithField(name);
  return classes;
}

StatusOr<std::vector<WorkClass>> ReadMix(const std::string& path, const WorkClass& defaults) {
  TM_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path, kMaxMixBytes));
  return ParseMix(path, text, defaults);
}

}  // namespace tramontane::load
