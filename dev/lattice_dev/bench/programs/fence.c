/* A program of libpmi2 that says when its rank began, and when it was through a fence and had read what its neighbour put before:
 * "start TIME", "ready TIME" of each rank. */
#define _POSIX_C_SOURCE 200809L
#include <slurm/pmi2.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct MPID_Info;

static long long now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int main(void)
{
    long long start = now();
    int spawned, size, rank, appnum, length;
    char job[256], key[64], value[PMI2_MAX_VALLEN], wanted[64], lines[96];
    if (PMI2_Init(&spawned, &size, &rank, &appnum) || PMI2_Job_GetId(job, sizeof job))
        return 3;
    snprintf(key, sizeof key, "key-%d", rank);
    snprintf(value, sizeof value, "address of rank %d", rank);
    if (PMI2_KVS_Put(key, value) || PMI2_KVS_Fence())
        return 4;
    snprintf(key, sizeof key, "key-%d", (rank + 1) % size);
    snprintf(wanted, sizeof wanted, "address of rank %d", (rank + 1) % size);
    if (PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof value, &length) || strcmp(value, wanted))
        return 5;
    length = snprintf(lines, sizeof lines, "start %lld\nready %lld\n", start, now());
    if (write(1, lines, length) != length)
        return 6;
    return PMI2_Finalize() ? 7 : 0;
}
