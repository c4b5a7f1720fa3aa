/* What a replacement of malloc owes an ordinary C program, asked in every phase.
 *
 *     contract CASE PHASE          (PHASE: 0 waiting, 1 collecting, 2 planned)
 *
 * Steps are made of the case's own requests ("rehearsed") until the phase is reached; a plan that comes into force is
 * then a plan of these very requests. The case is asked again in the phase. A broken promise is one line on standard
 * error and status 1; a test that hangs is ended by the one that started it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define CHECK(promise) ((promise) ? (void)0 : broken(#promise, __LINE__))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void (*step)(void);
static int (*phase)(void);
static size_t (*stats_json)(char *, size_t);
static int wanted;

static void broken(const char *promise, int line) {
    char text[512];
    int length = snprintf(text, sizeof text, "contract.c:%d: broken in phase %d: %s (errno %d)\n", line, phase(), promise, errno);
    if (write(2, text, (size_t)length) < 0) _exit(3);
    _exit(1);
}

/* A number of stepalloc_stats_json, by its key. */
static size_t figure(const char *key) {
    static __thread char json[8192];
    char quoted[64];
    CHECK(stats_json(json, sizeof json) < sizeof json);
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *found = strstr(json, quoted);
    CHECK(found != NULL);
    return strtoull(found + strlen(quoted), NULL, 10);
}

/* The byte that belongs at a place of a block: no two blocks or places agree for long. */
static unsigned char pattern(unsigned seed, size_t at) { return (unsigned char)(seed * 131 + at * 7 + (at >> 8) * 13 + 1); }

static void fill(void *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) ((unsigned char *)block)[i] = pattern(seed, i);
}

static int holds(const void *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)block)[i] != pattern(seed, i)) return 0;
    return 1;
}

static int all_zero(const unsigned char *block, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (block[i]) return 0;
    return 1;
}

/* A block that must be there, filled. */
static void *block_of(size_t size, unsigned seed) {
    void *block = malloc(size);
    CHECK(block != NULL);
    fill(block, size, seed);
    return block;
}

/* Sizes around and above the 32 KiB from which blocks are planned. */
static const size_t SIZES[] = {100, 32 * KIB - 1, 32 * KIB, 40000, 100000, 256 * KIB, 1 * MIB};

/* An ordinary step. */
static void work(void) {
    void *blocks[COUNT(SIZES)][2];
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        blocks[i][0] = block_of(SIZES[i], i);
        CHECK(posix_memalign(&blocks[i][1], 64, SIZES[i]) == 0);
        fill(blocks[i][1], SIZES[i], i + 100);
    }
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        CHECK(holds(blocks[i][0], SIZES[i], i));
        CHECK(holds(blocks[i][1], SIZES[i], i + 100));
        free(blocks[i][0]);
        free(blocks[i][1]);
    }
}

/* ---- one thread ------------------------------------------------------------------------------------------------ */

static void zero_sizes(void) {
    enum { N = 100 };
    void *blocks[2 * N];
    for (int i = 0; i < N; i++) {
        CHECK((blocks[i] = malloc(0)) != NULL);
        CHECK((blocks[N + i] = calloc(0, 8)) != NULL);
    }
    for (int i = 0; i < 2 * N; i++)
        for (int j = 0; j < i; j++) CHECK(blocks[i] != blocks[j]);
    for (int i = 0; i < 2 * N; i++) free(blocks[i]);
    work();
}

static void realloc_to_zero(void) {
    size_t before = figure("arena_occupied_bytes");
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        void *block = block_of(SIZES[i], i);
        CHECK(realloc(block, 0) == NULL);
    }
    CHECK(figure("arena_occupied_bytes") == before);
}

static void realloc_of_null(void) {
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        void *block = realloc(NULL, SIZES[i]);
        CHECK(block != NULL);
        fill(block, SIZES[i], i);
        CHECK(holds(block, SIZES[i], i));
        free(block);
    }
    free(realloc(NULL, 0));
}

