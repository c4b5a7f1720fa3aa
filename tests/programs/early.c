/* A library whose constructor runs before ours, and whose first requests are made by the C library under the locks of atexit and pthread_atfork. */
#include <pthread.h>
#include <stdlib.h>

static void nothing(void) {}

__attribute__((constructor)) static void begin(void) {
    /* The C library's first tables hold 32 and 48. */
    for (int i = 0; i < 200; i++) {
        if (atexit(nothing)) abort();
        if (pthread_atfork(nothing, nothing, nothing)) abort();
    }
}
