// Models in several files.
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "models/files/built_in_files.h"
#include "models/gguf/gguf_file.h"

namespace tramontane {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr int64_t kMaxParts = 99999;  // five digits

// "big-00001-of-00003.gguf"
struct PartName {
  std::string_view stem;  // "big"
  int64_t number = 0;     // from 1
  int64_t count = 0;
};

std::optional<int64_t> FiveDigits(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<PartName> ParsePartName(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kDigits = 5, kNumbers = 1 + 2 * kDigits + kOf.size();
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  if (name.size() < kNumbers) return std::nullopt;
  const std::string_view numbers = name.substr(name.size() - kNumbers);
  if (numbers[0] != '-' || numbers.substr(1 + kDigits, kOf.size()) != kOf) return std::nullopt;
  const std::optional<int64_t> number = FiveDigits(numbers.substr(1, kDigits));
  const std::optional<int64_t> count = FiveDigits(numbers.substr(1 + kDigits + kOf.size()));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return PartName{name.substr(0, name.size() - kNumbers), *number, *count};
}

std::string NameOfPart(const PartName& first, int64_t number) {
  char numbers[32];
  std::snprintf(numbers, sizeof(numbers), "-%05d-of-%05d", static_cast<int>(number),
                static_cast<int>(first.count));
  return std::string(first.stem) + numbers + std::string(kSuffix);
}

// What a part says of itself, against its name.
Status CheckPart(const GgufFile& part, int64_t number, int64_t count) {
  const GgufMetadata& metadata = part.metadata;
  TM_ASSIGN_OR_RETURN(const int64_t says_number, metadata.Int("split.no", 0, kMaxParts));
  TM_ASSIGN_OR_RETURN(const int64_t says_count, metadata.Int("split.count", 0, kMaxParts));
  if (says_number == number - 1 && says_count == count) return {};
  return InvalidArgument(metadata.file() + ": by its name it is part " + std::to_string(number) + " of " +
                         std::to_string(count) + ", but split.no is " + std::to_string(says_number) +
                         " (from 0 on) and split.count is " + std::to_string(says_count));
}

}  // namespace

bool IsGgufName(std::string_view name) { return name.ends_with(kSuffix); }

std::vector<std::string> GgufPartNames(const std::string& name) {
  const std::optional<PartName> part = ParsePartName(name);
  if (!part) return {name};
  if (part->number != 1) return {};
  std::vector<std::string> names;
  for (int64_t number = 1; number <= part->count; ++number) {
    names.push_back(NameOfPart(*part, number));
  }
  return names;
}

std::string FirstGgufPart(const std::string& name) {
  const std::optional<PartName> part = ParsePartName(name);
  return part ? NameOfPart(*part, 1) : name;
}

StatusOr<std::vector<GgufFile>> OpenGgufParts(const std::string& path) {
  const std::vector<std::string> names = GgufPartNames(path);
  if (names.empty()) {
    const std::string_view count_and_suffix = std::string_view(path).substr(path.rfind('-') + 1);
    return InvalidArgument(path + ": not the first part of its model; name the one that ends in -00001-of-" +
                           std::string(count_and_suffix));
  }
  for (const std::string& name : names) {
    if (names.size() > 1 && !FileExists(name)) return NotFound(name + ": this part of the model is missing");
  }
  std::vector<GgufFile> parts;
  std::map<std::string, std::string> file_of;  // by tensor
  const auto count = static_cast<int64_t>(names.size());
  for (const std::string& name : names) {
    TM_ASSIGN_OR_RETURN(GgufFile part, OpenGguf(name));
    if (count > 1) TM_RETURN_IF_ERROR(CheckPart(part, static_cast<int64_t>(parts.size()) + 1, count));
    for (const auto& [tensor, info] : part.file.tensors()) {
      const auto [other, added] = file_of.emplace(tensor, name);
      if (!added) {
        return InvalidArgument(name + ": tensor " + tensor + " also stands in " + other->second +
                               ": a duplicate");
      }
    }
    parts.push_back(std::move(part));
  }
  const auto tensors = static_cast<int64_t>(file_of.size());
  const GgufMetadata& first = parts[0].metadata;
  TM_ASSIGN_OR_RETURN(const int64_t says_count, first.IntOr("split.count", 0, kMaxParts, 1));
  // 0 and 1 are what one file says that was never split.
  if (count == 1 && says_count > 1) {
    return InvalidArgument(path + ": split.count is " + std::to_string(says_count) +
                           ", but its name has no number of a part by which to find the others");
  }
  if (count == 1) return parts;
  TM_ASSIGN_OR_RETURN(const int64_t announced, first.IntOr("split.tensors.count", 0, INT64_MAX, tensors));
  if (announced != tensors) {
    return InvalidArgument(path + ": split.tensors.count is " + std::to_string(announced) +
                           ", but the parts hold " + std::to_string(tensors) + " tensors");
  }
  return parts;
}

}  // namespace tramontane
