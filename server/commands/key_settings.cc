#include "server/commands/key_settings.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>
#include <vector>

#include "server/access/whole_file.h"
#include "server/base/host_port.h"

namespace tramontane {
namespace {

bool IsOpenToANetwork(const std::string& address) {
  const StatusOr<HostPort> where = ParseHostPort(address);
  return where.ok() && !IsLoopback(where->host);
}

bool IsOpenToANetwork(const ServeConfig& config) {
  return IsOpenToANetwork(config.grpc_address) || IsOpenToANetwork(config.http_address) ||
         IsOpenToANetwork(config.admin_address);
}

StatusOr<std::vector<AddressRange>> ProxiesOf(const ServeConfig& config) {
  std::vector<AddressRange> proxies;
  for (const std::string& text : config.trusted_proxy) {
    TM_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Parse(text));
    proxies.push_back(range);
  }
  return proxies;
}

// Null: nobody needs a key.
StatusOr<std::shared_ptr<KeyRing>> OpenKeys(const std::string& path) {
  if (path.empty()) return std::shared_ptr<KeyRing>();
  std::vector<std::string> warnings;
  auto opened = KeyRing::Open(path, &warnings);
  if (!opened.ok()) return InvalidArgument("api_keys: " + path + " " + opened.status().message());
  for (const std::string& warning : warnings) spdlog::warn("api_keys: {}: {}", path, warning);
  spdlog::info("api_keys: {} keys; requests without one are refused: 401, UNAUTHENTICATED",
               (*opened)->size());
  return std::shared_ptr<KeyRing>(*std::move(opened));
}

// Null: no TLS.
StatusOr<std::shared_ptr<TlsFiles>> OpenTls(const ServeConfig& config) {
  const std::string& cert = config.tls_cert;
  if (cert.empty() != config.tls_key.empty()) {
    return InvalidArgument(cert.empty() ? "tls_cert is missing: tls_key is its key"
                                        : "tls_key is missing: tls_cert needs its key");
  }
  if (cert.empty() && !config.tls_client_ca.empty()) {
    return InvalidArgument("tls_cert and tls_key are missing: tls_client_ca goes with them");
  }
  if (cert.empty()) return std::shared_ptr<TlsFiles>();
  TM_ASSIGN_OR_RETURN(std::shared_ptr<TlsFiles> files,
                      TlsFiles::Open({cert, config.tls_key, config.tls_client_ca}));
  if (OthersCanRead(config.tls_key)) spdlog::warn("tls_key: {}: {}", config.tls_key, kOthersCanRead);
  spdlog::info("tls: connections without it are closed{}",
               config.tls_client_ca.empty() ? "" : ", and those without a certificate of tls_client_ca");
  const HttpLimits limits = HttpLimitsOf(config);
  spdlog::info(
      "limit: handshakes of TLS over HTTP = {}: for one more the oldest of the address that has most is "
      "closed",
      limits.max_handshakes);
  return files;
}

// Of doors that are open to a network; each is said once.
void WarnOfOpenDoors(const ServeConfig& config) {
  if (!IsOpenToANetwork(config)) return;
  if (config.api_keys.empty()) {
    spdlog::warn("the doors are open to a network, and nobody needs a key: api_keys names a file of them");
  } else if (config.tls_cert.empty()) {
    spdlog::warn("keys travel unencrypted: there is no TLS; tls_cert and tls_key are for it");
  } else if (IsOpenToANetwork(config.admin_address)) {
    spdlog::warn("keys travel unencrypted to admin_address, which has no TLS");
  }
}

}  // namespace

StatusOr<KeptDoors> OpenDoors(const ServeConfig& config) {
  KeptDoors doors;
  TM_ASSIGN_OR_RETURN(std::vector<AddressRange> proxies, ProxiesOf(config));
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<KeyRing> keys, OpenKeys(config.api_keys));
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<TlsFiles> tls, OpenTls(config));
  WarnOfOpenDoors(config);
  doors.doorkeeper = std::make_shared<const Doorkeeper>(keys, std::move(proxies));
  doors.tls = tls;
  std::vector<Reloadable> files;
  if (keys != nullptr) {
    files.push_back({"keys", [keys](std::string* fault) { return keys->LookAgain(fault); }});
  }
  if (tls != nullptr) {
    files.push_back({"tls", [tls](std::string* fault) { return tls->LookAgain(fault); }});
  }
  if (!files.empty()) {
    TM_ASSIGN_OR_RETURN(doors.watch, ReloadWatch::Start(std::move(files)));
  }
  return doors;
}

}  // namespace tramontane
