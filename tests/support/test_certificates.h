// Certificates that a test makes itself: P-256, valid for a day, for localhost and 127.0.0.1, of servers and
// of clients. Any thread.
#pragma once

#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace tramontane {

// PEM.
struct TestPair {
  std::string cert;
  std::string key;
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);

  std::string pem() const;
  TestPair Issue(const std::string& common_name) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

}  // namespace tramontane
