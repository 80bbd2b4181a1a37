#include "base/process.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

namespace zarrfeed {
namespace {

std::atomic<pid_t> current{0};

}  // namespace

pid_t process_id() {
  static const bool is_watched = [] {
    current = getpid();
    return pthread_atfork(nullptr, nullptr, [] { current = getpid(); }) == 0;
  }();
  return is_watched ? current.load(std::memory_order_relaxed) : getpid();
}

uint64_t process_start(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the name of a program may hold blanks and parentheses
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;  // proc(5): the name is field 2, the start is field 22
  uint64_t start = 0;
  fields >> start;
  return start;
}

bool is_running(pid_t process, uint64_t start) {
  if (kill(process, 0) != 0 && errno == ESRCH) return false;
  const uint64_t now = process_start(process);
  return start == 0 || now == 0 || now == start;
}

}  // namespace zarrfeed
