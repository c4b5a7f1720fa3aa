/* What a process goes through beside its allocations; a test is a case of it.
 *
 *     life CASE [ARGUMENT]
 *
 * Ends with 0 where the case's promise was kept, and says on standard error what was not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void (*mark)(void);

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    _exit(1);
}

static void fail_errno(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A step: forty blocks of planned size, of which half are alive at once, each written. */
static void step(int number) {
    char *blocks[40];
    if (mark) mark();
    for (int i = 0; i < 40; i++) {
        size_t bytes = 40000 + 9000 * (size_t)i;
        blocks[i] = malloc(bytes);
        if (!blocks[i]) fail("no memory");
        memset(blocks[i], number + i, bytes);
        if (i >= 20) free(blocks[i - 20]);
    }
    for (int i = 20; i < 40; i++) {
        if (blocks[i][30000] != (char)(number + i)) fail("a block has changed");
        free(blocks[i]);
    }
}

static void steps(int count) {
    for (int i = 0; i < count; i++) step(i);
}

/* Everything of malloc's family, with small blocks and large ones. */
static int family(const char *unused) {
    (void)unused;
    for (size_t bytes = 1; bytes < 8 << 20; bytes = bytes * 3 + 1) {
        char *block = malloc(bytes), *zeros = calloc(1, bytes), *aligned = NULL, *other = memalign(256, bytes);
        if (!block || !zeros || !other || posix_memalign((void **)&aligned, 4096, bytes)) fail("no memory");
        char *all[] = {block, zeros, aligned, other};
        for (int i = 0; i < 4; i++) {
            size_t usable = malloc_usable_size(all[i]);
            if (usable < bytes) fail("less is usable than was asked for");
            memset(all[i], i, usable);
            all[i] = realloc(all[i], 2 * bytes);
            if (!all[i] || all[i][bytes - 1] != i) fail("realloc has lost something");
            free(all[i]);
        }
    }
    malloc_trim(0);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    if (mallinfo2().uordblks + mallinfo2().arena < 1) fputs("", stdout);
    (void)mallinfo();
    malloc_stats();
    malloc_info(0, stdout);
    steps(30);
    return 0;
}

/* Whether descriptor 0 is the next one that is opened, for so many seconds. */
static int watch_descriptors(double seconds) {
    int wrong = 0;
    for (double end = now() + seconds; now() < end;) {
        close(0);
        int got = open("/dev/null", O_RDONLY);
        if (got != 0) {
            wrong++;
            dup2(got, 0);
            close(got);
        }
    }
    return wrong;
}

/* A program of one thread opens and closes files, while threads of ours may do so. */
static int descriptors_alone(const char *seconds) {
    int wrong = 0;
    for (int i = 0; i < 40; i++) {
        steps(1);
        wrong += watch_descriptors(atof(seconds) / 80);
    }
    wrong += watch_descriptors(atof(seconds) / 2);
    if (wrong) fprintf(stderr, "%d times another descriptor than 0\n", wrong);
    return wrong != 0;
}

static atomic_int done;

static void *make_steps(void *unused) {
    (void)unused;
    for (int i = 0; !done; i++) step(i);
    return NULL;
}

/* The same beside a thread that makes steps. */
static int descriptors_beside(const char *seconds) {
    pthread_t thread;
    pthread_create(&thread, NULL, make_steps, NULL);
    int wrong = watch_descriptors(atof(seconds));
    done = 1;
    pthread_join(thread, NULL);
    if (wrong) fprintf(stderr, "%d times another descriptor than 0\n", wrong);
    return wrong != 0;
}

static int ticks;

static void exit_on_tick(int signal) {
    (void)signal;
    if (--ticks <= 0) exit(0);
}

/* A handler that has interrupted whatever it was calls exit. */
static int exit_in_handler(const char *count) {
    ticks = atoi(count);
    signal(SIGALRM, exit_on_tick);
    struct itimerval often = {{0, 900}, {0, 5000 + 700 * (getpid() % 50)}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0;; i++) {
        step(i);
        free(malloc(100 + i % 1000));
    }
}

