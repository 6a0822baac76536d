#include "models/tokenizer/tokenizer_json_vocabulary.h"

#include <set>
#include <utility>

#include "models/tokenizer/json_fields.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {
namespace {

using nlohmann::json;

constexpr int kMaxJsonDepth = 32;
constexpr int kEntryDepth = 3;  // of what lies in "model.vocab" and "model.merges"

// The parser's events. Values that are taken or not wanted are dropped at once. One thread.
class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(TokenizerJsonVocabulary* vocabulary) : vocabulary_(vocabulary) {}

  StatusOr<json> Read(std::string_view text) {
    return ParseWatched(text, status_, [this](int depth, json::parse_event_t event, json& part) {
      return Watch(depth, event, part);
    });
  }

  // REQUIRES: a file was read.
  Status ResolveMerges() {
    vocabulary_->merges.reserve(merges_.size());
    std::string missing;
    for (size_t rank = 0; rank < merges_.size(); ++rank) {
      const auto& [left, right] = merges_[rank];
      const auto merge = FindMerge(vocabulary_->ids, left, right, &missing);
      if (!merge) {
        return DataLoss(MergeName(rank) + " needs " + ShownJson(missing) + ", which is not in model.vocab");
      }
      vocabulary_->merges.push_back(*merge);
    }
    return Status::Ok();
  }

 private:
  enum class Place { kElsewhere, kVocabulary, kMerges, kUnwanted };

