#include "models/tokenizer/sentencepiece_model.h"

#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <unordered_set>
#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

// The file is one protobuf message. Of its fields, these matter here:
//
//   ModelProto      1 pieces (repeated)   2 trainer_spec   3 normalizer_spec   5 denormalizer_spec
//   SentencePiece   1 piece   2 score (float)   3 type
//   TrainerSpec     3 model_type   24 treat_whitespace_as_suffix   35 byte_fallback   44 unk_surface
//                   46 bos_piece   47 eos_piece
//   NormalizerSpec  1 name   2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces
//                   5 escape_whitespaces
constexpr uint64_t kUnigram = 1;  // model_type where the file does not say
constexpr uint64_t kBpe = 2;

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  size_t offset = 0;         // of its tag, in the file
  uint64_t value = 0;        // kVarint, kFixed32, kFixed64
  std::string_view bytes{};  // kBytes
};

// Walks the fields of one message. `file` is the whole file, so that offsets are the file's.
class Message {
 public:
  Message(std::string_view file, std::string_view body, std::string_view name)
      : file_(file),
        name_(name),
        at_(static_cast<size_t>(body.data() - file.data())),
        end_(at_ + body.size()) {}

  // The next field; none at the end of the message.
  StatusOr<std::optional<Field>> Next();

  // The body of a field that should be bytes, or the value of one that should be a number.
  StatusOr<std::string_view> Bytes(const Field& field) const;
  StatusOr<uint64_t> Varint(const Field& field) const;
  StatusOr<float> Float(const Field& field) const;
  StatusOr<std::string> Utf8(const Field& field) const;

  Status Fault(size_t offset, const std::string& what) const {
    return DataLoss(std::string(name_) + ": byte " + std::to_string(offset) + ": " + what);
  }
  Status Unsupported(const std::string& what) const {
    return Unimplemented(std::string(name_) + ": " + what + " is not supported");
  }

 private:
  StatusOr<uint64_t> ReadVarint();
  StatusOr<uint64_t> ReadFixed(size_t bytes);
  Status WrongType(const Field& field) const {
    return Fault(field.offset, "field " + std::to_string(field.number) + " has wire type " +
                                   std::to_string(static_cast<int>(field.type)));
  }

  std::string_view file_;
  std::string_view name_;
  size_t at_;
  size_t end_;
};

StatusOr<uint64_t> Message::ReadVarint() {
  const size_t start = at_;
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ == end_) return Fault(start, "the number is cut off");
    const auto byte = static_cast<uint8_t>(file_[at_++]);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return Fault(start, "the number has more than 64 bits");
}

StatusOr<uint64_t> Message::ReadFixed(size_t bytes) {
  if (end_ - at_ < bytes) return Fault(at_, "the number is cut off");
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(file_[at_ + i])} << (8 * i);
  at_ += bytes;
  return value;
}

StatusOr<std::optional<Field>> Message::Next() {
  if (at_ == end_) return std::optional<Field>();
  Field field;
  field.offset = at_;
  TM_ASSIGN_OR_RETURN(const uint64_t tag, ReadVarint());
  const uint64_t number = tag >> 3;
  if (number == 0 || number >= (1u << 29)) return Fault(field.offset, "not a field tag");
  field.number = static_cast<uint32_t>(number);
  field.type = static_cast<WireType>(tag & 7);
  switch (field.type) {
    case WireType::kVarint: {
      TM_ASSIGN_OR_RETURN(field.value, ReadVarint());
      return std::optional(field);
    }
    case WireType::kFixed64: {
      TM_ASSIGN_OR_RETURN(field.value, ReadFixed(8));
      return std::optional(field);
    }
    case WireType::kFixed32: {
      TM_ASSIGN_OR_RETURN(field.value, ReadFixed(4));
      return std::optional(field);
    }
    case WireType::kBytes: {
      TM_ASSIGN_OR_RETURN(const uint64_t size, ReadVarint());
      if (size > end_ - at_) {
        return Fault(field.offset, "field " + std::to_string(field.number) + " has " + std::to_string(size) +
                                       " bytes, " + std::to_string(end_ - at_) + " are left");
      }
      field.bytes = file_.substr(at_, size);
      at_ += size;
      return std::optional(field);
    }
  }
  return WrongType(field);
}

StatusOr<std::string_view> Message::Bytes(const Field& field) const {
  if (field.type != WireType::kBytes) return WrongType(field);
  return field.bytes;
}

StatusOr<uint64_t> Message::Varint(const Field& field) const {
  if (field.type != WireType::kVarint) return WrongType(field);
  return field.value;
}

StatusOr<float> Message::Float(const Field& field) const {
  if (field.type != WireType::kFixed32) return WrongType(field);
  return std::bit_cast<float>(static_cast<uint32_t>(field.value));
}

