// The line that the log has for an answer over HTTP. Any thread; never waits.
#pragma once

#include "server/http/http.h"

namespace tramontane {

// As GatewayOptions::on_answer. Refusals and failures are news; what went well is for those who look closer.
void LogAnswer(const HttpRequest& request, int status);

}  // namespace tramontane
