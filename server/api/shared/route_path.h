// Paths of requests, as routes spell them. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace tramontane {

// Whether a letter or digit is percent-escaped: it needs no escape, so who sends one means that somebody
// shall not recognise it.
bool EscapesALetter(std::string_view path);

// "/v1//chat/completions/" -> "/chat/completions"
std::string ApiPath(std::string_view path);

// What "*" stands for in the path of a request that was found, percent-decoded.
std::string WildcardOf(std::string_view route_path, std::string_view path);

// What a target's query says of `name`, as forms are encoded; "" where it says nothing.
std::string QueryValueOf(std::string_view target, std::string_view name);

}  // namespace tramontane
