#pragma once
// A test framework of one page. One executable per subject: its tests register themselves, main() is in check.cc.
//
//   TEST(a_sentence_that_is_true) { CHECK_EQ(1 + 1, 2); }
//
// A check that fails throws, which ends its test and no other. Checks belong on the test's own thread: other threads
// count what they see, and the test checks the count after joining them.

#include <cstdint>
#include <ostream>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "error.h"

namespace zarrfeed::testing {

/// What a failed check throws.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void fail(const std::string& what,
                       const std::source_location& where = std::source_location::current());

/// Adds a test to those that main() runs. Returns true, for use as an initialiser.
bool register_test(const char* name, void (*body)());

/// While it lives, failures say `what` too: the numbers of a random case.
class Context {
 public:
  explicit Context(std::string what);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

/// Text of a value for a message.
template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<int64_t>(value);
  } else if constexpr (requires { value.begin(); } && !std::is_convertible_v<T, std::string>) {
    out << '[';
    for (const auto& item : value) out << show(item) << ' ';
    out << ']';
  } else if constexpr (sizeof(T) == 1 && std::is_integral_v<T>) {
    out << static_cast<int>(value);
  } else {
    out << value;
  }
  return out.str();
}

template <typename A, typename B>
void check_eq(const A& got, const B& expected, const char* text,
              const std::source_location& where = std::source_location::current()) {
  if (!(got == expected)) fail(std::string(text) + ": got " + show(got) + ", expected " + show(expected), where);
}

/// Runs `body`, which must throw an Error of this kind whose message contains `part`.
template <typename Body>
void check_throws(const Body& body, ErrorKind kind, const std::string& part, const char* text,
                  const std::source_location& where = std::source_location::current()) {
  try {
    body();
  } catch (const Error& error) {
    check_eq(error.kind(), kind, text, where);
    const std::string message = error.what();
    if (message.find(part) == std::string::npos) {
      fail(std::string(text) + ": the message is \"" + message + "\", must contain \"" + part + "\"", where);
    }
    return;
  }
  fail(std::string(text) + ": threw nothing", where);
}

}  // namespace zarrfeed::testing

#define TEST(name)                                                                           \
  static void name();                                                                        \
  [[maybe_unused]] static const bool registered_##name =                                     \
      ::zarrfeed::testing::register_test(#name, name); /* NOLINT(bugprone-throwing-static-initialization,cert-err58-cpp) */ \
  static void name()

#define CHECK(condition)                                \
  do {                                                  \
    if (!(condition)) ::zarrfeed::testing::fail(#condition); \
  } while (false)

#define CHECK_EQ(got, expected) ::zarrfeed::testing::check_eq(got, expected, #got)

/// CHECK_THROWS(kCorrupt, "part of the message", expression)
#define CHECK_THROWS(kind, part, ...)                                                                   \
  ::zarrfeed::testing::check_throws([&] { static_cast<void>(__VA_ARGS__); }, ::zarrfeed::ErrorKind::kind, part, \
                                    #__VA_ARGS__)
