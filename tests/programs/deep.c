/* A program that loads a library with RTLD_DEEPBIND, and hands blocks over in both directions: each frees what the other has
   allocated. Compiled with -DMODULE it is that library. Arguments: the library's name, which is looked for where the program's
   RUNPATH says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 40 };

static size_t size_of(int i) { return 100 + (size_t)i * i * 3000; }

static void check(const char *block, int i, int at) {
    for (size_t byte = 0; byte < size_of(i); byte += 97)
        if (block[byte] != (char)(i + at)) {
            fprintf(stderr, "block %d of round %d: byte %zu is %d\n", i, at, byte, block[byte]);
            exit(1);
        }
}

#ifdef MODULE

/* Frees, moves and keeps what it is given, and gives blocks of its own. */
void exchange(char **blocks, int at) {
    for (int i = 0; i < BLOCKS; i++) {
        check(blocks[i], i, at);
        if (malloc_usable_size(blocks[i]) < size_of(i)) exit(2);
        if (i % 3 == 0) {
            blocks[i] = realloc(blocks[i], size_of(i) + 5000);
            check(blocks[i], i, at);
        }
        free(blocks[i]);
        void *aligned = NULL;
        if (i % 4 == 0) blocks[i] = posix_memalign(&aligned, 64, size_of(i)) ? NULL : aligned;
        else if (i % 4 == 1) blocks[i] = calloc(1, size_of(i));
        else if (i % 4 == 2) blocks[i] = memset(malloc(size_of(i) + 1), 1, 1);
        else blocks[i] = strdup("short");
        if (i % 4 == 3) blocks[i] = realloc(blocks[i], size_of(i));
        if (!blocks[i]) exit(3);
        memset(blocks[i], i + at, size_of(i));
    }
}

#else

void stepalloc_step(void) __attribute__((weak));

int main(int count, char **arguments) {
    char *blocks[BLOCKS];
    for (int at = 0; at < 60; at++) {
        for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(size_of(i)), i + at, size_of(i));
        void *library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 4;
        }
        void (*exchange)(char **, int) = (void (*)(char **, int))dlsym(library, "exchange");
        exchange(blocks, at);
        for (int i = 0; i < BLOCKS; i++) {
            check(blocks[i], i, at);
            free(blocks[i]);
        }
        dlclose(library);
        if (stepalloc_step) stepalloc_step();
    }
    if (dlopen("a library that is not there", RTLD_NOW) || !strstr(dlerror(), "a library that is not there")) return 5;
    return 0;
}

#endif
