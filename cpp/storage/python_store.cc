#include "storage/python_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace zarrfeed {

PythonStore::PythonStore() {
  int ends[2];
  if (pipe(ends) != 0) {
    const int code = errno;
    throw Error::io(std::string("cannot make a pipe: ") + std::strerror(code), code);
  }
  read_end_ = ends[0];
  write_end_ = ends[1];
  for (const int end : ends) {
    fcntl(end, F_SETFD, FD_CLOEXEC);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
}

PythonStore::~PythonStore() {
  ::close(write_end_);
  ::close(read_end_);
}

void PythonStore::post(std::vector<FetchRequest> requests) {
  if (requests.empty()) return;
  const std::lock_guard lock(mutex_);
  std::move(requests.begin(), requests.end(), std::back_inserter(requests_));
  signal();
}

void PythonStore::finish(uint64_t request_id) {
  const std::lock_guard lock(mutex_);
  finished_.push_back(request_id);
  signal();
}

void PythonStore::take(std::vector<FetchRequest>& requests, std::vector<uint64_t>& finished) {
  requests.clear();
  finished.clear();
  const std::lock_guard lock(mutex_);
  drain();
  requests.swap(requests_);
  finished.swap(finished_);
}

void PythonStore::clear() {
  const std::lock_guard lock(mutex_);
  drain();
  requests_.clear();
  finished_.clear();
}

void PythonStore::signal() {
  if (signalled_) return;
  const char byte = 0;
  ssize_t written = -1;
  do {
    written = ::write(write_end_, &byte, 1);
  } while (written < 0 && errno == EINTR);
  signalled_ = true;  // the pipe has room for a byte: there is never more than one in it
}

void PythonStore::drain() {
  if (!signalled_) return;
  char byte = 0;
  ssize_t got = -1;
  do {
    got = ::read(read_end_, &byte, 1);
  } while (got < 0 && errno == EINTR);
  signalled_ = false;
}

}  // namespace zarrfeed
