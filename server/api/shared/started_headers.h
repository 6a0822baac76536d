// Headers of an answer that its Started tells: which parts of tools' schemas the answer is not held to, and
// which fields changed nothing, in the request's words. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "server/api/shared/generation_request.h"
#include "server/http/http.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline constexpr char kIgnoredHeader[] = "x-tramontane-ignored";

// x-tramontane-unenforced: at most 1 KiB, and then a count. x-tramontane-ignored goes on with what `headers`
// has of it. A header that has nothing to say is not there.
void AddStartedHeaders(const v1::Started& started, const FieldNames& names, HttpHeaders* headers);

// `text`, of which a client may have sent parts, as a header's value may have it in a list.
std::string HeaderText(std::string_view text, bool blanks);

}  // namespace tramontane
