/* An ordinary program that marks its steps where it is told how, for the tests of the command.
 *
 *     steps COUNT [exit CODE | kill SIGNAL | wait | ask SIGNAL]
 *
 * It writes a line to each standard stream, so that a test sees them pass through.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_terminate(int signal) {
    (void)signal;
    static const char text[] = "terminated\n";
    _exit(write(1, text, sizeof text - 1) < 0 ? 6 : 5);
}

int main(int count, char **arguments) {
    void (*step)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "stepalloc_step");
    int steps = count > 1 ? atoi(arguments[1]) : 0, number = count > 3 ? atoi(arguments[3]) : 0;
    const char *end = count > 2 ? arguments[2] : "exit";
    for (int i = 0; i < steps; i++) {
        if (step) step();
        for (size_t size = 50000; size <= 800000; size *= 2) {
            char *first = malloc(size), *second = calloc(size, 1);
            if (!first || !second) return 90;
            memset(first, i, size);
            second[size - 1] = 1;
            free(first);
            free(second);
        }
    }
    puts("to standard output");
    fputs("to standard error\n", stderr);
    fflush(stdout);
    if (!strcmp(end, "kill") || !strcmp(end, "ask")) raise(number);
    if (!strcmp(end, "wait")) {
        signal(SIGTERM, on_terminate);
        puts("waiting");
        fflush(stdout);
        for (;;) pause();
    }
    return strcmp(end, "exit") ? 0 : number;
}
