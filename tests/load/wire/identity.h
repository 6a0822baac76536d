// Who a server or a client is under TLS: a key and the certificate that it signs itself, made for a test.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <string>

namespace tramontane::load {

// A key and its own certificate, for `name` ("DNS:localhost", "IP:127.0.0.1").
class Identity {
 public:
  explicit Identity(const std::string& name) : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    X509_set_version(certificate_, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate_), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate_), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate_), 3600);
    X509_set_pubkey(certificate_, key_);
    X509_NAME* const subject = X509_get_subject_name(certificate_);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"),
                               -1, -1, 0);
    X509_set_issuer_name(certificate_, subject);
    Extend(NID_basic_constraints, "critical,CA:TRUE");
    Extend(NID_subject_alt_name, name);
    X509_sign(certificate_, key_, EVP_sha256());
  }
  ~Identity() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  EVP_PKEY* key() const { return key_; }
  X509* certificate() const { return certificate_; }

  void WriteCertificate(const std::string& path) const {
    FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr) << path;
    PEM_write_X509(file, certificate_);
    std::fclose(file);
  }
  void WriteKey(const std::string& path) const {
    FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr) << path;
    PEM_write_PrivateKey(file, key_, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }

 private:
  void Extend(int kind, const std::string& value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    X509_add_ext(certificate_, extension, -1);
    X509_EXTENSION_free(extension);
  }

  EVP_PKEY* key_;
  X509* certificate_;
};

}  // namespace tramontane::load
