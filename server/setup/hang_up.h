// SIGHUP where files can be read again: it asks for that, and stops nothing.
#pragma once

#include "kernels/core/status.h"

namespace tramontane {

// Main thread, once. Where whoever started the process had SIGHUP ignored it stays so. RESOURCE_EXHAUSTED: no
// pipe.
Status ReloadOnHangUp();

// Readable after a SIGHUP, until TakeHangUps. REQUIRES: ReloadOnHangUp.
int HangUpFile();
void TakeHangUps();

}  // namespace tramontane
