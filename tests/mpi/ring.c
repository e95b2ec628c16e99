/* An MPI program as people write them: a token around the ring, a sum over all, one to all.
 * ring            says "rank R of N: ring T, sum S, all B"
 * ring abort R    rank R calls MPI_Abort with 13
 * ring exit R     rank R leaves with 5 between init and finalize
 * ring kill R     rank R kills itself there
 *                 (the others compute for 2 s meanwhile: in a call to MPI some would crash as their peer goes, and be named first)
 * ring sleep S    sleeps S seconds between two barriers
 * ring until F    waits there for a file
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size, token = 0, sum = 0, all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    int stays = argc > 2 && (!strcmp(argv[1], "sleep") || !strcmp(argv[1], "until"));
    if (argc > 2 && !stays && atoi(argv[2]) == rank) {
        if (!strcmp(argv[1], "abort"))
            MPI_Abort(MPI_COMM_WORLD, 13);
        if (!strcmp(argv[1], "exit"))
            _exit(5);
        kill(getpid(), SIGKILL);
    }
    if (argc > 2 && !strcmp(argv[1], "until"))
        while (access(argv[2], F_OK))
            usleep(100000);
    else if (argc > 2)
        sleep(stays ? atoi(argv[2]) : 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (size > 1) {
        int next = (rank + 1) % size, before = (rank + size - 1) % size;
        if (rank)
            MPI_Recv(&token, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        token += 1;
        MPI_Send(&token, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
        if (!rank)
            MPI_Recv(&token, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    all = rank ? 0 : 4711;
    MPI_Bcast(&all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    printf("rank %d of %d: ring %d, sum %d, all %d\n", rank, size, token, sum, all);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
