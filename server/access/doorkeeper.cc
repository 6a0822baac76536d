#include "server/access/doorkeeper.h"

#include <algorithm>
#include <charconv>

#include "server/base/host_port.h"

namespace tramontane {
namespace {

constexpr char kUnix[] = "unix";          // the address of a unix socket
constexpr size_t kMostCallerBytes = 128;  // of what a gateway says

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string_view KeyOf(const Credentials& credentials) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = WithoutBlanks(credentials.authorization);
  if (given.empty()) return WithoutBlanks(credentials.api_key);
  if (!EqualsIgnoringCase(given.substr(0, kScheme.size()), kScheme)) return {};
  return WithoutBlanks(given.substr(kScheme.size()));
}

bool IsLocal(const std::string& address) { return address == kUnix || IsLoopback(address); }

bool CanNameACaller(std::string_view text) {
  return !text.empty() && text.size() <= kMostCallerBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

// `otherwise`: where it is none.
int32_t WeightOf(std::string_view said, int32_t otherwise) {
  int32_t weight = 0;
  const auto [end, error] = std::from_chars(said.data(), said.data() + said.size(), weight);
  const bool is_one = error == std::errc() && end == said.data() + said.size();
  return is_one && weight >= 1 && weight <= kMostKeyWeight ? weight : otherwise;
}

// What a gateway says: the name of a key, which is never an address, or the share of an address; and of which
// weight that is, else as a key of that name has it here. `keys` may be null.
void TakeIdentity(const Credentials& credentials, const KeyRing* keys, Caller* caller) {
  const std::string_view said = credentials.tramontane_caller;
  caller->identity = said;
  const auto named = keys == nullptr ? nullptr : keys->Named(caller->identity);
  caller->weight = WeightOf(credentials.caller_weight, named == nullptr ? 1 : named->weight);
  const bool is_address = said == kUnix || IsIpAddress(std::string(said.substr(0, said.find('/'))));
  caller->key_name = is_address ? "" : said;
}

RpcError KeyError() {
  RpcError error;
  error.code = StatusCode::kUnauthenticated;
  error.sentence = "the API key is missing or not valid";
  error.reason = "INVALID_API_KEY";
  return error;
}

}  // namespace

// The last address of the list that no trusted proxy has: what stands before it anybody may have written.
std::string Doorkeeper::AddressOf(const Credentials& credentials) const {
  std::string address(credentials.address);
  std::string_view list = credentials.forwarded_for;
  while (!list.empty() && IsInAny(trusted_proxies_, address)) {
    const size_t comma = list.rfind(',');
    const std::string_view last =
        WithoutBlanks(comma == std::string_view::npos ? list : list.substr(comma + 1));
    const auto host =
        HostOf(last.find(':') != last.rfind(':') && !last.starts_with('[') ? '[' + std::string(last) + ']'
                                                                           : std::string(last));
    if (!host || !IsIpAddress(*host)) break;
    address = PlainAddress(*host);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(0, comma);
  }
  return address;
}

Caller Doorkeeper::ByAddress(const Credentials& credentials, Caller::Door door) const {
  const std::string address = AddressOf(credentials);
  Caller caller = {.identity = AddressShare(address), .address = address, .door = door};
  const bool is_believed = !has_keys() && IsLocal(std::string(credentials.address));
  if (is_believed && CanNameACaller(credentials.tramontane_caller)) {
    TakeIdentity(credentials, nullptr, &caller);
  }
  return caller;
}

RpcError Doorkeeper::Identify(const Credentials& credentials, Caller::Door door, Caller* caller) const {
  *caller = ByAddress(credentials, door);
  if (!has_keys()) return {};
  caller->key = keys_->Find(KeyOf(credentials));
  if (caller->key == nullptr) return KeyError();
  const bool speaks_for_others = caller->key->gateway && CanNameACaller(credentials.tramontane_caller);
  caller->identity = caller->key_name = caller->key->name;
  caller->key_salt = caller->key->salt;
  caller->weight = caller->key->weight;
  caller->is_exempt = caller->key->gateway && credentials.tramontane_caller.empty();
  if (speaks_for_others) TakeIdentity(credentials, keys_.get(), caller);
  return {};
}

}  // namespace tramontane
