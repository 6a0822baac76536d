// KvOwner: who goes on, request by request, from the pages that the one before has left (KvStore::LeaveIdle):
// a session. It says nothing; one is told from another by where it lies, and those who share it are who may
// come back for the pages. Any thread.
#pragma once

namespace tramontane {

struct KvOwner {};

}  // namespace tramontane