static void *work_on(void *unused) {
    (void)unused;
    usleep(300000);
    steps(3);
    puts("the last thread ends");
    fflush(stdout);
    return NULL;
}

/* The first thread ends before another one. */
static int first_thread_ends(const char *unused) {
    (void)unused;
    steps(30);
    pthread_t thread;
    pthread_create(&thread, NULL, work_on, NULL);
    pthread_exit(NULL);
}

static atomic_int began, allocated;

static void *allocate_though_cancelled(void *unused) {
    (void)unused;
    began = 1;
    while (!allocated) {}
    /* It is to be cancelled now, at the next point where that may be: malloc is none. */
    for (int i = 0; i < 200; i++) step(i);
    allocated = 2;
    pthread_testcancel();
    return NULL;
}

static int cancelled(const char *unused) {
    (void)unused;
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, allocate_though_cancelled, NULL);
    while (!began) {}
    pthread_cancel(thread);
    allocated = 1;
    pthread_join(thread, &result);
    if (allocated != 2) fail("cancelled within malloc");
    return result != PTHREAD_CANCELED;
}

static void (*late_mark)(void);
static void *(*late_malloc)(size_t);
static void (*late_free)(void *);

static void *use_late(void *unused) {
    (void)unused;
    for (int i = 0; i < 300; i++) {
        if (late_mark) late_mark();
        char *small = late_malloc(100), *large = late_malloc(100000 + 1000 * (i % 3));
        if (!small || !large) fail("no memory");
        memset(small, 1, 100);
        memset(large, 2, 100000);
        late_free(small);
        late_free(large);
    }
    return NULL;
}

/* The library comes when the process and its threads are there already. */
static int dlopen_late(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    late_mark = (void (*)(void))dlsym(library, "stepalloc_step");
    late_malloc = (void *(*)(size_t))dlsym(library, "malloc");
    late_free = (void (*)(void *))dlsym(library, "free");
    if (!late_mark || late_malloc == malloc) fail("not the library's own");
    pthread_t threads[4];
    use_late(NULL);
    late_mark = NULL;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, use_late, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}

/* Libraries with thread-locals come and go, more than the dynamic linker has made room for; a thread's first use of one
 * allocates within the dynamic linker. */
static int modules(const char *directory) {
    pthread_t thread;
    pthread_create(&thread, NULL, make_steps, NULL);
    const char *count = getenv("LIFE_ROUNDS");
    for (int round = 0; round < (count ? atoi(count) : 1); round++) {
        void *libraries[40];
        for (int i = 0; i < 40; i++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%d.so", directory, i);
            libraries[i] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (!libraries[i]) fail(dlerror());
            strcpy(((char *(*)(void))dlsym(libraries[i], "module_block"))(), "a value");
            for (int small = 0; small < 20; small++) free(malloc(small * 2000));
        }
        for (int i = 0; i < 40; i++) dlclose(libraries[i]);
    }
    done = 1;
    pthread_join(thread, NULL);
    return 0;
}

static int children;

static void fork_on_tick(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status;
    if (child > 0 && (waitpid(child, &status, 0) != child || status)) _exit(3);
    children++;
}

/* A handler that has interrupted malloc forks. */
static int fork_in_handler(const char *count) {
    signal(SIGALRM, fork_on_tick);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; children < atoi(count); i++) {
        step(i);
        for (int small = 0; small < 100; small++) free(malloc(small * 37 % 5000));
    }
    return 0;
}

static void *change_environment(void *unused) {
    (void)unused;
    char name[32];
    for (int i = 0; !done; i++) {
        snprintf(name, sizeof name, "LIFE_%d", i % 2000);
        if (i / 2000 % 2) unsetenv(name);
        else setenv(name, "a value", 1);
    }
    return NULL;
}

