/* What the programs of Lattice's that become work share. */
#ifndef LATTICE_SIGNALS_H
#define LATTICE_SIGNALS_H

#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Restores every signal's default, those of the C library included, since some are ignored by whoever began this process. */
static void reset_signals(void)
{
	struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; } plain = { SIG_DFL, 0, NULL, 0 };
	sigset_t none;

	for (int number = 1; number <= 64; number++)
		if (number != SIGKILL && number != SIGSTOP)
			syscall(SYS_rt_sigaction, number, &plain, NULL, 8UL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

#endif
