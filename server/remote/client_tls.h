// TLS towards a server. A plain value.
#pragma once

#include <string>

namespace tramontane {

struct ClientTls {
  bool is_on = false;
  bool insecure = false;  // any certificate of the server will do
  // PEM.
  std::string ca;    // whom to trust; "": whom the system does
  std::string cert;  // the client's own; "": it has none
  std::string key;   // its key
};

}  // namespace tramontane