static void realloc_keeps(void) {
    static const size_t way[] = {50, 40000, 40001, 3 * MIB, 100000, 99000, 64, 32 * KIB - 1, 32 * KIB, 2 * MIB, 32 * KIB - 1, 1, 1 * MIB, 1 * MIB + 1};
    size_t size = 20;
    void *block = block_of(size, 1);
    for (unsigned i = 0; i < COUNT(way); i++) {
        size_t kept = size < way[i] ? size : way[i];
        unsigned seed = i + 1;
        block = i % 2 ? realloc(block, way[i]) : reallocarray(block, 1, way[i]);
        CHECK(block != NULL);
        CHECK(holds(block, kept, seed));
        CHECK(malloc_usable_size(block) >= way[i]);
        size = way[i];
        fill(block, size, seed + 1);
    }
    free(block);
    /* A block with an alignment of its own grows, too. */
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        CHECK(posix_memalign(&block, 4096, SIZES[i]) == 0);
        fill(block, SIZES[i], i);
        block = realloc(block, 2 * SIZES[i]);
        CHECK(block != NULL && holds(block, SIZES[i], i));
        free(block);
    }
}

static void calloc_zeroes(void) {
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < COUNT(SIZES); i++) {
            void *dirty = malloc(SIZES[i]);
            CHECK(dirty != NULL);
            memset(dirty, 0xff, malloc_usable_size(dirty));
            free(dirty);
            unsigned char *clean = round % 2 ? calloc(SIZES[i], 1) : calloc(1, SIZES[i]);
            CHECK(clean != NULL);
            CHECK(all_zero(clean, SIZES[i]));
            memset(clean, 0xff, malloc_usable_size(clean));
            free(clean);
        }
}

static void overflow(void) {
    static const size_t factors[][2] = {{SIZE_MAX / 2, 3}, {SIZE_MAX, SIZE_MAX}, {(size_t)1 << 32, (size_t)1 << 32}, {3, SIZE_MAX / 2}};
    for (unsigned size = 0; size < COUNT(SIZES); size++) {
        void *old = block_of(SIZES[size], size);
        for (unsigned i = 0; i < COUNT(factors); i++) {
            errno = 0;
            CHECK(calloc(factors[i][0], factors[i][1]) == NULL);
            CHECK(errno == ENOMEM);
            errno = 0;
            CHECK(reallocarray(NULL, factors[i][0], factors[i][1]) == NULL);
            CHECK(errno == ENOMEM);
            errno = 0;
            CHECK(reallocarray(old, factors[i][0], factors[i][1]) == NULL);
            CHECK(errno == ENOMEM);
            CHECK(holds(old, SIZES[size], size));
        }
        free(old);
    }
}

