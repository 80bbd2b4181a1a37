#pragma once
// A test in a process of its own: for what may hang, or must not happen to this one.

#include <sys/wait.h>
#include <unistd.h>

namespace zarrfeed::testing {

/// Runs `body` in a forked child. Returns its result, which must be at least 0; -1 if it crashed or took 20 seconds.
template <typename Body>
int result_of_child(const Body& body) {
  constexpr unsigned kTimeoutSeconds = 20;
  constexpr int kThrew = 250;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kTimeoutSeconds);
    int result = kThrew;
    try {
      result = body();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the result says it
    }
    _exit(result);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace zarrfeed::testing