  // False drops the value.
  bool Watch(int depth, json::parse_event_t event, json& part) {
    using Event = json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        return WatchStart(depth, event == Event::object_start);
      case Event::key:
        return WatchKey(depth, part);
      case Event::value:
        return WatchValue(depth, part);
      case Event::object_end:
        return true;
      case Event::array_end:
        return place_ == Place::kMerges && depth == kEntryDepth ? Take(AddMerge(part)) : true;
    }
    return true;
  }

  bool WatchStart(int depth, bool is_object) {
    if (depth >= kMaxJsonDepth) {
      return Fail("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    if (static_cast<int>(keys_.size()) <= depth) keys_.resize(static_cast<size_t>(depth) + 1);
    keys_[static_cast<size_t>(depth)].clear();
    if (depth < 2) {  // elements of a list have no key: no path is mistaken for that of "model.vocab"
      names_[depth + 1].clear();
      place_ = Place::kElsewhere;
    }
    switch (place_) {
      case Place::kElsewhere:
        return CountValue();
      case Place::kUnwanted:
        return true;
      case Place::kVocabulary:
        if (depth > 2) return Fail(PieceName() + " is not an integer");
        // A list is that of a model which is refused by its name: its 100,000 pieces are not kept.
        if (!is_object) place_ = Place::kUnwanted;
        return is_object;
      case Place::kMerges:
        if (depth == 2) return is_object ? Fail("model.merges is an object, not a list") : true;
        entry_values_ = 0;
        return depth == kEntryDepth && !is_object ? true : FailMerge();
    }
    return true;
  }

  bool WatchValue(int depth, const json& part) {
    if (place_ == Place::kElsewhere) return CountValue();
    if (depth == 2) {
      const bool is_vocabulary = place_ == Place::kVocabulary;
      return Take(WrongValue(is_vocabulary ? "model.vocab" : "model.merges", part,
                             is_vocabulary ? "an object" : "a list"));
    }
    if (place_ == Place::kVocabulary) return Take(AddPiece(part));
    if (depth == kEntryDepth) return Take(AddMerge(part));
    return ++entry_values_ <= 2 ? true : FailMerge();
  }

  bool WatchKey(int depth, const json& part) {
    const std::string& key = part.get_ref<const std::string&>();
    if (place_ == Place::kVocabulary && depth == kEntryDepth) {
      piece_ = key;
      return false;  // the value comes all the same
    }
    if (depth <= 2) {
      names_[depth] = key;
      place_ = Place::kElsewhere;
      if (depth == 2 && names_[1] == "model" && key == "vocab") place_ = Place::kVocabulary;
      if (depth == 2 && names_[1] == "model" && key == "merges") place_ = Place::kMerges;
    }
    if (keys_[static_cast<size_t>(depth) - 1].insert(key).second) return true;
    return Fail("key " + ShownJson(part) + " stands twice in one object");
  }

  Status AddPiece(const json& value) {
    if (piece_.empty() || piece_.size() > TokenizerJsonFile::kMaxPieceBytes) {
      return DataLoss(PieceName() + ": the piece has " + std::to_string(piece_.size()) + " bytes, not 1 to " +
                      std::to_string(TokenizerJsonFile::kMaxPieceBytes));
    }
    if (!IsIntegerWithin(value, 0, TokenizerJsonFile::kMaxVocabulary - 1)) {
      return WrongValue(PieceName(), value,
                        "an id from 0 to " + std::to_string(TokenizerJsonFile::kMaxVocabulary - 1));
    }
    const auto id = value.get<int32_t>();
    const auto index = static_cast<size_t>(id);
    if (index >= vocabulary_->pieces.size()) vocabulary_->pieces.resize(index + 1);
    if (!vocabulary_->pieces[index].empty()) {
      return DataLoss(PieceName() + " is " + std::to_string(id) + ", which " +
                      ShownJson(vocabulary_->pieces[index]) + " is already");
    }
    if (!vocabulary_->ids.emplace(piece_, id).second) return DataLoss(PieceName() + " stands twice");
    vocabulary_->pieces[index] = piece_;
    return Status::Ok();
  }

  // "a b", or ["a", "b"].
  Status AddMerge(const json& value) {
    if (place_in_merges_ >= TokenizerJsonFile::kMaxMerges) {
      return DataLoss("model.merges has more than " + std::to_string(TokenizerJsonFile::kMaxMerges) +
                      " entries");
    }
    ++place_in_merges_;
    if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      merges_.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
      return Status::Ok();
    }
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (text.starts_with("#version")) return Status::Ok();
      if (auto pair = SplitMerge(text)) {
        merges_.push_back(*std::move(pair));
        return Status::Ok();
      }
    }
    return WrongValue(MergeName(place_in_merges_ - 1), value, "two pieces");
  }

  std::string PieceName() const { return "model.vocab[" + ShownJson(piece_) + "]"; }
  static std::string MergeName(size_t place) { return "model.merges[" + std::to_string(place) + "]"; }

  bool CountValue() {
    if (++other_values_ <= TokenizerJsonFile::kMaxOtherValues) return true;
    return Fail("more than " + std::to_string(TokenizerJsonFile::kMaxOtherValues) +
                " values beside vocabulary and merges");
  }

  bool FailMerge() { return Fail(MergeName(place_in_merges_) + " is not two pieces"); }
  // Drops the value.
  bool Take(Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Fail(std::string message) { return Take(DataLoss(std::move(message))); }

  TokenizerJsonVocabulary* vocabulary_;
  std::vector<std::pair<std::string, std::string>> merges_;
  Status status_;
  Place place_ = Place::kElsewhere;
  std::string names_[3];  // [depth] the key there, of the file and of the object under it
  std::string piece_;     // the last key in "model.vocab"
  size_t place_in_merges_ = 0;
  size_t entry_values_ = 0;  // of the merge that is open
  size_t other_values_ = 0;
  std::vector<std::set<std::string>> keys_;  // [depth] of the object that is open there
};

}  // namespace

StatusOr<json> ReadTokenizerJson(std::string_view text, TokenizerJsonVocabulary* vocabulary) {
  TokenizerJsonReader reader(vocabulary);
  TM_ASSIGN_OR_RETURN(json rest, reader.Read(text));
  TM_RETURN_IF_ERROR(reader.ResolveMerges());
  return rest;
}

}  // namespace tramontane
