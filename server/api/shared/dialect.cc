#include "server/api/shared/dialect.h"

#include "server/api/shared/answer_record.h"
#include "server/http/refusal.h"

namespace tramontane {

HttpResponse ErrorResponse(const Dialect& dialect, const ApiError& error, const HttpRequest& request) {
  if (const auto record = RecordOf(request)) record->NoteError(error);
  HttpResponse response;
  response.status = error.status;
  AddRetryAfter(error.retry_after_ms, &response.headers);
  if (error.status == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  if (error.retry_is_vain) response.headers.emplace_back("x-should-retry", "false");
  response.body = dialect.error_body(error, request);
  response.error_code = error.code;
  return response;
}

}  // namespace tramontane