static void too_large(void) {
    static const size_t huge[] = {(size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX, SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4095};
    int mark;
    for (unsigned i = 0; i < COUNT(huge); i++) {
#define FAILS(call) (errno = 0, CHECK((call) == NULL), CHECK(errno == ENOMEM))
        FAILS(malloc(huge[i]));
        FAILS(calloc(1, huge[i]));
        FAILS(calloc(huge[i], 1));
        FAILS(realloc(NULL, huge[i]));
        FAILS(memalign(16, huge[i]));
        FAILS(memalign(64, huge[i]));
        FAILS(memalign(2 * MIB, huge[i]));
        FAILS(aligned_alloc(64, huge[i]));
        FAILS(valloc(huge[i]));
        FAILS(pvalloc(huge[i]));
        for (unsigned size = 0; size < COUNT(SIZES); size++) {
            void *old = block_of(SIZES[size], size);
            FAILS(realloc(old, huge[i]));
            FAILS(reallocarray(old, huge[i], 1));
            CHECK(holds(old, SIZES[size], size));
            free(old);
        }
        for (size_t align = 8; align <= 2 * MIB; align *= 2) {
            void *out = &mark;
            errno = 77;
            CHECK(posix_memalign(&out, align, huge[i]) == ENOMEM);
            CHECK(errno == 77);
            CHECK(out == &mark);
        }
    }
}

static void bad_alignments(void) {
    static const size_t bad[] = {0, 1, 2, 3, 4, 7, 9, 24, 48, 100, 4097, SIZE_MAX, SIZE_MAX - 7};
    int mark;
    for (unsigned size = 0; size < COUNT(SIZES); size++)
        for (unsigned i = 0; i < COUNT(bad); i++) {
            void *out = &mark;
            errno = 77;
            CHECK(posix_memalign(&out, bad[i], SIZES[size]) == EINVAL);
            CHECK(errno == 77);
            CHECK(out == &mark);
        }
    errno = 0;
    CHECK(memalign(SIZE_MAX, 100) == NULL);
    CHECK(errno == EINVAL);
    /* glibc rounds memalign's alignment up. */
    void *rounded = memalign(48, 40000);
    CHECK(rounded != NULL && (uintptr_t)rounded % 64 == 0);
    free(rounded);
    work();
}

static void alignments(void) {
    static const size_t sizes[] = {1, 100, 32 * KIB, 40000, 200000};
    void *blocks[4];
    for (size_t align = 8; align <= 2 * MIB; align *= 2)
        for (unsigned size = 0; size < COUNT(sizes); size++) {
            CHECK(posix_memalign(&blocks[0], align, sizes[size]) == 0);
            CHECK((blocks[1] = memalign(align, sizes[size])) != NULL);
            CHECK((blocks[2] = aligned_alloc(align, sizes[size])) != NULL);
            CHECK(posix_memalign(&blocks[3], align, sizes[size]) == 0);
            for (unsigned i = 0; i < COUNT(blocks); i++) {
                CHECK((uintptr_t)blocks[i] % align == 0);
                CHECK((uintptr_t)blocks[i] % (align < 16 ? 8 : 16) == 0);
                fill(blocks[i], sizes[size], i);
            }
            for (unsigned i = 0; i < COUNT(blocks); i++) {
                CHECK(holds(blocks[i], sizes[size], i));
                free(blocks[i]);
            }
        }
}

static void natural_alignment(void) {
    /* The small ones twice: what is aligned to 8 only is aligned to 16 every other time. */
    static const size_t sizes[] = {1, 1, 8, 8, 16, 17, 100, 1000, 32 * KIB - 1, 32 * KIB, 32 * KIB + 1, 40001, 99999, 1 * MIB + 1};
    for (unsigned i = 0; i < COUNT(sizes); i++) {
        void *blocks[] = {malloc(sizes[i]), malloc(sizes[i]), calloc(sizes[i], 1), realloc(NULL, sizes[i])};
        for (unsigned j = 0; j < COUNT(blocks); j++) {
            CHECK(blocks[j] != NULL);
            CHECK((uintptr_t)blocks[j] % 16 == 0);
            free(blocks[j]);
        }
        void *page = valloc(sizes[i]), *pages = pvalloc(sizes[i]);
        CHECK(page != NULL && (uintptr_t)page % 4096 == 0);
        CHECK(pages != NULL && (uintptr_t)pages % 4096 == 0);
        CHECK(malloc_usable_size(pages) >= (sizes[i] + 4095) / 4096 * 4096);
        free(page);
        free(pages);
    }
}

static void usable(void) {
    static const size_t sizes[] = {0, 1, 15, 16, 17, 24, 100, 1000, 4097, 32 * KIB - 1, 32 * KIB, 32 * KIB + 1, 40000, 65537, 100000, 1 * MIB, 1 * MIB + 1};
    void *blocks[2 * COUNT(sizes)];
    CHECK(malloc_usable_size(NULL) == 0);
    for (unsigned i = 0; i < COUNT(blocks); i++) {
        size_t size = sizes[i / 2];
        if (i % 2) CHECK(posix_memalign(&blocks[i], 256, size) == 0);
        else blocks[i] = malloc(size);
        CHECK(blocks[i] != NULL);
        CHECK(malloc_usable_size(blocks[i]) >= size);
        fill(blocks[i], malloc_usable_size(blocks[i]), i);
    }
    for (unsigned i = 0; i < COUNT(blocks); i++) {
        CHECK(holds(blocks[i], malloc_usable_size(blocks[i]), i));
        free(blocks[i]);
    }
}

static void free_keeps_errno(void) {
    void (*cfree_)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");
    void (*free_sized_)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*free_aligned_sized_)(void *, size_t, size_t) = (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    CHECK(cfree_ && free_sized_ && free_aligned_sized_);
    static const size_t sizes[] = {0, 100, 40000, 100000, 1 * MIB, 64 * MIB};
    for (unsigned i = 0; i < COUNT(sizes); i++) {
        void *blocks[] = {malloc(sizes[i]), malloc(sizes[i]), malloc(sizes[i]), memalign(4096, sizes[i])};
        for (unsigned j = 0; j < COUNT(blocks); j++) CHECK(blocks[j] != NULL);
        errno = 1234;
        free(blocks[0]);
        cfree_(blocks[1]);
        free_sized_(blocks[2], sizes[i]);
        free_aligned_sized_(blocks[3], 4096, sizes[i]);
        CHECK(errno == 1234);
    }
    // Pages that the program locked cannot be given back to the system, which a backend may try now or later.
    for (unsigned i = 0; i < 10; i++) {
        char *block = malloc((i % 5 + 1) * MIB);
        void *small = malloc(1000);
        CHECK(block != NULL && small != NULL);
        char *page = (char *)(((uintptr_t)block + 4095) / 4096 * 4096);
        CHECK(mlock(page, 4096) == 0);
        errno = 1234;
        free(block);
        free(small);
        CHECK(errno == 1234);
    }
    // The same of blocks that are the backend's, more than a thread keeps for itself.
    void *locked[300];
    for (unsigned i = 0; i < COUNT(locked); i++) {
        locked[i] = malloc(24000);
        CHECK(locked[i] != NULL);
        char *page = (char *)(((uintptr_t)locked[i] + 4095) / 4096 * 4096);
        // Few: a user may lock as little as 64 KiB.
        CHECK(i % 30 || mlock(page, 4096) == 0);
    }
    for (unsigned i = 0; i < COUNT(locked); i++) {
        errno = 1234;
        free(locked[i]);
        CHECK(errno == 1234);
    }
    errno = 1234;
    free(NULL);
    cfree_(NULL);
    free_sized_(NULL, 0);
    free_aligned_sized_(NULL, 16, 0);
    CHECK(errno == 1234);
}

static void step_keeps_errno(void) {
    work();
    errno = 1234;
    CHECK(phase() >= 0);
    CHECK(errno == 1234);
    step();
    CHECK(errno == 1234);
    CHECK(stats_json(NULL, 0) > 0);
    CHECK(errno == 1234);
}

/* Repeated for each call of the list below: no memory is an answer, not an end. */
static void out_of_memory(void) {
    struct rlimit old, low;
    CHECK(getrlimit(RLIMIT_AS, &old) == 0);
    FILE *statm = fopen("/proc/self/statm", "r");
    size_t pages = 0;
    CHECK(statm != NULL && fscanf(statm, "%zu", &pages) == 1);
    fclose(statm);
    low = old;
    low.rlim_cur = pages * 4096 + 64 * MIB;
    void *kept[COUNT(SIZES)];
    for (unsigned i = 0; i < COUNT(SIZES); i++) kept[i] = block_of(SIZES[i], i);
    CHECK(setrlimit(RLIMIT_AS, &low) == 0);
    const size_t more = 1024 * MIB;
    void *out = &out;
    FAILS(malloc(more));
    FAILS(calloc(more, 1));
    FAILS(calloc(1024, MIB));
    FAILS(realloc(NULL, more));
    FAILS(memalign(64, more));
    FAILS(valloc(more));
    errno = 77;
    CHECK(posix_memalign(&out, 4096, more) == ENOMEM);
    CHECK(errno == 77);
    CHECK(out == &out);
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        FAILS(realloc(kept[i], more));
        CHECK(holds(kept[i], SIZES[i], i));
        free(kept[i]);
    }
    CHECK(setrlimit(RLIMIT_AS, &old) == 0);
    work();
}

