/* Has system calls fail, as a system without memory does; comes before the library that is tested.
 *
 * REFUSE_CALL names what is refused (mmap, munmap, madvise, mprotect, mremap, thread), REFUSE_FIRST is the number of the first call
 * of it that is, and REFUSE_COUNT how many are from there on. At the end it writes to REFUSE_FILE how many there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic unsigned long calls;

/* The library that is tested calls before this one's constructors run. */
static int refuses(const char *name) {
    const char *call = getenv("REFUSE_CALL"), *first = getenv("REFUSE_FIRST"), *count = getenv("REFUSE_COUNT");
    if (!call || strcmp(name, call)) return 0;
    unsigned long number = atomic_fetch_add(&calls, 1);
    return first && count && number - strtoul(first, NULL, 10) < strtoul(count, NULL, 10);
}

__attribute__((destructor)) static void end(void) {
    const char *file = getenv("REFUSE_FILE");
    int descriptor = file ? open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (descriptor >= 0) {
        dprintf(descriptor, "%lu\n", calls);
        close(descriptor);
    }
}

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    if (result >= 0 || result < -4095) return result;
    errno = -result;
    return -1;
}

static long refused(void) {
    errno = ENOMEM;
    return -1;
}

/* Calls by number come here too. */
long syscall(long number, ...) {
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_madvise && refuses("madvise") || number == SYS_munmap && refuses("munmap")) return refused();
    return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void *mmap64(void *start, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    if (refuses("mmap")) return (void *)refused();
    return (void *)kernel(SYS_mmap, (long)start, bytes, protection, flags, descriptor, offset);
}

void *mmap(void *start, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    return mmap64(start, bytes, protection, flags, descriptor, offset);
}

int munmap(void *start, size_t bytes) {
    return refuses("munmap") ? refused() : kernel(SYS_munmap, (long)start, bytes, 0, 0, 0, 0);
}

int madvise(void *start, size_t bytes, int advice) {
    return refuses("madvise") ? refused() : kernel(SYS_madvise, (long)start, bytes, advice, 0, 0, 0);
}

int mprotect(void *start, size_t bytes, int protection) {
    return refuses("mprotect") ? refused() : kernel(SYS_mprotect, (long)start, bytes, protection, 0, 0, 0);
}

void *mremap(void *start, size_t old, size_t bytes, int flags, ...) {
    va_list more;
    va_start(more, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(more, void *) : NULL;
    va_end(more);
    if (refuses("mremap")) return (void *)refused();
    return (void *)kernel(SYS_mremap, (long)start, old, bytes, flags, (long)to, 0);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (refuses("thread")) return EAGAIN;
    if (!next) next = dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attributes, run, argument);
}
