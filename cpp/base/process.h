#pragma once
// The identity of this process, and a check that another one is still there.

#include <unistd.h>

#include <cstdint>

namespace zarrfeed {

/// getpid(), without a system call each time. A process that clone() made, and not fork(), still gets the parent's id.
pid_t process_id();

/// The start time of a process, in ticks since the machine started: with its id it names a process, since the id alone
/// is given to another process later. 0 if there is no such process, or if the system does not say.
uint64_t process_start(pid_t process);

/// True if the process that had this id, and began then, still has it. Without a start on either side, the id decides.
bool is_running(pid_t process, uint64_t start);

}  // namespace zarrfeed