StatusOr<std::string> Message::Utf8(const Field& field) const {
  TM_ASSIGN_OR_RETURN(const std::string_view bytes, Bytes(field));
  if (FirstInvalidUtf8(bytes)) return Fault(field.offset, "text that is not UTF-8");
  return std::string(bytes);
}

StatusOr<SentencePieceModel::Piece> ParsePiece(std::string_view file, size_t offset, std::string_view body,
                                               std::string_view name) {
  SentencePieceModel::Piece piece;
  Message message(file, body, name);
  while (true) {
    TM_ASSIGN_OR_RETURN(const std::optional<Field> field, message.Next());
    if (!field) break;
    if (field->number == 1) {
      TM_ASSIGN_OR_RETURN(piece.text, message.Utf8(*field));
    } else if (field->number == 2) {
      TM_ASSIGN_OR_RETURN(piece.score, message.Float(*field));
    } else if (field->number == 3) {
      TM_ASSIGN_OR_RETURN(const uint64_t type, message.Varint(*field));
      if (type < 1 || type > 6) {
        return message.Fault(field->offset, "piece type " + std::to_string(type));
      }
      piece.type = static_cast<SentencePieceModel::Type>(type);
    }
  }
  if (piece.text.empty()) return message.Fault(offset, "a piece without text");
  if (piece.text.size() > SentencePieceModel::kMaxPieceBytes) {
    return message.Fault(offset, "a piece of " + std::to_string(piece.text.size()) + " bytes, the limit is " +
                                     std::to_string(SentencePieceModel::kMaxPieceBytes));
  }
  if (!std::isfinite(piece.score)) return message.Fault(offset, "a score that is not finite");
  return piece;
}

Status ParseTrainer(Message message, SentencePieceModel* model) {
  uint64_t model_type = kUnigram;
  while (true) {
    TM_ASSIGN_OR_RETURN(const std::optional<Field> field, message.Next());
    if (!field) break;
    switch (field->number) {
      case 3: {
        TM_ASSIGN_OR_RETURN(model_type, message.Varint(*field));
        break;
      }
      case 24: {
        TM_ASSIGN_OR_RETURN(const uint64_t as_suffix, message.Varint(*field));
        if (as_suffix != 0) return message.Unsupported("treat_whitespace_as_suffix");
        break;
      }
      case 35: {
        TM_ASSIGN_OR_RETURN(const uint64_t byte_fallback, message.Varint(*field));
        model->byte_fallback = byte_fallback != 0;
        break;
      }
      case 44: {
        TM_ASSIGN_OR_RETURN(model->unk_surface, message.Utf8(*field));
        break;
      }
      case 46: {
        TM_ASSIGN_OR_RETURN(model->bos_piece, message.Utf8(*field));
        break;
      }
      case 47: {
        TM_ASSIGN_OR_RETURN(model->eos_piece, message.Utf8(*field));
        break;
      }
      default:
        break;
    }
  }
  if (model_type != kBpe) {
    static constexpr std::array<const char*, 5> kNames = {"?", "unigram", "bpe", "word", "char"};
    return message.Unsupported(std::string("model_type ") +
                               (model_type < kNames.size() ? kNames[model_type] : "?"));
  }
  return Status::Ok();
}

Status ParseNormalizer(Message message, SentencePieceModel* model) {
  std::string normalizer = "unnamed";
  std::optional<Field> charsmap;
  while (true) {
    TM_ASSIGN_OR_RETURN(const std::optional<Field> field, message.Next());
    if (!field) break;
    switch (field->number) {
      case 1: {
        TM_ASSIGN_OR_RETURN(normalizer, message.Utf8(*field));
        break;
      }
      case 2: {
        charsmap = *field;
        break;
      }
      case 3: {
        TM_ASSIGN_OR_RETURN(const uint64_t add_dummy_prefix, message.Varint(*field));
        model->add_dummy_prefix = add_dummy_prefix != 0;
        break;
      }
      case 4: {
        TM_ASSIGN_OR_RETURN(const uint64_t remove, message.Varint(*field));
        model->remove_extra_whitespaces = remove != 0;
        break;
      }
      case 5: {
        TM_ASSIGN_OR_RETURN(const uint64_t escape, message.Varint(*field));
        if (escape == 0) return message.Unsupported("escape_whitespaces = false");
        break;
      }
      default:
        break;
    }
  }
  if (charsmap) {
    TM_ASSIGN_OR_RETURN(const std::string_view map, message.Bytes(*charsmap));
    if (!map.empty()) return message.Unsupported("normalizer '" + normalizer + "'");
  }
  return Status::Ok();
}

Status ParseDenormalizer(Message message) {
  while (true) {
    TM_ASSIGN_OR_RETURN(const std::optional<Field> field, message.Next());
    if (!field) return Status::Ok();
    if (field->number != 2) continue;
    TM_ASSIGN_OR_RETURN(const std::string_view map, message.Bytes(*field));
    if (!map.empty()) return message.Unsupported("a denormalizer");
  }
}

