/* Runs a program where the system refuses more than usual.
 *
 *     restricted RESTRICTION PROGRAM ARGUMENTS...
 *
 * RESTRICTION is one of
 *     call=NAME          a system call fails with EPERM (madvise, mincore, ...)
 *     absent=NAME        and with ENOSYS, as from an older kernel
 *     as=BYTES, data=BYTES, fsize=BYTES, nofile=NUMBER    the resource limit
 *     nproc=NUMBER       the same, as nobody: root has no such limit
 *     group=BYTES        in a memory cgroup of that size; ends with 77 where none can be made
 *     fixed              without random addresses
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static const struct {
    const char *name;
    int number;
} calls[] = {
    {"madvise", SYS_madvise}, {"mincore", SYS_mincore}, {"clone", SYS_clone}, {"clone3", SYS_clone3}, {"mremap", SYS_mremap},
    {"close_range", SYS_close_range}, {"get_robust_list", SYS_get_robust_list}, {"getrusage", SYS_getrusage}, {"prctl", SYS_prctl},
    {"prlimit64", SYS_prlimit64}, {"sysinfo", SYS_sysinfo}, {"getrandom", SYS_getrandom}, {"rt_sigprocmask", SYS_rt_sigprocmask},
    {"gettid", SYS_gettid}, {"statx", SYS_statx}, {"rename", SYS_rename}, {"write", SYS_write}, {"openat", SYS_openat},
    {"sched_getaffinity", SYS_sched_getaffinity}, {"membarrier", SYS_membarrier}, {"readlink", SYS_readlink},
};

static void refuse(const char *name, int error) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(name, calls[i].name)) continue;
        /* A program is started, and its libraries are opened, before anything is refused of it: openat for writing alone. */
        int flags = calls[i].number == SYS_openat ? O_WRONLY | O_RDWR : 0;
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
            BPF_JUMP(BPF_JMP | (flags ? BPF_JSET : BPF_JGE) | BPF_K, flags, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
        return;
    }
    errno = EINVAL;
    fail(name);
}

static void limit(int resource, const char *value) {
    struct rlimit both = {strtoul(value, NULL, 10), strtoul(value, NULL, 10)};
    if (setrlimit(resource, &both)) fail("setrlimit");
}

static void put(const char *directory, const char *file, const char *value) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    int descriptor = open(path, O_WRONLY);
    if (descriptor < 0 || write(descriptor, value, strlen(value)) < 0) {
        rmdir(directory);
        exit(77);
    }
    close(descriptor);
}

/* The program is a child, so that its group can be removed when it has ended. */
static void group(const char *bytes, char **program) {
    int unified = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
    char directory[100], number[20];
    snprintf(directory, sizeof directory, "/sys/fs/cgroup/%sstepalloc-%d", unified ? "" : "memory/", getpid());
    if (mkdir(directory, 0700)) exit(77);
    put(directory, unified ? "memory.max" : "memory.limit_in_bytes", bytes);
    pid_t child = fork();
    if (child == 0) {
        snprintf(number, sizeof number, "%d", getpid());
        put(directory, "cgroup.procs", number);
        execvp(*program, program);
        fail(*program);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("a child");
    /* The kernel may still be busy with it. */
    for (int i = 0; rmdir(directory) && i < 100; i++) usleep(10000);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    char *value = strchr(arguments[1], '=');
    if (value) *value++ = 0;
    const char *kind = arguments[1];
    if (!strcmp(kind, "call")) refuse(value, EPERM);
    else if (!strcmp(kind, "absent")) refuse(value, ENOSYS);
    else if (!strcmp(kind, "as")) limit(RLIMIT_AS, value);
    else if (!strcmp(kind, "data")) limit(RLIMIT_DATA, value);
    else if (!strcmp(kind, "fsize")) limit(RLIMIT_FSIZE, value);
    else if (!strcmp(kind, "nofile")) limit(RLIMIT_NOFILE, value);
    else if (!strcmp(kind, "nproc")) {
        limit(RLIMIT_NPROC, value);
        if (getuid() == 0 && (setgid(65534) || setuid(65534))) fail("setuid");
    } else if (!strcmp(kind, "group")) group(value, arguments + 2);
    else if (!strcmp(kind, "fixed")) {
        if (personality(ADDR_NO_RANDOMIZE) < 0) fail("personality");
    } else return 2;
    execvp(arguments[2], arguments + 2);
    fail(arguments[2]);
}
