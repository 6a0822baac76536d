// x-tramontane-unenforced: the parts of tools' schemas that the answer is not held to, in the request's
// words. Pure functions; any thread.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <string>

#include "server/api/shared/generation_request.h"
#include "server/http/http.h"

namespace tramontane {

// Of Started.unenforced; at most 1 KiB, and then a count. Empty: there is nothing to say.
HttpHeaders UnenforcedHeaders(const google::protobuf::RepeatedPtrField<std::string>& parts,
                              const FieldNames& names);

}  // namespace tramontane