static void statistics(void) {
    char whole[8192], cut[16];
    work();
    size_t length = stats_json(NULL, 0);
    CHECK(stats_json(whole, sizeof whole) < sizeof whole);
    CHECK(length > 100 && whole[0] == '{' && whole[strlen(whole) - 1] == '}');
    memset(cut, 'x', sizeof cut);
    CHECK(stats_json(cut, 10) > 100);
    CHECK(memcmp(cut, whole, 9) == 0 && cut[9] == 0 && cut[10] == 'x');
    CHECK(stats_json(cut, 1) > 100);
    CHECK(cut[0] == 0 && cut[1] == whole[1]);
}

static void heap_answers(void) {
    void *blocks[8];
    for (unsigned i = 0; i < COUNT(blocks); i++) blocks[i] = block_of(100000, i);
    size_t arena = figure("arena_occupied_bytes");
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks >= arena);
    CHECK(info.hblkhd >= figure("arena_bytes"));
    CHECK(mallinfo().fordblks >= 0);
    int trimmed = malloc_trim(0);
    CHECK(trimmed == 0 || trimmed == 1);
    int understood = mallopt(M_TRIM_THRESHOLD, 256 << 20);
    CHECK(understood == 0 || understood == 1);
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    CHECK(stream != NULL);
    CHECK(malloc_info(1, stream) == EINVAL);
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    CHECK(strncmp(text, "<malloc version=\"1\">", 20) == 0);
    CHECK(strstr(text, "</malloc>") != NULL);
    free(text);
    malloc_stats();
    for (unsigned i = 0; i < COUNT(blocks); i++) {
        CHECK(holds(blocks[i], 100000, i));
        free(blocks[i]);
    }
    work();
}

