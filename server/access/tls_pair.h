// What the files of TLS hold, checked: a server's certificate and its key, and whose certificates its clients
// must have.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/status.h"

struct ssl_ctx_st;

namespace tramontane {

// Of each file: its path, or what is in it, PEM.
struct TlsTexts {
  std::string cert;
  std::string key;
  std::string client_ca;  // "": clients need no certificate
};

struct CheckedTls {
  // For new connections of HTTP: TLS 1.2 and 1.3, ALPN's http/1.1, clients' certificates required where
  // there is a client_ca.
  std::shared_ptr<ssl_ctx_st> context = {};
  // What was checked, and nothing else of the files, PEM.
  std::string pair = {};  // key and certificates
  std::string client_ca = {};
};

// INVALID_ARGUMENT names the setting, the file and what is wrong, and quotes nothing of a file.
StatusOr<CheckedTls> CheckTls(const TlsTexts& paths, const TlsTexts& texts);

}  // namespace tramontane
