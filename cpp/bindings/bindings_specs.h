#pragma once
// What Python describes in dicts, as the engine's own types. Part of the bindings: knows Python.

#include <pybind11/pybind11.h>

#include <memory>

#include "base/error.h"
#include "engine/engine.h"
#include "spec/field_spec.h"
#include "spec/shard_spec.h"

namespace zarrfeed {

/// The class in zarrfeed.errors.
const char* error_class(ErrorKind kind);

ShardSpec parse_shard(const pybind11::dict& shard);
FieldSpec parse_field(const pybind11::dict& field);
std::unique_ptr<OwnedPlan> parse_plan(const pybind11::dict& dict);

}  // namespace zarrfeed
