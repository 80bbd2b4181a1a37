#include "base/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace zarrfeed {
namespace {

size_t whole_pages(size_t bytes) {
  return round_up(bytes, page_size());
}

}  // namespace

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

uint8_t* map_pages(size_t bytes) {
  const size_t size = whole_pages(bytes);
  const size_t more = size >= kHugePage ? kHugePage : 0;
  void* const mapped = mmap(nullptr, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<uint8_t*>(mapped);
  if (more == 0) return begin;
  const size_t lead = round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  uint8_t* const base = begin + lead;
  if (lead > 0) munmap(begin, lead);
  if (more > lead) munmap(base + size, more - lead);
#ifdef MADV_HUGEPAGE
  madvise(base, size, MADV_HUGEPAGE);
#endif
  return base;
}

void unmap_pages(uint8_t* base, size_t bytes) {
  munmap(base, whole_pages(bytes));
}

}  // namespace zarrfeed
