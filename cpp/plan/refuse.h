#pragma once

#include <string>

#include "base/error.h"

namespace zarrfeed {

/// Throw the error of a plan that contradicts itself.
[[noreturn]] inline void refuse_plan(const std::string& what) {
  throw Error(ErrorKind::kConfig, "plan: " + what);
}

}  // namespace zarrfeed