static void dlopens(void) {
    work();
    void *library = dlopen("libm.so.6", RTLD_NOW);
    CHECK(library != NULL);
    double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
    CHECK(cosine != NULL && cosine(0.0) == 1.0);
    CHECK(dlsym(library, "there is no such symbol") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlclose(library) == 0);
    CHECK(dlopen("libnothing-of-this-name.so", RTLD_NOW) == NULL);
    CHECK(dlerror() != NULL);
}

/* ---- threads --------------------------------------------------------------------------------------------------- */

static void in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *free_all(void *argument) {
    void **blocks = argument;
    for (unsigned i = 0; i < COUNT(SIZES); i++) {
        CHECK(holds(blocks[i], SIZES[i], i));
        free(blocks[i]);
    }
    return NULL;
}

static void *allocate_all(void *argument) {
    void **blocks = argument;
    for (unsigned i = 0; i < COUNT(SIZES); i++) blocks[i] = block_of(SIZES[i], i);
    return NULL;
}

static void free_elsewhere(void) {
    void *blocks[COUNT(SIZES)];
    allocate_all(blocks);
    in_thread(free_all, blocks);
}

static void thread_leaves_blocks(void) {
    void *blocks[COUNT(SIZES)];
    for (int i = 0; i < 3; i++) {
        in_thread(allocate_all, blocks);
        free_all(blocks);
    }
}

static pthread_key_t key;
static __thread int rounds_left;

