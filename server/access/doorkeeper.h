// Doorkeeper: who asks, from what a request brings: its address, its key, and what a proxy or a gateway says
// of those behind it. One for all doors of a server. Any thread; its ring may change its keys.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/key_ring.h"
#include "server/base/peer_address.h"
#include "server/call/caller.h"
#include "server/call/rpc_error.h"

namespace tramontane {

// As headers and metadata have them; "": not there.
struct Credentials {
  std::string_view address = {};            // of the peer: a PlainAddress
  std::string_view forwarded_for = {};      // X-Forwarded-For
  std::string_view authorization = {};      // "Bearer KEY"
  std::string_view api_key = {};            // x-api-key; counts where there is no authorization
  std::string_view tramontane_caller = {};  // x-tramontane-caller
  std::string_view caller_weight = {};      // x-tramontane-caller-weight
};

class Doorkeeper {
 public:
  // `keys`: null: nobody needs one. `trusted_proxies`: whose X-Forwarded-For is believed.
  explicit Doorkeeper(std::shared_ptr<const KeyRing> keys = {},
                      std::vector<AddressRange> trusted_proxies = {})
      : keys_(std::move(keys)), trusted_proxies_(std::move(trusted_proxies)) {}

  bool has_keys() const { return keys_ != nullptr; }
  bool has_admin_keys() const { return keys_ != nullptr && keys_->has_admin(); }

  // Without asking for a key: a caller that is known by its address, for what needs none.
  Caller ByAddress(const Credentials& credentials, Caller::Door door) const;
  // UNAUTHENTICATED, the same for a key that is missing, unknown, expired or disabled.
  RpcError Identify(const Credentials& credentials, Caller::Door door, Caller* caller) const;

 private:
  std::string AddressOf(const Credentials& credentials) const;

  const std::shared_ptr<const KeyRing> keys_;
  const std::vector<AddressRange> trusted_proxies_;
};

}  // namespace tramontane
