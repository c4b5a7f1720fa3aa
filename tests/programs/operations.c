/* Programs of operations against a shadow heap: every byte of every block is written, and compared when the block goes.
 *
 *     operations SEED THREADS SEGMENTS STEPS MODE
 *
 * Threads repeat their programs step by step; from one segment to the next the programs change a little or altogether, and the threads
 * are new ones. MODE is a sum: 1 marks steps, 2 has threads take turns, 4 has them fork at times, 8 locks all
 * memory. Ends with 0 and one line of figures, or with 1 and what was wrong. That memory is refused is no fault, and is counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLACES = 48, SHARED = 32, LENGTH = 200, MOST_THREADS = 8, MARKED = 1, IN_TURN = 2, FORKING = 4, LOCKED = 8 };

typedef struct {
    unsigned char *start;
    size_t bytes;
    uint64_t key;
} Block;

typedef struct {
    unsigned char kind, place;
    unsigned shift;
    size_t bytes;
} Operation;

typedef struct {
    int number;
    uint64_t random;
    Operation program[LENGTH];
    Block places[PLACES];
} Worker;

static Worker workers[MOST_THREADS];
static Block *_Atomic shared[SHARED];
static _Atomic uint64_t operations, refused, keys = 1, planned_steps;
static pthread_key_t at_thread_exit;
static pthread_barrier_t barrier;
static int threads, steps, mode;
static void (*mark)(void);
static int (*phase)(void);

static void fail(const char *what, size_t number) {
    fprintf(stderr, "%s (%zu)\n", what, number);
    _exit(1);
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Eight bytes of a block, wherever it begins: a call of memcpy for each would take most of the time. */
typedef uint64_t __attribute__((may_alias, aligned(1))) Word;

static void fill(Block *block) {
    size_t i = 0;
    for (; i + 8 <= block->bytes; i += 8) *(Word *)(block->start + i) = block->key * 0x9e3779b97f4a7c15u + i;
    for (; i < block->bytes; i++) block->start[i] = (unsigned char)(block->key + i);
}

/* Compares the first bytes with what `fill` has written. */
static void compare(const Block *block, size_t count) {
    size_t i = 0, words = block->bytes & ~(size_t)7;
    for (; i + 8 <= count && i < words; i += 8) {
        if (*(Word *)(block->start + i) != block->key * 0x9e3779b97f4a7c15u + i) fail("a word has changed", i);
    }
    for (; i < count; i++) {
        unsigned char byte = (unsigned char)(block->key + i);
        if (i < words) {
            uint64_t word = block->key * 0x9e3779b97f4a7c15u + (i & ~(size_t)7);
            byte = (unsigned char)(word >> (i & 7) * 8);
        }
        if (block->start[i] != byte) fail("a byte has changed", i);
    }
}

static void take(Block *block, void *start, size_t bytes, size_t align, int zero) {
    block->start = start;
    block->bytes = bytes;
    if (!start) {
        atomic_fetch_add(&refused, 1);
        return;
    }
    if ((uintptr_t)start % align) fail("not aligned to", align);
    size_t usable = malloc_usable_size(start);
    if (usable < bytes) fail("usable is less than", bytes);
    if (zero) {
        size_t i = 0;
        while (i + 8 <= bytes && !*(Word *)(block->start + i)) i += 8;
        while (i < bytes && !block->start[i]) i++;
        if (i < bytes) fail("calloc's memory is not zero at", i);
    }
    /* All that is usable may be written. */
    block->bytes = draw(&(uint64_t){bytes * 2654435761u + 1}) & 1 ? usable : bytes;
    block->key = atomic_fetch_add(&keys, 1);
    fill(block);
}

static void give(Block *block) {
    if (!block->start) return;
    compare(block, block->bytes);
    errno = 77;
    free(block->start);
    if (errno != 77) fail("free has set errno to", errno);
    block->start = NULL;
}

static void *refusable(void *start) {
    if (!start && errno != ENOMEM) fail("refused with errno", errno);
    return start;
}

static void operate(Worker *worker, const Operation *operation) {
    Block *block = &worker->places[operation->place];
    size_t bytes = operation->bytes, align = (size_t)1 << operation->shift;
    void *start = NULL;
    errno = 0;
    switch (operation->kind) {
    case 0: case 1: case 2:
        give(block);
        errno = 0;
        take(block, refusable(malloc(bytes)), bytes, bytes < 16 ? 8 : 16, 0);
        break;
    case 3:
        give(block);
        errno = 0;
        take(block, refusable(calloc(1 + bytes % 3, bytes / (1 + bytes % 3))), bytes / (1 + bytes % 3) * (1 + bytes % 3), 8, 1);
        break;
    case 4:
        give(block);
        errno = 0;
        if (bytes & 1) {
            int error = posix_memalign(&start, align < 8 ? 8 : align, bytes);
            if (error && error != ENOMEM) fail("posix_memalign says", error);
            if (error) start = NULL;
        } else start = refusable(bytes & 2 ? memalign(align, bytes) : aligned_alloc(align, bytes));
        take(block, start, bytes, align, 0);
        break;
    case 5: case 6:
        if (!block->start) break;
        start = realloc(block->start, bytes ? bytes : 1);
        if (!start) {
            refusable(start);
            atomic_fetch_add(&refused, 1);
            break;
        }
        block->start = start;
        compare(block, bytes < block->bytes ? bytes : block->bytes);
        block->bytes = bytes ? bytes : 1;
        fill(block);
        break;
    case 7: case 8:
        give(block);
        break;
    case 9: {
        /* Blocks change hands: who gets one frees it. */
        Block *mine = malloc(sizeof *mine), *theirs;
        if (!mine) {
            atomic_fetch_add(&refused, 1);
            break;
        }
        *mine = *block;
        theirs = atomic_exchange(&shared[bytes % SHARED], mine);
        block->start = NULL;
        if (theirs) {
            *block = *theirs;
            free(theirs);
        }
        break;
    }
    }
    atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
}