static void at_thread_exit(void *value) {
    CHECK(holds(value, 50000, 9));
    free(value);
    work();
    if (rounds_left-- > 0) CHECK(pthread_setspecific(key, block_of(50000, 9)) == 0);
}

static void *with_key(void *argument) {
    (void)argument;
    rounds_left = 2;
    CHECK(pthread_setspecific(key, block_of(50000, 9)) == 0);
    return NULL;
}

static void key_destructors(void) {
    static int made;
    if (!made) CHECK(pthread_key_create(&key, at_thread_exit) == 0);
    made = 1;
    in_thread(with_key, NULL);
}

/* ---- processes ------------------------------------------------------------------------------------------------- */

static volatile int stop;

static void *churn(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    while (!stop)
        for (unsigned i = 0; i < COUNT(SIZES) && !stop; i++) {
            size_t size = SIZES[i] < 4096 ? SIZES[i] : 4096;
            void *block = malloc(SIZES[i]);
            CHECK(block != NULL);
            fill(block, size, seed + i);
            void *small = malloc(24 + seed);
            CHECK(small != NULL && holds(block, size, seed + i));
            free(block);
            free(small);
        }
    return NULL;
}

static void ended_well(pid_t pid) {
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}

static void forks(void) {
    pthread_t threads[4];
    void *inherited[COUNT(SIZES)];
    for (unsigned i = 0; i < COUNT(threads); i++) CHECK(pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(1000 * i)) == 0);
    for (int round = 0; round < 8; round++) {
        allocate_all(inherited);
        pid_t pid = fork();
        if (pid == 0) {
            for (int i = 0; i < 3; i++) {
                work();
                step();
            }
            free_all(inherited);
            work();
            step();
            exit(0);
        }
        free_all(inherited);
        step();
        ended_well(pid);
    }
    stop = 1;
    for (unsigned i = 0; i < COUNT(threads); i++) CHECK(pthread_join(threads[i], NULL) == 0);
    work();
}

static void forked_child_plans(void) {
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 500 && phase() != 2; i++) {
            work();
            step();
        }
        CHECK(phase() == 2);
        size_t before = figure("arena_occupied_bytes");
        void *block = block_of(1 * MIB, 1);
        CHECK(figure("arena_occupied_bytes") >= before + 1 * MIB);
        free(block);
        exit(0);
    }
    ended_well(pid);
}

static void vforks(void) {
    void *block = block_of(100000, 5);
    for (int i = 0; i < 10; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            execlp("true", "true", (char *)NULL);
            _exit(127);
        }
        ended_well(pid);
    }
    CHECK(system("exit 0") == 0);
    CHECK(holds(block, 100000, 5));
    free(block);
    work();
}

/* ---- the end of the process, and signals ----------------------------------------------------------------------- */

static int ending;

static void said(const char *word) { CHECK(write(1, word, strlen(word)) == (ssize_t)strlen(word)); }

static void at_exit_work(void) {
    work();
    said("atexit ");
}

static void exit_handlers(void) {
    CHECK(atexit(at_exit_work) == 0);
    ending = 1;
}

__attribute__((destructor)) static void destructor(void) {
    if (!ending) return;
    work();
    said("destructor");
}

enum { MAINS = 200000, HANDLERS = 300000 };
static void *handlers_block;
static volatile int handled;

static void signal_step(void) {
    void *of_handler = block_of(HANDLERS, 1), *of_main = block_of(MAINS, 2);
    handlers_block = of_handler;
    free(of_main);
    free(of_handler);
}

static void on_alarm(int signal) {
    (void)signal;
    void *block = malloc(HANDLERS);
    /* Nobody else asks for this size, so its slot is free; another block could only be the backend's or a gap's. */
    CHECK(block == handlers_block);
    fill(block, 512, (unsigned)handled);
    CHECK(holds(block, 512, (unsigned)handled));
    free(block);
    handled++;
}

