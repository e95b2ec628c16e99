/* Marks the times of launches, in nanoseconds since the epoch, one line each.
 * mark begin PROGRAM…      says "begin TIME" and becomes the program
 * mark first               says "first TIME": the first thing that a rank does
 * mark nothing             ends at once
 * mark many N K PROGRAM…   runs the program N times, K at once, without its output; says "ran BEGIN END STATUS" at the end of each
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void say(const char *what, long long at)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s %lld\n", what, at);
    if (write(1, line, length) != length)
        _exit(125);
}

static pid_t start(char **argv)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    execvp(argv[0], argv);
    _exit(126);
}

static int many(int count, int at_once, char **argv)
{
    pid_t *pids = calloc(at_once, sizeof *pids);
    long long *began = calloc(at_once, sizeof *began);
    int started = 0, ended = 0, status;
    if (!pids || !began)
        return 125;
    while (ended < count) {
        for (int place = 0; place < at_once && started < count; place++)
            if (!pids[place]) {
                began[place] = now();
                pids[place] = start(argv);
                if (pids[place] < 0)
                    return 124;
                started++;
            }
        pid_t pid = wait(&status);
        if (pid < 0)
            return 123;
        for (int place = 0; place < at_once; place++)
            if (pids[place] == pid) {
                char line[96];
                int length = snprintf(line, sizeof line, "ran %lld %lld %d\n", began[place], now(), status);
                if (write(1, line, length) != length)
                    return 125;
                pids[place] = 0;
                ended++;
            }
    }
    return 0;
}

int main(int argc, char **argv)
{
    long long at = now();
    if (argc > 1 && !strcmp(argv[1], "first")) {
        say("first", at);
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "begin")) {
        say("begin", now());
        execvp(argv[2], argv + 2);
        return 126;
    }
    if (argc > 4 && !strcmp(argv[1], "many"))
        return many(atoi(argv[2]), atoi(argv[3]), argv + 4);
    return argc > 1 && !strcmp(argv[1], "nothing") ? 0 : 2;
}
