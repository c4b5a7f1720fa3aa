/* An allocator that somebody loads behind ours, and that knows none of its blocks: whoever is led to it by the names of malloc's family ends. */
#include <unistd.h>

static void *strange(const char *name, unsigned long length) {
    if (write(2, name, length) < 0) _exit(98);
    _exit(99);
}

#define STRANGE(function) \
    void *function(void) { return strange("called behind: " #function "\n", sizeof "called behind: " #function); }

STRANGE(malloc)
STRANGE(free)
STRANGE(calloc)
STRANGE(realloc)
STRANGE(reallocarray)
STRANGE(memalign)
STRANGE(aligned_alloc)
STRANGE(posix_memalign)
STRANGE(valloc)
STRANGE(pvalloc)
STRANGE(cfree)
STRANGE(malloc_usable_size)
STRANGE(malloc_trim)
STRANGE(mallopt)
STRANGE(mallinfo)
STRANGE(mallinfo2)
STRANGE(malloc_stats)
STRANGE(malloc_info)
STRANGE(__libc_malloc)
STRANGE(__libc_free)
STRANGE(__libc_calloc)
STRANGE(__libc_realloc)
STRANGE(__libc_memalign)
STRANGE(__libc_valloc)
STRANGE(__libc_pvalloc)
