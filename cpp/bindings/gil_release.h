#pragma once
// The lock of the Python interpreter, released for a while. Part of the bindings.

#include <Python.h>
#include <unistd.h>

namespace zarrfeed {

/// Releases the GIL, and takes it again.
///
/// After its end, the interpreter ends a daemon thread that takes the GIL, by unwinding its stack (before Python 3.14):
/// from a destructor, that would be std::terminate. Such a thread sleeps here for as long as the process still lives.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace zarrfeed