/* Another thread changes the environment, whose array moves as it grows. */
static int environment_changes(const char *unused) {
    (void)unused;
    pthread_t thread;
    pthread_create(&thread, NULL, change_environment, NULL);
    steps(400);
    done = 1;
    pthread_join(thread, NULL);
    return 0;
}

static void *allocate_large(void *unused) {
    (void)unused;
    for (int i = 0; !done; i++) {
        char *block = malloc(20000 + i % 50 * 17000), *other = malloc(i % 3000);
        if (!block || !other) fail("no memory");
        block[0] = other[0] = (char)i;
        block = realloc(block, 30000 + i % 70 * 13000);
        if (!block || block[0] != (char)i) fail("realloc has lost something");
        free(other);
        free(block);
    }
    return NULL;
}

/* Waits for a child, which must end with 0. */
static void end_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) fail_errno("waitpid");
    if (status) {
        fprintf(stderr, "child %d has ended with %d\n", (int)child, status);
        _exit(1);
    }
}

/* Forks while 8 threads allocate; up to 8 children at a time allocate, make steps and end. */
static int forks(const char *count) {
    steps(30);
    pthread_t threads[8];
    pid_t running[8] = {0};
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, allocate_large, NULL);
    for (int i = 0; i < atoi(count); i++) {
        /* Each block of a step waits for the others' turns. */
        if (i % 8 == 0) step(i);
        char *mine = malloc(100000 + i % 10 * 50000);
        memset(mine, i, 100000);
        if (running[i % 8]) end_of(running[i % 8]);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            if (mine[99999] != (char)i) _exit(2);
            free(mine);
            for (int size = 100; size < 1000000; size *= 3) {
                char *block = calloc(1, size);
                if (!block || block[size - 1]) _exit(3);
                free(block);
            }
            if (i % 20 == 0) steps(10);
            _exit(0);
        }
        if (child < 0) fail_errno("fork");
        running[i % 8] = child;
        free(mine);
    }
    for (int i = 0; i < 8; i++) if (running[i]) end_of(running[i]);
    done = 1;
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return 0;
}

/* posix_spawn, whose child shares the memory until it executes another program. */
static int spawns(const char *count) {
    steps(30);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, allocate_large, NULL);
    for (int i = 0; i < atoi(count); i++) {
        step(i);
        char *arguments[] = {"true", NULL};
        pid_t child;
        int status;
        if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ)) fail("no process");
        if (waitpid(child, &status, 0) != child || status) fail("a child has failed");
    }
    done = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}

static pthread_key_t last_block;

static void free_last(void *block) {
    if (((char *)block)[50000] != 5) fail("a thread's last block has changed");
    free(block);
    /* A destructor may allocate, and set what has destructors of their own. */
    char *more = malloc(60000);
    more[59999] = 1;
    free(more);
}

static void *one_of_many(void *from_another) {
    char *mine = malloc(70000), *small = malloc(100);
    memset(mine, 5, 70000);
    pthread_setspecific(last_block, mine);
    free(small);
    free(from_another);
    return malloc(1 + (size_t)mine % 90000);
}

/* Threads come and go, eight at once; each frees what another one has allocated, and the last block in a destructor. */
static int threads(const char *count) {
    pthread_key_create(&last_block, free_last);
    void *passed = NULL;
    for (int i = 0; i < atoi(count); i += 8) {
        pthread_t handles[8];
        if (i % 64 == 0) step(i);
        for (int k = 0; k < 8; k++) {
            if (pthread_create(&handles[k], NULL, one_of_many, passed)) fail("no thread");
            passed = NULL;
        }
        for (int k = 0; k < 8; k++) {
            free(passed);
            pthread_join(handles[k], &passed);
        }
    }
    free(passed);
    return 0;
}

static char *kept[30];
static int at_exit_calls;

