#include "tests/support/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

namespace zarrfeed::testing {
namespace {

// Set before main() by constructors that must not need another one to have run: constant initialisation, no allocation.
constinit const Test* first_test = nullptr;
constinit Test* last_test = nullptr;

std::vector<std::string>& contexts() {
  static std::vector<std::string> all;
  return all;
}

bool passes(const Test& test) {
  try {
    test.body();
    return true;
  } catch (const std::exception& error) {
    static_cast<void>(std::fprintf(stderr, "FAILED %s\n  %s\n", test.name, error.what()));
  }
  return false;
}

}  // namespace

void fail(Where where, const std::string& what) {
  std::string message = std::string(where.file) + ":" + std::to_string(where.line) + ": " + what;
  for (const std::string& context : contexts()) message += "\n  with " + context;
  throw CheckFailed(message);
}

void fail(Where where, const char* what) {
  fail(where, std::string(what));
}

void fail_eq(Where where, const char* text, const std::string& got, const std::string& expected) {
  fail(where, std::string(text) + ": got " + got + ", expected " + expected);
}

void check_throws(Where where, void (*call)(const void*), const void* body, ErrorKind kind, std::string_view part,
                  const char* text) {
  try {
    call(body);
  } catch (const Error& error) {
    check_eq(where, error.kind(), kind, text);
    const std::string message = error.what();
    if (message.find(part) == std::string::npos) {
      fail(where,
           std::string(text) + ": the message is \"" + message + "\", must contain \"" + std::string(part) + "\"");
    }
    return;
  }
  fail(where, std::string(text) + ": threw nothing");
}

Test::Test(const char* test_file, const char* test_name, void (*test_body)()) noexcept
    : file(test_file), name(test_name), body(test_body) {
  (last_test == nullptr ? first_test : last_test->next) = this;
  last_test = this;
}

int64_t stress() {
  const char* const value = std::getenv("ZARRFEED_STRESS");
  return value == nullptr ? 1 : std::max<int64_t>(1, std::strtoll(value, nullptr, 10));
}

int64_t draws(int64_t whole) {
  return std::getenv("ZARRFEED_STRESS") == nullptr ? (whole + 2) / 3 : whole * stress();
}

Context::Context(std::string what) {
  contexts().push_back(std::move(what));
}

Context::~Context() {
  contexts().pop_back();
}

int run_tests(std::string_view subject, std::string_view part) {
  const std::string source = "/" + std::string(subject) + "_test.cc";
  int run = 0;
  int failed = 0;
  for (const Test* test = first_test; test != nullptr; test = test->next) {
    if (!subject.empty() && !std::string_view(test->file).ends_with(source)) continue;
    if (std::string_view(test->name).find(part) == std::string_view::npos) continue;
    ++run;
    if (!passes(*test)) ++failed;
  }
  static_cast<void>(std::printf("%d tests, %d failed\n", run, failed));
  return failed == 0 && run > 0 ? 0 : 1;
}

}  // namespace zarrfeed::testing
