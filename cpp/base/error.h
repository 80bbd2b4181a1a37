#pragma once
// The one error type of the engine. Its message tells the user how to act: it names the array, the chunk and the fault.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace zarrfeed {

enum class ErrorKind {
  kConfig,       ///< an argument or a plan that cannot work
  kBudget,       ///< the memory budget is too small for the request
  kUnsupported,  ///< a valid format that this engine does not decode
  kCorrupt,      ///< stored bytes that do not decode to the bytes that the metadata promises
  kIo,           ///< the store could not be read
  kClosed,       ///< used after close()
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  /// Returns the same error with "<array> chunk <key>: " in front of the message.
  [[nodiscard]] Error at(const std::string& array, const std::string& key) const {
    Error error = in(array + " chunk " + key);
    error.where_bytes_ = std::string_view(error.what()).size() - message().size();
    return error;
  }

  /// Returns the same error with "<where>: " in front of the message.
  [[nodiscard]] Error in(const std::string& where) const { return Error(kind_, where + ": " + what(), errno_); }

  /// The message without the array and the chunk that at() put in front of it: for callers that name the chunk
  /// themselves.
  [[nodiscard]] std::string_view message() const { return std::string_view(what()).substr(where_bytes_); }

  /// An I/O error with its errno, so that Python can raise an OSError that carries it.
  static Error io(const std::string& message, int errno_value) { return Error(ErrorKind::kIo, message, errno_value); }

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] int errno_value() const { return errno_; }

 private:
  Error(ErrorKind kind, const std::string& message, int errno_value)
      : std::runtime_error(message), kind_(kind), errno_(errno_value) {}

  ErrorKind kind_;
  int errno_ = 0;
  size_t where_bytes_ = 0;  ///< length of the array and the chunk in front of the message
};

[[noreturn]] inline void throw_corrupt(const std::string& message) {
  throw Error(ErrorKind::kCorrupt, message);
}

}  // namespace zarrfeed
