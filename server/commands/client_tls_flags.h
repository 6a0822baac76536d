// The flags with which a command asks a server over TLS. Main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/remote/client_tls.h"

struct ssl_ctx_st;

namespace tramontane {

struct ClientTlsFlags {
  std::string ca, cert, key;  // files
  bool insecure = false;
};

// Adds --ca, --cert, --key and --insecure; `flags` live as long as the command.
void AddTlsFlags(ClientTlsFlags* flags, CLI::App* command);

// What they name, read and checked; any of them turns TLS on. INVALID_ARGUMENT names the flag and the file.
StatusOr<ClientTls> ReadClientTls(const ClientTlsFlags& flags);

// The client's side, for what is no gRPC. INVALID_ARGUMENT as above, without the file.
StatusOr<std::shared_ptr<ssl_ctx_st>> ClientTlsContext(const ClientTls& tls);

}  // namespace tramontane
