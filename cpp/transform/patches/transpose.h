#pragma once
// Matrices of items -> their transposes. Pure: memory in, memory out.

#include <cstddef>
#include <cstdint>

namespace zarrfeed {

/// True if copy_transposed() takes items of this width: 1, 2, 4 or 8 bytes.
bool can_transpose(size_t item_bytes);

/// Copies a matrix in tiles, so that each cache line is read, and written, for several items at a time. Row j of `dest`
/// begins at dest + j * dest_stride, and has `rows` consecutive items: its item i is item j of row i of the source, which
/// begins at source + i * source_stride, and has `columns` consecutive items. Strides are bytes, and may be negative.
void copy_transposed(size_t item_bytes, uint8_t* dest, const uint8_t* source, int64_t rows, int64_t columns,
                     int64_t dest_stride, int64_t source_stride);

}  // namespace zarrfeed
