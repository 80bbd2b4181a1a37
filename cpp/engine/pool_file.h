#pragma once
// The file without a name that a pool of batch memory lies in (`engine/shared_pool.h`), and operations on its pages.

#include <cstddef>
#include <cstdint>

namespace zarrfeed {

/// Makes a file without a name. Throws Error(kUnsupported) if the system has none, or limits addresses or files.
int make_file();

/// The most bytes that a pool can hold: a 512th part of the addresses of a process, which are 2^47 on x86-64 and 2^39
/// to 2^48 on aarch64, so that there is room for some hundred pools. The stack lies at their end.
uint64_t most_reserved();

/// Maps a file of a pool at its largest size; null with `errno` if the system does not.
uint8_t* map_file(int descriptor, uint64_t bytes);

/// Maps pages that are there, all at once and not one by one as they are read.
void map_pages(uint8_t* base, size_t bytes);

/// Gives pages of a shared mapping back to the system. Another process that maps them reads zeros from now on.
void remove_pages(uint8_t* base, size_t bytes);

/// Puts a private copy of a mapping in its place. In a forked child: allocates nothing but the mapping.
bool make_private(uint8_t* base, size_t bytes);

/// Maps the same file once more, only for a forked child, and without taking memory: see show_view(). Null if the
/// system does not; then a child gets copies.
uint8_t* map_view(int descriptor, uint64_t bytes);

/// Replaces a part of a shared mapping by the same part of the mapping that map_view() made. Its pages are those of the
/// file until this process writes to them. In a forked child: allocates nothing.
bool show_view(uint8_t* base, uint8_t* view, size_t bytes);

}  // namespace zarrfeed
