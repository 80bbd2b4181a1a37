#pragma once
// A chunk that a store hands on as it is stored, while the engine expects a Blosc chunk in its place.

#include "base/bytes.h"

namespace zarrfeed {

class DecodeScratch;

/// The decoder of one chunk, which a thread calls that may take time: first decode(), then, once nobody waits for the
/// chunk any more, keep(). One thread uses it at a time.
class UndecodedChunk {
 public:
  UndecodedChunk() = default;
  virtual ~UndecodedChunk() = default;
  UndecodedChunk(const UndecodedChunk&) = delete;
  UndecodedChunk& operator=(const UndecodedChunk&) = delete;

  /// Decodes the stored bytes, and returns them as a plain Blosc chunk, valid as long as this. Throws Error(kCorrupt).
  virtual Bytes decode(Bytes stored, DecodeScratch& scratch) = 0;
  /// Keeps the decoded chunk for later reads, if there is one.
  virtual void keep() = 0;
};

}  // namespace zarrfeed
