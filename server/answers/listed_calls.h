// ListedCalls: calls as formats v2 to v7 have them, read a byte at a time: a list of objects, or one alone,
// with a function's `name` and `arguments` that are an object (or a string that holds one; absent: {}),
// perhaps with an `id` or `type`, which are not used: models repeat ids. Members come in any order, each
// once; others are an error.
//
// One thread at a time. No exceptions leave it. Arguments are passed on as they come. Those that come before
// their name, or in a string, are held until it is known or the string ends; longer than kMaxHeldArguments
// they are an error.
#pragma once

#include <bitset>
#include <cstddef>
#include <string>
#include <string_view>

#include "server/answers/json_prefix.h"

namespace tramontane {

constexpr size_t kMaxHeldArguments = 1 << 20;  // bytes

// 1 to 128 letters, digits, underscores and dashes.
bool IsFunctionName(std::string_view name);

class ListedCalls {
 public:
  enum class Step {
    kNone,
    kName,    // a call's name is known
    kWhole,   // the call has ended
    kBroken,  // neither this byte nor any behind it belongs to a call
  };
  // The next byte. What is known by it of the arguments of the call whose name is known goes behind
  // `arguments`. REQUIRES: the first is '[' or '{', and no step was kBroken.
  Step Take(char c, std::string* arguments);

  const std::string& name() const { return name_; }
  bool is_in_call() const { return is_in_call_; }
  // The list has ended, or the call that stands alone.
  bool is_closed() const { return json_.depth() == 0; }
  size_t held_bytes() const { return token_.size() + held_.size(); }

 private:
  enum class Part { kNone, kKey, kName, kArguments, kArgumentsText, kOther };
  enum Member : size_t { kNameMember, kArgumentsMember, kIdMember, kTypeMember, kMembers };

  Step TakeBetween(char c, bool is_key, std::string* arguments);
  Step BeginValue(char c, std::string* arguments);
  Step EndKey();
  Step EndName(std::string* arguments);
  Step EndArgumentsText(std::string* arguments);
  Step EndCall(std::string* arguments);
  std::string& Shown(std::string* arguments) { return name_.empty() ? held_ : *arguments; }

  JsonPrefix json_;
  bool is_in_call_ = false;
  // Of the call being read:
  size_t depth_ = 0;  // of its members
  Part part_ = Part::kNone;
  size_t member_ = 0;           // whose key was read last
  std::bitset<kMembers> seen_;  // members whose keys were read
  std::string name_;
  std::string token_;  // the key or the name being read
  std::string held_;   // arguments
};

}  // namespace tramontane
