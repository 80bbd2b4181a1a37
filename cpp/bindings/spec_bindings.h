#pragma once
// The descriptions that Python makes for the engine, bound as classes. Part of the bindings: knows Python.

#include <pybind11/pybind11.h>

#include <memory>

#include "base/error.h"
#include "engine/engine.h"

namespace zarrfeed {

/// The class in zarrfeed.base.errors.
const char* error_class(ErrorKind kind);

/// A plan as Python holds it. An engine that reads it shares it: nothing changes it after it was made.
struct PythonPlan {
  std::shared_ptr<const OwnedPlan> owned;
};

/// Binds CodecSpec.
void bind_codecs(pybind11::module_& m);
/// Binds ShardSpec, ArraySpec, ConversionSpec and FieldSpec. After bind_codecs(), whose CodecSpec arrays have.
void bind_specs(pybind11::module_& m);
/// Binds Converter. After bind_specs(), whose ConversionSpec it takes.
void bind_converter(pybind11::module_& m);
/// Binds CacheDirectory, ObjectVersions and CachedArray.
void bind_cache(pybind11::module_& m);
/// Binds BlockTable and BlockOrder.
void bind_blocks(pybind11::module_& m);
/// Binds EpochPlan and CarryPlan. After bind_blocks(), whose classes plans name.
void bind_plans(pybind11::module_& m);
/// Binds SharedPool.
void bind_shared_pool(pybind11::module_& m);

}  // namespace zarrfeed
