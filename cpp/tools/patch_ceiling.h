#pragma once
// The best that this machine could do with the patches of one array: a bare loop that decodes each chunk once and cuts
// all patches out of it, on all cores, without a pipeline and without memory for what patches share.

#include <cstddef>
#include <cstdint>
#include <span>

#include "spec/field_spec.h"
#include "spec/patch_spec.h"
#include "tools/ceiling.h"

namespace zarrfeed {

struct PatchCeilingOptions {
  size_t num_threads = 1;
  size_t window_patches = 64;  ///< each thread cuts into memory for so many patches, which it uses again
  uint8_t* out = nullptr;      ///< where all patches are kept, one after another, in place of that memory
};

/// Reads and decodes every chunk that any of the patches needs once, in random order, and copies what each patch has of
/// it. Throws Error(kConfig) if samples of the field are not patches, or if it lacks a volume that a patch begins in.
CeilingResult measure_patch_ceiling(const FieldSpec& field, std::span<const PatchStart> patches,
                                    const PatchCeilingOptions& options);

}  // namespace zarrfeed
