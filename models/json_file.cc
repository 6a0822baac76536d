#include "models/json_file.h"

#include <cstddef>
#include <unordered_set>
#include <vector>

namespace tramontane {

using nlohmann::json;

namespace {

// Looks through a text before its tree is built. The parser can be watched while it builds one too, but then
// goes through all members of an object after each that is an object: quadratic in the tensors of a header.
class Watch final : public nlohmann::json_sax<json> {
 public:
  bool too_deep() const { return too_deep_; }
  const std::string& twice() const { return twice_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) twice_ = key;
    return true;
  }
  // Whoever builds the tree says what is wrong.
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool Open() {
    too_deep_ = keys_.size() >= static_cast<size_t>(kMaxJsonFileDepth);
    keys_.emplace_back();
    return !too_deep_;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> keys_;  // of each object and array that is open
  bool too_deep_ = false;
  std::string twice_;
};

}  // namespace

StatusOr<json> ParseJsonObject(std::string_view text, const std::string& file) {
  Watch watch;
  json::sax_parse(text.begin(), text.end(), &watch);
  if (watch.too_deep())
    return InvalidArgument(file + ": nested deeper than " + std::to_string(kMaxJsonFileDepth) + " levels");
  json value;
  try {
    value = json::parse(text.begin(), text.end());
  } catch (const json::parse_error& error) {
    return InvalidArgument(file + ": not valid JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    return InvalidArgument(file + ": not valid JSON: a number is out of range");
  }
  if (!value.is_object()) return InvalidArgument(file + ": not a JSON object");
  if (!watch.twice().empty())
    return InvalidArgument(file + ": key " + JsonText(watch.twice()) + " stands twice");
  return value;
}

std::string JsonText(const json& value) {
  constexpr size_t kLongest = 100;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace tramontane
