/* Rounds that leave nothing behind, and some that do; `stepalloc leaks` samples the process after each.
 *
 *     leaks ROUNDS THREADS WHAT [MODULE]
 *
 * Prints `round N` after each, and pauses a moment for the sample. Built with -DMODULE it is the module that is loaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef MODULE

/* What a plugin has: a table of its own, threads' locals, and blocks that it frees when it goes. */
static __thread char *locals[64];
static char *table[64];

__attribute__((constructor)) static void come(void) {
    for (int i = 0; i < 64; i++) {
        size_t bytes = i % 8 ? 40 * (size_t)i : 50000 + 3000 * (size_t)i;
        if ((table[i] = malloc(bytes + 1))) memset(table[i], i, bytes + 1);
    }
}

__attribute__((destructor)) static void go(void) {
    for (int i = 0; i < 64; i++) free(table[i]);
}

void module_work(void) {
    for (int i = 0; i < 64; i++) locals[i] = strdup("a local of this thread");
    for (int i = 0; i < 64; i++) free(locals[i]);
}

#else

enum { LARGE = 30, SMALL = 1500 };

static void (*mark)(void);
static int threads;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    _exit(3);
}

static char *block(size_t bytes) {
    char *block = malloc(bytes);
    if (!block) fail("no memory");
    return memset(block, 1, bytes);
}

/* Large blocks of which half are alive at once; `more` bytes are added to each. */
static void large_blocks(size_t more) {
    char *blocks[LARGE];
    for (int i = 0; i < LARGE; i++) {
        blocks[i] = block(40000 + 9000 * (size_t)i + more);
        if (i >= LARGE / 2) free(blocks[i - LARGE / 2]);
    }
    for (int i = LARGE / 2; i < LARGE; i++) free(blocks[i]);
}

static void small_blocks(unsigned seed) {
    char **blocks = malloc(SMALL * sizeof *blocks);
    if (!blocks) fail("no memory");
    for (int i = 0; i < SMALL; i++) {
        seed = seed * 1664525 + 1013904223;
        blocks[i] = block(1 + (seed >> 8) % 900);
    }
    for (int i = 0; i < SMALL; i++) free(blocks[i * 7 % SMALL]);
    free(blocks);
}

static pthread_barrier_t all_there;

/* A thread's blocks are all there while those of the others are: each round takes the same memory, whoever runs when. */
static void *work(void *number) {
    char *large[LARGE / 2], **small = malloc(SMALL * sizeof *small);
    unsigned seed = (unsigned)(size_t)number;
    if (!small) fail("no memory");
    large_blocks(0);
    for (int i = 0; i < LARGE / 2; i++) large[i] = block(40000 + 9000 * (size_t)i);
    for (int i = 0; i < SMALL; i++) {
        seed = seed * 1664525 + 1013904223;
        small[i] = block(1 + (seed >> 8) % 900);
    }
    pthread_barrier_wait(&all_there);
    for (int i = 0; i < SMALL; i++) free(small[i * 7 % SMALL]);
    free(small);
    for (int i = 0; i < LARGE / 2; i++) free(large[i]);
    return NULL;
}

/* Each thread does the same work and ends; a program of one thread does it itself. */
static void together(void *(*what)(void *)) {
    pthread_t started[64];
    if (threads == 1) {
        what(NULL);
        return;
    }
    for (int i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, what, (void *)(size_t)i)) fail("no thread");
    for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
}

static void step(void) {
    if (mark) mark();
}

static void clean(int round) {
    (void)round;
    step();
    together(work);
}

/* A hundredth of what a round's large blocks have together stays: half of it in small blocks, half in a large one. */
static void leak(int round) {
    clean(round);
    size_t bytes = 0;
    for (int i = 0; i < LARGE; i++) bytes += 40000 + 9000 * (size_t)i;
    bytes = bytes * (size_t)threads / 100;
    block(bytes / 2);
    for (size_t left = bytes / 2; left >= 500; left -= 500) block(500);
}

/* Thirty-seven shapes of a step, each as often as it takes to be planned. */
static void shapes(int round) {
    size_t shape = (size_t)round * 17 % 37;
    for (int i = 0; i < 80; i++) {
        step();
        large_blocks(4096 * shape);
    }
}

static const char *module;

static void *load_one(void *unused) {
    (void)unused;
    void *library = dlopen(module, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    void (*module_work)(void) = (void (*)(void))dlsym(library, "module_work");
    if (!module_work) fail("the module has no function");
    module_work();
    dlclose(library);
    return NULL;
}

static void load(int round) {
    (void)round;
    for (int i = 0; i < 4; i++) {
        step();
        together(load_one);
        large_blocks(0);
    }
}

/* Children that have arenas of their own, and end in several ways. */
static void processes(int round) {
    for (int child = 0; child < 3; child++) {
        step();
        large_blocks(0);
        fflush(stdout);
        pid_t pid = fork();
        if (pid < 0) fail("no process");
        if (pid == 0) {
            for (int i = 0; i < 4; i++) {
                step();
                large_blocks(4096 * (size_t)((round + child) % 5));
            }
            small_blocks((unsigned)child);
            if (child == 2) exit(0);
            _exit(0);
        }
        small_blocks((unsigned)round);
        int status;
        if (waitpid(pid, &status, 0) != pid || status) fail("a child has failed");
    }
}

/* A descriptor, a mapping and a thread that stay. */
static void *wait_for_ever(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

static void things(int round) {
    pthread_t thread;
    (void)round;
    if (open("/dev/null", O_RDONLY) < 0) fail("no descriptor");
    if (pthread_create(&thread, NULL, wait_for_ever, NULL)) fail("no thread");
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*round)(int);
    } all[] = {{"clean", clean}, {"leak", leak},           {"shapes", shapes},
               {"load", load},   {"processes", processes}, {"things", things}};
    if (count < 4) fail("leaks ROUNDS THREADS WHAT [MODULE]");
    void (*round)(int) = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(words[3], all[i].name)) round = all[i].round;
    threads = atoi(words[2]);
    module = count > 4 ? words[4] : NULL;
    if (!round || threads < 1 || threads > 64) fail("no such work");
    pthread_barrier_init(&all_there, NULL, (unsigned)threads);
    mark = (void (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_step");
    for (int i = 0; i < atoi(words[1]); i++) {
        round(i);
        printf("round %d\n", i);
        fflush(stdout);
        usleep(8000);
    }
    return 0;
}

#endif
