// What gRPC and protobuf would print on their own goes where our logs go, which wait for nobody.
#pragma once

namespace tramontane {

// From now on, for the process. Any thread; again does nothing.
void RouteLibraryLogs();

}  // namespace tramontane
