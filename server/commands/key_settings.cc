#include "server/commands/key_settings.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>
#include <vector>

#include "server/base/host_port.h"

namespace tramontane {
namespace {

bool IsOpenToANetwork(const std::string& address) {
  const StatusOr<HostPort> where = ParseHostPort(address);
  return where.ok() && !IsLoopback(where->host);
}

}  // namespace

StatusOr<KeptDoors> OpenDoors(const ServeConfig& config) {
  std::vector<AddressRange> proxies;
  for (const std::string& text : config.trusted_proxy) {
    TM_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Parse(text));
    proxies.push_back(range);
  }
  const bool is_open = IsOpenToANetwork(config.grpc_address) || IsOpenToANetwork(config.http_address) ||
                       IsOpenToANetwork(config.admin_address);
  KeptDoors doors;
  if (config.api_keys.empty()) {
    if (is_open) {
      spdlog::warn("the doors are open to a network, and nobody needs a key: api_keys names a file of them");
    }
    doors.doorkeeper = std::make_shared<const Doorkeeper>(nullptr, std::move(proxies));
    return doors;
  }
  std::vector<std::string> warnings;
  auto opened = KeyRing::Open(config.api_keys, &warnings);
  if (!opened.ok()) {
    return InvalidArgument("api_keys: " + config.api_keys + " " + opened.status().message());
  }
  const std::shared_ptr<KeyRing> keys = *std::move(opened);
  for (const std::string& warning : warnings) spdlog::warn("api_keys: {}: {}", config.api_keys, warning);
  spdlog::info("api_keys: {} keys; requests without one are refused: 401, UNAUTHENTICATED", keys->size());
  if (is_open) {
    spdlog::warn("keys travel unencrypted: there is no TLS, so a proxy that has it belongs in front");
  }
  doors.doorkeeper = std::make_shared<const Doorkeeper>(keys, std::move(proxies));
  TM_ASSIGN_OR_RETURN(doors.watch,
                      ReloadWatch::Start({{.what = "keys", .look_again = [keys](std::string* fault) {
                                             return keys->LookAgain(fault);
                                           }}}));
  return doors;
}

}  // namespace tramontane
