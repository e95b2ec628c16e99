/* An MPI program that says when its first and its last rank began, and when MPI_Init was done: "start TIME", "ready TIME" of each rank. */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int main(int argc, char **argv)
{
    long long start = now(), ready;
    char lines[96];
    MPI_Init(&argc, &argv);
    ready = now();
    int length = snprintf(lines, sizeof lines, "start %lld\nready %lld\n", start, ready);
    if (write(1, lines, length) != length)
        return 3;
    MPI_Finalize();
    return 0;
}
