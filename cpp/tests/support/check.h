#pragma once
// A test framework of one page. A source `subject_test.cc` has the tests of one subject. They register themselves in
// their program, and main.cc runs those of a subject. Each source has a namespace of its own, so that sources can be
// compiled together.
//
//   TEST(a_sentence_that_is_true) { CHECK_EQ(1 + 1, 2); }
//
// A check that fails throws, which ends its test and no other. Checks belong on the test's own thread: other threads
// count what they see, and the test checks the count after joining them.

#include <cstdint>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace zarrfeed::testing {

/// What a failed check throws.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A line of a test.
struct Where {
  const char* file;
  int line;
};

[[noreturn]] void fail(Where where, const std::string& what);
[[noreturn]] void fail(Where where, const char* what);
/// Fails with an expression's text, its value and the expected one. Code that fails is compiled once, not in each check.
[[noreturn]] void fail_eq(Where where, const char* text, const std::string& got, const std::string& expected);

/// One test of this program; made by TEST, in the order of the source.
class Test {
 public:
  Test(const char* file, const char* name, void (*body)()) noexcept;

  const char* const file;
  const char* const name;
  void (*const body)();
  const Test* next = nullptr;
};

/// Runs the tests of `subject`, or of all subjects if it is empty, whose name contains `part`. Returns the exit status,
/// which is not 0 if there is no such test.
int run_tests(std::string_view subject, std::string_view part);

/// How many times the usual number of rounds to run: what the environment says in ZARRFEED_STRESS, or once.
int64_t stress();

/// How many random cases to try: a third of `whole`, or `whole` for each of stress() where the environment sets that.
int64_t draws(int64_t whole);

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
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<int64_t>(value));
  } else if constexpr (requires { value.begin(); } && !std::is_convertible_v<T, std::string>) {
    std::string out = "[";
    for (const auto& item : value) (out += show(item)) += ' ';
    return out += ']';
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    std::ostringstream out;
    out << value;
    return out.str();
  }
}

template <typename A, typename B>
void check_eq(Where where, const A& got, const B& expected, const char* text) {
  if (!(got == expected)) fail_eq(where, text, show(got), show(expected));
}

/// Calls `call(body)`, which must throw an Error of this kind whose message contains `part`.
void check_throws(Where where, void (*call)(const void*), const void* body, ErrorKind kind, std::string_view part,
                  const char* text);

template <typename Body>
void check_throws(Where where, const Body& body, ErrorKind kind, std::string_view part, const char* text) {
  check_throws(where, [](const void* of) { (*static_cast<const Body*>(of))(); }, &body, kind, part, text);
}

}  // namespace zarrfeed::testing

#define TEST(name)                                                     \
  static void name();                                                  \
  static ::zarrfeed::testing::Test test_##name{__FILE__, #name, name}; \
  static void name()

#define ZARRFEED_HERE          \
  ::zarrfeed::testing::Where { \
    __FILE__, __LINE__         \
  }

#define FAIL(what) ::zarrfeed::testing::fail(ZARRFEED_HERE, what)

#define CHECK(condition)                \
  do {                                  \
    if (!(condition)) FAIL(#condition); \
  } while (false)

#define CHECK_EQ(got, expected) ::zarrfeed::testing::check_eq(ZARRFEED_HERE, got, expected, #got)

/// CHECK_THROWS(kCorrupt, "part of the message", expression)
#define CHECK_THROWS(kind, part, ...) \
  ::zarrfeed::testing::check_throws(  \
      ZARRFEED_HERE, [&] { static_cast<void>(__VA_ARGS__); }, ::zarrfeed::ErrorKind::kind, part, #__VA_ARGS__)