static void at_exit(void) {
    for (int i = 0; i < 30; i++) {
        size_t bytes = 1000 + 30000 * (size_t)i;
        if (kept[i] && (kept[i][0] != i || kept[i][bytes - 1] != i)) fail("a block has changed at exit");
        free(kept[i]);
        kept[i] = malloc(bytes);
        if (!kept[i]) fail("no memory at exit");
        memset(kept[i], i, bytes);
    }
    if (++at_exit_calls < 40) atexit(at_exit);
    else if (mark) steps(3);
}

__attribute__((destructor)) static void at_unload(void) {
    if (!at_exit_calls) return;
    at_exit_calls = 1000;
    at_exit();
    puts("the destructor has run");
    fflush(stdout);
}

/* Handlers of exit, which register more of them, and the program's destructor allocate, free and make steps. */
static int destructors(const char *unused) {
    (void)unused;
    steps(30);
    atexit(at_exit);
    pthread_key_create(&last_block, free_last);
    pthread_setspecific(last_block, memset(malloc(70000), 5, 70000));
    pthread_t thread;
    pthread_create(&thread, NULL, allocate_large, NULL);
    return 0;
}

static void allocate_on_tick(int signal) {
    (void)signal;
    int before = errno;
    char *block = malloc(40000 + ticks % 20 * 20000), *small = malloc(ticks % 1000);
    if (!block || !small) _exit(3);
    memset(block, 9, 40000);
    free(small);
    free(block);
    ticks++;
    errno = before;
}

/* A handler allocates that has interrupted what does not. */
static int handlers(const char *count) {
    steps(30);
    struct sigaction action = {.sa_handler = allocate_on_tick};
    sigaction(SIGALRM, &action, NULL);
    sigset_t tick, before;
    sigemptyset(&tick);
    sigaddset(&tick, SIGALRM);
    sigprocmask(SIG_BLOCK, &tick, &before);
    pthread_t thread;
    pthread_create(&thread, NULL, allocate_large, NULL);
    struct itimerval often = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; ticks < atoi(count); i++) {
        step(i);
        sigsuspend(&before);
    }
    done = 1;
    pthread_join(thread, NULL);
    return 0;
}

/* All descriptors but the standard ones are closed behind the library's back, and their numbers are the program's. */
static int descriptors_closed(const char *path) {
    for (int i = 0; i < 60; i++) {
        steps(1);
        closefrom(3);
        int mine = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (mine != 3 || write(mine, "mine", 4) != 4) fail("not the program's own descriptor");
        steps(1);
        char text[10];
        if (pread(mine, text, sizeof text, 0) != 4 || memcmp(text, "mine", 4)) fail("something else is in the program's file");
    }
    return 0;
}

static int only_steps(const char *count) {
    steps(atoi(count));
    return 0;
}

/* Children that make no step of their own, and end by exit. */
static int children_exit(const char *count) {
    steps(30);
    for (int i = 0; i < atoi(count); i++) {
        pid_t child = fork();
        if (child == 0) exit(0);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status) fail("a child has not ended well");
    }
    return 0;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        int (*run)(const char *);
    } cases[] = {{"family", family}, {"descriptors_alone", descriptors_alone},
                 {"descriptors_beside", descriptors_beside}, {"exit_in_handler", exit_in_handler},
                 {"first_thread_ends", first_thread_ends}, {"cancelled", cancelled},
                 {"dlopen_late", dlopen_late}, {"modules", modules}, {"fork_in_handler", fork_in_handler},
                 {"environment_changes", environment_changes}, {"forks", forks},
                 {"spawns", spawns}, {"threads", threads}, {"destructors", destructors}, {"handlers", handlers},
                 {"descriptors_closed", descriptors_closed}, {"steps", only_steps},
                 {"children_exit", children_exit}};
    if (!getenv("LIFE_UNMARKED")) mark = (void (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_step");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (count > 1 && !strcmp(arguments[1], cases[i].name)) return cases[i].run(count > 2 ? arguments[2] : "");
    fail("no such case");
}
