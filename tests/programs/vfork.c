// A thread with a period of its own, which nobody marks, while children that share the memory allocate as much and as
// little as it does. The argument is their number.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int ended;

static void *work(void *unused) {
    (void)unused;
    for (long turn = 0; !ended; turn++) {
        size_t size = 33000 + turn % 3 * 7000;
        unsigned char *block = malloc(size);
        memset(block, (int)(turn & 127), size);
        if (block[0] != (turn & 127) || block[size - 1] != (turn & 127)) {
            abort();
        }
        free(block);
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread;
    int children = count > 1 ? atoi(words[1]) : 1;
    pthread_create(&thread, NULL, work, NULL);
    usleep(200000);
    for (int child = 0; child < children; child++) {
        pid_t process = vfork();
        if (process == 0) {
            for (int turn = 0; turn < 200; turn++) {
                void *volatile block = malloc(33000 + turn % 2 * 50000);
                free(block);
            }
            _exit(0);
        }
        waitpid(process, NULL, 0);
    }
    ended = 1;
    pthread_join(thread, NULL);
    puts("all bytes as they were");
    return 0;
}
