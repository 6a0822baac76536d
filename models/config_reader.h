// What the readers of config.json and of params.json share: keys read one by one, and every key accounted
// for. Any thread; for model_config.cc and the two readers alone.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/json_file.h"
#include "models/model_config.h"

namespace tramontane {

struct Architecture;

// Beyond these a number is a mistake, and products of any three stay far from overflow.
inline constexpr int64_t kMaxVocab = 1 << 22;
inline constexpr int64_t kMaxHidden = 1 << 18;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxIntermediate = 1 << 20;
inline constexpr int64_t kMaxPositions = 1 << 28;
inline constexpr double kMinTheta = 1e-3;  // far below, f32 cannot hold the frequencies
inline constexpr double kMaxTheta = 1e15;

// Reads one JSON object key by key and remembers the first thing that was wrong, so that a list of reads is
// checked once at its end. After an error every read still gives a value in range.
class KeyReader {
 public:
  // `path`: what stands before a key in messages, where the object lies in another: "text_config.".
  KeyReader(const nlohmann::json& object, std::string file, std::string path = "")
      : object_(object), file_(std::move(file)), path_(std::move(path)) {}

  const Status& status() const { return status_; }
  const std::string& file() const { return file_; }
  std::string PathOf(const std::string& key) const { return path_ + key; }

  // The value, or null where the key is absent.
  const nlohmann::json& Get(const std::string& key) {
    static const nlohmann::json kNull;
    seen_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
  }
  bool Has(const std::string& key) { return !Get(key).is_null(); }
  bool Contains(const std::string& key) const { return object_.contains(key); }

  int64_t Int(const std::string& key, int64_t least, int64_t most) {
    return IntOf(key, Get(key), least, most);
  }
  int64_t IntOr(const std::string& key, int64_t least, int64_t most, int64_t fallback) {
    return Has(key) ? Int(key, least, most) : fallback;
  }
  int64_t IntOf(const std::string& key, const nlohmann::json& value, int64_t least, int64_t most) {
    if (value.is_number_integer()) {
      // Unsigned values beyond int64 compare as unsigned.
      const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX};
      if (fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most) return value.get<int64_t>();
    }
    Wrong(key, value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }

  // In (above, most], or [above, most] when `inclusive`.
  double Number(const std::string& key, double above, double most, bool inclusive = false) {
    const nlohmann::json& value = Get(key);
    if (value.is_number()) {
      const double number = value.get<double>();
      if ((inclusive ? number >= above : number > above) && number <= most) return number;
    }
    Wrong(key, value,
          std::string("a number ") + (inclusive ? "from " : "above ") + JsonText(above) + " to " +
              JsonText(most));
    return most;
  }
  bool BoolOr(const std::string& key, bool fallback) {
    const nlohmann::json& value = Get(key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) Wrong(key, value, "true or false");
    return value.is_boolean() ? value.get<bool>() : fallback;
  }

  void Wrong(const std::string& key, const nlohmann::json& value, const std::string& wanted) {
    Fail(InvalidArgument(PathOf(key) + (value.is_null() ? " is missing" : " is " + JsonText(value)) +
                         "; it must be " + wanted));
  }
  void Refuse(const std::string& key, const nlohmann::json& value, const std::string& why) {
    Fail(Unimplemented(PathOf(key) + " is " + JsonText(value) + ": " + why));
  }
  void Fail(Status status) {
    if (status_.ok() && !status.ok()) status_ = std::move(status).WithField(file_);
  }

  bool WasRead(const std::string& key) const { return seen_.count(key) != 0; }
  // Keys nobody has asked for.
  std::vector<std::string> Unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
      if (seen_.count(key) == 0) keys.push_back(key);
    }
    return keys;
  }

 private:
  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
  std::set<std::string> seen_;
  Status status_;
};

// Refuses keys that would change the computation and that nobody has asked for. Call before the dimensions
// are read: what a model is matters more than a number that it lacks.
void RefuseOtherComputations(KeyReader& in);

// Warns of keys that are not known. Call after every known key was read.
void CheckOtherKeys(KeyReader& in, std::vector<std::string>& warnings);

// `dtype`, or `torch_dtype`: bf16 where neither says.
DType ReadWeightDType(KeyReader& in, std::vector<std::string>& warnings);

// bos_token_id and eos_token_id, where they are given.
void ReadSpecialIds(KeyReader& in, ModelConfig& config);

// The experts of a layer and how many of them a token uses.
void ReadExperts(KeyReader& in, const std::string& experts, const std::string& per_token,
                 ModelConfig& config);

// hidden / heads, for files that leave head_dim out.
int32_t HeadDimFromHidden(KeyReader& in, const ModelConfig& config);

// quantization_config. Formats of weights that are not implemented are refused by name.
void ReadQuantization(KeyReader& in, ModelConfig& config);
// And `quantization` of params.json.
void ReadMistralQuantization(KeyReader& in, ModelConfig& config);
// hf_quant_config.json, in which ModelOpt says of what form the weights are.
void ReadModelOptFile(KeyReader& in, ModelConfig& config);

// rope_theta, rope_parameters and rope_scaling of config.json. REQUIRES: config.context is read.
void ReadHuggingFaceRope(KeyReader& in, const Architecture& architecture, ModelConfig& config);

// yarn and llama_4_scaling of params.json. REQUIRES: config.rope_theta is read.
void ReadMistralRopeScaling(KeyReader& outer, ModelConfig& config);

// What both formats have to satisfy once read.
Status CheckDerived(KeyReader& in, const ModelConfig& config);

}  // namespace tramontane
