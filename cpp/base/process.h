#pragma once
// Which process this is.

#include <unistd.h>

namespace zarrfeed {

/// getpid(), without a system call each time. Of a process that clone() made, and not fork(), it does not hear.
pid_t process_id();

}  // namespace zarrfeed
