#include "server/call/prompt_text.h"

#include <string_view>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

// A text that takes no more than there is room for.
class Beginning {
 public:
  explicit Beginning(size_t most_bytes) : most_bytes_(most_bytes) {}

  bool is_full() const { return text_.size() >= most_bytes_; }
  void Add(std::string_view text) { text_ += text.substr(0, most_bytes_ - text_.size()); }
  std::string Take() {
    if (is_full()) text_.resize(text_.size() - TruncatedUtf8Bytes(text_));
    return std::move(text_);
  }

 private:
  const size_t most_bytes_;
  std::string text_;
};

void AddIds(const v1::TokenIds& ids, Beginning* out) {
  out->Add("[");
  for (int i = 0; i < ids.ids_size() && !out->is_full(); ++i) {
    if (i > 0) out->Add(",");
    out->Add(std::to_string(ids.ids(i)));
  }
  out->Add("]");
}

void AddChat(const v1::Chat& chat, Beginning* out) {
  for (const v1::ChatMessage& message : chat.messages()) {
    if (out->is_full()) return;
    std::string_view role = v1::Role_Name(message.role());
    role.remove_prefix(std::min(role.size(), std::string_view("ROLE_").size()));
    out->Add(role);
    out->Add(": ");
    out->Add(message.content());
    for (const v1::ContentPart& part : message.parts()) out->Add(part.text());
    out->Add("\n");
  }
}

template <typename Request>
std::string TextOf(const Request& request, size_t most_bytes) {
  Beginning out(most_bytes);
  if (request.has_text()) out.Add(request.text());
  if (request.has_token_ids()) AddIds(request.token_ids(), &out);
  if (request.has_chat()) AddChat(request.chat(), &out);
  return out.Take();
}

}  // namespace

std::string PromptText(const v1::GenerateRequest& request, size_t most_bytes) {
  return TextOf(request, most_bytes);
}

std::string PromptText(const v1::ScoreCandidatesRequest& request, size_t most_bytes) {
  return TextOf(request, most_bytes);
}

}  // namespace tramontane
