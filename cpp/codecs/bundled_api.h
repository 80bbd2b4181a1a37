#pragma once
// Declarations of the functions that libblosc2.a exports without headers (LZ4, Zstandard, zlib-ng, BloscLZ).
// Signatures follow the public headers of lz4 1.10, zstd 1.5 and zlib-ng 2.3; cpp/tests checks them by round
// trips.

#include <cstddef>
#include <cstdint>

extern "C" {

int LZ4_decompress_safe(const char* source, char* dest, int compressed_size, int dest_capacity);
int LZ4_compress_fast(const char* source, char* dest, int source_size, int dest_capacity, int acceleration);
int blosclz_decompress(const void* input, int length, void* output, int max_output);

struct ZSTD_DCtx_s;
ZSTD_DCtx_s* ZSTD_createDCtx();
size_t ZSTD_freeDCtx(ZSTD_DCtx_s* context);
size_t ZSTD_decompressDCtx(ZSTD_DCtx_s* context, void* dest, size_t dest_capacity, const void* source,
                           size_t source_size);
unsigned ZSTD_isError(size_t code);
const char* ZSTD_getErrorName(size_t code);

struct zng_stream {
  const uint8_t* next_in;
  uint32_t avail_in;
  size_t total_in;
  uint8_t* next_out;
  uint32_t avail_out;
  size_t total_out;
  const char* msg;
  void* state;
  void* (*zalloc)(void*, unsigned, unsigned);
  void (*zfree)(void*, void*);
  void* opaque;
  int data_type;
  uint32_t adler;
  unsigned long reserved;
};
int32_t zng_inflateInit2(zng_stream* stream, int32_t window_bits);
int32_t zng_inflateReset2(zng_stream* stream, int32_t window_bits);
int32_t zng_inflate(zng_stream* stream, int32_t flush);
int32_t zng_inflateEnd(zng_stream* stream);

int32_t blosc2_shuffle(int32_t typesize, int32_t blocksize, const void* src, void* dest);
int32_t blosc2_unshuffle(int32_t typesize, int32_t blocksize, const void* src, void* dest);
int32_t blosc2_bitunshuffle(int32_t typesize, int32_t blocksize, const void* src, void* dest);

}  // extern "C"