static void rewrite(Worker *worker, Operation *operation) {
    uint64_t *random = &worker->random;
    operation->kind = draw(random) % 10;
    operation->place = draw(random) % PLACES;
    operation->shift = draw(random) % 60 ? draw(random) % 9 : draw(random) % 17;
    uint64_t scale = draw(random) % 200;
    operation->bytes = draw(random) % (scale < 120 ? 1000 : scale < 190 ? 50000 : scale < 199 ? 300000 : 3000000);
}

static void at_exit_of_thread(void *blocks) {
    for (int i = 0; i < PLACES / 4; i++) give((Block *)blocks + i);
}

static void fork_once(void) {
    pid_t child = fork();
    if (child == 0) {
        /* The child frees what its parent has allocated, and allocates. */
        for (int i = 0; i < 20; i++) {
            Block block;
            take(&block, malloc(1000 + 30000 * (size_t)i), 1000 + 30000 * (size_t)i, 16, 0);
            give(&block);
        }
        for (int i = 0; i < PLACES; i++) give(&workers[0].places[i]);
        if (mark) mark();
        _exit(0);
    }
    int status;
    if (child > 0 && (waitpid(child, &status, 0) != child || status)) fail("a child has ended with", status);
}

static void *work(void *argument) {
    Worker *worker = argument;
    pthread_setspecific(at_thread_exit, worker->places);
    for (int step = 0; step < steps; step++) {
        for (int turn = 0; turn < threads; turn++) {
            if (mode & IN_TURN) pthread_barrier_wait(&barrier);
            else if (turn) break;
            if (mode & IN_TURN && turn != worker->number) continue;
            if (mark && worker->number == 0) {
                mark();
                if (phase() == 2) atomic_fetch_add(&planned_steps, 1);
            }
            for (int i = 0; i < LENGTH; i++) operate(worker, &worker->program[i]);
            if (mode & FORKING && worker->number == 0 && step % 8 == 5) fork_once();
        }
    }
    return NULL;
}

static void at_exit(void) {
    for (int i = 0; i < SHARED; i++) {
        Block *block = atomic_exchange(&shared[i], NULL);
        if (block) {
            give(block);
            free(block);
        }
    }
    for (int i = 0; i < MOST_THREADS; i++)
        for (int place = 0; place < PLACES; place++) give(&workers[i].places[place]);
}

int main(int count, char **arguments) {
    if (count < 6) fail("operations SEED THREADS SEGMENTS STEPS MODE", 0);
    uint64_t seed = strtoull(arguments[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    threads = atoi(arguments[2]);
    steps = atoi(arguments[4]);
    mode = atoi(arguments[5]);
    if (threads < 1 || threads > MOST_THREADS) fail("threads: 1 to", MOST_THREADS);
    mark = (void (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_step");
    phase = (int (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_phase");
    if (!(mode & MARKED)) mark = NULL;
    if (mode & LOCKED && mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) fail("mlockall: errno", errno);
    if (pthread_key_create(&at_thread_exit, at_exit_of_thread)) fail("no key", 0);
    atexit(at_exit);
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].random = seed + (uint64_t)i * 0x632be59bd9b4e019u;
        for (int k = 0; k < LENGTH; k++) rewrite(&workers[i], &workers[i].program[k]);
    }
    int most = threads;
    for (int segment = 0; segment < atoi(arguments[3]); segment++) {
        pthread_t handles[MOST_THREADS];
        int made = 0;
        uint64_t *random = &workers[0].random;
        if (segment % 3 == 2) threads = 1 + draw(random) % most;
        pthread_barrier_init(&barrier, NULL, threads);
        for (int i = 0; i < threads; i++) {
            int changes = segment % 4 == 3 ? LENGTH : segment % 4;
            for (int k = 0; k < changes; k++) rewrite(&workers[i], &workers[i].program[draw(random) % LENGTH]);
        }
        for (; made < threads; made++)
            if (pthread_create(&handles[made], NULL, work, &workers[made])) break;
        if (made < threads) {
            /* Refused: they must not wait for those that are not there. */
            atomic_fetch_add(&refused, 1);
            if (mode & IN_TURN) break;
        }
        for (int i = 0; i < made; i++) pthread_join(handles[i], NULL);
        pthread_barrier_destroy(&barrier);
    }
    printf("{\"operations\": %llu, \"refused\": %llu, \"planned_steps\": %llu}\n", (unsigned long long)operations,
           (unsigned long long)refused, (unsigned long long)planned_steps);
    /* Threads that wait for one that could not be made end with the process. */
    return 0;
}