// Pieces in the file's order, and what only shows once they are all there.
class PieceReader {
 public:
  PieceReader(std::string_view file, std::string_view name) : file_(file), name_(name) {}

  Status Add(const Message& model_message, const Field& field,
             std::vector<SentencePieceModel::Piece>* pieces);
  Status Finish(const Message& model_message, bool byte_fallback) const;

 private:
  std::string_view file_;
  std::string_view name_;
  std::unordered_set<std::string> seen_;
  int unknown_pieces_ = 0;
  std::array<bool, 256> has_byte_{};
  std::optional<size_t> first_byte_offset_;
};

Status PieceReader::Add(const Message& model_message, const Field& field,
                        std::vector<SentencePieceModel::Piece>* pieces) {
  using Type = SentencePieceModel::Type;
  if (pieces->size() == SentencePieceModel::kMaxPieces) {
    return model_message.Fault(field.offset,
                               "more than " + std::to_string(SentencePieceModel::kMaxPieces) + " pieces");
  }
  TM_ASSIGN_OR_RETURN(const std::string_view body, model_message.Bytes(field));
  TM_ASSIGN_OR_RETURN(SentencePieceModel::Piece piece, ParsePiece(file_, field.offset, body, name_));
  const std::string label = "piece " + std::to_string(pieces->size()) + " '" + piece.text + "'";
  if (!seen_.insert(piece.text).second) return model_message.Fault(field.offset, label + " is there twice");
  switch (piece.type) {
    case Type::kUnknown:
      ++unknown_pieces_;
      break;
    case Type::kByte: {
      const int byte = ParseBytePiece(piece.text);
      if (byte < 0) return model_message.Fault(field.offset, label + " is a byte piece but spells no byte");
      has_byte_[static_cast<size_t>(byte)] = true;
      if (!first_byte_offset_) first_byte_offset_ = field.offset;
      break;
    }
    case Type::kUnused:
      return model_message.Unsupported(label + " of type UNUSED");
    case Type::kNormal:
    case Type::kUserDefined:
      // Text holds U+2581 where a space was, so such a piece would never match it.
      if (piece.text.find(' ') != std::string::npos)
        return model_message.Unsupported(label + " with a plain space");
      break;
    case Type::kControl:
      break;
  }
  pieces->push_back(std::move(piece));
  return Status::Ok();
}

Status PieceReader::Finish(const Message& model_message, bool byte_fallback) const {
  if (unknown_pieces_ != 1) {
    return model_message.Fault(file_.size(),
                               std::to_string(unknown_pieces_) + " unknown pieces instead of one");
  }
  if (!byte_fallback) {
    if (first_byte_offset_) {
      return model_message.Fault(*first_byte_offset_, "a byte piece although byte_fallback is off");
    }
    return Status::Ok();
  }
  for (size_t byte = 0; byte < has_byte_.size(); ++byte) {
    if (!has_byte_[byte]) {
      return model_message.Fault(file_.size(),
                                 "byte_fallback is on but no piece spells byte " + std::to_string(byte));
    }
  }
  return Status::Ok();
}

}  // namespace

int ParseBytePiece(std::string_view piece) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  const int high = digit(piece[3]);
  const int low = digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

StatusOr<SentencePieceModel> ParseSentencePieceModel(std::string_view bytes, std::string_view name) {
  SentencePieceModel model;
  Message message(bytes, bytes, name);
  if (bytes.size() > SentencePieceModel::kMaxFileBytes) {
    return message.Fault(bytes.size(), "the limit is " + std::to_string(SentencePieceModel::kMaxFileBytes));
  }
  PieceReader pieces(bytes, name);
  bool has_trainer = false;
  while (true) {
    TM_ASSIGN_OR_RETURN(const std::optional<Field> field, message.Next());
    if (!field) break;
    if (field->number == 1) {
      TM_RETURN_IF_ERROR(pieces.Add(message, *field, &model.pieces));
      continue;
    }
    if (field->number != 2 && field->number != 3 && field->number != 5) continue;
    TM_ASSIGN_OR_RETURN(const std::string_view body, message.Bytes(*field));
    const Message spec(bytes, body, name);
    if (field->number == 2) {
      has_trainer = true;
      TM_RETURN_IF_ERROR(ParseTrainer(spec, &model));
    } else if (field->number == 3) {
      TM_RETURN_IF_ERROR(ParseNormalizer(spec, &model));
    } else {
      TM_RETURN_IF_ERROR(ParseDenormalizer(spec));
    }
  }
  if (!has_trainer) return message.Fault(bytes.size(), "the file ends without a trainer_spec (field 2)");
  TM_RETURN_IF_ERROR(pieces.Finish(message, model.byte_fallback));
  return model;
}

}  // namespace tramontane