/* glibc's malloc may not be entered from a handler, so both sides ask for nothing but what the arena serves. */
static void signal_handler(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 150}, {0, 150}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (unsigned i = 0; handled < 1000; i++) {
        void *block = malloc(MAINS);
        CHECK(block != NULL);
        fill(block, 64, i);
        CHECK(holds(block, 64, i));
        free(block);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void *arena_block(void) {
    size_t before = figure("arena_occupied_bytes");
    void *block = block_of(1 * MIB, 1);
    CHECK(figure("arena_occupied_bytes") >= before + 1 * MIB);
    return block;
}

static void double_free(void) {
    void *block = arena_block();
    free(block);
    free(block);
}

static void inner_free(void) { free((char *)arena_block() + 4096); }

/* ---------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*body)(void);
    /* What a step is before the phase is reached; null: the body itself. */
    void (*rehearsal)(void);
} CASES[] = {
    {"zero_sizes", zero_sizes, NULL},
    {"realloc_to_zero", realloc_to_zero, NULL},
    {"realloc_of_null", realloc_of_null, NULL},
    {"realloc_keeps", realloc_keeps, NULL},
    {"calloc_zeroes", calloc_zeroes, NULL},
    {"overflow", overflow, NULL},
    {"too_large", too_large, NULL},
    {"bad_alignments", bad_alignments, NULL},
    {"alignments", alignments, NULL},
    {"natural_alignment", natural_alignment, NULL},
    {"usable", usable, NULL},
    {"free_keeps_errno", free_keeps_errno, NULL},
    {"step_keeps_errno", step_keeps_errno, work},
    {"out_of_memory", out_of_memory, work},
    {"statistics", statistics, NULL},
    {"heap_answers", heap_answers, work},
    {"dlopens", dlopens, NULL},
    {"free_elsewhere", free_elsewhere, NULL},
    {"thread_leaves_blocks", thread_leaves_blocks, NULL},
    {"key_destructors", key_destructors, NULL},
    {"forks", forks, work},
    {"forked_child_plans", forked_child_plans, work},
    {"vforks", vforks, NULL},
    {"exit_handlers", exit_handlers, work},
    {"signal_handler", signal_handler, signal_step},
    {"double_free", double_free, work},
    {"inner_free", inner_free, work},
};

int main(int count, char **arguments) {
    step = (void (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_step");
    phase = (int (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_phase");
    stats_json = (size_t(*)(char *, size_t))dlsym(RTLD_DEFAULT, "stepalloc_stats_json");
    if (count != 3 || !step || !phase || !stats_json) {
        fprintf(stderr, "usage: LD_PRELOAD=libstepalloc.so contract CASE PHASE\n");
        return 2;
    }
    wanted = atoi(arguments[2]);
    for (unsigned i = 0; i < COUNT(CASES); i++) {
        if (strcmp(CASES[i].name, arguments[1]) != 0) continue;
        void (*rehearsal)(void) = CASES[i].rehearsal ? CASES[i].rehearsal : CASES[i].body;
        for (int steps = 0; steps < 1000 && (steps < 3 || phase() != wanted); steps++) {
            step();
            rehearsal();
            /* A long step is planned beside the program. */
            if (steps > 20) usleep(1000);
        }
        CHECK(phase() == wanted);
        step();
        /* Planned steps that are counted. */
        for (int again = 0; again < 4; again++) {
            rehearsal();
            step();
        }
        CHECK(phase() == wanted);
        CHECK((figure("planned_allocations") > 0) == (wanted == 2));
        CHECK((figure("arena_bytes") > 0) == (wanted == 2));
        /* A step that repeats exactly finds all its slots. */
        CHECK(figure("fallback_allocations") == 0);
        if (CASES[i].rehearsal) CASES[i].body();
        return 0;
    }
    fprintf(stderr, "contract: there is no case %s\n", arguments[1]);
    return 2;
}
